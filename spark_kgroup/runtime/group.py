"""Several seats of one group on one event loop: their sessions, the leader's metadata watch, commits, look-ups.

Everything here runs on one loop and is not thread-safe; `runtime.thread` puts it behind blocking calls.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random

from spark_kgroup.assignors import assignor
from spark_kgroup.errors import BrokerError, GroupUnsettled, UnknownTopic, WireError
from spark_kgroup.limits import (
    API_TIMEOUT_MS,
    COMMIT_PARTITIONS_MAX,
    COMMIT_TIMEOUT_MS,
    HEARTBEAT_INTERVAL_MS,
    LEAVE_TIMEOUT_MS,
    METADATA_MAX_AGE_MS,
    REBALANCE_TIMEOUT_MS,
    REQUEST_TIMEOUT_MS,
    SESSION_TIMEOUT_MS,
    STARTUP_TIMEOUT_MS,
)
from spark_kgroup.member import effects as fx
from spark_kgroup.member.classic import Inheritance, MemberConfig, State
from spark_kgroup.model import (
    UNKNOWN_MEMBER_ID,
    DescribedGroup,
    DescribedMember,
    ErrorCode,
    MemberIdentity,
    TopicDescription,
    TopicPartition,
)
from spark_kgroup.runtime.descriptors import make_room_for
from spark_kgroup.runtime.session import Observer, Session, monotonic_ms
from spark_kgroup.wire import messages
from spark_kgroup.wire.answers import CommittedOffset
from spark_kgroup.wire.backoff import Backoff
from spark_kgroup.wire.cluster import Cluster, ListedOffset
from spark_kgroup.wire.connection import Address
from spark_kgroup.wire.security import Plaintext, Security

log = logging.getLogger(__name__)


def _nothing(_: MemberIdentity) -> str:
    return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSettings:
    """Which group, and how its seats behave.

    Attributes:
        topics_must_exist: whether a subscribed topic that does not exist is an error, or just not there.
        instance_ids: one static member each; None makes a dynamic member.
        assignors: Kafka's names, in order of preference.
        inheritances: instance id -> what an earlier process of that seat may have been reading.
        finds_orphans: whether a seat that came back without a rebalance rejoins for subscribed partitions that nobody
            owns. False for who must commit before that, and therefore looks at a moment of its own (`Boundary`).
        spare_seats: False for no more seats than the topics have partitions when the group is started; no limit if one
            of them is missing then.
        commit_metadata: who commits -> what is written beside one partition of each topic; asked at each commit, on the
            event loop.
        commit_mark: what is written beside all others.
        alive: whether the process that the seats work for is still there; asked as each request is sent. If not,
            nothing is sent, and the seats fail: another process may have their place by now.
    """

    bootstrap: tuple[Address, ...]
    group: str
    topics: tuple[str, ...]
    instance_ids: tuple[str | None, ...]
    assignors: tuple[str, ...] = ("cooperative-sticky",)
    session_timeout_ms: int = SESSION_TIMEOUT_MS
    rebalance_timeout_ms: int = REBALANCE_TIMEOUT_MS
    heartbeat_interval_ms: int = HEARTBEAT_INTERVAL_MS
    metadata_max_age_ms: int = METADATA_MAX_AGE_MS
    request_timeout_ms: int = REQUEST_TIMEOUT_MS
    api_timeout_ms: int = API_TIMEOUT_MS
    client_id: str = "spark-kgroup"
    security: Security = field(default_factory=Plaintext)
    topics_must_exist: bool = True
    inheritances: Mapping[str, Inheritance] = field(default_factory=dict)
    finds_orphans: bool = False
    spare_seats: bool = True
    commit_metadata: Callable[[MemberIdentity], str] = _nothing
    commit_mark: str = ""
    alive: Callable[[], bool] = lambda: True


@dataclass(frozen=True, slots=True, kw_only=True)
class SeatView:
    """One seat at one moment.

    Attributes:
        tenures: what is held, with the identity under which each partition's ownership began.
        to_give_up: held, but to be given up at the next boundary; what is not in `tenures` was an earlier process's.
        settled: in a generation with nothing to give up and no rejoin on its way.
        trouble: why the seat has no connection to its coordinator, None if it has one.
    """

    instance_id: str
    identity: MemberIdentity
    tenures: Mapping[TopicPartition, MemberIdentity]
    to_give_up: frozenset[TopicPartition]
    settled: bool
    leader: bool
    trouble: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupView:
    """All seats at one moment.

    Attributes:
        rejoins: how often a static seat was asked back without a member id, since the start; a change
            means that a partition may have lost its owner meanwhile.
    """

    seats: tuple[SeatView, ...]
    rejoins: int

    @property
    def settled(self) -> bool:
        """Every seat is settled, all in the same generation."""
        return all(seat.settled for seat in self.seats) and len({seat.identity.generation for seat in self.seats}) == 1

    def owner(self, partition: TopicPartition) -> SeatView | None:
        """The seat that holds `partition`, None if none does."""
        return next((seat for seat in self.seats if partition in seat.tenures), None)


class Group:
    """The seats of one query in one group."""

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
        self._topics: Mapping[str, TopicDescription] = {}
        self._topics_at_ms = 0
        self._rejoins = self._rejoins_looked_after = 0
        self._leave_error = 0
        self._refusals: dict[str, str] = {}

    # -------------------------------------------------------------------------------------------- lifetime

    async def start(self) -> None:
        """Check that the cluster answers and the topics exist, then send every seat on its way.

        Raises:
            WireError: the cluster cannot be reached, or refuses us, within `STARTUP_TIMEOUT_MS`; or seats are to come
                back, and nobody coordinates their group for `api_timeout_ms`.
            UnknownTopic: a subscribed topic does not exist.
            EnvironmentProblem: this process may not have as many file descriptors as seats.
        """
        await self._refresh_topics(timeout_ms=STARTUP_TIMEOUT_MS)
        kept = await self._kept()
        inheritances = inherited(self.settings.inheritances, kept, self._seats()) if kept else {}
        replaced: dict[str | None, str] = {m.instance_id: m.member_id for m in kept.members} if kept else {}
        make_room_for(len(self._seats()))
        for instance_id in self._seats():
            inheritance = inheritances.get(instance_id, Inheritance())
            config = self._member_config(instance_id, inheritance, replaced.get(instance_id, UNKNOWN_MEMBER_ID))
            session = Session(config, self._cluster, self._observe, self._rng)
            self._sessions[instance_id] = session
            self._tasks.append(asyncio.create_task(session.run(), name=f"seat {instance_id}"))
        self._tasks.append(asyncio.create_task(self._watch_metadata(), name="metadata watch"))

    def _seats(self) -> tuple[str | None, ...]:
        # A broker that has just started may not know a topic yet, and seats beyond the number are made to leave.
        missing = set(self.settings.topics) - self._topics.keys()
        if self.settings.spare_seats or missing:
            return self.settings.instance_ids
        partitions = sum(topic.partition_count for topic in self._topics.values())
        return self.settings.instance_ids[: max(1, partitions)]

    async def _kept(self) -> DescribedGroup | None:
        """The group as it was kept for seats that come back."""
        if not self.settings.inheritances:
            return None
        # The cluster has answered, so its address is right: a coordinator that is away is waited for, as later on.
        return await self._cluster.describe_group(self.settings.group)

    def _member_config(self, instance_id: str | None, inheritance: Inheritance, replaces: str) -> MemberConfig:
        return MemberConfig(
            group=self.settings.group,
            instance_id=instance_id,
            topics=self.settings.topics,
            assignors=tuple(assignor(name) for name in self.settings.assignors),
            session_timeout_ms=self.settings.session_timeout_ms,
            rebalance_timeout_ms=self.settings.rebalance_timeout_ms,
            heartbeat_interval_ms=self.settings.heartbeat_interval_ms,
            inheritance=inheritance,
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
            session.post(fx.Leave(reason="the member leaves for good"))
        await self.wait_until(lambda _: self._all_closed(), 2 * LEAVE_TIMEOUT_MS)
        if self._leave_error or not self._all_closed():
            raise GroupUnsettled(
                f"The coordinator of group {self.settings.group!r} did not confirm that the seat was given back: "
                "it stays until its session times out."
            )

    def _all_closed(self) -> bool:
        return all(session.machine.state is State.CLOSED for session in self._sessions.values())

    def _observe(self, session: Session, effect: fx.Effect) -> None:
        match effect:
            case fx.Joined(rejoined=True):
                self._rejoins += 1
            case fx.Left(error=code):
                self._leave_error = self._leave_error or code
            case fx.Rejoining(reason=reason):
                log.info("seat %s joins the next generation: %s", session.config.instance_id, reason)
            case fx.Lost(partitions=partitions, reason=reason):
                log.warning("seat %s lost %d partitions: %s", session.config.instance_id, len(partitions), reason)
            case _:
                log.debug("seat %s: %s", session.config.instance_id, effect)
        if self._observer is not None:
            self._observer(session, effect)
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
        return GroupView(seats=tuple(map(_seat_view, self._sessions.values())), rejoins=self._rejoins)

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
        self._sessions[instance_id].post(fx.GaveUp(partitions=partitions))

    def force_rebalance(self, reason: str) -> None:
        """Make the whole group join anew, once, through one of our seats."""
        session = next((s for s in self._sessions.values() if s.machine.leader), None)
        # A follower's join counts as well: its metadata differs by its generation (ClassicGroupMember.matches).
        (session or next(iter(self._sessions.values()))).post(fx.RejoinWanted(reason=reason))

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

    # -------------------------------------------------------------------------------------------- metadata

    async def topics(self, max_age_ms: int) -> Mapping[str, TopicDescription]:
        """The subscribed topics that exist, no older than `max_age_ms`.

        Raises:
            WireError: no broker answered in time.
            UnknownTopic: this user may not see a subscribed topic; or it does not exist, and it must.
        """
        if monotonic_ms() - self._topics_at_ms > max_age_ms:
            await self._refresh_topics(timeout_ms=self.settings.api_timeout_ms)
        return self._topics

    async def topics_named(self, names: Iterable[str]) -> Mapping[str, TopicDescription]:
        """Those of `names` that exist, subscribed or not, as brokers show them now.

        Raises:
            WireError: no broker answered in time.
        """
        return (await self._cluster.metadata(sorted(names))).topics

    async def topics_gone(self, names: Iterable[str]) -> frozenset[str]:
        """Those of `names` that brokers do not know; what this user may not see may be there.

        Raises:
            WireError: no broker answered in time.
        """
        errors = (await self._cluster.metadata(sorted(names))).errors
        return frozenset(name for name, code in errors.items() if code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)

    async def _refresh_topics(self, timeout_ms: int) -> None:
        metadata = await self._cluster.metadata(sorted(self.settings.topics), timeout_ms=timeout_ms)
        missing = sorted(set(self.settings.topics) - set(metadata.topics))
        hidden = [t for t in missing if metadata.errors.get(t) == ErrorCode.TOPIC_AUTHORIZATION_FAILED]
        if hidden:
            raise UnknownTopic(
                f"This user may not see topic {', '.join(map(repr, hidden))}: grant READ on it, or correct the option "
                "`subscribe`."
            )
        if missing and self.settings.topics_must_exist:
            raise UnknownTopic(
                f"Topic {', '.join(map(repr, missing))} does not exist on this cluster, or this user may not see it: "
                "create it, or correct the option `subscribe`."
            )
        self._topics, self._topics_at_ms = metadata.topics, monotonic_ms()

    async def _watch_metadata(self) -> None:
        """The leader's duty: rejoin when a partition count changes under any member's subscription."""
        while True:
            await asyncio.sleep(self.settings.metadata_max_age_ms / 1000)
            for session in self._sessions.values():
                if session.machine.watched_topics:
                    await self._compare_metadata(session)
            if self.settings.finds_orphans and self._rejoins != self._rejoins_looked_after:
                await self._look_for_orphans()

    async def _look_for_orphans(self) -> None:
        """After a seat came back to a group at rest: is there a subscribed partition that nobody owns?

        It was given its old assignment, whatever it subscribes now; and what was added while the leader was away has no
        owner either (KIP-814). Nobody else notices.
        """
        rejoins = self._rejoins
        try:
            found = (await self._cluster.metadata(sorted(self.settings.topics))).topics
            group = await self.describe()
        except WireError as error:
            log.info("no look for partitions without an owner this time: %s", error)
            return
        if group.state != "Stable":
            return
        self._rejoins_looked_after = rejoins
        owned = {tp for member in group.members for tp in member.assignment | member.claimed}
        orphans = {tp for topic in found.values() for tp in topic.partitions} - owned
        if orphans and not group.is_consumer_type:  # its coordinator sees to that itself
            self.force_rebalance(f"{len(orphans)} subscribed partitions have no owner")

    def all_owned(self, topics: Mapping[str, TopicDescription]) -> None:
        """Tell a leader that came back and did not assign: the partitions in `topics` all have owners.

        What it sees beyond them later is new (KIP-814 leaves a returning leader without such a baseline).
        """
        for session in self._sessions.values():
            if session.machine.leader and session.snapshot is None:
                session.snapshot = _counts(self.settings.topics, topics)

    async def _compare_metadata(self, leader: Session) -> None:
        asked, generation = sorted(leader.machine.watched_topics), leader.machine.identity.generation
        try:
            metadata = await self._cluster.metadata(asked)
        except WireError as error:
            log.info("no metadata this time: %s", error)
            return
        moved_on = leader.machine.identity.generation != generation
        if moved_on or leader.machine.state not in (State.STABLE, State.REVOKING):
            return  # a new generation has, or will have, metadata of its own, and maybe of other topics
        before, counts = leader.snapshot or {}, _counts(asked, metadata.topics)
        leader.snapshot = {**before, **counts}
        changed = [topic for topic in asked if before.get(topic, counts[topic]) != counts[topic]]
        if changed:
            told = ", ".join(f"{t}: {before[t]} -> {counts[t]}" for t in changed)
            leader.post(fx.RejoinWanted(reason=f"partition count changed ({told})"))

    # --------------------------------------------------------------------------------------------- offsets

    async def end_offsets(
        self, partitions: Iterable[TopicPartition], *, read_committed: bool
    ) -> dict[TopicPartition, int]:
        """One past the last readable offset of each partition (the last stable offset if `read_committed`)."""
        return await self._list(partitions, messages.LATEST, read_committed=read_committed)

    async def start_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """The first offset that each partition still has."""
        return await self._list(partitions, messages.EARLIEST, read_committed=False)

    async def log_ranges(
        self, partitions: Iterable[TopicPartition], *, read_committed: bool
    ) -> dict[TopicPartition, tuple[int, int]]:
        """The first offset of each partition, and one past the last readable one."""
        wanted = tuple(partitions)
        starts, ends = await asyncio.gather(
            self.start_offsets(wanted), self.end_offsets(wanted, read_committed=read_committed)
        )
        return {tp: (starts[tp], ends[tp]) for tp in wanted}

    async def _list(
        self, partitions: Iterable[TopicPartition], timestamp: int, *, read_committed: bool
    ) -> dict[TopicPartition, int]:
        wanted = dict.fromkeys(partitions, timestamp)
        if not wanted:
            return {}
        listed: Mapping[TopicPartition, ListedOffset] = await self._cluster.list_offsets(
            wanted, isolation_level=int(read_committed)
        )
        return {tp: found.offset for tp, found in listed.items()}

    async def committed(
        self, partitions: Iterable[TopicPartition], timeout_ms: int | None = None
    ) -> dict[TopicPartition, CommittedOffset | None]:
        """What the group has committed for each partition, with what was written beside it; None where nothing is.

        Raises:
            WireError: the coordinator did not answer in time (by default `api_timeout_ms`), or refused.
        """
        wanted = sorted(partitions)
        if not wanted:
            return {}
        return await self._cluster.committed_offsets(self.settings.group, wanted, timeout_ms=timeout_ms)

    async def describe(self, timeout_ms: int | None = None) -> DescribedGroup:
        """The whole group, members of other applications included.

        Raises:
            WireError: the coordinator did not answer in time (by default `api_timeout_ms`), or refused.
        """
        return await self._cluster.describe_group(self.settings.group, timeout_ms=timeout_ms)

    async def commit(self, seat: SeatView, positions: Mapping[TopicPartition, int]) -> frozenset[TopicPartition]:
        """Commit `positions` under the identity in `seat`.

        Returns:
            The partitions whose commit the coordinator acknowledged. The others were not, or we cannot know:
            `commit_refusal` says why.

        Raises:
            BrokerError: this user may not commit for the group or a topic.
        """
        deadline_ms = monotonic_ms() + COMMIT_TIMEOUT_MS
        backoff = Backoff(self._rng)
        acknowledged: set[TopicPartition] = set()
        left = dict(positions)
        # A broker's offset.metadata.max.bytes may be below the default, and offsets matter more than what is beside.
        mark = self.settings.commit_mark
        texts = [(self.settings.commit_metadata(seat.identity), mark), (mark, mark), ("", "")]
        while left:
            errors, deadline_ms = await self._commit_parts(seat, left, texts[0], deadline_ms)
            acknowledged |= {tp for tp, error in errors.items() if error == ErrorCode.NONE}
            if ErrorCode.OFFSET_METADATA_TOO_LARGE in errors.values() and len(texts) > 1:
                texts.pop(0)
            left = {tp: left[tp] for tp, error in errors.items() if error in _COMMIT_AGAIN}
            wait_ms = backoff.next_ms()
            if monotonic_ms() + wait_ms > deadline_ms:
                break
            if left:
                await asyncio.sleep(wait_ms / 1000)
        if acknowledged == positions.keys():
            self._refusals.pop(seat.instance_id, None)
        return frozenset(acknowledged)

    @property
    def commit_refusal(self) -> str:
        """Why the last commit of each seat was not acknowledged; empty if all were."""
        return ", ".join(sorted(set(self._refusals.values())))

    async def _commit_parts(
        self, seat: SeatView, positions: Mapping[TopicPartition, int], texts: tuple[str, str], deadline_ms: int
    ) -> tuple[dict[TopicPartition, int], int]:
        """Each part of `positions` once, and the new deadline: a large commit goes on while parts are acknowledged."""
        errors: dict[TopicPartition, int] = {}
        tps = sorted(positions)
        for at in range(0, len(tps), COMMIT_PARTITIONS_MAX):
            if monotonic_ms() >= deadline_ms:
                break
            part = {tp: positions[tp] for tp in tps[at : at + COMMIT_PARTITIONS_MAX]}
            answered = await self._commit_part(seat, part, texts, deadline_ms)
            if ErrorCode.NONE in answered.values():
                deadline_ms = monotonic_ms() + COMMIT_TIMEOUT_MS
            errors |= answered
        return errors, deadline_ms

    async def _commit_part(
        self, seat: SeatView, positions: Mapping[TopicPartition, int], texts: tuple[str, str], deadline_ms: int
    ) -> dict[TopicPartition, int]:
        """One commit; in halves if it is refused as a whole in a way that says it may be too large."""
        errors = await self._commit_once(seat, positions, texts, timeout_ms=max(1, deadline_ms - monotonic_ms()))
        # A topic that was just deleted has an error of its own, whatever becomes of the others.
        large = [(tp, positions[tp]) for tp, error in errors.items() if error in _COMMIT_TOO_LARGE]
        if len(large) < 2 or ErrorCode.NONE in errors.values():
            return errors
        middle = len(large) // 2
        first = await self._commit_part(seat, dict(large[:middle]), texts, deadline_ms)
        if ErrorCode.NONE not in first.values():
            return errors  # it was not the size
        return errors | first | await self._commit_part(seat, dict(large[middle:]), texts, deadline_ms)

    async def _commit_once(
        self, seat: SeatView, positions: Mapping[TopicPartition, int], texts: tuple[str, str], *, timeout_ms: int
    ) -> dict[TopicPartition, int]:
        note, mark = texts
        request = messages.offset_commit(self.settings.group, seat.identity, positions, note=note, mark=mark)
        try:
            response = await self._cluster.coordinator_call(self.settings.group, request, timeout_ms=timeout_ms)
        except WireError as error:
            log.info("seat %s: commit not acknowledged: %s", seat.instance_id, error)
            self._refusals[seat.instance_id] = str(error)
            return dict.fromkeys(
                positions, ErrorCode.NETWORK_EXCEPTION if error.retriable else ErrorCode.INVALID_REQUEST
            )
        assert isinstance(response, messages.OffsetCommitResponse)
        errors = messages.offset_commit_errors(response)
        for code in sorted(set(errors.values())):
            if code in _COMMIT_ENDS_MEMBERSHIP:
                self._sessions[seat.instance_id].post(fx.MembershipRefused(identity=seat.identity, error=code))
            elif code in _COMMIT_FORBIDDEN:
                raise BrokerError("OffsetCommit", code)
            if code != ErrorCode.NONE:
                log.info("seat %s: commit refused with %s", seat.instance_id, ErrorCode.name_of(code))
                self._refusals[seat.instance_id] = ErrorCode.name_of(code)
        return errors


_COMMIT_AGAIN = ErrorCode.retriable_codes() | {ErrorCode.OFFSET_METADATA_TOO_LARGE}
_COMMIT_ENDS_MEMBERSHIP = frozenset(
    {ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION, ErrorCode.FENCED_INSTANCE_ID}
)
_COMMIT_TOO_LARGE = frozenset({ErrorCode.UNKNOWN_SERVER_ERROR, ErrorCode.INVALID_COMMIT_OFFSET_SIZE})
"""What a coordinator makes of MESSAGE_TOO_LARGE and RECORD_LIST_TOO_LARGE: 4.x the first, older ones the second."""
_COMMIT_FORBIDDEN = frozenset({ErrorCode.GROUP_AUTHORIZATION_FAILED, ErrorCode.TOPIC_AUTHORIZATION_FAILED})


def inherited(
    inheritances: Mapping[str, Inheritance], group: DescribedGroup, seats: Sequence[str | None]
) -> dict[str | None, Inheritance]:
    """What each of `seats` inherits: only what the group still keeps for it.

    A seat that was away for longer than its session has lost all. To claim it all the same could take it from its new
    owner at once: not every client says in which generation it was assigned what it claims, and in a group that was
    deleted and made again generations begin anew.

    What belongs to seats that are not in `seats` any more is shared out among `seats` if a classic group rebalances: it
    waits for all of them, so nobody can commit for those that are made to leave (`Boundary`), and what nobody claims
    would go to its next owner at once.
    """
    members = {member.instance_id for member in group.members}
    found: dict[str | None, Inheritance] = {name: kept for name, kept in inheritances.items() if name in members}
    mine = {name: found.pop(name) for name in seats if name in found}
    if group.tells_owners:
        return mine
    for index, (_, left) in enumerate(sorted(found.items(), key=lambda item: str(item[0]))):
        heir = seats[index % len(seats)]
        own = mine.get(heir, left)
        mine[heir] = Inheritance(
            partitions=own.partitions | left.partitions, generation=max(own.generation, left.generation)
        )
    return mine


def _counts(names: Iterable[str], topics: Mapping[str, TopicDescription]) -> dict[str, int]:
    """How many partitions each topic has, 0 for one that is not there: when it comes (back), that is a change."""
    return {name: topics[name].partition_count if name in topics else 0 for name in names}


def _seat_view(session: Session) -> SeatView:
    machine = session.machine
    return SeatView(
        instance_id=session.config.instance_id or "",
        identity=machine.identity,
        tenures=session.tenures,
        to_give_up=machine.to_give_up,
        settled=machine.settled,
        leader=machine.leader,
        trouble=session.trouble,
    )
