"""One member under the consumer protocol, driven by hand: its table, and cases that KIP-848 does not name."""

from __future__ import annotations

from random import Random
from typing import get_args

import pytest
from harness.consumer_driver import NEVER_SENT, NEW, OLD, OWING, SESSION_MS, Driver, by_id, only, parts

from spark_kgroup.errors import IllegalTransition
from spark_kgroup.member import consumer_contract, contract
from spark_kgroup.member.consumer import LEAVES_TO, TRANSITIONS, State
from spark_kgroup.member.consumer_contract import (
    Ask,
    ConsumerHeartbeatResponse,
    TopicsResolved,
    Unanswered,
)
from spark_kgroup.model import ErrorCode, MemberIdentity

EVENTS: tuple[type[consumer_contract.Event], ...] = get_args(consumer_contract.Event)
SAMPLE: dict[type[consumer_contract.Event], consumer_contract.Event] = {
    contract.Join: contract.Join(),
    ConsumerHeartbeatResponse: ConsumerHeartbeatResponse(request=NEVER_SENT, error=0),
    Unanswered: Unanswered(request=NEVER_SENT, reason="a test"),
    TopicsResolved: TopicsResolved(names=()),
    consumer_contract.NewsExpected: consumer_contract.NewsExpected(),
    contract.GaveUp: contract.GaveUp(partitions=frozenset()),
    contract.RejoinWanted: contract.RejoinWanted(reason="a test"),
    contract.MembershipRefused: contract.MembershipRefused(
        identity=MemberIdentity(instance_id="seat-0", member_id="another"), error=ErrorCode.UNKNOWN_MEMBER_ID
    ),
    contract.SeatSeen: contract.SeatSeen(member_id="another"),
    contract.Tick: contract.Tick(),
    contract.Leave: contract.Leave(reason="a test"),
    contract.Close: contract.Close(),
}


def driver_in(state: State) -> Driver:
    """A member in `state`."""
    return Driver(resumes=OWING if state is State.RESUMING else None).into(state)


NOT_IN_THE_TABLE: dict[State, set[type[consumer_contract.Event]]] = {
    **{state: {contract.Join} for state in State},
    State.IDLE: set(EVENTS) - {contract.Join, contract.Tick, contract.Leave, contract.Close},
    State.CLOSED: set(),
}

# ------------------------------------------------------------------------------------------------------- the table


@pytest.mark.parametrize("state", State)
@pytest.mark.parametrize("event", EVENTS)
def test_each_pair_of_state_and_event_is_in_the_table_or_refused(
    state: State, event: type[consumer_contract.Event]
) -> None:
    driver = driver_in(state)
    if event in NOT_IN_THE_TABLE[state]:
        with pytest.raises(IllegalTransition, match=f"consumer member.*{event.__name__}.*{state.value}"):
            driver.take(SAMPLE[event])
        assert driver.state is state
    else:
        driver.take(SAMPLE[event])


def test_the_table_has_exactly_these_pairs() -> None:
    assert {state: set(EVENTS) - set(row) for state, row in TRANSITIONS.items()} == NOT_IN_THE_TABLE


@pytest.mark.parametrize("state", [s for s in State if s is not State.IDLE])
@pytest.mark.parametrize("stale", [ConsumerHeartbeatResponse, Unanswered, contract.MembershipRefused])
def test_an_answer_that_is_not_awaited_has_no_effect(state: State, stale: type[consumer_contract.Event]) -> None:
    driver = driver_in(state)
    before = (driver.state, driver.machine.identity, driver.machine.owned, driver.machine.next_wakeup_at_ms())
    assert driver.take(SAMPLE[stale]) == []
    assert before == (driver.state, driver.machine.identity, driver.machine.owned, driver.machine.next_wakeup_at_ms())


