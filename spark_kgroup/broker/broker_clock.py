"""The time by which a broker stamps records and ends sessions: the real one, or one that a test turns.

A client's own patience is not the broker's time. How long a Fetch waits for records is measured by the real clock, so
no client hangs while a virtual clock stands still.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Protocol


class Cancellable(Protocol):
    """An alarm that was set."""

    def cancel(self) -> None:
        """Let it not go off."""


class Clock(Protocol):
    """A clock that never goes back."""

    def now_ms(self) -> int:
        """Milliseconds since 1970."""

    def alarm(self, at_ms: int, callback: Callable[[], None]) -> Cancellable:
        """Call `callback` on the running loop once it is `at_ms`."""


class RealClock:
    """The time of day when it was made, and from then on the time that has passed."""

    def __init__(self) -> None:
        self._offset_ns = time.time_ns() - time.monotonic_ns()

    def now_ms(self) -> int:
        """Milliseconds since 1970."""
        return (time.monotonic_ns() + self._offset_ns) // 1_000_000

    def alarm(self, at_ms: int, callback: Callable[[], None]) -> Cancellable:
        """Call `callback` on the running loop once it is `at_ms`."""
        return asyncio.get_running_loop().call_later(max(0, at_ms - self.now_ms()) / 1000, callback)


class _Alarm:
    """An alarm of a virtual clock, and the loop on which it goes off."""

    def __init__(self, at_ms: int, callback: Callable[[], None], loop: asyncio.AbstractEventLoop) -> None:
        self.at_ms = at_ms
        self._callback: Callable[[], None] | None = callback
        self._loop = loop

    def cancel(self) -> None:
        self._callback = None

    def go_off(self) -> None:
        """From any thread."""
        self._loop.call_soon_threadsafe(lambda: self._callback() if self._callback else None)


class VirtualClock:
    """A clock that stands still until `advance`. It may be used from any thread.

    Args:
        start_ms: its first time, in ms since 1970; by default the time of day.
    """

    def __init__(self, start_ms: int | None = None) -> None:
        self._now_ms = time.time_ns() // 1_000_000 if start_ms is None else start_ms
        self._alarms: list[_Alarm] = []
        self._lock = threading.Lock()

    def now_ms(self) -> int:
        """Milliseconds since 1970."""
        return self._now_ms

    def advance(self, by_ms: int) -> None:
        """Turn the clock forward: each alarm up to the new time goes off, so sessions end.

        Raises:
            ValueError: `by_ms` is negative.
        """
        if by_ms < 0:
            raise ValueError(f"a clock does not go back by {-by_ms} ms")
        with self._lock:
            self._now_ms += by_ms
            due = [alarm for alarm in self._alarms if alarm.at_ms <= self._now_ms]
            self._alarms = [alarm for alarm in self._alarms if alarm.at_ms > self._now_ms]
        for alarm in sorted(due, key=lambda alarm: alarm.at_ms):
            alarm.go_off()

    def alarm(self, at_ms: int, callback: Callable[[], None]) -> Cancellable:
        """Call `callback` on the running loop once it is `at_ms`."""
        alarm = _Alarm(at_ms, callback, asyncio.get_running_loop())
        with self._lock:
            if at_ms > self._now_ms:
                self._alarms.append(alarm)
                return alarm
        alarm.go_off()
        return alarm
