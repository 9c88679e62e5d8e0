"""The actions of a classic member. `handlers` says at which event each is taken.

Each method acts, and returns the effects to be carried out outside, in their order. It quotes the sentence that it
implements, from a KIP or from the client that all brokers are tested with: AbstractCoordinator (membership:
connections, joins, heartbeats, errors) and ConsumerCoordinator (partitions) of Apache Kafka. Where we differ, it says
why.

A comment on a race is a numbered sequence of events.

One deadline watches over the owned partitions: a session after the coordinator last confirmed that we are a member
(`_extend_session`). Only a confirmation moves it, and it counts from the sending of the request, as the coordinator
heard from us no earlier. A broken connection, a refused or a parked request neither stop nor restart it. While a
request is parked, `Look` asks over another connection.

Owned and assigned partitions are two sets. `assigned` is the group's word in the last SyncGroup. `owned` are the
partitions that the application may be reading: the set grows with each assignment and shrinks only when the application
gave a partition up (`GaveUp`) or lost it. Each join claims the owned partitions, so the leader never hands one on while
it is read here (`ownership`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from enum import Enum
from typing import Final, TypeAlias

from spark_kgroup.errors import FencedInstanceId, GroupError
from spark_kgroup.limits import BEATS_IN_SESSION_AT_REST, REQUEST_TIMEOUT_MS, RETRY_BACKOFF_MS
from spark_kgroup.member import contract
from spark_kgroup.member.config import MemberConfig, PreviouslyOwned
from spark_kgroup.member.contract import Assignments
from spark_kgroup.member.heartbeats import Heartbeats
from spark_kgroup.member.machine import StateMachine
from spark_kgroup.member.ownership import Ownership
from spark_kgroup.member.rejections import rejection
from spark_kgroup.member.state import LEAVES_TO, State
from spark_kgroup.model import (
    NO_GENERATION,
    UNKNOWN_MEMBER_ID,
    ErrorCode,
    MemberIdentity,
    Subscription,
    TopicPartition,
)
from spark_kgroup.rights import RIGHTS_MISSING

Effects: TypeAlias = list[contract.Effect]

COORDINATOR_GONE: Final = frozenset({ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE})
# Kafka has REBALANCE_IN_PROGRESS outside of its RetriableExceptions. After an error of COORDINATOR_GONE a retry over
# the same connection would meet the same broker.
TRY_AGAIN: Final = (ErrorCode.retriable_codes() | {ErrorCode.REBALANCE_IN_PROGRESS}) - COORDINATOR_GONE
_MEMBERSHIP_OVER: Final = frozenset({ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION})


class Timer(Enum):
    """A member's timers."""

    HEARTBEAT = "heartbeat"
    """A heartbeat or, while a request is parked, a look is due."""
    SESSION = "session"
    """The coordinator has not confirmed our membership for a whole session."""
    RETRY = "retry"
    """The backoff after a refused join is over."""
    OBJECT = "object"
    """Time to tell the leader again that it assigns partitions of topics that we do not subscribe to."""


