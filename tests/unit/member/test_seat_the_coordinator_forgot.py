"""A coordinator that takes over may know a static seat under the id before: it fences the present holder.

Kafka writes a replaced member's new id down when the generation is complete, or at once in a group at rest
(GroupMetadataManager.updateStaticMemberThenRebalanceOrComplete). Kafka's own member ends with an error then.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from harness.classic_driver import ME, Driver, only, request_in

from spark_kgroup.errors import FencedInstanceId
from spark_kgroup.limits import RETRY_BACKOFF_MAX_MS, RETRY_BACKOFF_MS
from spark_kgroup.member import contract
from spark_kgroup.member.classic import ClassicMember, State
from spark_kgroup.model import ErrorCode, MemberIdentity

BEFORE = "seat-0-of-the-process-before"
SECOND = "seat-0-of-a-broker-that-is-cut-off"


def back() -> Driver:
    """Has taken its seat over from `BEFORE`, in a generation that is not complete."""
    driver = Driver()
    driver.machine = ClassicMember(replace(driver.machine.config, replaces=BEFORE), jitter=lambda: 0.5)
    driver.take(contract.Join())
    driver.take(contract.Connected())
    driver.answer_join()
    return driver


def renamed() -> Driver:
    """1. The seat is `ME`. 2. A broker that is cut off does not know it, and gives it the id `SECOND`."""
    driver = Driver().into(State.SYNCING)
    driver.answer_sync(0)
    driver.answer_beat(ErrorCode.UNKNOWN_MEMBER_ID)
    driver.answer_join(member_id=SECOND, generation=2)
    return driver


def fenced(driver: Driver) -> list[contract.Effect]:
    """The next coordinator refuses its SyncGroup, or the JoinGroup after a lost connection."""
    return driver.answer_sync(error=ErrorCode.FENCED_INSTANCE_ID)


def settles(driver: Driver) -> None:
    """The coordinator takes it as `ME`."""
    driver.answer_join(member_id=ME, generation=3)
    driver.answer_sync(0)
    assert driver.machine.settled


def test_a_seat_that_the_coordinator_gives_to_the_replaced_process_is_taken_again() -> None:
    driver = back()
    fenced(driver)
    join = request_in(driver.take(contract.SeatSeen(member_id=BEFORE)))
    assert join.identity == MemberIdentity(instance_id="seat-0")
    driver.answer_join(member_id="seat-0-bbb")
    driver.answer_sync(0)
    assert driver.machine.settled


def test_a_fenced_member_whose_seat_a_third_process_has_ends() -> None:
    driver = back()
    fenced(driver)
    failed = only(driver.take(contract.SeatSeen(member_id="seat-0-of-another")), contract.Failed)
    assert isinstance(failed.error, FencedInstanceId)
    assert (failed.error.group, failed.error.instance_id) == ("g", "seat-0")


def test_a_second_answer_about_the_seat_has_no_effect() -> None:
    """1. The seat is ours. 2. The join that is due will tell the rest. 3. An answer comes that was asked for before."""
    driver = back()
    fenced(driver)
    driver.take(contract.SeatSeen(member_id=ME))
    assert driver.take(contract.SeatSeen(member_id="seat-0-of-another")) == []
    assert driver.state is State.JOINING


def test_a_fenced_member_that_has_its_seat_looks_for_the_coordinator_and_joins_with_the_id_it_has() -> None:
    """The broker that fenced it and the one that shows it in its seat contradict each other."""
    driver = back()
    fenced(driver)
    only(driver.take(contract.SeatSeen(member_id=ME)), contract.Connect)
    assert request_in(driver.take(contract.Connected())).identity.member_id == ME


@pytest.mark.parametrize("driver", [back, renamed], ids=["replaced", "renamed"])
def test_a_fenced_member_whose_seat_a_broker_does_not_know_joins_with_the_id_it_has(
    driver: Callable[[], Driver],
) -> None:
    """A join without an id would take the seat from a process that another broker knows."""
    fenced_one = driver()
    fenced(fenced_one)
    assert fenced_one.take(contract.SeatSeen(member_id="")) == []
    assert request_in(fenced_one.after(RETRY_BACKOFF_MS)).identity.member_id == fenced_one.machine.identity.member_id


def test_a_fenced_member_without_an_answer_about_its_seat_joins_after_a_backoff() -> None:
    driver = back()
    fenced(driver)
    assert driver.after(RETRY_BACKOFF_MS - 1) == []
    assert request_in(driver.after(1)).identity.member_id == ME
    assert driver.answer_join(error=ErrorCode.FENCED_INSTANCE_ID) == [contract.LookAtSeat()]


def test_a_join_without_an_id_that_is_fenced_was_parked_while_another_process_took_the_seat() -> None:
    """To join again would take the seat from that one (ClassicGroup.replaceStaticMember answers the parked join)."""
    driver = back()
    driver.answer_sync(0)
    driver.answer_beat(ErrorCode.UNKNOWN_MEMBER_ID)
    failed = only(driver.answer_join(error=ErrorCode.FENCED_INSTANCE_ID), contract.Failed)
    assert isinstance(failed.error, FencedInstanceId)


def test_a_seat_that_the_coordinator_knows_under_its_first_id_goes_on_under_that() -> None:
    driver = renamed()
    assert fenced(driver) == [contract.LookAtSeat()]
    driver.take(contract.SeatSeen(member_id=ME))
    join = request_in(driver.after(RETRY_BACKOFF_MAX_MS))
    assert join.identity == MemberIdentity(member_id=ME, instance_id="seat-0")
    settles(driver)


def test_a_seat_that_meets_the_broker_that_is_cut_off_again_goes_on() -> None:
    """That broker fences the first id, and shows the second one; the coordinator does the reverse."""
    driver = renamed()
    fenced(driver)
    for shown in (ME, SECOND, ME):
        driver.take(contract.SeatSeen(member_id=shown))
        assert request_in(driver.after(RETRY_BACKOFF_MAX_MS)).identity.member_id == shown
        assert driver.answer_join(error=ErrorCode.FENCED_INSTANCE_ID) == [contract.LookAtSeat()]
    only(driver.take(contract.SeatSeen(member_id=ME)), contract.Connect)
    driver.take(contract.Connected())
    settles(driver)


def test_a_seat_that_a_broker_gave_to_the_replaced_process_goes_on_under_the_id_it_had() -> None:
    """1. The broker that fences it is cut off, and gives it the id `SECOND`. 2. The coordinator fences that one."""
    driver = back()
    fenced(driver)
    driver.take(contract.SeatSeen(member_id=BEFORE))
    driver.answer_join(member_id=SECOND, generation=2)
    assert fenced(driver) == [contract.LookAtSeat()]
    driver.take(contract.SeatSeen(member_id=ME))
    assert request_in(driver.after(RETRY_BACKOFF_MAX_MS)).identity.member_id == ME


def test_a_seat_whose_ids_another_process_replaced_ends() -> None:
    driver = renamed()
    fenced(driver)
    failed = only(driver.take(contract.SeatSeen(member_id="seat-0-of-another")), contract.Failed)
    assert isinstance(failed.error, FencedInstanceId)


def test_a_sync_makes_the_ids_before_it_void() -> None:
    """The coordinator has written the new id down, so no later one knows an id before it."""
    driver = Driver().into(State.SYNCING)
    for generation, member_id in enumerate(("seat-0-bbb", "seat-0-ccc"), start=2):
        driver.answer_sync(0)
        driver.answer_beat(ErrorCode.UNKNOWN_MEMBER_ID)
        driver.answer_join(member_id=member_id, generation=generation)
    fenced(driver)
    assert only(driver.take(contract.SeatSeen(member_id=ME)), contract.Failed)


@pytest.mark.parametrize("error", [ErrorCode.NONE, ErrorCode.UNKNOWN_MEMBER_ID])
def test_an_answer_about_the_seat_that_comes_after_a_later_join_has_no_effect(error: int) -> None:
    driver = renamed()
    fenced(driver)
    driver.after(RETRY_BACKOFF_MS)
    driver.answer_join(member_id=SECOND, generation=3)
    driver.answer_sync(0, error=error)
    driver.answer_beat(ErrorCode.REBALANCE_IN_PROGRESS) if error == ErrorCode.NONE else None
    assert driver.state is State.JOINING
    assert driver.take(contract.SeatSeen(member_id=ME)) == []


def test_a_dynamic_member_has_no_seat_to_look_at() -> None:
    driver = Driver(instance_id=None).into(State.SYNCING)
    driver.answer_sync(0)
    driver.answer_beat(ErrorCode.UNKNOWN_MEMBER_ID)
    driver.answer_join(member_id="dynamic-2", generation=2)
    assert only(fenced(driver), contract.Failed)


def test_a_fenced_member_whose_id_a_generation_confirmed_ends() -> None:
    driver = back()
    driver.answer_sync(0)
    assert isinstance(only(driver.answer_beat(ErrorCode.FENCED_INSTANCE_ID), contract.Failed).error, FencedInstanceId)


def test_a_fenced_member_that_replaced_no_process_ends() -> None:
    driver = Driver().into(State.SYNCING)
    assert isinstance(only(fenced(driver), contract.Failed).error, FencedInstanceId)
