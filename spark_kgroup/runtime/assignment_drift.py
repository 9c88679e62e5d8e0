"""Whether a group's assignment still fits its members' subscriptions and the existing partitions. No I/O.

KIP-814 leaves a hole: a leader that comes back must not assign, and does not know of the changes while it was away. A
static member that comes back with another subscription does not make the group rebalance either (KIP-345). So the
group's *present* assignment is compared with metadata and subscriptions, regardless of its leader, instead of a
leader's memory.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from spark_kgroup.assignors import NAMES, assignor
from spark_kgroup.assignors.contract import Assignor
from spark_kgroup.errors import AssignorError
from spark_kgroup.model import DescribedGroup, GroupMember, Subscription, TopicDescription, TopicPartition
from spark_kgroup.peer_words import listed

log = logging.getLogger(__name__)

_NONE: frozenset[TopicPartition] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class AssignmentDrift:
    """The ways in which a group's assignment does not fit, falsy if it fits.

    Attributes:
        without_owner: subscribed, and neither assigned to a member nor claimed by one.
        gone: assigned, and the topic, or the partition, is not there.
        not_subscribed: assigned to a member that does not subscribe to the topic.
        unshared: topics of which a member that subscribes to them has no share, though a new assignment would give it
            one.
    """

    without_owner: frozenset[TopicPartition] = _NONE
    gone: frozenset[TopicPartition] = _NONE
    not_subscribed: frozenset[TopicPartition] = _NONE
    unshared: frozenset[str] = frozenset()

    def __bool__(self) -> bool:
        return bool(self.without_owner or self.gone or self.not_subscribed or self.unshared)

    def __le__(self, other: AssignmentDrift) -> bool:
        """Whether `other` has all of this."""
        return (
            self.without_owner <= other.without_owner
            and self.gone <= other.gone
            and self.not_subscribed <= other.not_subscribed
            and self.unshared <= other.unshared
        )

    @property
    def reason(self) -> str:
        """For logs, and for the coordinator's (KIP-800)."""
        found = {
            "without an owner": self.without_owner,
            "that are gone": self.gone,
            "assigned to members that do not subscribe to them": self.not_subscribed,
        }
        reasons = [f"{len(partitions)} partitions {what}" for what, partitions in found.items() if partitions]
        if self.unshared:
            reasons.append(f"subscribed without a share: {listed(sorted(self.unshared))}")
        return "; ".join(reasons)


def topics_of(group: DescribedGroup) -> frozenset[str]:
    """Every topic that a member subscribes to, or has a partition of."""
    return frozenset(
        topic for member in group.members for topic in (*member.subscribed, *(tp.topic for tp in member.assignment))
    )


def find_drift(
    group: DescribedGroup,
    topics: Mapping[str, TopicDescription],
    *,
    hidden: Collection[str] = (),
    ours: Collection[str] = (),
) -> AssignmentDrift:
    """The drift of the assignment of a classic group at rest.

    A claimed partition has an owner: in a cooperative rebalance it is withheld from all members until its claimant has
    given it up (KIP-429).

    Args:
        group: classic, in state Stable.
        topics: those of `topics_of(group)` that exist.
        hidden: topics of which brokers do not say whether they exist.
        ours: ids of members that give up by themselves partitions that they do not subscribe to (`member.ownership`).
    """
    subscribed = frozenset(topic for member in group.members for topic in member.subscribed)
    assigned = frozenset(tp for member in group.members for tp in member.assignment)
    claimed = frozenset(tp for member in group.members for tp in member.claimed)
    there = frozenset(tp for name in topics.keys() & subscribed for tp in topics[name].partitions)
    return AssignmentDrift(
        without_owner=there - assigned - claimed,
        gone=frozenset(tp for tp in assigned if tp.topic not in hidden and not exists(tp, topics)),
        not_subscribed=frozenset(
            tp
            for member in group.members
            # A subscription that cannot be read does not say which topics are meant.
            if member.subscription is not None and member.member_id not in ours
            for tp in member.assignment
            # Partitions that do not exist are in `gone` already.
            if tp.topic not in member.subscription.topics and exists(tp, topics)
        ),
    )


def find_unshared(group: DescribedGroup, topics: Mapping[str, TopicDescription]) -> frozenset[str]:
    """Topics of which a member that subscribes to them has no share, if the group's assignor would change that now.

    1. A static member comes back and subscribes to one more topic. 2. Other members have all its partitions, so none is
    without an owner. Whether the member shall have a share is for the assignor to say: a member without partitions of a
    topic is not unusual. Runs the assignor, so not on an event loop.
    """
    lacking = frozenset(
        topic
        for member in group.members
        for topic in {name for name in member.subscribed if name in topics} - {tp.topic for tp in member.assignment}
    )
    # Any other name is that of a custom assignor, which this process may not have.
    if not lacking or group.protocol not in NAMES:
        return frozenset()
    chosen = assignor(group.protocol)
    lacking &= _moving(chosen, group, topics, racks=True)
    # In Kafka's client, too, a member's new rack counts from the next rebalance on, and is no reason for one.
    return lacking & _moving(chosen, group, topics, racks=False) if lacking else lacking


def left_out_by(
    chosen: Assignor, group: DescribedGroup, topics: Mapping[str, TopicDescription]
) -> frozenset[TopicPartition]:
    """Partitions that a custom assignor would leave out if the group rebalanced now, all if it fails. Not on a loop."""
    there = frozenset(tp for topic in topics.values() for tp in topic.partitions)
    try:
        return there.difference(*chosen.assign(_as_joining(chosen, group, racks=True), topics).values())
    except AssignorError as error:
        log.warning("no rebalance for partitions without an owner: %s", error)
        return there


def _moving(
    chosen: Assignor, group: DescribedGroup, topics: Mapping[str, TopicDescription], *, racks: bool
) -> frozenset[str]:
    """Topics of which a partition would be taken from a member. A cooperative assignor takes away first (KIP-429)."""
    wanted = chosen.assign(_as_joining(chosen, group, racks=racks), topics)
    return frozenset(tp.topic for member in group.members for tp in member.assignment - wanted[member.member_id])


def _as_joining(chosen: Assignor, group: DescribedGroup, *, racks: bool) -> list[GroupMember]:
    """The members as they would join now."""
    return [
        GroupMember(
            member_id=member.member_id,
            instance_id=member.instance_id,
            subscription=Subscription(
                topics=tuple(sorted(member.subscribed)),
                owned=member.assignment,
                # The same for all members, so that no claim is older than another one.
                generation=0,
                rack=member.subscription.rack if racks and member.subscription else None,
                user_data=chosen.user_data(member.assignment, 0),
            ),
        )
        for member in group.members
    ]


def not_known_of(members: Iterable[GroupMember], topics: Mapping[str, TopicDescription]) -> frozenset[str]:
    """Those of `topics` of which joining members claim partitions that are not there. Not on a loop."""
    claimed = (tp for member in members for tp in member.subscription.owned)
    return frozenset(tp.topic for tp in claimed if tp.topic in topics and not exists(tp, topics))


def exists(tp: TopicPartition, topics: Mapping[str, TopicDescription]) -> bool:
    """Whether brokers have told of this partition."""
    return tp.topic in topics and tp.partition < topics[tp.topic].partition_count
