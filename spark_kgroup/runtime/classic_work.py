"""The work of a machine under the classic protocol: its requests, and the assignments that it makes while it leads.

A parked JoinGroup blocks all requests behind it on its connection, so each member has a connection of its own to the
coordinator. Requests that must not wait for a parked one go over the pool. `translate` makes messages of the requests,
and events of the answers.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Set
from dataclasses import replace
from functools import partial
from random import Random
from typing import Final, Protocol, TypeVar

from spark_kgroup.assignors.contract import Assignor
from spark_kgroup.assignors.cooperative_sticky import add_claims, undisputed_claims
from spark_kgroup.clock import monotonic_ms
from spark_kgroup.errors import GroupRejected, UnsupportedApi, WireError
from spark_kgroup.limits import (
    JOIN_TIMEOUT_SLACK_MS,
    LEAVE_TIMEOUT_MS,
    REQUEST_TIMEOUT_MS,
    TOPIC_PATIENCE_MS,
    WAIT_TOLD_AFTER_MS,
)
from spark_kgroup.member import contract
from spark_kgroup.member.machine import Config, Machine
from spark_kgroup.model import UNKNOWN_MEMBER_ID, ErrorCode, TopicDescription
from spark_kgroup.runtime.assignment_drift import not_known_of
from spark_kgroup.runtime.neighbours import Neighbours
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


class Waiting:
    """Why a seat waits, with a warning if it has been waiting for long.

    Args:
        name: the seat's, for the warning.

    Attributes:
        reason: a clause about the seat, or None if it does not wait.
    """

    def __init__(self, name: Callable[[], str]) -> None:
        self.reason: str | None = None
        self._name = name
        self._since_ms: int | None = None
        self._told = False

    def begin(self, reason: str) -> None:
        """Wait for this reason. The time counts from the first reason after an end."""
        self.reason = reason
        if self._since_ms is None:
            self._since_ms = monotonic_ms()
        waited_ms = monotonic_ms() - self._since_ms
        if waited_ms >= WAIT_TOLD_AFTER_MS and not self._told:
            self._told = True
            log.warning("%s has been waiting for %d s: it %s", self._name(), waited_ms // 1000, reason)

    def pause(self) -> None:
        """Forget the reason, which is over. The time goes on, because another reason may follow."""
        self.reason = None

    def end(self) -> None:
        """Wait no more."""
        self.reason, self._since_ms, self._told = None, None, False


class Seat(Protocol):
    """The session whose member this work is for: see `Session`."""

    machine: Machine
    snapshot: Mapping[str, int] | None
    waiting: Waiting
    tasks: TaskSet

    @property
    def config(self) -> Config:
        """How the member presents itself now: the topics that a pattern matches come and go."""

    @property
    def name(self) -> str:
        """As log lines name it."""

    def post(self, event: contract.Event) -> None:
        """Hand the machine an event."""

    def fail(self, error: BaseException) -> None:
        """End the member."""

    def rejected(self, error: BaseException) -> GroupRejected:
        """`error` as one that names and ends the member."""


class ClassicCalls:
    """The calls of one member, and its connection to the coordinator.

    Args:
        seat: gets the events, and the errors that end it.
        neighbours: hear of each JoinGroup BEFORE it is sent, and of each connection that is lost.
        rack: where the member reads, asked at each join.
        match_now: looks for topics of a pattern BEFORE the member joins, or None without a pattern.
    """

    def __init__(
        self,
        seat: Seat,
        cluster: Cluster,
        rng: Random,
        neighbours: Neighbours,
        rack: Callable[[], str | None],
        match_now: Callable[[], Awaitable[None]] | None,
    ) -> None:
        self._seat = seat
        self._cluster = cluster
        self._rng = rng
        self._neighbours = neighbours
        self._rack = rack
        self._said_rack: str | None = None
        """The rack that its last join named."""
        self._match_now = match_now
        self._backoff = Backoff(rng)
        self._connection: Connection | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._connected_to: Address | None = None
        """Where its last connection led."""

    def reconnect(self, reason: str) -> None:
        """Look for the coordinator, and connect to it. `Connected` follows."""
        # The old connection does not count from this moment: a late answer or error on it must not reach the machine.
        old, self._connection = self._connection, None
        if old is not None:
            self._seat.tasks.begin(old.close())
        if self._connected_to is not None:
            self._neighbours.on_connection_lost()
        # A search for the coordinator that is under way will do, for it ends with a fresh connection.
        if self._connecting is None or self._connecting.done():
            self._connecting = self._seat.tasks.begin(self._connect(reason, first=self._connecting is None))

    async def _connect(self, reason: str, *, first: bool) -> None:
        log.debug("%s: looking for the coordinator (%s)", self._seat.name, reason)
        if not first:
            # A broker that says NOT_COORDINATOR while the role moves would be asked in a tight loop.
            await asyncio.sleep(self._backoff.next_ms() / 1000)
        while True:
            try:
                # The lost address goes along: the broker that named it may be cut off, and would name it again.
                connection = await self._cluster.coordinators.open(self._seat.config.group, lost=self._connected_to)
            except WireError as error:
                if not error.retriable:
                    self._seat.fail(error)
                    return
                log.info("%s: no coordinator yet: %s", self._seat.name, error)
                self._seat.waiting.begin(f"is not connected: {error}")
                await asyncio.sleep(self._backoff.next_ms() / 1000)
            else:
                # The time of waiting goes on until an answer comes (`_note_answer`): a broker that refuses us accepts
                # connections.
                self._connection, self._connected_to = connection, connection.address
                self._seat.waiting.pause()
                self._seat.post(contract.Connected())
                return

    def _note_answer(self, request: Asked, error: int) -> None:
        if error == ErrorCode.NONE:  # this is the coordinator
            self._backoff = Backoff(self._rng)
            self._seat.waiting.end()
        # To a heartbeat REBALANCE_IN_PROGRESS is no refusal: it asks the member to rejoin.
        elif not isinstance(request, contract.HeartbeatRequest) or error != ErrorCode.REBALANCE_IN_PROGRESS:
            self._seat.waiting.begin(
                f"is refused: {_API_OF[type(request)]} is answered with {ErrorCode.name_of(error)}"
            )

    async def send(self, request: Asked) -> None:
        """Send a request over the member's own connection. Its answer becomes an event, or the connection is lost."""
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
            self._neighbours.on_join_sent()
            # Kept for a renaming, which has to name the same rack as the join (`to_message`).
            self._said_rack = self._rack()
        try:
            message = await _translate(request, partial(to_message, sent, self._seat.config, self._said_rack))
            response = await connection.call(message, timeout_ms=self._timeout_ms(request))
            event = await _translate(request, partial(to_event, request, response))
        except WireError as error:
            # An old broker is no reason to fail: the seat goes on under the coordinator's member id.
            if isinstance(request, contract.RenameRequest) and isinstance(error, UnsupportedApi):
                self._seat.post(contract.RenameResponse(request=request, error=ErrorCode.UNSUPPORTED_VERSION))
            elif not error.retriable and connection is self._connection:
                self._seat.fail(error)
            elif connection is self._connection:
                await self._drop(connection, str(error))
            return
        if connection is self._connection:
            self._note_answer(request, getattr(event, "error", ErrorCode.NONE))
            self._seat.post(event)

    async def _up_to_date(self, request: contract.JoinRequest) -> contract.JoinRequest:
        """The request with the topics that a pattern matches at this moment."""
        if self._match_now is None:
            return request
        await self._match_now()
        topics = self._seat.config.topics
        return replace(request, protocols=tuple((name, replace(of, topics=topics)) for name, of in request.protocols))

    async def _drop(self, connection: Connection, reason: str) -> None:
        """End `connection`, with one event for all requests that wait on it: none of them will ever be answered."""
        self._connection = None
        self._seat.post(contract.ConnectionLost(reason=reason))
        await connection.close()

    async def probe_coordinator(self, heartbeat: contract.HeartbeatRequest | None) -> None:
        """Ask past a parked request: over the pool, since no request is read behind it on its connection."""
        connection, timeout_ms = self._connection, min(REQUEST_TIMEOUT_MS, self._seat.config.session_timeout_ms)
        try:
            known = connection.address if connection is not None else None
            address = await self._cluster.coordinators.find(self._seat.config.group, known=known, timeout_ms=timeout_ms)
            # The next connection begins with a look for the coordinator, so this answer is of no use.
            if connection is None or connection is not self._connection:
                return
            if address != connection.address:
                await self._drop(connection, f"{address} coordinates the group now, not {connection.address}")
            elif heartbeat is not None:
                message = to_message(heartbeat, self._seat.config)
                answer = await self._cluster.coordinators.call(self._seat.config.group, message, timeout_ms=timeout_ms)
                self._seat.post(to_event(heartbeat, answer))
        except WireError as error:
            # Silence here proves no loss: the session's timer decides whether the membership is over.
            log.info("%s: no word past the parked request: %s", self._seat.name, error)

    async def look_at_seat(self) -> None:
        """Ask which member has the seat."""
        try:
            group = await self._cluster.groups.describe(self._seat.config.group, timeout_ms=REQUEST_TIMEOUT_MS)
        except WireError as error:
            log.info("%s: the coordinator did not say which member has the seat: %s", self._seat.name, error)
            return
        ours = (member.member_id for member in group.members if member.instance_id == self._seat.config.instance_id)
        self._seat.post(contract.SeatSeen(member_id=next(ours, UNKNOWN_MEMBER_ID)))

    async def leave(self, request: contract.LeaveRequest) -> None:
        """Give the seat back over the pool, and again while the coordinator moves: a person waits, but not for long."""
        try:
            still_there = await self._cluster.groups.remove_members(
                self._seat.config.group, [request.identity], request.reason, timeout_ms=LEAVE_TIMEOUT_MS
            )
            error = next(iter(still_there.values()), int(ErrorCode.NONE))
        except WireError as refused:
            log.info("%s: not confirmed that the seat was given back: %s", self._seat.name, refused)
            # A leaving machine waits for an answer in any case, so silence becomes one.
            error = ErrorCode.NETWORK_EXCEPTION
        self._seat.post(contract.LeaveResponse(request=request, error=error))

    def _timeout_ms(self, request: Asked) -> int:
        if isinstance(request, contract.Parkable):
            return self._seat.config.rebalance_timeout_ms + JOIN_TIMEOUT_SLACK_MS
        # Past the session timeout the answer to a heartbeat is useless: reconnect instead.
        return min(REQUEST_TIMEOUT_MS, self._seat.config.session_timeout_ms)

    async def close(self) -> None:
        """Close the connection, if there is one."""
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()


