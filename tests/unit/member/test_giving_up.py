"""Races between an application that gives partitions up and a group that assigns them.

For KIP-429 see `tests/spec/`.
"""

from __future__ import annotations

from harness.classic_driver import EAGER, SESSION_MS, Driver, claim, only, parts, request_in

from spark_kgroup.member import contract
from spark_kgroup.member.classic import State
from spark_kgroup.model import ErrorCode, Subscription


def test_a_partition_given_up_while_a_join_that_claims_it_is_parked_leads_to_another_join() -> None:
    """1. The join claims P. 2. A boundary gives P up. 3. The leader kept P from its new owner because of our claim."""
    driver = Driver().into(State.REVOKING)
    driver.answer_beat(ErrorCode.REBALANCE_IN_PROGRESS)
    assert driver.give_up(1) == []
    driver.answer_join(generation=3)
    effects = driver.answer_sync(0)
    assert only(effects, contract.Assigned).revoked == frozenset()
    assert claim(request_in(effects)).owned == parts(0)
    assert only(effects, contract.Rejoining)
    driver.answer_join(generation=4)
    driver.answer_sync(0)
    assert driver.machine.settled, "once is enough"


def test_a_partition_given_up_while_the_join_is_parked_and_assigned_again_is_added() -> None:
    driver = Driver().into(State.REVOKING)
    driver.answer_beat(ErrorCode.REBALANCE_IN_PROGRESS)
    driver.give_up(1)
    driver.answer_join(generation=3)
    assert only(driver.answer_sync(0, 1), contract.Assigned).added == parts(1)
    assert driver.machine.settled


def test_a_partition_given_up_after_it_was_assigned_again_is_asked_for_by_another_join() -> None:
    """1. A boundary decides to give P up. 2. P is assigned to us again. 3. The boundary says so: no member reads P."""
    driver = Driver().into(State.REVOKING)
    driver.answer_beat(ErrorCode.REBALANCE_IN_PROGRESS)
    driver.answer_join(generation=3)
    assert only(driver.answer_sync(0, 1), contract.Assigned).added == frozenset()
    effects = driver.give_up(1)
    assert claim(request_in(effects)).owned == parts(0)
    driver.answer_join(generation=4)
    assert only(driver.answer_sync(0, 1), contract.Assigned).added == parts(1)
    assert driver.machine.settled


def test_a_member_that_missed_a_generation_loses_its_partitions_a_session_after_the_last_answer() -> None:
    driver = Driver().into(State.STABLE)
    driver.rebalance_to(0, 1)
    identity = driver.machine.identity
    driver.take(contract.MembershipRefused(identity=identity, error=ErrorCode.ILLEGAL_GENERATION))
    assert only(driver.after(SESSION_MS), contract.Lost).partitions == parts(0, 1)


def test_a_commit_refused_under_an_earlier_identity_has_no_effect() -> None:
    driver = Driver().into(State.STABLE)
    old = driver.machine.identity
    driver.rebalance_to(0, 1)
    assert driver.take(contract.MembershipRefused(identity=old, error=ErrorCode.ILLEGAL_GENERATION)) == []
    assert driver.machine.settled


# ----------------------------------------------------------------------------------------- eager members


def protocols_of(request: contract.Request) -> tuple[tuple[str, Subscription], ...]:
    assert isinstance(request, contract.JoinRequest)
    return request.protocols


def test_an_eager_member_that_has_given_all_partitions_up_tells_its_assignor_its_last_assignment() -> None:
    """StickyAssignor.onAssignment: eager members own no partition when they join, yet would like their last ones."""
    driver = Driver(assignors=(EAGER,)).into(State.STABLE)
    driver.take(contract.RejoinWanted(reason="test"))
    ((_, subscription),) = protocols_of(request_in(driver.give_up(0, 1)))
    assert (subscription.owned, subscription.user_data) == (frozenset(), b"range:2@1")


def test_an_eager_member_whose_session_is_over_claims_no_former_partition() -> None:
    driver = Driver(assignors=(EAGER,)).into(State.STABLE)
    driver.after(3_000)
    driver.answer_beat(ErrorCode.UNKNOWN_MEMBER_ID)
    ((_, subscription),) = protocols_of(driver.last_sent())
    assert subscription.user_data == b"range:0@-1"
