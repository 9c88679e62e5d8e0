"""The `range` assignor: for each topic by itself, the first members get the first partitions.

Source: Kafka's RangeAssignor. Topics with equally many partitions and the same subscribers stay aligned: partition k
of each goes to the same member (co-partitioning). Rack matching (KIP-881) is left out: without racks the result equals
Java's.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from spark_kgroup.assignors.contract import RebalanceProtocol, ranked
from spark_kgroup.model import Assignment, GroupMember, TopicDescription, TopicPartition


class RangeAssignor:
    """Contiguous ranges of each topic; not sticky, and eager."""

    name = "range"
    protocol = RebalanceProtocol.EAGER

    def user_data(self, owned: frozenset[TopicPartition], generation: int) -> bytes | None:
        """None: a range needs no memory."""

    def assign(self, members: Sequence[GroupMember], topics: Mapping[str, TopicDescription]) -> Assignment:
        """With n partitions and m members, each gets n // m of a topic, and the first n % m members one more."""
        shares: dict[str, set[TopicPartition]] = {member.member_id: set() for member in members}
        wanted_by: dict[str, list[str]] = defaultdict(list)
        for member in ranked(members):
            for name in topics.keys() & set(member.subscription.topics):
                wanted_by[name].append(member.member_id)
        for name, subscribers in wanted_by.items():
            partitions = topics[name].partitions
            base, extra = divmod(len(partitions), len(subscribers))
            for rank, member_id in enumerate(subscribers):
                first = rank * base + min(rank, extra)
                shares[member_id].update(partitions[first : first + base + (rank < extra)])
        return {member_id: frozenset(share) for member_id, share in shares.items()}
