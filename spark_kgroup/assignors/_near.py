"""The rack-aware half of the sticky assignors (KIP-881): balanced first, then near, then with few moves.

A partition is near if it has a replica in its owner's rack. A member without a rack is near to all partitions. Java
gives up the partitions that are far from their owners and deals the rest out with the same priorities. Here the
least-cost flow of `_balance` has a second cost, so that two rounds are enough with racks, too.

Partitions of a topic with replicas in the same racks differ only in their owners: they are a topic of their own here, a
*sort*.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import islice
from operator import itemgetter
from typing import NamedTuple

from spark_kgroup.assignors._balance import MemberTarget, _kinds_of_topics, _Spread
from spark_kgroup.assignors._racks import is_near, racks_of_partitions
from spark_kgroup.model import TopicDescription, TopicPartition


class _Sorts(NamedTuple):
    """Partitions that are alike, sort by sort.

    Attributes:
        partitions: the partitions of each sort.
        kinds: the kind of each sort. Sorts of a kind have the same subscribers and racks.
        subscribers: the subscribers of each kind, by number.
        racks: the racks of each kind.
    """

    partitions: list[list[TopicPartition]]
    kinds: list[int]
    subscribers: list[list[int]]
    racks: list[frozenset[str]]


def near_shares(
    subscribed: Mapping[str, frozenset[str]],
    topics: Mapping[str, TopicDescription],
    held: Mapping[str, frozenset[TopicPartition]],
    racks: Mapping[str, str],
) -> dict[str, MemberTarget]:
    """Spread all partitions over members, of which some have a rack.

    Args:
        subscribed: member id -> the topics it wants, in the order that breaks ties.
        topics: those that at least one member wants.
        held: member id -> the partitions it holds of those topics.
        racks: member id -> its rack.
    """
    members = list(subscribed)
    sorts = _sorts(subscribed, topics)
    sort_of = {partition: t for t, alike in enumerate(sorts.partitions) for partition in alike}
    claimed = [dict(Counter(sort_of[partition] for partition in sorted(held[member]))) for member in members]
    far = [
        frozenset(m for m in those if not is_near(racks, members[m], at))
        for those, at in zip(sorts.subscribers, sorts.racks, strict=True)
    ]
    given = _spread(sorts, claimed, far)
    return _deal_targets(dict(zip(members, given, strict=True)), sorts.partitions, sort_of, held)


def _sorts(subscribed: Mapping[str, frozenset[str]], topics: Mapping[str, TopicDescription]) -> _Sorts:
    names = sorted(topics)
    kinds_of_topics, subscribers = _kinds_of_topics(list(subscribed.values()), names)
    alike: dict[tuple[str, frozenset[str]], list[TopicPartition]] = {}
    kinds: dict[tuple[int, frozenset[str]], int] = {}
    of_sorts: list[int] = []
    for name, of_topic in zip(names, kinds_of_topics, strict=True):
        for partition, racks in zip(topics[name].partitions, racks_of_partitions([topics[name]]), strict=True):
            if (name, racks) not in alike:
                of_sorts.append(kinds.setdefault((of_topic, racks), len(kinds)))
            alike.setdefault((name, racks), []).append(partition)
    return _Sorts(
        list(alike.values()), of_sorts, [subscribers[of_topic] for of_topic, _ in kinds], [racks for _, racks in kinds]
    )


def _spread(
    sorts: _Sorts, claimed: Sequence[dict[int, int]], far: Sequence[frozenset[int]]
) -> Sequence[Mapping[int, int]]:
    """For each member, how many it gets of each sort.

    The first spread gives partitions to near members alone. Where racks have members enough, it is already the answer.
    """
    counts = [len(alike) for alike in sorts.partitions]
    # A kind to which all subscribers are far has to go to them all the same.
    near = [
        [m for m in those if m not in far_ones] or those for those, far_ones in zip(sorts.subscribers, far, strict=True)
    ]
    near_sets = [frozenset(those) for those in near]
    keeps = [{t: n for t, n in own.items() if m in near_sets[sorts.kinds[t]]} for m, own in enumerate(claimed)]
    first = _Spread(counts, sorts.kinds, near, keeps)
    first.hand_out()
    first.level()
    first.cancel_negative_cycles()
    spread = _NearSpread(counts, sorts.kinds, sorts.subscribers, first.given)
    # Moves count from the partitions that members own, and not from the first spread.
    spread.claimed = claimed
    spread.far = far
    # `hand_out` has no partition left: the first spread has given each to a member.
    spread.level()
    spread.cancel_negative_cycles()
    return spread.given


class _NearSpread(_Spread):
    """A spread in which it costs more to be far than to move.

    Attributes:
        far: for each kind, the subscribers that have no replica in their rack.
    """

    far: Sequence[frozenset[int]]

    def __init__(
        self,
        counts: Sequence[int],
        kinds: Sequence[int],
        subscribers: Sequence[Sequence[int]],
        given: Sequence[Mapping[int, int]],
    ) -> None:
        super().__init__(counts, kinds, subscribers, given)
        # One far partition outweighs all moves together, and balance outweighs all far partitions and all moves.
        self._far_cost = 1 + sum(counts)
        self._weight = 1 + sum(counts) * (1 + self._far_cost)

    def _cost_of_far(self, m: int, t: int) -> int:
        return self._far_cost if m in self.far[self.kinds[t]] else 0

    def _relax_topics(self, dist: list[int], via: list[int]) -> bool:
        changed, first_topic = False, len(self.load)
        for m, given in enumerate(self.given):
            own, claimed = dist[m], self.claimed[m]
            for t, count in given.items():
                cost = own - self._cost_of_far(m, t) - (count > claimed.get(t, 0))
                if cost < dist[first_topic + t]:
                    dist[first_topic + t], via[first_topic + t] = cost, m
        for m, claimed in enumerate(self.claimed):
            given = self.given[m]
            for t, count in claimed.items():
                cost = dist[first_topic + t] + self._cost_of_far(m, t)
                if cost < dist[m] and given.get(t, 0) < count:
                    dist[m], via[m], changed = cost, first_topic + t, True
        return changed

    def _relax_kinds(self, dist: list[int], via: list[int]) -> bool:
        changed, first_topic = False, len(self.load)
        first_kind = first_topic + len(self.kinds)
        for node, kind in enumerate(self.kinds, first_topic):
            if dist[node] + 1 < dist[first_kind + kind]:
                dist[first_kind + kind], via[first_kind + kind] = dist[node] + 1, node
        for kind, members in enumerate(self.subscribers):
            least, far = dist[first_kind + kind], self.far[kind]
            for m in members:
                cost = least + self._far_cost if m in far else least
                if cost < dist[m]:
                    dist[m], via[m], changed = cost, first_kind + kind, True
        return changed


def _deal_targets(
    given: Mapping[str, Mapping[int, int]],
    sorts: Sequence[Sequence[TopicPartition]],
    sort_of: Mapping[TopicPartition, int],
    held: Mapping[str, frozenset[TopicPartition]],
) -> dict[str, MemberTarget]:
    """Which member gets which partition: a holder keeps its own, the lowest indexes first, and the rest goes round."""
    lacks: dict[str, dict[int, int]] = {}
    kept: dict[str, frozenset[TopicPartition]] = {}
    for member, counts in given.items():
        left = dict(counts)
        keeps = []
        for partition in sorted(held[member], key=itemgetter(1, 0)):
            if left.get(sort_of[partition]):
                left[sort_of[partition]] -= 1
                keeps.append(partition)
        kept[member], lacks[member] = frozenset(keeps), left
    all_kept = frozenset().union(*kept.values())
    dealt = [iter([partition for partition in alike if partition not in all_kept]) for alike in sorts]
    return {
        member: MemberTarget(own, [p for t, count in lacks[member].items() for p in islice(dealt[t], count)])
        for member, own in kept.items()
    }
