"""A `Group` behind blocking calls: one daemon thread, one event loop, all the seats.

The caller's thread belongs to Spark and knows nothing of asyncio. Every call has a bound; if the thread itself died,
the call raises what it died of.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Coroutine, Iterable, Mapping
from concurrent.futures import CancelledError
from concurrent.futures import TimeoutError as FutureTimeout
from typing import Any, TypeVar

from spark_kgroup.errors import GroupUnsettled
from spark_kgroup.limits import CALL_SLACK_MS, CLOSE_TIMEOUT_MS
from spark_kgroup.model import DescribedGroup, DescribedMember, TopicDescription, TopicPartition
from spark_kgroup.runtime.group import Group, GroupSettings, GroupView, SeatView
from spark_kgroup.wire.answers import CommittedOffset

T = TypeVar("T")

log = logging.getLogger(__name__)


class GroupRuntime:
    """The seats of one query, run in a thread of their own.

    Thread-safe. A context manager: leaving it closes the seats without leaving the group (KIP-345).
    """

    def __init__(self, settings: GroupSettings) -> None:
        self.settings = settings
        self._call_timeout_ms = settings.api_timeout_ms + CALL_SLACK_MS
        self._loop = asyncio.new_event_loop()
        self._group: Group | None = None
        self._thread = threading.Thread(target=self._loop.run_forever, name="kgroup", daemon=True)

    def start(self) -> None:
        """Start the thread, reach the cluster, send every seat on its way.

        Raises:
            WireError: the cluster cannot be reached, or refuses us, within the bound.
            UnknownTopic: a subscribed topic does not exist.
        """
        self._thread.start()
        try:
            self._call(self._start())
        except BaseException:
            self.close()
            raise

    async def _start(self) -> None:
        self._group = Group(self.settings)
        await self._group.start()

    def close(self) -> None:
        """Stop the seats without leaving the group, and the thread. Safe to call twice."""
        if not self._thread.is_alive():
            return
        if self._group is not None:
            group, self._group = self._group, None
            try:
                self._call(group.close(), timeout_ms=CLOSE_TIMEOUT_MS)
            except GroupUnsettled as error:
                log.warning("the group's seats did not close in time: %s", error)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(CLOSE_TIMEOUT_MS / 1000)
        if not self._thread.is_alive():
            self._loop.close()

    def __enter__(self) -> GroupRuntime:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ------------------------------------------------------------------------------------------ membership

    def view(self) -> GroupView:
        """The seats as they are now; raises what a seat failed of."""
        return self._run(lambda group: _immediate(group.view))

    def wait_until(self, condition: Callable[[GroupView], bool], timeout_ms: int) -> GroupView:
        """The first view for which `condition` holds, or the view after `timeout_ms`."""
        return self._run(lambda group: group.wait_until(condition, timeout_ms), timeout_ms + CALL_SLACK_MS)

    def give_up(self, instance_id: str, partitions: frozenset[TopicPartition]) -> None:
        """Tell a seat that nobody reads `partitions` any more; AFTER their positions were committed."""
        self._run(lambda group: _immediate(lambda: group.give_up(instance_id, partitions)))

    def remove_members(self, members: Iterable[DescribedMember], reason: str) -> dict[str, int]:
        """Take static members out of the group that no process serves any more; returns who is still there, and why."""
        return self._run(lambda group: group.remove_members(members, reason))

    def force_rebalance(self, reason: str) -> None:
        """Make the whole group join anew, once."""
        self._run(lambda group: _immediate(lambda: group.force_rebalance(reason)))

    def all_owned(self, topics: Mapping[str, TopicDescription]) -> None:
        """Tell a leader that came back and did not assign: the partitions in `topics` all have owners."""
        self._run(lambda group: _immediate(lambda: group.all_owned(topics)))

    # ------------------------------------------------------------------------------- metadata and offsets

    def topics(self, max_age_ms: int) -> Mapping[str, TopicDescription]:
        """The subscribed topics, no older than `max_age_ms`."""
        return self._run(lambda group: group.topics(max_age_ms))

    def topics_named(self, names: Iterable[str]) -> Mapping[str, TopicDescription]:
        """Those of `names` that exist, subscribed or not."""
        return self._run(lambda group: group.topics_named(names))

    def topics_gone(self, names: Iterable[str]) -> frozenset[str]:
        """Those of `names` that brokers do not know."""
        return self._run(lambda group: group.topics_gone(names))

    def end_offsets(self, partitions: Iterable[TopicPartition], *, read_committed: bool) -> dict[TopicPartition, int]:
        """One past the last readable offset of each partition."""
        return self._run(lambda group: group.end_offsets(partitions, read_committed=read_committed))

    def start_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """The first offset that each partition still has."""
        return self._run(lambda group: group.start_offsets(partitions))

    def log_ranges(
        self, partitions: Iterable[TopicPartition], *, read_committed: bool
    ) -> dict[TopicPartition, tuple[int, int]]:
        """The first offset of each partition, and one past the last readable one."""
        return self._run(lambda group: group.log_ranges(partitions, read_committed=read_committed))

    def committed(
        self, partitions: Iterable[TopicPartition], timeout_ms: int | None = None
    ) -> dict[TopicPartition, CommittedOffset | None]:
        """What the group has committed for each partition, with what was written beside it; None where nothing is."""
        return self._run(lambda group: group.committed(partitions, timeout_ms))

    def describe(self, timeout_ms: int | None = None) -> DescribedGroup:
        """The whole group, members of other applications included."""
        return self._run(lambda group: group.describe(timeout_ms))

    def commit(
        self, positions: Mapping[str, tuple[SeatView, Mapping[TopicPartition, int]]]
    ) -> frozenset[TopicPartition]:
        """Commit for several seats at once; returns the partitions whose commit was acknowledged.

        Args:
            positions: instance id -> (the seat's view under which ownership was checked, its positions).
        """

        async def all_seats(group: Group) -> frozenset[TopicPartition]:
            acknowledged = await asyncio.gather(*(group.commit(seat, offsets) for seat, offsets in positions.values()))
            return frozenset().union(*acknowledged)

        return self._run(all_seats)

    def commit_refusal(self) -> str:
        """Why the last commit of each seat was not acknowledged; empty if all were."""
        return self._run(lambda group: _immediate(lambda: group.commit_refusal))

    # ---------------------------------------------------------------------------------------------- inside

    def _run(self, work: Callable[[Group], Coroutine[Any, Any, T]], timeout_ms: int | None = None) -> T:
        group = self._group
        if group is None:
            raise GroupUnsettled("The group runtime is closed; this stream reader cannot be used any more.")
        return self._call(work(group), timeout_ms)

    def _call(self, work: Coroutine[Any, Any, T], timeout_ms: int | None = None) -> T:
        timeout_ms = timeout_ms or self._call_timeout_ms
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result(timeout_ms / 1000)
        except FutureTimeout:
            if future.done():
                raise  # the work's own
            future.cancel()
            raise GroupUnsettled(f"The group runtime did not answer within {timeout_ms} ms.") from None
        except CancelledError:
            raise GroupUnsettled("The group runtime was closed while it was asked.") from None


async def _immediate(work: Callable[[], T]) -> T:
    return work()
