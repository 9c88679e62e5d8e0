"""A static seat that comes back within its session with another subscription is assigned its earlier share (KIP-345).

Kafka's own member rejoins at once (ConsumerCoordinator.checkAssignmentMatchedSubscription). Here a batch that an
earlier process planned may still read topics that are no longer subscribed, so they go at the next boundary.
"""

from __future__ import annotations

from itertools import pairwise

import pytest
from harness.classic_driver import COOPERATIVE, EAGER, HEARTBEAT_MS, Driver, claim, none_of, only, parts, request_in

from spark_kgroup.assignors.contract import Assignor
from spark_kgroup.limits import REJOIN_BACKOFF_MAX_MS
from spark_kgroup.member import contract
from spark_kgroup.member.classic import State
from spark_kgroup.model import ErrorCode, TopicPartition

OLD = parts(0, topic="dropped")


def back(assignor: Assignor = COOPERATIVE) -> tuple[Driver, list[contract.Effect]]:
    """Comes back to generation 4, in which its seat was assigned a topic that it does not subscribe any more."""
    driver = Driver(assignors=(assignor,)).into(State.JOINING)
    driver.answer_join(generation=4)
    return driver, synced(driver, parts(0) | OLD)


def synced(driver: Driver, assignment: frozenset[TopicPartition]) -> list[contract.Effect]:
    request = next(r for r in reversed(driver.sent) if isinstance(r, contract.SyncRequest))
    return driver.take(contract.SyncResponse(request=request, error=ErrorCode.NONE, assignment=assignment))


@pytest.mark.parametrize("assignor", [COOPERATIVE, EAGER])
def test_an_assigned_partition_that_is_not_subscribed_is_never_owned_and_must_be_given_up(assignor: Assignor) -> None:
    driver, effects = back(assignor)
    assigned = only(effects, contract.Assigned)
    assert (assigned.assigned, assigned.added) == (parts(0), parts(0))
    assert assigned.revoked == driver.machine.to_give_up == (OLD if assignor is COOPERATIVE else parts(0) | OLD)
    assert driver.machine.owned == parts(0)
    assert not driver.machine.settled


def test_an_eager_member_gives_all_up_before_it_joins_for_the_sake_of_a_topic_it_dropped() -> None:
    driver, _ = back(EAGER)
    driver.after(HEARTBEAT_MS)
    assert none_of(driver.answer_beat(ErrorCode.REBALANCE_IN_PROGRESS), contract.Send)
    assert driver.machine.to_give_up == parts(0) | OLD
    assert none_of(driver.take(contract.GaveUp(partitions=parts(0))), contract.Send)
    assert claim(request_in(driver.take(contract.GaveUp(partitions=OLD)))).owned == frozenset()


@pytest.mark.parametrize("assignor", [COOPERATIVE, EAGER])
def test_a_member_that_gave_up_unsubscribed_partitions_joins_with_subscribed_topics_only(assignor: Assignor) -> None:
    driver, effects = back(assignor)
    effects = driver.take(contract.GaveUp(partitions=only(effects, contract.Assigned).revoked))
    assert claim(request_in(effects)).topics == ("orders",)


def test_an_eager_member_joins_anew_because_of_unsubscribed_partitions() -> None:
    driver, _ = back(EAGER)
    join = request_in(driver.take(contract.GaveUp(partitions=driver.machine.to_give_up)))
    assert isinstance(join, contract.JoinRequest)
    assert join.reason == "assigned partitions of topics that are not subscribed"


def test_a_lost_membership_claims_no_unsubscribed_partition_any_more() -> None:
    driver, _ = back()
    effects = driver.answer_beat(ErrorCode.UNKNOWN_MEMBER_ID)
    assert claim(request_in(effects)).owned == frozenset()
    assert driver.machine.to_give_up == frozenset()


# ------------------------------------------------------------------------- a leader that goes on assigning it


def generations_in(driver: Driver, duration_ms: int, *, first: int) -> list[int]:
    """Instants of our joins while each generation assigns us OLD, though unsubscribed. Boundaries are everywhere."""
    began_ms, joined_at_ms = driver.now_ms, []
    while driver.now_ms < began_ms + duration_ms:
        driver.after(100)
        if driver.machine.to_give_up:
            driver.take(contract.GaveUp(partitions=driver.machine.to_give_up))
        if driver.state is State.JOINING:
            joined_at_ms.append(driver.now_ms - began_ms)
            driver.answer_join(generation=first + len(joined_at_ms))
            synced(driver, parts(0) | OLD)
        elif isinstance(driver.last_sent(), contract.HeartbeatRequest):
            driver.answer_beat()
    return joined_at_ms


