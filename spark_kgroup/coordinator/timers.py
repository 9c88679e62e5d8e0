"""Timers as data: at most one for each key, and the keys that are due."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from itertools import count

from spark_kgroup.coordinator.contract import TimerKey


class Timers:
    """Key -> the instant at which it fires, in milliseconds. A timer that fires is gone."""

    def __init__(self) -> None:
        self._at_ms: dict[TimerKey, int] = {}
        self._queue: list[tuple[int, int, TimerKey]] = []
        """Every instant that was set and is not over, also of timers that were cancelled or set anew since."""
        self._order = count()

    def __iter__(self) -> Iterator[TimerKey]:
        return iter(self._at_ms)

    def __contains__(self, key: object) -> bool:
        return key in self._at_ms

    def at_ms(self, key: TimerKey) -> int | None:
        """When the timer fires, None if it is not set."""
        return self._at_ms.get(key)

    def set(self, key: TimerKey, at_ms: int) -> None:
        """Set a timer, in place of the one with this key if there is one."""
        self._at_ms[key] = at_ms
        heapq.heappush(self._queue, (at_ms, next(self._order), key))

    def cancel(self, key: TimerKey) -> None:
        """Forget a timer, if it is set."""
        self._at_ms.pop(key, None)

    def clear(self) -> None:
        """Forget all timers."""
        self._at_ms.clear()
        self._queue.clear()

    def next_at_ms(self) -> int | None:
        """When the next timer fires, None if none is set."""
        while self._queue:
            at_ms, _, key = self._queue[0]
            if self._at_ms.get(key) == at_ms:
                return at_ms
            heapq.heappop(self._queue)
        return None

    def take_due(self, now_ms: int) -> TimerKey | None:
        """The timer that is due first, which is no longer set after that. None if none is due at `now_ms`."""
        at_ms = self.next_at_ms()
        if at_ms is None or at_ms > now_ms:
            return None
        _, _, key = heapq.heappop(self._queue)
        del self._at_ms[key]
        return key
