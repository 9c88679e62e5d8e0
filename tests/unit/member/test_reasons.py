"""The reasons that a member gives: in the broker's log (KIP-800), in ours, and to a user whose query ends."""

from __future__ import annotations

import pytest
from harness.classic_driver import EAGER, HEARTBEAT_MS, Driver, none_of, only, parts, request_in

from spark_kgroup.errors import FencedInstanceId
from spark_kgroup.limits import RETRY_BACKOFF_MS
from spark_kgroup.member import contract
from spark_kgroup.member.classic import State
from spark_kgroup.model import ErrorCode


def refused(api: str, error: int) -> list[contract.Effect]:
    """A member that holds 0 and 1, or has just joined, gets `error` for its request of this name."""
    if api == "JoinGroup":
        return Driver().into(State.JOINING).answer_join(error=error)
    if api == "SyncGroup":
        return Driver().into(State.SYNCING).answer_sync(error=error)
    driver = Driver().into(State.STABLE)
    if api == "OffsetCommit":
        return driver.take(contract.MembershipRefused(identity=driver.machine.identity, error=error))
    driver.after(HEARTBEAT_MS)
    return driver.answer_beat(error)


APIS = ["JoinGroup", "SyncGroup", "Heartbeat", "OffsetCommit"]


@pytest.mark.parametrize("api", APIS)
def test_a_new_look_for_the_coordinator_says_which_request_was_refused_and_how(api: str) -> None:
    if api == "SyncGroup":  # it joins again over the next connection, and the join says so
        driver = Driver().into(State.SYNCING)
        driver.answer_sync(error=ErrorCode.NOT_COORDINATOR)
        join = request_in(driver.take(contract.Connected()))
        assert isinstance(join, contract.JoinRequest)
        assert join.reason == "SyncGroup failed with NOT_COORDINATOR"
    assert only(refused(api, ErrorCode.NOT_COORDINATOR), contract.Connect).reason == f"{api}: NOT_COORDINATOR"


@pytest.mark.parametrize("api", APIS)
def test_an_error_that_ends_the_member_names_the_request_and_the_error(api: str) -> None:
    failed = only(refused(api, 12_345), contract.Failed)
    assert f"'g' rejected member 'seat-0' (ERROR_12345): retrying {api} does not help" in str(failed.error)


@pytest.mark.parametrize("api", ["Heartbeat", "OffsetCommit"])
@pytest.mark.parametrize("error", [ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION])
def test_a_loss_says_which_request_was_refused_and_how(api: str, error: ErrorCode) -> None:
    effects = refused(api, error)
    assert only(effects, contract.Lost).reason == f"{api}: {error.name}"
    join = request_in(effects)
    assert isinstance(join, contract.JoinRequest)
    assert join.reason == f"{api}: {error.name}"


def test_a_member_that_fell_behind_says_why_it_lost_the_partitions_it_did_not_claim() -> None:
    driver = Driver().into(State.STABLE)
    driver.rebalance_to(0, 1, 2)  # the join claimed 0 and 1
    lost = only(driver.answer_beat(ErrorCode.ILLEGAL_GENERATION), contract.Lost)
    assert lost == contract.Lost(partitions=parts(2), reason="Heartbeat: ILLEGAL_GENERATION")


def test_a_loss_at_the_members_end_says_why_it_ended() -> None:
    driver = Driver().into(State.STABLE)
    driver.after(HEARTBEAT_MS)
    effects = driver.answer_beat(12_345)
    assert only(effects, contract.Lost).reason == str(only(effects, contract.Failed).error)


@pytest.mark.parametrize(
    ("error", "reasons"),
    [
        (ErrorCode.NOT_COORDINATOR, ["Heartbeat: NOT_COORDINATOR"]),
        (ErrorCode.UNKNOWN_MEMBER_ID, ["Heartbeat: UNKNOWN_MEMBER_ID", "Heartbeat: UNKNOWN_MEMBER_ID"]),
    ],
)
def test_a_look_past_a_parked_request_says_that_a_heartbeat_was_refused_and_how(error: int, reasons: list[str]) -> None:
    effects = looked(error)
    assert [effect.reason for effect in effects if isinstance(effect, contract.Connect | contract.Lost)] == reasons


def test_an_error_that_a_look_past_a_parked_request_meets_names_the_heartbeat() -> None:
    failed = only(looked(12_345), contract.Failed)
    assert "'g' rejected member 'seat-0' (ERROR_12345): retrying Heartbeat does not help" in str(failed.error)