def test_a_random_walk_takes_each_step_of_the_table_and_no_other() -> None:
    seen: dict[State, set[State]] = {state: set() for state in State}
    of_seats = [ErrorCode.UNRELEASED_INSTANCE_ID, ErrorCode.FENCED_INSTANCE_ID, ErrorCode.FENCED_MEMBER_EPOCH]
    errors = [*[ErrorCode.NONE] * 60, *of_seats * 12, *ErrorCode]
    for seed in range(300):
        static = Random(seed).random() < 0.5
        rng, driver = Random(seed), Driver("seat-0" if static else None, OWING if static and seed % 2 else None)
        driver.take(contract.Join())
        for _ in range(40):
            before, share = driver.state, by_id(*(p for p in range(4) if rng.random() < 0.5))
            driver.now_ms += rng.choice((0, 100, 5_000, 60_000))
            match rng.choice(("answer", "answer", "answer", "tick", "seat", "resolve", "give up", "silence", "refuse")):
                case "answer":
                    driver.answer(error=rng.choice(errors), assignment=rng.choice((None, share)))
                case "tick":
                    driver.take(contract.Tick())
                case "seat":
                    seat = rng.choice(("", "crashed", driver.machine.identity.member_id))
                    driver.take(contract.SeatSeen(member_id=seat))
                case "resolve":
                    driver.resolve(rng.choice((OLD, NEW)))
                case "give up":
                    driver.take(contract.GaveUp(partitions=driver.machine.to_give_up))
                case "silence":
                    driver.take(Unanswered(request=driver.awaited, reason="a test"))
                case _:
                    refused = contract.MembershipRefused(identity=driver.machine.identity, error=25)
                    driver.take(refused)
            if driver.state is not before:
                seen[before].add(driver.state)
            machine = driver.machine
            assert machine.ended or machine.next_wakeup_at_ms() is not None or machine._awaited, f"seed {seed}: stuck"
            assert not machine.owned or machine.in_generation, f"seed {seed}: holds, and is no member"
    ends = {State.LEAVING, State.CLOSED}  # a walk does not leave, and an error may end it anywhere
    walked = {state: seen[state] - ends for state in State if state is not State.IDLE}
    assert walked == {state: LEAVES_TO[state] - ends for state in State if state is not State.IDLE}


# ----------------------------------------------------------------------- races that tests/spec has no sentence for


def test_a_partition_that_is_given_up_after_it_was_assigned_again_is_new_once_more() -> None:
    driver = Driver().into(State.STABLE)
    effects = driver.take(contract.GaveUp(partitions=parts(1)))
    assert only(effects, contract.Assigned).added == parts(1)
    assert driver.machine.owned == parts(0, 1)


def test_a_join_that_was_answered_a_session_ago_is_sent_again() -> None:
    """1. A process joins. 2. It is stopped. 3. It reads the answer when its seat may be another's."""
    driver = Driver().into(State.JOINING)
    driver.now_ms += SESSION_MS
    assert driver.answer(assignment=by_id(0)) == []
    assert driver.state is State.JOINING
    assert only(driver.pass_ms(1_000), Ask).request.identity.generation == 0


def test_an_application_may_use_the_partitions_to_give_up_as_a_key() -> None:
    driver = Driver(resumes=OWING)
    driver.take(contract.Join())
    driver.answer(epoch=7, assignment=by_id(0))
    assert {driver.machine.to_give_up: "asked for"} == {parts(1): "asked for"}


# ----------------------------------------------------------------------------------------------------------- ending


def test_a_member_that_leaves_without_an_answer_says_so() -> None:
    driver = Driver().into(State.LEAVING)
    effects = driver.take(Unanswered(request=driver.awaited, reason="a test"))
    assert only(effects, contract.Left).error == ErrorCode.NETWORK_EXCEPTION


# ------------------------------------------------------------------------------------------- a seat that owes


def test_a_seat_that_owes_goes_on_as_the_crashed_member_with_all_it_may_have_been_reading() -> None:
    driver = Driver(resumes=OWING)
    request = only(driver.take(contract.Join()), Ask).request
    assert request.identity == MemberIdentity(instance_id="seat-0", member_id="crashed", generation=7)
    assert (request.full, request.owned) == (True, by_id(0, 1))
    assert driver.machine.to_give_up == frozenset(), "the coordinator has not spoken yet"
    news = only(driver.answer(epoch=7, assignment=by_id(0)), contract.Assigned)
    assert (news.added, news.revoked) == (frozenset(), parts(1))
    assert (driver.machine.owned, driver.machine.to_give_up) == (frozenset(), parts(1))
    assert not driver.machine.settled


def test_a_seat_that_owed_is_released_when_all_is_given_up_and_joins_under_an_id_of_its_own() -> None:
    driver = driver_in(State.RESUMING)
    request = only(driver.take(contract.GaveUp(partitions=parts(1))), Ask).request
    assert (request.identity.member_id, request.identity.generation) == ("crashed", consumer_contract.RELEASE_EPOCH)
    request = only(driver.answer(epoch=consumer_contract.RELEASE_EPOCH), Ask).request
    assert request.identity.generation == consumer_contract.JOIN_EPOCH
    assert request.identity.member_id != "crashed"
    assert request.owned == frozenset(), "a join may claim nothing"
    assert only(driver.answer(epoch=9, assignment=by_id(0, 2)), contract.Assigned).added == parts(0, 2)
    assert driver.machine.owned == parts(0, 2)


