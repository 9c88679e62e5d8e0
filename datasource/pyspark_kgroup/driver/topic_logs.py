"""The logs behind the subscribed topics, as brokers show them now, and what of them was lost.

Runs on: driver. Between two batches only (`boundary`).

What decides whether a topic is still the same is its id, never an offset. Topics are looked at anew at every boundary
that may have something to do (`rest`) and, if that is a while ago, before a plan; what is created anew after that is
noticed at the next boundary.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from pyspark_kgroup.driver.group_port import GroupPort
from pyspark_kgroup.errors import DataLoss
from pyspark_kgroup.limits import (
    BEGUN_END_OFFSETS_MAX_AGE_MS,
    END_BELOW_ASKED_MS,
    END_BELOW_MS,
    END_OFFSETS_MAX_AGE_MS,
    PLANNED_TOPICS_MAX_AGE_MS,
)
from pyspark_kgroup.offsets.adoption import topic_key
from pyspark_kgroup.offsets.checkpoint import Checkpoint
from pyspark_kgroup.offsets.data_loss import WAYS_OUT, LogRange, Loss, deleted, recreated
from pyspark_kgroup.offsets.plan import Ranges
from pyspark_kgroup.options.parser import SourceOptions
from spark_kgroup.errors import UnknownTopic
from spark_kgroup.model import TopicDescription, TopicPartition

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Listed:
    """Where logs ended, and when they were listed."""

    ends: Mapping[TopicPartition, int]
    at_ms: int


@dataclass(frozen=True, slots=True)
class _Listing:
    """A listing of where logs end that is under way, and when it began."""

    partitions: frozenset[TopicPartition]
    ends: Callable[[], Mapping[TopicPartition, int]]
    at_ms: int


class TopicLogs:
    """The subscribed topics and their logs, for one boundary after the other. Not thread-safe.

    Args:
        bounded: this run ends by itself (AvailableNow): it reads no further than the end offsets of its first boundary.

    Attributes:
        topics: the subscribed topics that exist, as last seen.
        losses: how often something was lost and skipped; executors count for themselves, in their logs.
        offsets_skipped: how many offsets of it retention and DeleteRecords took; what else was lost nobody can count.
    """

    def __init__(
        self,
        group: GroupPort,
        options: SourceOptions,
        clock: Callable[[], int],
        *,
        bounded: bool,
    ) -> None:
        self.topics: Mapping[str, TopicDescription] = {}
        self.losses = 0
        self.offsets_skipped = 0
        self._group = group
        self._clock = clock
        self._options = options
        self._listed = _Listed({}, 0)
        self._listing: _Listing | None = None
        self.bounded: Final = bounded
        self._frozen: Mapping[TopicPartition, int] | None = None
        self._read_under: Mapping[str, TopicDescription] = {}
        """The topics, with their leaders' epochs, when the logs last had all our positions."""
        self._contradicted_since_ms: dict[TopicPartition, int] = {}
        """Since when a leader says that its log ends below what was read of it."""
        self._warned_of: dict[TopicPartition, Loss] = {}

    # ---------------------------------------------------------------------------------------------- topics

    def see_topics(self, start: Checkpoint, held: Collection[TopicPartition] = ()) -> None:
        """See which topics there are now.

        Args:
            start: the durable offset; what it remembers of a topic that was deleted or created anew is lost.
            held: partitions of our seats: brokers' metadata must know them, if their topic is still there.

        Raises:
            DataLoss: something was lost, and that is an error.
            UnknownTopic: a topic does not exist that this query has never seen, or that it has nothing of.
        """
        topics = self._group.topics(END_OFFSETS_MAX_AGE_MS)
        if any(tp.topic in topics and tp.partition >= topics[tp.topic].partition_count for tp in held):
            topics = self._group.topics(0)  # the leader saw the new partition before us
        if self._differ_from(topics):
            self._listed, self._listing = _Listed({}, 0), None  # perhaps those of a topic that is gone
        self.topics = topics
        others = self._others(start)
        gone = sorted({tp for held in (start.lost, start.owned) for tp in held if tp.topic in others})
        self.lose([self._loss(tp, start, start.position(tp) or 0, None) for tp in gone])
        if self._frozen is not None:  # a topic that was created anew waits for the next run
            self._frozen = {tp: end for tp, end in self._frozen.items() if tp not in gone}
        absent = [name for name in self._options.subscription.topics if name not in topics]
        if absent and (self._options.fail_on_data_loss or not start.topics.keys() >= set(absent)):
            raise UnknownTopic(
                f"Topic {', '.join(map(repr, absent))} does not exist on this cluster, or this user may not see it: "
                "create it, or correct the option `subscribe`."
            )

    def some_went(self) -> bool:
        """Whether a topic of those last seen is gone by now, or another one."""
        return self._differ_from(self._group.topics(0))

    def _differ_from(self, now: Mapping[str, TopicDescription]) -> bool:
        """Whether a topic of those last seen is not in `now`, or another one there."""
        return any(name not in now or topic_key(now[name]) != topic_key(seen) for name, seen in self.topics.items())

    def _others(self, checkpoint: Checkpoint) -> set[str]:
        """Subscribed topics that are gone, or are not those any more that `checkpoint` knows, by the topic's id.

        Nothing is known here of a topic that is no longer subscribed.
        """
        return {
            name
            for name, known in checkpoint.topics.items()
            if name in self._options.subscription
            and (name not in self.topics or topic_key(self.topics[name]) != known.topic_id)
        }

    def _loss(self, tp: TopicPartition, checkpoint: Checkpoint, position: int, end_offset: int | None) -> Loss:
        topic = self.topics.get(tp.topic)
        if topic is None:
            return deleted(tp, position, end_offset)
        return recreated(tp, position, end_offset, checkpoint.topics[tp.topic].topic_id, topic_key(topic))

    def readable(self, end: Checkpoint, plan: Mapping[str, Ranges]) -> dict[str, Ranges]:
        """`plan` (seat -> ranges of a batch that ends at `end`) without topics that are gone or others by now.

        Their ids do not come back, so every replay of the batch reads the same, from here on.

        Raises:
            DataLoss: the plan has ranges of such topics, and that is an error.
        """
        self.topics = self._group.topics(PLANNED_TOPICS_MAX_AGE_MS)
        every = {tp: span for ranges in plan.values() for tp, span in ranges.items()}
        others = self._others(end)
        gone = {tp for tp in every if tp.topic in others}
        self.lose([self._loss(tp, end, *every[tp]) for tp in sorted(gone)])
        left = {seat: {tp: s for tp, s in ranges.items() if tp not in gone} for seat, ranges in plan.items()}
        return {seat: ranges for seat, ranges in left.items() if ranges}

    # ------------------------------------------------------------------------------------------------ logs

    @property
    def listed_ends(self) -> dict[TopicPartition, int]:
        """One past the last offset of each partition, as last listed: no request, and not frozen."""
        return dict(self._listed.ends)

    @property
    def frozen(self) -> bool:
        """End offsets are those of the run's beginning."""
        return self._frozen is not None

    def begin_listing(self, held: Collection[TopicPartition]) -> None:
        """Begin to list where the logs of `held` end, beside what else is asked of brokers before they are needed."""
        if held and self._is_stale(held):
            ends = self._group.begin_end_offsets(held, read_committed=self._options.read_committed)
            self._listing = _Listing(frozenset(held), ends, self._clock())

    def ends(self, held: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """One past the last offset of each partition that may be read now."""
        if self.bounded and self._frozen is None:
            every = [tp for topic in self.topics.values() for tp in topic.partitions]
            self._frozen = self._list(every)
        listed = self._ends(held)
        ends = {tp: listed[tp] for tp in held}
        if self._frozen is not None:
            return {tp: min(end, self._frozen[tp]) for tp, end in ends.items() if tp in self._frozen}
        return ends

    def lacking(self, positions: Mapping[TopicPartition, int]) -> frozenset[TopicPartition]:
        """The partitions whose log does not have our position (any more).

        Where a log ends at our position, it cannot begin behind it: mostly nobody is asked where logs begin.
        """
        ends = self._ends(positions)
        starts = self._group.start_offsets([tp for tp, position in positions.items() if position < ends[tp]])
        doubtful = {tp for tp, start in starts.items() if positions[tp] < start}
        doubtful |= {tp for tp, position in positions.items() if position > ends[tp]}
        # Listed a moment ago; and an open transaction may hold the readable end below where we already are.
        self._contradicted_since_ms = {tp: ms for tp, ms in self._contradicted_since_ms.items() if tp in doubtful}
        now = self._look({tp: positions[tp] for tp in doubtful}, waits=self.bounded)
        if not any(now[tp].nearest(positions[tp]) != positions[tp] for tp in doubtful):
            self._read_under = self.topics
        return frozenset(
            tp
            for tp in doubtful
            if now[tp].nearest(positions[tp]) != positions[tp] and not self._is_contradicted(tp, positions[tp], now[tp])
        )

    def now(self, positions: Mapping[TopicPartition, int]) -> dict[TopicPartition, LogRange]:
        """What the logs have at this moment, readable or not, of partitions that begin at `positions`.

        Where a log ends below that, its leader is asked again for up to `END_BELOW_MS`.
        """
        return self._look(positions, waits=True)

    # A log that ends below what was read of it was truncated, if a newer leader says so than the one that we read
    # under. No other witness may take back what was there, unless it says so for `END_BELOW_MS`.

    @property
    def contradicted(self) -> bool:
        """Whether a log ends below our position, by the word of a leader that is asked again at the next boundary."""
        return bool(self._contradicted_since_ms)

    def _look(self, positions: Mapping[TopicPartition, int], *, waits: bool) -> dict[TopicPartition, LogRange]:
        found: dict[TopicPartition, LogRange] = {}
        left, known = dict(positions), self._contradicted_since_ms.keys() & positions.keys()
        while left:
            listed = self._group.log_ranges(left, read_committed=False)
            found |= {tp: LogRange(*span) for tp, span in listed.items()}
            left = {tp: position for tp, position in left.items() if self._is_contradicted(tp, position, found[tp])}
            if left.keys() - known:
                self._tell_of_contradiction({tp: left[tp] for tp in left.keys() - known}, found)
                known |= left.keys()
            if not waits:
                break
            if left:
                self._group.wait_until(lambda _: False, END_BELOW_ASKED_MS)
        return found

    def _is_contradicted(self, tp: TopicPartition, position: int, now: LogRange) -> bool:
        """Whether `now` takes back what was read, by the word of no newer leader, for less than `END_BELOW_MS`."""
        seen = self._read_under.get(tp.topic)
        read_under = seen.leader_epochs.get(tp.partition) if seen is not None else None
        if position <= now.end_offset or (read_under is not None and now.leader_epoch > read_under):
            self._contradicted_since_ms.pop(tp, None)
            return False
        since_ms = self._contradicted_since_ms.setdefault(tp, self._clock())
        return self._clock() - since_ms < END_BELOW_MS

    @staticmethod
    def _tell_of_contradiction(positions: Mapping[TopicPartition, int], now: Mapping[TopicPartition, LogRange]) -> None:
        tp = min(positions)
        log.warning(
            "%s was read up to offset %d, but %s, as no newer leader says: it is asked again for %d s before that "
            "counts as a truncation.%s",
            tp,
            positions[tp],
            now[tp],
            END_BELOW_MS // 1000,
            f" {len(positions) - 1} more partitions are concerned." if len(positions) > 1 else "",
        )

    def _ends(self, held: Collection[TopicPartition]) -> Mapping[TopicPartition, int]:
        listing, self._listing = self._listing, None
        fresh = listing is not None and self._clock() - listing.at_ms <= BEGUN_END_OFFSETS_MAX_AGE_MS
        if listing is not None and fresh and listing.partitions >= set(held):
            self._listed = _Listed(listing.ends(), listing.at_ms)
        elif self._is_stale(held):
            self._listed = _Listed(self._list(held), self._clock())
        return self._listed.ends

    def _is_stale(self, held: Collection[TopicPartition]) -> bool:
        """Whether what was listed last is old, or lacks some of `held`."""
        old = self._clock() - self._listed.at_ms > END_OFFSETS_MAX_AGE_MS
        return old or not self._listed.ends.keys() >= set(held)

    def _list(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        return self._group.end_offsets(partitions, read_committed=self._options.read_committed)

    # ---------------------------------------------------------------------------------------------- losses

    def lose(self, losses: Sequence[Loss]) -> None:
        """Fail, or warn once of each loss and count it.

        Raises:
            DataLoss: that is an error (`failOnDataLoss`).
        """
        if losses and self._options.fail_on_data_loss:
            more = f" {len(losses) - 1} more partitions are concerned." if len(losses) > 1 else ""
            raise DataLoss(f"{losses[0]}{more} {WAYS_OUT}")
        for loss in losses:
            if self._warned_of.get(loss.partition) != loss:
                self._warned_of[loss.partition] = loss
                self.losses += 1
                self.offsets_skipped += loss.skipped
                log.warning("Data loss: %s", loss)
