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
from typing import Final

from spark_kgroup.assignors._balance import equal_shares, fair_shares
from spark_kgroup.assignors.contract import RebalanceProtocol, ranked
from spark_kgroup.model import NO_GENERATION, Assignment, GroupMember, Subscription, TopicDescription, TopicPartition

_USER_DATA: Final = struct.Struct(">i")
"""The generation as int32 (Java: COOPERATIVE_STICKY_ASSIGNOR_USER_DATA_V0)."""

_Claims = Mapping[TopicPartition, Sequence[GroupMember]]


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
        claims = _claims(order)
        owners = _owners(claims)
        target = _target(order, topics, owners)
        return {
            member_id: frozenset(
                partition
                for partition in share
                if _may_have(member_id, owners.get(partition), claims.get(partition, ()))
            )
            for member_id, share in target.items()
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


def _claims(members: Sequence[GroupMember]) -> _Claims:
    claims: dict[TopicPartition, list[GroupMember]] = defaultdict(list)
    for member in members:
        for partition in member.subscription.owned:
            claims[partition].append(member)
    return claims


def _owners(claims: _Claims) -> dict[TopicPartition, str]:
    """The member id whose claim counts, for each partition that has one.

    A lone claim counts in any generation: a member that missed a round still holds what it held. Two claims in the
    highest generation cannot both be true, so neither counts (Java: allSubscriptionsEqual).
    """
    owners = {}
    for partition, claimants in claims.items():
        if len(claimants) == 1:
            owners[partition] = claimants[0].member_id
            continue
        generations = [claimed_generation(member.subscription) for member in claimants]
        newest = max(generations)
        if generations.count(newest) == 1:
            owners[partition] = claimants[generations.index(newest)].member_id
    return owners


def _target(
    order: Sequence[GroupMember], topics: Mapping[str, TopicDescription], owners: Mapping[TopicPartition, str]
) -> Mapping[str, Sequence[TopicPartition]]:
    """Where every partition shall be in the end, whoever holds it now."""
    subscribed = {member.member_id: topics.keys() & set(member.subscription.topics) for member in order}
    wanted = sorted(set().union(*subscribed.values()))
    if all(len(names) == len(wanted) for names in subscribed.values()):
        return equal_shares(list(subscribed), [tp for name in wanted for tp in topics[name].partitions], owners)
    return fair_shares(subscribed, {name: topics[name].partitions for name in wanted}, owners)


def _may_have(member_id: str, owner: str | None, claimants: Sequence[GroupMember]) -> bool:
    """Whether a partition can be given to `member_id` in this round: it owns it, or no other member claims it."""
    return member_id == owner or all(claimant.member_id == member_id for claimant in claimants)
