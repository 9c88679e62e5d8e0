"""Several seats of one group on one event loop: they start, close and leave together.

Everything here runs on one loop and is not thread-safe. `runtime.thread` puts it behind blocking calls.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from random import Random

from spark_kgroup.clock import monotonic_ms
from spark_kgroup.errors import BrokerError, GroupUnsettled
from spark_kgroup.limits import LEAVE_TIMEOUT_MS, STARTUP_TIMEOUT_MS
from spark_kgroup.member import contract
from spark_kgroup.model import DescribedGroup, DescribedMember, MemberIdentity, TopicPartition
from spark_kgroup.runtime.descriptors import make_room_for
from spark_kgroup.runtime.metadata_watch import MetadataWatch
from spark_kgroup.runtime.offset_committer import OffsetCommitter
from spark_kgroup.runtime.offsets import Offsets
from spark_kgroup.runtime.own_ids import OwnIds
from spark_kgroup.runtime.seats import SeatConfigs, Seats
from spark_kgroup.runtime.session import Observer, Session
from spark_kgroup.runtime.settings import GroupSettings
from spark_kgroup.runtime.target_watch import TargetWatch
from spark_kgroup.runtime.topics import PatternSubscription, Topics
from spark_kgroup.runtime.views import GroupView
from spark_kgroup.wire.cluster import Cluster
from spark_kgroup.wire.responses import CommittedOffset

log = logging.getLogger(__name__)


class Group:
    """Several seats in one group.

    Attributes:
        topics: look-ups of topics at the brokers.
        offsets: look-ups of offsets at the brokers.
        commits: commits under the identities of the seats.

    """

    def __init__(self, settings: GroupSettings, *, observer: Observer | None = None, rng: Random | None = None) -> None:
        self.settings = settings
        self._observer = observer
        rng = rng or Random()
        self._cluster = Cluster(
            settings.bootstrap,
            client_id=settings.client.client_id,
            security=settings.client.security,
            request_timeout_ms=settings.client.request_timeout_ms,
            api_timeout_ms=settings.client.api_timeout_ms,
            rng=rng,
            alive=settings.hooks.alive,
            cluster_id=settings.client.cluster_id,
            topic_ids=settings.work.topic_ids,
        )
        self.topics = Topics(settings, self._cluster)
        sessions: dict[str | None, Session] = {}
        self._pattern = PatternSubscription(settings, self.topics, sessions, self.force_rebalance)
        match_now = self._pattern.match_now if settings.pattern is not None else None
        self._seats = Seats(settings, self._cluster, rng, sessions, self._on_notice, match_now)
        self.offsets = Offsets(self._cluster, settings.group, rng, self._seats.owners, self._seats.on_refused)
        self.commits = OffsetCommitter(settings, self._cluster.coordinators, rng, self._seats.post, self._seats.newest)
        changed = self._seats.changed.set
        self._watch = MetadataWatch(settings, self._cluster, sessions, self.force_rebalance, changed)
        self._own_ids = OwnIds(settings, self._cluster, sessions, self._fits, changed)
        self._target_watch = TargetWatch(settings, self._cluster.groups, sessions, changed)
        self._configs = SeatConfigs(settings, self._cluster, self.topics, self._own_ids, rng)

    # -------------------------------------------------------------------------------------------- lifetime

    async def start(self) -> None:
        """Check that the cluster answers and the topics exist, then send every seat on its way.

        Raises:
            WireError: the cluster cannot be reached, or refuses us, within `STARTUP_TIMEOUT_MS`. Or seats are to come
                back, or committed offsets are to be seen, and no broker coordinates their group for `api_timeout_ms`.
            UnknownTopic: a subscribed topic does not exist.
            EnvironmentProblem: this process may not have as many file descriptors as seats.
        """
        began_ms = monotonic_ms()
        await self.topics.refresh(timeout_ms=STARTUP_TIMEOUT_MS)
        # A slow first look leaves a second at least. Mostly such a connection is open already, and takes no time.
        await self._cluster.brokers.reach_advertised(
            timeout_ms=max(1_000, began_ms + STARTUP_TIMEOUT_MS - monotonic_ms())
        )
        # Both come before the first join, which replaces the members that `kept` names.
        kept, _ = await asyncio.gather(self._configs.describe_kept(), self._see_committed())
        seats = self._configs.first_seats()
        make_room_for(len(seats))
        for config in await self._configs.of_first(seats, kept):
            self._seats.start(config)
        self._begin_tasks()

    def _begin_tasks(self) -> None:
        """Begin what goes on beside the seats as long as they run."""
        protocol, tasks = self.settings.protocol, self._seats.tasks
        tasks.begin(self._watch.run(), name="metadata watch")
        tasks.begin(self._seats.neighbours.run(), name="neighbours")
        if self.settings.work.reads_logs:
            tasks.begin(self.topics.watch_leaders(), name="leaders of the topics")
        if self.settings.pattern is not None:
            tasks.begin(self._pattern.run(), name="topics of the pattern")
        if protocol.is_consumer:
            tasks.begin(self._target_watch.run(), name="target watch")
        if protocol.own_ids:
            tasks.begin(self._own_ids.run(), name="own member ids")
        elif not self._own_ids.decided:
            tasks.begin(self._own_ids.decide(), name="own member ids")

    async def _see_committed(self) -> None:
        """Show `before_joining` the group's committed offsets, if it is set, BEFORE a seat joins."""
        if self.settings.hooks.before_joining is None:
            return
        committed: Mapping[TopicPartition, CommittedOffset] = {}
        try:
            committed = await self._cluster.groups.all_committed(self.settings.group)
        except BrokerError as error:
            if error.retriable:
                raise
            # A seat meets it, too, and reports it.
            log.info("the group's committed offsets could not be fetched: %s", error)
        self.settings.hooks.before_joining(committed)

    async def close(self) -> None:
        """Stop without leaving: the seats are static and stay in place (KIP-345). A dynamic one that failed has left.

        Under the consumer protocol they are released for the next process, of any application
        (`OngoingWork.releases_seats`). That takes `CLOSE_WORD_MS` at most.
        """
        await self._seats.close()
        await self.offsets.close()
        await self._cluster.close()

    async def add_seats(self, instance_ids: Iterable[str]) -> None:
        """Let more static members join, all at once: the group rebalances for all of them together (KIP-345, scale up).

        Raises:
            EnvironmentProblem: this process may not have as many file descriptors as seats.
        """
        more = list(instance_ids)
        make_room_for(len(self._seats.sessions) + len(more))
        for instance_id in more:
            self._seats.start(self._configs.of_newcomer(instance_id))
        self._seats.changed.set()

    async def remove_seats(self, instance_ids: Iterable[str], reason: str) -> None:
        """Give some seats back for good, all at once (KIP-345, scale down), AFTER their positions were committed.

        A seat whose coordinator does not confirm it stays in the group until its session times out.

        Args:
            instance_ids: of seats of ours.
            reason: for the coordinator's log (KIP-800).
        """
        leaving = self._seats.ask_to_leave(instance_ids, reason)
        await self.wait_until(lambda _: all(each.machine.ended for each in leaving), 2 * LEAVE_TIMEOUT_MS)
        self._seats.drop(leaving)
        self._target_watch.forget()

    async def leave(self) -> None:
        """Give every seat back for good. The group rebalances.

        Raises:
            GroupUnsettled: the coordinator did not confirm it within a bound.
        """
        self._seats.ask_to_leave(self._seats.sessions, "the member leaves for good")
        await self.wait_until(lambda _: self._seats.ended, 2 * LEAVE_TIMEOUT_MS)
        if self._seats.leave_error or not self._seats.ended:
            names = [repr(seat) for seat in self._seats.sessions if seat is not None]
            seats = ", ".join(names) or "of a dynamic member"
            raise GroupUnsettled(
                f"The coordinator of group {self.settings.group!r} did not confirm that the seat {seats} was given "
                "back: it stays until its session times out, or `kgroup remove-members` takes it out."
            )

    def _on_notice(self, session: Session, notice: contract.Notice) -> None:
        match notice:
            case contract.Joined(rejoined=rejoined):
                self._watch.on_joined(rejoined=rejoined)
            case contract.Assigned():
                self._watch.on_assigned()
                self._own_ids.on_assigned()
        if self._observer is not None:
            self._observer(session, notice)

    # ------------------------------------------------------------------------------------------ membership

    def view(self) -> GroupView:
        """The seats as they are now.

        Raises:
            KgroupError: a seat has failed for good (fenced, rejected). The error says why.
        """
        return GroupView(
            seats=self._seats.views(),
            look_due=self._watch.look_due,
            held=self._watch.held,
            shares_known=self._target_watch.known,
            ids_decided=self._own_ids.decided,
        )

    async def wait_until(self, condition: Callable[[GroupView], bool], timeout_ms: int) -> GroupView:
        """The first view for which `condition` holds, or the view after `timeout_ms`.

        Raises:
            KgroupError: as `view`.
        """
        deadline_ms = monotonic_ms() + timeout_ms
        while not condition(view := self.view()):
            left_ms = deadline_ms - monotonic_ms()
            if left_ms <= 0:
                break
            # The condition was looked at without an await since, so no change is missed.
            self._seats.changed.clear()
            try:
                async with asyncio.timeout(left_ms / 1000):
                    await self._seats.changed.wait()
            except TimeoutError:
                pass
        return view

    @property
    def cluster_id(self) -> str | None:
        """The id of the cluster whose brokers are believed. None if they do not say it."""
        return self._cluster.brokers.connections.cluster_id

    def wake(self) -> None:
        """Let `wait_until` look at its condition again, which may depend on more than the seats."""
        self._seats.changed.set()

    def give_up(self, instance_id: str | None, partitions: frozenset[TopicPartition]) -> None:
        """Tell a seat that its `partitions` are not read any more, AFTER their positions were committed."""
        self._seats.sessions[instance_id].post(contract.GaveUp(partitions=partitions))

    def force_rebalance(self, reason: str) -> None:
        """Make the whole group join anew, once, through one of our seats."""
        sessions = self._seats.sessions.values()
        leader = next((session for session in sessions if session.machine.leader), None)
        # A follower's join counts as well: its metadata differs by its generation (ClassicGroupMember.matches).
        (leader or next(iter(sessions))).post(contract.RejoinWanted(reason=reason))

    def _fits(self) -> bool:
        """Whether the group's assignment needs no rebalance, as far as we know."""
        return not self._watch.look_due and self._watch.held is None

    async def describe(self, timeout_ms: int | None = None) -> DescribedGroup:
        """The whole group, members of other applications included. A group that does not exist has the state "Dead".

        Raises:
            WireError: the coordinator did not answer in time (by default `api_timeout_ms`), or refused.
        """
        return await self._cluster.groups.describe(self.settings.group, timeout_ms=timeout_ms)

    async def remove_members(self, members: Iterable[DescribedMember], reason: str) -> dict[str, int]:
        """Take static members out of the group that no process serves any more (KIP-345). The group rebalances.

        Args:
            members: as described a moment ago: an instance id that another process took since is left alone.
            reason: for the coordinator's log (KIP-800).

        Returns:
            Instance id -> error code, of those that are still there.

        Raises:
            WireError: the coordinator did not answer in time. They may be gone.
        """
        leaving = [MemberIdentity(instance_id=m.instance_id, member_id=m.member_id) for m in members]
        still_there = await self._cluster.groups.remove_members(self.settings.group, leaving, reason)
        self._target_watch.forget()
        return still_there
