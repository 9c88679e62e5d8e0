"""A static seat of a classic group that gets a member id which its own process made, over Kafka's migration path."""

from __future__ import annotations

from typing import Any

import pytest
from harness.classic_driver import EAGER, HEARTBEAT_MS, ME, OWN_ID, Driver, only, parts

from spark_kgroup.errors import FencedInstanceId
from spark_kgroup.member import contract
from spark_kgroup.member.classic import State
from spark_kgroup.model import ErrorCode, MemberIdentity


def renamed() -> Driver:
    """A seat that has its own id, and whose sync is answered."""
    driver = Driver().into(State.RENAMING)
    driver.answer_rename()
    driver.answer_join(member_id=OWN_ID, leader="")
    driver.answer_sync(0, 1)
    return driver


def of_join(driver: Driver) -> contract.JoinRequest:
    request = driver.last_sent()
    assert isinstance(request, contract.JoinRequest)
    return request


def test_a_renamed_seat_keeps_its_generation_and_its_partitions_and_knows_no_leader() -> None:
    driver = Driver().into(State.RENAMING)
    owned, identity = driver.machine.owned, driver.machine.identity
    assert driver.last_sent() == contract.RenameRequest(
        identity=MemberIdentity(instance_id="seat-0", member_id=OWN_ID, generation=0)
    )
    driver.answer_rename()
    assert of_join(driver).identity == MemberIdentity(
        instance_id="seat-0", member_id=OWN_ID, generation=identity.generation
    )
    assert of_join(driver).protocols[0][1].owned == owned
    joined = only(driver.answer_join(member_id=OWN_ID, leader=""), contract.Joined)
    assert joined.rejoined, "nobody has looked for partitions without an owner since"
    assigned = only(driver.answer_sync(0, 1), contract.Assigned)
    assert (assigned.added, assigned.revoked) == (frozenset(), frozenset())
    assert driver.machine.identity == MemberIdentity(
        instance_id="seat-0", member_id=OWN_ID, generation=identity.generation
    )
    assert (driver.machine.leader_id, driver.state) == ("", State.STABLE)


def test_a_join_that_a_renamed_seat_is_made_to_send_differs_from_its_last_one() -> None:
    """Else a coordinator with another leader answers it from the current generation (ClassicGroupMember.matches)."""
    driver = renamed()
    before = [request for request in driver.sent if isinstance(request, contract.JoinRequest)][-1].protocols
    driver.take(contract.RejoinWanted(reason="a partition has no owner"))
    assert of_join(driver).protocols != before
    assert of_join(driver).protocols[0][1].owned == before[0][1].owned


def test_a_renamed_seat_heeds_the_next_rebalance_at_once() -> None:
    driver = renamed()
    driver.after(HEARTBEAT_MS)
    driver.answer_beat(ErrorCode.REBALANCE_IN_PROGRESS)
    assert driver.state is State.JOINING


@pytest.mark.parametrize("error", [ErrorCode.GROUP_ID_NOT_FOUND, ErrorCode.UNSUPPORTED_VERSION, 9_999])
def test_a_seat_that_may_not_be_renamed_goes_on_under_the_coordinator_s_id(error: int) -> None:
    driver = Driver().into(State.RENAMING)
    driver.answer_rename(error)
    assert driver.state is State.STABLE
    assert driver.machine.own_id_refused == error
    assert driver.last_sent() == contract.HeartbeatRequest(identity=driver.machine.identity)
    assert driver.machine.identity.member_id == ME


