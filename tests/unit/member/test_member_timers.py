"""Time and connections: heartbeats, the session, retries, a coordinator that moves, answers that are lost."""

from __future__ import annotations

import pytest
from harness.classic_driver import (
    EAGER,
    HEARTBEAT_MS,
    ME,
    SESSION_MS,
    Driver,
    claim,
    member,
    none_of,
    only,
    parts,
    request_in,
)

from spark_kgroup.limits import (
    BEATS_IN_SESSION_AT_REST,
    HEARTBEAT_JITTER,
    RETRY_BACKOFF_JITTER,
    RETRY_BACKOFF_MAX_MS,
    RETRY_BACKOFF_MS,
)
from spark_kgroup.member import contract
from spark_kgroup.member.classic import State
from spark_kgroup.model import ErrorCode

GONE = [ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE]
AGAIN = [ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.REQUEST_TIMED_OUT, ErrorCode.REBALANCE_IN_PROGRESS]

# ---------------------------------------------------------------------------------------------- heartbeats


def test_the_first_heartbeat_goes_out_with_the_assignment() -> None:
    driver = Driver().into(State.SYNCING)
    assert request_in(driver.answer_sync(0)) == contract.HeartbeatRequest(identity=driver.machine.identity)


@pytest.mark.parametrize("jitter", [0.0, 0.25, 0.999999])
def test_heartbeats_come_early_by_a_part_of_the_jitter_never_late(jitter: float) -> None:
    driver = Driver(jitter=jitter).into(State.STABLE)
    due_at_ms = driver.machine.next_wakeup_at_ms()
    assert due_at_ms is not None
    wait_ms = due_at_ms - driver.now_ms
    assert HEARTBEAT_MS * (1 - HEARTBEAT_JITTER) <= wait_ms <= HEARTBEAT_MS
    assert wait_ms == int(HEARTBEAT_MS * (1 - HEARTBEAT_JITTER * jitter))
    assert driver.after(wait_ms - 1) == []
    assert isinstance(request_in(driver.after(1)), contract.HeartbeatRequest)


def test_an_eager_member_that_gives_up_all_it_was_just_assigned_heartbeats_meanwhile() -> None:
    driver = Driver(assignors=(EAGER,)).into(State.JOINING)
    driver.answer_join(error=ErrorCode.REBALANCE_IN_PROGRESS)  # the group changed its type: another rebalance is due
    driver.after(HEARTBEAT_MS)
    driver.answer_join()
    effects = driver.answer_sync(0)
    assert driver.state is State.REVOKING
    assert only(effects, contract.GiveUpAll).partitions == parts(0)
    assert isinstance(request_in(effects), contract.HeartbeatRequest)
    driver.answer_beat()
    assert isinstance(request_in(driver.after(HEARTBEAT_MS)), contract.HeartbeatRequest)


def test_an_unanswered_heartbeat_is_not_sent_twice_and_the_session_goes_on() -> None:
    driver = Driver().into(State.STABLE)
    driver.after(HEARTBEAT_MS)
    sent = len(driver.sent)
    assert driver.after(HEARTBEAT_MS) == []
    assert len(driver.sent) == sent
    driver.answer_beat()
    assert isinstance(request_in(driver.after(HEARTBEAT_MS)), contract.HeartbeatRequest)


@pytest.mark.parametrize("state", [State.STABLE, State.REVOKING])
def test_a_member_whose_neighbour_joins_asks_at_once_and_joins_if_the_group_rebalances(state: State) -> None:
    driver = Driver().into(state)
    if driver.machine._heartbeats.awaited is not None:
        driver.answer_beat()
    assert isinstance(request_in(driver.take(contract.NeighbourJoins())), contract.HeartbeatRequest)
    effects = driver.answer_beat(ErrorCode.REBALANCE_IN_PROGRESS)
    assert isinstance(request_in(effects), contract.JoinRequest)


def test_a_member_whose_neighbours_join_asks_once_and_again_after_an_interval_if_the_answer_is_the_same() -> None:
    driver = Driver().into(State.STABLE)
    driver.take(contract.NeighbourJoins())
    assert driver.take(contract.NeighbourJoins()) == []
    driver.answer_beat()
    assert driver.state is State.STABLE
    assert driver.after(HEARTBEAT_MS - 1) == []
    assert isinstance(request_in(driver.after(1)), contract.HeartbeatRequest)


