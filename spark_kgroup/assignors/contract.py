"""What an assignor is: the part of a consumer group that decides which member owns which partition.

The leader of a classic group runs it, over the subscriptions of all members (KIP-429;
Kafka: ConsumerPartitionAssignor). An assignor here is a value: it keeps nothing between two calls, so any member can
become the leader at any time, and the same input gives the same answer in whatever order it arrives.

Racks are left out (KIP-881): `TopicDescription` carries no replicas, so a member's rack changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import IntEnum
from typing import Protocol

from spark_kgroup.model import Assignment, GroupMember, TopicDescription, TopicPartition


class RebalanceProtocol(IntEnum):
    """What members do with their partitions while the group rebalances (KIP-429; Kafka's ids)."""

    EAGER = 0
    """Every member gives up everything before it joins."""

    COOPERATIVE = 1
    """Members keep what they have; a partition changes hands only after its owner gave it up."""


class Assignor(Protocol):
    """One way to spread partitions over members."""

    @property
    def name(self) -> str:
        """Kafka's name of this assignor; members agree on one by name."""
        ...

    @property
    def protocol(self) -> RebalanceProtocol:
        """The strongest rebalance protocol this assignor supports."""
        ...

    def user_data(self, owned: frozenset[TopicPartition], generation: int) -> bytes | None:
        """The assignor's own bytes in a member's subscription, None if it has none.

        Args:
            owned: what the member holds.
            generation: the generation in which it was assigned, -1 if unknown.
        """
        ...

    def assign(self, members: Sequence[GroupMember], topics: Mapping[str, TopicDescription]) -> Assignment:
        """Decide who owns what from now on.

        Args:
            members: all members of the group, in any order, each member id once.
            topics: by name. A subscribed topic that is absent is skipped.

        Returns:
            Every member id with its partitions, an empty set for those that get none. A partition is in one set at
            most, and only in that of a member that subscribes to its topic.
        """
        ...


def ranked(members: Iterable[GroupMember]) -> list[GroupMember]:
    """Members in the order that breaks ties: static ones first, by instance id, then dynamic ones by member id.

    A static member gets a new member id whenever it restarts; its rank stays (Kafka: MemberInfo.compareTo, KIP-345).
    """
    return sorted(members, key=lambda member: (member.instance_id is None, member.instance_id or member.member_id))