def test_a_coordinator_that_loads_its_groups_is_asked_again_to_rename() -> None:
    driver = Driver().into(State.RENAMING)
    driver.answer_rename(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    driver.answer_beat()
    assert driver.machine.own_id_refused == ErrorCode.NONE
    driver.take(contract.Rename())
    assert driver.state is State.RENAMING


def fenced_after_a_lost_answer() -> Driver:
    driver = Driver().into(State.RENAMING)
    driver.lose_connection()
    assert driver.state is State.STABLE
    driver.take(contract.Connected())
    assert only(driver.answer_beat(ErrorCode.FENCED_INSTANCE_ID), contract.LookAtSeat) == contract.LookAtSeat()
    return driver


def test_a_seat_whose_renaming_was_carried_out_and_never_answered_joins_under_its_own_id() -> None:
    driver = fenced_after_a_lost_answer()
    driver.take(contract.SeatSeen(member_id=OWN_ID))
    assert of_join(driver).identity.member_id == OWN_ID
    driver.answer_join(member_id=OWN_ID, leader="")
    assert not [e for e in driver.answer_sync(0, 1) if isinstance(e, contract.Lost)]
    assert driver.machine.owned == parts(0, 1)


def test_a_seat_whose_renaming_was_never_answered_and_that_another_process_has_is_fenced() -> None:
    driver = fenced_after_a_lost_answer()
    failed = only(driver.take(contract.SeatSeen(member_id="another")), contract.Failed)
    assert isinstance(failed.error, FencedInstanceId)


def test_a_seat_that_was_renamed_and_is_fenced_later_does_not_ask_who_has_it() -> None:
    driver = renamed()
    driver.after(HEARTBEAT_MS)
    failed = only(driver.answer_beat(ErrorCode.FENCED_INSTANCE_ID), contract.Failed)
    assert isinstance(failed.error, FencedInstanceId)


@pytest.mark.parametrize("renames", [True, False])
def test_a_rebalance_that_is_wanted_while_a_seat_is_renamed_is_made_up_for(renames: bool) -> None:
    driver = Driver().into(State.RENAMING)
    driver.take(contract.RejoinWanted(reason="partitions were added"))
    assert driver.state is State.RENAMING
    if renames:
        driver.answer_rename()
        driver.answer_join(member_id=OWN_ID, leader="")
        driver.answer_sync(0, 1)
    else:
        driver.answer_rename(ErrorCode.GROUP_ID_NOT_FOUND)
    assert driver.state is State.JOINING  # type: ignore[comparison-overlap]
    assert of_join(driver).reason == "partitions were added"


def test_a_seat_that_gives_a_partition_up_while_it_is_renamed_does_not_claim_it() -> None:
    driver = Driver().into(State.RENAMING)
    driver.give_up(1)
    driver.answer_rename()
    assert of_join(driver).protocols[0][1].owned == parts(0)


def test_a_refused_commit_under_the_old_id_has_no_effect_while_a_seat_is_renamed() -> None:
    driver = Driver().into(State.RENAMING)
    fenced = contract.MembershipRefused(identity=driver.machine.identity, error=ErrorCode.FENCED_INSTANCE_ID)
    assert driver.take(fenced) == []
    assert driver.state is State.RENAMING


def test_a_seat_is_not_renamed_while_a_heartbeat_may_say_that_the_group_rebalances() -> None:
    driver = Driver().into(State.STABLE)
    driver.after(HEARTBEAT_MS)
    assert driver.take(contract.Rename()) == []
    assert driver.state is State.STABLE


@pytest.mark.parametrize(
    "config",
    [{"own_id": ""}, {"assignors": (EAGER,)}, {"instance_id": None}],
    ids=["no id", "eager", "dynamic"],
)
def test_a_member_is_never_renamed_that_has_no_id_of_its_own_or_is_eager_or_dynamic(config: dict[str, Any]) -> None:
    driver = Driver(**config).into(State.STABLE)
    assert driver.take(contract.Rename()) == []
    assert driver.state is State.STABLE


def test_a_newcomer_whose_join_a_change_of_type_cut_off_has_the_group_rebalance_by_a_join_unlike_the_last_one() -> None:
    driver = Driver().into(State.JOINING)
    first = of_join(driver).protocols
    driver.answer_join(error=ErrorCode.REBALANCE_IN_PROGRESS)
    driver.after(1_000)
    second = of_join(driver).protocols
    assert second != first
    driver.answer_join(generation=5)
    driver.answer_sync()
    assert driver.state is State.JOINING
    assert of_join(driver).protocols not in (first, second)


def test_a_process_paused_before_its_renaming_loses_partitions_the_group_may_have_given_away_meanwhile() -> None:
    driver = Driver().into(State.RENAMING)
    owned, generation = driver.machine.owned, driver.machine.identity.generation
    driver.answer_rename()
    effects = driver.answer_join(member_id=OWN_ID, leader="", generation=generation + 1)
    assert only(effects, contract.Lost).partitions == owned
    assert only(driver.answer_sync(1), contract.Assigned).added == parts(1)
