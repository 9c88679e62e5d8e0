"""One member in real time: runs its machine, under the classic protocol over a coordinator connection of its own.

A parked JoinGroup blocks all requests behind it on its connection, so each such session has one to itself, and commits
go another way (`group`). The consumer protocol parks no request (`consumer_calls`). All of a session runs on one event
loop, and is not thread-safe.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Set
from dataclasses import replace
from functools import partial
from random import Random
from types import MappingProxyType
from typing import Any, Final, TypeVar, assert_never
from uuid import UUID

from spark_kgroup.assignors.contract import Assignor
from spark_kgroup.assignors.cooperative_sticky import add_claims, undisputed_claims
from spark_kgroup.clock import monotonic_ms
from spark_kgroup.errors import GroupRejected, KgroupError, UnsupportedApi, WireError
from spark_kgroup.limits import (
    JOIN_TIMEOUT_SLACK_MS,
    LEAVE_TIMEOUT_MS,
    REQUEST_TIMEOUT_MS,
    TOPIC_PATIENCE_MS,
    WAIT_TOLD_AFTER_MS,
)
from spark_kgroup.member import contract
from spark_kgroup.member.consumer_contract import Ask, ConsumerHeartbeatRequest, ResolveTopics, Unanswered
from spark_kgroup.member.consumer_contract import Effect as ConsumerEffect
from spark_kgroup.member.consumer_contract import Event as ConsumerEvent
from spark_kgroup.member.machine import Config
from spark_kgroup.model import UNKNOWN_MEMBER_ID, ErrorCode, MemberIdentity, TopicDescription, TopicPartition
from spark_kgroup.runtime.consumer_calls import ConsumerCalls
from spark_kgroup.runtime.machines import make_machine
from spark_kgroup.runtime.translate import Asked, to_event, to_message
from spark_kgroup.tasks import TaskSet
from spark_kgroup.threads import in_a_thread
from spark_kgroup.uncollected import uncollected
from spark_kgroup.wire.address import Address
from spark_kgroup.wire.backoff import Backoff
from spark_kgroup.wire.cluster import Cluster, ClusterMetadata
from spark_kgroup.wire.connection import Connection

log = logging.getLogger(__name__)

_T = TypeVar("_T")

_API_OF: Final[Mapping[type, str]] = {
    contract.JoinRequest: "JoinGroup",
    contract.SyncRequest: "SyncGroup",
    contract.HeartbeatRequest: "Heartbeat",
    contract.RenameRequest: "ConsumerGroupHeartbeat",
}

Observer = Callable[["Session", contract.Notice], None]
"""Called with every notice, in order, on the event loop. Must not block."""


class Session:
    """Runs one machine, of either protocol, until it ends.

    Attributes:
        owned_since: the partitions held, each with the identity under which its ownership began: another identity means
            that ownership was interrupted, even within one generation.
        snapshot: topic -> partition count for which the group has owners, as this leader knows, or None if it did not
            assign.
        trouble: why it waits, as a clause about the seat: for a connection to the coordinator, for metadata to assign,
            or for the end of a refusal. None if it does not wait.
    """

    def __init__(
        self,
        config: Config,
        cluster: Cluster,
        observer: Observer,
        rng: Random,
        on_join_sent: Callable[[], None] = lambda: None,
        rack: Callable[[], str | None] = lambda: None,
        match_now: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self.machine = make_machine(config, rng)
        self.owned_since: Mapping[TopicPartition, MemberIdentity] = MappingProxyType({})
        self.snapshot: Mapping[str, int] | None = None
        self.failure: BaseException | None = None
        self.trouble: str | None = None
        self._troubled_since_ms: int | None = None
        self._told_of_trouble = False
        self._cluster = cluster
        self._calls = ConsumerCalls(lambda: self.machine.config, cluster, rng, rack)
        self._observer = observer
        self._rng = rng
        self._on_join_sent = on_join_sent
        self._rack = rack
        self._said_rack: str | None = None
        """The rack that its last join named."""
        self._match_now = match_now
        self._backoff = Backoff(rng)
        self._events: asyncio.Queue[contract.Event | ConsumerEvent] = asyncio.Queue()
        self._connection: Connection | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._connected_to: Address | None = None
        """Where its last connection led."""
        self._tasks = TaskSet(self.fail)
        self._hidden: set[str] = set()

    @property
    def config(self) -> Config:
        """How this member presents itself."""
        return self.machine.config

    def post(self, event: contract.Event | ConsumerEvent) -> None:
        """Hand the machine an event, which is taken in turn."""
        self._events.put_nowait(event)

    async def run(self) -> None:
        """Run until the machine ends (left, closed, failed). Then the connection is closed too."""
        self.post(contract.Join())
        try:
            while not self.machine.ended:
                event = await self._next_event()
                try:
                    # Timers first: after a pause longer than the session, no event may act on the old membership.
                    self._take(contract.Tick())
                    self._take(event)
                except Exception as bug:  # noqa: BLE001 - of the machine, or of an observer: told, or it falls silent
                    # Another `fail` would post `Close`, which may raise again, and so on without an end.
                    if self.failure is not None:
                        break
                    self.fail(bug)
        finally:
            await self._stop()

    async def _next_event(self) -> contract.Event | ConsumerEvent:
        wakeup_at_ms = self.machine.next_wakeup_at_ms()
        if wakeup_at_ms is None:
            return await self._events.get()
        try:
            async with asyncio.timeout(max(0, wakeup_at_ms - monotonic_ms()) / 1000):
                return await self._events.get()
        except TimeoutError:
            return contract.Tick()

    def _take(self, event: contract.Event | ConsumerEvent) -> None:
        if isinstance(event, contract.GaveUp):
            self._forget(event.partitions)  # BEFORE the effects: it may be owned anew
        for effect in self.machine.handle(event, monotonic_ms()):
            self._carry_out(effect)

    def _carry_out(self, effect: contract.Effect | ConsumerEffect) -> None:
        if isinstance(effect, contract.Connect):
            self._reconnect(effect.reason)
        elif isinstance(effect, contract.Work | Ask | ResolveTopics):
            self._tasks.begin(self._do(effect))
        else:
            self._note(effect)
            self._observer(self, effect)

    def _do(self, work: contract.Work | Ask | ResolveTopics) -> Coroutine[Any, Any, None]:
        match work:
            case contract.Send(request=request):
                return self._leave(request) if isinstance(request, contract.LeaveRequest) else self._send(request)
            case contract.Look(heartbeat=heartbeat):
                return self._probe_coordinator(heartbeat)
            case contract.LookAtSeat():
                return self._look_at_seat()
            case contract.ComputeAssignment():
                return self._lead(work)
            case Ask(request=heartbeat):
                return self._ask(heartbeat)
            case ResolveTopics(topic_ids=topic_ids):
                return self._resolve(topic_ids)
            case _:
                assert_never(work)

    def _note(self, notice: contract.Notice) -> None:
        """Keep the state that the views and the metadata watch ask for. The observer is called after that."""
        match notice:
            case contract.Joined():
                self.snapshot = None  # it was of an earlier generation: a new one's leader takes its own
            case contract.Assigned(added=added):
                self.owned_since = MappingProxyType({**self.owned_since, **dict.fromkeys(added, notice.identity)})
            case contract.Lost(partitions=partitions):
                self._forget(partitions)
            case contract.Failed(error=error):
                self.failure = _failure_of(error)
            case contract.GiveUpAll() | contract.Rejoining() | contract.Left():
                pass  # revoked partitions are owned until they are given up
            case _:
                assert_never(notice)

    def _forget(self, partitions: frozenset[TopicPartition]) -> None:
        self.owned_since = MappingProxyType({tp: who for tp, who in self.owned_since.items() if tp not in partitions})

    # ------------------------------------------------------------------------------------------- the outside

    def _reconnect(self, reason: str) -> None:
        # The old connection does not count from this moment: a late answer or error on it must not reach the machine.
        old, self._connection = self._connection, None
        if old is not None:
            self._tasks.begin(old.close())
        # A search for the coordinator that is under way will do, for it ends with a fresh connection.
        if self._connecting is None or self._connecting.done():
            self._connecting = self._tasks.begin(self._connect(reason, first=self._connecting is None))

    async def _connect(self, reason: str, *, first: bool) -> None:
        log.debug("%s: looking for the coordinator (%s)", self._name, reason)
        if not first:
            # A broker that says NOT_COORDINATOR while the role moves would be asked in a tight loop.
            await asyncio.sleep(self._backoff.next_ms() / 1000)
        while True:
            try:
                # The lost address goes along: the broker that named it may be cut off, and would name it again.
                connection = await self._cluster.coordinators.open(self.config.group, lost=self._connected_to)
            except WireError as error:
                if not error.retriable:
                    self.fail(error)
                    return
                log.info("%s: no coordinator yet: %s", self._name, error)
                self._wait(f"is not connected: {error}")
                await asyncio.sleep(self._backoff.next_ms() / 1000)
            else:
                # The time of waiting goes on until an answer comes (`_note_answer`): a broker that refuses us accepts
                # connections.
                self._connection, self._connected_to, self.trouble = connection, connection.address, None
                self.post(contract.Connected())
                return

    def _note_answer(self, request: Asked, error: int) -> None:
        if error == ErrorCode.NONE:  # this is the coordinator
            self._backoff = Backoff(self._rng)
            self._wait(None)
        # To a heartbeat REBALANCE_IN_PROGRESS is no refusal: it asks the member to rejoin.
        elif not isinstance(request, contract.HeartbeatRequest) or error != ErrorCode.REBALANCE_IN_PROGRESS:
            self._wait(f"is refused: {_API_OF[type(request)]} is answered with {ErrorCode.name_of(error)}")

    def _wait(self, trouble: str | None) -> None:
        """Keep why this seat waits, with a warning if it has been waiting for long, or None when it waits no more."""
        self.trouble = trouble
        if trouble is None:
            self._troubled_since_ms, self._told_of_trouble = None, False
            return
        if self._troubled_since_ms is None:
            self._troubled_since_ms = monotonic_ms()
        waited_ms = monotonic_ms() - self._troubled_since_ms
        if waited_ms >= WAIT_TOLD_AFTER_MS and not self._told_of_trouble:
            self._told_of_trouble = True
            log.warning("%s has been waiting for %d s: it %s", self._name, waited_ms // 1000, trouble)

    async def _send(self, request: Asked) -> None:
        connection = self._connection
        # The request is not lost: at `Connected` the machine decides anew which one to send.
        if connection is None:
            return
        sent = request
        if isinstance(request, contract.JoinRequest):
            sent = await self._up_to_date(request)
            # A pattern asks brokers. The connection may have been replaced meanwhile, and the new one has a join of its
            # own.
            if connection is not self._connection:
                return
            self._on_join_sent()
            # Kept for a renaming, which has to name the same rack as the join (`to_message`).
            self._said_rack = self._rack()
        try:
            message = await _translate(request, partial(to_message, sent, self.config, self._said_rack))
            response = await connection.call(message, timeout_ms=self._timeout_ms(request))
            event = await _translate(request, partial(to_event, request, response))
        except WireError as error:
            # An old broker is no reason to fail: the seat goes on under the coordinator's member id.
            if isinstance(request, contract.RenameRequest) and isinstance(error, UnsupportedApi):
                self.post(contract.RenameResponse(request=request, error=ErrorCode.UNSUPPORTED_VERSION))
            elif not error.retriable and connection is self._connection:
                self.fail(error)
            elif connection is self._connection:
                await self._drop(connection, str(error))
            return
        if connection is self._connection:
            self._note_answer(request, getattr(event, "error", ErrorCode.NONE))
            self.post(event)

    async def _up_to_date(self, request: contract.JoinRequest) -> contract.JoinRequest:
        """The request with the topics that a pattern matches at this moment."""
        if self._match_now is None:
            return request
        await self._match_now()
        topics = self.config.topics
        return replace(request, protocols=tuple((name, replace(of, topics=topics)) for name, of in request.protocols))

    async def _drop(self, connection: Connection, reason: str) -> None:
        """End `connection`, with one event for all requests that wait on it: none of them will ever be answered."""
        self._connection = None
        self.post(contract.ConnectionLost(reason=reason))
        await connection.close()

    async def _probe_coordinator(self, heartbeat: contract.HeartbeatRequest | None) -> None:
        """Ask past a parked request: over the pool, since no request is read behind it on its connection."""
        connection, timeout_ms = self._connection, min(REQUEST_TIMEOUT_MS, self.config.session_timeout_ms)
        try:
            known = connection.address if connection is not None else None
            address = await self._cluster.coordinators.find(self.config.group, known=known, timeout_ms=timeout_ms)
            # The next connection begins with a look for the coordinator, so this answer is of no use.
            if connection is None or connection is not self._connection:
                return
            if address != connection.address:
                await self._drop(connection, f"{address} coordinates the group now, not {connection.address}")
            elif heartbeat is not None:
                message = to_message(heartbeat, self.config)
                answer = await self._cluster.coordinators.call(self.config.group, message, timeout_ms=timeout_ms)
                self.post(to_event(heartbeat, answer))
        except WireError as error:
            # Silence here proves no loss: the session's timer decides whether the membership is over.
            log.info("%s: no word past the parked request: %s", self._name, error)

    async def _ask(self, request: ConsumerHeartbeatRequest) -> None:
        try:
            answer = await self._calls.heartbeat(request)
        except WireError as error:
            self.fail(error)
            return
        if isinstance(answer, Unanswered):
            self._wait(f"is not connected: {answer.reason}")
        elif answer.error != ErrorCode.NONE:
            self._wait(f"is refused: a heartbeat is answered with {ErrorCode.name_of(answer.error)}")
        else:
            self._wait(None)
        self.post(answer)

    async def _resolve(self, topic_ids: frozenset[UUID]) -> None:
        answer = await self._calls.resolve_topic_names(topic_ids)
        # Brokers match the pattern, too, and may have assigned a topic that is younger than our last look.
        if self._match_now is not None and answer is not None and len(answer.names) < len(topic_ids):
            await self._match_now()
            answer = await self._calls.resolve_topic_names(topic_ids)
        if answer is not None:
            self.post(answer)

    async def _look_at_seat(self) -> None:
        try:
            group = await self._cluster.groups.describe(self.config.group, timeout_ms=REQUEST_TIMEOUT_MS)
        except WireError as error:
            log.info("%s: the coordinator did not say which member has the seat: %s", self._name, error)
            return
        ours = (member.member_id for member in group.members if member.instance_id == self.config.instance_id)
        self.post(contract.SeatSeen(member_id=next(ours, UNKNOWN_MEMBER_ID)))

    async def _leave(self, request: contract.LeaveRequest) -> None:
        """Give the seat back over the pool, and again while the coordinator moves: a person waits, but not for long."""
        try:
            still_there = await self._cluster.groups.remove_members(
                self.config.group, [request.identity], request.reason, timeout_ms=LEAVE_TIMEOUT_MS
            )
            error = next(iter(still_there.values()), int(ErrorCode.NONE))
        except WireError as refused:
            log.info("%s: not confirmed that the seat was given back: %s", self._name, refused)
            # A leaving machine waits for an answer in any case, so silence becomes one.
            error = ErrorCode.NETWORK_EXCEPTION
        self.post(contract.LeaveResponse(request=request, error=error))

    def _timeout_ms(self, request: Asked) -> int:
        if isinstance(request, contract.Parkable):
            return self.config.rebalance_timeout_ms + JOIN_TIMEOUT_SLACK_MS
        # Past the session timeout the answer to a heartbeat is useless: reconnect instead.
        return min(REQUEST_TIMEOUT_MS, self.config.session_timeout_ms)

    async def _lead(self, work: contract.ComputeAssignment) -> None:
        """Run the assignor. If it fails, let all members keep their claims. Gives up when the generation is over.

        The same if metadata of some topic is refused for good: no other member is to wait for this leader.
        """
        try:
            assignments = await self._compute_assignment(work)
        except Exception as error:  # noqa: BLE001 - of an assignor, which may be the user's
            claims = await asyncio.to_thread(undisputed_claims, work.members)
            wanted = {member.member_id: frozenset(member.subscription.topics) for member in work.members}
            kept = {who: frozenset(tp for tp in held if tp.topic in wanted[who]) for who, held in claims.items()}
            if self._still_assigns(work):
                log.warning(
                    "%s leads the group, and its assignor failed: each member keeps its partitions. %s",
                    self._name,
                    error,
                )
                failed = self._rejected(error)
                self.post(
                    contract.AssignmentFailed(
                        generation=work.generation, error=failed, kept=tuple(sorted(kept.items()))
                    )
                )
            return
        if assignments is not None and self._still_assigns(work):
            self.post(contract.AssignmentComputed(generation=work.generation, assignments=assignments))

    async def _compute_assignment(self, work: contract.ComputeAssignment) -> contract.Assignments | None:
        """The assignor's assignment from fresh metadata, or None once the generation is over."""
        wanted = sorted({topic for member in work.members for topic in member.subscription.topics})
        backoff = Backoff(self._rng)
        while self._still_assigns(work):
            try:
                metadata = await self._cluster.metadata(wanted, patience_ms=TOPIC_PATIENCE_MS)
            except WireError as error:
                if not error.retriable:
                    raise
                log.warning("%s: cannot assign without metadata, trying again: %s", self._name, error)
                self._wait(f"cannot assign without metadata: {error}")
                await asyncio.sleep(backoff.next_ms() / 1000)
                continue
            self._wait(None)
            hidden = self._see_hidden(metadata)
            # For a large group this takes seconds, in which the other seats of this loop must not fall silent. And a
            # custom assignor that hangs must not keep the process from its end.
            assignments = await asyncio.wrap_future(
                in_a_thread(partial(_assign, self._chosen(work), work, metadata.topics, hidden), "assign")
            )
            if self._still_assigns(work):
                # 0 for a topic that is not there, so that its appearance is a change to rebalance for
                # (`MetadataWatch`).
                self.snapshot = {t: metadata.topics[t].partition_count if t in metadata.topics else 0 for t in wanted}
            return assignments
        return None

    def _chosen(self, work: contract.ComputeAssignment) -> Assignor:
        """The assignor of ours that the coordinator chose: it chooses none that we did not offer."""
        return next(each for each in self.config.assignors if each.name == work.assignor)

    def _see_hidden(self, metadata: ClusterMetadata) -> set[str]:
        """The topics of which brokers do not say what they are, and those that this user may not see.

        There is one warning for each: of the first kind the cluster has given it already.

        Java's leader ends with this (TopicAuthorizationException). Here the members of all other topics go on.
        """
        denied = {topic for topic, code in metadata.errors.items() if code == ErrorCode.TOPIC_AUTHORIZATION_FAILED}
        hidden = denied - metadata.topics.keys()
        for topic in sorted(hidden - self._hidden):
            log.warning(
                "%s leads the group, and this user may not see topic %r, to which members subscribe: they "
                "keep its partitions, and none is assigned anew, while this seat leads. Grant DESCRIBE on it to this "
                "user.",
                self._name,
                topic,
            )
        self._hidden |= hidden
        return hidden | (metadata.unclear.keys() - metadata.topics.keys())

    def _still_assigns(self, work: contract.ComputeAssignment) -> bool:
        return self.machine.assigning_in == work.generation

    def fail(self, error: BaseException) -> None:
        """End this member, with an error that names it, unless it has ended.

        A dynamic one leaves (`member.actions`). A failure on its way out ends it at once.
        """
        if self.failure is not None or self.machine.ended:
            self.post(contract.Close())
            return
        lost = self.machine.owned
        rejected = self._rejected(error)
        self.failure = _failure_of(rejected)
        # No process comes back for a dynamic member, and its group would wait until its session is over.
        leaves = self.config.instance_id is None and self.machine.identity.member_id != UNKNOWN_MEMBER_ID
        try:
            self._take(contract.Leave(reason="the member failed") if leaves else contract.Close())
            self.post(contract.Tick())  # wakes `run`
        except Exception:
            log.debug("%s: it does not end by itself either", self._name, exc_info=True)
            self.post(contract.Close())
        # `Lost` first, so that the application has ended its work on the partitions when it hears of the failure.
        if lost:
            self._observer(self, contract.Lost(partitions=lost, reason=str(error)))
        self._observer(self, contract.Failed(error=rejected))

    def _rejected(self, error: BaseException) -> GroupRejected:
        """`error` as one that names and ends this member."""
        who = f"Member {self.config.instance_id!r}" if self.config.instance_id else "A dynamic member"
        cause = str(error) if isinstance(error, KgroupError) else f"a fault of its own, {error!r}"
        rejected = GroupRejected(
            f"{who} of group {self.config.group!r} cannot go on: {cause.rstrip('.')}. Start it again when that is "
            "mended."
        )
        rejected.__cause__ = error
        if not isinstance(error, KgroupError):
            log.error("%s: a bug of spark-kgroup. Please report it.", self._name, exc_info=error)
        return rejected

    @property
    def _name(self) -> str:
        return f"{self.config.group}/{self.config.instance_id or self.machine.identity.member_id or 'new member'}"

    async def _stop(self) -> None:
        try:
            await self._tasks.end()
        finally:  # 1. A session stops by itself. 2. The group is closed, and cancels it. Its socket must go
            connection, self._connection = self._connection, None
            if connection is not None:
                await connection.close()


def _failure_of(ended: KgroupError) -> KgroupError:
    """The error that `Group.view` raises. Callers choose by its kind, the cause's, and its text names the member."""
    cause = ended.__cause__
    return cause.reworded(str(ended)) if isinstance(cause, KgroupError) else ended


def _assign(
    assignor: Assignor, work: contract.ComputeAssignment, topics: Mapping[str, TopicDescription], hidden: Set[str]
) -> contract.Assignments:
    """The partitions that every member shall own. Runs in a thread: it takes values and gives values."""
    assignment = assignor.assign(work.members, topics)
    return tuple(sorted((add_claims(hidden, assignment, work.members) if hidden else assignment).items()))


async def _translate(request: Asked, translate: Callable[[], _T]) -> _T:
    """Run `translate`, in a thread for messages with all members' subscriptions or assignments, as the assignor is."""
    if isinstance(request, contract.Parkable):
        return await asyncio.to_thread(uncollected()(translate))
    return translate()
