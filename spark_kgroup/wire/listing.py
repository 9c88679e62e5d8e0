"""One look-up of offsets that goes on, partition by partition, while its caller uses the answers so far.

No partition waits for another one's leader: a silent or missing leader holds up its own partitions alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from spark_kgroup.errors import KgroupError, RequestTimedOut, WireError
from spark_kgroup.model import TopicPartition
from spark_kgroup.wire.backoff import Backoff
from spark_kgroup.wire.brokers import end_after
from spark_kgroup.wire.responses import ListedOffset

T = TypeVar("T")

Wanted = Mapping[TopicPartition, int]
Found = dict[TopicPartition, ListedOffset]
Errors = dict[TopicPartition, WireError]

_NO_LEADER_YET: Final = RequestTimedOut("No broker has said yet who leads it.")


@dataclass(frozen=True, slots=True)
class Answers(Generic[T]):
    """The answers for some partitions, and for each other partition the error that stands for its missing answer."""

    found: Mapping[TopicPartition, T]
    unanswered: Mapping[TopicPartition, WireError]


class OffsetListing:
    """Asks each leader until it has answered, or the time is up. Belongs to one event loop, and must be closed.

    Args:
        wanted: partition -> timestamp.
        by_leader: groups `wanted` by the node that leads each. A partition without a leader gets an error.
        list_at: asks one leader. It adds to the offsets found, and an error for each partition without an answer so
            far.
        check: raises an error that no further attempt can mend.
        backoff: between two attempts.
        timeout_ms: bound on all of it.
    """

    def __init__(
        self,
        wanted: Wanted,
        by_leader: Callable[[Wanted, Errors], Awaitable[Mapping[int, Wanted]]],
        list_at: Callable[[int, Wanted, Found, Errors], Coroutine[Any, Any, None]],
        check: Callable[[Found, Errors], None],
        backoff: Backoff,
        timeout_ms: int,
    ) -> None:
        self._wanted = dict(wanted)
        self._by_leader = by_leader
        self._list_at = list_at
        self._check = check
        self._backoff = backoff
        self._timeout_ms = timeout_ms
        self._found: Found = {}
        self._errors: Errors = {}
        self._failure: KgroupError | None = None
        self._task = asyncio.create_task(self._run(), name="offsets of partitions")

    @property
    def ended(self) -> bool:
        """Whether no leader is asked any more: all have answered, or the time is up."""
        return self._task.done()

    async def answers(self, patience_ms: int) -> Answers[ListedOffset]:
        """All answers, or those that came within `patience_ms`.

        Raises:
            UnknownTopic: two brokers deny a topic that was there.
            WireError: a leader's error that no further attempt can mend.
        """
        # Not `wait_for`, which would cancel the listing: it goes on after an answer without some partitions.
        await asyncio.wait([self._task], timeout=patience_ms / 1000)
        if self._task.done() and not self._task.cancelled():
            # Only a fault of our own is raised here: `_run` keeps the errors of brokers in `_failure`.
            self._task.result()
        if self._failure is not None:
            raise self._failure
        found = dict(self._found)
        return Answers(found, {tp: self._errors.get(tp, _NO_LEADER_YET) for tp in self._wanted if tp not in found})

    async def close(self) -> None:
        """Stop asking."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        try:
            async with end_after(self._timeout_ms):
                await self._ask_until_answered()
        except RequestTimedOut:
            pass  # of each partition without an answer there is an error
        except KgroupError as error:
            self._failure = error

    async def _ask_until_answered(self) -> None:
        asked: dict[asyncio.Task[None], tuple[int, Wanted]] = {}
        try:
            while left := self._wanted.keys() - self._found.keys():
                wait_s = self._backoff.next_ms() / 1000
                by_leader = await self._by_leader({tp: self._wanted[tp] for tp in left}, self._errors)
                # A silent leader is not asked twice at a time, but its partitions may have another leader by now.
                waiting = {(tp, node) for node, part in asked.values() for tp in part}
                for node, part in by_leader.items():
                    if new := {tp: at for tp, at in part.items() if (tp, node) not in waiting}:
                        work = self._list_at(node, new, self._found, self._errors)
                        asked[asyncio.create_task(work, name=f"offsets at {node}")] = node, new
                await self._wait(asked, wait_s)
        finally:
            for task in asked:
                task.cancel()
            await asyncio.gather(*asked, return_exceptions=True)

    async def _wait(self, asked: dict[asyncio.Task[None], tuple[int, Wanted]], wait_s: float) -> None:
        """Wait until another attempt is due, or all partitions have an answer."""
        pause = asyncio.create_task(asyncio.sleep(wait_s))
        try:
            while asked and not pause.done():
                done, _ = await asyncio.wait([*asked, pause], return_when=asyncio.FIRST_COMPLETED)
                for task in done - {pause}:
                    del asked[task]
                    task.result()
            self._check(self._found, self._errors)
            # All leaders may have answered with errors at once, and would be asked again in a tight loop.
            if not self._wanted.keys() <= self._found.keys():
                await pause
        finally:
            pause.cancel()
