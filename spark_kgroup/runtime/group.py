"""Several seats of one group on one event loop: they start, close and leave together.

Everything here runs on one loop and is not thread-safe. `runtime.thread` puts it behind blocking calls.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from random import Random

from spark_kgroup.assignors import assignors_called
from spark_kgroup.clock import monotonic_ms
from spark_kgroup.errors import BrokerError, GroupError, GroupUnsettled, KgroupError, WireError
from spark_kgroup.limits import CLOSE_WORD_MS, LEAVE_TIMEOUT_MS, STARTUP_TIMEOUT_MS
from spark_kgroup.member import contract
from spark_kgroup.member.config import ConsumerMemberConfig, MemberConfig, PreviouslyOwned, Resumption
from spark_kgroup.member.consumer_contract import NewsExpected
from spark_kgroup.member.machine import Config
from spark_kgroup.member.member_ids import new_member_id
from spark_kgroup.model import (
    UNKNOWN_MEMBER_ID,
    DescribedGroup,
    DescribedMember,
    MemberIdentity,
    TopicPartition,
)
from spark_kgroup.runtime.commits import Commits
from spark_kgroup.runtime.consumer_calls import session_timeout_ms
from spark_kgroup.runtime.descriptors import make_room_for
from spark_kgroup.runtime.join_nudge import JoinNudge
from spark_kgroup.runtime.metadata_watch import MetadataWatch
from spark_kgroup.runtime.offsets import Offsets
from spark_kgroup.runtime.own_ids import OwnIds
from spark_kgroup.runtime.previously_owned import claimable
from spark_kgroup.runtime.resumptions import resumable, with_topic_ids
from spark_kgroup.runtime.session import Observer, Session
from spark_kgroup.runtime.settings import GroupSettings
from spark_kgroup.runtime.shares import Shares
from spark_kgroup.runtime.topics import Topics
from spark_kgroup.runtime.views import GroupView, SeatView
from spark_kgroup.tasks import TaskSet
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
        self._rng = rng or Random()
        self._cluster = Cluster(
            settings.bootstrap,
            client_id=settings.client.client_id,
            security=settings.client.security,
            request_timeout_ms=settings.client.request_timeout_ms,
            api_timeout_ms=settings.client.api_timeout_ms,
            rng=self._rng,
            alive=settings.hooks.alive,
        )
        self._sessions: dict[str | None, Session] = {}
        self._seat_tasks: dict[str | None, asyncio.Task[None]] = {}
        self._tasks = TaskSet(self._on_failure)
        self._changed = asyncio.Event()
        self._leave_error = 0
        self._session_timeout_ms = settings.protocol.session_timeout_ms
        self.topics = Topics(settings, self._cluster)
        self.offsets = Offsets(self._cluster, settings.group, self._rng, self._askers, self._on_refused)
        self.commits = Commits(settings, self._cluster, self._rng, self._post, self._newest)
        self._watch = MetadataWatch(settings, self._cluster, self._sessions, self.force_rebalance, self._changed.set)
        self._own_ids = OwnIds(settings, self._cluster, self._sessions, self._fits, self._changed.set)
        self._join_nudge = JoinNudge(self._sessions, settings.protocol.heartbeat_interval_ms)
        self._shares = Shares(settings, self._cluster, self._sessions, self._changed.set)
        self._resumptions: Mapping[str | None, Resumption] = {}

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
        await self._cluster.reach_advertised(timeout_ms=max(1_000, began_ms + STARTUP_TIMEOUT_MS - monotonic_ms()))
        kept, _ = await asyncio.gather(self._describe_kept(), self._see_committed())
        previously_owned = claimable(self.settings.work.previously_owned, kept, self._seats()) if kept else {}
        replaced: dict[str | None, str] = {m.instance_id: m.member_id for m in kept.members} if kept else {}
        make_room_for(len(self._seats()))
        if self.settings.protocol.is_consumer:
            await self._prepare_consumer_protocol(kept)
        for instance_id in self._seats():
            owned_before = previously_owned.get(instance_id, PreviouslyOwned())
            self._start_seat(instance_id, owned_before, replaced.get(instance_id, UNKNOWN_MEMBER_ID))
        self._tasks.begin(self._watch.run(), name="metadata watch")
        self._tasks.begin(self._join_nudge.run(), name="join nudge")
        if self.settings.pattern is not None:
            self._tasks.begin(self._follow_pattern(), name="topics of the pattern")
        if self.settings.protocol.is_consumer:
            self._tasks.begin(self._shares.run(), name="shares")
        if self.settings.protocol.own_ids:
            self._tasks.begin(self._own_ids.run(), name="own member ids")
        elif not self._own_ids.decided:
            self._tasks.begin(self._own_ids.decide(), name="own member ids")

    def _start_seat(self, instance_id: str | None, owned_before: PreviouslyOwned, replaces: str) -> None:
        session = Session(
            self._member_config(instance_id, owned_before, replaces),
            self._cluster,
            self._on_notice,
            self._rng,
            self._join_nudge.on_join_sent,
            partial(self.settings.hooks.rack_of, instance_id),
            self._match_now if self.settings.pattern is not None else None,
        )
        self._sessions[instance_id] = session
        self._seat_tasks[instance_id] = self._tasks.begin(session.run(), name=f"seat {instance_id}")

    def _on_failure(self, bug: BaseException) -> None:
        for session in self._sessions.values():
            session.fail(GroupError(str(bug)) if isinstance(bug, KgroupError) else bug)  # one for each: it is named
        self._changed.set()

    async def _follow_pattern(self) -> None:
        """Match the pattern each `metadata_max_age_ms`, with one rebalance for all topics that came and went."""
        while True:
            await asyncio.sleep(self.settings.client.metadata_max_age_ms / 1000)
            try:
                await self.topics.refresh(timeout_ms=self.settings.client.request_timeout_ms)
            except WireError as error:
                log.info("no look at the pattern's topics this time: %s", error)
                continue
            changed = self._subscribe()
            if changed and self.settings.protocol.is_consumer:
                for session in self._sessions.values():
                    session.post(NewsExpected())  # each seat sends its own subscription
            elif changed:
                self.force_rebalance(changed)

    async def _match_now(self) -> None:
        await self.topics.match_now()
        self._subscribe()

    def _subscribe(self) -> str:
        """Let all seats subscribe to the topics that the pattern matches now, and name the changes."""
        names = self.topics.names
        behind = [s.machine for s in self._sessions.values() if s.config.topics != names]
        if not behind:
            return ""
        before = set(behind[0].config.topics)
        for machine in behind:
            machine.subscribe(names)
        came, went = set(names) - before, before - set(names)
        return f"the pattern's topics changed: {len(came)} came, {len(went)} went"

    async def _prepare_consumer_protocol(self, kept: DescribedGroup | None) -> None:
        """Ask how long seats may be silent, and find those that have an earlier process's work to finish."""
        self._session_timeout_ms = await session_timeout_ms(self._cluster, self.settings.group)
        log.info(
            "group %r: members may be silent for %d ms, as its brokers want it (the group's "
            "consumer.session.timeout.ms): a restart that takes longer moves partitions",
            self.settings.group,
            self._session_timeout_ms,
        )
        if kept is None:
            return
        owing = resumable(self.settings.work.previously_owned, kept, self._seats(), self.topics.names)
        names = {tp.topic for each in owing.values() for tp in each.owned}
        if names:
            topics = (await self._cluster.metadata(names)).topics
            self._resumptions = {name: with_topic_ids(each, topics) for name, each in owing.items()}

    def _seats(self) -> tuple[str | None, ...]:
        # A broker that has just started may not know a topic yet, and seats beyond the number are made to leave.
        missing = set(self.settings.topics) - self.topics.known.keys()
        if not self.settings.cap_seats_to_partitions or missing or self.settings.pattern is not None:
            return self.settings.instance_ids
        partitions = sum(topic.partition_count for topic in self.topics.known.values())
        return self.settings.instance_ids[: max(1, partitions)]

    async def _describe_kept(self) -> DescribedGroup | None:
        """The group's description, or None if no seat comes back to partitions of an earlier process."""
        if not self.settings.work.previously_owned:
            return None
        # The cluster has answered, so its address is right: a coordinator that is away is waited for, as later on.
        return await self._cluster.describe_group(self.settings.group)

    async def _see_committed(self) -> None:
        """Show `before_joining` the group's committed offsets, if it is set, BEFORE a seat joins."""
        if self.settings.hooks.before_joining is None:
            return
        committed: Mapping[TopicPartition, CommittedOffset] = {}
        try:
            committed = await self._cluster.all_committed(self.settings.group)
        except BrokerError as error:
            if error.retriable:
                raise
            log.info("what the group has committed is not known: %s", error)  # a seat meets it, too, and reports it
        self.settings.hooks.before_joining(committed)

    def _member_config(self, instance_id: str | None, owned_before: PreviouslyOwned, replaces: str) -> Config:
        if self.settings.protocol.is_consumer:
            return ConsumerMemberConfig(
                group=self.settings.group,
                instance_id=instance_id,
                topics=self.topics.names,
                regex=(self.settings.pattern and self.settings.pattern.re2) or "",
                server_assignor=self.settings.protocol.server_assignor,
                session_timeout_ms=self._session_timeout_ms,
                rebalance_timeout_ms=self.settings.protocol.rebalance_timeout_ms,
                resumes=self._resumptions.get(instance_id),
            )
        own_ids = self.settings.protocol.own_ids or not self._own_ids.decided
        return MemberConfig(
            group=self.settings.group,
            instance_id=instance_id,
            topics=self.topics.names,
            assignors=assignors_called(self.settings.protocol.assignors),
            session_timeout_ms=self.settings.protocol.session_timeout_ms,
            rebalance_timeout_ms=self.settings.protocol.rebalance_timeout_ms,
            heartbeat_interval_ms=self.settings.protocol.heartbeat_interval_ms,
            previously_owned=owned_before,
            replaces=replaces,
            own_id=new_member_id(self._rng.randbytes) if own_ids and instance_id else UNKNOWN_MEMBER_ID,
        )

    async def close(self) -> None:
        """Stop without leaving: the seats are static and stay in place (KIP-345). A dynamic one that failed has left.

        Under the consumer protocol they are released for the next process, of any application
        (`OngoingWork.releases_seats`). That takes `CLOSE_WORD_MS` at most.
        """
        if self._seat_tasks and self.settings.work.releases_seats:
            for session in self._sessions.values():
                session.post(contract.Close())
            await asyncio.wait(self._seat_tasks.values(), timeout=CLOSE_WORD_MS / 1000)
        failed = [self._seat_tasks[seat] for seat, session in self._sessions.items() if session.failure is not None]
        if failed:  # a dynamic member that has failed is leaving
            await asyncio.wait(failed, timeout=LEAVE_TIMEOUT_MS / 1000)
        await self._tasks.end()
        await self.offsets.close()
        await self._cluster.close()

    async def add_seats(self, instance_ids: Iterable[str]) -> None:
        """Let more static members join, all at once: the group rebalances for all of them together (KIP-345, scale up).

        Raises:
            EnvironmentProblem: this process may not have as many file descriptors as seats.
        """
        more = list(instance_ids)
        make_room_for(len(self._sessions) + len(more))
        for instance_id in more:
            self._start_seat(instance_id, PreviouslyOwned(), UNKNOWN_MEMBER_ID)
        self._changed.set()

    async def remove_seats(self, instance_ids: Iterable[str], reason: str) -> None:
        """Give some seats back for good, all at once (KIP-345, scale down), AFTER their positions were committed.

        A seat whose coordinator does not confirm it stays in the group until its session times out.

        Args:
            instance_ids: of seats of ours.
            reason: for the coordinator's log (KIP-800).
        """
        leaving = {instance_id: self._sessions[instance_id] for instance_id in instance_ids}
        for session in leaving.values():
            session.post(contract.Leave(reason=reason))
        await self.wait_until(lambda _: all(each.machine.ended for each in leaving.values()), 2 * LEAVE_TIMEOUT_MS)
        for instance_id in leaving:
            del self._sessions[instance_id]
            self._seat_tasks.pop(instance_id).cancel()
        self._leave_error = 0
        self._shares.forget()
        self._changed.set()

    async def leave(self) -> None:
        """Give every seat back for good. The group rebalances.

        Raises:
            GroupUnsettled: the coordinator did not confirm it within a bound.
        """
        for session in self._sessions.values():
            session.post(contract.Leave(reason="the member leaves for good"))
        await self.wait_until(lambda _: self._all_closed(), 2 * LEAVE_TIMEOUT_MS)
        if self._leave_error or not self._all_closed():
            seats = ", ".join(repr(seat) for seat in self._sessions if seat is not None) or "of a dynamic member"
            raise GroupUnsettled(
                f"The coordinator of group {self.settings.group!r} did not confirm that the seat {seats} was given "
                "back: it stays until its session times out, or `kgroup remove-members` takes it out."
            )

    def _all_closed(self) -> bool:
        return all(session.machine.ended for session in self._sessions.values())

    def _on_notice(self, session: Session, notice: contract.Notice) -> None:
        log.debug("seat %s: %s", session.config.instance_id, notice)
        match notice:
            case contract.Joined(rejoined=rejoined):
                self._watch.on_joined(rejoined=rejoined)
            case contract.Assigned():
                self._watch.on_assigned()
                self._own_ids.on_assigned()
            case contract.Left(error=code):
                self._leave_error = self._leave_error or code
            case contract.Rejoining(reason=reason):
                log.info("seat %s joins the next generation: %s", session.config.instance_id, reason)
            case contract.Lost(partitions=partitions, reason=reason):
                log.warning("seat %s lost %d partitions: %s", session.config.instance_id, len(partitions), reason)
        if self._observer is not None:
            self._observer(session, notice)
        self._changed.set()

    # ------------------------------------------------------------------------------------------ membership

    def view(self) -> GroupView:
        """The seats as they are now.

        Raises:
            KgroupError: a seat has failed for good (fenced, rejected). The error says why.
        """
        for session in self._sessions.values():
            if session.failure is not None:
                raise session.failure
        seats = tuple(map(_seat_view, self._sessions.values()))
        return GroupView(
            seats=seats,
            look_due=self._watch.look_due,
            held=self._watch.held,
            shares_known=self._shares.known,
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
            self._changed.clear()
            try:
                async with asyncio.timeout(left_ms / 1000):
                    await self._changed.wait()
            except TimeoutError:
                pass
        return view

    def give_up(self, instance_id: str | None, partitions: frozenset[TopicPartition]) -> None:
        """Tell a seat that its `partitions` are not read any more, AFTER their positions were committed."""
        self._sessions[instance_id].post(contract.GaveUp(partitions=partitions))

    def force_rebalance(self, reason: str) -> None:
        """Make the whole group join anew, once, through one of our seats."""
        session = next((s for s in self._sessions.values() if s.machine.leader), None)
        # A follower's join counts as well: its metadata differs by its generation (ClassicGroupMember.matches).
        (session or next(iter(self._sessions.values()))).post(contract.RejoinWanted(reason=reason))

    def _fits(self) -> bool:
        """Whether the group's assignment needs no rebalance, as far as we know."""
        return not self._watch.look_due and self._watch.held is None

    def _post(self, instance_id: str | None, event: contract.Event) -> None:
        if instance_id in self._sessions:  # else it was removed meanwhile
            self._sessions[instance_id].post(event)

    def _newest(self, who: MemberIdentity, partitions: Iterable[TopicPartition]) -> MemberIdentity:
        """The newest identity of `who`, if it has held all of `partitions` since the epoch of `who`, else `who`."""
        session = self._sessions.get(who.instance_id)
        if session is None:
            return who
        # Partitions to give up that this process never owned are an earlier one's, and were held all the while.
        inherited = session.machine.to_give_up - session.owned_since.keys()
        since = [session.owned_since.get(tp) for tp in partitions if tp not in inherited]
        held = all(each is not None and each.generation <= who.generation for each in since)
        now = session.machine.identity
        return now if held and now.member_id == who.member_id else who

    def _askers(self, partitions: Iterable[TopicPartition]) -> dict[MemberIdentity | None, list[TopicPartition]]:
        """`partitions` by the member of ours that owns them under the consumer protocol, None for those without one."""
        members = [s.machine for s in self._sessions.values() if s.machine.in_generation]
        owner = {tp: m.identity for m in members for tp in m.owned} if self.settings.protocol.is_consumer else {}
        found: dict[MemberIdentity | None, list[TopicPartition]] = {}
        for tp in partitions:
            found.setdefault(owner.get(tp), []).append(tp)
        return found

    def _on_refused(self, who: MemberIdentity, error: int) -> None:
        self._post(who.instance_id, contract.MembershipRefused(identity=who, error=error))

    async def describe(self, timeout_ms: int | None = None) -> DescribedGroup:
        """The whole group, members of other applications included.

        Raises:
            WireError: the coordinator did not answer in time (by default `api_timeout_ms`), or refused.
        """
        return await self._cluster.describe_group(self.settings.group, timeout_ms=timeout_ms)

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
        still_there = await self._cluster.remove_members(self.settings.group, leaving, reason)
        self._shares.forget()
        return still_there


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
