"""The seats of a group: how each of them presents itself, and the sessions that run them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from random import Random

from spark_kgroup.assignors import assignors_called
from spark_kgroup.errors import GroupError, KgroupError
from spark_kgroup.limits import CLOSE_WORD_MS, LEAVE_TIMEOUT_MS
from spark_kgroup.member import contract
from spark_kgroup.member.config import ConsumerMemberConfig, MemberConfig, PreviouslyOwned, Resumption
from spark_kgroup.member.machine import Config
from spark_kgroup.member.member_ids import new_member_id
from spark_kgroup.model import UNKNOWN_MEMBER_ID, DescribedGroup, MemberIdentity, TopicPartition
from spark_kgroup.runtime.neighbours import Neighbours
from spark_kgroup.runtime.own_ids import OwnIds
from spark_kgroup.runtime.previously_owned import claimable
from spark_kgroup.runtime.session import Observer, Session
from spark_kgroup.runtime.settings import GroupSettings
from spark_kgroup.runtime.topics import Topics
from spark_kgroup.runtime.views import SeatView
from spark_kgroup.tasks import TaskSet
from spark_kgroup.wire.cluster import Cluster

log = logging.getLogger(__name__)


class SeatConfigs:
    """How each seat presents itself to the group: by the settings, and by what an earlier process has left there.

    Args:
        topics: refreshed BEFORE the first seats are asked for.
        own_ids: says whether seats get member ids that are made here.

    """

    def __init__(self, settings: GroupSettings, cluster: Cluster, topics: Topics, own_ids: OwnIds, rng: Random) -> None:
        self._settings = settings
        self._cluster = cluster
        self._topics = topics
        self._own_ids = own_ids
        self._rng = rng
        self._session_timeout_ms = settings.protocol.session_timeout_ms

    def first_seats(self) -> tuple[str | None, ...]:
        """The instance ids of the seats that join at the start."""
        # A broker that has just started may not know a topic yet, and seats beyond the number are made to leave.
        missing = set(self._settings.topics) - self._topics.known.keys()
        if not self._settings.cap_seats_to_partitions or missing or self._settings.pattern is not None:
            return self._settings.instance_ids
        partitions = sum(topic.partition_count for topic in self._topics.known.values())
        return self._settings.instance_ids[: max(1, partitions)]

    async def describe_kept(self) -> DescribedGroup | None:
        """The group's description, or None if no seat comes back to partitions of an earlier process.

        Raises:
            WireError: the coordinator did not answer within `api_timeout_ms`, or refused.
        """
        if not self._settings.work.previously_owned:
            return None
        # The cluster has answered, so its address is right: a coordinator that is away is waited for, as later on.
        return await self._cluster.groups.describe(self._settings.group)

    async def of_first(self, seats: Sequence[str | None], kept: DescribedGroup | None) -> list[Config]:
        """The configuration of each of `seats`, which join at the start.

        Args:
            seats: instance ids.
            kept: what `describe_kept` has found.

        Raises:
            OptionError: an assignor cannot be imported.
            WireError: brokers do not tell the topics of partitions that a seat has to finish.
        """
        claims = claimable(self._settings.work.previously_owned, kept, seats) if kept else {}
        # A new coordinator may not know that we took a seat. If the member named here has it again, we take it once
        # more.
        replaced: dict[str | None, str] = {m.instance_id: m.member_id for m in kept.members} if kept else {}
        resumptions: Mapping[str | None, Resumption] = {}
        if self._settings.protocol.is_consumer:
            # The brokers set it, and a seat that is silent for as long has to take its partitions for lost.
            await self._ask_for_session_timeout()
            resumptions = await self._resumptions(seats, kept) if kept else {}
        return [
            self._of(
                seat,
                claims.get(seat, PreviouslyOwned()),
                replaced.get(seat, UNKNOWN_MEMBER_ID),
                resumptions.get(seat),
            )
            for seat in seats
        ]

    def of_newcomer(self, instance_id: str | None) -> Config:
        """The configuration of a seat that joins later, and replaces no member. Raises OptionError as `of_first`.

        A seat that was removed and is added again continues no earlier membership: it has left the group since.
        """
        return self._of(instance_id, PreviouslyOwned(), UNKNOWN_MEMBER_ID, None)

    async def _ask_for_session_timeout(self) -> None:
        """Ask how long seats may be silent under the consumer protocol."""
        # Imported here: a start need not load modules that it does not use.
        from spark_kgroup.runtime.consumer_calls import session_timeout_ms

        self._session_timeout_ms = await session_timeout_ms(self._cluster, self._settings.group)
        log.info(
            "group %r: members may be silent for %d ms, as its brokers want it (the group's "
            "consumer.session.timeout.ms): a restart that takes longer moves partitions",
            self._settings.group,
            self._session_timeout_ms,
        )

    async def _resumptions(self, seats: Sequence[str | None], kept: DescribedGroup) -> Mapping[str | None, Resumption]:
        """The memberships of `kept` that seats of ours take up, to finish an earlier process's work."""
        # Imported here: a start need not load modules that it does not use.
        from spark_kgroup.runtime.resumptions import resumable, with_topic_ids

        owing = resumable(self._settings.work.previously_owned, kept, seats, self._topics.names)
        names = {tp.topic for each in owing.values() for tp in each.owned}
        topics = (await self._cluster.metadata(names)).topics if names else {}
        return {name: with_topic_ids(each, topics) for name, each in owing.items()}

    def _of(
        self, instance_id: str | None, owned_before: PreviouslyOwned, replaces: str, resumes: Resumption | None
    ) -> Config:
        protocol = self._settings.protocol
        if protocol.is_consumer:
            return ConsumerMemberConfig(
                group=self._settings.group,
                instance_id=instance_id,
                topics=self._topics.names,
                # Beside the names, since a coordinator matches a new pattern only some time after the join.
                regex=(self._settings.pattern and self._settings.pattern.re2) or "",
                server_assignor=protocol.server_assignor,
                session_timeout_ms=self._session_timeout_ms,
                rebalance_timeout_ms=protocol.rebalance_timeout_ms,
                resumes=resumes,
            )
        # A seat that joins after `own_ids_if_alone` was decided keeps the coordinator's id: it would not be renamed.
        own_ids = protocol.own_ids or not self._own_ids.decided
        return MemberConfig(
            group=self._settings.group,
            instance_id=instance_id,
            topics=self._topics.names,
            assignors=assignors_called(protocol.assignors),
            session_timeout_ms=protocol.session_timeout_ms,
            rebalance_timeout_ms=protocol.rebalance_timeout_ms,
            heartbeat_interval_ms=protocol.heartbeat_interval_ms,
            previously_owned=owned_before,
            replaces=replaces,
            # The coordinator lets only a static seat be taken over under another id (`member.handlers`, renaming).
            own_id=new_member_id(self._rng.randbytes) if own_ids and instance_id else UNKNOWN_MEMBER_ID,
        )