def looked(error: int) -> list[contract.Effect]:
    """A member that holds 0 and 1 and whose join is parked asks over another connection, and gets `error`."""
    driver = Driver().into(State.STABLE)
    driver.take(contract.RejoinWanted(reason="test"))
    driver.after(HEARTBEAT_MS + HEARTBEAT_MS // 2)
    return driver.answer_look(error)


@pytest.mark.parametrize("error", [ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.REQUEST_TIMED_OUT])
def test_a_look_that_may_be_tried_again_has_no_effect(error: int) -> None:
    driver = Driver().into(State.STABLE)
    driver.take(contract.RejoinWanted(reason="test"))
    driver.after(HEARTBEAT_MS + HEARTBEAT_MS // 2)
    before = driver.machine.next_wakeup_at_ms()
    assert driver.answer_look(error) == []
    assert driver.machine.next_wakeup_at_ms() == before


@pytest.mark.parametrize("state", [State.JOINING, State.STABLE, State.SYNCING])
def test_a_connection_that_broke_is_opened_again_for_the_reason_it_broke(state: State) -> None:
    assert only(Driver().into(state).lose_connection(), contract.Connect).reason == "gone"


def test_a_join_after_a_connection_that_broke_while_syncing_says_so() -> None:
    driver = Driver().into(State.SYNCING)
    driver.lose_connection()
    join = request_in(driver.take(contract.Connected()))
    assert isinstance(join, contract.JoinRequest)
    assert "while syncing" in join.reason


def test_a_sync_that_is_tried_again_as_a_join_says_which_error_it_met() -> None:
    driver = Driver().into(State.SYNCING)
    driver.answer_sync(error=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    join = request_in(driver.after(RETRY_BACKOFF_MS))
    assert isinstance(join, contract.JoinRequest)
    assert join.reason == "SyncGroup failed with COORDINATOR_LOAD_IN_PROGRESS"


def test_a_cooperative_member_joins_because_it_gave_up_and_an_eager_one_for_the_reason_it_had_to() -> None:
    cooperative = Driver().into(State.REVOKING)
    join = request_in(cooperative.give_up(1))
    assert isinstance(join, contract.JoinRequest)
    assert join.reason == "revoked partitions given up"
    eager = Driver(assignors=(EAGER,)).into(State.STABLE)
    eager.take(contract.RejoinWanted(reason="a topic came"))
    join = request_in(eager.give_up(0, 1))
    assert isinstance(join, contract.JoinRequest)
    assert join.reason == "a topic came"


def test_a_partition_given_up_and_assigned_again_makes_the_member_rejoin_with_that_reason() -> None:
    """1. A boundary gives 1 up. 2. Before that is heard, the next generation assigns it again."""
    driver = Driver().into(State.STABLE)
    driver.rebalance_to(0, generation=2)
    driver.answer_beat()
    driver.take(contract.RejoinWanted(reason="test"))
    driver.answer_join(generation=3)
    driver.answer_sync(0, 1)
    driver.answer_beat()
    assert driver.state is State.STABLE
    effects = driver.give_up(1)
    assert only(effects, contract.Rejoining).reason == "given up partitions that are assigned again"


def test_giving_up_partitions_that_are_not_assigned_has_no_effect_on_a_member_at_rest() -> None:
    driver = Driver().into(State.STABLE)
    assert driver.give_up(7) == []
    assert driver.machine.owned == parts(0, 1)


@pytest.mark.parametrize("instance_id", ["seat-0", "seat-7"])
def test_a_fenced_member_names_its_group_and_its_instance(instance_id: str) -> None:
    driver = Driver(instance_id=instance_id).into(State.STABLE)
    driver.after(HEARTBEAT_MS)
    error = only(driver.answer_beat(ErrorCode.FENCED_INSTANCE_ID), contract.Failed).error
    assert isinstance(error, FencedInstanceId)
    assert f"'{instance_id}'" in str(error) or instance_id in str(error)
    assert "'g'" in str(error)


# ------------------------------------------------------------------------------------ one request at a time


def test_a_join_that_was_sent_over_a_new_connection_is_not_sent_again_when_the_backoff_ends() -> None:
    driver = Driver().into(State.JOINING)
    driver.answer_join(error=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    driver.lose_connection()
    assert isinstance(request_in(driver.take(contract.Connected())), contract.JoinRequest)
    assert none_of(driver.after(2 * RETRY_BACKOFF_MS), contract.Send)


def test_a_member_that_joins_again_sends_no_heartbeat_behind_its_join() -> None:
    """The coordinator reads no request behind a parked one."""
    driver = Driver().into(State.STABLE)
    driver.after(HEARTBEAT_MS - 1)
    driver.take(contract.RejoinWanted(reason="test"))
    assert driver.after(1) == []