def test_an_eager_member_that_knows_of_the_rebalance_does_not_ask_when_a_neighbour_joins() -> None:
    driver = Driver(assignors=(EAGER,)).into(State.STABLE)
    driver.after(HEARTBEAT_MS)
    driver.answer_beat(ErrorCode.REBALANCE_IN_PROGRESS)
    assert driver.state is State.REVOKING
    assert driver.take(contract.NeighbourJoins()) == []


def test_a_heartbeat_refused_with_a_retriable_error_is_sent_again_at_the_next_interval() -> None:
    driver = Driver().into(State.STABLE)
    driver.after(HEARTBEAT_MS)
    assert driver.answer_beat(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS) == []
    assert isinstance(request_in(driver.after(HEARTBEAT_MS)), contract.HeartbeatRequest)


# ------------------------------------------------------------------------------------------------- at rest

LONG_SESSION_MS = 300_000
REST_MS = LONG_SESSION_MS // BEATS_IN_SESSION_AT_REST


def resting() -> Driver:
    driver = Driver(session_ms=LONG_SESSION_MS).into(State.STABLE)
    driver.rests = True
    driver.after(HEARTBEAT_MS)
    driver.answer_beat()
    return driver


def test_a_member_for_which_others_hear_beats_ten_times_in_a_session_and_as_ever_when_they_do_no_more() -> None:
    driver = resting()
    assert driver.after(REST_MS - 1) == []
    driver.rests = False
    assert isinstance(request_in(driver.after(1)), contract.HeartbeatRequest)
    driver.answer_beat()
    assert driver.after(HEARTBEAT_MS - 1) == []
    assert isinstance(request_in(driver.after(1)), contract.HeartbeatRequest)


def test_a_short_session_leaves_no_time_to_rest() -> None:
    driver = Driver(session_ms=SESSION_MS).into(State.STABLE)
    driver.rests = True
    driver.after(HEARTBEAT_MS)
    driver.answer_beat()
    assert isinstance(request_in(driver.after(HEARTBEAT_MS)), contract.HeartbeatRequest)


def test_a_member_at_rest_asks_and_joins_when_a_neighbour_joins() -> None:
    driver = resting()
    assert isinstance(request_in(driver.take(contract.NeighbourJoins())), contract.HeartbeatRequest)
    effects = driver.answer_beat(ErrorCode.REBALANCE_IN_PROGRESS)
    assert isinstance(request_in(effects), contract.JoinRequest)


def test_a_member_at_rest_that_was_refused_asks_again_after_an_interval() -> None:
    driver = resting()
    driver.after(REST_MS)
    assert driver.answer_beat(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS) == []
    assert isinstance(request_in(driver.after(HEARTBEAT_MS)), contract.HeartbeatRequest)


def test_a_member_that_waits_for_an_answer_does_not_rest() -> None:
    driver = Driver(session_ms=LONG_SESSION_MS).into(State.STABLE)
    driver.after(HEARTBEAT_MS)
    driver.rests = True
    assert driver.after(HEARTBEAT_MS) == []
    driver.answer_beat()
    assert isinstance(request_in(driver.after(HEARTBEAT_MS)), contract.HeartbeatRequest)


def test_a_member_is_in_touch_while_its_last_heartbeat_is_answered_within_an_interval() -> None:
    driver = Driver().into(State.STABLE)
    assert driver.machine.in_touch(driver.now_ms)
    driver.after(HEARTBEAT_MS)
    assert driver.machine.in_touch(driver.now_ms + HEARTBEAT_MS)
    assert not driver.machine.in_touch(driver.now_ms + HEARTBEAT_MS + 1)
    driver.answer_beat()
    assert driver.machine.in_touch(driver.now_ms + HEARTBEAT_MS + 1)
    driver.take(contract.ConnectionLost(reason="it broke"))
    assert not driver.machine.in_touch(driver.now_ms)


# --------------------------------------------------------------------------------------------- the session


