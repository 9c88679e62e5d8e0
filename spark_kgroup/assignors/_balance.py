"""The heart of the sticky assignors: spread partitions over members, balanced first, then with few moves.

Balanced means: the sum of the squares of the members' loads is the least possible, so no partition, and no chain of
partitions, can go from one member to another that has at least two less. Where all subscriptions are equal that is
a difference of at most one. A move is a partition that does not stay with its owner.

`equal_shares` is for equal subscriptions and takes time in proportion to the partitions (Java:
ConstrainedAssignmentBuilder, same outcome). `fair_shares` takes any subscriptions (Java: GeneralAssignmentBuilder, a
heuristic). Here it is a least-cost flow from topics to members, and exact. Because it is exact, two rounds are enough:
once the members have given up the partitions that were in the way, the remaining claims are part of a best target, so a
best target moves none of them.

Most partitions of most groups stay where they are, and with a million of them even one line of Python for each takes
noticeable time: the set of a member's partitions stays as it is, and only the partitions that change hands are looked
at one by one.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from heapq import heapify, heappop, heappush, heapreplace
from itertools import chain, islice
from operator import itemgetter
from typing import NamedTuple

from spark_kgroup.limits import ASSIGNOR_STEPS_MAX
from spark_kgroup.model import TopicPartition

_Offers = list[tuple[int, list[tuple[bool, int, int]], int]]


class MemberTarget(NamedTuple):
    """The partitions of one member in the target: those it held and keeps, and those it gains."""

    kept: frozenset[TopicPartition]
    gained: Sequence[TopicPartition]


def equal_shares(
    held: Mapping[str, frozenset[TopicPartition]], free: Mapping[str, Sequence[TopicPartition]]
) -> dict[str, MemberTarget]:
    """Spread all partitions over members that all subscribe to all of the topics.

    Every member keeps what it holds up to its quota, the lowest indexes first so that topics stay mixed. With n
    partitions and m members the quota is n // m, and one more for the first n % m members that hold so many. The rest
    goes round, first to those below the quota.

    Args:
        held: member id -> the partitions it holds, in the order that breaks ties.
        free: topic -> its partitions without a holder, by index.
    """
    if not held:
        return {}
    rest = list(chain.from_iterable(of_topic for _, of_topic in sorted(free.items())))
    base, extra = divmod(len(rest) + sum(map(len, held.values())), len(held))
    kept: dict[str, frozenset[TopicPartition]] = {}
    lacks: dict[str, int] = {}
    level: list[str] = []
    unfit: list[TopicPartition] = []
    for member, own in held.items():
        above = extra > 0 and len(own) > base
        extra -= above
        quota = base + above
        kept[member] = own
        if len(own) > quota:
            by_index = sorted(own, key=itemgetter(1, 0))
            kept[member] = frozenset(by_index[:quota])
            unfit += by_index[quota:]
        if len(own) < base:
            lacks[member] = base - len(own)
        elif not above:
            level.append(member)
    # `free` came in order, so only partitions that were taken away from members make a sort necessary.
    if unfit:
        rest += unfit
        rest.sort()
    gained = _deal(rest, lacks, level)
    return {member: MemberTarget(own, gained.get(member, ())) for member, own in kept.items()}


def _deal(
    partitions: Sequence[TopicPartition], lacks: Mapping[str, int], level: Sequence[str]
) -> dict[str, list[TopicPartition]]:
    """Deal out one by one: in rounds to the members that lack some, then one more each to `level` and to those members.

    While no player drops out, each of n players gets every n-th partition.
    """
    hands: dict[str, list[TopicPartition]] = {member: [] for member in lacks}
    at, players, last = 0, dict(lacks), list(level)
    while players:
        rounds = min(players.values())
        end = at + rounds * len(players)
        for seat, member in enumerate(players):
            hands[member] += partitions[at + seat : end : len(players)]
        last += [member for member, lack in players.items() if lack == rounds]
        players = {member: lack - rounds for member, lack in players.items() if lack > rounds}
        at = end
    # The remainder of the division is left: not every member gets one more.
    for member, partition in zip(last, partitions[at:], strict=False):
        hands.setdefault(member, []).append(partition)
    return hands


def fair_shares(
    subscribed: Mapping[str, Collection[str]],
    held: Mapping[str, frozenset[TopicPartition]],
    free: Mapping[str, Sequence[TopicPartition]],
) -> dict[str, MemberTarget]:
    """Spread all partitions over members that want different topics.

    Args:
        subscribed: member id -> the topics it wants, in the order that breaks ties.
        held: member id -> the partitions it holds of those topics.
        free: topic -> its partitions without a holder, by index. It has every topic, and at least one member wants
            each.

    Returns:
        The best target. For groups beyond any seen (ASSIGNOR_STEPS_MAX) the search may stop early: the target is then
        complete and valid, but perhaps not the best.
    """
    names = sorted(free)
    numbers = {name: t for t, name in enumerate(names)}
    kinds, subscribers = _kinds_of_topics(list(subscribed.values()), names)
    claimed = [
        # Sorted, because the order of a frozenset changes with the hash seed, and the order of these entries breaks
        # ties.
        {numbers[name]: count for name, count in sorted(Counter(map(itemgetter(0), held[member])).items())}
        for member in subscribed
    ]
    counts = [len(free[name]) for name in names]
    for of_member in claimed:
        for t, count in of_member.items():
            counts[t] += count
    spread = _Spread(counts, kinds, subscribers, claimed)
    spread.hand_out()
    spread.level()
    spread.cancel_negative_cycles()
    return _deal_targets(dict(zip(subscribed, spread.given, strict=True)), numbers, held, free)


def _kinds_of_topics(wants: Sequence[Collection[str]], names: Sequence[str]) -> tuple[list[int], list[list[int]]]:
    """The kind of each topic, and the subscribers of each kind: topics of a kind have the same subscribers."""
    alike: dict[frozenset[str], list[int]] = defaultdict(list)
    for m, topics in enumerate(wants):
        alike[frozenset(topics)].append(m)
    wanted_by: dict[str, list[int]] = defaultdict(list)
    for c, topics in enumerate(alike):
        for name in topics:
            wanted_by[name].append(c)
    numbers: dict[tuple[int, ...], int] = {}
    kinds = [numbers.setdefault(tuple(wanted_by[name]), len(numbers)) for name in names]
    members = list(alike.values())
    return kinds, [sorted(m for c in classes for m in members[c]) for classes in numbers]


def _deal_targets(
    given: Mapping[str, Mapping[int, int]],
    numbers: Mapping[str, int],
    held: Mapping[str, frozenset[TopicPartition]],
    free: Mapping[str, Sequence[TopicPartition]],
) -> dict[str, MemberTarget]:
    """Which member gets which partition: a holder keeps its own, the lowest indexes first, and the rest goes round."""
    kept: dict[str, frozenset[TopicPartition]] = {}
    lacks: dict[str, dict[int, int]] = {}
    rest = {numbers[name]: list(of_topic) for name, of_topic in free.items()}
    for member, counts in given.items():
        left = dict(counts)
        unfit = []
        for partition in sorted(held[member], key=itemgetter(1)):
            t = numbers[partition.topic]
            if left.get(t):
                left[t] -= 1
            else:
                unfit.append(partition)
                rest[t].append(partition)
        kept[member] = held[member].difference(unfit)
        lacks[member] = left
    dealt = {t: iter(sorted(of_topic)) for t, of_topic in rest.items()}
    return {
        member: MemberTarget(own, [p for t, count in lacks[member].items() for p in islice(dealt[t], count)])
        for member, own in kept.items()
    }


class _Spread:
    """How many partitions of each topic each member gets: partitions of a topic differ only in their owners.

    Topics, members and kinds of topics are numbers here. Memory grows with the partitions, the members and the
    subscribers of each kind, never with members times topics: if two members want nearly the same 1,000 topics, no step
    looks at the subscribers of each topic separately.

    Attributes:
        kinds: for each topic, its kind.
        subscribers: for each kind, the members that want its topics.
        claimed: for each member, topic -> how many of its partitions that member owns.
        given: for each member, topic -> how many it gets. Up to `claimed` these stay, beyond they move.
        load: for each member, how many partitions it gets of all topics.
        steps: how many heap entries and arcs were looked at.
    """

    def __init__(
        self,
        counts: Sequence[int],
        kinds: Sequence[int],
        subscribers: Sequence[Sequence[int]],
        claimed: Sequence[Mapping[int, int]],
    ) -> None:
        self.kinds = kinds
        self.subscribers = subscribers
        self.claimed = claimed
        self.given = [dict(of_member) for of_member in claimed]
        self.load = [sum(of_member.values()) for of_member in claimed]
        self.steps = 0
        self._left = list(counts)
        for of_member in claimed:
            for t, count in of_member.items():
                self._left[t] -= count
        # For each kind, (load, subscriber), the least loaded first. Loads may have grown since: see `_least_loaded`.
        self._least = [[(self.load[m], m) for m in members] for members in subscribers]
        for heap in self._least:
            heapify(heap)
        # Balance outweighs all moves together.
        self._weight = 1 + sum(counts)

    def hand_out(self) -> None:
        """Give each unowned partition to its least loaded subscriber, topics with the fewest subscribers first."""
        # Topics with many subscribers come last, because they can even out the loads that the first ones leave.
        for t in sorted(range(len(self.kinds)), key=lambda t: len(self.subscribers[self.kinds[t]])):
            for _ in range(self._left[t]):
                self._add(t, self._least_loaded(self.kinds[t]), 1)

    def level(self) -> None:
        """Move single partitions from the most loaded members to subscribers that have at least two less.

        This finds most of the balance quickly, and `settle` finds the rest. The load of the members that still give
        falls from step to step, so a member that gave never takes: it has at most one less than the next giver.
        """
        offers: dict[int, _Offers] = {}
        lowest = min(self.load)
        donors = [(-load, m) for m, load in enumerate(self.load)]
        heapify(donors)
        while self.steps < ASSIGNOR_STEPS_MAX:
            load, m = heappop(donors)
            if -load <= lowest + 1:  # the entry of the lowest stays in the heap until here: it is never empty
                return
            # The load has changed since: the heap has another entry with the present one.
            if -load != self.load[m]:
                continue
            if m not in offers:
                offers[m] = self._offers(m)
            taker = self._hand_on(m, offers[m])
            # A member that finds no taker now finds none later, since the loads of takers only grow.
            if taker is not None:
                heappush(donors, (-self.load[m], m))
                heappush(donors, (-self.load[taker], taker))

    def cancel_negative_cycles(self) -> None:
        """Cancel cycles of negative cost until there is none: then no spread is better (Klein's algorithm).

        Each cycle improves a whole number that cannot fall below zero, so this ends. ASSIGNOR_STEPS_MAX bounds it.

        The nodes of the residual graph are the members, the topics, the kinds and one sink. An arc from a topic to a
        member stands for giving the member one more of its own partitions, at no cost. One more that it does not own
        costs a move and goes by the topic's kind, so that not every topic needs an arc to every subscriber. An arc from
        a member to a topic stands for taking one back, one to the sink for a load that grows, one from it for one that
        shrinks.

        A pass over the arcs hands on each lower cost: from loads to topics, from topics to kinds. Only members that
        topics or kinds made cheaper are left to the next pass. Without any there is no cycle to be found.
        """
        size = len(self.load) + len(self.kinds) + len(self.subscribers) + 1
        # With every node at no cost to begin with, a cycle is found wherever it lies, without a source that reaches
        # all.
        dist, via = [0] * size, [-1] * size
        while self.steps < ASSIGNOR_STEPS_MAX:
            self.steps += self._arcs()
            self._relax_loads(dist, via)
            changed = [self._relax_topics(dist, via), self._relax_kinds(dist, via)]
            if not any(changed):
                return
            # A cycle among predecessors has a negative cost. To look for one after each pass spares the many passes
            # after which the costs alone would prove it.
            cycle = _cycle_in(via)
            if cycle:
                self._shift(cycle)
                via = [-1] * size  # the distances stay: any are a start, and these are near the next cycle

    def _arcs(self) -> int:
        """How many arcs a pass looks at."""
        of_topics = sum(len(of_member) for of_member in chain(self.given, self.claimed))
        return 2 * len(self.load) + of_topics + len(self.kinds) + sum(map(len, self.subscribers))

    def _least_loaded(self, kind: int) -> int:
        """The subscriber with the least load.

        An entry that is out of date is put right when it comes to the top. That is early enough where loads only grew:
        then no other entry is too high. Loads fell only of members that give in `level`, and those have too much to be
        takers there.
        """
        heap, load = self._least[kind], self.load
        known, m = heap[0]
        while known != load[m]:
            heapreplace(heap, (load[m], m))
            self.steps += 1
            known, m = heap[0]
        self.steps += 1
        return m

    def _add(self, t: int, m: int, count: int) -> None:
        self.load[m] += count
        self.given[m][t] = self.given[m].get(t, 0) + count
        if not self.given[m][t]:
            del self.given[m][t]

    def _offers(self, m: int) -> _Offers:
        """The topics `m` may hand on, as a heap of (load of the least loaded subscriber, topics of a kind, kind).

        The topics are a heap too, of `_offer`. Two such heaps are compared by their first entries.
        """
        topics: dict[int, list[tuple[bool, int, int]]] = defaultdict(list)
        for t, count in self.given[m].items():
            topics[self.kinds[t]].append(self._offer(m, t, count))
            self.steps += 1
        for heap in topics.values():
            heapify(heap)
        offers = [(self.load[self._least_loaded(kind)], heap, kind) for kind, heap in topics.items()]
        heapify(offers)
        return offers

    def _offer(self, m: int, t: int, count: int) -> tuple[bool, int, int]:
        """Sorts first by saving a move, then by how many `m` has: (whether it owns all, minus how many, topic)."""
        return count <= self.claimed[m].get(t, 0), -count, t

    def _hand_on(self, m: int, offers: _Offers) -> int | None:
        """Give the best of `offers` to its least loaded subscriber and return that, or None unless it has two less."""
        while offers:
            known, topics, kind = offers[0]
            taker = self._least_loaded(kind)
            if known != self.load[taker]:
                heapreplace(offers, (self.load[taker], topics, kind))
                continue
            if known > self.load[m] - 2:
                return None
            t = topics[0][-1]
            self._add(t, m, -1)
            self._add(t, taker, 1)
            if count := self.given[m].get(t):
                heapreplace(topics, self._offer(m, t, count))
            else:
                heappop(topics)
            if topics:
                heapreplace(offers, (known, topics, kind))
            else:
                heappop(offers)
            return taker
        return None

    # A pass of Bellman and Ford over the residual graph has three parts.

    def _relax_loads(self, dist: list[int], via: list[int]) -> None:
        sink = len(dist) - 1
        for m, load in enumerate(self.load):
            # (load + 1)^2 - load^2: by so much one partition more raises the sum of squares. The next loop has the
            # saving of one partition less.
            if (cost := dist[m] + self._weight * (2 * load + 1)) < dist[sink]:
                dist[sink], via[sink] = cost, m
        for m, load in enumerate(self.load):
            if load and (cost := dist[sink] - self._weight * (2 * load - 1)) < dist[m]:
                dist[m], via[m] = cost, sink

    def _relax_topics(self, dist: list[int], via: list[int]) -> bool:
        """Returns whether a member became cheaper."""
        changed, first_topic = False, len(self.load)
        for m, given in enumerate(self.given):
            own, claimed = dist[m], self.claimed[m]
            for t, count in given.items():
                # To take back a partition that the member did not own saves a move.
                cost = own - 1 if count > claimed.get(t, 0) else own
                if cost < dist[first_topic + t]:
                    dist[first_topic + t], via[first_topic + t] = cost, m
        for m, claimed in enumerate(self.claimed):
            given = self.given[m]
            for t, count in claimed.items():
                if dist[first_topic + t] < dist[m] and given.get(t, 0) < count:
                    dist[m], via[m], changed = dist[first_topic + t], first_topic + t, True
        return changed

    def _relax_kinds(self, dist: list[int], via: list[int]) -> bool:
        """Returns whether a member became cheaper."""
        changed, first_topic = False, len(self.load)
        first_kind = first_topic + len(self.kinds)
        for node, kind in enumerate(self.kinds, first_topic):
            if dist[node] + 1 < dist[first_kind + kind]:
                dist[first_kind + kind], via[first_kind + kind] = dist[node] + 1, node
        for node, members in enumerate(self.subscribers, first_kind):
            least = dist[node]
            for m in members:
                if least < dist[m]:
                    dist[m], via[m], changed = least, node, True
        return changed

    def _shift(self, cycle: Sequence[int]) -> None:
        """Send one partition along every arc of `cycle` (nodes in the order of the arcs)."""
        first_topic = len(self.load)
        first_kind = first_topic + len(self.kinds)
        sink = first_kind + len(self.subscribers)
        for at, m in enumerate(cycle):
            if m >= first_topic:
                continue
            before, after = cycle[at - 1], cycle[(at + 1) % len(cycle)]
            # A kind stands between a topic and a member that did not own the partition: the topic is one node further
            # back.
            if first_kind <= before < sink:
                before = cycle[at - 2]
            if before != sink:
                self._add(before - first_topic, m, 1)
            if after != sink:
                self._add(after - first_topic, m, -1)


def _cycle_in(via: Sequence[int]) -> list[int]:
    """A cycle among the predecessors `via`, in the order of its arcs; empty if there is none."""
    seen_from = [-1] * len(via)
    for start in range(len(via)):
        node = start
        while node >= 0 and seen_from[node] < 0:
            seen_from[node] = start
            node = via[node]
        if node >= 0 and seen_from[node] == start:  # a way came back to where it has been
            cycle = [node]
            while via[cycle[-1]] != node:
                cycle.append(via[cycle[-1]])
            return cycle[::-1]
    return []
