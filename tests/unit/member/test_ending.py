"""How a member of the classic protocol ends: it leaves, or fails for good. KIP-345's rules for that: `tests/spec/`."""

from __future__ import annotations

import pytest
from harness import classic_driver, consumer_driver
from harness.classic_driver import SESSION_MS, Driver, none_of, only, request_in

from spark_kgroup.errors import GroupRejected
from spark_kgroup.member import consumer, contract
from spark_kgroup.member.classic import State
from spark_kgroup.member.consumer_contract import LEAVE_EPOCH
from spark_kgroup.model import ErrorCode, MemberIdentity


def test_a_fenced_member_has_no_timer_and_owns_no_partition() -> None:
    driver = Driver().into(State.STABLE)
    driver.after(3_000)
    driver.answer_beat(ErrorCode.FENCED_INSTANCE_ID)
    assert driver.state is State.CLOSED
    assert driver.machine.owned == frozenset()
    assert driver.after(100 * SESSION_MS) == []


def test_a_member_that_ended_with_an_error_goes_by_no_member_id() -> None:
    """A commit's refusal under the membership that ended concerns no member any more (`MembershipRefused`)."""
    driver = Driver().into(State.STABLE)
    driver.after(3_000)
    driver.answer_beat(ErrorCode.INVALID_GROUP_ID)
    assert driver.machine.identity == MemberIdentity(instance_id="seat-0")


def test_leaving_ends_with_any_answer_and_not_with_a_connection_that_breaks() -> None:
    driver = Driver().into(State.LEAVING)
    leave = driver.last_sent()
    assert isinstance(leave, contract.LeaveRequest)
    assert driver.lose_connection() == []
    unanswered = contract.LeaveResponse(request=leave, error=ErrorCode.NETWORK_EXCEPTION)
    assert driver.take(unanswered) == [contract.Left(error=ErrorCode.NETWORK_EXCEPTION)]
    assert driver.state is State.CLOSED


def test_a_dynamic_member_without_a_member_id_sends_no_leave_request() -> None:
    driver = Driver(instance_id=None).into(State.JOINING)
    assert driver.take(contract.Leave(reason="done")) == [contract.Left(error=ErrorCode.NETWORK_EXCEPTION)]


def test_a_seat_that_was_asked_for_at_the_instant_zero_is_given_back() -> None:
    """A monotonic clock may begin at any value."""
    driver = Driver()
    driver.now_ms = 0
    driver.into(State.JOINING)
    assert isinstance(request_in(driver.take(contract.Leave(reason="done"))), contract.LeaveRequest)


def test_a_member_without_a_connection_leaves_over_another_one() -> None:
    driver = Driver().into(State.STABLE)
    driver.lose_connection()
    assert isinstance(request_in(driver.take(contract.Leave(reason="done"))), contract.LeaveRequest)
    assert driver.take(contract.Connected()) == []


# ------------------------------------------------------------------------------------ a dynamic member that fails


@pytest.mark.parametrize("state", [State.JOINING, State.SYNCING, State.STABLE, State.REVOKING])
def test_a_dynamic_member_that_fails_leaves_the_group_at_once(state: State) -> None:
    """Java's consumer leaves in close(). Else the other members would wait for it until its session is over."""
    driver = Driver(instance_id=None)
    if state is State.JOINING:
        driver.into(State.STABLE)
        driver.take(contract.RejoinWanted(reason="test"))
        effects = driver.answer_join(error=ErrorCode.INVALID_GROUP_ID)
    elif state is State.SYNCING:
        effects = driver.into(state).answer_sync(error=ErrorCode.INVALID_GROUP_ID)
    else:
        driver.into(state)
        driver.after(classic_driver.HEARTBEAT_MS)
        effects = driver.answer_beat(ErrorCode.INVALID_GROUP_ID)
    leave = request_in(effects)
    assert isinstance(leave, contract.LeaveRequest)
    assert leave.identity.member_id == classic_driver.ME
    assert isinstance(only(effects, contract.Failed).error, GroupRejected)
    assert driver.machine.owned == frozenset()
    assert driver.take(contract.LeaveResponse(request=leave, error=0)) == [contract.Left(error=0)]
    assert driver.state is State.CLOSED


