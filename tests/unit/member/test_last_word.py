"""No partition is owned for longer than a session after the group last confirmed it. A parked request is looked after.

Kafka's own member trusts a parked JoinGroup for the rebalance timeout (AbstractCoordinator). Here that may be 30 min.
"""

from __future__ import annotations

import pytest
from harness.classic_driver import HEARTBEAT_MS, ME, SESSION_MS, Driver, claim, member, none_of, only, parts, request_in

from spark_kgroup.errors import FencedInstanceId
from spark_kgroup.limits import HEARTBEAT_JITTER, REQUEST_TIMEOUT_MS
from spark_kgroup.member import contract
from spark_kgroup.member.classic import State
from spark_kgroup.model import ErrorCode

LOOK_MS = SESSION_MS // 3
GOOD = [ErrorCode.NONE, ErrorCode.REBALANCE_IN_PROGRESS]
PARKED = ["join", "sync", "assignor"]


def parked(where: str) -> Driver:
    """Holds 0 and 1 since now, and waits for the answer to a JoinGroup or SyncGroup, or for the assignor."""
    driver = Driver().into(State.STABLE)
    driver.take(contract.RejoinWanted(reason="test"))
    if where == "sync":
        driver.answer_join(generation=2)
    elif where == "assignor":
        driver.answer_join(generation=2, leader=ME, members=(member(ME),))
    return driver


def held_for_ms(driver: Driver) -> int:
    """Let timers fire, without any answer, until no partition is held. Returns how long that took."""
    began_at_ms = driver.now_ms
    while driver.machine.owned:
        due_at_ms = driver.machine.next_wakeup_at_ms()
        assert due_at_ms is not None, "holds for ever"
        driver.after(due_at_ms - driver.now_ms)
        assert driver.now_ms - began_at_ms <= 100 * SESSION_MS, "holds for ever"
    return driver.now_ms - began_at_ms


# ------------------------------------------------------------------------------------------- the deadline


@pytest.mark.parametrize("where", PARKED)
def test_a_member_whose_request_is_never_answered_owns_no_partition_after_a_session(where: str) -> None:
    assert held_for_ms(parked(where)) == SESSION_MS


