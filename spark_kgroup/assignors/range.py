"""The `range` assignor: for each topic by itself, the first members get the first partitions.

Source: Kafka's RangeAssignor, whose result this is. Topics with equally many partitions and the same subscribers stay
aligned: partition k of each goes to the same member (co-partitioning).

Racks (KIP-881) change which partitions a member gets, never how many: members get partitions with a replica in their
rack first, and topics that are aligned stay so.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice

from spark_kgroup.assignors._racks import racks_matter, racks_of_members, racks_of_partitions
from spark_kgroup.assignors.contract import RebalanceProtocol, ranked
from spark_kgroup.model import Assignment, GroupMember, TopicDescription, TopicPartition
from spark_kgroup.uncollected import uncollected


class RangeAssignor:
    """Contiguous ranges of each topic, not sticky, and eager."""

    name = "range"
    protocol = RebalanceProtocol.EAGER

    def user_data(self, owned: frozenset[TopicPartition], generation: int) -> bytes | None:
        """None: a range needs no memory."""

    @uncollected()
    def assign(self, members: Sequence[GroupMember], topics: Mapping[str, TopicDescription]) -> Assignment:
        """With n partitions and m members, each gets n // m of a topic, and the first n % m members one more."""
        order = ranked(members)
        wanted_by: dict[str, list[str]] = defaultdict(list)
        for member in order:
            for name in topics.keys() & set(member.subscription.topics):
                wanted_by[name].append(member.member_id)
        racks = racks_of_members(order)
        ranges = [_Ranges(topics[name], subscribers, racks) for name, subscribers in wanted_by.items()]
        if any(of_topic.racks_matter for of_topic in ranges):
            for aligned in _aligned(ranges):
                # Aligned topics have the same subscribers: either all of them have racks to go by, or none.
                if aligned[0].nearby:
                    _hand_out_nearby(aligned)
        shares: dict[str, list[TopicPartition]] = {member.member_id: [] for member in order}
        for of_topic in ranges:
            of_topic.hand_out_rest()
            for member_id, share in of_topic.shares.items():
                shares[member_id] += share
        return {member_id: frozenset(share) for member_id, share in shares.items()}


class _Ranges:
    """One topic while its partitions are divided among its subscribers (Java: TopicAssignmentState).

    Attributes:
        shares: subscriber -> its partitions so far, in the order of the subscribers.
        rack_of: subscriber -> its rack, None for one without.
        nearby: for each partition, the racks of its replicas. The whole list is empty if no subscriber has a rack.
    """

    def __init__(self, topic: TopicDescription, subscribers: Sequence[str], racks: Mapping[str, str]) -> None:
        self.shares: dict[str, list[TopicPartition]] = {member_id: [] for member_id in subscribers}
        self.rack_of = {member_id: racks.get(member_id) for member_id in subscribers}
        near_to = {rack for rack in self.rack_of.values() if rack}
        self.nearby = racks_of_partitions([topic]) if near_to else []
        self.racks_matter = racks_matter(near_to, self.nearby)
        self.partitions = topic.partitions
        self._free = dict.fromkeys(topic.partitions)
        self._base, self._extra = divmod(topic.partition_count, len(subscribers))

    def room(self, member_id: str) -> int:
        """How many more partitions the member may have, a number that never grows."""
        return max(0, self._base + (self._extra > 0) - len(self.shares[member_id]))

    def give(self, member_id: str, partitions: Iterable[TopicPartition]) -> None:
        """Give free partitions to a member that has room for them."""
        for partition in partitions:
            del self._free[partition]
            self.shares[member_id].append(partition)
        # This is true once for each member: with one of the extra partitions it has no more room.
        if len(self.shares[member_id]) > self._base:
            self._extra -= 1

    def hand_out_nearby(self) -> None:
        """Give each member, up to its room, partitions with a replica in its rack, or any if it has no rack."""
        free_in = {rack: self._free_in(rack) for rack in self.rack_of.values()}
        for member_id, rack in self.rack_of.items():
            if found := list(islice(free_in[rack], self.room(member_id))):
                self.give(member_id, found)

    def _free_in(self, rack: str | None) -> Iterator[TopicPartition]:
        """Yield the partitions near to `rack` that are free when asked for. None becomes free again."""
        for partition, nearby in zip(self.partitions, self.nearby, strict=True):
            if partition in self._free and (rack is None or rack in nearby):
                yield partition

    def hand_out_rest(self) -> None:
        """Give the members the remaining partitions, up to their room, in the order of both."""
        free = iter(list(self._free))  # a copy, because `give` deletes from it
        for member_id in self.shares:
            if found := list(islice(free, self.room(member_id))):
                self.give(member_id, found)


def _aligned(ranges: Iterable[_Ranges]) -> Iterable[list[_Ranges]]:
    """Topics with the same subscribers and as many partitions, together."""
    together: dict[tuple[tuple[str, ...], int], list[_Ranges]] = defaultdict(list)
    for of_topic in ranges:
        together[tuple(of_topic.shares), len(of_topic.partitions)].append(of_topic)
    return together.values()


def _hand_out_nearby(aligned: Sequence[_Ranges]) -> None:
    """Give partition k of all `aligned` topics to the first member near to all of them (co-partitioning)."""
    first = aligned[0]
    if len(aligned) == 1:
        if first.racks_matter:
            first.hand_out_nearby()
        return
    waiting: dict[str | None, deque[tuple[int, str]]] = defaultdict(deque)
    for rank, (member_id, rack) in enumerate(first.rack_of.items()):
        waiting[rack].append((rank, member_id))
    for index in range(len(first.partitions)):
        near = frozenset.intersection(*(of_topic.nearby[index] for of_topic in aligned))
        if found := [head for rack in (None, *near) if (head := _first_with_room(first, waiting[rack]))]:
            _, member_id = min(found)
            for of_topic in aligned:
                of_topic.give(member_id, [of_topic.partitions[index]])


def _first_with_room(of_topic: _Ranges, waiting: deque[tuple[int, str]]) -> tuple[int, str] | None:
    """Drops members without room: room never grows, and a member has the same in all aligned topics."""
    while waiting and not of_topic.room(waiting[0][1]):
        waiting.popleft()
    return waiting[0] if waiting else None