def test_a_dynamic_member_that_the_group_never_had_sends_no_leave_request_when_it_fails() -> None:
    driver = Driver(instance_id=None).into(State.JOINING)
    assert none_of(driver.answer_join(error=ErrorCode.GROUP_MAX_SIZE_REACHED), contract.Send)
    assert driver.state is State.CLOSED


@pytest.mark.parametrize("instance_id", [None, "seat-0"])
def test_a_member_that_is_fenced_sends_no_leave_request(instance_id: str | None) -> None:
    driver = Driver(instance_id=instance_id).into(State.STABLE)
    driver.after(classic_driver.HEARTBEAT_MS)
    assert none_of(driver.answer_beat(ErrorCode.FENCED_INSTANCE_ID), contract.Send)
    assert driver.state is State.CLOSED


def test_a_static_member_that_fails_sends_no_leave_request_and_its_seat_waits_for_the_next_process() -> None:
    driver = Driver().into(State.STABLE)
    driver.after(classic_driver.HEARTBEAT_MS)
    assert none_of(driver.answer_beat(ErrorCode.INVALID_GROUP_ID), contract.Send)
    assert driver.state is State.CLOSED


@pytest.mark.parametrize("instance_id", [None, "seat-0"])
@pytest.mark.parametrize("state", [consumer.State.JOINING, consumer.State.RECONCILING, consumer.State.STABLE])
def test_a_dynamic_member_under_the_consumer_protocol_leaves_as_well_and_a_static_one_does_not(
    state: consumer.State, instance_id: str | None
) -> None:
    driver = consumer_driver.Driver(instance_id).into(state)
    driver.pass_ms(5_000)
    effects = driver.answer(error=ErrorCode.INVALID_REQUEST)
    assert [effect for effect in effects if isinstance(effect, contract.Failed)]
    if instance_id is not None:
        assert driver.state is consumer.State.CLOSED
        return
    assert driver.state is consumer.State.LEAVING
    assert driver.awaited.identity.generation == LEAVE_EPOCH
    assert driver.awaited.identity.member_id == driver.machine.identity.member_id
    assert driver.answer(error=0) == [contract.Left(error=0)]
    assert driver.state is consumer.State.CLOSED  # type: ignore[comparison-overlap]


# ---------------------------------------------------------------------------------- a leader whose assignor fails

KEPT: contract.Assignments = ((classic_driver.ME, classic_driver.parts(0)), ("other", classic_driver.parts(1)))


def failing_leader(instance_id: str | None = "seat-0") -> tuple[Driver, GroupRejected, list[contract.Effect]]:
    driver = Driver(instance_id=instance_id).into(State.ASSIGNING)
    error = GroupRejected("the assignor raised")
    generation = driver.machine.identity.generation
    return driver, error, driver.take(contract.AssignmentFailed(generation=generation, error=error, kept=KEPT))


@pytest.mark.parametrize("instance_id", [None, "seat-0"])
def test_a_leader_whose_assignor_fails_leaves_all_members_their_claims_and_then_ends(instance_id: str | None) -> None:
    driver, error, effects = failing_leader(instance_id)
    sync = request_in(effects)
    assert isinstance(sync, contract.SyncRequest)
    assert sync.assignments == KEPT
    effects = driver.answer_sync(0)
    assert only(effects, contract.Failed).error is error
    assert none_of(effects, contract.Assigned)
    assert driver.state is (State.CLOSED if instance_id else State.LEAVING)


def test_a_leader_whose_assignor_failed_joins_again_where_its_sync_came_too_late() -> None:
    """Another one may lead the next generation. If it does, its assignor may not fail."""
    driver, _, _ = failing_leader()
    effects = driver.answer_sync(error=ErrorCode.REBALANCE_IN_PROGRESS)
    assert none_of(effects, contract.Failed)
    driver.answer_join(generation=2)
    assert none_of(driver.answer_sync(0), contract.Failed)
    assert driver.state is State.STABLE


def test_an_assignor_that_failed_in_an_earlier_generation_ends_no_member() -> None:
    driver = Driver().into(State.ASSIGNING)
    late = contract.AssignmentFailed(generation=-7, error=GroupRejected("late"), kept=KEPT)
    assert driver.take(late) == []
    assert driver.state is State.ASSIGNING