@pytest.mark.parametrize("where", PARKED)
def test_a_connection_that_breaks_again_and_again_does_not_move_the_deadline(where: str) -> None:
    driver = parked(where)
    for _ in range(SESSION_MS // 1_000 - 1):
        driver.lose_connection()
        driver.after(500)
        driver.take(contract.Connected())
        driver.after(500)
        assert driver.machine.owned
    assert held_for_ms(driver) == 1_000


@pytest.mark.parametrize(
    "error", [ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.NOT_COORDINATOR, ErrorCode.REBALANCE_IN_PROGRESS]
)
def test_a_join_that_is_refused_again_and_again_does_not_move_the_deadline(error: int) -> None:
    driver = parked("join")
    began_at_ms = driver.now_ms
    while driver.machine.owned and driver.now_ms < began_at_ms + 10 * SESSION_MS:
        effects = driver.answer_join(error=error)
        if not none_of(effects, contract.Connect):
            driver.after(100)
            driver.take(contract.Connected())
            continue
        due_at_ms = driver.machine.next_wakeup_at_ms()
        assert due_at_ms is not None
        driver.after(due_at_ms - driver.now_ms)
    assert SESSION_MS <= driver.now_ms - began_at_ms <= SESSION_MS + 100


def test_a_confirmed_membership_counts_from_when_the_question_was_sent() -> None:
    """The coordinator renews a session when a heartbeat arrives, and we do not know when that was."""
    driver = Driver().into(State.STABLE)
    driver.after(HEARTBEAT_MS)
    driver.now_ms += 2_000
    driver.answer_beat()
    assert held_for_ms(driver) == SESSION_MS - 2_000


@pytest.mark.parametrize("where", ["join", "sync"])
def test_an_answer_that_was_parked_beyond_the_deadline_extends_no_session(where: str) -> None:
    """1. A request is parked, and looks are answered. 2. The process stops. 3. The answer is in the socket's buffer."""
    driver = parked(where)
    driver.after(LOOK_MS)
    driver.answer_look()
    driver.now_ms += SESSION_MS
    assert only(driver.take(contract.Tick()), contract.Lost).partitions == parts(0, 1)
    assert (driver.answer_join(generation=2) if where == "join" else driver.answer_sync(0, 1)) == []
    assert driver.machine.owned == frozenset()


def test_a_newcomers_join_may_be_parked_for_longer_than_a_session() -> None:
    driver = Driver().into(State.JOINING)
    for _ in range(60):
        assert none_of(driver.after(LOOK_MS), contract.Lost, contract.Send, contract.Connect)
    driver.answer_join()
    assert driver.after(1) == [], "the session of a member that owns nothing begins with the answer"
    driver.answer_sync(0)
    assert driver.machine.owned == parts(0)
    assert held_for_ms(driver) == SESSION_MS - 1


# ---------------------------------------------------------------------------------------------- the looks


@pytest.mark.parametrize("where", PARKED)
@pytest.mark.parametrize("error", GOOD)
def test_a_parked_request_costs_no_partition_while_looks_are_answered(where: str, error: int) -> None:
    """A parked member does not expire (ClassicGroupMember.hasSatisfiedHeartbeat), and looks confirm that."""
    driver = parked(where)
    for _ in range(600):
        assert [type(effect) for effect in driver.after(LOOK_MS)] == [contract.Look]
        assert driver.looks[-1] == contract.HeartbeatRequest(identity=driver.machine.identity)
        assert driver.answer_look(error) == []
    assert driver.machine.owned == parts(0, 1)
    if where == "join":
        driver.answer_join(generation=2)
    elif where == "assignor":
        driver.take(contract.AssignmentComputed(generation=2, assignments=((ME, parts(0, 1)),)))
    driver.answer_sync(0, 1)
    assert driver.machine.settled


@pytest.mark.parametrize("jitter", [0.0, 0.999999])
@pytest.mark.parametrize(("session_ms", "expected_ms"), [(9_000, 3_000), (300_000, REQUEST_TIMEOUT_MS)])
def test_looks_come_three_in_a_session_and_at_least_one_in_a_request_timeout(
    session_ms: int, expected_ms: int, jitter: float
) -> None:
    driver = Driver(jitter=jitter, session_ms=session_ms).into(State.JOINING)
    due_at_ms = driver.machine.next_wakeup_at_ms()
    assert due_at_ms is not None
    assert due_at_ms - driver.now_ms == int(expected_ms * (1 - HEARTBEAT_JITTER * jitter))


def test_a_join_sent_shortly_before_the_deadline_has_its_look_before_it() -> None:
    """1. The coordinator stands still. 2. Another one takes over, and our join is parked there. 3. It knows us."""
    driver = parked("join")
    driver.after(SESSION_MS - 2_000)
    driver.lose_connection()
    driver.take(contract.Connected())
    assert driver.after(999) == [], "there is time for the join to be answered"
    assert only(driver.after(1), contract.Look)
    driver.answer_look()
    assert none_of(driver.after(2_000), contract.Lost)
    assert driver.machine.owned == parts(0, 1)


def test_a_look_of_a_newcomer_asks_only_who_coordinates() -> None:
    driver = Driver().into(State.JOINING)
    assert driver.after(LOOK_MS) == [contract.Look(heartbeat=None)]


@pytest.mark.parametrize("where", PARKED)
def test_a_look_that_is_not_answered_has_no_effect_and_the_next_one_is_due(where: str) -> None:
    driver = parked(where)
    driver.after(LOOK_MS)
    assert none_of(driver.after(LOOK_MS), contract.Lost)
    assert len(driver.looks) == 2
    driver.answer_look()
    assert held_for_ms(driver) == SESSION_MS


@pytest.mark.parametrize("where", PARKED)
def test_a_refusal_of_an_earlier_look_has_no_effect(where: str) -> None:
    driver = parked(where)
    driver.after(LOOK_MS)
    stale = driver.looks[-1]
    assert stale is not None
    driver.after(LOOK_MS)
    assert driver.take(contract.HeartbeatResponse(request=stale, error=ErrorCode.UNKNOWN_MEMBER_ID)) == []
    assert held_for_ms(driver) == SESSION_MS - 2 * LOOK_MS


@pytest.mark.parametrize("where", PARKED)
def test_a_coordinator_that_answers_each_look_after_the_next_one_was_sent_keeps_the_seat(where: str) -> None:
    driver = parked(where)
    driver.after(LOOK_MS)
    for _ in range(20):
        late = driver.looks[-1]
        assert late is not None
        assert none_of(driver.after(LOOK_MS), contract.Lost)
        assert driver.take(contract.HeartbeatResponse(request=late, error=ErrorCode.REBALANCE_IN_PROGRESS)) == []
        assert driver.machine.owned == parts(0, 1)
    assert held_for_ms(driver) == SESSION_MS - LOOK_MS, "a word counts from when it was asked for"


@pytest.mark.parametrize("where", PARKED)
def test_a_look_that_finds_the_membership_over_joins_over_another_connection(where: str) -> None:
    driver = parked(where)
    driver.after(LOOK_MS)
    effects = driver.answer_look(ErrorCode.UNKNOWN_MEMBER_ID)
    assert only(effects, contract.Lost).partitions == parts(0, 1)
    if where != "assignor":
        assert only(effects, contract.Connect), "what is parked may never be answered"
        effects = driver.take(contract.Connected())
    assert claim(request_in(effects)).owned == frozenset()
    assert request_in(effects).identity.member_id == ""


@pytest.mark.parametrize("where", PARKED)
@pytest.mark.parametrize("error", [ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE])
def test_a_look_that_finds_the_coordinator_gone_asks_the_new_one_and_loses_no_partition(where: str, error: int) -> None:
    driver = parked(where)
    driver.after(LOOK_MS)
    effects = driver.answer_look(error)
    assert [type(effect) for effect in effects] == [contract.Connect]
    assert claim(request_in(driver.take(contract.Connected()))).owned == parts(0, 1)


@pytest.mark.parametrize("where", PARKED)
def test_a_look_that_meets_the_next_generation_waits_for_our_answer(where: str) -> None:
    """Both answers were given at the same moment, on two connections."""
    driver = parked(where)
    driver.after(LOOK_MS)
    assert driver.answer_look(ErrorCode.ILLEGAL_GENERATION) == []
    assert held_for_ms(driver) == SESSION_MS - LOOK_MS


def test_a_retry_that_is_due_with_a_look_drops_neither() -> None:
    driver = parked("join")
    driver.after(LOOK_MS - 10)
    driver.answer_join(error=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    effects = driver.after(1_000)
    kinds: set[type] = {contract.Send, contract.Look}
    assert {type(effect) for effect in effects} == kinds


# ---------------------------------------------------------------------------- the effects of a refused commit


def refused_commit(driver: Driver, error: int) -> list[contract.Effect]:
    return driver.take(contract.MembershipRefused(identity=driver.machine.identity, error=error))


@pytest.mark.parametrize("where", PARKED)
def test_a_commit_that_finds_the_membership_over_ends_the_wait_for_a_parked_request(where: str) -> None:
    driver = parked(where)
    effects = refused_commit(driver, ErrorCode.UNKNOWN_MEMBER_ID)
    assert only(effects, contract.Lost).partitions == parts(0, 1)
    effects = effects if where == "assignor" else driver.take(contract.Connected())
    assert request_in(effects).identity.member_id == ""


@pytest.mark.parametrize("where", PARKED)
def test_a_commit_that_is_fenced_while_a_request_is_parked_ends_the_member(where: str) -> None:
    driver = parked(where)
    failed = only(refused_commit(driver, ErrorCode.FENCED_INSTANCE_ID), contract.Failed)
    assert isinstance(failed.error, FencedInstanceId)
    assert driver.state is State.CLOSED


@pytest.mark.parametrize("where", ["join", "sync"])
def test_a_commit_of_the_last_generation_has_the_coordinator_looked_at_at_once(where: str) -> None:
    driver = parked(where)
    assert [type(effect) for effect in refused_commit(driver, ErrorCode.ILLEGAL_GENERATION)] == [contract.Look]
    assert driver.machine.owned == parts(0, 1)


@pytest.mark.parametrize("where", PARKED)
def test_a_commit_of_the_last_generation_sends_no_request_while_there_is_no_connection(where: str) -> None:
    driver = parked(where)
    driver.lose_connection()
    assert refused_commit(driver, ErrorCode.ILLEGAL_GENERATION) == []
    assert driver.machine.owned == parts(0, 1)


# ------------------------------------------------------------------------- joins without a change (KIP-848)


def joins_in_a_batch(driver: Driver, batch_ms: int) -> int:
    """Each heartbeat is answered REBALANCE_IN_PROGRESS, and each join at once, with the share that we have already.

    So does a group of type consumer while a classic member has partitions to give up
    (GroupMetadataManager.classicGroupHeartbeatToConsumerGroup).
    """
    end_at_ms, sent_before = driver.now_ms + batch_ms, len(driver.sent)
    seen = sent_before - 1
    while True:
        while seen < len(driver.sent):
            request, seen = driver.sent[seen], seen + 1
            match request:
                case contract.JoinRequest():
                    driver.answer_join(generation=2, leader="")
                case contract.SyncRequest():
                    driver.answer_sync(0)
                case _:
                    driver.answer_beat(ErrorCode.REBALANCE_IN_PROGRESS)
            assert seen - sent_before < 2_000, "a storm"
        if driver.now_ms >= end_at_ms:
            break
        due_at_ms = driver.machine.next_wakeup_at_ms()
        assert due_at_ms is not None
        driver.after(due_at_ms - driver.now_ms)
    return sum(isinstance(request, contract.JoinRequest) for request in driver.sent[sent_before:])


def test_a_long_batch_in_a_consumer_group_costs_few_joins_and_no_partition() -> None:
    driver = Driver().into(State.STABLE)
    driver.rebalance_to(0, generation=2)
    assert driver.machine.to_give_up == parts(1)
    assert joins_in_a_batch(driver, 20_000) <= 4
    assert joins_in_a_batch(driver, 1_800_000) <= 1_800_000 // 30_000 + 1
    assert driver.machine.owned == parts(0, 1)
    assert claim(request_in(driver.give_up(1))).owned == parts(0), "what was given up is joined for at once"


def test_a_new_generation_in_a_consumer_group_is_joined_at_once_again() -> None:
    driver = Driver().into(State.STABLE)
    driver.rebalance_to(0, generation=2)
    joins_in_a_batch(driver, 60_000)
    driver.give_up(1)
    driver.answer_join(generation=3)
    driver.answer_sync(0)
    assert isinstance(request_in(driver.answer_beat(ErrorCode.REBALANCE_IN_PROGRESS)), contract.JoinRequest)


def test_the_first_heartbeat_of_a_generation_goes_out_at_once_and_the_next_after_an_interval() -> None:
    driver = Driver().into(State.STABLE)
    assert isinstance(request_in(driver.rebalance_to(0, 1, generation=2)), contract.HeartbeatRequest)
    driver.answer_beat(ErrorCode.REBALANCE_IN_PROGRESS)
    driver.answer_join(generation=2)
    assert none_of(driver.answer_sync(0, 1), contract.Send)
    assert driver.after(HEARTBEAT_MS - 1) == []
    assert isinstance(request_in(driver.after(1)), contract.HeartbeatRequest)


def test_a_generation_that_jumps_in_a_group_without_a_leader_is_not_a_missed_one() -> None:
    """A consumer group's epochs pass by members whose assignment they leave alone. Its JoinGroup names no leader."""
    driver = Driver().into(State.STABLE)
    driver.rebalance_to(0, 1, 2, generation=2)
    driver.take(contract.RejoinWanted(reason="test"))
    assert none_of(driver.answer_join(generation=9, leader=""), contract.Lost)
    assert none_of(driver.answer_sync(0, 1, 2), contract.Lost)
    assert driver.machine.owned == parts(0, 1, 2)
