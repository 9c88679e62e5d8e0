"""Several seats of one group on one event loop: they start, close and leave together.

Everything here runs on one loop and is not thread-safe; `runtime.thread` puts it behind blocking calls.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from random import Random

from spark_kgroup.assignors import assignor
from spark_kgroup.clock import monotonic_ms
from spark_kgroup.errors import GroupUnsettled
from spark_kgroup.limits import LEAVE_TIMEOUT_MS, STARTUP_TIMEOUT_MS
from spark_kgroup.member import contract
from spark_kgroup.member.classic import MemberConfig, PreviouslyOwned, State
from spark_kgroup.model import (
    UNKNOWN_MEMBER_ID,
    DescribedGroup,
    DescribedMember,
    MemberIdentity,
    TopicDescription,
    TopicPartition,
)
from spark_kgroup.runtime.commits import Commits
from spark_kgroup.runtime.descriptors import make_room_for
from spark_kgroup.runtime.metadata_watch import MetadataWatch
from spark_kgroup.runtime.offsets import Offsets
from spark_kgroup.runtime.previously_owned import claimable
from spark_kgroup.runtime.session import Observer, Session
from spark_kgroup.runtime.settings import GroupSettings
from spark_kgroup.runtime.topics import Topics
from spark_kgroup.runtime.views import GroupView, SeatView
from spark_kgroup.wire.cluster import Cluster

log = logging.getLogger(__name__)


class Group:
    """Several seats in one group.

    Attributes:
        topics: what brokers say of topics.
        offsets: what brokers say of offsets.
        commits: commits under the identities of the seats.

    """

    def __init__(self, settings: GroupSettings, *, observer: Observer | None = None, rng: Random | None = None) -> None:
        self.settings = settings
        self._observer = observer
        self._rng = rng or Random()
        self._cluster = Cluster(
            settings.bootstrap,
            client_id=settings.client_id,
            security=settings.security,
            request_timeout_ms=settings.request_timeout_ms,
            api_timeout_ms=settings.api_timeout_ms,
            rng=self._rng,
            alive=settings.alive,
        )
        self._sessions: dict[str | None, Session] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._changed = asyncio.Event()
        self._leave_error = 0
        self.topics = Topics(settings, self._cluster)
        self.offsets = Offsets(self._cluster, settings.group)
        self.commits = Commits(settings, self._cluster, self._rng, self._post)
        self._watch = MetadataWatch(settings, self._cluster, self._sessions, self.force_rebalance)

    # -------------------------------------------------------------------------------------------- lifetime

    async def start(self) -> None:
        """Check that the cluster answers and the topics exist, then send every seat on its way.

        Raises:
            WireError: the cluster cannot be reached, or refuses us, within `STARTUP_TIMEOUT_MS`; or seats are to come
                back, and nobody coordinates their group for `api_timeout_ms`.
            UnknownTopic: a subscribed topic does not exist.
            EnvironmentProblem: this process may not have as many file descriptors as seats.
        """
        await self.topics.refresh(timeout_ms=STARTUP_TIMEOUT_MS)
        kept = await self._describe_kept()
        previously_owned = claimable(self.settings.previously_owned, kept, self._seats()) if kept else {}
        replaced: dict[str | None, str] = {m.instance_id: m.member_id for m in kept.members} if kept else {}
        make_room_for(len(self._seats()))
        for instance_id in self._seats():
            owned_before = previously_owned.get(instance_id, PreviouslyOwned())
            config = self._member_config(instance_id, owned_before, replaced.get(instance_id, UNKNOWN_MEMBER_ID))
            session = Session(config, self._cluster, self._on_notice, self._rng)
            self._sessions[instance_id] = session
            self._tasks.append(asyncio.create_task(session.run(), name=f"seat {instance_id}"))
        self._tasks.append(asyncio.create_task(self._watch.run(), name="metadata watch"))

    def _seats(self) -> tuple[str | None, ...]:
        # A broker that has just started may not know a topic yet, and seats beyond the number are made to leave.
        missing = set(self.settings.topics) - self.topics.known.keys()
        if not self.settings.cap_seats_to_partitions or missing:
            return self.settings.instance_ids
        partitions = sum(topic.partition_count for topic in self.topics.known.values())
        return self.settings.instance_ids[: max(1, partitions)]

    async def _describe_kept(self) -> DescribedGroup | None:
        """The group as it was kept for seats that come back."""
        if not self.settings.previously_owned:
            return None
        # The cluster has answered, so its address is right: a coordinator that is away is waited for, as later on.
        return await self._cluster.describe_group(self.settings.group)

    def _member_config(self, instance_id: str | None, owned_before: PreviouslyOwned, replaces: str) -> MemberConfig:
        return MemberConfig(
            group=self.settings.group,
            instance_id=instance_id,
            topics=self.settings.topics,
            assignors=tuple(assignor(name) for name in self.settings.assignors),
            session_timeout_ms=self.settings.session_timeout_ms,
            rebalance_timeout_ms=self.settings.rebalance_timeout_ms,
            heartbeat_interval_ms=self.settings.heartbeat_interval_ms,
            previously_owned=owned_before,
            replaces=replaces,
        )

    async def close(self) -> None:
        """Stop without leaving: the seats are static and stay in place (KIP-345)."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._cluster.close()

    async def leave(self) -> None:
        """Give every seat back for good; the group rebalances.

        Raises:
            GroupUnsettled: the coordinator did not confirm it within a bound.
        """
        for session in self._sessions.values():
            session.post(contract.Leave(reason="the member leaves for good"))
        await self.wait_until(lambda _: self._all_closed(), 2 * LEAVE_TIMEOUT_MS)
        if self._leave_error or not self._all_closed():
            raise GroupUnsettled(
                f"The coordinator of group {self.settings.group!r} did not confirm that the seat was given back: "
                "it stays until its session times out."
            )

    def _all_closed(self) -> bool:
        return all(session.machine.state is State.CLOSED for session in self._sessions.values())

    def _on_notice(self, session: Session, notice: contract.Notice) -> None:
        match notice:
            case contract.Joined(rejoined=True):
                self._watch.rejoins += 1
            case contract.Left(error=code):
                self._leave_error = self._leave_error or code
            case contract.Rejoining(reason=reason):
                log.info("seat %s joins the next generation: %s", session.config.instance_id, reason)
            case contract.Lost(partitions=partitions, reason=reason):
                log.warning("seat %s lost %d partitions: %s", session.config.instance_id, len(partitions), reason)
            case _:
                log.debug("seat %s: %s", session.config.instance_id, notice)
        if self._observer is not None:
            self._observer(session, notice)
        self._changed.set()

    # ------------------------------------------------------------------------------------------ membership

    def view(self) -> GroupView:
        """The seats as they are now.

        Raises:
            KgroupError: a seat has failed for good (fenced, rejected); the error says why.
        """
        for session in self._sessions.values():
            if session.failure is not None:
                raise session.failure
        for task in self._tasks:
            if task.done() and not task.cancelled() and (bug := task.exception()) is not None:
                raise bug
        return GroupView(seats=tuple(map(_seat_view, self._sessions.values())), rejoins=self._watch.rejoins)

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
            self._changed.clear()
            try:
                async with asyncio.timeout(left_ms / 1000):
                    await self._changed.wait()
            except TimeoutError:
                pass
        return view

    def give_up(self, instance_id: str, partitions: frozenset[TopicPartition]) -> None:
        """Tell a seat that nobody reads `partitions` any more; AFTER their positions were committed."""
        self._sessions[instance_id].post(contract.GaveUp(partitions=partitions))

    def force_rebalance(self, reason: str) -> None:
        """Make the whole group join anew, once, through one of our seats."""
        session = next((s for s in self._sessions.values() if s.machine.leader), None)
        # A follower's join counts as well: its metadata differs by its generation (ClassicGroupMember.matches).
        (session or next(iter(self._sessions.values()))).post(contract.RejoinWanted(reason=reason))

    def tell_all_owned(self, topics: Mapping[str, TopicDescription]) -> None:
        """Tell a leader that came back and did not assign: the partitions in `topics` all have owners."""
        self._watch.assume_all_owned(topics)

    def _post(self, instance_id: str | None, event: contract.Event) -> None:
        self._sessions[instance_id].post(event)

    async def describe(self, timeout_ms: int | None = None) -> DescribedGroup:
        """The whole group, members of other applications included.

        Raises:
            WireError: the coordinator did not answer in time (by default `api_timeout_ms`), or refused.
        """
        return await self._cluster.describe_group(self.settings.group, timeout_ms=timeout_ms)

    async def remove_members(self, members: Iterable[DescribedMember], reason: str) -> dict[str, int]:
        """Take static members out of the group that no process serves any more (KIP-345); the group rebalances.

        Args:
            members: as described a moment ago: an instance id that another process took since is left alone.
            reason: for the coordinator's log (KIP-800).

        Returns:
            Instance id -> error code, of those that are still there.

        Raises:
            WireError: the coordinator did not answer in time; they may be gone.
        """
        leaving = [MemberIdentity(instance_id=m.instance_id, member_id=m.member_id) for m in members]
        return await self._cluster.remove_members(self.settings.group, leaving, reason)


def _seat_view(session: Session) -> SeatView:
    machine = session.machine
    return SeatView(
        instance_id=session.config.instance_id or "",
        identity=machine.identity,
        owned_since=session.owned_since,
        to_give_up=machine.to_give_up,
        settled=machine.settled,
        leader=machine.leader,
        trouble=session.trouble,
    )
