"""Prefetchers for a seat's server: they fetch the records of its partitions into the seat's `PrefetchBuffer`.

Runs on: executor.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Protocol, TypeVar

from pyspark_kgroup.executor.native.decode import Unusual
from pyspark_kgroup.executor.native.fetched_log import Verdict
from pyspark_kgroup.limits import NATIVE_RETRY_MS
from pyspark_kgroup.shared.tickets import Leader
from spark_kgroup.model import TopicPartition

log = logging.getLogger(__name__)

T = TypeVar("T")


class CannotServe(Exception):
    """A seat's server cannot go on. It is logged, the server ends, and its worker reads directly."""


class Readable(Protocol):
    """A connection that `select` can wait for."""

    def fileno(self) -> int:
        """Its file descriptor."""
        ...


class Prefetcher(Protocol):
    """Fetches partitions that have a span in an `PrefetchBuffer`, each from the end of its span on.

    All methods but `end` and `close` raise `CannotServe` if a partition cannot be read, and the native one `Unusual`.
    """

    def begin(self, leaders: Mapping[TopicPartition, Leader | None]) -> None:
        """Fetch these from now on. Those that are fetched already go on, from another broker if that leads by now."""
        ...

    def end(self, partitions: Collection[TopicPartition]) -> None:
        """Stop fetching these. Their records that are not in a span yet are forgotten."""
        ...

    def settle(self) -> None:
        """Put all records that have come into the spans."""
        ...

    def go_on(self) -> float | None:
        """Between reads: fetch ahead, as far as there is room.

        Returns:
            How many seconds to wait for `connections` before `take`, or None to wait until one of them is readable.
        """
        ...

    def connections(self) -> Sequence[Readable]:
        """The connections on which records may come."""
        ...

    def take(self) -> None:
        """Between reads: take the records that have come."""
        ...

    def fetch(self, unread: Mapping[TopicPartition, int]) -> None:
        """In a read: put the records of these partitions that have come into their spans. Wait briefly for the first.

        Args:
            unread: partition -> one past the last offset that is wanted now.
        """
        ...

    def close(self) -> None:
        """Close its connections or its consumer. Safe to call twice."""
        ...


class NativeFirst:
    """Fetches natively. Where that raises `Unusual`, librdkafka goes on, for `NATIVE_RETRY_MS` at least.

    Args:
        native: makes a prefetcher that may raise `Unusual`.
        librdkafka: makes the one that goes on then.
        clock_s: monotonic.
    """

    def __init__(
        self,
        native: Callable[[], Prefetcher],
        librdkafka: Callable[[], Prefetcher],
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._native = native
        self._librdkafka = librdkafka
        self._clock_s = clock_s
        self._prefetcher = native()
        self._native_again_at_s: float | None = None
        self._leaders: dict[TopicPartition, Leader | None] = {}

    def begin(self, leaders: Mapping[TopicPartition, Leader | None]) -> None:
        """As a `Prefetcher`. Each read begins with this call, so the native one gets its next chance here."""
        self._leaders |= leaders
        if self._native_again_at_s is not None and self._clock_s() >= self._native_again_at_s:
            self._native_again_at_s = None
            self._use(self._native())
        self._do(lambda prefetcher: prefetcher.begin(leaders))

    def end(self, partitions: Collection[TopicPartition]) -> None:
        """As a `Prefetcher`."""
        for partition in partitions:
            self._leaders.pop(partition, None)
        self._prefetcher.end(partitions)

    def settle(self) -> None:
        """As a `Prefetcher`."""
        self._do(lambda prefetcher: prefetcher.settle())

    def go_on(self) -> float | None:
        """As a `Prefetcher`."""
        return self._do(lambda prefetcher: prefetcher.go_on())

    def connections(self) -> Sequence[Readable]:
        """As a `Prefetcher`."""
        return self._prefetcher.connections()

    def take(self) -> None:
        """As a `Prefetcher`."""
        self._do(lambda prefetcher: prefetcher.take())

    def fetch(self, unread: Mapping[TopicPartition, int]) -> None:
        """As a `Prefetcher`."""
        self._do(lambda prefetcher: prefetcher.fetch(unread))

    def close(self) -> None:
        """As a `Prefetcher`."""
        self._prefetcher.close()

    def _do(self, what: Callable[[Prefetcher], T]) -> T:
        try:
            return what(self._prefetcher)
        except Verdict as verdict:  # librdkafka would not see it. The worker reads on directly, and reports it
            raise CannotServe(verdict.reason) from None
        except Unusual as unusual:
            if unusual.lasting:
                unusual.tell()
            else:
                log.warning("Fetching with librdkafka for %d s: %s.", NATIVE_RETRY_MS / 1000, unusual.reason)
            self._native_again_at_s = self._clock_s() + NATIVE_RETRY_MS / 1000
            self._use(self._librdkafka())
            return what(self._prefetcher)

    def _use(self, prefetcher: Prefetcher) -> None:
        """Go on with this one, from where the spans end."""
        self._prefetcher.close()
        self._prefetcher = prefetcher
        prefetcher.begin(self._leaders)
