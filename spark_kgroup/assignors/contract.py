"""The contract of an assignor, the part of a consumer group that decides which member owns which partition.

The leader of a classic group runs it, over the subscriptions of all members (KIP-429; Kafka:
ConsumerPartitionAssignor). An assignor here is a value: it keeps no state between two calls, so any member can become
the leader at any time, and the same input gives the same answer in whatever order it arrives.

A custom assignor is a class that derives from `Assignor`, which marks it as one, and can be made without arguments.
`partition.assignment.strategy` names it as module:Class, in each process that is to be a member, since any may lead. No
other class that Python can import is made by that name. Each assignment is checked (`check_assignment`), and a broken
promise ends the member before the group reads by that assignment::

    class FirstTakesAll(Assignor):
        name = "first-takes-all"
        protocol = RebalanceProtocol.EAGER

        def user_data(self, owned, generation):
            return None

        def assign(self, members, topics):
            shares = {member.member_id: frozenset() for member in members}
            for name, topic in topics.items():
                for first in ranked(m for m in members if name in m.subscription.topics)[:1]:
                    shares[first.member_id] |= frozenset(topic.partitions)
            return shares

A subscription may name the member's rack, and a `TopicDescription` those of its replicas (KIP-881).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from enum import IntEnum
from typing import Protocol

from spark_kgroup.errors import AssignorError
from spark_kgroup.model import Assignment, GroupMember, TopicDescription, TopicPartition


class RebalanceProtocol(IntEnum):
    """How members treat their partitions while the group rebalances (KIP-429, with Kafka's ids)."""

    EAGER = 0
    """Every member gives up all its partitions before it joins."""

    COOPERATIVE = 1
    """Members keep their partitions. A partition changes hands only after its owner gave it up."""


class Assignor(Protocol):
    """One way to spread partitions over members."""

    @property
    def name(self) -> str:
        """Kafka's name of this assignor, by which members agree on one."""
        ...

    @property
    def protocol(self) -> RebalanceProtocol:
        """The strongest rebalance protocol this assignor supports."""
        ...

    def user_data(self, owned: frozenset[TopicPartition], generation: int) -> bytes | None:
        """The assignor's own bytes in a member's subscription, None if it has none.

        Args:
            owned: the partitions the member holds, or the last assignment of an eager member, which holds none when it
                joins.
            generation: the generation in which it was assigned, -1 if unknown.
        """
        ...

    def assign(self, members: Sequence[GroupMember], topics: Mapping[str, TopicDescription]) -> Assignment:
        """Decide which member owns which partition from now on. A custom assignor runs in a daemon thread and has 30 s.

        Args:
            members: all members of the group, in any order, each member id once.
            topics: by name. A subscribed topic that is absent is skipped.

        Returns:
            Every member id with its partitions, an empty set for those that get none. A partition is in one set at
            most, and only in that of a member that subscribes to its topic.
        """
        ...


def check_assignment(
    who: str,
    protocol: RebalanceProtocol,
    members: Sequence[GroupMember],
    topics: Mapping[str, TopicDescription],
    assignment: Assignment,
) -> None:
    """Check an assignment against the promises of `Assignor.assign`.

    A cooperative assignor gives a member no partition that another member still claims and does not keep (Java:
    ConsumerCoordinator.validateCooperativeAssignment).

    Args:
        who: the assignor, as the message shall name it.
        protocol: the rebalance protocol that the assignor declares.
        members: the members as the assignor got them.
        topics: the topics as the assignor got them.
        assignment: the assignor's answer.

    Raises:
        AssignorError: the assignment breaks a promise.
    """
    wanted = {member.member_id: set(member.subscription.topics) for member in members}
    owners: dict[TopicPartition, str] = {}
    for member_id, share in assignment.items():
        if member_id not in wanted:
            raise AssignorError(f"The assignor {who} assigned to {member_id!r}, who is no member of the group.")
        for partition in share:
            fault = _find_fault(partition, wanted[member_id], topics)
            if not fault and (other := owners.setdefault(partition, member_id)) != member_id:
                fault = f"to member {other!r}, too"
            if fault:
                shown = "-".join(map(str, partition)) if isinstance(partition, tuple) else repr(partition)
                raise AssignorError(f"The assignor {who} assigned {shown} to member {member_id!r}: {fault}.")
    if protocol is RebalanceProtocol.COOPERATIVE:
        _check_hand_over(who, members, owners)


def _find_fault(partition: TopicPartition, wanted: Collection[str], topics: Mapping[str, TopicDescription]) -> str:
    """Why a member that wants the topics in `wanted` may not get this partition, or empty if it may."""
    if not isinstance(partition, TopicPartition):
        return f"this is a {type(partition).__name__}, not a TopicPartition"
    if type(partition.topic) is not str or type(partition.partition) is not int:  # True is no number here
        return "a topic's name is a str, and the index of a partition an int"
    if partition.topic not in wanted:
        return "who does not subscribe to the topic"
    if partition.topic not in topics or not 0 <= partition.partition < topics[partition.topic].partition_count:
        return "a partition that does not exist"
    return ""


def _check_hand_over(who: str, members: Sequence[GroupMember], owners: Mapping[TopicPartition, str]) -> None:
    claims = {member.member_id: member.subscription.owned for member in members}
    for member_id, owned in claims.items():
        for partition in owned:
            gets = owners.get(partition, member_id)
            # If both members claim the partition, the new owner gains none: Java compares only added with revoked
            # partitions.
            if gets != member_id and partition not in claims[gets]:
                raise AssignorError(
                    f"The assignor {who} is cooperative and assigned {partition} to member {gets!r}, while member "
                    f"{member_id!r} still owns it: it must stay unassigned until its owner has given it up."
                )


def ranked(members: Iterable[GroupMember]) -> list[GroupMember]:
    """Members in the order that breaks ties: static ones first, by instance id, then dynamic ones by member id.

    A static member gets a new member id whenever it restarts, but its rank stays (Kafka: MemberInfo.compareTo,
    KIP-345).
    """
    return sorted(members, key=lambda member: (member.instance_id is None, member.instance_id or member.member_id))
