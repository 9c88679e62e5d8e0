"""The `cooperative-sticky` assignor: balanced first, then as few moves as possible, and never two owners at a time.

Source: KIP-429; Kafka's CooperativeStickyAssignor and AbstractStickyAssignor. One round has three steps:

1. The owners now. Members claim the partitions they hold. Where claims collide, the one with the highest generation
   wins, and two in the same generation both lose (KIP-792).
2. The target: `_balance` spreads all partitions, keeping owners where balance allows.
3. The hand-over: a partition that another member still claims stays unassigned in this round. Its claimant sees it
   missing, gives it up and rejoins, and in the next round it is free. So two rounds settle any change.

This differs from Java on purpose: ties are broken by instance id, not by the member id that a static restart changes.
The outcome does not depend on the order in which members are listed. Unequal subscriptions get a target that is proven
best (Java's is a heuristic that may need up to four rounds). So do racks (`_near`).
"""

from __future__ import annotations

import struct
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import filterfalse
from typing import Final, NamedTuple

from spark_kgroup.assignors._balance import MemberTarget, equal_shares, fair_shares
from spark_kgroup.assignors._near import near_shares
from spark_kgroup.assignors._racks import racks_matter, racks_of_members, racks_of_partitions
from spark_kgroup.assignors.contract import RebalanceProtocol, ranked
from spark_kgroup.model import (
    NO_GENERATION,
    Assignment,
    GroupMember,
    Subscription,
    TopicDescription,
    TopicPartition,
    partitions_of,
)
from spark_kgroup.uncollected import uncollected

_USER_DATA: Final = struct.Struct(">i")
"""The generation as int32 (Java: COOPERATIVE_STICKY_ASSIGNOR_USER_DATA_V0)."""


class Target(NamedTuple):
    """Where every partition shall be in the end.

    Attributes:
        shares: member id -> the partitions it keeps and those it gains.
        withheld: partitions that must stay unassigned in this round: a member claims them that does not keep them.
    """

    shares: Mapping[str, MemberTarget]
    withheld: frozenset[TopicPartition]


class CooperativeStickyAssignor:
    """Incremental and sticky, the default."""

    name = "cooperative-sticky"
    protocol = RebalanceProtocol.COOPERATIVE

    def user_data(self, owned: frozenset[TopicPartition], generation: int) -> bytes | None:  # owned has its own field
        """The generation: subscriptions before version 2 have no field for it."""
        del owned
        return _USER_DATA.pack(generation)

    @uncollected()
    def assign(self, members: Sequence[GroupMember], topics: Mapping[str, TopicDescription]) -> Assignment:
        """One round: each member's kept partitions, and those of its gains that no other member still claims."""
        shares, withheld = compute_target(members, topics)
        return {
            member_id: kept.union(filterfalse(withheld.__contains__, gained) if withheld else gained)
            for member_id, (kept, gained) in shares.items()
        }

    def target(self, members: Sequence[GroupMember], topics: Mapping[str, TopicDescription]) -> Target:
        """Where every partition shall be in the end, regardless of its holder now."""
        return compute_target(members, topics)


def claimed_generation(subscription: Subscription) -> int:
    """The generation in which a member was assigned its claims, -1 if its subscription does not name one.

    Version 2 and later have a field. Before, Java's members put it in the user data (Java:
    CooperativeStickyAssignor.memberData). librdkafka's user data is of another shape and longer. Java reads its first
    four bytes, a count of topics, as a generation. Here only four bytes are a generation.
    """
    if subscription.generation != NO_GENERATION:
        return subscription.generation
    if subscription.user_data is None or len(subscription.user_data) != _USER_DATA.size:
        return NO_GENERATION
    (generation,) = _USER_DATA.unpack(subscription.user_data)
    return int(generation)


def compute_target(members: Sequence[GroupMember], topics: Mapping[str, TopicDescription]) -> Target:
    """Where every partition shall be in the end, regardless of its holder now."""
    order = ranked(members)
    lists = {member.subscription.topics for member in order}  # most members send the same
    wants = {names: frozenset(topics.keys() & set(names)) for names in lists}
    subscribed = {member.member_id: wants[member.subscription.topics] for member in order}
    counts = {name: topics[name].partition_count for name in frozenset().union(*wants.values())}
    claims = {member.member_id: member.subscription.owned for member in order}
    held, taken = _held(order, subscribed, counts)
    free = {
        name: partitions_of(name, filterfalse(taken[name].__contains__, range(count))) for name, count in counts.items()
    }
    racks = racks_of_members(order)
    if racks and racks_matter(racks.values(), racks_of_partitions(topics[name] for name in counts)):
        shares = near_shares(subscribed, {name: topics[name] for name in counts}, held, racks)
    elif len(set(wants.values())) <= 1:
        shares = equal_shares(held, free)
    else:
        shares = fair_shares(subscribed, held, free)
    return Target(shares, _still_claimed(claims, shares))


