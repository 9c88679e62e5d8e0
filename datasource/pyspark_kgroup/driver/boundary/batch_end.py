"""Where the next batch ends: at end offsets or stops, without partitions that must wait and offsets beyond the limit.

Runs on: driver.

A partition whose commit the group has not acknowledged, or for which no leader answers, stays at its position. Under a
limit, of offsets or of bytes, each partition has its turn. A batch with too few new offsets waits for more
(`minOffsetsPerTrigger`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from pyspark_kgroup.driver.boundary.boundary_state import BoundaryState
from pyspark_kgroup.driver.boundary.context import BoundaryContext
from pyspark_kgroup.driver.boundary.stop_offsets import StopOffsets
from pyspark_kgroup.offsets.plan import NO_LIMIT, Limit, apply_limit, apply_limit_in_bytes, in_turn
from spark_kgroup.model import TopicPartition

if TYPE_CHECKING:
    from pyspark_kgroup.driver.boundary.first_sample import FirstSample


class BatchEnd:
    """Decides where batches end. Remembers which partition had the last turn, and when a batch had records.

    Args:
        record_bytes: how large a topic's records are, or None if that is unknown.
        first_sample: reads some records to know it before the first batch, or None if executors see enough batches.

    Attributes:
        waits: the last boundary found new offsets, but fewer than `minOffsetsPerTrigger`, and planned no batch of them.
    """

    def __init__(
        self,
        context: BoundaryContext,
        stops: StopOffsets,
        record_bytes: Callable[[str], float | None],
        first_sample: FirstSample | None,
    ) -> None:
        self.waits = False
        self._options = context.options
        self._ledger = context.ledger
        self._clock = context.clock
        self._stops = stops
        self._record_bytes = record_bytes
        self._first_sample = first_sample
        self._last_in_turn: TopicPartition | None = None
        self._last_batch_ms: int | None = None

    def positions(self, boundary: BoundaryState, limit: Limit, *, at_once: bool) -> dict[TopicPartition, int]:
        """The position of each adopted partition after the next batch.

        Args:
            boundary: its state.
            limit: of the batch.
            at_once: the batch takes new offsets however few they are.
        """
        ends = boundary.logs.ends(self._ledger.holdings.keys())
        unacknowledged = self._ledger.unacknowledged()
        unread = {}
        for tp in self._ledger.holdings:
            position = self._ledger.position(tp)
            # `max`, since an open transaction may hold the readable end below the position.
            end = position if tp in unacknowledged else max(position, ends.get(tp, position))
            unread[tp] = (position, end)
        available = self._stops.within(boundary, unread, ends.keys())
        # No record behind the stops is read, so the last offsets do not wait for `minOffsetsPerTrigger`.
        last = self._stops.are_at_hand(boundary.topics, available)
        self.waits = not (at_once or last or boundary.logs.bounded) and self._are_too_few(available)
        if self.waits:
            return {tp: position for tp, (position, _) in available.items()}
        within = apply_limit(available, limit.offsets, self._last_in_turn)
        affordable = {tp: (position, within[tp]) for tp, (position, _) in available.items()}
        if self._first_sample is not None and limit.size_bytes is not None:
            self._first_sample.take(affordable, limit.size_bytes)
        positions = apply_limit_in_bytes(affordable, limit.size_bytes, self._record_bytes, self._last_in_turn)
        moved = [tp for tp, position in positions.items() if position > available[tp][0]]
        if moved:
            self._last_batch_ms = self._clock()
        if limit != NO_LIMIT and moved:
            self._last_in_turn = in_turn(moved, self._last_in_turn)[-1]
        return positions

    def _are_too_few(self, available: Mapping[TopicPartition, tuple[int, int]]) -> bool:
        """Whether new offsets are to wait for more. The first ones of a process never do, as in `format("kafka")`."""
        least, last_ms = self._options.min_offsets_per_trigger, self._last_batch_ms
        if least is None or last_ms is None or self._clock() - last_ms >= self._options.max_trigger_delay_ms:
            return False
        return 0 < sum(end - position for position, end in available.values()) < least
