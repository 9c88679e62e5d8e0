"""How many seats a query should have, as executors come and go, where neither an option nor Spark's start says so.

Runs on: driver. Pure.

Each change costs the group a rebalance. So executors that come one after the other make one change together, once none
has come for `SEATS_GROW_AFTER_MS`. Seats leave only when there have been fewer task slots for `SEATS_SHRINK_AFTER_MS`.
Only batches with a task for each seat count for that: an executor that gets no tasks for long is not known any more.
"""

from __future__ import annotations

from pyspark_kgroup.limits import SEATS_GROW_AFTER_MS, SEATS_SHRINK_AFTER_MS
from pyspark_kgroup.options.rows import MEMBERS_MAX


class SeatCount:
    """Remembers since when the query should have more seats, or fewer.

    Args:
        least: never fewer than this.
    """

    def __init__(self, least: int) -> None:
        self._least = least
        self._more: tuple[int, int] | None = None  # how many, and since when (ms)
        self._fewer: tuple[int, int] | None = None  # the highest such target since then, and since when

    def wanted(self, seats: int, slots: int, partitions: int, now_ms: int, *, busy: bool) -> int:
        """How many seats there should be from now on: `seats` itself for no change. To be asked after a batch.

        Args:
            seats: how many there are.
            slots: how many tasks the executors run at once, as far as they are known.
            partitions: of all topics. More seats than that would be idle.
            now_ms: monotonic.
            busy: whether the batch had data for each seat.
        """
        target = min(max(slots, self._least), max(1, partitions), MEMBERS_MAX)
        if target == seats:
            self._more = self._fewer = None
        elif target > seats:
            self._fewer = None
            if self._more is None or self._more[0] != target:
                self._more = (target, now_ms)
            if now_ms - self._more[1] >= SEATS_GROW_AFTER_MS:
                self._more = None
                return target
        elif not busy or not slots:  # such a batch does not show all executors
            self._more = self._fewer = None
        else:
            self._more = None
            most, since_ms = self._fewer or (target, now_ms)
            self._fewer = (max(most, target), since_ms)
            if now_ms - since_ms >= SEATS_SHRINK_AFTER_MS:
                fewer, self._fewer = self._fewer[0], None
                return fewer
        return seats
