"""The handlers of a member under the consumer protocol. `consumer` has the table that says which runs in which state.

A handler is named `_on_...` and is called by the table alone. Every other method acts, and returns the effects to be
carried out, in their order. Where we differ from Kafka's client, the handler says why.

Only heartbeats go to the coordinator, one at a time. The answer has the member's epoch, which moves without a loss, and
an assignment if that is new. Partitions that are new in it are owned at once. Those missing from it are owned until the
application has given them up between two pieces of work, and the next heartbeat acknowledges that. The coordinator
assigns them to no other member before.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import replace
from enum import Enum
from typing import Final, TypeAlias

from spark_kgroup.errors import FencedInstanceId, GroupError
from spark_kgroup.limits import RETRY_BACKOFF_MAX_MS
from spark_kgroup.member import contract
from spark_kgroup.member.config import ConsumerMemberConfig, Resumption
from spark_kgroup.member.consumer_contract import (
    JOIN_EPOCH,
    LEAVE_EPOCH,
    RELEASE_EPOCH,
    Ask,
    ConsumerHeartbeatRequest,
    ConsumerHeartbeatResponse,
    Effect,
    NewsExpected,
    ResolveTopics,
    TopicsResolved,
    Unanswered,
)
from spark_kgroup.member.consumer_state import LEAVES_TO, State
from spark_kgroup.member.machine import StateMachine
from spark_kgroup.member.reconciliation import Reconciliation
from spark_kgroup.member.rejections import consumer_rejection
from spark_kgroup.model import NO_GENERATION, UNKNOWN_MEMBER_ID, ErrorCode, TopicPartition
from spark_kgroup.rights import RIGHTS_MISSING

Effects: TypeAlias = list[Effect]

_IN_THE_GROUP: Final = (State.RECONCILING, State.STABLE)

_TRY_AGAIN: Final = ErrorCode.retriable_codes()
_MEMBERSHIP_OVER: Final = frozenset(
    {ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.GROUP_ID_NOT_FOUND}
)
"""The last one: the group was deleted, or it had no member but us and the coordinator lost us."""
_OWN_IDS_MAX: Final = 100
"""Measured: one new id in a minute of an outage. So these are the ids of more than an hour."""

_GONE: Final = frozenset({ErrorCode.NONE, ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.GROUP_ID_NOT_FOUND})
"""Answers to a heartbeat that leaves: its sender is no member any more."""


class _Timer(Enum):
    HEARTBEAT = "heartbeat"
    """The next heartbeat is due."""
    SESSION = "session"
    """The coordinator has not confirmed our membership for a whole session."""
    RETRY = "retry"
    """The backoff after a failed request is over."""
    RESOLVE = "resolve"
    """Time to ask again for the names of topic ids."""


class ConsumerHandlers(StateMachine[ConsumerMemberConfig, State, _Timer]):
    """The handlers of a member under the consumer protocol, and all that it knows.

    Args:
        config: how the member presents itself.
        jitter: gives a number in [0, 1) for each heartbeat and retry.
        new_id: gives a member id that no member had before (`member_ids.new_member_id`).

    Attributes:
        leader: always False, as `watched_topics` is empty: the coordinator assigns, and watches metadata.

    """

    leader: Final = False
    leader_id: Final = UNKNOWN_MEMBER_ID
    watched_topics: Final[frozenset[str]] = frozenset()
    assigning_in: Final[int | None] = None
    awaits_join: Final = False

    def __init__(self, config: ConsumerMemberConfig, *, jitter: Callable[[], float], new_id: Callable[[], str]) -> None:
        first_id = new_id()
        super().__init__(config, LEAVES_TO, jitter=jitter, member_id=first_id)
        self.partitions: Final = Reconciliation()
        self._new_id = new_id
        self._own_ids = deque([first_id], maxlen=_OWN_IDS_MAX)
        """The newest ids that this process made. A coordinator without followers shows the last holder it could write,
        which may be an earlier one of these, or the one of the last membership."""
        self._seated_id = ""
        self._interval_ms = config.heartbeat_interval_ms
        self._awaited: ConsumerHeartbeatRequest | None = None
        self._full = True
        """Whether the next heartbeat is a full one: the coordinator may not have heard the last one, or we subscribe to
        other topics since."""
        self._owned_unanswered = False
        """Whether a heartbeat that names our partitions is unanswered. New ones are adopted only after its answer, to
        prevent this: 1. It says that we own none yet. 2. A topic's name is learned, and its partitions are owned.
        3. The heartbeat arrives, and gives them to other members at once."""
        self._in_our_seat = UNKNOWN_MEMBER_ID
        """The member id whose hold on the seat is to be released."""
        self._releases = 0
        """How many seats were released since the coordinator took us for a member."""
        self._was_member = False

    # -------------------------------------------------------------------------------------------- the outside

    def subscribe(self, topics: tuple[str, ...]) -> None:
        """Subscribe to `topics` from the next heartbeat on."""
        self.config = replace(self.config, topics=topics)
        self._full = True

    @property
    def owned(self) -> frozenset[TopicPartition]:
        """The partitions that the application may be reading."""
        return self.partitions.owned

    @property
    def to_give_up(self) -> frozenset[TopicPartition]:
        """The partitions to give up before the next piece of work."""
        return self.partitions.to_give_up

    @property
    def in_generation(self) -> bool:
        """Whether it is a member, as far as it knows."""
        return self.state in _IN_THE_GROUP

    def in_touch(self, now_ms: int) -> bool:
        """In the group, and no heartbeat has been unanswered for an interval."""
        return self.in_generation and (self._awaited is None or now_ms <= self._asked_at_ms + self._interval_ms)

    @property
    def settled(self) -> bool:
        """Owns the assigned partitions, as the coordinator knows."""
        return self.state is State.STABLE

    # ---------------------------------------------------------------------------------------------- heartbeats

    def _ask(self, epoch: int, now_ms: int, *, member_id: str | None = None) -> Effects:
        """Send a heartbeat with `epoch`, and await its answer. A partition that is owned is named by its topic's id."""
        # This heartbeat serves for both, and no second one may be sent while it is awaited.
        self._timers.pop(_Timer.HEARTBEAT, None)
        self._timers.pop(_Timer.RETRY, None)
        who = replace(self.identity, generation=epoch, member_id=member_id or self.identity.member_id)
        says_owned = epoch >= JOIN_EPOCH and (self._full or not self.partitions.acknowledged)
        self._awaited = ConsumerHeartbeatRequest(
            identity=who,
            full=epoch >= JOIN_EPOCH and self._full,
            owned=self.partitions.owned_by_id if says_owned else None,
        )
        if self._awaited.full:
            self._full = False
        # A heartbeat that was sent before may still arrive, so only an answer ends this.
        self._owned_unanswered = self._owned_unanswered or says_owned
        self._asked_at_ms = now_ms
        return [Ask(request=self._awaited)]

    def _beat(self, now_ms: int) -> Effects:
        return self._ask(self.identity.generation, now_ms)

    def _back_off(self, now_ms: int) -> Effects:
        """Ask again later, with a full heartbeat (ConsumerHeartbeatRequestManager.HeartbeatState.reset)."""
        self._full = True
        self._timers[_Timer.RETRY] = now_ms + self._pacing.retry_ms()
        return []

    def _on_unanswered(self, event: Unanswered, now_ms: int) -> Effects:
        """AbstractHeartbeatRequestManager.onFailure: neither membership nor ownership end with an answer that is lost.

        The coordinator takes the epoch before the current one once more, from a heartbeat that names all owned
        partitions.
        """
        if event.request is not self._awaited:
            return []
        self._awaited = None
        return self._back_off(now_ms)

    # ------------------------------------------------------------------------------------------------- joining

    def _on_join(self, _: contract.Join, now_ms: int) -> Effects:
        """AbstractMembershipManager.transitionToJoining: a heartbeat with epoch 0, unless partitions are owed."""
        return self._join(now_ms) if self.config.resumes is None else self._resume(self.config.resumes, now_ms)

    def _join(self, now_ms: int) -> Effects:
        self._become(State.JOINING)
        self._full = True
        return self._ask(JOIN_EPOCH, now_ms)

    def _on_join_response(self, event: ConsumerHeartbeatResponse, now_ms: int) -> Effects:
        """AbstractHeartbeatRequestManager.onResponse, in answer to epoch 0."""
        if event.request is not self._awaited:
            return []
        self._awaited = None
        if event.error == ErrorCode.NONE:
            return self._enter_group(event, now_ms)
        if event.error == ErrorCode.UNRELEASED_INSTANCE_ID:
            return self._look_at_seat(now_ms)
        if event.error in (ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID):
            # 1. We join. 2. The answer is lost, or a session of ours is over here and not there. 3. We join again, and
            # the group has our id in another epoch. So our old id is released, and a new id joins.
            return self._release(self.identity.member_id, now_ms)
        return self._act_on_error(event, now_ms)

    def _enter_group(self, event: ConsumerHeartbeatResponse, now_ms: int) -> Effects:
        # Also if the answer came too late: the group had us in the seat, so another member in it from now on fences us.
        self._was_member, self._releases = True, 0
        self._seated_id = self.identity.member_id
        if self._asked_at_ms + self.config.session_timeout_ms <= now_ms:
            # We were stopped for a session while the answer lay here: its partitions may be other members' by now.
            return self._back_off(now_ms)
        joined = replace(self.identity, generation=event.epoch)
        notice = contract.Joined(
            identity=joined,
            leader=False,
            protocol=self.config.server_assignor or "",
            skip_assignment=False,
            rejoined=False,
        )
        return [notice, *self._take_word(event, now_ms, first=True)]

    # --------------------------------------------------------------------------------------- a seat that owes
    # A join may claim no partitions, and a process that takes a seat over gets the seat's target alone. So a process
    # that has to finish an earlier one's work first goes on as the earlier one's member, with all partitions that it
    # may have been reading. No partition is owned meanwhile, but for those to be given up. Then the seat is released
    # and joined as by any other process.

    def _resume(self, as_whom: Resumption, now_ms: int) -> Effects:
        self._become(State.RESUMING)
        self.identity = replace(self.identity, member_id=as_whom.member_id, generation=as_whom.epoch)
        self.partitions.inherit(as_whom.owned)
        return self._beat(now_ms)

    def _on_resume_response(self, event: ConsumerHeartbeatResponse, now_ms: int) -> Effects:
        """Take the answer as any member does, but a membership that is over ends the earlier process's debt as well."""
        if event.request is not self._awaited:
            return []
        if event.error in _MEMBERSHIP_OVER or event.error == ErrorCode.FENCED_INSTANCE_ID:
            return self._start_over(f"Heartbeat: {ErrorCode.name_of(event.error)}", event.error, now_ms)
        effects = self._on_heartbeat_response(event, now_ms)
        if self.state is State.RESUMING and self.to_give_up and event.epoch > event.request.identity.generation:
            # A member stays in its epoch until all is given up. So another process has acknowledged that: the earlier
            # one still lives. The partitions we owe may be another member's by now, and the new epoch must not let us
            # commit them.
            reason = "the earlier process of this seat is alive, and gave up the partitions that this one owes"
            return self._start_over(reason, ErrorCode.NONE, now_ms)
        return effects

    def _pay(self, effects: Effects, now_ms: int) -> Effects:
        """Release the seat as soon as no partition is to be given up, for its next member to get the assignment."""
        if not self.partitions.to_give_up:
            self.partitions.lose_all()
            self._timers.clear()
            return [*effects, *self._release(self.identity.member_id, now_ms)]
        waits = self._awaited is not None or _Timer.RETRY in self._timers
        return effects if self.partitions.acknowledged or waits else [*effects, *self._beat(now_ms)]

    # ---------------------------------------------------------------------------------------- a seat that is taken
    # KIP-848: a static member may be replaced when it has released its seat with epoch -2. One that crashed has not,
    # and the coordinator answers UNRELEASED_INSTANCE_ID until its session is over. Java's client and librdkafka end
    # then. We release the seat in the crashed member's name, with the id that the group shows, as KIP-345 has it: the
    # newest process of a seat keeps it. Only a process that has not been a member yet does that. One that was a member,
    # and finds another in its seat, is fenced: so no older process takes the seat back from the one that followed it.

    def _look_at_seat(self, now_ms: int) -> Effects:
        self._become(State.LOOKING)
        # `LookAtSeat` may stay without an answer, so it is sent again.
        self._timers[_Timer.RETRY] = now_ms + RETRY_BACKOFF_MAX_MS
        return [contract.LookAtSeat()]

    def _on_seat_seen(self, event: contract.SeatSeen, now_ms: int) -> Effects:
        if event.member_id == UNKNOWN_MEMBER_ID:
            # The wait bounds how often a coordinator is asked that refuses the seat and shows no member in it.
            self._become(State.JOINING)
            return self._back_off(now_ms)
        if self._was_member and event.member_id not in (*self._own_ids, self._seated_id):
            return self._fail(self._fencing())
        return self._release(event.member_id, now_ms)

    def _release(self, member_id: str, now_ms: int) -> Effects:
        """Release the seat in the name of its holder. A dynamic member just leaves."""
        self._become(State.RELEASING)
        self._in_our_seat = member_id
        epoch = LEAVE_EPOCH if self.config.instance_id is None else RELEASE_EPOCH
        return self._ask(epoch, now_ms, member_id=member_id)

    def _take_new_id(self) -> None:
        self._own_ids.append(self._new_id())
        self.identity = replace(self.identity, member_id=self._own_ids[-1])

    def _on_release_response(self, event: ConsumerHeartbeatResponse, now_ms: int) -> Effects:
        """The seat is free: join, with an id that no member had. If another member has it meanwhile, look again."""
        if event.request is not self._awaited:
            return []
        self._awaited = None
        if event.error in _GONE:
            # A fresh id fences an earlier process that still lives: it heartbeats under the released one (decision 71).
            self._take_new_id()
            self._releases += 1
            self._become(State.JOINING)
            # A second release without a membership in between means that the join did not get the seat, and must not be
            # tried in a tight loop.
            return self._join(now_ms) if self._releases == 1 else self._back_off(now_ms)
        if event.error == ErrorCode.FENCED_INSTANCE_ID:
            self._become(State.LOOKING)
            return self._back_off(now_ms)
        return self._act_on_error(event, now_ms)

    # --------------------------------------------------------------------------------------------- in the group

    def _on_heartbeat_response(self, event: ConsumerHeartbeatResponse, now_ms: int) -> Effects:
        """AbstractMembershipManager.onHeartbeatSuccess: the epoch, and the assignment if it is new."""
        if event.request is not self._awaited:
            return []
        self._awaited = None
        if event.error == ErrorCode.NONE:
            return self._take_word(event, now_ms)
        if event.error in _MEMBERSHIP_OVER:
            return self._start_over(f"Heartbeat: {ErrorCode.name_of(event.error)}", event.error, now_ms)
        return self._act_on_error(event, now_ms)

    def _take_word(self, event: ConsumerHeartbeatResponse, now_ms: int, *, first: bool = False) -> Effects:
        """Take the coordinator's answer to a member: live on, in this epoch, with this assignment."""
        self._pacing.on_answered()
        self._rights.on_granted()
        # A join that succeeds proves little: a coordinator that fences each new member is to be asked ever more seldom.
        if not first:
            self._pacing.on_confirmed()
        no_news = event.epoch == self.identity.generation and event.assignment is None
        if not no_news:
            self.identity = replace(self.identity, generation=event.epoch)
        self._interval_ms = event.interval_ms or self._interval_ms
        # From the sending: the coordinator has not heard from us earlier, so its session does not end before this one.
        self._timers[_Timer.SESSION] = self._asked_at_ms + self.config.session_timeout_ms
        self._timers[_Timer.HEARTBEAT] = now_ms + self._pacing.heartbeat_ms(self._interval_ms)
        # Nearly all answers are of this kind, and a thousand seats hear them all the time.
        if no_news and not first and self.state is State.STABLE and event.request.owned is None and not self._full:
            return []
        if event.request.owned is not None:
            self.partitions.acknowledge(event.request.owned)
            self._owned_unanswered = False
        before = None if first else (self.partitions.assigned, self.partitions.to_give_up)
        if event.assignment is not None:
            self.partitions.assign(event.assignment)
        return self._reconcile(before, now_ms)

    def _reconcile(
        self, before: tuple[frozenset[TopicPartition], frozenset[TopicPartition]] | None, now_ms: int
    ) -> Effects:
        """AbstractMembershipManager.maybeReconcile, but without giving up: the application does that, later.

        Args:
            before: the partitions assigned, and those to give up, when the application heard of them last, or None if
                it has not.
            now_ms: the instant.
        """
        effects: Effects = []
        resumes = self.state is State.RESUMING
        waits = resumes or self._owned_unanswered
        lost, added = self.partitions.adopt() if not waits else (frozenset[TopicPartition](), frozenset())
        if lost:
            effects.append(contract.Lost(partitions=lost, reason="their topic was created anew"))
        assigned, revoked = self.partitions.assigned, self.partitions.to_give_up
        if added or before != (assigned, revoked):
            effects.append(contract.Assigned(identity=self.identity, assigned=assigned, added=added, revoked=revoked))
        if not self.partitions.unnamed:
            self._timers.pop(_Timer.RESOLVE, None)
        elif _Timer.RESOLVE not in self._timers:
            effects += self._resolve(now_ms)
        return self._pay(effects, now_ms) if resumes else effects + self._acknowledge(now_ms)

    def _acknowledge(self, now_ms: int) -> Effects:
        """Send changed ownership or subscription at once, or after the awaited answer (ACKNOWLEDGING)."""
        self._become(State.STABLE if self.partitions.at_rest else State.RECONCILING)
        known = self.partitions.acknowledged and not self._full
        waits = self._awaited is not None or _Timer.RETRY in self._timers
        return [] if known or waits else self._beat(now_ms)

    def _resolve(self, now_ms: int) -> Effects:
        """AbstractMembershipManager.findResolvableAssignmentAndTriggerMetadataUpdate: ids without a name wait."""
        self._timers[_Timer.RESOLVE] = now_ms + RETRY_BACKOFF_MAX_MS
        return [ResolveTopics(topic_ids=self.partitions.unnamed)]

    def _on_topics_resolved(self, event: TopicsResolved, now_ms: int) -> Effects:
        before = self.partitions.assigned, self.partitions.to_give_up
        self.partitions.resolve(event.names)
        return self._reconcile(before, now_ms)

    def _on_gave_up(self, event: contract.GaveUp, now_ms: int) -> Effects:
        """Acknowledge that the application reads these no more: the coordinator may assign them elsewhere.

        1. The application gives P up. 2. Before `GaveUp` is here, the membership is lost and a new one is assigned P
        again. 3. Now P is ours, and no seat reads it: it is new once more.
        """
        # The application knows which partitions it gave up, so that alone is no news to report.
        before = self.partitions.assigned, self.partitions.to_give_up - event.partitions
        self.partitions.give_up(event.partitions)
        return self._reconcile(before, now_ms)

    def _on_membership_refused(self, event: contract.MembershipRefused, now_ms: int) -> Effects:
        """A commit was the first to hear that our membership may be over: ask the coordinator at once.

        Only the answer to a heartbeat says so for sure: a commit may carry an earlier epoch.
        """
        waits = self._awaited is not None or _Timer.RETRY in self._timers
        return [] if waits or event.identity.member_id != self.identity.member_id else self._beat(now_ms)

    def _on_news_expected(self, _: NewsExpected, now_ms: int) -> Effects:
        """Ask before the interval is over: the group has news for us, or we have news for the group."""
        waits = self._awaited is not None or _Timer.RETRY in self._timers
        return [] if waits else self._beat(now_ms)

    # ----------------------------------------------------------------------------------------------- errors

    def _act_on_error(self, event: ConsumerHeartbeatResponse, now_ms: int) -> Effects:
        """Errors that are not about our membership, as AbstractHeartbeatRequestManager.onErrorResponse sorts them."""
        if event.error in _TRY_AGAIN or (event.error in RIGHTS_MISSING and self._rights.may_come_back(now_ms)):
            return self._back_off(now_ms)
        if event.error == ErrorCode.FENCED_INSTANCE_ID:
            return self._fail(self._fencing())
        return self._fail(consumer_rejection(self.config.group, self.config.instance_id, event.error, event.message))

    def _start_over(self, reason: str, error: int, now_ms: int) -> Effects:
        """AbstractMembershipManager.transitionToFenced: drop all, and join again with epoch 0, under the same id.

        A static member whose epoch is fenced waits first: 1. A new process of the seat releases it. 2. We heartbeat,
        and are fenced. 3. If we joined before it does, we would have its seat.
        """
        resumed = self.state is State.RESUMING
        effects = [*self._lose_all_partitions(reason), contract.Rejoining(reason=reason)]
        if resumed:
            # The old id is that of the earlier process, which may still live and speak under it.
            self._take_new_id()
            return [*effects, *self._join(now_ms)]
        fenced = error == ErrorCode.FENCED_MEMBER_EPOCH and self.config.instance_id is not None
        if wait_ms := RETRY_BACKOFF_MAX_MS if fenced else self._pacing.again_ms():
            self._become(State.JOINING)
            self._full = True
            self._timers[_Timer.RETRY] = now_ms + wait_ms
            return effects
        return [*effects, *self._join(now_ms)]

    def _lose_all_partitions(self, reason: str) -> Effects:
        """Own no partition any more: no position may be committed (ConsumerRebalanceListener.onPartitionsLost)."""
        lost = self.partitions.lose_all()
        self.identity = replace(self.identity, generation=NO_GENERATION)
        self._awaited = None
        self._timers.clear()
        return [contract.Lost(partitions=lost, reason=reason)] if lost else []

    def _fail(self, error: GroupError) -> Effects:
        """End with an error that the user has to see: its message names the setting to change, and no retry follows.

        A dynamic member leaves, as one of the classic protocol does (`actions`).
        """
        effects = [*self._lose_all_partitions(str(error)), contract.Failed(error=error)]
        if self.config.instance_id is not None or isinstance(error, FencedInstanceId):
            return self._end(effects)
        self._become(State.LEAVING)
        # No instant is at hand, and none is needed: no session is counted from the sending of a leave.
        return [*self._ask(LEAVE_EPOCH, self._asked_at_ms), *effects]

    # ------------------------------------------------------------------------------------------------ timers

    def _on_tick(self, _: contract.Tick, now_ms: int) -> Effects:
        """Fire the timers that are due, the session's before the rest."""
        due = self._fired(now_ms)
        if _Timer.SESSION in due:
            return self._start_over(self._silence, ErrorCode.NETWORK_EXCEPTION, now_ms)
        effects: Effects = []
        if _Timer.RESOLVE in due:
            effects += self._resolve(now_ms)
        if due & {_Timer.HEARTBEAT, _Timer.RETRY} and self._awaited is None:
            effects += self._ask_again(now_ms)
        return effects

    def _ask_again(self, now_ms: int) -> Effects:
        match self.state:
            case State.JOINING:
                return self._join(now_ms)
            case State.LOOKING:
                return self._look_at_seat(now_ms)
            case State.RELEASING:
                return self._release(self._in_our_seat, now_ms)
            case _:
                return self._beat(now_ms)

    # ------------------------------------------------------------------------------------------------ ending

    def _on_leave(self, _: contract.Leave, now_ms: int) -> Effects:
        """KIP-848: epoch -1 gives the seat back for good, of a static member as well.

        A process that asked to join, and has no answer, may be a member all the same: KIP-1082 calls it a ghost, and
        has given clients ids of their own so that it can leave.
        """
        if self.state in (State.IDLE, State.LOOKING, State.RELEASING):
            return self._end([contract.Left(error=ErrorCode.NETWORK_EXCEPTION)])
        self._become(State.LEAVING)
        self._timers.clear()
        return self._ask(LEAVE_EPOCH, now_ms)

    def _on_close(self, _: contract.Close, now_ms: int) -> Effects:
        """KIP-848: a static member that will be back says epoch -2, so that its next process has the seat at once.

        A seat that owes partitions keeps silent: to release it would give them to other members this instant, and the
        next process may have to do their last work again. The coordinator keeps it for a session, as after a crash.
        """
        if self.config.instance_id is None or not self.in_generation or self.to_give_up:
            return self._end([])
        self._become(State.LEAVING)
        self._timers.clear()
        return self._ask(RELEASE_EPOCH, now_ms)

    def _on_leave_response(self, event: ConsumerHeartbeatResponse, _now_ms: int) -> Effects:
        if event.request is not self._awaited:
            return []
        return self._end_after(event.request, ErrorCode.NONE if event.error in _GONE else event.error)

    def _on_leave_unanswered(self, event: Unanswered, _now_ms: int) -> Effects:
        if event.request is not self._awaited:
            return []
        return self._end_after(event.request, ErrorCode.NETWORK_EXCEPTION)

    def _end_after(self, request: ConsumerHeartbeatRequest, error: int) -> Effects:
        """Report how leaving went. A seat that is only released is still ours, so there is no report."""
        return self._end([contract.Left(error=error)] if request.identity.generation == LEAVE_EPOCH else [])
