"""The `cooperative-sticky` assignor: balanced first, then as few moves as possible, and never two owners at a time.

Source: KIP-429; Kafka's CooperativeStickyAssignor and AbstractStickyAssignor. One round has three steps:

1. Who owns what now. Members claim what they hold; where claims collide, the one with the highest generation wins,
   and two in the same generation both lose (KIP-792).
2. The target: `_balance` spreads all partitions, keeping owners where balance allows.
3. The hand-over: a partition that somebody else still claims is given to nobody in this round. Its claimant sees it
   missing, gives it up and rejoins, and in the next round it is free. So two rounds settle any change.

Where this differs from Java, on purpose: ties are broken by instance id, not by the member id that a static restart
changes; the outcome does not depend on the order in which members are listed; unequal subscriptions get a target that
is proven best (Java's is a heuristic that may need up to four rounds). Racks are left out.
"""

from __future__ import annotations

import struct
from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Final

from spark_kgroup.assignors._balance import equal_shares, fair_shares
from spark_kgroup.assignors.contract import RebalanceProtocol, ranked
from spark_kgroup.model import NO_GENERATION, Assignment, GroupMember, Subscription, TopicDescription, TopicPartition

_USER_DATA: Final = struct.Struct(">i")
"""The generation as int32 (Java: COOPERATIVE_STICKY_ASSIGNOR_USER_DATA_V0)."""


class CooperativeStickyAssignor:
    """Incremental and sticky; the default."""

    name = "cooperative-sticky"
    protocol = RebalanceProtocol.COOPERATIVE

    def user_data(self, owned: frozenset[TopicPartition], generation: int) -> bytes | None:  # owned has its own field
        """The generation: subscriptions before version 2 have no field for it."""
        del owned
        return _USER_DATA.pack(generation)

    def assign(self, members: Sequence[GroupMember], topics: Mapping[str, TopicDescription]) -> Assignment:
        """One round: what every member keeps, and what it gets that nobody else still holds."""
        order = ranked(members)
        holders = _holders(order)
        # A partition with a holder, or with claims that cancel each other, can be given to nobody else in this round.
        return {
            member_id: frozenset([partition for partition in share if holders.get(partition, member_id) == member_id])
            for member_id, share in _target(order, topics, holders).items()
        }


def claimed_generation(subscription: Subscription) -> int:
    """The generation in which a member was assigned what it claims, -1 if it does not say.

    Version 2 and later have a field; before, Java's members put it in the user data (Java:
    CooperativeStickyAssignor.memberData). librdkafka's user data is of another shape and longer; Java reads its first
    four bytes, a count of topics, as a generation. Here only four bytes are a generation.
    """
    if subscription.generation != NO_GENERATION:
        return subscription.generation
    if subscription.user_data is None or len(subscription.user_data) != _USER_DATA.size:
        return NO_GENERATION
    (generation,) = _USER_DATA.unpack(subscription.user_data)
    return int(generation)


def _holders(members: Sequence[GroupMember]) -> dict[TopicPartition, str | None]:
    """The member id whose claim counts, for each partition that is claimed; None where no claim does.

    A lone claim counts in any generation: a member that missed a round still holds what it held. Two claims in the
    highest generation cannot both be true, so neither counts (Java: allSubscriptionsEqual).
    """
    holders: dict[TopicPartition, str | None] = {}
    for member in members:
        holders.update(dict.fromkeys(member.subscription.owned, member.member_id))
    if len(holders) < sum(len(member.subscription.owned) for member in members):
        claimants: dict[TopicPartition, list[GroupMember]] = defaultdict(list)
        for member in members:
            for partition in member.subscription.owned:
                claimants[partition].append(member)
        holders |= {partition: _holder(those) for partition, those in claimants.items() if len(those) > 1}
    return holders


def _holder(claimants: Sequence[GroupMember]) -> str | None:
    """Whose claim counts among several to one partition."""
    generations = [claimed_generation(member.subscription) for member in claimants]
    newest = max(generations)
    return claimants[generations.index(newest)].member_id if generations.count(newest) == 1 else None


def _target(
    order: Sequence[GroupMember], topics: Mapping[str, TopicDescription], owners: Mapping[TopicPartition, str | None]
) -> Mapping[str, Sequence[TopicPartition]]:
    """Where every partition shall be in the end, whoever holds it now."""
    lists = {member.subscription.topics for member in order}  # most members send the same
    wants = {names: frozenset(topics.keys() & set(names)) for names in lists}
    subscribed = {member.member_id: wants[member.subscription.topics] for member in order}
    partitions = {name: topics[name].partitions for name in sorted(frozenset().union(*wants.values()))}
    if len(set(wants.values())) <= 1:
        return equal_shares(list(subscribed), list(chain.from_iterable(partitions.values())), owners)
    return fair_shares(subscribed, partitions, owners)
