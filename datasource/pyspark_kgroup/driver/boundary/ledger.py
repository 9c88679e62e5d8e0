"""The ledger: the partitions that this query owns between two boundaries, and the offsets of them that the group has.

Runs on: driver. Pure bookkeeping: views and offsets go in, commits and checkpoints come out.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from pyspark_kgroup.offsets.adoption import topic_key
from pyspark_kgroup.offsets.checkpoint import EMPTY, Checkpoint, Owned, Period, Topic
from spark_kgroup.model import MemberIdentity, TopicDescription, TopicPartition
from spark_kgroup.runtime.views import GroupView, SeatView


@dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    """One adopted partition.

    Attributes:
        owned_since: the identity under which the seat's ownership began. Another one means that it was interrupted.
        committed: the group's committed offset as far as we know, or None if there is none that counts.
    """

    period: Period
    owned_since: MemberIdentity
    committed: int | None

    def is_held_by(self, seat: SeatView, partition: TopicPartition) -> bool:
        """Whether `partition` was adopted through this very seat, and its ownership was not interrupted since."""
        return seat.owned_since.get(partition) == self.owned_since

    def is_committed(self, position: int) -> bool:
        """Whether the group already has `position`, or has gone beyond it."""
        return self.committed is not None and position <= self.committed


class Ledger:
    """The adopted partitions of one query, from adoption to giving up or losing them.

    Args:
        subscribed: contains the names of topics that are read if they exist.

    Attributes:
        topics_gone: topics that are not subscribed any more and were deleted since. The checkpoint forgets them.
        unadopted: partitions that our seats hold or claim, and have not adopted. A restart claims those of them that an
            earlier process owned.
        unstarted: partitions for which an explicit `startingOffsets` counts, and that this boundary could not adopt.
        taken_over: partitions that our seats hold and another application reads already. They are neither committed nor
            adopted.
    """

    def __init__(self, subscribed: Container[str]) -> None:
        self._subscribed = subscribed
        self._start = EMPTY
        self._first: frozenset[str] | None = None
        self.holdings: dict[TopicPartition, Holding] = {}
        self.topics_gone: frozenset[str] = frozenset()
        self.unadopted: frozenset[TopicPartition] = frozenset()
        self.unstarted: frozenset[TopicPartition] = frozenset()
        self.taken_over: set[TopicPartition] = set()
        self._handed_over: set[TopicPartition] = set()

    def begin_boundary(self, start: Checkpoint) -> None:
        """Begin a boundary: `start`, as this query continues it, is durable and counts until the next boundary."""
        self._start = start
        self.unadopted = self.unstarted = frozenset()

    def is_later(self, topic: str) -> bool:
        """Whether a topic was not there yet when this query began.

        A pattern may match no topic for a while. That time is not in the checkpoint, which is still a fresh one then.
        """
        return self._first is not None and topic not in self._first

    def drop_lost(self, view: GroupView) -> frozenset[TopicPartition]:
        """Forget, and return, partitions that our seats hold no longer, or whose ownership was interrupted."""
        holders = find_holders(view)
        lost = frozenset(
            tp
            for tp, holding in self.holdings.items()
            if (seat := holders.get(tp)) is None
            # `is not` first, since it is cheap and mostly decides: a boundary asks it of all partitions several times.
            or (seat.owned_since[tp] is not holding.owned_since and seat.owned_since[tp] != holding.owned_since)
        )
        self.forget(lost)
        return lost

    def see_unadopted(self, view: GroupView) -> None:
        """Note, at the end of a boundary, the partitions that our seats hold or claim and have not adopted."""
        held = {tp for seat in view.seats for tp in seat.owned_since.keys() | seat.to_give_up}
        self.unadopted = frozenset(held - self.holdings.keys() - self.taken_over)

    def drop_gone(self, topics: Mapping[str, TopicDescription]) -> None:
        """Forget partitions of topics that are not in `topics`, or have another id there: they were created again."""
        ids = {name: topic_key(topic) for name, topic in topics.items()}
        self.forget([tp for tp, holding in self.holdings.items() if ids.get(tp.topic) != holding.period.topic_id])

    def forget(self, partitions: Iterable[TopicPartition]) -> None:
        """Stop owning `partitions`, without telling the group."""
        for tp in partitions:
            del self.holdings[tp]

    def adopt(self, partition: TopicPartition, holding: Holding) -> None:
        """Own `partition` from now on."""
        assert partition not in self.holdings, f"{partition} is adopted already"
        self.holdings[partition] = holding
        self._handed_over.discard(partition)
        self.taken_over.discard(partition)

    def let_go(self, partitions: Iterable[TopicPartition]) -> None:
        """Forget partitions that another application reads already. Their positions stay in the checkpoint."""
        for tp in partitions:
            del self.holdings[tp]
            self.taken_over.add(tp)

    def give_up(self, partitions: Iterable[TopicPartition]) -> None:
        """Forget partitions that are given up after their commit: the group's committed offset is their memory now."""
        for tp in partitions:
            del self.holdings[tp]
            self._handed_over.add(tp)

    def position(self, partition: TopicPartition) -> int:
        """The durable position of an adopted partition: that of `start` in this period, else the period's beginning."""
        period = self.holdings[partition].period
        before = self._start.owned.get(partition)
        return before.position if before is not None and before.period == period else period.start

    def uncommitted(self, seat: SeatView) -> dict[TopicPartition, int]:
        """Durable positions of this seat's partitions that the group does not have yet.

        A position is of the current period, or of an earlier one from whose end this one goes on: 1. A batch is done.
        2. The driver dies before it commits. 3. It is back in a later generation. Until the group has the position,
        another owner would read that batch again.

        No position is below the committed offset. The broker would not refuse it: it checks the member, not who owns
        the partition.
        """
        waiting = self._without_acknowledgement(seat.owned_since)
        return {tp: self.position(tp) for tp in waiting if self.holdings[tp].is_held_by(seat, tp)}

    def unacknowledged(self) -> frozenset[TopicPartition]:
        """Partitions whose durable position is not committed yet: if lost now, their next owner would read them again.

        No further batch reads them until the group has acknowledged their position. Else: 1. A batch is done, and its
        commit is not acknowledged. 2. A second batch is read. 3. Membership is lost. The next owner would read both
        batches again, and the promise is at most one (docs/explain/promises.md).
        """
        return frozenset(self._without_acknowledgement(self.holdings))

    def _without_acknowledgement(self, partitions: Iterable[TopicPartition]) -> Iterator[TopicPartition]:
        """Those of `partitions` that are adopted, and whose durable position is above the committed offset.

        Not those whose position was set back below the durable one: their records are to be read again.
        """
        for tp in partitions:  # all of them, several times at each boundary, and mostly each is acknowledged
            holding, delivered = self.holdings.get(tp), self._start.position(tp)
            if holding is None or delivered is None:
                continue
            if holding.committed is not None and delivered <= holding.committed:  # `is_committed`, without a call
                continue
            if self.position(tp) >= delivered:
                yield tp

    def to_hand_over(self, seat: SeatView) -> dict[TopicPartition, int]:
        """The adopted partitions that this seat must give up, with the positions from which the next owners start."""
        adopted = [tp for tp in seat.to_give_up if tp in self.holdings]
        return {tp: self.position(tp) for tp in adopted if self.holdings[tp].is_held_by(seat, tp)}

    def known_to_group(self, positions: Mapping[TopicPartition, int]) -> frozenset[TopicPartition]:
        """Those of `positions` that the group already has, or has gone beyond."""
        return frozenset(tp for tp, position in positions.items() if self.holdings[tp].is_committed(position))

    def on_acknowledged(self, partitions: Iterable[TopicPartition], positions: Mapping[TopicPartition, int]) -> None:
        """The group now has these positions."""
        for tp in partitions:
            self.holdings[tp] = replace(self.holdings[tp], committed=positions[tp])

    def checkpoint(self, topics: Mapping[str, TopicDescription], positions: Mapping[TopicPartition, int]) -> Checkpoint:
        """The next offset of the stream: `positions` of adopted partitions, and those of lost or given-up ones."""
        start = self._start
        if start.fresh and self._first is None:
            self._first = frozenset(topics)
        remembered = {**start.lost, **{tp: owned.position for tp, owned in start.owned.items()}}
        forgotten = self.topics_gone | {
            name
            for name, topic in topics.items()
            if name in start.topics and start.topics[name].topic_id != topic_key(topic)
        }
        owned = {tp: Owned(period=held.period, position=positions[tp]) for tp, held in self.holdings.items()}
        # Still in `owned`, so that a process that comes back claims them in its first join: also those of a topic that
        # has left `subscribe`, until they are handed over.
        there = (topics.keys() | {tp.topic for tp in self.unadopted if tp.topic not in self._subscribed}) - forgotten
        owned |= {tp: start.owned[tp] for tp in self.unadopted & start.owned.keys() if tp.topic in there}
        left = {
            tp: position
            for tp, position in {**start.given_up, **remembered}.items()
            if tp not in owned and tp.topic not in forgotten
        }
        lost = {tp for tp in left if tp in remembered and tp not in self._handed_over}
        return Checkpoint(
            topics=self._topics(topics),
            owned=owned,
            lost={tp: position for tp, position in left.items() if tp in lost},
            given_up={tp: position for tp, position in left.items() if tp not in lost},
            unstarted=frozenset(
                tp
                for tp in start.unstarted | self.unstarted
                if tp not in owned and tp not in left and tp.topic not in forgotten
            ),
            inherited=(start.inherited & left.keys()) - self._handed_over,
        )

    def _topics(self, topics: Mapping[str, TopicDescription]) -> dict[str, Topic]:
        """All topics ever seen, with their partition count at first sight. Later topics have 0, since all is new."""
        result = {
            name: replace(known, left=name not in self._subscribed)
            for name, known in self._start.topics.items()
            if name not in self.topics_gone
        }
        for name, topic in topics.items():
            known = self._start.topics.get(name)
            if known is None or known.topic_id != topic_key(topic):
                first_sight = topic.partition_count if self._start.fresh and not self.is_later(name) else 0
                result[name] = Topic(topic_id=topic_key(topic), first_sight=first_sight)
        return result


def find_holders(view: GroupView) -> dict[TopicPartition, SeatView]:
    """Which seat holds each partition. Of two, the one in the newer generation counts: the other was expelled."""
    holders: dict[TopicPartition, SeatView] = {}
    for seat in view.seats:
        for tp, owned_since in seat.owned_since.items():
            if tp not in holders or owned_since.generation >= holders[tp].owned_since[tp].generation:
                holders[tp] = seat
    return holders