def _held(
    order: Sequence[GroupMember], subscribed: Mapping[str, frozenset[str]], counts: Mapping[str, int]
) -> tuple[dict[str, frozenset[TopicPartition]], defaultdict[str, set[int]]]:
    """The partitions each member holds: its claims that count and are for partitions that it may have.

    In a group at rest these are all claims. Then the sets, of a million partitions perhaps, are not copied.

    Returns:
        Member id -> its held partitions, and topic -> the indexes of all its held partitions.
    """
    claims = {member.member_id: member.subscription.owned for member in order}
    claimed = _indexes(claims.values())
    # Fewer partitions than claims: at least two members claim the same one.
    if sum(map(len, claimed.values())) < sum(map(len, claims.values())):
        claims = undisputed_claims(order)
        claimed = _indexes(claims.values())
    exist = all(name in counts and min(found) >= 0 and max(found) < counts[name] for name, found in claimed.items())
    if exist and all(claimed.keys() <= names for names in set(subscribed.values())):
        return claims, claimed
    held = {
        member_id: frozenset(
            [tp for tp in own if tp.topic in subscribed[member_id] and 0 <= tp.partition < counts[tp.topic]]
        )
        for member_id, own in claims.items()
    }
    return held, _indexes(held.values())


def _indexes(sets: Iterable[frozenset[TopicPartition]]) -> defaultdict[str, set[int]]:
    """Topic -> the indexes of its partitions in any of `sets`."""
    found: defaultdict[str, set[int]] = defaultdict(set)
    for partitions in sets:
        for name, index in partitions:
            found[name].add(index)
    return found


def undisputed_claims(members: Sequence[GroupMember]) -> dict[str, frozenset[TopicPartition]]:
    """Each member's claims, without those that do not count.

    A lone claim counts in any generation: a member that missed a round still holds its partitions. Two claims in the
    highest generation cannot both be true, so neither counts (Java: allSubscriptionsEqual).
    """
    claims = {member.member_id: member.subscription.owned for member in members}
    if len(frozenset[TopicPartition]().union(*claims.values())) == sum(map(len, claims.values())):
        return claims
    claimants: dict[TopicPartition, list[GroupMember]] = defaultdict(list)
    for member in members:
        for partition in member.subscription.owned:
            claimants[partition].append(member)
    lost: dict[str, list[TopicPartition]] = {member.member_id: [] for member in members}
    for partition, those in claimants.items():
        if len(those) > 1:
            holder = _holder(those)
            for member in those:
                if member.member_id != holder:
                    lost[member.member_id].append(partition)
    return {member.member_id: member.subscription.owned.difference(lost[member.member_id]) for member in members}


def add_claims(
    topics: Collection[str], assignment: Mapping[str, frozenset[TopicPartition]], members: Sequence[GroupMember]
) -> dict[str, frozenset[TopicPartition]]:
    """`assignment`, and in it each member's undisputed claims of those of `topics` to which it subscribes.

    For topics that the leader may not see (TOPIC_AUTHORIZATION_FAILED): it cannot tell how many partitions they have,
    and must not take them from members that read them.
    """
    claims = undisputed_claims(members)
    return {
        member.member_id: assignment[member.member_id]
        | {tp for tp in claims[member.member_id] if tp.topic in topics and tp.topic in member.subscription.topics}
        for member in members
    }


def _holder(claimants: Sequence[GroupMember]) -> str | None:
    """The member whose claim counts among several to one partition, or None if the newest generation has two."""
    generations = [claimed_generation(member.subscription) for member in claimants]
    newest = max(generations)
    return claimants[generations.index(newest)].member_id if generations.count(newest) == 1 else None


def _still_claimed(
    claims: Mapping[str, frozenset[TopicPartition]], shares: Mapping[str, MemberTarget]
) -> frozenset[TopicPartition]:
    """The partitions that a member claims and does not keep: they must stay unassigned in this round."""
    # Most members keep the very set that they claim, and a large set need not be compared with itself.
    given_up = [own - shares[member].kept for member, own in claims.items() if own is not shares[member].kept]
    return frozenset().union(*given_up)
