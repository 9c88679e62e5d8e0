"""A `Group` behind blocking calls: one daemon thread, one event loop, all the seats.

The caller's thread needs no asyncio. Every call has a bound. If the thread itself died, the call raises
`GroupUnsettled` at that bound.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from concurrent.futures import TimeoutError as FutureTimeout
from typing import Any, TypeVar

from spark_kgroup.errors import GroupUnsettled
from spark_kgroup.limits import CALL_SLACK_MS, CLOSE_TIMEOUT_MS
from spark_kgroup.model import DescribedGroup, DescribedMember, TopicDescription, TopicPartition
from spark_kgroup.runtime.group import Group
from spark_kgroup.runtime.settings import GroupSettings
from spark_kgroup.runtime.views import GroupView, SeatCommit
from spark_kgroup.wire.listing import Answers, OffsetListing
from spark_kgroup.wire.responses import CommittedOffset
from spark_kgroup.wire.witnesses import NamedLeader

T = TypeVar("T")

log = logging.getLogger(__name__)


class GroupRuntime:
    """The seats of one application, run in a thread of their own.

    Thread-safe. A context manager: leaving it closes the seats without leaving the group (KIP-345).

    A call between start and close acts, returns and raises as the method that its docstring names. It also raises
    `GroupUnsettled` if the thread did not answer within the bound.

    Attributes:
        logs: look-ups of where logs begin and end.

    """

    def __init__(self, settings: GroupSettings) -> None:
        self.settings = settings
        self._thread = GroupThread(settings)
        self.logs = Logs(self._thread)

    def start(self) -> None:
        """Start the thread, reach the cluster, send every seat on its way.

        Raises:
            WireError: the cluster cannot be reached, or refuses us, within the bound.
            UnknownTopic: a subscribed topic does not exist.
        """
        self._thread.start()

    def close(self) -> None:
        """Stop the seats without leaving the group, and the thread. Safe to call twice."""
        self._thread.close()

    def __enter__(self) -> GroupRuntime:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ------------------------------------------------------------------------------------------ membership

    def view(self) -> GroupView:
        """`Group.view`."""
        return self._thread.run(lambda group: _immediate(group.view))

    def wait_until(self, condition: Callable[[GroupView], bool], timeout_ms: int) -> GroupView:
        """`Group.wait_until`."""
        return self._thread.run(lambda group: group.wait_until(condition, timeout_ms), timeout_ms + CALL_SLACK_MS)

    def give_up(self, instance_id: str, partitions: frozenset[TopicPartition]) -> None:
        """`Group.give_up`."""
        self._thread.run(lambda group: _immediate(lambda: group.give_up(instance_id, partitions)))

    def cluster_id(self) -> str | None:
        """`Group.cluster_id`."""
        return self._thread.run(lambda group: _immediate(lambda: group.cluster_id))

    def remove_members(self, members: Iterable[DescribedMember], reason: str) -> dict[str, int]:
        """`Group.remove_members`."""
        return self._thread.run(lambda group: group.remove_members(members, reason))

    def add_seats(self, instance_ids: Iterable[str]) -> None:
        """`Group.add_seats`."""
        self._thread.run(lambda group: group.add_seats(instance_ids))

    def remove_seats(self, instance_ids: Iterable[str], reason: str) -> None:
        """`Group.remove_seats`."""
        self._thread.run(lambda group: group.remove_seats(instance_ids, reason))

    def force_rebalance(self, reason: str) -> None:
        """`Group.force_rebalance`."""
        self._thread.run(lambda group: _immediate(lambda: group.force_rebalance(reason)))

    def describe(self, timeout_ms: int | None = None) -> DescribedGroup:
        """`Group.describe`."""
        return self._thread.run(lambda group: group.describe(timeout_ms))

    # ------------------------------------------------------------------------- topics and committed offsets

    def topics(self, max_age_ms: int) -> Mapping[str, TopicDescription]:
        """`Topics.subscribed`."""
        return self._thread.run(lambda group: group.topics.subscribed(max_age_ms))

    def topics_named(self, names: Iterable[str]) -> Mapping[str, TopicDescription]:
        """`Topics.named`."""
        return self._thread.run(lambda group: group.topics.named(names))

    def topics_gone(self, names: Iterable[str]) -> frozenset[str]:
        """`Topics.gone`."""
        return self._thread.run(lambda group: group.topics.gone(names))

    def committed(
        self, partitions: Iterable[TopicPartition], timeout_ms: int | None = None
    ) -> dict[TopicPartition, CommittedOffset | None]:
        """`Offsets.committed`."""
        return self._thread.run(lambda group: group.offsets.committed(partitions, timeout_ms))

    def committed_answers(
        self, partitions: Iterable[TopicPartition], patience_ms: int
    ) -> Answers[CommittedOffset | None]:
        """`Offsets.committed_answers`."""
        return self._thread.run(lambda group: group.offsets.committed_answers(partitions, patience_ms))

    def commit(self, commits: Sequence[SeatCommit]) -> frozenset[TopicPartition]:
        """`OffsetCommitter.commit`, for several seats at once."""

        async def all_seats(group: Group) -> frozenset[TopicPartition]:
            each_seat = (group.commits.commit(each.seat.identity, each.positions, each.topic_ids) for each in commits)
            return frozenset().union(*await asyncio.gather(*each_seat))

        return self._thread.run(all_seats)

    def commit_refusal(self) -> str:
        """`OffsetCommitter.refusal`."""
        return self._thread.run(lambda group: _immediate(lambda: group.commits.refusal))


class Logs:
    """Where the logs of partitions begin and end: `Offsets` behind blocking calls, which raise as `GroupRuntime`'s."""

    def __init__(self, thread: GroupThread) -> None:
        self._thread = thread

    def begin_ends(self, partitions: Iterable[TopicPartition], *, read_committed: bool) -> EndListing:
        """Begin `Offsets.begin_ends`. Other calls go on beside it."""
        begun = self._thread.begin(lambda group: group.offsets.begin_ends(partitions, read_committed=read_committed))
        return EndListing(begun, self._thread)

    def ends(self, partitions: Iterable[TopicPartition], patience_ms: int, *, read_committed: bool) -> Answers[int]:
        """The end offset of each partition (see `Offsets.ends`)."""
        return self._thread.run(
            lambda group: group.offsets.ends(partitions, patience_ms, read_committed=read_committed)
        )

    def starts(self, partitions: Iterable[TopicPartition], patience_ms: int) -> Answers[int]:
        """`Offsets.starts`."""
        return self._thread.run(lambda group: group.offsets.starts(partitions, patience_ms))

    def at(self, timestamps: Mapping[TopicPartition, int], patience_ms: int, *, read_committed: bool) -> Answers[int]:
        """`Offsets.at`."""
        return self._thread.run(lambda group: group.offsets.at(timestamps, patience_ms, read_committed=read_committed))

    def ranges(
        self, partitions: Iterable[TopicPartition], patience_ms: int, *, read_committed: bool
    ) -> Answers[tuple[int, int, int]]:
        """`Offsets.ranges`."""
        return self._thread.run(
            lambda group: group.offsets.ranges(partitions, patience_ms, read_committed=read_committed)
        )

    def ask_another_broker(
        self, partitions: Iterable[TopicPartition], patience_ms: int
    ) -> dict[TopicPartition, tuple[NamedLeader, ...]]:
        """`Topics.ask_another_broker`."""
        return self._thread.run(lambda group: group.topics.ask_another_broker(partitions, patience_ms))


