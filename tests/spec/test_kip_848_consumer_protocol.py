"""KIP-848, "The Next Generation of the Consumer Rebalance Protocol": its rules for members.

A test names the section that it paraphrases, or the page "Consumer Rebalance Protocol" of Kafka's documentation, which
describes the KIP as it was built. One that begins with `test_deviates` says where we do otherwise, and why. Left out:
computing and storing at the coordinator, assignors on the client's side, which were never built, and "Kafka Streams".
Member ids are those of KIP-1082. Patterns, and migration between the protocols, are tried on a real Kafka.
"""

from __future__ import annotations

from typing import Any

import pytest
from harness.consumer_driver import NEW, OLD, SESSION_MS, Driver, by_id, only, parts

from spark_kgroup.errors import FencedInstanceId, GroupRejected
from spark_kgroup.member import contract
from spark_kgroup.member.config import ConsumerMemberConfig
from spark_kgroup.member.consumer import State
from spark_kgroup.member.consumer_contract import (
    JOIN_EPOCH,
    LEAVE_EPOCH,
    RELEASE_EPOCH,
    Ask,
    ResolveTopics,
    Unanswered,
)
from spark_kgroup.model import ErrorCode, MemberIdentity, TopicPartition
from spark_kgroup.wire import messages, schema

# -------------------------------------------------------------------------------- "Joining or Leaving the Group"


def test_a_join_sends_all_fields_at_epoch_zero_and_claims_no_partition() -> None:
    request = only(Driver().take(contract.Join()), Ask).request
    assert (request.identity.generation, request.full, request.owned) == (JOIN_EPOCH, True, frozenset())


@pytest.mark.parametrize("instance_id", ["seat-0", None])
@pytest.mark.parametrize("error", [ErrorCode.NONE, ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.GROUP_ID_NOT_FOUND])
def test_a_member_leaves_for_good_with_epoch_minus_one_and_has_left_if_the_group_does_not_know_it(
    instance_id: str | None, error: ErrorCode
) -> None:
    driver = Driver(instance_id).into(State.STABLE)
    request = only(driver.take(contract.Leave(reason="a test")), Ask).request
    assert (request.identity.generation, request.full, request.owned) == (LEAVE_EPOCH, False, None)
    assert only(driver.answer(error=error, epoch=-1), contract.Left).error == ErrorCode.NONE


# ---------------------------------------------------------------------------------------------------- "Fencing"


@pytest.mark.parametrize("error", [ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.GROUP_ID_NOT_FOUND])
def test_a_member_that_the_coordinator_does_not_know_loses_all_and_joins_with_the_same_id(error: ErrorCode) -> None:
    driver = Driver().into(State.STABLE)
    member_id = driver.machine.identity.member_id
    driver.pass_ms(5_000)
    effects = driver.answer(error=error)
    assert only(effects, contract.Lost).partitions == parts(0, 1)
    request = only(effects, Ask).request
    assert (request.identity.member_id, request.identity.generation) == (member_id, JOIN_EPOCH)


def test_a_dynamic_member_whose_epoch_is_fenced_abandons_all_and_joins_at_once_with_epoch_zero() -> None:
    driver = Driver(None).into(State.STABLE)
    driver.pass_ms(5_000)
    effects = driver.answer(error=ErrorCode.FENCED_MEMBER_EPOCH)
    assert only(effects, contract.Lost).partitions == parts(0, 1)
    assert driver.machine.owned == frozenset()
    assert only(effects, Ask).request.identity.generation == JOIN_EPOCH


def test_deviates_a_static_member_whose_epoch_is_fenced_waits_before_it_joins() -> None:
    """The KIP joins at once.

    1. A new process of the seat releases it. 2. We heartbeat, and are fenced. 3. If we joined before it does, we would
    have its seat.
    """
    driver = Driver().into(State.STABLE)
    driver.pass_ms(5_000)
    assert not any(isinstance(effect, Ask) for effect in driver.answer(error=ErrorCode.FENCED_MEMBER_EPOCH))
    assert driver.machine.owned == frozenset()
    assert only(driver.pass_ms(1_000), Ask).request.identity.generation == JOIN_EPOCH


def test_deviates_a_member_without_an_answer_for_a_session_loses_all_without_being_told() -> None:
    """The KIP leaves it to the coordinator to fence a silent member, but the coordinator itself may be gone."""
    driver = Driver().into(State.STABLE)
    driver.pass_ms(5_000)
    assert only(driver.pass_ms(SESSION_MS), contract.Lost).partitions == parts(0, 1)


# ---------------------------------------------------------------------------------- "Static Membership (KIP-345)"