class Leading:
    """The assignments that one member makes while it leads.

    Args:
        seat: gets the events, and the snapshot of the topics that were assigned.
    """

    def __init__(self, seat: Seat, cluster: Cluster, rng: Random) -> None:
        self._seat = seat
        self._cluster = cluster
        self._rng = rng
        self._hidden: set[str] = set()

    async def lead(self, work: contract.ComputeAssignment) -> None:
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
                    self._seat.name,
                    error,
                )
                failed = self._seat.rejected(error)
                self._seat.post(
                    contract.AssignmentFailed(
                        generation=work.generation, error=failed, kept=tuple(sorted(kept.items()))
                    )
                )
            return
        if assignments is not None and self._still_assigns(work):
            self._seat.post(contract.AssignmentComputed(generation=work.generation, assignments=assignments))

    async def _compute_assignment(self, work: contract.ComputeAssignment) -> contract.Assignments | None:
        """The assignor's assignment from fresh metadata, or None once the generation is over.

        1. A broker is cut off, and a topic grows. 2. Members get the new partitions. 3. This process starts, and leads
        the next generation. 4. The first broker that it asks is the one that is cut off. Assigned by that answer, the
        new partitions would be taken from their owners. So another broker is asked, once.
        """
        contradicted = False
        wanted = sorted({topic for member in work.members for topic in member.subscription.topics})
        backoff = Backoff(self._rng)
        while self._still_assigns(work):
            try:
                metadata = await self._cluster.metadata(wanted, patience_ms=TOPIC_PATIENCE_MS)
            except WireError as error:
                if not error.retriable:
                    raise
                log.warning("%s: cannot assign without metadata, trying again: %s", self._seat.name, error)
                self._seat.waiting.begin(f"cannot assign without metadata: {error}")
                await asyncio.sleep(backoff.next_ms() / 1000)
                continue
            self._seat.waiting.end()
            if not contradicted and (less := await asyncio.to_thread(not_known_of, work.members, metadata.topics)):
                contradicted = True
                self._cluster.doubt(less)
                continue
            hidden = self._see_hidden(metadata)
            # For a large group this takes seconds, in which the other seats of this loop must not fall silent. And a
            # custom assignor that hangs must not keep the process from its end.
            assignments = await asyncio.wrap_future(
                in_a_thread(partial(_assign, self._chosen(work), work, metadata.topics, hidden), "assign")
            )
            if self._still_assigns(work):
                # 0 for a topic that is not there, so that its appearance is a change to rebalance for
                # (`MetadataWatch`).
                self._seat.snapshot = {
                    t: metadata.topics[t].partition_count if t in metadata.topics else 0 for t in wanted
                }
            return assignments
        return None

    def _chosen(self, work: contract.ComputeAssignment) -> Assignor:
        """The assignor of ours that the coordinator chose: it chooses none that we did not offer."""
        return next(each for each in self._seat.config.assignors if each.name == work.assignor)

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
                self._seat.name,
                topic,
            )
        self._hidden |= hidden
        return hidden | (metadata.unclear.keys() - metadata.topics.keys())

    def _still_assigns(self, work: contract.ComputeAssignment) -> bool:
        return self._seat.machine.assigning_in == work.generation


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
