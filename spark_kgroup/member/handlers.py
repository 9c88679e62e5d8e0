"""What a classic member does at each event. `classic` has the table that says which handler answers what, and when.

A handler is named `_on_...` and is called by the table alone; every other method acts, and returns what it wants done,
in the order in which it is to be carried out. Each handler quotes the sentence that it carries out, from a KIP or from
the client that all brokers are tested with: AbstractCoordinator (membership: connections, joins, heartbeats, errors)
and ConsumerCoordinator (partitions) of Apache Kafka. Where we differ, the handler says why.

A comment on a race is a numbered sequence of events.

One deadline watches over what is owned: a session after the coordinator last confirmed that we are a member
(`_extend_session`). Only a confirmation moves it, and it counts from when the question was sent, as the coordinator
heard from us no earlier. A broken connection, a refused or a parked request neither stop nor restart it; while a
request is parked, `Look` asks over another connection.

What a member owns and what it is assigned are two things. `assigned` is the group's word in the last SyncGroup.
`owned` is what the application may be reading: it grows with each assignment and shrinks only when the application
gave a partition up (`GaveUp`) or lost it. Each join claims what is owned, so the leader never hands a partition on
while it is read here (`ownership`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from enum import Enum
from typing import Final, TypeAlias

from spark_kgroup.errors import FencedInstanceId, GroupError, IllegalTransition
from spark_kgroup.limits import REQUEST_TIMEOUT_MS, RETRY_BACKOFF_MS
from spark_kgroup.member import contract
from spark_kgroup.member.config import MemberConfig, PreviouslyOwned
from spark_kgroup.member.contract import Shares
from spark_kgroup.member.heartbeats import Heartbeats
from spark_kgroup.member.ownership import Ownership
from spark_kgroup.member.pacing import Pacing
from spark_kgroup.member.rejections import rejection
from spark_kgroup.member.state import LEAVES_TO, State
from spark_kgroup.model import (
    NO_GENERATION,
    UNKNOWN_MEMBER_ID,
    ErrorCode,
    GroupMember,
    MemberIdentity,
    Subscription,
    TopicPartition,
)

Effects: TypeAlias = list[contract.Effect]

_IN_A_GENERATION: Final = (State.STABLE, State.REVOKING)

_COORDINATOR_GONE: Final = frozenset({ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE})
_TRY_AGAIN: Final = (ErrorCode.retriable_codes() | {ErrorCode.REBALANCE_IN_PROGRESS}) - _COORDINATOR_GONE
_MEMBERSHIP_OVER: Final = frozenset({ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION})
_MEMBER_CONFIRMED: Final = frozenset({ErrorCode.NONE, ErrorCode.REBALANCE_IN_PROGRESS})
"""What a coordinator answers to the heartbeat of a member that it knows."""


class _Timer(Enum):
    HEARTBEAT = "heartbeat"
    """A heartbeat or, while a request is parked, a look is due."""
    SESSION = "session"
    """The coordinator has not confirmed our membership for a whole session."""
    RETRY = "retry"
    """The backoff after a refused join is over."""
    OBJECT = "object"
    """Time to tell the leader again that it assigns what we do not subscribe."""


class Handlers:
    """What a classic member does at each event, and all that it knows.

    Args:
        config: how the member presents itself.
        jitter: gives a number in [0, 1) for each heartbeat and retry; passed in so that a simulation repeats.

    Attributes:
        watched_topics: whose metadata this member watches for the group: all members' if it leads, else none. KIP-814:
            "the leader can monitor all topics subscribed in the group".

    """

    def __init__(self, config: MemberConfig, *, jitter: Callable[[], float]) -> None:
        self.config: Final = config
        self.state = State.IDLE
        self.identity = MemberIdentity(instance_id=config.instance_id)
        # An eager member's joins claim nothing (KIP-429), so it can keep nothing of an earlier process either.
        owned_before = config.previously_owned if config.cooperative else PreviouslyOwned()
        self.ownership: Final = Ownership(config.topics, owned_before)
        self.leader = False
        self.watched_topics: frozenset[str] = frozenset()
        self._pacing = Pacing(config.heartbeat_interval_ms, jitter)
        self._connected = False
        self._awaited: contract.Request | None = None
        self._asked_at_ms = -1
        """When the awaited request was sent, or the last one; -1 before the first."""
        self._heartbeats = Heartbeats()
        self._heartbeat_sent_in = NO_GENERATION
        self._protocol = ""
        self._reason = "start"
        self._confirmed_id = UNKNOWN_MEMBER_ID
        """The member id of the last sync: a coordinator that takes over knows it."""
        self._asked_who_has_seat = False
        self._timers: dict[_Timer, int] = {}

    # -------------------------------------------------------------------------------------------- the outside

    @property
    def owned(self) -> frozenset[TopicPartition]:
        """What the application may be reading."""
        return self.ownership.owned

    @property
    def to_give_up(self) -> frozenset[TopicPartition]:
        """What is to be given up before the next piece of work: by an eager member everything (KIP-429), or nothing."""
        if self.state is State.REVOKING and not self.config.cooperative:
            return self.ownership.owned | self.ownership.unwanted
        return self.ownership.to_give_up

    @property
    def settled(self) -> bool:
        """In a generation, nothing to give up, no rejoin on its way."""
        return self.state is State.STABLE

    def next_wakeup_at_ms(self) -> int | None:
        """When the next `Tick` is due, None if no timer runs."""
        return min(self._timers.values(), default=None)

    def _become(self, state: State) -> None:
        """Change the state. Nothing else does.

        Raises:
            IllegalTransition: `LEAVES_TO` does not have this step: a bug of ours.
        """
        if state is not self.state and state not in LEAVES_TO[self.state]:
            raise IllegalTransition("classic member", self.state.value, f"become {state.value}")
        self.state = state

    # --------------------------------------------------------------------------------------------- connections
    # A connection is a means, not a membership: it may break and come back within the session, and nothing is lost.
    # Where the coordinator is, and over which sockets it is asked, is the runtime's business (`Connect`).

    def _on_join(self, _: contract.Join, _now_ms: int) -> Effects:
        """AbstractCoordinator.ensureActiveGroup: "always ensure that the coordinator is ready", then join."""
        self._become(State.JOINING)
        return [contract.Connect(reason="start")]

    def _ignore(self, _: contract.Event, __: int) -> Effects:
        """Nothing to do, and no surprise: an answer to a question that nobody asks any more, for one.

        AbstractCoordinator.JoinGroupResponseHandler: an answer that comes in another state does not lead to SyncGroup.
        """
        return []

    def _on_connected_joining(self, _: contract.Connected, now_ms: int) -> Effects:
        """AbstractCoordinator.joinGroupIfNeeded: join as soon as the coordinator is ready, whatever the backoff says.

        The runtime has waited before it connected, so that a coordinator that refuses us is not asked in a tight loop.
        """
        self._connected = True
        return self._send_join(now_ms)

    def _on_connected_in_generation(self, _: contract.Connected, now_ms: int) -> Effects:
        """AbstractCoordinator.ensureActiveGroup: being disconnected "does not necessarily require us to rejoin".

        A heartbeat at once asks whether the coordinator, maybe another one by now, still knows us.
        """
        self._connected = True
        return self._send_heartbeat(now_ms)

    def _on_connected_assigning(self, _: contract.Connected, now_ms: int) -> Effects:
        """Ask again for the generation that we lead.

        1. the connection breaks while the assignor runs; 2. the group may have moved on meanwhile; 3. a join with
        unchanged metadata is answered with the current generation
        (GroupMetadataManager.classicGroupJoinExistingMember).
        """
        self._connected = True
        return self._join("connection lost while assigning", now_ms)

    def _on_connection_lost(self, event: contract.ConnectionLost, _now_ms: int) -> Effects:
        """AbstractCoordinator.markCoordinatorUnknown: find it anew. Neither membership nor ownership end with it."""
        self._forget_connection()
        if self.state is State.SYNCING:
            # The answer is lost, not the generation: a join with unchanged metadata is answered from it.
            self._become(State.JOINING)
            self._reason = "connection lost while syncing"
        return [contract.Connect(reason=event.reason)]

    def _forget_connection(self) -> None:
        """Nothing asked so far will be answered on a connection that leads to the coordinator."""
        self._connected = False
        self._awaited = None
        self._heartbeats.drop()
        self._timers.pop(_Timer.HEARTBEAT, None)
        self._timers.pop(_Timer.RETRY, None)

    # ------------------------------------------------------------------------------------------------- joining
    # JoinGroup says what we subscribe and own, and is parked until all members have joined or the rebalance timeout is
    # over. Its answer makes us a member of a generation; what we own stays ours through all of it.

    def _join(self, reason: str, now_ms: int, *, afresh: bool = False) -> Effects:
        """Enter JOINING; a cooperative member keeps what it owns, an eager one owns nothing by now.

        KIP-429, "Consumer Coordinator Algorithm", 1.c: "re-join group with all the currently owned partitions as
        assigned partitions".

        Args:
            reason: for the broker's log (KIP-800).
            now_ms: the instant.
            afresh: over another connection, for what was asked on this one may never be answered.
        """
        self._become(State.JOINING)
        self._reason = reason
        self._timers.pop(_Timer.OBJECT, None)
        if afresh and self._connected:
            self._forget_connection()
            return [contract.Rejoining(reason=reason), contract.Connect(reason=reason)]
        return [contract.Rejoining(reason=reason), *self._send_join(now_ms)]

    def _send_join(self, now_ms: int) -> Effects:
        """AbstractCoordinator.sendJoinGroupRequest; without a connection it is sent when there is one."""
        if not self._connected:
            return []
        # 1. a join is refused and a backoff runs; 2. something else has us join at once. One join is enough.
        self._timers.pop(_Timer.RETRY, None)
        return self._ask(
            contract.JoinRequest(identity=self.identity, protocols=self._protocols(), reason=self._reason), now_ms
        )

    def _ask(self, request: contract.Parkable, now_ms: int) -> Effects:
        """Send what the coordinator may park, and await its answer; looks go past it meanwhile."""
        self._awaited, self._asked_at_ms = request, now_ms
        self._heartbeats.drop()
        self._schedule_look(now_ms)
        return [contract.Send(request=request)]

    def _protocols(self) -> tuple[tuple[str, Subscription], ...]:
        """ConsumerCoordinator.metadata: a subscription for each assignor, with what we own and in which generation."""
        claims, generation = self.ownership.claims, self.ownership.claims_generation
        base = Subscription(
            topics=tuple(sorted(self.config.topics)), owned=claims, generation=generation, rack=self.config.rack
        )
        return tuple((a.name, replace(base, user_data=a.user_data(claims, generation))) for a in self.config.assignors)

    def _on_join_response(self, event: contract.JoinResponse, now_ms: int) -> Effects:
        """AbstractCoordinator.JoinGroupResponseHandler.

        KIP-429, 1.e: "If received MEMBER_ID_REQUIRED from join-group request: set the member id, and then re-send
        join-group" (KIP-394; only dynamic members are asked for it, KIP-345).
        """
        if event.request != self._awaited:
            return []
        self._awaited = None
        if event.error == ErrorCode.NONE:
            return self._enter_generation(event, now_ms)
        if event.error == ErrorCode.MEMBER_ID_REQUIRED:
            self.identity = replace(self.identity, member_id=event.member_id)
            return self._send_join(now_ms)
        return self._act_on_error("JoinGroup", event.error, now_ms)

    def _enter_generation(self, event: contract.JoinResponse, now_ms: int) -> Effects:
        """Be a member of the new generation; assign if we lead it, and ask for our share.

        KIP-394, KIP-345: the member id in the answer is the one to use from now on. `rejoined` tells the runtime that
        the group was not rebalanced for us, so that nobody has looked for partitions without an owner.

        KIP-345: to a known instance id "broker will return the cached assignment", without a rebalance. KIP-814: if
        that is the leader's, it "will send an SyncGroup with no assignment to collect its own (and existing)
        assignment" (`skip_assignment`).
        """
        rejoined = self.config.instance_id is not None and event.request.identity.member_id == UNKNOWN_MEMBER_ID
        effects = self._lose_unclaimed(event)
        self.ownership.claimed = event.request.protocols[0][1].owned
        self.identity = replace(self.identity, member_id=event.member_id, generation=event.generation)
        self._protocol = event.protocol
        self.leader = event.leader == event.member_id
        self.watched_topics = self._topics_of(event.members) if self.leader else frozenset()
        self._extend_session(self._asked_at_ms, now_ms)
        joined = contract.Joined(
            identity=self.identity,
            leader=self.leader,
            protocol=event.protocol,
            skip_assignment=event.skip_assignment,
            rejoined=rejoined,
        )
        # A follower's sync is parked until the leader's is there, unless the group keeps the assignment that it has.
        if not self.leader or event.skip_assignment:
            return [*effects, joined, *self._send_sync((), now_ms)]
        self._become(State.ASSIGNING)
        members, generation = event.members, event.generation
        compute = contract.ComputeAssignment(generation=generation, assignor=event.protocol, members=members)
        return [*effects, joined, compute]

    def _lose_unclaimed(self, event: contract.JoinResponse) -> Effects:
        """Lose what others may have been given in a generation that went by without us.

        1. A static member that cannot rejoin within the rebalance timeout stays in the group, with the claim of its
        last join (KIP-345, "Rolling Bounce"); 2. what it was assigned since is claimed by nobody, so the leader may
        give it away; 3. its own next join succeeds all the same, for a join is not checked for its generation.

        A group without a leader is of type consumer (KIP-848): the coordinator itself knows what we have not given up,
        and its epochs pass by members whose assignment they leave alone.
        """
        missed = bool(event.leader) and event.generation > self.identity.generation + 1
        if not missed or not (lost := self.ownership.lose_unclaimed()):
            return []
        reason = f"the group rebalanced without us before generation {event.generation}"
        return [contract.Lost(partitions=lost, reason=reason)]

    @staticmethod
    def _topics_of(members: Sequence[GroupMember]) -> frozenset[str]:
        """ConsumerCoordinator.onLeaderElected: the leader watches "any of the topics the group is interested in"."""
        return frozenset(topic for member in members for topic in member.subscription.topics)

    def _on_assignment_computed(self, event: contract.AssignmentComputed, now_ms: int) -> Effects:
        """AbstractCoordinator.onLeaderElected: "send back the assignment for the group".

        Not if a later generation was joined meanwhile: its assignment is another. Not without a connection: the next
        one begins with a join.
        """
        if event.generation != self.identity.generation or not self._connected:
            return []
        return self._send_sync(event.assignments, now_ms)

    # ------------------------------------------------------------------------------------------------- syncing
    # SyncGroup is parked until the leader's assignment is there. Its answer is the group's word on who reads what; what
    # changes hands by it does so between two pieces of work.

    def _send_sync(self, shares: Shares, now_ms: int) -> Effects:
        """AbstractCoordinator.onJoinFollower, onLeaderElected: who does not assign sends "an empty assignment"."""
        self._become(State.SYNCING)
        request = contract.SyncRequest(identity=self.identity, protocol=self._protocol, assignments=shares)
        return self._ask(request, now_ms)

    def _on_sync_response(self, event: contract.SyncResponse, now_ms: int) -> Effects:
        """AbstractCoordinator.SyncGroupResponseHandler: "The group began another rebalance. Need to re-join"."""
        if event.request != self._awaited:
            return []
        self._awaited = None
        if event.error == ErrorCode.NONE:
            return self._take_assignment(event.assignment, now_ms)
        if event.error == ErrorCode.REBALANCE_IN_PROGRESS:
            return self._join("the group rebalanced while syncing", now_ms)
        if event.error in _COORDINATOR_GONE or event.error in _TRY_AGAIN:
            self._become(State.JOINING)
            self._reason = f"SyncGroup failed with {ErrorCode.name_of(event.error)}"
        return self._act_on_error("SyncGroup", event.error, now_ms)

    def _take_assignment(self, assignment: frozenset[TopicPartition], now_ms: int) -> Effects:
        """KIP-429, 3.a: new is `Minus(assigned-partitions, owned-partitions)`, revoked is the reverse.

        ConsumerCoordinator.onJoinComplete revokes at once and joins again; we do when the application has given
        up what is revoked, so that nothing is at work on a partition that moves.
        """
        self._confirmed_id = self.identity.member_id
        vain = self._heartbeat_sent_in == self.identity.generation and self.ownership.confirms(assignment)
        self._pacing.on_synced(vain=vain, now_ms=now_ms)
        added = self.ownership.take(assignment, self.identity.generation)
        self._object_later(now_ms)
        self._extend_session(self._asked_at_ms, now_ms)
        asked = self.ownership.to_give_up
        joins_again = not asked and self.ownership.claimed_beyond_assigned
        if not joins_again:
            self._become(State.REVOKING if asked else State.STABLE)
        if asked:
            self._reason = "assigned what is not subscribed"  # nothing else is asked of an eager member here
        effects: Effects = [
            contract.Assigned(
                identity=self.identity, assigned=self.ownership.assigned, added=added, revoked=self.to_give_up
            )
        ]
        if joins_again:
            # 1. we joined claiming P; 2. while the join was parked, the application gave P up; 3. the leader kept P
            # from its new owner because of our claim. Nobody else will rejoin for it, so we do.
            return [*effects, *self._join("given up what the join still claimed", now_ms)]
        return [*effects, *self._begin_heartbeats(now_ms)]

    def _object_later(self, now_ms: int) -> None:
        """What is tolerated is objected to some time later, by a join, and ever more seldom (`Ownership.take`)."""
        if self.ownership.tolerated:
            # The first objection is no timer's: it is the join after the unwanted was given up.
            self._timers[_Timer.OBJECT] = now_ms + self._pacing.rejoin_ms(self.ownership.objections - 2)

    # --------------------------------------------------------------------------------------- in a generation
    # A heartbeat each interval keeps us a member and tells us when the group rebalances. A join follows at once, or as
    # soon as what must be given up first is given up.

    def _begin_heartbeats(self, now_ms: int) -> Effects:
        """Heartbeat at once, once in each generation; Kafka's client waits for an interval.

        1. a member gives something up at once and joins again; 2. all others are to be in that next generation, and it
        waits for them; 3. they learn of it from the answer to a heartbeat, and the regular one is an interval away.

        Not again after a join that brought the same generation: a coordinator that asks each time would have us join
        without end (DECISIONS 43).
        """
        if self._heartbeat_sent_in != self.identity.generation:
            return self._send_heartbeat(now_ms)
        self._heartbeats.drop()
        self._timers[_Timer.HEARTBEAT] = now_ms + self._pacing.heartbeat_ms()
        return []

    def _send_heartbeat(self, now_ms: int) -> Effects:
        """AbstractCoordinator.HeartbeatThread: one each interval, and none while another is unanswered."""
        if not self._connected:
            return []
        self._timers[_Timer.HEARTBEAT] = now_ms + self._pacing.heartbeat_ms()
        if self._heartbeats.awaited is not None:
            # The session timer watches that it is answered; a second one behind it would be answered no sooner.
            return []
        request = contract.HeartbeatRequest(identity=self.identity)
        self._heartbeats.send(request, now_ms)
        self._heartbeat_sent_in = self.identity.generation
        return [contract.Send(request=request)]

    def _on_heartbeat_response(self, event: contract.HeartbeatResponse, now_ms: int) -> Effects:
        """AbstractCoordinator.HeartbeatResponseHandler: in a stable member, REBALANCE_IN_PROGRESS requests a rejoin."""
        if event.request is not self._heartbeats.awaited:
            return []
        self._heartbeats.drop()
        if event.error in _MEMBER_CONFIRMED:
            self._extend_session(self._heartbeats.awaited_at_ms, now_ms)
        if event.error == ErrorCode.REBALANCE_IN_PROGRESS:
            return self._rebalance("the group rebalances", now_ms) if self._pacing.rejoins_at_once(now_ms) else []
        if event.error == ErrorCode.NONE or event.error in _TRY_AGAIN:
            return []  # the next heartbeat is due anyway
        return self._act_on_error("Heartbeat", event.error, now_ms)

    def _rebalance(self, reason: str, now_ms: int) -> Effects:
        """Take part in the next generation as soon as the rebalance protocol allows.

        KIP-429, and ConsumerCoordinator.onJoinPrepare: a cooperative member joins at once, claiming what it owns. An
        eager one revokes everything first, for its join says that it owns nothing: the leader may give all of it to
        others at once.
        """
        if self.config.cooperative or not (self.ownership.owned or self.ownership.unwanted):
            return self._join(reason, now_ms)
        if self.state is State.REVOKING:
            return []
        self._become(State.REVOKING)
        self._reason = reason
        return [contract.GiveUpAll(partitions=self.to_give_up, reason=reason)]

    def _on_rejoin_wanted(self, event: contract.RejoinWanted, now_ms: int) -> Effects:
        """KIP-429, 1.b: "If topic metadata has changed [...] and if the consumer is the leader, send join-group".

        Or a subscribed partition has no owner, and only an assignment can give it one (KIP-814's remaining issue).
        """
        return self._rebalance(event.reason, now_ms)

    def _on_gave_up(self, event: contract.GaveUp, now_ms: int) -> Effects:
        """KIP-429, 2.d: "The old owner will realize it does not own it any more, revoke it and then rejoin."."""
        self.ownership.give_up(event.partitions)
        if self.state is State.REVOKING and not self.to_give_up:
            return self._join("revoked partitions given up" if self.config.cooperative else self._reason, now_ms)
        if self.state is State.STABLE and self.ownership.assigned_beyond_owned:
            # 1. the application gives P up; 2. before `GaveUp` is here, a new generation assigns P to us again; 3. now
            # P is ours, and nobody reads it. Only another assignment can have it adopted.
            return self._rebalance("given up what is assigned again", now_ms)
        return []

    def _on_membership_refused(self, event: contract.MembershipRefused, now_ms: int) -> Effects:
        """ConsumerCoordinator.OffsetCommitResponseHandler: a commit may be the first to hear that we are no member."""
        if event.identity != self.identity or self.identity.generation == NO_GENERATION:
            return []  # that membership is over already
        if self.state in _IN_A_GENERATION:
            return self._act_on_error("OffsetCommit", event.error, now_ms)
        return self._act_on_error_elsewhere("OffsetCommit", event.error, now_ms)

    # ------------------------------------------------------------------------------ while a request is parked
    # The coordinator reads nothing behind a parked request (a broker mutes the channel), for up to the rebalance
    # timeout, which is longer than a session. Only another connection can tell whether the group still knows us.

    def _schedule_look(self, now_ms: int) -> None:
        # Three questions in a session, as heartbeats are advised to be; sooner on a connection that is new while the
        # deadline is near; and a coordinator that moved costs one request timeout at most.
        session_ms = self.config.session_timeout_ms
        left_ms = self._timers.get(_Timer.SESSION, now_ms + session_ms) - now_ms
        longest_ms = min(REQUEST_TIMEOUT_MS, session_ms // 3, max(left_ms // 2, RETRY_BACKOFF_MS))
        self._timers[_Timer.HEARTBEAT] = now_ms + self._pacing.heartbeat_ms(longest_ms)

    def _look(self, now_ms: int) -> Effects:
        """Ask over another connection: does the group still know us, and where is its coordinator?

        1. the coordinator stops (SIGSTOP, a partitioned network) while our join is parked there; 2. the group moves to
        another broker; 3. on our connection nothing says so until the rebalance timeout. A newcomer has no generation,
        so it asks for the coordinator alone.

        Kafka's client sends no heartbeat while a join is parked, and trusts its connection. The coordinator checks
        and renews a membership at a heartbeat in every phase of a rebalance
        (GroupMetadataManager.classicGroupHeartbeatToClassicGroup).
        """
        self._schedule_look(now_ms)
        known = self.identity.generation != NO_GENERATION
        heartbeat = contract.HeartbeatRequest(identity=self.identity) if known else None
        self._heartbeats.send(heartbeat, now_ms)
        return [contract.Look(heartbeat=heartbeat)]

    def _on_look_response(self, event: contract.HeartbeatResponse, now_ms: int) -> Effects:
        """AbstractCoordinator.HeartbeatResponseHandler: "ignore the REBALANCE_IN_PROGRESS error" during a rebalance."""
        confirmed = event.error in _MEMBER_CONFIRMED  # that the group rebalances is no news: we join it
        if event.request is not self._heartbeats.awaited:
            # A coordinator that takes longer than from one look to the next still confirms us; a refusal may be old.
            asked_at_ms = self._heartbeats.earlier_at_ms(event.request)
            if confirmed and asked_at_ms is not None and event.request.identity == self.identity:
                self._extend_session(asked_at_ms, now_ms)
            return []
        self._heartbeats.drop()
        if confirmed:
            self._extend_session(self._heartbeats.awaited_at_ms, now_ms)
            return []
        return self._act_on_error_elsewhere("Heartbeat", event.error, now_ms)

    def _act_on_error_elsewhere(self, api: str, error: int, now_ms: int) -> Effects:
        """Act on what another connection than ours was answered, while a request may be parked on ours.

        What can be tried again is asked again by the next look; our own request is left where it is.
        """
        if error == ErrorCode.ILLEGAL_GENERATION:
            # The next generation is there: our answer is on its way, or its connection leads nowhere.
            return self._look(now_ms) if api == "OffsetCommit" and self._awaited is not None else []
        if error in _COORDINATOR_GONE:
            return self._on_connection_lost(
                contract.ConnectionLost(reason=f"{api}: {ErrorCode.name_of(error)}"), now_ms
            )
        return [] if error in _TRY_AGAIN else self._act_on_error(api, error, now_ms)

    # ----------------------------------------------------------------------------------------------- errors
    # An error is either about where the coordinator is, about when to ask again, about our membership, or final.

    def _act_on_error(self, api: str, error: int, now_ms: int) -> Effects:
        """Any error of any request of the group, as the response handlers of Kafka's AbstractCoordinator sort them."""
        if error in _COORDINATOR_GONE:  # markCoordinatorUnknown: "re-discover the coordinator and retry with backoff"
            self._forget_connection()
            return [contract.Connect(reason=f"{api}: {ErrorCode.name_of(error)}")]
        if error in _TRY_AGAIN:  # COORDINATOR_LOAD_IN_PROGRESS: "backoff and retry"
            self._timers[_Timer.RETRY] = now_ms + self._pacing.retry_ms()
            return []
        if error in _MEMBERSHIP_OVER:
            return self._start_over(f"{api}: {ErrorCode.name_of(error)}", error, now_ms)
        if error == ErrorCode.FENCED_INSTANCE_ID:
            return self._act_on_fencing(now_ms)
        return self._fail(rejection(self.config.group, api, error))

    def _act_on_fencing(self, now_ms: int) -> Effects:
        """KIP-345: "some other consumer takes its spot. The client should immediately fail itself".

        Unless the coordinator has forgotten that we took the seat. 1. we replace X while the group rebalances: our id
        is written down when the generation is complete
        (GroupMetadataManager.updateStaticMemberThenRebalanceOrComplete); 2. the coordinator dies; 3. the next one
        knows X and fences us. A join that came without an id and is fenced was parked when a later one took the seat.
        """
        unconfirmed = self.identity.member_id not in (UNKNOWN_MEMBER_ID, self._confirmed_id)
        if not (unconfirmed and self.config.replaces):
            return self._fail_as_fenced()
        self._become(State.JOINING)
        self._awaited, self._asked_who_has_seat = None, True
        self._timers[_Timer.RETRY] = now_ms + self._pacing.retry_ms()
        return [contract.LookAtSeat()]

    def _fail_as_fenced(self) -> Effects:
        return self._fail(FencedInstanceId(self.config.group, self.config.instance_id or ""))

    def _on_seat_seen(self, event: contract.SeatSeen, now_ms: int) -> Effects:
        """Take the seat once more if whom we replaced has it again; end if somebody else has.

        KIP-345: a join with an unknown member id takes the seat from whoever has it, so it is sent for nothing less.
        """
        if not self._asked_who_has_seat:
            return []
        self._asked_who_has_seat = False
        if event.member_id == self.config.replaces:
            self.identity = replace(self.identity, member_id=UNKNOWN_MEMBER_ID, generation=NO_GENERATION)
            return self._join("the coordinator forgot that we took the seat", now_ms)
        if event.member_id in (self.identity.member_id, UNKNOWN_MEMBER_ID):
            return []  # the join that is due will tell
        return self._fail_as_fenced()

    def _start_over(self, reason: str, error: int, now_ms: int) -> Effects:
        """Begin as a new member, owning nothing; or join again, if the coordinator still knows us.

        KIP-429, 1.d: "reset generation / clear member-id correspondingly [...] onPartitionsLost for all the partition
        and then re-join group with empty assigned partition".
        """
        behind = error == ErrorCode.ILLEGAL_GENERATION
        lost = self._fall_behind(reason) if behind else self._lose(reason, keep_id=False)
        return [*lost, *self._join(reason, now_ms, afresh=self._awaited is not None)]

    def _fall_behind(self, reason: str) -> Effects:
        """The group knows our member id, in a later generation: a cooperative member keeps what its last join claimed.

        1. a group of type consumer raises its epoch, which does not concern us; 2. its last member with
        `group.protocol=consumer` leaves, and the broker makes it a classic group whose generation is that epoch
        (GroupMetadataManager.convertToClassicGroup); 3. all that we send from then on is refused; 4. the leader of the
        next generation gives to nobody what we claim. Java's client drops all at 3
        (AbstractCoordinator.resetStateOnResponseError), and others read it twice.
        """
        if not (self.config.cooperative and self.ownership.owned & self.ownership.claimed):
            return self._lose(reason, keep_id=True)
        self.identity = replace(self.identity, generation=NO_GENERATION)
        lost = self.ownership.lose_unclaimed()
        return [contract.Lost(partitions=lost, reason=reason)] if lost else []

    def _lose(self, reason: str, *, keep_id: bool) -> Effects:
        """AbstractCoordinator.resetStateAndGeneration, and onPartitionsLost for all that is owned (KIP-429)."""
        lost = self.ownership.lose_all()
        self._pacing.on_membership_over()
        member_id = self.identity.member_id if keep_id else UNKNOWN_MEMBER_ID
        self.identity = replace(self.identity, member_id=member_id, generation=NO_GENERATION)
        self.leader = False
        self.watched_topics = frozenset()
        self._timers.clear()
        return [contract.Lost(partitions=lost, reason=reason)] if lost else []

    def _fail(self, error: GroupError) -> Effects:
        """End with an error that the user has to see: it names what to change, and nothing is retried."""
        return self._end([*self._lose(str(error), keep_id=False), contract.Failed(error=error)])

    def _end(self, effects: Effects) -> Effects:
        """End; no timer runs any more, and no event changes anything."""
        self._become(State.CLOSED)
        self._timers.clear()
        return effects

    # ------------------------------------------------------------------------------------------------ timers
    # At most one of each kind runs. A timer that fires is gone; who wants another sets it.

    def _extend_session(self, asked_at_ms: int, now_ms: int) -> None:
        """The coordinator confirmed, some time after `asked_at_ms`, that we are a member: it counts from then.

        A newcomer's join may have been parked for longer than a session; it owns nothing yet.
        """
        session_ms = self.config.session_timeout_ms
        until_ms = self._timers.get(_Timer.SESSION, now_ms + session_ms)
        self._timers[_Timer.SESSION] = max(until_ms, asked_at_ms + session_ms)

    def _on_tick(self, _: contract.Tick, now_ms: int) -> Effects:
        """Fire the timers that are due, the session's before all others (AbstractCoordinator.HeartbeatThread.run)."""
        due = {timer for timer, at_ms in self._timers.items() if at_ms <= now_ms}
        for timer in due:
            del self._timers[timer]
        if _Timer.SESSION in due:
            return self._expire(now_ms)
        effects = self._send_join(now_ms) if _Timer.RETRY in due else []
        if _Timer.HEARTBEAT in due:
            effects += self._send_heartbeat(now_ms) if self.state in _IN_A_GENERATION else self._look(now_ms)
        if _Timer.OBJECT in due and self.state in _IN_A_GENERATION:
            effects += self._rebalance("assigned again what is not subscribed", now_ms)
        return effects

    def _expire(self, now_ms: int) -> Effects:
        """Lose everything: silent for a whole session (a SIGSTOP, a long outage), we must take the seat for given away.

        KIP-345: "the member will only be removed due to session timeout". Kafka's HeartbeatThread only looks for the
        coordinator anew then, and its application reads on until it is told. The member id stays: if another process
        has the seat by now, it is for us to be fenced, not for it.
        """
        reason = f"no answer from the coordinator for {self.config.session_timeout_ms} ms"
        afresh = self._awaited is not None or self._heartbeats.awaited is not None
        return [*self._lose(reason, keep_id=True), *self._join(reason, now_ms, afresh=afresh)]

    # ------------------------------------------------------------------------------------------------ ending
    # A static member that stops says nothing, and its seat waits for it until the session is over. To give a seat back
    # for good is a wish of its own (`Leave`).

    def _on_leave(self, event: contract.Leave, _now_ms: int) -> Effects:
        """KIP-345, "Scale Down": a static member leaves by its instance id, and the group rebalances without it.

        A member that does not know its id may be in the group all the same, if the answer to its join was lost
        (KIP-1082 calls it a ghost): a static one has asked for its seat and can give it back. A seat that we have not
        asked for is another process's.
        """
        asked = self.config.instance_id is not None and self._asked_at_ms >= 0
        if self.identity.member_id == UNKNOWN_MEMBER_ID and not asked:
            return self._end([contract.Left(error=ErrorCode.NETWORK_EXCEPTION)])
        self._become(State.LEAVING)
        self._timers.clear()  # the seat is given up: its session may end as it likes
        return [contract.Send(request=contract.LeaveRequest(identity=self.identity, reason=event.reason))]

    def _on_leave_response(self, event: contract.LeaveResponse, _now_ms: int) -> Effects:
        """AbstractCoordinator.maybeLeaveGroup: "do not attempt any resending if the request fails or times out"."""
        return self._end([contract.Left(error=event.error)])

    def _on_close(self, _: contract.Close, _now_ms: int) -> Effects:
        """KIP-345: a static member "will not send leave group request when they go offline"."""
        return self._end([])
