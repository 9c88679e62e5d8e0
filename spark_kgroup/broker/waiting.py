"""Requests that wait for partitions to change, as Kafka's purgatory holds a Fetch."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Final

from spark_kgroup.model import TopicPartition

_LOOK_S: Final = 1.0
"""How often a request that waits looks whether its client is still there. A client that left costs one task so long."""


class Waiting:
    """The requests of all connections that wait, by the partitions that they wait for."""

    def __init__(self) -> None:
        self._waiting: dict[TopicPartition, set[asyncio.Event]] = defaultdict(set)

    def wake(self, changed: Iterable[TopicPartition]) -> None:
        """Wake the requests that wait for one of these."""
        for at in changed:
            for event in self._waiting.get(at, ()):
                event.set()

    async def wait(self, partitions: Iterable[TopicPartition], until_s: float, is_gone: Callable[[], bool]) -> bool:
        """Wait until one of `partitions` changes, and return True, or False if that takes too long.

        Args:
            partitions: see above.
            until_s: the latest time, by the loop's clock.
            is_gone: whether the client has left, which ends the wait.
        """
        event = asyncio.Event()
        waited_for = frozenset(partitions)
        for at in waited_for:
            self._waiting[at].add(event)
        try:
            return await _wait(event, until_s, is_gone)
        finally:
            for at in waited_for:
                self._waiting[at].discard(event)
                if not self._waiting[at]:
                    del self._waiting[at]


async def _wait(event: asyncio.Event, until_s: float, is_gone: Callable[[], bool]) -> bool:
    loop = asyncio.get_running_loop()
    while not event.is_set() and not is_gone():
        left_s = until_s - loop.time()
        if left_s <= 0:
            return False
        try:
            async with asyncio.timeout(min(left_s, _LOOK_S)):
                await event.wait()
        except TimeoutError:
            continue
    return event.is_set()