def test_a_static_member_that_leaves_for_a_while_says_so_with_epoch_minus_two() -> None:
    driver = Driver().into(State.STABLE)
    assert only(driver.take(contract.Close()), Ask).request.identity.generation == RELEASE_EPOCH
    assert driver.answer(epoch=-2) == []
    assert driver.state is State.CLOSED


def test_deviates_a_static_member_that_owes_partitions_goes_without_a_word() -> None:
    """A release gives all its partitions to the next process, or to other members, this instant.

    Those that it was to give up may have to be read once more. The coordinator keeps the seat for a session, as after a
    crash.
    """
    driver = Driver().into(State.RECONCILING)
    assert driver.machine.to_give_up
    assert driver.take(contract.Close()) == []
    assert driver.state is State.CLOSED


@pytest.mark.parametrize(("instance_id", "state"), [(None, State.STABLE), ("seat-0", State.JOINING)])
def test_a_member_without_a_seat_to_come_back_to_closes_without_a_word(instance_id: str | None, state: State) -> None:
    driver = Driver(instance_id).into(state)
    assert driver.take(contract.Close()) == []
    assert driver.state is State.CLOSED


def test_deviates_a_seat_whose_last_process_crashed_is_released_in_its_name() -> None:
    """The KIP refuses the new process with UNRELEASED_INSTANCE_ID until the session of the old one is over, and Kafka's
    client ends with that. The newest process has the seat, as under KIP-345. (decision 70)"""
    driver = Driver().into(State.RELEASING)
    release = driver.awaited
    assert (release.identity.member_id, release.identity.generation, release.full) == ("crashed", RELEASE_EPOCH, False)
    assert only(driver.answer(epoch=-2), Ask).request.identity.generation == JOIN_EPOCH


def test_deviates_a_member_that_finds_another_in_its_seat_is_fenced_and_releases_no_member() -> None:
    """The reverse case: a process that is no longer a member does not take the seat back from its successor."""
    driver = Driver().into(State.STABLE)
    driver.pass_ms(5_000)
    driver.answer(error=ErrorCode.UNKNOWN_MEMBER_ID)
    only(driver.answer(error=ErrorCode.UNRELEASED_INSTANCE_ID), contract.LookAtSeat)
    error = only(driver.take(contract.SeatSeen(member_id="a newer process")), contract.Failed).error
    assert isinstance(error, FencedInstanceId)
    assert (error.group, error.instance_id) == ("g", "seat-0")


def test_a_member_that_finds_an_earlier_id_of_its_own_in_its_seat_releases_it() -> None:
    """A coordinator without followers answers no join, yet refuses the next one, and shows the holder it wrote last.

    1. It is cut off from its followers. 2. Our session is over, our old id is released, and a new id joins. No answer
    comes. 3. The new id joins again: UNRELEASED_INSTANCE_ID. 4. The group, as it was written, has our old id.
    """
    driver = Driver().into(State.STABLE)
    before = driver.machine.identity.member_id
    driver.pass_ms(5_000)
    driver.answer(error=ErrorCode.UNKNOWN_MEMBER_ID)
    driver.answer(error=ErrorCode.FENCED_MEMBER_EPOCH)
    joins = only(driver.answer(epoch=RELEASE_EPOCH), Ask).request.identity
    assert joins.generation == JOIN_EPOCH
    assert joins.member_id != before
    only(driver.answer(error=ErrorCode.UNRELEASED_INSTANCE_ID), contract.LookAtSeat)
    release = only(driver.take(contract.SeatSeen(member_id=before)), Ask).request.identity
    assert (release.member_id, release.generation) == (before, RELEASE_EPOCH)


def test_a_member_whose_instance_id_is_fenced_ends() -> None:
    driver = Driver().into(State.STABLE)
    driver.pass_ms(5_000)
    effects = driver.answer(error=ErrorCode.FENCED_INSTANCE_ID)
    assert only(effects, contract.Lost).partitions == parts(0, 1)
    assert isinstance(only(effects, contract.Failed).error, FencedInstanceId)
    assert driver.state is State.CLOSED


# ------------------------------------------------------------------------- "Member Epoch" and "Reconciliation"


def test_a_partition_that_is_new_in_an_assignment_is_owned_and_acknowledged_at_once() -> None:
    driver = Driver().into(State.JOINING)
    driver.answer(epoch=4, assignment=by_id(0, 1))
    effects = driver.resolve()
    assert only(effects, contract.Assigned).added == parts(0, 1)
    request = only(effects, Ask).request
    assert (request.identity.generation, request.full, request.owned) == (4, False, by_id(0, 1))
    driver.answer(epoch=4)
    assert driver.state is State.STABLE


