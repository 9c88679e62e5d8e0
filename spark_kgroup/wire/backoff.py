"""Exponential backoff with jitter (Kafka: ExponentialBackoff)."""

from __future__ import annotations

from random import Random

from spark_kgroup.limits import RETRY_BACKOFF_JITTER, RETRY_BACKOFF_MAX_MS, RETRY_BACKOFF_MS


class Backoff:
    """Waits that double from `first_ms` to `max_ms`, each drawn from 80 % to 120 % of its value."""

    def __init__(self, rng: Random, first_ms: int = RETRY_BACKOFF_MS, max_ms: int = RETRY_BACKOFF_MAX_MS) -> None:
        self._rng = rng
        self._next_ms = first_ms
        self._max_ms = max_ms

    def next_ms(self) -> int:
        """How long to wait now. The following wait is twice as long, up to `max_ms`."""
        wait_ms = min(self._next_ms, self._max_ms)
        self._next_ms = min(self._next_ms * 2, self._max_ms)
        return round(wait_ms * self._rng.uniform(1 - RETRY_BACKOFF_JITTER, 1 + RETRY_BACKOFF_JITTER))
