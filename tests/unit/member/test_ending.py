"""How a member of the classic protocol ends: it leaves, or fails for good. What KIP-345 says of that: `tests/spec/`."""

from __future__ import annotations

from harness.classic_driver import SESSION_MS, Driver, request_in

from spark_kgroup.member import contract
from spark_kgroup.member.classic import State
from spark_kgroup.model import ErrorCode, MemberIdentity


def test_a_fenced_member_has_no_timer_and_owns_nothing():
    driver = Driver().into(State.STABLE)
    driver.after(3_000)
    driver.answer_beat(ErrorCode.FENCED_INSTANCE_ID)
    assert driver.state is State.CLOSED
    assert driver.machine.owned == frozenset()
    assert driver.after(100 * SESSION_MS) == []


def test_a_member_that_ended_with_an_error_goes_by_no_member_id():
    """What a commit says of the membership that ended concerns nobody any more (`MembershipRefused`)."""
    driver = Driver().into(State.STABLE)
    driver.after(3_000)
    driver.answer_beat(ErrorCode.INVALID_GROUP_ID)
    assert driver.machine.identity == MemberIdentity(instance_id="seat-0")


def test_leaving_ends_with_any_answer_and_not_with_a_connection_that_breaks():
    driver = Driver().into(State.LEAVING)
    leave = driver.last_sent()
    assert isinstance(leave, contract.LeaveRequest)
    assert driver.lose_connection() == []
    unanswered = contract.LeaveResponse(request=leave, error=ErrorCode.NETWORK_EXCEPTION)
    assert driver.take(unanswered) == [contract.Left(error=ErrorCode.NETWORK_EXCEPTION)]
    assert driver.state is State.CLOSED


def test_a_dynamic_member_that_nobody_knows_has_nothing_to_leave():
    driver = Driver(instance_id=None).into(State.JOINING)
    assert driver.take(contract.Leave(reason="done")) == [contract.Left(error=ErrorCode.NETWORK_EXCEPTION)]


def test_a_seat_that_was_asked_for_at_the_instant_zero_is_given_back():
    """Where a clock begins is its own affair."""
    driver = Driver()
    driver.now_ms = 0
    driver.into(State.JOINING)
    assert isinstance(request_in(driver.take(contract.Leave(reason="done"))), contract.LeaveRequest)


def test_a_member_without_a_connection_leaves_over_another_one():
    driver = Driver().into(State.STABLE)
    driver.lose_connection()
    assert isinstance(request_in(driver.take(contract.Leave(reason="done"))), contract.LeaveRequest)
    assert driver.take(contract.Connected()) == []