@pytest.mark.parametrize("assignor", [COOPERATIVE, EAGER])
def test_joins_against_an_unsubscribed_assignment_come_ever_more_seldom_while_the_leader_repeats_it(
    assignor: Assignor,
) -> None:
    """A leader that assigns by a rule of its own would else rebalance the group at each of our boundaries."""
    driver, _ = back(assignor)
    joined_at_ms = generations_in(driver, 600_000, first=4)
    assert joined_at_ms[0] <= 100, "the leader hears of a changed subscription at once"
    waits_ms = [b - a for a, b in pairwise(joined_at_ms)]
    assert waits_ms[0] >= HEARTBEAT_MS
    assert waits_ms[:4] == sorted(set(waits_ms[:4])), "each wait is longer than the last"
    assert REJOIN_BACKOFF_MAX_MS <= waits_ms[-1] <= REJOIN_BACKOFF_MAX_MS + 200


def test_a_member_whose_objection_was_in_vain_reads_subscribed_topics_until_the_next_one() -> None:
    driver, _ = back()
    driver.take(contract.GaveUp(partitions=OLD))
    driver.answer_join(generation=5)
    assigned = only(synced(driver, parts(0, 1) | OLD), contract.Assigned)
    assert (assigned.assigned, assigned.added, assigned.revoked) == (parts(0, 1), parts(1), frozenset())
    assert driver.machine.settled
    joining = driver.answer_beat(ErrorCode.REBALANCE_IN_PROGRESS)
    assert claim(request_in(joining)).owned == parts(0, 1), "a rebalance of others is followed at once"


def test_a_leader_that_takes_an_unsubscribed_assignment_back_is_objected_to_at_once_the_next_time() -> None:
    driver, _ = back()
    for generation, assignment in enumerate((parts(0) | OLD, parts(0), parts(0) | OLD), start=5):
        driver.take(contract.GaveUp(partitions=OLD))
        if driver.machine.settled:
            driver.take(contract.RejoinWanted(reason="test"))
        driver.answer_join(generation=generation)
        synced(driver, assignment)
    assert driver.machine.to_give_up == OLD


def test_an_eager_member_that_objects_between_two_batches_keeps_its_heartbeats() -> None:
    """Both timers are due at once. It joins only at the boundary, which may be half an hour away."""
    driver, _ = back(EAGER)
    driver.take(contract.GaveUp(partitions=driver.machine.to_give_up))
    driver.answer_join(generation=5)
    synced(driver, parts(0) | OLD)
    driver.answer_beat()
    assert isinstance(request_in(driver.after(HEARTBEAT_MS)), contract.HeartbeatRequest)
    assert driver.machine.to_give_up == parts(0)
    driver.answer_beat()
    assert isinstance(request_in(driver.after(HEARTBEAT_MS)), contract.HeartbeatRequest)


def test_a_membership_that_was_lost_takes_its_objections_along() -> None:
    """An unsubscribed topic in the next membership's assignment is objected to at the next boundary, as at first."""
    driver, _ = back()
    driver.take(contract.GaveUp(partitions=OLD))
    driver.answer_join(generation=5)
    synced(driver, parts(0) | OLD)
    driver.answer_beat(ErrorCode.UNKNOWN_MEMBER_ID)
    driver.answer_join(generation=6)
    assert only(synced(driver, parts(0) | OLD), contract.Assigned).revoked == OLD


def waiting_to_object() -> Driver:
    """Objected in vain. It objects once more when the wait for it is over."""
    driver, _ = back()
    driver.take(contract.GaveUp(partitions=OLD))
    driver.answer_join(generation=5)
    synced(driver, parts(0) | OLD)
    driver.answer_beat()
    return driver


def test_a_join_that_objects_says_that_it_does() -> None:
    effects = waiting_to_object().after(HEARTBEAT_MS)
    assert only(effects, contract.Rejoining).reason == "assigned once more partitions of topics that are not subscribed"


def test_a_member_whose_leader_comes_round_before_the_next_objection_stays_where_it_is() -> None:
    driver = waiting_to_object()
    driver.take(contract.RejoinWanted(reason="test"))
    driver.answer_join(generation=6)
    synced(driver, parts(0))
    driver.answer_beat()
    assert none_of(driver.after(HEARTBEAT_MS), contract.Rejoining)
    assert driver.machine.settled