def test_a_partition_missing_from_an_assignment_is_given_up_then_acknowledged_and_the_epoch_moves_on() -> None:
    """Revoked first, committed by the application, and only the heartbeat without it frees it for other members."""
    driver = Driver().into(State.RECONCILING)
    assert (driver.machine.owned, driver.machine.to_give_up) == (parts(0, 1), parts(1))
    effects = driver.take(contract.GaveUp(partitions=parts(1)))
    assert only(effects, Ask).request.owned == by_id(0)
    driver.answer(epoch=4)
    assert (driver.state, driver.machine.owned, driver.machine.identity.generation) == (State.STABLE, parts(0), 4)


def test_the_epoch_moves_without_a_loss_where_the_assignment_is_as_it_was() -> None:
    driver = Driver().into(State.STABLE)
    driver.pass_ms(5_000)
    assert driver.answer(epoch=9) == []
    assert (driver.machine.identity.generation, driver.machine.owned) == (9, parts(0, 1))


def test_a_partition_that_another_member_still_has_comes_with_a_later_assignment() -> None:
    """The coordinator adds it when it is free. To the member that is one more assignment like any other."""
    driver = Driver().into(State.JOINING)
    driver.answer(assignment=by_id(0))
    driver.resolve()
    driver.answer()
    driver.pass_ms(5_000)
    effects = driver.answer(epoch=3, assignment=by_id(0, 1))
    assigned = only(effects, contract.Assigned)
    assert (assigned.added, assigned.revoked) == (parts(1), frozenset())


def test_assignments_have_topic_ids_and_wait_for_metadata_that_knows_their_names() -> None:
    driver = Driver().into(State.JOINING)
    assert only(driver.answer(epoch=4, assignment=by_id(0, 1)), ResolveTopics).topic_ids == {OLD}
    assert (driver.machine.owned, driver.state) == (frozenset(), State.RECONCILING)
    assert only(driver.pass_ms(1_000), ResolveTopics).topic_ids == {OLD}, "and are asked for again"


def test_a_topic_name_that_comes_while_a_heartbeat_without_partitions_is_awaited_waits_for_its_answer() -> None:
    """It may give the partitions to other members at once, since they have no owner.

    The assignment in its answer counts.
    """
    driver = Driver().into(State.JOINING)
    driver.answer(epoch=3, assignment=by_id(0, 1))
    driver.pass_ms(5_000)
    driver.take(Unanswered(request=driver.awaited, reason="a test"))
    driver.pass_ms(1_000)
    assert (driver.awaited.full, driver.awaited.owned) == (True, frozenset())
    driver.resolve()
    assert (driver.machine.owned, driver.machine.settled) == (frozenset(), False)
    effects = driver.answer(epoch=4, assignment=by_id(0))
    assert only(effects, contract.Assigned).added == driver.machine.owned == parts(0)


def test_a_topic_that_was_created_anew_has_another_id_so_its_old_partitions_are_lost_and_the_new_ones_new() -> None:
    driver = Driver().into(State.STABLE)
    driver.pass_ms(5_000)
    driver.answer(epoch=4, assignment=by_id(0, of=NEW))
    assert driver.machine.to_give_up == parts(0, 1)
    effects = driver.resolve(NEW)
    assert only(effects, contract.Lost).partitions == parts(0, 1)
    assert only(effects, contract.Assigned).added == parts(0)
    assert only(effects, Ask).request.owned == by_id(0, of=NEW)


def test_the_coordinator_watches_metadata_and_no_member_asks_for_a_rebalance() -> None:
    """ "Group Epoch": it moves when subscriptions, members or topics change, without any request."""
    driver = Driver().into(State.STABLE)
    assert driver.take(contract.RejoinWanted(reason="partitions were added")) == []
    assert (driver.machine.leader, driver.machine.watched_topics) == (False, frozenset())


# ------------------------------------------------------------------------------------- "ConsumerGroupHeartbeat API"


def test_a_heartbeat_is_due_when_the_answer_said_and_leaves_out_all_that_is_as_it_was() -> None:
    driver = Driver().into(State.STABLE)
    assert driver.machine.next_wakeup_at_ms() == driver.now_ms + 5_000
    request = only(driver.pass_ms(5_000), Ask).request
    assert (request.identity.generation, request.full, request.owned) == (3, False, None)


def test_a_heartbeat_after_one_that_was_not_answered_says_everything() -> None:
    """The coordinator may not have heard the last one."""
    driver = Driver().into(State.STABLE)
    driver.pass_ms(5_000)
    driver.take(Unanswered(request=driver.awaited, reason="a test"))
    assert driver.machine.owned == parts(0, 1)
    request = only(driver.pass_ms(1_000), Ask).request
    assert (request.full, request.owned) == (True, by_id(0, 1))


def test_a_heartbeat_that_failed_for_a_while_is_sent_again_and_no_partition_is_lost() -> None:
    driver = Driver().into(State.STABLE)
    driver.pass_ms(5_000)
    assert driver.answer(error=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS) == []
    request = only(driver.pass_ms(1_000), Ask).request
    assert (request.full, driver.machine.owned) == (True, parts(0, 1))


