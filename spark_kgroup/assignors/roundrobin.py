"""The `roundrobin` assignor: all partitions of all topics, dealt out one by one.

Source: Kafka's RoundRobinAssignor, whose result this is. With equal subscriptions loads differ by one at most. A member
that does not subscribe to a topic is passed over, so with unequal ones they may differ by more. Racks play no part
(KIP-881 leaves this assignor out).
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Mapping, Sequence

from spark_kgroup.assignors.contract import RebalanceProtocol, ranked
from spark_kgroup.model import Assignment, GroupMember, TopicDescription, TopicPartition
from spark_kgroup.uncollected import uncollected


class RoundRobinAssignor:
    """Round the members, topic by topic, not sticky, and eager."""

    name = "roundrobin"
    protocol = RebalanceProtocol.EAGER

    def user_data(self, owned: frozenset[TopicPartition], generation: int) -> bytes | None:
        """None: the round begins anew each time."""

    @uncollected()
    def assign(self, members: Sequence[GroupMember], topics: Mapping[str, TopicDescription]) -> Assignment:
        """The next partition goes to the next member that wants it, with the topics in the order of their names."""
        order = ranked(members)
        shares: list[list[TopicPartition]] = [[] for _ in order]
        ranks_of: dict[str, list[int]] = defaultdict(list)
        for rank, member in enumerate(order):
            for name in topics.keys() & set(member.subscription.topics):
                ranks_of[name].append(rank)
        next_rank = 0
        for name, ranks in sorted(ranks_of.items()):
            # The round goes on from topic to topic: else the first members would get the first partitions of each one.
            at = bisect_left(ranks, next_rank)
            for partition in topics[name].partitions:
                rank = ranks[at % len(ranks)]
                shares[rank].append(partition)
                at, next_rank = at + 1, rank + 1
        return {member.member_id: frozenset(share) for member, share in zip(order, shares, strict=True)}