def test_a_seat_whose_debt_the_group_has_called_off_is_released_at_once() -> None:
    driver = Driver(resumes=OWING)
    driver.take(contract.Join())
    request = only(driver.answer(epoch=8, assignment=by_id(0, 1)), Ask).request
    assert request.identity.generation == consumer_contract.RELEASE_EPOCH


def test_a_seat_that_owes_joins_anew_if_the_process_it_goes_on_for_lives_and_gives_up_the_owed_partitions() -> None:
    driver = driver_in(State.RESUMING)
    driver.take(consumer_contract.NewsExpected())
    effects = driver.answer(epoch=8)
    assert "is alive" in only(effects, contract.Rejoining).reason
    assert only(effects, Ask).request.identity.generation == consumer_contract.JOIN_EPOCH
    assert only(effects, Ask).request.identity.member_id != "crashed"
    assert (driver.machine.owned, driver.machine.to_give_up) == (frozenset(), frozenset())


@pytest.mark.parametrize(
    "error", [ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.FENCED_INSTANCE_ID]
)
def test_a_seat_whose_crashed_member_is_gone_owes_no_partition_and_joins(error: ErrorCode) -> None:
    driver = Driver(resumes=OWING)
    driver.take(contract.Join())
    request = only(driver.answer(error=error), Ask).request
    assert request.identity.generation == consumer_contract.JOIN_EPOCH
    assert request.identity.member_id != "crashed"
    assert request.owned == frozenset()
    assert driver.machine.to_give_up == frozenset()


def test_a_seat_that_owes_and_gets_no_answer_for_a_session_owes_no_partition_any_more() -> None:
    driver = driver_in(State.RESUMING)
    request = only(driver.pass_ms(SESSION_MS), Ask).request
    assert request.identity.generation == consumer_contract.JOIN_EPOCH
    assert driver.machine.to_give_up == frozenset()


def test_a_seat_that_owes_asks_again_with_all_of_it_when_no_answer_comes() -> None:
    driver = Driver(resumes=OWING)
    driver.take(contract.Join())
    driver.take(Unanswered(request=driver.awaited, reason="a test"))
    request = only(driver.pass_ms(5_000), Ask).request
    assert (request.identity.generation, request.full, request.owned) == (7, True, by_id(0, 1))


def test_a_seat_that_owes_and_closes_keeps_silent() -> None:
    driver = driver_in(State.RESUMING)
    assert driver.take(contract.Close()) == []
    assert driver.state is State.CLOSED


@pytest.mark.parametrize("state", [State.RESUMING, State.RECONCILING, State.STABLE])
def test_a_member_with_news_asks_at_once_but_not_twice(state: State) -> None:
    driver = driver_in(state)
    if driver.machine._awaited is not None:
        driver.answer(epoch=7)
    assert only(driver.take(consumer_contract.NewsExpected()), Ask).request.full is False
    assert driver.take(consumer_contract.NewsExpected()) == []


def test_a_member_that_subscribes_anew_says_so_in_its_next_heartbeat_and_not_again() -> None:
    driver = driver_in(State.STABLE)
    driver.machine.subscribe(("orders", "payments"))
    assert only(driver.take(consumer_contract.NewsExpected()), Ask).request.full
    assert driver.answer() == []
    assert only(driver.take(consumer_contract.NewsExpected()), Ask).request.full is False


def test_a_member_that_subscribes_anew_while_it_awaits_an_answer_says_so_right_after_that() -> None:
    driver = driver_in(State.STABLE)
    driver.take(consumer_contract.NewsExpected())
    driver.machine.subscribe(("orders", "payments"))
    assert driver.take(consumer_contract.NewsExpected()) == []
    assert only(driver.answer(), Ask).request.full
    assert driver.answer() == []


def test_a_member_that_subscribes_anew_while_it_joins_says_so_as_soon_as_it_is_a_member() -> None:
    driver = driver_in(State.JOINING)
    driver.machine.subscribe(("orders", "payments"))
    assert only(driver.answer(assignment=by_id()), Ask).request.full


def test_a_new_subscription_whose_heartbeat_is_not_answered_is_said_again() -> None:
    driver = driver_in(State.STABLE)
    driver.machine.subscribe(("orders", "payments"))
    asked = only(driver.take(consumer_contract.NewsExpected()), Ask).request
    driver.take(Unanswered(request=asked, reason="a test"))
    assert only(driver.pass_ms(1_000), Ask).request.full