class Actions(StateMachine[MemberConfig, State, Timer]):
    """The actions of a classic member, and all that it knows.

    Args:
        config: how the member presents itself.
        jitter: gives a number in [0, 1) for each heartbeat and retry, passed in so that a simulation repeats.
        rests: whether other members of this process hear of the next generation as soon as this one would. It is asked
            at each heartbeat.

    Attributes:
        leader_id: the member id of the group's leader when this member joined it last.
        own_id_refused: the error with which the coordinator has refused our own member id in this generation, NONE if
            it has not.
        watched_topics: the topics whose metadata this member watches for the group: those of all members if it leads,
            else none. KIP-814: "the leader can monitor all topics subscribed in the group".

    """

    def __init__(
        self, config: MemberConfig, *, jitter: Callable[[], float], rests: Callable[[], bool] = lambda: False
    ) -> None:
        super().__init__(config, LEAVES_TO, jitter=jitter)
        self._rests = rests
        # An eager member's joins claim no partitions (KIP-429), so it can keep none of an earlier process either.
        owned_before = config.previously_owned if config.cooperative else PreviouslyOwned()
        self.ownership: Final = Ownership(config.topics, owned_before)
        self.leader = False
        self.leader_id = UNKNOWN_MEMBER_ID
        self.watched_topics: frozenset[str] = frozenset()
        self._connected = False
        self._awaited: contract.Request | None = None
        self._heartbeats = Heartbeats()
        self._heartbeat_sent_in = NO_GENERATION
        self._protocol = ""
        self._ends_with: GroupError | None = None
        """The error it ends with as soon as the group has the assignment of this generation, if any."""
        self._reason = "start"
        self._confirmed_id = UNKNOWN_MEMBER_ID
        """The member id of the last sync: a coordinator that takes over knows it."""
        self._other_ids: set[str] = set()
        """The ids that the seat has had since its last sync, beside its present one: then it owns nothing."""
        self._asked_who_has_seat = False
        self.own_id_refused: int = ErrorCode.NONE
        self._may_have_own_id = False
        """A RenameRequest was sent, and it is not known whether it was carried out."""
        self._wish = ""
        """Why a rebalance was wanted while a renaming or a join made it impossible, or empty if none was."""
        self._says_otherwise = False
        """Whether the rule by which joins carry user data (not while `_renamed`) is turned round, so that the next join
        is unlike the last."""

    # -------------------------------------------------------------------------------------------- the outside

    @property
    def owned(self) -> frozenset[TopicPartition]:
        """The partitions that the application may be reading."""
        return self.ownership.owned

    @property
    def to_give_up(self) -> frozenset[TopicPartition]:
        """The partitions to give up before the next piece of work: of an eager member all (KIP-429), or none."""
        if self.state is State.REVOKING and not self.config.cooperative:
            return self.ownership.owned | self.ownership.unwanted
        return self.ownership.to_give_up

    # --------------------------------------------------------------------------------------------- connections
    # A connection is a means, not a membership: it may break and come back within the session without a loss. Where the
    # coordinator is, and over which sockets it is asked, is the runtime's business (`Connect`).

    def _forget_connection(self) -> None:
        """No request sent so far will be answered on a connection that leads to the coordinator."""
        self._connected = False
        self._awaited = None
        self._heartbeats.drop()
        # The next connection begins with a join or a heartbeat of its own.
        self._timers.pop(Timer.HEARTBEAT, None)
        self._timers.pop(Timer.RETRY, None)

    def _lose_connection(self, reason: str) -> Effects:
        """AbstractCoordinator.markCoordinatorUnknown: find it anew. Neither membership nor ownership end with it."""
        self._forget_connection()
        if self.state is State.SYNCING:
            # The answer is lost, not the generation: a join with unchanged metadata is answered from it.
            self._become(State.JOINING)
            self._reason = "connection lost while syncing"
        elif self.state is State.RENAMING:
            self._become(State.STABLE)  # a heartbeat under the old id will tell whether that one is fenced
        return [contract.Connect(reason=reason)]

    # ------------------------------------------------------------------------------------------------- joining
    # JoinGroup names our subscribed topics and our partitions, and is parked until all members have joined or the
    # rebalance timeout is over. Its answer makes us a member of a generation. Owned partitions stay ours all the while.

    def _join(self, reason: str, now_ms: int, *, afresh: bool = False, wait_ms: int = 0) -> Effects:
        """Enter JOINING. A cooperative member keeps its partitions, an eager one owns none by now.

        KIP-429, "Consumer Coordinator Algorithm", 1.c: "re-join group with all the currently owned partitions as
        assigned partitions".

        Args:
            reason: for the broker's log (KIP-800).
            now_ms: the instant.
            afresh: whether to join over another connection, because requests on this one may never be answered.
            wait_ms: how long to wait before a join over this connection.
        """
        self._become(State.JOINING)
        self._reason = reason
        # Every join objects: it names the subscribed topics, and does not claim the tolerated partitions.
        self._timers.pop(Timer.OBJECT, None)
        if afresh and self._connected:
            self._forget_connection()
            return [contract.Rejoining(reason=reason), contract.Connect(reason=reason)]
        if wait_ms > 0 and self._connected:
            self._timers[Timer.RETRY] = now_ms + wait_ms
            return [contract.Rejoining(reason=reason)]
        return [contract.Rejoining(reason=reason), *self._send_join(now_ms)]

    def _send_join(self, now_ms: int) -> Effects:
        """AbstractCoordinator.sendJoinGroupRequest. Without a connection it is sent when there is one."""
        if not self._connected:
            return []
        # 1. A join is refused and a backoff runs. 2. Another event has us join at once. One join is enough.
        self._timers.pop(Timer.RETRY, None)
        protocols = self._protocols()
        if self._renamed is not self._says_otherwise:
            protocols = self._without_user_data(protocols)
        request = contract.JoinRequest(identity=self.identity, protocols=protocols, reason=self._reason)
        return self._ask(request, now_ms)

    def subscribe(self, topics: tuple[str, ...]) -> None:
        """Subscribe to `topics` from the next join on. `RejoinWanted` makes one."""
        self.config = replace(self.config, topics=topics)
        self.ownership.subscribe(topics)

    def _ask(self, request: contract.Parkable, now_ms: int) -> Effects:
        """Send a request that the coordinator may park, and await its answer. Looks go past it meanwhile."""
        self._awaited, self._asked_at_ms = request, now_ms
        self._heartbeats.drop()
        self._schedule_look(now_ms)
        return [contract.Send(request=request)]

    def _protocols(self) -> tuple[tuple[str, Subscription], ...]:
        """ConsumerCoordinator.metadata: a subscription for each assignor, with our claims and their generation.

        An eager member owns no partitions by now. Its assignor is told its last assignment
        (StickyAssignor.onAssignment).
        """
        claims, generation = self.ownership.claims, self.ownership.claims_generation
        held = claims if self.config.cooperative else self.ownership.assigned
        # Sorted, so that equal subscriptions are equal bytes: the coordinator compares a join with the last one
        # (ClassicGroupMember.matches).
        base = Subscription(topics=tuple(sorted(self.config.topics)), owned=claims, generation=generation)
        return tuple((a.name, replace(base, user_data=a.user_data(held, generation))) for a in self.config.assignors)

    @property
    def _renamed(self) -> bool:
        """Whether the seat has our own member id, and no join with it was answered yet."""
        own_id = self.config.own_id
        return own_id != UNKNOWN_MEMBER_ID and self.identity.member_id == own_id != self._confirmed_id

    @staticmethod
    def _without_user_data(protocols: tuple[tuple[str, Subscription], ...]) -> tuple[tuple[str, Subscription], ...]:
        """`protocols` unlike those of the join before or after: user data is left out, or empty if there is none.

        1. A seat gets its own member id in a join that claims its partitions. 2. A rebalance is wanted. 3. The
        coordinator has another leader, and answers a follower's join that equals its last one from the current
        generation (ClassicGroupMember.matches), so no rebalance comes about. The generation of our claims is in the
        subscription as well.
        """
        return tuple((name, replace(each, user_data=None if each.user_data else b"")) for name, each in protocols)

    def _send_sync(self, shares: Assignments, now_ms: int) -> Effects:
        """AbstractCoordinator.onJoinFollower, onLeaderElected: a non-assigning member sends "an empty assignment"."""
        self._become(State.SYNCING)
        request = contract.SyncRequest(identity=self.identity, protocol=self._protocol, assignments=shares)
        return self._ask(request, now_ms)

    # --------------------------------------------------------------------------------------- in a generation
    # A heartbeat each interval keeps us a member and tells us when the group rebalances. A join follows at once, or as
    # soon as the partitions that must be given up first are given up.

    def _begin_heartbeats(self, now_ms: int) -> Effects:
        """Heartbeat at once, once in each generation. Kafka's client waits for an interval.

        1. A member gives partitions up at once and joins again. 2. That next generation waits for all other members.
        3. They learn of it from the answer to a heartbeat, and the regular one is an interval away.

        Not again after a join that brought the same generation: a coordinator that asks for a join each time would have
        us join without end (decision 43).
        """
        if self._heartbeat_sent_in != self.identity.generation:
            return self._send_heartbeat(now_ms)
        self._heartbeats.drop()
        self._schedule_heartbeat(now_ms)
        return []

    def _send_heartbeat(self, now_ms: int) -> Effects:
        """AbstractCoordinator.HeartbeatThread: one each interval, and none while another is unanswered."""
        if not self._connected:
            return []
        self._schedule_heartbeat(now_ms)
        if self._heartbeats.awaited is not None:
            # The session timer watches that it is answered. A second one behind it would be answered no sooner.
            return []
        request = contract.HeartbeatRequest(identity=self.identity)
        self._heartbeats.send(request, now_ms)
        self._heartbeat_sent_in = self.identity.generation
        return [contract.Send(request=request)]

    def _schedule_heartbeat(self, now_ms: int) -> None:
        """An interval from now, or as late as the session allows while others hear for this member.

        A member that waits for an answer does not rest, so that it asks on as soon as it has one.
        """
        rest_ms = max(self.config.heartbeat_interval_ms, self.config.session_timeout_ms // BEATS_IN_SESSION_AT_REST)
        rests = self._heartbeats.awaited is None and self._rests()
        self._timers[Timer.HEARTBEAT] = now_ms + self._pacing.heartbeat_ms(rest_ms if rests else None)

    def _rebalance(self, reason: str, now_ms: int) -> Effects:
        """Take part in the next generation as soon as the rebalance protocol allows.

        KIP-429, and ConsumerCoordinator.onJoinPrepare: a cooperative member joins at once, claiming its partitions. An
        eager one revokes all of them first, because its join claims none: the leader may give them to other members at
        once.
        """
        if self.config.cooperative or not (self.ownership.owned or self.ownership.unwanted):
            return self._join(reason, now_ms)
        # It joins in any case when it has given up all partitions.
        if self.state is State.REVOKING:
            return []
        self._become(State.REVOKING)
        self._reason = reason
        return [contract.GiveUpAll(partitions=self.to_give_up, reason=reason)]

    # ------------------------------------------------------------------------------ while a request is parked
    # The coordinator reads no request behind a parked one (a broker mutes the channel), for up to the rebalance
    # timeout, which is longer than a session. Only another connection can tell whether the group still knows us.

    def _schedule_look(self, now_ms: int) -> None:
        # At least three looks in a session, as is advised for heartbeats, and sooner on a new connection while the
        # deadline is near. A coordinator that moved costs one request timeout at most.
        session_ms = self.config.session_timeout_ms
        left_ms = self._timers.get(Timer.SESSION, now_ms + session_ms) - now_ms
        longest_ms = min(REQUEST_TIMEOUT_MS, session_ms // 3, max(left_ms // 2, RETRY_BACKOFF_MS))
        self._timers[Timer.HEARTBEAT] = now_ms + self._pacing.heartbeat_ms(longest_ms)

    def _probe_coordinator(self, now_ms: int) -> Effects:
        """Ask over another connection: does the group still know us, and where is its coordinator?

        1. The coordinator stops (SIGSTOP, a partitioned network) while our join is parked there. 2. The group moves to
        another broker. 3. Our connection stays silent about that until the rebalance timeout is over. A newcomer has no
        generation, so it asks for the coordinator alone.

        Kafka's client sends no heartbeat while a join is parked, and trusts its connection. The coordinator checks
        and renews a membership at a heartbeat in every phase of a rebalance
        (GroupMetadataManager.classicGroupHeartbeatToClassicGroup).
        """
        self._schedule_look(now_ms)
        known = self.identity.generation != NO_GENERATION
        heartbeat = contract.HeartbeatRequest(identity=self.identity) if known else None
        self._heartbeats.send(heartbeat, now_ms)
        return [contract.Look(heartbeat=heartbeat)]

    # ----------------------------------------------------------------------------------------------- errors
    # An error is either about where the coordinator is, about when to ask again, about our membership, or final.

    def _act_on_error(self, api: str, error: int, now_ms: int) -> Effects:
        """Any error of any request of the group, as the response handlers of Kafka's AbstractCoordinator sort them."""
        if error in COORDINATOR_GONE:  # markCoordinatorUnknown: "re-discover the coordinator and retry with backoff"
            self._forget_connection()
            return [contract.Connect(reason=f"{api}: {ErrorCode.name_of(error)}")]
        if self._may_pass(error, now_ms):  # COORDINATOR_LOAD_IN_PROGRESS: "backoff and retry"
            self._timers[Timer.RETRY] = now_ms + self._pacing.retry_ms()
            return []
        if error in _MEMBERSHIP_OVER:
            return self._start_over(f"{api}: {ErrorCode.name_of(error)}", error, now_ms)
        if error == ErrorCode.FENCED_INSTANCE_ID:
            return self._act_on_fencing(now_ms)
        return self._fail(rejection(self.config.group, self.config.instance_id, api, error))

    def _may_pass(self, error: int, now_ms: int) -> bool:
        """Whether a refused request may succeed later. Java's client ends when a right is missing for a moment."""
        return error in TRY_AGAIN or (error in RIGHTS_MISSING and self._rights.may_come_back(now_ms))

    def _act_on_fencing(self, now_ms: int) -> Effects:
        """KIP-345: "some other consumer takes its spot. The client should immediately fail itself".

        Unless the coordinator has forgotten that we took the seat. 1. We replace X while the group rebalances: our id
        is written down when the generation is complete
        (GroupMetadataManager.updateStaticMemberThenRebalanceOrComplete). 2. The coordinator dies. 3. The next one knows
        X and fences us.

        Or unless the seat has another id of ours. 1. A broker that is cut off still answers as the coordinator: it does
        not know our seat, and gives us a second id. 2. The true coordinator knows the first one, and fences the second;
        the broker that is cut off does the reverse. Or the answer to our RenameRequest was lost.

        A join without a member id that is fenced was parked when a later one took the seat, so we end.
        """
        member_id = self.identity.member_id
        forgotten = self.config.replaces and member_id != self._confirmed_id
        if member_id == UNKNOWN_MEMBER_ID or not (forgotten or self._other_ids or self._may_have_own_id):
            return self._fail(self._fencing())
        self._become(State.JOINING)
        self._awaited, self._asked_who_has_seat = None, True
        self._timers[Timer.RETRY] = now_ms + self._pacing.retry_ms()
        return [contract.LookAtSeat()]

    def _start_over(self, reason: str, error: int, now_ms: int) -> Effects:
        """Begin as a new member without partitions, or join again if the coordinator still knows us.

        KIP-429, 1.d: "reset generation / clear member-id correspondingly [...] onPartitionsLost for all the partition
        and then re-join group with empty assigned partition".
        """
        behind = error == ErrorCode.ILLEGAL_GENERATION
        lost = self._fall_behind(reason) if behind else self._lose_all_partitions(reason, keep_id=False)
        wait_ms = self._pacing.again_ms()
        # A coordinator reads no join behind a parked request, so the join then goes over a fresh connection.
        return [*lost, *self._join(reason, now_ms, afresh=self._awaited is not None, wait_ms=wait_ms)]

    def _fall_behind(self, reason: str) -> Effects:
        """The group knows our id in a later generation: a cooperative member keeps the claims of its last join.

        1. A group of type consumer raises its epoch, which does not concern us. 2. Its last member with
        `group.protocol=consumer` leaves, and the broker makes it a classic group whose generation is that epoch
        (GroupMetadataManager.convertToClassicGroup). 3. Each request that we send from then on is refused. 4. The
        leader of the next generation gives the partitions that we claim to no other member. Java's client drops all of
        them at 3 (AbstractCoordinator.resetStateOnResponseError), and other members read them a second time.
        """
        if not (self.config.cooperative and self.ownership.owned & self.ownership.claimed):
            return self._lose_all_partitions(reason, keep_id=True)
        self.identity = replace(self.identity, generation=NO_GENERATION)
        lost = self.ownership.lose_unclaimed()
        return [contract.Lost(partitions=lost, reason=reason)] if lost else []

    def _lose_all_partitions(self, reason: str, *, keep_id: bool) -> Effects:
        """AbstractCoordinator.resetStateAndGeneration, and onPartitionsLost for all that is owned (KIP-429)."""
        lost = self.ownership.lose_all()
        self._pacing.on_membership_over()
        member_id = self.identity.member_id if keep_id else UNKNOWN_MEMBER_ID
        self._asked_who_has_seat = False
        if not keep_id and self.config.instance_id is not None and self.identity.member_id != UNKNOWN_MEMBER_ID:
            self._other_ids.add(self.identity.member_id)
        self.identity = replace(self.identity, member_id=member_id, generation=NO_GENERATION)
        self.leader = False
        self.watched_topics = frozenset()
        self._wish = ""
        # An unchanged join or sync does not renew a session that has nearly run out at the coordinator too
        # (GroupMetadataManager.classicGroupSyncToClassicGroup). The heartbeat does, so it must not be an interval late.
        self._heartbeat_sent_in = NO_GENERATION
        self._timers.clear()
        return [contract.Lost(partitions=lost, reason=reason)] if lost else []

    def _fail(self, error: GroupError) -> Effects:
        """End with an error that the user has to see: its message names the setting to change, and no retry follows.

        A dynamic member leaves: no process comes back for it, and the group would wait until its session ends.
        Java's consumer leaves in close() (ConsumerCoordinator.close). A fenced member has no seat to leave.
        """
        # The member leaves under its present id, which the next line forgets.
        who = self.identity
        effects = [*self._lose_all_partitions(str(error), keep_id=False), contract.Failed(error=error)]
        stays = who.instance_id is not None or who.member_id == UNKNOWN_MEMBER_ID
        return (
            self._end(effects) if stays or isinstance(error, FencedInstanceId) else [*self._send_leave(who), *effects]
        )

    def _send_leave(self, who: MemberIdentity, reason: str = "the member failed") -> Effects:
        self._become(State.LEAVING)
        self._timers.clear()  # the seat is given up: its session may end as it likes
        return [contract.Send(request=contract.LeaveRequest(identity=who, reason=reason))]

    def _extend_session(self, asked_at_ms: int, now_ms: int) -> None:
        """The coordinator confirmed, some time after `asked_at_ms`, that we are a member: a session counts from then.

        A newcomer's join may have been parked for longer than a session, but a newcomer owns no partitions yet.
        """
        self._rights.on_granted()
        session_ms = self.config.session_timeout_ms
        until_ms = self._timers.get(Timer.SESSION, now_ms + session_ms)
        # A look goes over another connection, so answers may arrive out of order. An older one does not move the
        # deadline back.
        self._timers[Timer.SESSION] = max(until_ms, asked_at_ms + session_ms)
