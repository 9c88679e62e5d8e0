"""Racks (KIP-881): where members and replicas are, and whether that is a reason to assign otherwise."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from itertools import chain

from spark_kgroup.model import GroupMember, TopicDescription

_NOWHERE: frozenset[str] = frozenset()


def racks_of_members(members: Iterable[GroupMember]) -> dict[str, str]:
    """Member id -> rack, of those that have one."""
    return {member.member_id: rack for member in members if (rack := member.subscription.rack)}


def racks_of_partitions(topics: Iterable[TopicDescription]) -> list[frozenset[str]]:
    """The racks of the replicas of each partition, empty where none is known."""
    return [topic.racks.get(index, _NOWHERE) for topic in topics for index in range(topic.partition_count)]


def racks_matter(of_members: Iterable[str], of_partitions: Collection[frozenset[str]]) -> bool:
    """Whether some member could read some partition nearby, and not all of them (Java: useRackAwareAssignment)."""
    everywhere = set(chain.from_iterable(of_partitions))
    return not everywhere.isdisjoint(of_members) and any(racks != everywhere for racks in of_partitions)


def is_near(racks: Mapping[str, str], member_id: str, replicas: Collection[str]) -> bool:
    """Whether the member is in the rack of a replica. A member without a rack is near to all partitions."""
    return member_id not in racks or racks[member_id] in replicas
