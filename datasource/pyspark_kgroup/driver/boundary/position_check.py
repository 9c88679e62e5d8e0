"""Whether logs still have our positions, and when a log that ends below one counts as truncated.

Runs on: driver. Between two batches only (`boundary`).

A log that ends below our position was truncated, if a leader says so that is newer than the one we read under. A leader
that is no newer is believed only after it has said so for `END_BELOW_MS`. The other partitions are read on meanwhile.

A driver that comes back knows no leader's epoch yet, and the first broker that it asks may be an old leader that is cut
off. So before a leader is asked again, another broker is asked who leads the partition: a newer leader then answers in
place of the old one. If a second broker names the same leader, `END_BELOW_MS` begins when it does.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping

from pyspark_kgroup.driver.boundary.context import BoundaryContext
from pyspark_kgroup.driver.boundary.topic_logs import TopicLogs
from pyspark_kgroup.limits import END_BELOW_ASKED_MS, END_BELOW_MS, LEADER_PATIENCE_MS
from pyspark_kgroup.offsets.data_loss import LogRange
from spark_kgroup.model import TopicDescription, TopicPartition
from spark_kgroup.wire.witnesses import NamedLeader

log = logging.getLogger(__name__)

Positions = Mapping[TopicPartition, int]
"""The offset of each partition that is to be read next."""


class _Contradiction:
    """A leader says that a log ends below our position, and is no newer than the one that we read under.

    Attributes:
        since_ms: when the patience with this leader began. That is when a second broker named the same leader, if one
            does, else when the leader said so first: a cluster of one broker has no second witness.
    """

    def __init__(self, now_ms: int) -> None:
        self.since_ms = now_ms
        self._leader: tuple[int, int] | None = None
        """Its epoch and node id, as a broker named them last."""
        self._named_by: set[int] = set()
        self._confirmed = False
        """Whether a second broker has named a leader of this epoch. That counts once: without epochs, brokers that name
        different leaders in turn would prolong the patience for ever."""

    def hear(self, named: Iterable[NamedLeader], now_ms: int) -> None:
        """Brokers name the leader, in the order in which they were asked."""
        for each in named:
            leader = each.epoch, each.leader
            if leader != self._leader:
                if self._leader is not None and each.epoch > self._leader[0]:
                    self.since_ms, self._confirmed = now_ms, False  # a newer leader, which says so since now
                self._leader, self._named_by = leader, set()
            self._named_by.add(each.named_by)
            if len(self._named_by) > 1 and not self._confirmed:
                self.since_ms, self._confirmed = now_ms, True


class PositionCheck:
    """Compares positions with logs at one boundary after the other. Remembers the leaders that it has to ask again."""

    def __init__(self, context: BoundaryContext) -> None:
        self._group = context.group
        self._clock = context.clock
        self._read_under: Mapping[str, TopicDescription] = {}
        """The topics, with their leaders' epochs, when the logs last had every position that leaders answered for."""
        self._read_before: Mapping[TopicPartition, int | None] = {}
        """The epoch read under before that, of each partition whose leader did not answer then."""
        self._had: Positions = {}
        """The positions that the logs had then. Of any other partition no epoch was read under."""
        self._contradictions: dict[TopicPartition, _Contradiction] = {}
        """Of each partition whose leader says that the log ends below our position."""

    @property
    def contradicted(self) -> bool:
        """Whether a log ends below our position, by the word of a leader that is asked again at the next boundary."""
        return bool(self._contradictions)

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
        self._contradictions = {tp: each for tp, each in self._contradictions.items() if tp in doubtful}
        # AvailableNow waits here, since it has no later trigger at which to ask again.
        now = self._list_log_ranges(logs, {tp: positions[tp] for tp in doubtful}, waits=logs.bounded)
        lacking = {tp for tp in now if now[tp].nearest(positions[tp]) != positions[tp]}
        if not lacking:
            unasked = (positions.keys() - ends.keys()) | logs.missed
            self._read_before = {tp: self._epoch_read_under(tp) for tp in unasked}
            self._read_under, self._had = logs.topics, positions
        return frozenset(tp for tp in lacking if not self._is_contradicted(tp, positions[tp], now[tp]))

    def log_ranges(self, logs: TopicLogs, positions: Positions) -> dict[TopicPartition, LogRange]:
        """The offsets that logs have at this moment, readable or not, of partitions that are to start at `positions`.

        Partitions whose leaders do not answer are left out. If a log does not have the position, its leader is looked
        up at another broker and asked again: once, or for as long as an end below the position is no proof.

        Raises:
            RequestTimedOut: a partition has been out of reach for too long.
        """
        return self._list_log_ranges(logs, positions, waits=True)

    def _list_log_ranges(self, logs: TopicLogs, positions: Positions, *, waits: bool) -> dict[TopicPartition, LogRange]:
        found = self._ask_leaders(logs, positions)
        doubtful = {tp: positions[tp] for tp in found if found[tp].nearest(positions[tp]) != positions[tp]}
        warned_of = self._contradictions.keys() & doubtful.keys()
        for tp, position in doubtful.items():
            self._is_contradicted(tp, position, found[tp])  # the patience begins with this first word
        left = set(doubtful)
        while left:
            self._ask_another_broker(left)
            again = self._ask_leaders(logs, {tp: positions[tp] for tp in left})
            # The listed ends are those of an old leader, if the log is longer than it said.
            logs.list_anew({tp for tp in again if again[tp].end_offset > found[tp].end_offset})
            # Without the first answers for `left`: they are an old leader's, and a newer one may be silent.
            found = {tp: log_range for tp, log_range in found.items() if tp not in left} | again
            left = {tp for tp in again if self._is_contradicted(tp, positions[tp], again[tp])}
            if left - warned_of:
                _warn_of_contradiction({tp: positions[tp] for tp in left - warned_of}, found)
                warned_of |= left
            if not waits:
                break
            if left:
                # Not a sleep: the error of a seat that fails meanwhile ends this wait.
                self._group.wait_until(lambda _: False, END_BELOW_ASKED_MS)
        return found

    def _ask_leaders(self, logs: TopicLogs, partitions: Collection[TopicPartition]) -> dict[TopicPartition, LogRange]:
        if not partitions:
            return {}
        listed = logs.answered(self._group.logs.ranges(partitions, LEADER_PATIENCE_MS, read_committed=False))
        return {tp: LogRange(*span) for tp, span in listed.items()}

    def _ask_another_broker(self, partitions: Collection[TopicPartition]) -> None:
        """Hear another broker about the leaders of `partitions`, BEFORE these leaders are asked again.

        Repeated calls hear each broker of the cluster in turn (`spark_kgroup.wire.witnesses`).
        """
        named = self._group.logs.ask_another_broker(partitions, LEADER_PATIENCE_MS)
        for tp in named.keys() & self._contradictions.keys():
            self._contradictions[tp].hear(named[tp], self._clock())

    def _is_contradicted(self, tp: TopicPartition, position: int, now: LogRange) -> bool:
        """Whether `now`, from a leader that is no newer, ends below `position`, and that is no proof yet."""
        read_under = self._epoch_read_under(tp)
        if position <= now.end_offset or (read_under is not None and now.leader_epoch > read_under):
            self._contradictions.pop(tp, None)
            return False
        contradiction = self._contradictions.setdefault(tp, _Contradiction(self._clock()))
        return self._clock() - contradiction.since_ms < END_BELOW_MS

    def _epoch_read_under(self, tp: TopicPartition) -> int | None:
        """The epoch of the leader when the log last had our position, or None if it is unknown."""
        if tp in self._read_before:
            return self._read_before[tp]
        if tp not in self._had:
            return None
        seen = self._read_under.get(tp.topic)
        return seen.leader_epochs.get(tp.partition) if seen is not None else None


def _warn_of_contradiction(positions: Positions, now: Mapping[TopicPartition, LogRange]) -> None:
    tp = min(positions)
    log.warning(
        "%s is to be read from offset %d, but %s, as no newer leader says: its leader is looked up and asked again for "
        "%d s before that counts as a truncation.%s",
        tp,
        positions[tp],
        now[tp],
        END_BELOW_MS // 1000,
        f" {len(positions) - 1} more partitions are concerned." if len(positions) > 1 else "",
    )
