"""Whether logs still have our positions, and when a log that ends below one counts as truncated.

Runs on: driver. Between two batches only (`boundary`).

A log that ends below our position was truncated, if a leader says so that is newer than the one we read under. A leader
that is no newer is believed only after it has said so for `END_BELOW_MS`. The other partitions are read on meanwhile.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from pyspark_kgroup.driver.boundary.context import BoundaryContext
from pyspark_kgroup.driver.boundary.topic_logs import TopicLogs
from pyspark_kgroup.limits import END_BELOW_ASKED_MS, END_BELOW_MS, LEADER_PATIENCE_MS
from pyspark_kgroup.offsets.data_loss import LogRange
from spark_kgroup.model import TopicDescription, TopicPartition

log = logging.getLogger(__name__)

Positions = Mapping[TopicPartition, int]
"""The offset of each partition that is to be read next."""


class PositionCheck:
    """Compares positions with logs at one boundary after the other. Remembers the leaders that it has to ask again."""

    def __init__(self, context: BoundaryContext) -> None:
        self._group = context.group
        self._clock = context.clock
        self._read_under: Mapping[str, TopicDescription] = {}
        """The topics, with their leaders' epochs, when the logs last had every position that leaders answered for."""
        self._read_before: Mapping[TopicPartition, int | None] = {}
        """The epoch read under before that, of each partition whose leader did not answer then."""
        self._contradicted_since_ms: dict[TopicPartition, int] = {}
        """Partition -> since when its leader says that the log ends below our position."""

    @property
    def contradicted(self) -> bool:
        """Whether a log ends below our position, by the word of a leader that is asked again at the next boundary."""
        return bool(self._contradicted_since_ms)

    def lacking(self, logs: TopicLogs, positions: Positions) -> frozenset[TopicPartition]:
        """The partitions whose log does not have our position (any more), of those whose leaders answer.

        A log that ends at our position cannot begin behind it, so leaders are mostly not asked where logs begin.

        Raises:
            RequestTimedOut: a partition has been out of reach for too long.
        """
        ends = logs.heard(positions)
        behind = [tp for tp in ends if positions[tp] < ends[tp]]
        starts = logs.answered(self._group.logs.starts(behind, LEADER_PATIENCE_MS))
        doubtful = {tp for tp, start in starts.items() if positions[tp] < start}
        doubtful |= {tp for tp in ends if positions[tp] > ends[tp]}
        # Look again: listed ends are a moment old, and an open transaction may hold the readable end below a position.
        self._contradicted_since_ms = {tp: ms for tp, ms in self._contradicted_since_ms.items() if tp in doubtful}
        # AvailableNow waits here, since it has no later trigger at which to ask again.
        now = self._list_log_ranges(logs, {tp: positions[tp] for tp in doubtful}, waits=logs.bounded)
        lacking = {tp for tp in now if now[tp].nearest(positions[tp]) != positions[tp]}
        if not lacking:
            unasked = (positions.keys() - ends.keys()) | logs.missed
            self._read_before = {tp: self._epoch_read_under(tp) for tp in unasked}
            self._read_under = logs.topics
        return frozenset(tp for tp in lacking if not self._is_contradicted(tp, positions[tp], now[tp]))

    def log_ranges(self, logs: TopicLogs, positions: Positions) -> dict[TopicPartition, LogRange]:
        """The offsets that logs have at this moment, readable or not, of partitions that are to start at `positions`.

        Partitions whose leaders do not answer are left out. If a log ends below the position, its leader is asked again
        for up to `END_BELOW_MS`.

        Raises:
            RequestTimedOut: a partition has been out of reach for too long.
        """
        return self._list_log_ranges(logs, positions, waits=True)

    def _list_log_ranges(self, logs: TopicLogs, positions: Positions, *, waits: bool) -> dict[TopicPartition, LogRange]:
        found: dict[TopicPartition, LogRange] = {}
        left, known = dict(positions), self._contradicted_since_ms.keys() & positions.keys()
        while left:
            listed = logs.answered(self._group.logs.ranges(left, LEADER_PATIENCE_MS, read_committed=False))
            found |= {tp: LogRange(*span) for tp, span in listed.items()}
            left = {tp: left[tp] for tp in listed if self._is_contradicted(tp, left[tp], found[tp])}
            if left.keys() - known:
                _warn_of_contradiction({tp: left[tp] for tp in left.keys() - known}, found)
                known |= left.keys()
            if not waits:
                break
            if left:
                # Not a sleep: the error of a seat that fails meanwhile ends this wait.
                self._group.wait_until(lambda _: False, END_BELOW_ASKED_MS)
        return found

    def _is_contradicted(self, tp: TopicPartition, position: int, now: LogRange) -> bool:
        """Whether `now`, from a leader that is no newer, ends below `position`, and for less than `END_BELOW_MS`."""
        read_under = self._epoch_read_under(tp)
        if position <= now.end_offset or (read_under is not None and now.leader_epoch > read_under):
            self._contradicted_since_ms.pop(tp, None)
            return False
        since_ms = self._contradicted_since_ms.setdefault(tp, self._clock())
        return self._clock() - since_ms < END_BELOW_MS

    def _epoch_read_under(self, tp: TopicPartition) -> int | None:
        """The epoch of the leader when the log last had our position, or None if it is unknown."""
        if tp in self._read_before:
            return self._read_before[tp]
        seen = self._read_under.get(tp.topic)
        return seen.leader_epochs.get(tp.partition) if seen is not None else None


def _warn_of_contradiction(positions: Positions, now: Mapping[TopicPartition, LogRange]) -> None:
    tp = min(positions)
    log.warning(
        "%s is to be read from offset %d, but %s, as no newer leader says: it is asked again for %d s before that "
        "counts as a truncation.%s",
        tp,
        positions[tp],
        now[tp],
        END_BELOW_MS // 1000,
        f" {len(positions) - 1} more partitions are concerned." if len(positions) > 1 else "",
    )