def test_a_field_that_is_left_out_is_null_in_the_request_and_minus_one_for_the_timeout() -> None:
    who = MemberIdentity(instance_id="seat-0", member_id="m", generation=3)
    requests: tuple[Any, ...] = messages.consumer_group_heartbeat("g", who)
    for request in requests:
        fields = (request.rack_id, request.subscribed_topic_names, request.server_assignor, request.topic_partitions)
        assert fields == (None, None, None, None)
        assert request.rebalance_timeout_ms == -1


def test_a_full_request_says_topics_assignor_rack_and_how_long_the_coordinator_waits_for_revocations() -> None:
    """The rebalance timeout is the one time that a member decides on. `group.remote.assignor` is its wish."""
    who = MemberIdentity(instance_id="seat-0", member_id="m", generation=JOIN_EPOCH)
    newest, _ = messages.consumer_group_heartbeat(
        "g", who, rack="r1", rebalance_timeout_ms=60_000, topics=["orders"], assignor="range", owned=()
    )
    assert isinstance(newest, schema.ConsumerGroupHeartbeatRequest)
    assert (newest.instance_id, newest.rack_id, newest.server_assignor) == ("seat-0", "r1", "range")
    assert (newest.subscribed_topic_names, newest.topic_partitions) == (("orders",), ())
    assert newest.rebalance_timeout_ms == 60_000


@pytest.mark.parametrize(
    ("error", "fix"),
    [
        (ErrorCode.UNSUPPORTED_ASSIGNOR, "uniform, range"),
        (ErrorCode.UNSUPPORTED_VERSION, "`group.protocol` to classic"),
    ],
)
def test_a_member_whose_coordinator_lacks_its_assignor_or_the_protocol_ends_with_the_way_out(
    error: ErrorCode, fix: str
) -> None:
    """An assignor that it does not know is rejected. The documentation: a cluster before 4.0 has no such groups."""
    failed = only(Driver().into(State.JOINING).answer(error=error), contract.Failed)
    assert isinstance(failed.error, GroupRejected)
    assert fix in str(failed.error)


# ------------------------------------------------------------------------------------ "OffsetCommit" and "OffsetFetch"


def test_a_commit_carries_the_member_epoch_in_the_version_that_knows_it() -> None:
    """Version 9 is the first that members under this protocol may use. The epoch is where the generation was."""
    who = MemberIdentity(instance_id="seat-0", member_id="m", generation=7)
    request = messages.offset_commit("g", who, {TopicPartition("orders", 0): 5}, consumer_protocol=True)
    version = schema.API_OF[type(request)].version
    assert (version, request.generation_id_or_member_epoch, request.member_id) == (9, 7, "m")


def test_a_member_asks_for_committed_offsets_with_its_id_and_epoch_in_the_version_that_knows_them() -> None:
    """Version 9 adds both, for the coordinator to check them."""
    who = MemberIdentity(instance_id="seat-0", member_id="m", generation=7)
    request = messages.offset_fetch_of_member("g", who, [TopicPartition("orders", 0)])
    (group,) = request.groups
    version = schema.API_OF[type(request)].version
    assert (version, group.member_epoch, group.member_id, request.require_stable) == (9, 7, "m", True)


def test_a_commit_that_was_refused_makes_the_member_ask_at_once_and_the_heartbeat_decides() -> None:
    """STALE_MEMBER_EPOCH says that the next heartbeat's answer has a newer epoch, not that the membership is over."""
    driver = Driver().into(State.STABLE)
    refused = contract.MembershipRefused(identity=driver.machine.identity, error=ErrorCode.UNKNOWN_MEMBER_ID)
    assert only(driver.take(refused), Ask).request.identity.generation == 3
    driver.answer(epoch=4)
    assert (driver.machine.identity.generation, driver.machine.owned) == (4, parts(0, 1))


# ----------------------------------------------------------------------------------------- "Broker Configurations"


def test_the_broker_decides_about_sessions_and_heartbeats_so_they_are_not_in_any_request() -> None:
    """The documentation: group.consumer.session.timeout.ms and group.consumer.heartbeat.interval.ms."""
    who = MemberIdentity(instance_id="seat-0", member_id="m", generation=JOIN_EPOCH)
    requests: tuple[Any, ...] = messages.consumer_group_heartbeat("g", who)
    for request in requests:
        assert not [name for name in request._fields if "session" in name or "interval" in name]
    config = ConsumerMemberConfig(group="g", instance_id="seat-0", topics=("orders",))
    assert (config.session_timeout_ms, config.heartbeat_interval_ms) == (45_000, 5_000), "Kafka's, until it says others"
