"""The heart of the sticky assignors: spread partitions over members, balanced first, then with few moves.

Balanced means: the sum of the squares of the members' loads is the least possible, so no partition, and no chain of
partitions, can go from one member to another that has at least two less. Where all subscriptions are equal that is
a difference of at most one. A move is a partition that does not stay with its owner.

`equal_shares` is for equal subscriptions and takes time in proportion to the partitions (Java:
ConstrainedAssignmentBuilder, same outcome). `fair_shares` takes any subscriptions (Java: GeneralAssignmentBuilder, a
heuristic); here it is a least-cost flow from topics to members, and exact. Exactness is what makes two rounds enough:
when what was in the way has been given up, the remaining claims are part of a best target, so a best target
moves none of them.

Owners may name partitions that do not exist and topics a member no longer wants: these count for nothing.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Collection, Mapping, Sequence
from heapq import heapify, heappop, heappush

from spark_kgroup.limits import ASSIGNOR_STEPS_MAX
from spark_kgroup.model import TopicPartition

_Shares = dict[str, list[TopicPartition]]


def equal_shares(
    members: Sequence[str], partitions: Sequence[TopicPartition], owners: Mapping[TopicPartition, str]
) -> _Shares:
    """Spread `partitions` over `members`, who all want all of them.

    Every member keeps what it owns up to its quota, the lowest indexes first so that topics stay mixed. With n
    partitions and m members the quota is n // m, and one more for the first n % m members that own so many. The rest
    goes round, first to those below the quota.

    Args:
        members: in the order that breaks ties.
        partitions: in the order in which free ones are handed out.
        owners: the member that owns a partition now.
    """
    if not members:
        return {}
    owned: _Shares = {member: [] for member in members}
    for partition in partitions:
        owner = owners.get(partition)
        if owner is not None:
            owned[owner].append(partition)
    base, extra = divmod(len(partitions), len(members))
    shares: _Shares = {}
    short, level = deque[str](), deque[str]()
    for member in members:
        claimed = sorted(owned[member], key=lambda tp: (tp.partition, tp.topic))
        above = extra > 0 and len(claimed) > base
        extra -= above
        shares[member] = claimed[: base + above]
        if not above:
            (short if len(claimed) < base else level).append(member)
    kept = {partition for share in shares.values() for partition in share}
    for partition in partitions:
        if partition not in kept:
            member = short.popleft() if short else level.popleft()
            shares[member].append(partition)
            if len(shares[member]) <= base:
                (short if len(shares[member]) < base else level).append(member)
    return shares


def fair_shares(
    subscribed: Mapping[str, Collection[str]],
    partitions: Mapping[str, Sequence[TopicPartition]],
    owners: Mapping[TopicPartition, str],
) -> _Shares:
    """Spread `partitions` over members that want different topics.

    Args:
        subscribed: member id -> the topics it wants, in the order that breaks ties.
        partitions: topic -> its partitions; every topic is wanted by somebody.
        owners: the member that owns a partition now.

    Returns:
        The best target. For groups beyond any seen (ASSIGNOR_STEPS_MAX) the search may stop early: the target is then
        complete and valid, but perhaps not the best.
    """
    members, names = list(subscribed), list(partitions)
    owned: dict[tuple[str, str], list[TopicPartition]] = defaultdict(list)
    for partition in (tp for name in names for tp in partitions[name]):
        owner = owners.get(partition)
        if owner is not None and partition.topic in subscribed[owner]:
            owned[owner, partition.topic].append(partition)
    spread = _Spread(
        members=len(members),
        counts=[len(partitions[name]) for name in names],
        claimed=[
            {m: len(owned[who, name]) for m, who in enumerate(members) if name in subscribed[who]} for name in names
        ],
    )
    spread.hand_out()
    spread.level()
    spread.settle()
    shares: _Shares = {member: [] for member in members}
    for name, given in zip(names, spread.given, strict=True):
        kept = {m: owned[members[m], name][:count] for m, count in given.items()}
        stay = {partition for share in kept.values() for partition in share}
        free = iter([partition for partition in partitions[name] if partition not in stay])
        for m, count in given.items():
            shares[members[m]] += kept[m] + [next(free) for _ in range(count - len(kept[m]))]
    return shares


class _Spread:
    """How many partitions of each topic each member gets: partitions of a topic differ only in who owns them.

    Topics and members are numbers here, in the order that breaks ties.

    Attributes:
        claimed: for each topic, subscriber -> how many of its partitions that member owns.
        given: for each topic, subscriber -> how many it gets. Up to `claimed` these stay, beyond they move.
        load: for each member, how many partitions it gets of all topics.
    """

    def __init__(self, members: int, counts: Sequence[int], claimed: Sequence[Mapping[int, int]]) -> None:
        self.claimed = claimed
        self.given = [dict(of_topic) for of_topic in claimed]
        self.load = [0] * members
        for of_topic in claimed:
            for m, count in of_topic.items():
                self.load[m] += count
        self._left = [count - sum(of_topic.values()) for count, of_topic in zip(counts, claimed, strict=True)]
        self._topics_of: list[list[int]] = [[] for _ in self.load]
        for t, of_topic in enumerate(claimed):
            for m in of_topic:
                self._topics_of[m].append(t)
        # For each topic, (load, subscriber) with the least loaded first; entries of an earlier load are stale.
        self._least = [[(self.load[m], m) for m in of_topic] for of_topic in claimed]
        for heap in self._least:
            heapify(heap)
        # Balance outweighs all moves together.
        self._weight = 1 + sum(counts)

    def hand_out(self) -> None:
        """Give what nobody owns to the least loaded subscriber, topics with the fewest subscribers first."""
        for t in sorted(range(len(self.given)), key=lambda t: (len(self.given[t]), t)):
            for _ in range(self._left[t]):
                self._add(t, self._least_loaded(t), 1)

    def level(self) -> None:
        """Move single partitions from the most loaded members to subscribers that have at least two less.

        This finds most of the balance, quickly; `settle` finds the rest.
        """
        donors = [(-load, m) for m, load in enumerate(self.load)]
        heapify(donors)
        while donors:
            load, m = heappop(donors)
            if -load != self.load[m]:
                continue
            choices = [(self._least_loaded(t), t) for t in self._topics_of[m] if self.given[t][m]]
            choices = [(to, t) for to, t in choices if self.load[to] <= self.load[m] - 2]
            if choices:
                to, t = min(
                    choices, key=lambda c: (self.load[c[0]], self._moves(c[1], m, c[0]), -self.given[c[1]][m], c)
                )
                self._add(t, m, -1)
                self._add(t, to, 1)
                heappush(donors, (-self.load[m], m))
                heappush(donors, (-self.load[to], to))

    def settle(self) -> None:
        """Cancel cycles of negative cost until there is none: then no spread is better (Klein's algorithm).

        Each cycle improves a whole number that cannot fall below zero, so this ends; ASSIGNOR_STEPS_MAX bounds it.
        """
        size = len(self.load) + len(self.given) + 1
        arcs = 2 * (len(self.load) + sum(len(of_topic) for of_topic in self.given))
        dist, came = [0] * size, [-1] * size
        for _ in range(ASSIGNOR_STEPS_MAX // arcs):
            if not self._relax(dist, came):
                return
            cycle = _cycle_in(came)
            if cycle:
                self._shift(cycle)
                dist, came = [0] * size, [-1] * size

    def _least_loaded(self, t: int) -> int:
        heap = self._least[t]
        while heap[0][0] != self.load[heap[0][1]]:
            heappop(heap)
        return heap[0][1]

    def _add(self, t: int, m: int, count: int) -> None:
        self.given[t][m] += count
        self.load[m] += count
        for other in self._topics_of[m]:
            heappush(self._least[other], (self.load[m], m))

    def _moves(self, t: int, giver: int, taker: int) -> int:
        """How many more partitions move if `giver` hands one of topic `t` to `taker`: -1, 0 or 1."""
        return self._take(t, taker) + self._give(t, giver)

    def _take(self, t: int, m: int) -> int:
        """Moves that one more of topic `t` costs at `m`: none while it gets back its own."""
        return 0 if self.given[t][m] < self.claimed[t][m] else 1

    def _give(self, t: int, m: int) -> int:
        """Moves that one less of topic `t` costs at `m`: one is saved while it has more than its own."""
        return -1 if self.given[t][m] > self.claimed[t][m] else 0

    def _relax(self, dist: list[int], came: list[int]) -> bool:
        """One pass of Bellman and Ford over the residual graph; whether anything became cheaper.

        Nodes are the members, then the topics, then one sink. An arc from a topic to a member stands for giving it one
        more, the reverse for taking one back; an arc to the sink for a load that grows, from it for one that shrinks.
        """
        changed = False
        first_topic, sink = len(self.load), len(dist) - 1

        def arc(source: int, target: int, cost: int) -> None:
            nonlocal changed
            if dist[source] + cost < dist[target]:
                dist[target] = dist[source] + cost
                came[target] = source
                changed = True

        for m, load in enumerate(self.load):
            arc(m, sink, self._weight * (2 * load + 1))
            if load:
                arc(sink, m, -self._weight * (2 * load - 1))
        for t, given in enumerate(self.given):
            for m, count in given.items():
                if count:
                    arc(m, first_topic + t, self._give(t, m))
            for m in given:
                arc(first_topic + t, m, self._take(t, m))
        return changed

    def _shift(self, cycle: Sequence[int]) -> None:
        """Send one partition along every arc of `cycle` (nodes in the order of the arcs)."""
        first_topic, sink = len(self.load), len(self.load) + len(self.given)
        for source, target in zip(cycle, [*cycle[1:], cycle[0]], strict=True):
            if sink in (source, target):
                continue
            if source >= first_topic:
                self._add(source - first_topic, target, 1)
            else:
                self._add(target - first_topic, source, -1)


def _cycle_in(came: Sequence[int]) -> list[int]:
    """A cycle among the predecessors `came`, in the order of its arcs; empty if there is none."""
    seen_from = [-1] * len(came)
    for start in range(len(came)):
        node = start
        while node >= 0 and seen_from[node] < 0:
            seen_from[node] = start
            node = came[node]
        if node >= 0 and seen_from[node] == start and came[node] >= 0:
            cycle = [node]
            while came[cycle[-1]] != node:
                cycle.append(came[cycle[-1]])
            return cycle[::-1]
    return []
