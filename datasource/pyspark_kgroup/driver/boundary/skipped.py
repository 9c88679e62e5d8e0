"""Batches that are durable and that no task has read: found at the next boundary, and told once.

Runs on: driver, in the stream-reader process.

Spark plans no tickets for a batch that its sink skips, except where the query asks how many tickets there are.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from pyspark_kgroup.offsets.checkpoint import Checkpoint
from pyspark_kgroup.offsets.plan import ranges_by_seat

log = logging.getLogger(__name__)


class SkippedBatches:
    """Looks whether the batch that was planned last has been read.

    Args:
        is_untouched: whether the last batch has tickets, and no executor has asked for any of them.
        is_reached: whether executors can report their reads.
    """

    def __init__(self, is_untouched: Callable[[], bool], is_reached: Callable[[], bool]) -> None:
        self._is_untouched = is_untouched
        self._is_reached = is_reached
        self._start: Checkpoint | None = None
        self._end: Checkpoint | None = None
        self._has_tickets = False
        self._warned = False

    def on_planned(self, start: Checkpoint, end: Checkpoint) -> None:
        """The next batch lies between these offsets."""
        self._start, self._end, self._has_tickets = start, end, False

    def on_tickets(self, end: Checkpoint) -> None:
        """Spark asks for the tickets of the batch that ends here."""
        self._has_tickets = self._has_tickets or end == self._end

    def look(self, durable: Checkpoint) -> None:
        """Warn, once, if the planned batch is durable and no task has read of it."""
        if self._warned or (self._has_tickets and not self._is_untouched()):
            return  # BEFORE checkpoints are compared, which are large
        if self._start is None or self._start == self._end or durable != self._end:
            return
        reads = ranges_by_seat(self._start, durable).values()
        if offsets := sum(end - first for ranges in reads for first, end in ranges.values()):
            from pyspark_kgroup.offsets.skipped_batches import skipped_warning

            log.warning("%s", skipped_warning(offsets, reached=not self._has_tickets or self._is_reached()))
            self._warned = True
