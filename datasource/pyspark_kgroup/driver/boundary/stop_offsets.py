"""Where a stream with an end stops reading each partition (`endingOffsets` and its forms by timestamp).

Runs on: driver.

A stop by timestamp is the partition's first record that is not older. It is looked up AFTER the end offsets were listed
to which the next batch reads, so a record that is written in between lies behind them. A stop that was found counts for
as long as the topic is the same. One that was not found is looked up again when the log has another end. A partition
that is not in the option, since it was added later, stops before its first record. A partition at its stop or behind it
has no records left to read, so it cannot lose any.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping

from pyspark_kgroup.driver.boundary.boundary_state import BoundaryState
from pyspark_kgroup.driver.boundary.context import BoundaryContext
from pyspark_kgroup.limits import LEADER_PATIENCE_MS
from pyspark_kgroup.offsets.adoption import topic_key
from pyspark_kgroup.offsets.offset_spec import AtTimestamp
from pyspark_kgroup.options.offset_bound import check_order
from pyspark_kgroup.options.values import join
from spark_kgroup.model import TopicDescription, TopicPartition

log = logging.getLogger(__name__)

Topics = Mapping[str, TopicDescription]

Log = tuple[str, TopicPartition]
"""One partition of one topic, by the topic's id."""

Available = Mapping[TopicPartition, tuple[int, int]]
"""Partition -> (position, end offset)."""


class StopOffsets:
    """The stops of one query, as far as they are known. A query without the option has none.

    Attributes:
        ended: whether each partition of the query is read, or planned to be read, up to its stop. None without the
            option.
    """

    def __init__(self, context: BoundaryContext) -> None:
        self._group = context.group
        self._options = context.options
        self._bound = context.options.ending_offsets
        self._found: dict[Log, int] = {}  # stops by timestamp
        self._none_before: dict[Log, int] = {}  # the log's end when it had no record that is late enough
        self._checked = False
        self._warned_of_later: set[TopicPartition] = set()
        self._warned_of_end = False
        self.ended: bool | None = None if self._bound is None else False

    def begin_boundary(self, boundary: BoundaryState) -> None:
        """Begin a boundary that may adopt partitions. The first one checks that the option fits topics and start.

        Raises:
            OptionError: it does not.
        """
        if self._bound is None:
            return
        # A boundary that ends before `see_end` has not shown that the stream is at its end.
        self.ended = False
        if self._checked:
            return
        every = [tp for topic in boundary.topics.values() for tp in topic.partitions]
        self._bound.check(every)
        if boundary.start.fresh:
            check_order(self._options.starting_offsets, self._bound, every)
        self._checked = True

    def is_reached(self, topics: Topics, partition: TopicPartition, position: int) -> bool:
        """Whether `position` is at the partition's stop or behind it, as far as the stop is known."""
        stop = self._stop(topics, partition)
        return stop is not None and position >= stop

    def unread(self, topics: Topics, positions: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, int]:
        """Those of `positions` that may have records left to read before the stop."""
        if self._bound is None:
            return positions
        return {tp: position for tp, position in positions.items() if not self.is_reached(topics, tp, position)}

    def are_at_hand(self, topics: Topics, available: Available) -> bool:
        """Whether the end offsets of all partitions have come to the stops."""
        return all(self.is_reached(topics, tp, end) for tp, (_, end) in available.items())

    def within(self, boundary: BoundaryState, available: Available, heard: Collection[TopicPartition]) -> Available:
        """`available` up to the stops, but never back behind a position.

        Args:
            boundary: its state.
            available: position and end offset of each partition.
            heard: the partitions whose leaders answer. One whose leader does not tell its stop is not read.
        """
        if self._bound is None:
            return available
        topics = boundary.topics
        unanswered = self._look_up(boundary, {tp: available[tp][1] for tp in heard if tp in available})
        self._warn_of_later(available)
        stops = {tp: self._stop(topics, tp) for tp in available} | {tp: available[tp][0] for tp in unanswered}
        return {
            tp: (position, end if (stop := stops[tp]) is None else max(position, min(end, stop)))
            for tp, (position, end) in available.items()
        }

    def see_end(self, topics: Topics, positions: Mapping[TopicPartition, int], *, rests: bool, idle: bool) -> None:
        """See whether a stream with an end has come to it, and warn once when that is durable and the query goes on.

        Args:
            topics: the subscribed topics.
            positions: where the next batch ends.
            rests: whether the group is at rest, and has acknowledged the positions.
            idle: there is no next batch, and Spark will ask again.
        """
        assert self._bound is not None
        self.ended = bool(positions) and rests and not self.unread(topics, positions)
        if self.ended and idle and not self._warned_of_end:
            self._warned_of_end = True
            log.warning(
                "Everything up to %s has been read of all partitions that this query holds: stop the query. A "
                "KgroupListener on spark.streams does so by itself (PySpark 4.2 and newer).",
                self._bound.option,
            )

    def _place(self, partition: TopicPartition) -> int | AtTimestamp:
        assert self._bound is not None
        place = self._bound.by_partition.get(partition, self._bound.everywhere)
        return place if isinstance(place, int | AtTimestamp) else 0

    def _stop(self, topics: Topics, partition: TopicPartition) -> int | None:
        if self._bound is None:
            return None
        place = self._place(partition)
        if isinstance(place, int):
            return place
        return self._found.get(_log(topics, partition)) if partition.topic in topics else None

    def _look_up(self, boundary: BoundaryState, ends: Mapping[TopicPartition, int]) -> Collection[TopicPartition]:
        """Look up stops that are not known, unless the log still ends where the last look-up found none.

        Returns:
            The partitions for which no leader has answered.
        """
        topics = boundary.topics
        timestamps = {
            tp: place.ms
            for tp, end in ends.items()
            if isinstance(place := self._place(tp), AtTimestamp)
            and (of_topic := _log(topics, tp)) not in self._found
            and self._none_before.get(of_topic) != end
        }
        if not timestamps:
            return ()
        asked = self._group.logs.at(timestamps, LEADER_PATIENCE_MS, read_committed=self._options.read_committed)
        found = boundary.logs.answered(asked)
        self._found |= {_log(topics, tp): offset for tp, offset in found.items()}
        without = timestamps.keys() - found.keys() - asked.unanswered.keys()
        self._none_before |= {_log(topics, tp): ends[tp] for tp in without}
        return asked.unanswered

    def _warn_of_later(self, held: Collection[TopicPartition]) -> None:
        assert self._bound is not None
        if self._bound.everywhere is not None:
            return
        later = set(held) - self._bound.by_partition.keys() - self._warned_of_later
        if later:
            self._warned_of_later |= later
            log.warning(
                "Partitions %s were added after the query started and are not in %s, so they are not read. Add them to "
                "that option before the next start.",
                join(sorted(later)),
                self._bound.option,
            )


def _log(topics: Topics, partition: TopicPartition) -> Log:
    return topic_key(topics[partition.topic]), partition
