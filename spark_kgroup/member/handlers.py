"""The handlers of a classic member's events. `classic` has the table that says which handler runs in which state.

A handler is named `_on_...` and is called by the table alone. The methods that it calls are in `actions`, or beside it
if they read an answer. Each handler quotes the sentence that it implements, as those methods do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from spark_kgroup.member import contract
from spark_kgroup.member.actions import COORDINATOR_GONE, TRY_AGAIN, Actions, Effects, Timer
from spark_kgroup.member.consumer_contract import JOIN_EPOCH
from spark_kgroup.member.state import State
from spark_kgroup.model import (
    NO_GENERATION,
    UNKNOWN_MEMBER_ID,
    ErrorCode,
    GroupMember,
    TopicPartition,
)

IN_A_GENERATION: Final = (State.STABLE, State.REVOKING)

_MEMBER_CONFIRMED: Final = frozenset({ErrorCode.NONE, ErrorCode.REBALANCE_IN_PROGRESS})
"""The answers of a coordinator to the heartbeat of a member that it knows."""


class Handlers(Actions):
    """The handlers of a classic member's events."""

    # --------------------------------------------------------------------------------------------- connections

    def _on_join(self, _: contract.Join, _now_ms: int) -> Effects:
        """AbstractCoordinator.ensureActiveGroup: "always ensure that the coordinator is ready", then join."""
        self._become(State.JOINING)
        return [contract.Connect(reason="start")]

    def _on_connected_joining(self, _: contract.Connected, now_ms: int) -> Effects:
        """AbstractCoordinator.joinGroupIfNeeded: join as soon as the coordinator is ready, regardless of a backoff.

        The runtime has waited before it connected, so that a coordinator that refuses us is not asked in a tight loop.
        """
        self._connected = True
        return self._send_join(now_ms)

    def _on_connected_in_generation(self, _: contract.Connected, now_ms: int) -> Effects:
        """AbstractCoordinator.ensureActiveGroup: being disconnected "does not necessarily require us to rejoin".

        A heartbeat at once asks whether the coordinator, maybe another one by now, still knows us.
        """
        self._connected = True
        # A renaming that ended with the connection may have put off a rebalance.
        return self._make_up_for_wish(now_ms) or self._send_heartbeat(now_ms)

    def _on_connected_assigning(self, _: contract.Connected, now_ms: int) -> Effects:
        """Ask again for the generation that we lead.

        1. The connection breaks while the assignor runs. 2. The group may have moved on meanwhile. 3. A join with
        unchanged metadata is answered with the current generation
        (GroupMetadataManager.classicGroupJoinExistingMember).
        """
        self._connected = True
        return self._join("connection lost while assigning", now_ms)

    def _on_connection_lost(self, event: contract.ConnectionLost, _now_ms: int) -> Effects:
        return self._lose_connection(event.reason)

    # ------------------------------------------------------------------------------------------------- joining

    def _on_join_response(self, event: contract.JoinResponse, now_ms: int) -> Effects:
        """AbstractCoordinator.JoinGroupResponseHandler.

        KIP-429, 1.e: "If received MEMBER_ID_REQUIRED from join-group request: set the member id, and then re-send
        join-group" (KIP-394). Only dynamic members are asked for it (KIP-345).
        """
        if event.request != self._awaited:
            return []
        self._awaited = None
        if event.error == ErrorCode.NONE:
            return self._enter_generation(event, now_ms)
        if event.error == ErrorCode.MEMBER_ID_REQUIRED:
            self.identity = replace(self.identity, member_id=event.member_id)
            # KIP-394 sends a newcomer away once. Only a coordinator that does so again and again makes it wait.
            if wait_ms := self._pacing.again_ms():
                self._timers[Timer.RETRY] = now_ms + wait_ms
                return []
            return self._send_join(now_ms)
        if event.error == ErrorCode.REBALANCE_IN_PROGRESS:
            # 1. Our join is parked. 2. The group becomes one of type consumer, which answers all parked requests. 3. A
            # static seat has caused that, so the group is not assigned anew
            # (GroupMetadataManager.convertToConsumerGroup takes for granted that it always is). 4. Our next join is
            # answered with our old assignment, which may be empty.
            self._wish = "the group changed its type while we joined"
            self._says_otherwise = not self._says_otherwise
        return self._act_on_error("JoinGroup", event.error, now_ms)

    def _enter_generation(self, event: contract.JoinResponse, now_ms: int) -> Effects:
        """Be a member of the new generation: assign if we lead it, and ask for our assignment.

        KIP-394, KIP-345: the member id in the answer is the one to use from now on. `rejoined` tells the runtime that
        the group was not rebalanced for us, so that no member has looked for partitions without an owner.

        KIP-345: to a known instance id "broker will return the cached assignment", without a rebalance. KIP-814: if
        that is the leader's, it "will send an SyncGroup with no assignment to collect its own (and existing)
        assignment" (`skip_assignment`).
        """
        asked_back = event.request.identity.member_id == UNKNOWN_MEMBER_ID
        rejoined = self.config.instance_id is not None and (asked_back or self._renamed)
        # BEFORE `claimed` and the generation change: the missed generation went by the claims of the join before this
        # one.
        effects = self._lose_unclaimed(event)
        if event.generation != self.identity.generation:
            # A refusal may be due to the last generation's assignment (decision 72): in a new one the seat asks again.
            self.own_id_refused = ErrorCode.NONE
            if self.identity.generation != NO_GENERATION:  # else it may be a generation that was there before our join
                self._wish = ""
        # The leader sees the claims as they were when the join was sent: some may have been given up since. All
        # protocols of a join have the same.
        self.ownership.claimed = event.request.protocols[0][1].owned
        self.identity = replace(self.identity, member_id=event.member_id, generation=event.generation)
        self._protocol, self._ends_with = event.protocol, None
        self.leader, self.leader_id = event.leader == event.member_id, event.leader
        self.watched_topics = self._subscribed_topics(event.members) if self.leader else frozenset()
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
        """Lose the partitions that other members may have been given in a generation that went by without us.

        1. A static member that cannot rejoin within the rebalance timeout stays in the group, with the claim of its
        last join (KIP-345, "Rolling Bounce"). 2. No join claims the partitions that it was assigned since, so the
        leader may give them away. 3. Its own next join succeeds all the same, because a join is not checked for its
        generation.

        A group without a leader is of type consumer (KIP-848): the coordinator itself knows which partitions we have
        not given up, and a new epoch does not concern members whose assignment it leaves alone.

        After a renaming of the seat, which leaves the generation alone, another generation costs us all partitions.
        1. We are paused before we ask. 2. A newer process takes the seat, and the group moves on. 3. We go on, and take
        the seat from that process. Or the broker's own assignor has run meanwhile. None of the partitions that we own
        is sure to be ours then.
        """
        if self._renamed and not event.leader and event.generation != self.identity.generation:
            lost = self.ownership.lose_all()
            reason = f"the group moved on to generation {event.generation} before our seat was renamed"
            return [contract.Lost(partitions=lost, reason=reason)] if lost else []
        missed = bool(event.leader) and event.generation > self.identity.generation + 1
        if not missed or not (lost := self.ownership.lose_unclaimed()):
            return []
        reason = f"the group rebalanced without us before generation {event.generation}"
        return [contract.Lost(partitions=lost, reason=reason)]

    @staticmethod
    def _subscribed_topics(members: Sequence[GroupMember]) -> frozenset[str]:
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

    def _on_assignment_failed(self, event: contract.AssignmentFailed, now_ms: int) -> Effects:
        """Leave all members the partitions they claim, then end.

        The proposal of client-side assignment would tell all of them: its "Assignment Failure" sends an error instead
        of an assignment. SyncGroup has no field for one, and without a sync all members would wait for this one until
        its session is over.
        """
        if event.generation != self.identity.generation or not self._connected:
            return []
        self._ends_with = event.error
        return self._send_sync(event.kept, now_ms)

    # ------------------------------------------------------------------------------------------------- syncing
    # SyncGroup is parked until the leader's assignment is there. Its answer is the group's word on which member reads
    # which partition. Partitions change hands by it between two pieces of work.

    def _on_sync_response(self, event: contract.SyncResponse, now_ms: int) -> Effects:
        """AbstractCoordinator.SyncGroupResponseHandler: "The group began another rebalance. Need to re-join"."""
        if event.request != self._awaited:
            return []
        self._awaited = None
        if event.error == ErrorCode.NONE and self._ends_with is not None:
            return self._fail(self._ends_with)
        if event.error == ErrorCode.NONE:
            return self._take_assignment(event.assignment, now_ms)
        if event.error == ErrorCode.REBALANCE_IN_PROGRESS:
            return self._join("the group rebalanced while syncing", now_ms, wait_ms=self._pacing.again_ms())
        # The retry is a join: if the generation still stands, an unchanged join is answered from it.
        if event.error in COORDINATOR_GONE or self._may_pass(event.error, now_ms):
            self._become(State.JOINING)
            self._reason = f"SyncGroup failed with {ErrorCode.name_of(event.error)}"
        return self._act_on_error("SyncGroup", event.error, now_ms)

    def _take_assignment(self, assignment: frozenset[TopicPartition], now_ms: int) -> Effects:
        """KIP-429, 3.a: new is `Minus(assigned-partitions, owned-partitions)`, revoked is the reverse.

        ConsumerCoordinator.onJoinComplete revokes at once and joins again. We join when the application has given up
        the revoked partitions, so that no work is under way on a partition that moves.
        """
        # A first sync in a generation, or under a new member id, is never vain, even if it brings the same assignment.
        asked_before = self._confirmed_id == self.identity.member_id
        self._confirmed_id = self.identity.member_id
        self._other_ids.clear()
        self._asked_who_has_seat = False
        asked_before &= self._heartbeat_sent_in == self.identity.generation
        vain = asked_before and self.ownership.confirms(assignment)
        self._pacing.on_synced(vain=vain, now_ms=now_ms)
        added = self.ownership.take(assignment, self.identity.generation)
        self._object_later(now_ms)
        self._extend_session(self._asked_at_ms, now_ms)
        asked = self.ownership.to_give_up
        joins_again = not asked and self.ownership.claimed_beyond_assigned
        if not joins_again:
            self._become(State.REVOKING if asked else State.STABLE)
        if asked:
            # The only reason that an eager member has here.
            self._reason = "assigned partitions of topics that are not subscribed"
        effects: Effects = [
            contract.Assigned(
                identity=self.identity, assigned=self.ownership.assigned, added=added, revoked=self.to_give_up
            )
        ]
        if joins_again:
            # 1. We joined claiming P. 2. While the join was parked, the application gave P up. 3. The leader kept P
            # from its new owner because of our claim. No other member will rejoin for it, so we do.
            return [*effects, *self._join("given up partitions that the join still claimed", now_ms)]
        effects += self._make_up_for_wish(now_ms)
        # An eager member that is to rebalance stays in this generation until it has given up all partitions.
        return effects + self._begin_heartbeats(now_ms) if self.state in IN_A_GENERATION else effects

    def _object_later(self, now_ms: int) -> None:
        """Object to tolerated partitions some time later, by a join, and ever more seldom (`Ownership.take`)."""
        if self.ownership.tolerated:
            # The first objection needs no timer: it is the join after the unwanted partitions were given up.
            self._timers[Timer.OBJECT] = now_ms + self._pacing.rejoin_ms(self.ownership.objections - 2)

    # --------------------------------------------------------------------------------------- in a generation

    def _on_neighbour_joins(self, _: contract.NeighbourJoins, now_ms: int) -> Effects:
        """Ask now, and not an interval later, whether the group rebalances.

        1. A member is alone in the first generation of its group, and is told that all is well. 2. Its neighbours join,
        and are kept waiting for it. 3. It learns of that from its next heartbeat. Kafka's clients leave it at that:
        each is alone in its process, as far as it knows.
        """
        # An eager member in REVOKING joins as soon as it has given up all partitions, and needs no heartbeat for that.
        knows = self.state is State.REVOKING and not self.config.cooperative
        if knows or not self._pacing.rejoins_at_once(now_ms):
            return []
        return self._send_heartbeat(now_ms)

    def _on_heartbeat_response(self, event: contract.HeartbeatResponse, now_ms: int) -> Effects:
        """AbstractCoordinator.HeartbeatResponseHandler: in a stable member, REBALANCE_IN_PROGRESS requests a rejoin."""
        # Identity, not equality: the heartbeats of one generation are equal, and each was sent at another time.
        if event.request is not self._heartbeats.awaited:
            return []
        self._heartbeats.drop()
        if event.error in _MEMBER_CONFIRMED:
            self._extend_session(self._heartbeats.awaited_at_ms, now_ms)
        if event.error == ErrorCode.NONE:
            self._pacing.on_confirmed()
            return []  # the next heartbeat is due anyway
        if event.error == ErrorCode.REBALANCE_IN_PROGRESS and self._pacing.rejoins_at_once(now_ms):
            return self._rebalance("the group rebalances", now_ms)
        if self._may_pass(event.error, now_ms):
            # Not as late as a member that rests.
            again_at_ms = now_ms + self._pacing.heartbeat_ms()
            self._timers[Timer.HEARTBEAT] = min(self._timers.get(Timer.HEARTBEAT, again_at_ms), again_at_ms)
            return []
        return self._act_on_error("Heartbeat", event.error, now_ms)

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
            # 1. The application gives P up. 2. Before `GaveUp` is here, a new generation assigns P to us again. 3. Now
            # P is ours, and no seat reads it. Only another assignment can have it adopted.
            return self._rebalance("given up partitions that are assigned again", now_ms)
        return []

    def _on_membership_refused(self, event: contract.MembershipRefused, now_ms: int) -> Effects:
        """ConsumerCoordinator.OffsetCommitResponseHandler: a commit may be the first to hear that we are no member."""
        if event.identity != self.identity or self.identity.generation == NO_GENERATION:
            return []  # that membership is over already
        if self.state in IN_A_GENERATION:
            return self._act_on_error("OffsetCommit", event.error, now_ms)
        return self._act_on_error_elsewhere("OffsetCommit", event.error, now_ms)

    # ------------------------------------------------------------------------------ while a request is parked

    def _on_look_response(self, event: contract.HeartbeatResponse, now_ms: int) -> Effects:
        """AbstractCoordinator.HeartbeatResponseHandler: "ignore the REBALANCE_IN_PROGRESS error" during a rebalance."""
        confirmed = event.error in _MEMBER_CONFIRMED  # that the group rebalances is no news: we join it
        if event.request is not self._heartbeats.awaited:
            # A coordinator that takes longer than from one look to the next still confirms us. A refusal may be old.
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
        """Act on an error from another connection than ours, while a request may be parked on ours.

        After an error that may pass, the next look asks again. Our own request is left where it is.
        """
        if error == ErrorCode.ILLEGAL_GENERATION:
            # The next generation is there: our answer is on its way, or its connection leads nowhere.
            # A look need not be followed by another one: it has just asked which broker is the coordinator.
            return self._probe_coordinator(now_ms) if api == "OffsetCommit" and self._awaited is not None else []
        if error in COORDINATOR_GONE:
            return self._lose_connection(f"{api}: {ErrorCode.name_of(error)}")
        return [] if self._may_pass(error, now_ms) else self._act_on_error(api, error, now_ms)

    def _on_seat_seen(self, event: contract.SeatSeen, now_ms: int) -> Effects:
        """Take the seat once more if it has another id of ours, or the member that we replaced has it; else end.

        KIP-345: a join with an unknown member id takes the seat from its holder, so it is sent in the second case
        alone. A join with an id of ours is fenced if another process takes the seat meanwhile.
        """
        if not self._asked_who_has_seat:
            return []
        self._asked_who_has_seat = False
        if self._may_have_own_id and event.member_id == self.config.own_id:
            return self._take_own_id(now_ms)
        if event.member_id == UNKNOWN_MEMBER_ID:
            return []  # the join that is due will tell
        if event.member_id == self.identity.member_id:
            # Over another connection: the broker that fenced us and the one that says this contradict each other.
            return self._join("the seat has this member id", now_ms, afresh=True)
        if event.member_id in self._other_ids:
            self._go_on_as(event.member_id)
            return self._join("the seat has an earlier member id", now_ms, wait_ms=self._pacing.retry_ms())
        if event.member_id == self.config.replaces:
            self._go_on_as(UNKNOWN_MEMBER_ID)
            return self._join("the coordinator forgot that we took the seat", now_ms)
        return self._fail(self._fencing())

    def _go_on_as(self, member_id: str) -> None:
        """Keep the present id in mind: a coordinator may know the seat under it. A renamed seat may own partitions."""
        if not self.ownership.owned:
            self._other_ids = {*self._other_ids, self.identity.member_id} - {member_id}
        self.identity = replace(self.identity, member_id=member_id, generation=NO_GENERATION)

    # ------------------------------------------------------------------------------------------------ timers

    def _on_tick(self, _: contract.Tick, now_ms: int) -> Effects:
        """Fire the timers that are due, the session's before the rest (AbstractCoordinator.HeartbeatThread.run)."""
        due = self._fired(now_ms)
        if Timer.SESSION in due:
            return self._expire(now_ms)
        effects = self._send_join(now_ms) if Timer.RETRY in due else []
        if Timer.HEARTBEAT in due:
            effects += (
                self._send_heartbeat(now_ms) if self.state in IN_A_GENERATION else self._probe_coordinator(now_ms)
            )
        if Timer.OBJECT in due and self.state in IN_A_GENERATION:
            effects += self._rebalance("assigned once more partitions of topics that are not subscribed", now_ms)
        return effects

    def _expire(self, now_ms: int) -> Effects:
        """Lose all partitions after a session without an answer (a SIGSTOP, a long outage).

        The coordinator may have given them away: "the member will only be removed due to session timeout" (KIP-345).
        Kafka's HeartbeatThread only looks for the coordinator anew then, and its application reads on. Our member id
        stays, so that we are fenced, and no other process, if another one has the seat by now.
        """
        afresh = self._awaited is not None or self._heartbeats.awaited is not None
        return [
            *self._lose_all_partitions(self._silence, keep_id=True),
            *self._join(self._silence, now_ms, afresh=afresh),
        ]

    # ---------------------------------------------------------------------------------------------- renaming
    # No request joins a classic group with a member id that the client has made. But a static seat is taken over, with
    # its partitions, by a ConsumerGroupHeartbeat with any id (GroupMetadataManager.convertToConsumerGroup), and the
    # group is classic again when that member sends JoinGroup (convertToClassicGroup). Both leave the generation and all
    # assignments alone, if no member joins, leaves or changes its subscription meanwhile.

    def _on_rename(self, _: contract.Rename, now_ms: int) -> Effects:
        """KIP-1082: "the consumer generates" the member id. Not while a heartbeat may say that the group rebalances."""
        own_id = self.config.own_id
        wanted = own_id not in (UNKNOWN_MEMBER_ID, self.identity.member_id)
        may_be = self.config.cooperative and self.config.instance_id is not None
        if not (wanted and may_be) or not self._connected or self._heartbeats.awaited is not None:
            return []
        self._become(State.RENAMING)
        self._timers.pop(Timer.HEARTBEAT, None)
        self._may_have_own_id = True
        request = contract.RenameRequest(identity=replace(self.identity, member_id=own_id, generation=JOIN_EPOCH))
        self._awaited, self._asked_at_ms = request, now_ms
        return [contract.Send(request=request)]

    def _on_rename_response(self, event: contract.RenameResponse, now_ms: int) -> Effects:
        """Join under our own id at once: until then the group is of type consumer, with its short session.

        After an error the seat is as it was, or another process has it: the heartbeat that follows will tell.
        """
        if event.request != self._awaited:
            return []
        self._awaited = None
        if event.error == ErrorCode.NONE:
            return self._take_own_id(now_ms)
        self._become(State.STABLE)
        if event.error in COORDINATOR_GONE:
            return self._act_on_error("ConsumerGroupHeartbeat", event.error, now_ms)
        # The seat is unreleased if an earlier RenameRequest of ours took it, whose answer was lost, or a newer process
        # did.
        if event.error not in TRY_AGAIN and event.error != ErrorCode.UNRELEASED_INSTANCE_ID:
            self.own_id_refused, self._may_have_own_id = event.error, False
        return self._make_up_for_wish(now_ms) or self._send_heartbeat(now_ms)

    def _take_own_id(self, now_ms: int) -> Effects:
        self._may_have_own_id = False
        self.identity = replace(self.identity, member_id=self.config.own_id)
        return self._join("the seat has a member id of its process", now_ms)

    def _on_rejoin_wanted_renaming(self, event: contract.RejoinWanted, _now_ms: int) -> Effects:
        """The join that is to come makes no new generation, so another one has to follow it."""
        self._wish = event.reason
        return []

    def _make_up_for_wish(self, now_ms: int) -> Effects:
        wish, self._wish = self._wish, ""
        if not wish or self.state is not State.STABLE:
            return []
        # A follower whose join equals its last one is answered from the current generation, and the group does not
        # rebalance.
        self._says_otherwise = not self._says_otherwise
        return self._rebalance(wish, now_ms)

    # ------------------------------------------------------------------------------------------------ ending
    # A static member stops silently, and its seat waits for it until the session is over. To give a seat back for good
    # is a request of its own (`Leave`).

    def _on_leave(self, event: contract.Leave, _now_ms: int) -> Effects:
        """KIP-345, "Scale Down": a static member leaves by its instance id, and the group rebalances without it.

        A member that does not know its id may be in the group all the same, if the answer to its join was lost
        (KIP-1082 calls it a ghost): a static one has asked for its seat and can give it back. A seat that we have not
        asked for is another process's.
        """
        asked = self.config.instance_id is not None and self._asked_at_ms >= 0
        if self.identity.member_id == UNKNOWN_MEMBER_ID and not asked:
            return self._end([contract.Left(error=ErrorCode.NETWORK_EXCEPTION)])
        return self._send_leave(self.identity, event.reason)

    def _on_leave_response(self, event: contract.LeaveResponse, _now_ms: int) -> Effects:
        """AbstractCoordinator.maybeLeaveGroup: "do not attempt any resending if the request fails or times out"."""
        return self._end([contract.Left(error=event.error)])

    def _on_close(self, _: contract.Close, _now_ms: int) -> Effects:
        """KIP-345: a static member "will not send leave group request when they go offline"."""
        return self._end([])