class Seats:
    """The sessions of our seats, from their start until they have left, or until the group closes.

    Args:
        sessions: an empty table, which is filled here. Each watcher of our seats reads it.
        observer: called with each notice of a seat.
        match_now: looks for topics of a pattern BEFORE a seat joins, or None without a pattern.

    Attributes:
        sessions: instance id -> the session of each seat, in the order in which they started.
        tasks: those of the seats, and those that go on beside them and end with them. A failure of one fails all seats.
        neighbours: what the seats hear for each other.
        changed: set whenever seats, or what is known of their group, may be other than before.
        leave_error: the first error code with which a coordinator answered a seat that leaves, or 0.

    """

    def __init__(
        self,
        settings: GroupSettings,
        cluster: Cluster,
        rng: Random,
        sessions: dict[str | None, Session],
        observer: Observer,
        match_now: Callable[[], Awaitable[None]] | None,
    ) -> None:
        self.sessions = sessions
        self.tasks = TaskSet(self._on_failure)
        self.neighbours = Neighbours(sessions, settings.protocol.heartbeat_interval_ms)
        self.changed = asyncio.Event()
        self.leave_error = 0
        self._settings = settings
        self._cluster = cluster
        self._rng = rng
        self._observer = observer
        self._match_now = match_now
        self._runs: dict[str | None, asyncio.Task[None]] = {}

    def start(self, config: Config) -> None:
        """Send the seat with this configuration on its way."""
        instance_id = config.instance_id
        session = Session(
            config,
            self._cluster,
            self._on_notice,
            self._rng,
            self.neighbours,
            partial(self._settings.hooks.rack_of, instance_id),
            self._match_now,
        )
        self.sessions[instance_id] = session
        self._runs[instance_id] = self.tasks.begin(session.run(), name=f"seat {instance_id}")

    def ask_to_leave(self, instance_ids: Iterable[str | None], reason: str) -> list[Session]:
        """Have seats of ours leave the group, for a reason that the coordinator logs (KIP-800). Returns them."""
        leaving = {instance_id: self.sessions[instance_id] for instance_id in instance_ids}
        for session in leaving.values():
            session.post(contract.Leave(reason=reason))
        return list(leaving.values())

    def drop(self, leaving: Iterable[Session]) -> None:
        """Forget seats that were asked to leave, AFTER they were given the time for it."""
        for session in leaving:
            instance_id = session.config.instance_id
            del self.sessions[instance_id]
            # Its coordinator may not have answered in time, and the seat would go on asking.
            self._runs.pop(instance_id).cancel()
        # It was an answer about these seats, and `Group.leave` is to tell of the remaining ones alone.
        self.leave_error = 0
        self.changed.set()

    async def close(self) -> None:
        """Stop all seats and the tasks beside them: as `Group.close`."""
        # Under the consumer protocol a closing seat is released by a last heartbeat, which takes a round trip.
        if self._runs and self._settings.work.releases_seats:
            for session in self.sessions.values():
                session.post(contract.Close())
            await asyncio.wait(self._runs.values(), timeout=CLOSE_WORD_MS / 1000)
        failed = [self._runs[seat] for seat, session in self.sessions.items() if session.failure is not None]
        if failed:  # a dynamic member that has failed is leaving
            await asyncio.wait(failed, timeout=LEAVE_TIMEOUT_MS / 1000)
        await self.tasks.end()

    def _on_failure(self, bug: BaseException) -> None:
        # A watch serves all seats, so when one fails no seat may go on without it. Its error is final, while callers
        # of the group wait out a WireError.
        final = bug
        if isinstance(bug, KgroupError):
            final = GroupError(str(bug))
            final.__cause__ = bug
        for session in self.sessions.values():
            session.fail(final)
        self.changed.set()

    def _on_notice(self, session: Session, notice: contract.Notice) -> None:
        log.debug("seat %s: %s", session.config.instance_id, notice)
        match notice:
            case contract.Left(error=code):
                self.leave_error = self.leave_error or code
            case contract.Rejoining(reason=reason):
                log.info("seat %s joins the next generation: %s", session.config.instance_id, reason)
            case contract.Lost(partitions=partitions, reason=reason):
                log.warning("seat %s lost %d partitions: %s", session.config.instance_id, len(partitions), reason)
        self._observer(session, notice)
        self.changed.set()

    # ------------------------------------------------------------------------------------- what is known of them

    @property
    def ended(self) -> bool:
        """Whether every seat has left, closed or failed."""
        return all(session.machine.ended for session in self.sessions.values())

    def views(self) -> tuple[SeatView, ...]:
        """The seats as they are now.

        Raises:
            KgroupError: a seat has failed for good (fenced, rejected). The error says why.
        """
        for session in self.sessions.values():
            if session.failure is not None:
                raise session.failure
        return tuple(map(_seat_view, self.sessions.values()))

    def newest(self, who: MemberIdentity, partitions: Iterable[TopicPartition]) -> MemberIdentity:
        """The newest identity of `who`, if it has held all of `partitions` since the epoch of `who`, else `who`."""
        session = self.sessions.get(who.instance_id)
        if session is None:
            return who
        # Partitions to give up that this process never owned are an earlier one's, and were held all the while.
        inherited = session.machine.to_give_up - session.owned_since.keys()
        since = [session.owned_since.get(tp) for tp in partitions if tp not in inherited]
        # An ownership that began later is another one: the partition was lost, and another member may have read it.
        held = all(each is not None and each.generation <= who.generation for each in since)
        now = session.machine.identity
        return now if held and now.member_id == who.member_id else who

    def owners(self, partitions: Iterable[TopicPartition]) -> dict[MemberIdentity | None, list[TopicPartition]]:
        """`partitions` by the member of ours that owns them under the consumer protocol, None for those without one."""
        members = [s.machine for s in self.sessions.values() if s.machine.in_generation]
        owner = {tp: m.identity for m in members for tp in m.owned} if self._settings.protocol.is_consumer else {}
        found: dict[MemberIdentity | None, list[TopicPartition]] = {}
        for tp in partitions:
            found.setdefault(owner.get(tp), []).append(tp)
        return found

    # ------------------------------------------------------------------------------- what brokers say of one of them

    def post(self, instance_id: str | None, event: contract.Event) -> None:
        """Give an event to a seat, unless it was removed meanwhile."""
        if instance_id in self.sessions:
            self.sessions[instance_id].post(event)

    def on_refused(self, who: MemberIdentity, error: int) -> None:
        """A coordinator has `who` in another epoch, or not at all, as this error code says."""
        self.post(who.instance_id, contract.MembershipRefused(identity=who, error=error))


def _seat_view(session: Session) -> SeatView:
    machine = session.machine
    return SeatView(
        instance_id=session.config.instance_id or "",
        identity=machine.identity,
        owned_since=session.owned_since,
        to_give_up=machine.to_give_up,
        settled=machine.settled,
        leader=machine.leader,
        trouble=session.waiting.reason,
    )