class EndListing:
    """Where logs end, as far as leaders have answered: they are asked on and on until they do, for `api_timeout_ms`."""

    def __init__(self, begun: Callable[[], OffsetListing], thread: GroupThread) -> None:
        self._begun = begun
        self._thread = thread
        self._listing: OffsetListing | None = None

    def answers(self, patience_ms: int) -> Answers[int]:
        """The answers when all are there, at the latest after `patience_ms`. Raises as `OffsetListing.answers`."""
        listing = self._listing = self._listing or self._begun()
        return self._thread.run(lambda _: _ends(listing, patience_ms), patience_ms + CALL_SLACK_MS)

    @property
    def ended(self) -> bool:
        """No leader is asked any more: all have answered, or the time is up."""
        return self._listing is not None and self._listing.ended


class GroupThread:
    """The daemon thread whose event loop runs a group, and calls into it with a bound. Thread-safe."""

    def __init__(self, settings: GroupSettings) -> None:
        self._settings = settings
        self._call_timeout_ms = settings.client.api_timeout_ms + CALL_SLACK_MS
        self._loop = asyncio.new_event_loop()
        self._group: Group | None = None
        self._thread = threading.Thread(target=self._loop.run_forever, name="kgroup", daemon=True)

    def start(self) -> None:
        """Start the thread, and the group in it. Raises as `Group.start`."""
        self._thread.start()
        try:
            self._call(self._start())
        except BaseException:
            self.close()
            raise

    async def _start(self) -> None:
        self._group = Group(self._settings)
        await self._group.start()

    def close(self) -> None:
        """Stop the group and the thread. Safe to call twice."""
        if not self._thread.is_alive():
            return
        if self._group is not None:
            # From here on calls are refused, and do not wait for a loop that is about to stop.
            group, self._group = self._group, None
            try:
                self._call(group.close(), timeout_ms=CLOSE_TIMEOUT_MS)
            except GroupUnsettled as error:
                log.warning("the group's seats did not close in time: %s", error)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(CLOSE_TIMEOUT_MS / 1000)
        # A running loop cannot be closed. Its thread is a daemon, which does not delay the exit of the process.
        if not self._thread.is_alive():
            self._loop.close()

    def run(self, work: Callable[[Group], Coroutine[Any, Any, T]], timeout_ms: int | None = None) -> T:
        """The result of `work` on the group.

        Raises:
            GroupUnsettled: the result was not there within `timeout_ms`, by default `api_timeout_ms` and
                `CALL_SLACK_MS`, or the group is closed.
        """
        return self.begin(work, timeout_ms)()

    def begin(self, work: Callable[[Group], Coroutine[Any, Any, T]], timeout_ms: int | None = None) -> Callable[[], T]:
        """Begin `work`. The returned call waits for its end, and returns and raises as `run`."""
        group = self._group
        if group is None:
            raise GroupUnsettled("The group runtime is closed: this stream reader cannot be used any more.")
        future = asyncio.run_coroutine_threadsafe(work(group), self._loop)
        return lambda: self._await(future, timeout_ms or self._call_timeout_ms)

    def _call(self, work: Coroutine[Any, Any, T], timeout_ms: int | None = None) -> T:
        return self._await(asyncio.run_coroutine_threadsafe(work, self._loop), timeout_ms or self._call_timeout_ms)

    def _await(self, future: Future[T], timeout_ms: int) -> T:
        try:
            return future.result(timeout_ms / 1000)
        except FutureTimeout:
            if future.done():
                raise  # the work's own
            future.cancel()
            raise GroupUnsettled(f"The group runtime did not answer within {timeout_ms} ms.") from None
        except CancelledError:
            raise GroupUnsettled("The group runtime was closed while it was asked.") from None


async def _ends(listing: OffsetListing, patience_ms: int) -> Answers[int]:
    listed = await listing.answers(patience_ms)
    return Answers({tp: found.offset for tp, found in listed.found.items()}, listed.unanswered)


async def _immediate(work: Callable[[], T]) -> T:
    return work()
