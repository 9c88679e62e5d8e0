"""The member's half of the classic group protocol, without any I/O.

The law of this file: an event and `now_ms` go in (`ClassicMember.handle`), effects come out. Nothing here reads a
clock, a socket or a random source. Every pair of state and event is in `TRANSITIONS`; anything else is an
`IllegalTransition`. Timers are data (`next_wakeup_at_ms`); a `Tick` fires those that are due.

Sources: KIP-345 (static membership), KIP-394 (MEMBER_ID_REQUIRED), KIP-429 (cooperative rebalance), KIP-792
(generation in the subscription), KIP-800 (reasons), KIP-814 (SkipAssignment); Kafka's AbstractCoordinator and
ConsumerCoordinator for what the KIPs leave open.

One deadline watches over what is held: a session after the last word of the group (`_heard`). Only a word moves it,
and it counts from when the question was sent, as the coordinator heard from us no earlier. A broken connection, a
refused or a parked request neither stop nor restart it; while a request is parked, `Look` asks over another connection.

What a member holds and what it is assigned are two things. `assigned` is the group's word in the last SyncGroup.
`held` is what the application may be reading: it grows with each assignment and shrinks only when the application
gave a partition up (`GaveUp`) or lost it. Each join claims `held`, so the leader never hands a partition on while it is
read here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from enum import Enum
from typing import Any, Final

from spark_kgroup.errors import FencedInstanceId, GroupError, IllegalTransition
from spark_kgroup.limits import (
    HEARTBEAT_JITTER,
    REJOIN_BACKOFF_MAX_MS,
    REQUEST_TIMEOUT_MS,
    RETRY_BACKOFF_JITTER,
    RETRY_BACKOFF_MAX_MS,
    RETRY_BACKOFF_MS,
)
from spark_kgroup.member import effects as fx
from spark_kgroup.member.config import Inheritance, MemberConfig
from spark_kgroup.member.rejections import rejection
from spark_kgroup.member.state import State
from spark_kgroup.model import (
    NO_GENERATION,
    UNKNOWN_MEMBER_ID,
    ErrorCode,
    GroupMember,
    MemberIdentity,
    Subscription,
    TopicPartition,
)

__all__ = ["TRANSITIONS", "ClassicMember", "Inheritance", "MemberConfig", "State"]


_IN_A_GENERATION: Final = (State.STABLE, State.REVOKING)

_EARLIER_LOOKS_MAX: Final = 4
"""As many as a session has, and one more: what was asked for earlier moves no deadline."""


class _Timer(Enum):
    HEARTBEAT = "heartbeat"
    SESSION = "session"
    RETRY = "retry"
    OBJECT = "object"


_COORDINATOR_GONE: Final = frozenset({ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE})
_TRY_AGAIN: Final = (ErrorCode.retriable_codes() | {ErrorCode.REBALANCE_IN_PROGRESS}) - _COORDINATOR_GONE
_MEMBERSHIP_OVER: Final = frozenset({ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION})


class ClassicMember:
    """One member's state machine.

    Args:
        config: how the member presents itself.
        jitter: gives a number in [0, 1) for each heartbeat and retry; passed in so that a simulation repeats.

    """

    def __init__(self, config: MemberConfig, *, jitter: Callable[[], float]) -> None:
        self.config: Final = config
        self.state = State.IDLE
        self.identity = MemberIdentity(instance_id=config.instance_id)
        self.held: frozenset[TopicPartition] = frozenset()
        self.assigned: frozenset[TopicPartition] = frozenset()
        self.leader = False
        self.watched_topics: frozenset[str] = frozenset()
        """Topics whose metadata this member watches for the group: all members' if it leads, else none."""
        self._jitter = jitter
        self._connected = False
        self._awaited: fx.Request | None = None
        self._asked_at_ms = -1
        """When the awaited request was sent, or the last one; -1 before the first."""
        self._beat: fx.HeartbeatRequest | None = None
        """The heartbeat under way, on our connection or, while a request is parked there, on another one."""
        self._beat_at_ms = 0
        self._earlier_looks: tuple[tuple[fx.HeartbeatRequest, int], ...] = ()
        """Heartbeats past a parked request that a newer one has followed, and when each was asked for."""
        self._beaten_in = NO_GENERATION
        self._claimed: frozenset[TopicPartition] = frozenset()
        """What the last answered join claimed: what the leader goes by while we do not join again."""
        inheritance = config.inheritance if config.cooperative else Inheritance()
        self._inherited = inheritance.partitions
        """Claimed, and the group has not answered yet."""
        self._left_over: frozenset[TopicPartition] = frozenset()
        """Inherited, not assigned to us, and claimed until the application has given it up."""
        self._unwanted: frozenset[TopicPartition] = frozenset()
        """Assigned to us, of topics that we do not subscribe; claimed until the application has given it up."""
        self._objections = 0
        """How many generations in a row assigned us what we neither subscribed nor claimed."""
        self._assigned_in = inheritance.generation
        self._protocol = ""
        self._reason = "start"
        self._retries = 0
        self._confirmed_id = UNKNOWN_MEMBER_ID
        """The member id of the last sync: a coordinator that takes over knows it."""
        self._doubts_seat = False
        self._vain_joins = 0
        """How many joins in a row changed neither generation nor assignment."""
        self._patient_until_ms = 0
        self._timers: dict[_Timer, int] = {}

    # -------------------------------------------------------------------------------------------- the outside

    @property
    def to_give_up(self) -> frozenset[TopicPartition]:
        """Held or inherited, but to be given up at the next boundary."""
        if self.state is State.REVOKING and not self.config.cooperative:
            return self.held | self._unwanted
        return (self.held - self.assigned) | self._left_over | self._unwanted

    @property
    def settled(self) -> bool:
        """In a generation, nothing to give up, no rejoin on its way."""
        return self.state is State.STABLE

    def next_wakeup_at_ms(self) -> int | None:
        """When the next `Tick` is due, None if no timer runs."""
        return min(self._timers.values(), default=None)

    def handle(self, event: fx.Event, now_ms: int) -> list[fx.Effect]:
        """Take one event; return what is to be done about it, in order.

        Raises:
            IllegalTransition: the pair of state and event is not in the table: a bug of the caller or ours.

        """
        handler = TRANSITIONS[self.state].get(type(event))
        if handler is None:
            raise IllegalTransition("classic member", self.state.value, type(event).__name__)
        return handler(self, event, now_ms)

    # ------------------------------------------------------------------------------------------- beginning

    def _start(self, _: fx.Start, _now_ms: int) -> list[fx.Effect]:
        self.state = State.JOINING
        return [fx.Connect(reason="start")]

    def _ignore(self, _: fx.Event, __: int) -> list[fx.Effect]:
        return []

    def _connected_join(self, _: fx.Connected, now_ms: int) -> list[fx.Effect]:
        self._connected = True
        return self._send_join(now_ms)

    def _connected_stable(self, _: fx.Connected, now_ms: int) -> list[fx.Effect]:
        self._connected = True
        return self._send_heartbeat(now_ms)

    def _connected_assigning(self, _: fx.Connected, now_ms: int) -> list[fx.Effect]:
        # 1. the connection breaks while the assignor runs; 2. the group may have moved on meanwhile; so ask again:
        # a join with unchanged metadata is answered with the current generation.
        self._connected = True
        return self._join("connection lost while assigning", now_ms)

    def _disconnected(self, event: fx.Disconnected, _now_ms: int) -> list[fx.Effect]:
        self._cut_off()
        if self.state is State.SYNCING:
            # The answer is lost, not the generation: a join with unchanged metadata is answered from it.
            self.state = State.JOINING
            self._reason = "connection lost while syncing"
        return [fx.Connect(reason=event.reason)]

    def _cut_off(self) -> None:
        """Nothing asked so far will be answered on a connection that leads to the coordinator."""
        self._connected = False
        self._awaited = self._beat = None
        self._timers.pop(_Timer.HEARTBEAT, None)
        self._timers.pop(_Timer.RETRY, None)

    # ------------------------------------------------------------------------------------------------- joining

    def _join(self, reason: str, now_ms: int, *, afresh: bool = False) -> list[fx.Effect]:
        """Enter JOINING; a cooperative member keeps what it holds, an eager one holds nothing by now.

        Args:
            reason: for the broker's log.
            now_ms: the instant.
            afresh: over another connection, for what was asked on this one may never be answered.
        """
        self.state = State.JOINING
        self._reason = reason
        self._timers.pop(_Timer.OBJECT, None)
        if afresh and self._connected:
            self._cut_off()
            return [fx.Rejoining(reason=reason), fx.Connect(reason=reason)]
        self._timers.pop(_Timer.HEARTBEAT, None)
        self._beat = None
        return [fx.Rejoining(reason=reason), *self._send_join(now_ms)]

    def _send_join(self, now_ms: int) -> list[fx.Effect]:
        if not self._connected:
            return []
        self._timers.pop(_Timer.RETRY, None)
        request = fx.JoinRequest(identity=self.identity, protocols=self._protocols(), reason=self._reason)
        return self._ask(request, now_ms)

    def _ask(self, request: fx.Parkable, now_ms: int) -> list[fx.Effect]:
        self._awaited, self._asked_at_ms = request, now_ms
        self._beat = None
        self._look_later(now_ms)
        return [fx.Send(request=request)]

    def _protocols(self) -> tuple[tuple[str, Subscription], ...]:
        claims = self.held | self._inherited | self._left_over | self._unwanted
        # What is left over may have another owner, whose claim must win; a subscription has one generation for all.
        generation = self.config.inheritance.generation if self._left_over else self._assigned_in
        base = Subscription(
            topics=tuple(sorted(self.config.topics)),
            owned=claims,
            generation=generation,
            rack=self.config.rack,
        )
        return tuple((a.name, replace(base, user_data=a.user_data(claims, generation))) for a in self.config.assignors)

    def _join_response(self, event: fx.JoinResponse, now_ms: int) -> list[fx.Effect]:
        if event.request != self._awaited:
            return []
        self._awaited = None
        if event.error == ErrorCode.NONE:
            return self._joined(event, now_ms)
        if event.error == ErrorCode.MEMBER_ID_REQUIRED:
            self.identity = replace(self.identity, member_id=event.member_id)
            return self._send_join(now_ms)
        return self._refused("JoinGroup", event.error, now_ms)

    def _joined(self, event: fx.JoinResponse, now_ms: int) -> list[fx.Effect]:
        rejoined = self.config.instance_id is not None and event.request.identity.member_id == UNKNOWN_MEMBER_ID
        lost = self._lose_unclaimed(event)
        self._claimed = event.request.protocols[0][1].owned
        self.identity = replace(self.identity, member_id=event.member_id, generation=event.generation)
        self._protocol = event.protocol
        self.leader = event.leader == event.member_id
        self.watched_topics = self._topics_of(event.members) if self.leader else frozenset()
        self._heard(self._asked_at_ms, now_ms)
        told = fx.Joined(
            identity=self.identity,
            leader=self.leader,
            protocol=event.protocol,
            skip_assignment=event.skip_assignment,
            rejoined=rejoined,
        )
        if self.leader and not event.skip_assignment:
            self.state = State.ASSIGNING
            compute = fx.ComputeAssignment(generation=event.generation, assignor=event.protocol, members=event.members)
            return [*lost, told, compute]
        return [*lost, told, *self._send_sync((), now_ms)]

    def _lose_unclaimed(self, event: fx.JoinResponse) -> list[fx.Effect]:
        """Lose what others may have been given in a generation that went by without us.

        1. A static member that cannot rejoin within the rebalance timeout stays in the group, with the claim of its
        last join (KIP-345); 2. what it was assigned since is claimed by nobody, so the leader may give it away; 3. its
        own next join succeeds all the same, for a join is not checked for its generation.

        A group without a leader is of type consumer (KIP-848): the coordinator itself knows what we have not given up,
        and its epochs pass by members whose assignment they leave alone.
        """
        missed = bool(event.leader) and event.generation > self.identity.generation + 1
        if not missed or not (lost := self.held - self._claimed):
            return []
        self.held -= lost
        told = f"the group rebalanced without us before generation {event.generation}"
        return [fx.Lost(partitions=lost, reason=told)]

    @staticmethod
    def _topics_of(members: Sequence[GroupMember]) -> frozenset[str]:
        return frozenset(topic for member in members for topic in member.subscription.topics)

    def _assignment_computed(self, event: fx.AssignmentComputed, now_ms: int) -> list[fx.Effect]:
        if event.generation != self.identity.generation or not self._connected:
            return []
        return self._send_sync(event.assignments, now_ms)

    def _send_sync(self, shares: tuple[tuple[str, frozenset[TopicPartition]], ...], now_ms: int) -> list[fx.Effect]:
        self.state = State.SYNCING
        return self._ask(fx.SyncRequest(identity=self.identity, protocol=self._protocol, assignments=shares), now_ms)

    def _sync_response(self, event: fx.SyncResponse, now_ms: int) -> list[fx.Effect]:
        if event.request != self._awaited:
            return []
        self._awaited = None
        if event.error == ErrorCode.NONE:
            return self._synced(event.assignment, now_ms)
        if event.error == ErrorCode.REBALANCE_IN_PROGRESS:
            return self._join("the group rebalanced while syncing", now_ms)
        if event.error in _COORDINATOR_GONE or event.error in _TRY_AGAIN:
            self.state = State.JOINING
            self._reason = f"SyncGroup failed with {ErrorCode.name_of(event.error)}"
        return self._refused("SyncGroup", event.error, now_ms)

    def _synced(self, assignment: frozenset[TopicPartition], now_ms: int) -> list[fx.Effect]:
        self._retries = 0
        self._confirmed_id = self.identity.member_id
        self._note_vain_join(assignment, now_ms)
        self._left_over = (self._inherited | self._left_over) - assignment
        assignment = self._subscribed_of(assignment, now_ms)
        added = assignment - self.held
        self.assigned, self._assigned_in = assignment, self.identity.generation
        self.held |= added
        self._inherited = frozenset()
        revoked = (self.held - assignment) | self._left_over | self._unwanted
        self._heard(self._asked_at_ms, now_ms)
        told: list[fx.Effect] = [fx.Assigned(identity=self.identity, owned=assignment, added=added, revoked=revoked)]
        if revoked:
            self.state = State.REVOKING
        elif self._claimed - assignment:
            # 1. we joined claiming P; 2. while the join was parked, a boundary gave P up; 3. the leader kept P from
            # its new owner because of our claim. Nobody else will rejoin for it, so we do.
            return [*told, *self._join("given up what the join still claimed", now_ms)]
        else:
            self.state = State.STABLE
        if self._beaten_in != self.identity.generation:
            # Once in each generation at once: who gives something up at once wants everyone in the next one.
            return [*told, *self._send_heartbeat(now_ms)]
        self._beat = None
        self._beat_later(now_ms, self.config.heartbeat_interval_ms)
        return told

    def _subscribed_of(self, assignment: frozenset[TopicPartition], now_ms: int) -> frozenset[TopicPartition]:
        """What of `assignment` is subscribed. The rest is to be given up, at once where that tells the leader news.

        1. a static seat comes back with another subscription; 2. the group stays as it is, and so does its assignment
        (KIP-345); 3. only the join that follows when the unwanted is given up tells the leader of it. 4. A leader of
        another client that assigns such a topic even then would have the group rebalance without end: what it assigns
        again is left alone, and joins that object to it come ever more seldom.
        """
        foreign = frozenset(tp for tp in assignment if tp.topic not in self.config.topics)
        going = foreign & self._claimed if self._objections else foreign
        self._unwanted |= going
        if foreign - going:
            wait_ms = min(self.config.heartbeat_interval_ms << min(self._objections - 1, 16), REJOIN_BACKOFF_MAX_MS)
            self._timers[_Timer.OBJECT] = now_ms + wait_ms
        self._objections = self._objections + bool(foreign - self._claimed) if foreign else 0
        return assignment - foreign

    def _note_vain_join(self, assignment: frozenset[TopicPartition], now_ms: int) -> None:
        """Be patient with a coordinator that asks for joins which change nothing.

        Kafka answers each heartbeat of a classic member in a group of type consumer with REBALANCE_IN_PROGRESS as long
        as the member has not given up what it must (GroupMetadataManager.classicGroupHeartbeatToConsumerGroup), which
        we do between two batches.
        """
        vain = self._beaten_in == self.identity.generation and assignment == self.assigned | self._unwanted
        self._vain_joins = self._vain_joins + 1 if vain else 0
        wait_ms = min(self.config.heartbeat_interval_ms << min(self._vain_joins, 16), REJOIN_BACKOFF_MAX_MS)
        self._patient_until_ms = now_ms + wait_ms if self._vain_joins else 0

    # --------------------------------------------------------------------------------------- in a generation

    def _send_heartbeat(self, now_ms: int) -> list[fx.Effect]:
        if not self._connected:
            return []
        self._beat_later(now_ms, self.config.heartbeat_interval_ms)
        if self._beat is not None:
            return []  # the last one is still unanswered; the session timer watches that
        self._beat, self._beat_at_ms = fx.HeartbeatRequest(identity=self.identity), now_ms
        self._beaten_in = self.identity.generation
        return [fx.Send(request=self._beat)]

    def _beat_later(self, now_ms: int, interval_ms: int) -> None:
        self._timers[_Timer.HEARTBEAT] = now_ms + int(interval_ms * (1 - HEARTBEAT_JITTER * self._jitter()))

    def _look_later(self, now_ms: int) -> None:
        # Three questions in a session, as heartbeats are advised to be; sooner on a connection that is new while the
        # deadline is near; and a coordinator that moved costs one request timeout at most.
        session_ms = self.config.session_timeout_ms
        left_ms = self._timers.get(_Timer.SESSION, now_ms + session_ms) - now_ms
        self._beat_later(now_ms, min(REQUEST_TIMEOUT_MS, session_ms // 3, max(left_ms // 2, RETRY_BACKOFF_MS)))

    def _look(self, now_ms: int) -> list[fx.Effect]:
        """While the answer to a request is due: does the group still know us, and where is its coordinator?

        The coordinator checks and renews a membership at a heartbeat in every phase of a rebalance
        (GroupMetadataManager.classicGroupHeartbeatToClassicGroup).
        """
        self._look_later(now_ms)
        known = self.identity.generation != NO_GENERATION
        if self._beat is not None:
            self._earlier_looks = (*self._earlier_looks, (self._beat, self._beat_at_ms))[-_EARLIER_LOOKS_MAX:]
        self._beat, self._beat_at_ms = fx.HeartbeatRequest(identity=self.identity) if known else None, now_ms
        return [fx.Look(heartbeat=self._beat)]

    def _look_response(self, event: fx.HeartbeatResponse, now_ms: int) -> list[fx.Effect]:
        knows_us = event.error in (ErrorCode.NONE, ErrorCode.REBALANCE_IN_PROGRESS)
        if event.request is not self._beat:
            # A coordinator that takes longer than from one look to the next still gives its word; a refusal may be old.
            asked_at_ms = next((at for request, at in self._earlier_looks if request is event.request), None)
            if knows_us and asked_at_ms is not None and event.request.identity == self.identity:
                self._heard(asked_at_ms, now_ms)
            return []
        self._beat = None
        if knows_us:
            self._heard(self._beat_at_ms, now_ms)
            return []
        return self._told_elsewhere("Heartbeat", event.error, now_ms)

    def _told_elsewhere(self, api: str, error: int, now_ms: int) -> list[fx.Effect]:
        """Hear over another connection, while a request may be parked on ours, that something is wrong."""
        if error == ErrorCode.ILLEGAL_GENERATION:
            # The next generation is there: our answer is on its way, or its connection leads nowhere.
            return self._look(now_ms) if api == "OffsetCommit" and self._awaited is not None else []
        if error in _COORDINATOR_GONE:
            return self._disconnected(fx.Disconnected(reason=f"{api}: {ErrorCode.name_of(error)}"), now_ms)
        return [] if error in _TRY_AGAIN else self._refused(api, error, now_ms)

    def _heartbeat_response(self, event: fx.HeartbeatResponse, now_ms: int) -> list[fx.Effect]:
        if event.request is not self._beat:
            return []
        self._beat = None
        if event.error in (ErrorCode.NONE, ErrorCode.REBALANCE_IN_PROGRESS):
            self._heard(self._beat_at_ms, now_ms)
        if event.error == ErrorCode.REBALANCE_IN_PROGRESS:
            return self._rebalance("the group rebalances", now_ms) if now_ms >= self._patient_until_ms else []
        if event.error == ErrorCode.NONE or event.error in _TRY_AGAIN:
            return []  # the next beat is due anyway
        return self._refused("Heartbeat", event.error, now_ms)

    def _rebalance(self, reason: str, now_ms: int) -> list[fx.Effect]:
        """Take part in the next generation as soon as the rebalance protocol allows."""
        if self.config.cooperative or not (self.held or self._unwanted):
            return self._join(reason, now_ms)
        if self.state is State.REVOKING:
            return []
        # An eager member's join says that it owns nothing (KIP-429, "Consumer Protocol"): all must be given up first.
        self.state = State.REVOKING
        self._reason = reason
        return [fx.Assigned(identity=self.identity, owned=frozenset(), added=frozenset(), revoked=self.held)]

    def _rejoin_wanted(self, event: fx.RejoinWanted, now_ms: int) -> list[fx.Effect]:
        return self._rebalance(event.reason, now_ms)

    def _gave_up(self, event: fx.GaveUp, now_ms: int) -> list[fx.Effect]:
        self.held -= event.partitions
        self._left_over -= event.partitions
        self._unwanted -= event.partitions
        if self.state is State.REVOKING and not self.to_give_up:
            reason = "revoked partitions given up" if self.config.cooperative else self._reason
            return self._join(reason, now_ms)
        if self.state is State.STABLE and self.assigned - self.held:
            # 1. a boundary decides to give P up; 2. before its word is here, a new generation assigns P to us again;
            # 3. now P is ours, and nobody reads it. Only another assignment can have it adopted.
            return self._rebalance("given up what is assigned again", now_ms)
        return []

    def _membership_refused(self, event: fx.MembershipRefused, now_ms: int) -> list[fx.Effect]:
        if event.identity != self.identity or self.identity.generation == NO_GENERATION:
            return []  # that membership is over already
        if self.state in _IN_A_GENERATION:
            return self._refused("OffsetCommit", event.error, now_ms)
        return self._told_elsewhere("OffsetCommit", event.error, now_ms)

    # --------------------------------------------------------------------------------------------- refusals

    def _refused(self, api: str, error: int, now_ms: int) -> list[fx.Effect]:
        """Any error of any request of the group, in the order of Kafka's AbstractCoordinator."""
        if error in _COORDINATOR_GONE:
            self._cut_off()
            return [fx.Connect(reason=f"{api}: {ErrorCode.name_of(error)}")]
        if error in _TRY_AGAIN:
            self._timers[_Timer.RETRY] = now_ms + self._next_backoff_ms()
            return []
        if error in _MEMBERSHIP_OVER:
            return self._membership_over(f"{api}: {ErrorCode.name_of(error)}", error, now_ms)
        if error == ErrorCode.FENCED_INSTANCE_ID:
            return self._fenced(now_ms)
        return self._fail(rejection(self.config.group, api, error))

    def _fenced(self, now_ms: int) -> list[fx.Effect]:
        """End: another process took the seat. Unless the coordinator has forgotten that we took it.

        1. we replace X while the group rebalances: our id is written down when the generation is complete
        (GroupMetadataManager.updateStaticMemberThenRebalanceOrComplete); 2. the coordinator dies; 3. the next one
        knows X and fences us. A join that came without an id and is fenced was parked when a later one took the seat.
        """
        unconfirmed = self.identity.member_id not in (UNKNOWN_MEMBER_ID, self._confirmed_id)
        if not (unconfirmed and self.config.replaces):
            return self._fail(FencedInstanceId(self.config.group, self.config.instance_id or ""))
        self.state = State.JOINING
        self._awaited, self._doubts_seat = None, True
        self._timers[_Timer.RETRY] = now_ms + self._next_backoff_ms()
        return [fx.LookAtSeat()]

    def _seat_seen(self, event: fx.SeatSeen, now_ms: int) -> list[fx.Effect]:
        if not self._doubts_seat:
            return []
        self._doubts_seat = False
        if event.member_id == self.config.replaces:
            self.identity = replace(self.identity, member_id=UNKNOWN_MEMBER_ID, generation=NO_GENERATION)
            return self._join("the coordinator forgot that we took the seat", now_ms)
        if event.member_id in (self.identity.member_id, UNKNOWN_MEMBER_ID):
            return []  # the join that is due will tell
        return self._fail(FencedInstanceId(self.config.group, self.config.instance_id or ""))

    def _next_backoff_ms(self) -> int:
        """Twice as long with each retry in a row, within `RETRY_BACKOFF_JITTER` (Kafka: ExponentialBackoff)."""
        wait_ms = min(RETRY_BACKOFF_MS << min(self._retries, 16), RETRY_BACKOFF_MAX_MS)
        self._retries += 1
        return int(wait_ms * (1 + RETRY_BACKOFF_JITTER * (2 * self._jitter() - 1)))

    def _membership_over(self, reason: str, error: int, now_ms: int) -> list[fx.Effect]:
        behind = error == ErrorCode.ILLEGAL_GENERATION
        lost = self._fall_behind(reason) if behind else self._lose(reason, keep_id=False)
        return [*lost, *self._join(reason, now_ms, afresh=self._awaited is not None)]

    def _fall_behind(self, reason: str) -> list[fx.Effect]:
        """The group knows our member id, in a later generation: a cooperative member keeps what its last join claimed.

        1. a group of type consumer raises its epoch, which does not concern us; 2. its last member with
        `group.protocol=consumer` leaves, and the broker makes it a classic group whose generation is that epoch
        (GroupMetadataManager.convertToClassicGroup); 3. all that we send from then on is refused; 4. the leader of the
        next generation gives to nobody what we claim. Java's client drops all at 3, and others read it twice.
        """
        kept = self.held & self._claimed if self.config.cooperative else frozenset()
        if not kept:
            return self._lose(reason, keep_id=True)
        lost, self.held = self.held - kept, kept
        self.assigned &= kept
        self.identity = replace(self.identity, generation=NO_GENERATION)
        return [fx.Lost(partitions=lost, reason=reason)] if lost else []

    def _lose(self, reason: str, *, keep_id: bool) -> list[fx.Effect]:
        lost, self.held, self.assigned = self.held, frozenset(), frozenset()
        self._inherited = self._left_over = self._unwanted = frozenset()
        self._assigned_in = NO_GENERATION
        self._vain_joins = self._patient_until_ms = self._objections = 0
        member_id = self.identity.member_id if keep_id else UNKNOWN_MEMBER_ID
        self.identity = replace(self.identity, member_id=member_id, generation=NO_GENERATION)
        self.leader = False
        self.watched_topics = frozenset()
        self._timers.clear()
        return [fx.Lost(partitions=lost, reason=reason)] if lost else []

    def _fail(self, error: GroupError) -> list[fx.Effect]:
        lost = self._lose(str(error), keep_id=False)
        return self._end([*lost, fx.Failed(error=error)])

    def _end(self, told: list[fx.Effect]) -> list[fx.Effect]:
        self.state = State.CLOSED
        self._awaited = self._beat = None
        self._timers.clear()
        return told

    # ------------------------------------------------------------------------------------------------ timers

    def _heard(self, asked_at_ms: int, now_ms: int) -> None:
        """Take the group's word that we are a member, given some time after `asked_at_ms`.

        A newcomer's join may have been parked for longer than a session; it holds nothing yet.
        """
        session_ms = self.config.session_timeout_ms
        until_ms = self._timers.get(_Timer.SESSION, now_ms + session_ms)
        self._timers[_Timer.SESSION] = max(until_ms, asked_at_ms + session_ms)

    def _tick(self, _: fx.Tick, now_ms: int) -> list[fx.Effect]:
        due = {timer for timer, at_ms in self._timers.items() if at_ms <= now_ms}
        for timer in due:
            del self._timers[timer]
        if _Timer.SESSION in due:
            # Silent for a whole session (a SIGSTOP, a long outage): the seat must be assumed given away.
            reason = f"no answer from the coordinator for {self.config.session_timeout_ms} ms"
            afresh = self._awaited is not None or self._beat is not None
            # The member id stays: if another process has the seat by now, it is for us to be fenced, not for it.
            return [*self._lose(reason, keep_id=True), *self._join(reason, now_ms, afresh=afresh)]
        told = self._send_join(now_ms) if _Timer.RETRY in due else []
        if _Timer.HEARTBEAT in due:
            told += self._send_heartbeat(now_ms) if self.state in _IN_A_GENERATION else self._look(now_ms)
        if _Timer.OBJECT in due and self.state in _IN_A_GENERATION:
            told += self._rebalance("assigned again what is not subscribed", now_ms)
        return told

    # ------------------------------------------------------------------------------------------------ ending

    def _leave(self, event: fx.Leave, _now_ms: int) -> list[fx.Effect]:
        # A static seat that we have not asked for is another process's.
        asked = self.config.instance_id is not None and self._asked_at_ms >= 0
        if self.identity.member_id == UNKNOWN_MEMBER_ID and not asked:
            return self._end([fx.Left(error=ErrorCode.NETWORK_EXCEPTION)])
        self.state = State.LEAVING
        self._timers.clear()
        request = fx.LeaveRequest(identity=self.identity, reason=event.reason)
        self._awaited = request
        return [fx.Send(request=request)]

    def _leave_response(self, event: fx.LeaveResponse, _now_ms: int) -> list[fx.Effect]:
        return self._end([fx.Left(error=event.error)])

    def _close(self, _: fx.Close, _now_ms: int) -> list[fx.Effect]:
        return self._end([])


Handler = Callable[[ClassicMember, Any, int], list[fx.Effect]]
_M: Final = ClassicMember

_IN_GENERATION: Final[dict[type[fx.Event], Handler]] = {
    fx.Connected: _M._connected_stable,
    fx.Disconnected: _M._disconnected,
    fx.JoinResponse: _M._ignore,
    fx.SyncResponse: _M._ignore,
    fx.HeartbeatResponse: _M._heartbeat_response,
    fx.AssignmentComputed: _M._ignore,
    fx.GaveUp: _M._gave_up,
    fx.RejoinWanted: _M._rejoin_wanted,
    fx.MembershipRefused: _M._membership_refused,
    fx.SeatSeen: _M._ignore,
    fx.Tick: _M._tick,
    fx.Leave: _M._leave,
    fx.Close: _M._close,
}

TRANSITIONS: Final[dict[State, dict[type[fx.Event], Handler]]] = {
    State.IDLE: {
        fx.Start: _M._start,
        fx.Tick: _M._ignore,
        fx.Leave: _M._leave,
        fx.Close: _M._close,
    },
    State.JOINING: {
        fx.Connected: _M._connected_join,
        fx.Disconnected: _M._disconnected,
        fx.JoinResponse: _M._join_response,
        fx.SyncResponse: _M._ignore,
        fx.HeartbeatResponse: _M._look_response,
        fx.AssignmentComputed: _M._ignore,
        fx.GaveUp: _M._gave_up,
        fx.RejoinWanted: _M._ignore,
        fx.MembershipRefused: _M._membership_refused,
        fx.SeatSeen: _M._seat_seen,
        fx.Tick: _M._tick,
        fx.Leave: _M._leave,
        fx.Close: _M._close,
    },
    State.ASSIGNING: {
        fx.Connected: _M._connected_assigning,
        fx.Disconnected: _M._disconnected,
        fx.JoinResponse: _M._ignore,
        fx.SyncResponse: _M._ignore,
        fx.HeartbeatResponse: _M._look_response,
        fx.AssignmentComputed: _M._assignment_computed,
        fx.GaveUp: _M._gave_up,
        fx.RejoinWanted: _M._ignore,
        fx.MembershipRefused: _M._membership_refused,
        fx.SeatSeen: _M._ignore,
        fx.Tick: _M._tick,
        fx.Leave: _M._leave,
        fx.Close: _M._close,
    },
    State.SYNCING: {
        fx.Disconnected: _M._disconnected,
        fx.JoinResponse: _M._ignore,
        fx.SyncResponse: _M._sync_response,
        fx.HeartbeatResponse: _M._look_response,
        fx.AssignmentComputed: _M._ignore,
        fx.GaveUp: _M._gave_up,
        fx.RejoinWanted: _M._ignore,
        fx.MembershipRefused: _M._membership_refused,
        fx.SeatSeen: _M._ignore,
        fx.Tick: _M._tick,
        fx.Leave: _M._leave,
        fx.Close: _M._close,
    },
    State.STABLE: _IN_GENERATION,
    State.REVOKING: _IN_GENERATION,
    State.LEAVING: {
        fx.Connected: _M._ignore,
        fx.Disconnected: _M._ignore,
        fx.JoinResponse: _M._ignore,
        fx.SyncResponse: _M._ignore,
        fx.HeartbeatResponse: _M._ignore,
        fx.LeaveResponse: _M._leave_response,
        fx.AssignmentComputed: _M._ignore,
        fx.GaveUp: _M._ignore,
        fx.RejoinWanted: _M._ignore,
        fx.MembershipRefused: _M._ignore,
        fx.SeatSeen: _M._ignore,
        fx.Tick: _M._ignore,
        fx.Leave: _M._ignore,
        fx.Close: _M._close,
    },
    State.CLOSED: dict.fromkeys(fx.Event.__args__, _M._ignore),
}