@pytest.mark.parametrize("error", [ErrorCode.NONE, ErrorCode.REBALANCE_IN_PROGRESS])
def test_a_heartbeat_answer_that_confirms_the_member_extends_its_session(error: int) -> None:
    driver = Driver().into(State.STABLE)
    driver.after(SESSION_MS - 1)
    driver.answer_beat(error)
    assert none_of(driver.after(SESSION_MS - 1), contract.Lost)
    assert driver.machine.owned == parts(0, 1)


def test_a_heartbeat_answer_with_an_error_does_not_extend_the_session() -> None:
    driver = Driver().into(State.STABLE)
    driver.after(SESSION_MS - 1)
    driver.answer_beat(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    assert only(driver.after(1), contract.Lost)


@pytest.mark.parametrize("state", [State.STABLE, State.REVOKING])
def test_the_session_runs_on_without_a_connection(state: State) -> None:
    driver = Driver().into(state)
    driver.lose_connection()
    assert none_of(driver.after(SESSION_MS - 1), contract.Lost)
    effects = driver.after(1)
    assert only(effects, contract.Lost).partitions == parts(0, 1)
    assert none_of(effects, contract.Send)
    assert driver.state is State.JOINING


def test_a_session_that_ran_out_during_a_pause_ends_before_any_event_is_taken() -> None:
    """The runtime ticks first: no event is taken under a membership that ran out while we were stopped."""
    driver = Driver().into(State.STABLE)
    driver.after(HEARTBEAT_MS)
    assert only(driver.after(10 * SESSION_MS), contract.Lost)
    assert driver.answer_beat(ErrorCode.NONE) == []
    assert driver.state is State.JOINING


def test_a_member_that_comes_back_into_its_generation_after_its_session_ran_out_heartbeats_at_once() -> None:
    driver = Driver().into(State.STABLE)
    driver.after(SESSION_MS)
    driver.take(contract.Connected())
    driver.answer_join()
    assert request_in(driver.answer_sync(0, 1)) == contract.HeartbeatRequest(identity=driver.machine.identity)


def test_a_newcomer_without_a_connection_has_no_session_to_lose() -> None:
    driver = Driver().into(State.JOINING)
    driver.lose_connection()
    assert driver.machine.next_wakeup_at_ms() is None


# ------------------------------------------------------------------------------------------------- retries


@pytest.mark.parametrize("error", AGAIN)
def test_a_join_is_tried_again_after_the_backoff(error: int) -> None:
    driver = Driver(jitter=0.5).into(State.JOINING)
    assert driver.answer_join(error=error) == []
    assert driver.after(RETRY_BACKOFF_MS - 1) == []
    assert isinstance(request_in(driver.after(1)), contract.JoinRequest)
    assert driver.after(RETRY_BACKOFF_MS) == [], "once"


@pytest.mark.parametrize("jitter", [0.0, 0.5, 0.999999])
def test_retries_in_a_row_wait_longer_until_a_generation_is_complete(jitter: float) -> None:
    # Kafka: retry.backoff.ms, retry.backoff.max.ms (ExponentialBackoff).
    driver = Driver(jitter=jitter).into(State.JOINING)
    factor = 1 + RETRY_BACKOFF_JITTER * (2 * jitter - 1)
    waits = [refused_for_ms(driver) for _ in range(6)]
    assert waits == [int(wait_ms * factor) for wait_ms in (100, 200, 400, 800, 1000, 1000)]
    assert RETRY_BACKOFF_MAX_MS == 1000
    driver.answer_join()
    driver.answer_sync(0)
    driver.answer_beat(ErrorCode.REBALANCE_IN_PROGRESS)
    assert refused_for_ms(driver) == int(RETRY_BACKOFF_MS * factor)


def refused_for_ms(driver: Driver) -> int:
    """Refuse the join that was sent. Returns after how long it is sent again."""
    driver.answer_join(error=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    due_at_ms = driver.machine.next_wakeup_at_ms()
    assert due_at_ms is not None
    wait_ms = due_at_ms - driver.now_ms
    assert isinstance(request_in(driver.after(wait_ms)), contract.JoinRequest)
    return wait_ms


def test_a_sync_that_may_be_tried_again_becomes_a_join_after_the_backoff() -> None:
    driver = Driver().into(State.SYNCING)
    assert driver.answer_sync(error=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS) == []
    assert isinstance(request_in(driver.after(RETRY_BACKOFF_MS)), contract.JoinRequest)


def test_a_connection_that_breaks_ends_the_backoff() -> None:
    driver = Driver().into(State.JOINING)
    driver.answer_join(error=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    driver.lose_connection()
    assert driver.machine.next_wakeup_at_ms() is None
    assert driver.after(RETRY_BACKOFF_MS) == []
    assert isinstance(request_in(driver.take(contract.Connected())), contract.JoinRequest)


# ----------------------------------------------------------------------------- a coordinator that moves


def refuse(driver: Driver, state: State, error: int) -> list[contract.Effect]:
    match state:
        case State.JOINING:
            return driver.answer_join(error=error)
        case State.SYNCING:
            return driver.answer_sync(error=error)
        case _:
            driver.after(HEARTBEAT_MS)
            return driver.answer_beat(error)


@pytest.mark.parametrize("error", GONE)
@pytest.mark.parametrize("state", [State.JOINING, State.SYNCING, State.STABLE, State.REVOKING])
def test_a_coordinator_that_moved_is_looked_up_again_and_no_partition_is_lost(state: State, error: int) -> None:
    driver = Driver().into(state)
    driver.answer_beat() if state is State.REVOKING else None
    held = driver.machine.owned
    effects = refuse(driver, state, error)
    assert only(effects, contract.Connect)
    assert none_of(effects, contract.Lost, contract.Send)
    assert driver.after(HEARTBEAT_MS) == [], "nothing is sent until there is a connection"
    expected = contract.HeartbeatRequest if state in (State.STABLE, State.REVOKING) else contract.JoinRequest
    assert isinstance(request_in(driver.take(contract.Connected())), expected)
    assert driver.machine.owned == held


@pytest.mark.parametrize("state", [State.JOINING, State.ASSIGNING, State.SYNCING, State.STABLE, State.REVOKING])
def test_a_lost_connection_is_opened_again_and_no_partition_is_lost(state: State) -> None:
    driver = Driver().into(state)
    held = driver.machine.owned
    effects = driver.lose_connection()
    assert only(effects, contract.Connect)
    assert none_of(effects, contract.Lost, contract.Send)
    assert driver.after(HEARTBEAT_MS) == []
    expected = contract.HeartbeatRequest if state in (State.STABLE, State.REVOKING) else contract.JoinRequest
    assert isinstance(request_in(driver.take(contract.Connected())), expected)
    assert driver.machine.owned == held


def test_an_answer_of_the_old_connection_is_ignored() -> None:
    driver = Driver().into(State.STABLE)
    driver.after(HEARTBEAT_MS)
    stale = driver.last_sent()
    assert isinstance(stale, contract.HeartbeatRequest)
    driver.lose_connection()
    driver.take(contract.Connected())
    assert driver.take(contract.HeartbeatResponse(request=stale, error=ErrorCode.UNKNOWN_MEMBER_ID)) == []
    assert driver.machine.owned == parts(0, 1)


def test_a_leader_cut_off_while_assigning_asks_again_and_a_late_result_is_dropped() -> None:
    driver = Driver().into(State.ASSIGNING)
    before = driver.last_sent()
    assert isinstance(before, contract.JoinRequest)
    driver.lose_connection()
    assert driver.take(contract.AssignmentComputed(generation=1, assignments=((ME, parts(0)),))) == []
    again = request_in(driver.take(contract.Connected()))
    assert isinstance(again, contract.JoinRequest)
    assert again.protocols == before.protocols
    assert only(driver.answer_join(generation=1, leader=ME, members=(member(ME),)), contract.ComputeAssignment)
    assert driver.state is State.ASSIGNING


def test_a_rejoin_without_a_connection_is_sent_when_there_is_one() -> None:
    driver = Driver().into(State.STABLE)
    driver.lose_connection()
    assert driver.take(contract.RejoinWanted(reason="test")) == [contract.Rejoining(reason="test")]
    assert claim(request_in(driver.take(contract.Connected()))).owned == parts(0, 1)
