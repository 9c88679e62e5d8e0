"""A small group coordinator of the classic protocol, for one group, in virtual time: the one that all simulations have.

Real members talk to it in the members' world (`simulated_world`), scripted ones in `FakeGroup`.

Written from the KIPs that the member names and from Kafka's GroupMetadataManager and ClassicGroup (4.x). Simplified:
there is one group, ids are counted, a record is persisted at once. The broker's own assignor deals out only partitions
that members have had. Kept, because members trip over it:

- A rebalance drops dynamic members that do not rejoin in time and keeps static ones with their old subscription.
- A parked JoinGroup or SyncGroup keeps its member alive, a new member's for at most NEW_MEMBER_JOIN_TIMEOUT_MS.
- A static member that comes back without a member id replaces the old one, without a rebalance if the group is Stable,
  and the old one is fenced.
- A RenameRequest gives another member id to a static seat. The group is of type consumer until all renamed members have
  joined. Meanwhile it answers joins at once, and afterwards any member may be its leader
  (ClassicGroup.fromConsumerGroup).
- If a member joins or leaves meanwhile, the broker's own assignor runs: members reach the new epoch one by one. A
  member that is late when the group is a classic one again is in an older generation than its assignment.
- Only a completed sync, an emptied group and a replacement in a Stable group are persisted: `fail_over` forgets the
  rest, expulsions and new member ids included.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from types import MappingProxyType

from spark_kgroup.member import contract
from spark_kgroup.member.classic import MemberConfig
from spark_kgroup.model import ErrorCode, GroupMember, MemberIdentity, Subscription, TopicPartition

NEW_MEMBER_JOIN_TIMEOUT_MS = 300_000
"""GroupCoordinatorConfig.CLASSIC_GROUP_NEW_MEMBER_JOIN_TIMEOUT_MS."""

CONSUMER_SESSION_MS = 45_000
"""GroupCoordinatorConfig.CONSUMER_GROUP_SESSION_TIMEOUT_MS: of a member that has not sent JoinGroup yet."""

Response = (
    contract.JoinResponse
    | contract.SyncResponse
    | contract.HeartbeatResponse
    | contract.RenameResponse
    | contract.LeaveResponse
)
Reply = Callable[[Response], None]


class Phase(Enum):
    """ClassicGroupState without Dead."""

    EMPTY = "Empty"
    PREPARING = "PreparingRebalance"
    COMPLETING = "CompletingRebalance"
    STABLE = "Stable"


@dataclass
class Member:
    """ClassicGroupMember.

    `epoch`, `target` and `to_revoke` count in a group of type consumer alone. For the checkers: `took_part_in` is the
    last generation that was formed with a join of this member, `missed` the last one formed without.
    """

    member_id: str
    config: MemberConfig
    protocols: tuple[tuple[str, Subscription], ...]
    expires_at_ms: int
    is_new: bool
    assignment: frozenset[TopicPartition] = frozenset()
    epoch: int = 0
    target: frozenset[TopicPartition] = frozenset()
    to_revoke: frozenset[TopicPartition] = frozenset()
    took_part_in: int = -1
    missed: int = -1
    parked_join: tuple[contract.JoinRequest, Reply] | None = None
    parked_sync: tuple[contract.SyncRequest, Reply] | None = None

    @property
    def instance_id(self) -> str | None:
        return self.config.instance_id

    def subscription(self, protocol: str) -> Subscription:
        return dict(self.protocols)[protocol]

    def saved(self) -> Member:
        """The parts of the member that a GroupMetadata record keeps."""
        return Member(
            member_id=self.member_id,
            config=self.config,
            protocols=self.protocols,
            expires_at_ms=0,
            is_new=False,
            assignment=self.assignment,
            epoch=self.epoch,
            target=self.target,
            to_revoke=self.to_revoke,
            took_part_in=self.took_part_in,
            missed=self.missed,
        )


@dataclass
class Saved:
    """A GroupMetadata record."""

    generation: int = 0
    protocol: str = ""
    leader: str = ""
    members: list[Member] = field(default_factory=list)
    renaming: frozenset[str] = frozenset()


class ModelCoordinator:
    """One group. Requests come with the instant. Replies go out through the callback, at once or when unparked.

    Attributes:
        generation: the one that was formed last.
        members: by member id, in the order in which they joined. The replacement of a static member takes its place.
        committed: the group's offsets.
        renaming: member ids that a RenameRequest brought and no JoinGroup has had yet: the group is of type consumer.
    """

    def __init__(self, *, initial_delay_ms: int = 500) -> None:
        self.generation = 0
        self.members: dict[str, Member] = {}
        self.committed: dict[TopicPartition, int] = {}
        self.phase = Phase.EMPTY
        self.protocol = ""
        self.leader = ""
        self.renaming: set[str] = set()
        self._initial_delay_ms = initial_delay_ms
        self._first_rebalance = False
        self._pending_joins: dict[str, int] = {}
        self._pending_syncs: set[str] = set()
        self._join_deadline_ms: int | None = None
        self._sync_deadline_ms: int | None = None
        self._ids = 0
        self._saved = Saved()
        self._now_ms = 0

    # ------------------------------------------------------------------------------------------- the outside

    def receive(self, request: contract.Request, config: MemberConfig, reply: Reply, now_ms: int) -> None:
        """Take one request."""
        self._now_ms = now_ms
        match request:
            case contract.JoinRequest():
                self._join(request, config, reply)
            case contract.SyncRequest():
                self._sync(request, reply)
            case contract.HeartbeatRequest():
                self._heartbeat(request, reply)
            case contract.RenameRequest():
                self._rename(request, reply)
            case contract.LeaveRequest():
                self._leave(request, reply)

    def commit(
        self, identity: MemberIdentity, now_ms: int, offsets: Mapping[TopicPartition, int] = MappingProxyType({})
    ) -> int:
        """ClassicGroup.validateOffsetCommit: commit under `identity`, and return the error code."""
        self._now_ms = now_ms
        if error := self._refusal(identity, check_generation=True):
            return error
        if identity.member_id in self.renaming:
            return ErrorCode.UNSUPPORTED_VERSION
        if self.phase is Phase.COMPLETING:
            return ErrorCode.REBALANCE_IN_PROGRESS
        self.committed.update(offsets)
        return ErrorCode.NONE

    def static(self, instance_id: str) -> Member | None:
        """The member with this instance id."""
        return next((m for m in self.members.values() if m.instance_id == instance_id), None)

    def member_id_of(self, instance_id: str | None) -> str:
        """The member id that has a static seat, as DescribeGroups shows it, or an empty string."""
        member = self.static(instance_id) if instance_id is not None else None
        return member.member_id if member is not None else ""

    def next_wakeup_at_ms(self) -> int | None:
        """The next deadline, at which `tick` is due."""
        deadlines = [member.expires_at_ms for member in self.members.values()]
        deadlines += self._pending_joins.values()
        deadlines += [d for d in (self._join_deadline_ms, self._sync_deadline_ms) if d is not None]
        return min(deadlines, default=None)

    def tick(self, now_ms: int) -> None:
        """Carry out the deadlines that are due."""
        self._now_ms = now_ms
        for member_id in [m for m, at_ms in self._pending_joins.items() if at_ms <= now_ms]:
            self._pending_joins.pop(member_id, None)
            self._complete_join_when_all_are_there()
        for member in [m for m in self.members.values() if m.expires_at_ms <= now_ms]:
            if member.expires_at_ms <= now_ms and member.member_id in self.members:
                self._expire(member)  # still due: an expiry before it may have completed the join and renewed all
        if self._join_deadline_ms is not None and self._join_deadline_ms <= now_ms:
            self._first_rebalance = False
            self._complete_join()
        if self._sync_deadline_ms is not None and self._sync_deadline_ms <= now_ms:
            self._expire_syncs()

    def remove_static(self, instance_ids: Iterable[str]) -> None:
        """Remove the members with these instance ids. The remaining members hear of it when they next ask."""
        gone = set(instance_ids)
        for member in [m for m in self.members.values() if m.instance_id in gone]:
            self._remove(member)
        self._complete_join_when_all_are_there()

    def fail_over(self, now_ms: int) -> None:
        """Another broker takes the group over: unpersisted state is lost, and every session starts again."""
        self.generation, self.protocol, self.leader = self._saved.generation, self._saved.protocol, self._saved.leader
        self.members = {}
        for member in self._saved.members:
            reloaded = member.saved()
            renaming = member.member_id in self._saved.renaming
            reloaded.expires_at_ms = now_ms + (CONSUMER_SESSION_MS if renaming else member.config.session_timeout_ms)
            self.members[member.member_id] = reloaded
        self.renaming = set(self._saved.renaming)
        self.phase = Phase.STABLE if self.members else Phase.EMPTY
        self._pending_joins.clear()
        self._pending_syncs.clear()
        self._join_deadline_ms = self._sync_deadline_ms = None
        self._first_rebalance = False

    # ----------------------------------------------------------------------------------------------- JoinGroup

    def _join(self, request: contract.JoinRequest, config: MemberConfig, reply: Reply) -> None:
        who = request.identity
        if not self._shares_protocol(request.protocols):
            reply(contract.JoinResponse(request=request, error=ErrorCode.INCONSISTENT_GROUP_PROTOCOL))
        elif not who.member_id:
            self._join_without_id(request, config, reply)
        elif who.member_id in self._pending_joins:
            self._add(who.member_id, request, config, reply)
        elif error := self._refusal(who, check_generation=False):
            reply(contract.JoinResponse(request=request, error=error, member_id=who.member_id))
        elif self.renaming:
            self._join_consumer_type(self.members[who.member_id], request, reply)
        else:
            self._join_again(self.members[who.member_id], request, reply)

    def _shares_protocol(self, protocols: tuple[tuple[str, Subscription], ...]) -> bool:
        """Whether all members and this one share one (ClassicGroup.supportsProtocols): by pairs does not do."""
        names = {name for name, _ in protocols}
        return bool(names.intersection(*({name for name, _ in member.protocols} for member in self.members.values())))

    def _join_without_id(self, request: contract.JoinRequest, config: MemberConfig, reply: Reply) -> None:
        self._ids += 1
        new_id = f"{config.instance_id or 'dynamic'}-{self._ids:03}"
        if config.instance_id is None:
            self._pending_joins[new_id] = self._now_ms + config.session_timeout_ms
            reply(contract.JoinResponse(request=request, error=ErrorCode.MEMBER_ID_REQUIRED, member_id=new_id))
        elif old := self.static(config.instance_id):
            self._replace(old, new_id, request, reply)
        else:
            self._add(new_id, request, config, reply)

    def _add(self, member_id: str, request: contract.JoinRequest, config: MemberConfig, reply: Reply) -> None:
        self._pending_joins.pop(member_id, None)
        self.members[member_id] = member = Member(
            member_id=member_id,
            config=config,
            protocols=request.protocols,
            expires_at_ms=self._now_ms + NEW_MEMBER_JOIN_TIMEOUT_MS,
            is_new=not self.renaming,
            parked_join=(request, reply) if not self.renaming else None,
        )
        if self.renaming:
            self._assign_by_broker()
            self._join_consumer_type(member, request, reply)
            return
        self.leader = self.leader or member_id
        self._rebalance_or_complete()

    def _replace(self, old: Member, new_id: str, request: contract.JoinRequest, reply: Reply) -> None:
        """ClassicGroup.replaceStaticMember, then the answer or the rebalance that the phase asks for."""
        self._answer_join(old, contract.JoinResponse(request=request, error=ErrorCode.FENCED_INSTANCE_ID))
        self._answer_sync(old, ErrorCode.FENCED_INSTANCE_ID)
        of_type_consumer = bool(self.renaming)
        new = self._put_in_place_of(old, new_id)
        if of_type_consumer:
            self._join_consumer_type(new, request, reply)
            return
        new.protocols, new.parked_join = request.protocols, (request, reply)
        self._renew(new)
        if self.phase is Phase.STABLE and self._vote() == self.protocol:
            new.took_part_in = self.generation
            self._answer_with_current(new, skip_assignment=self.leader == new_id)
            self._save()
        elif self.phase is Phase.COMPLETING or self.phase is Phase.STABLE:
            self._prepare()
        else:
            self._complete_join_when_all_are_there()

    def _put_in_place_of(self, old: Member, new_id: str) -> Member:
        new = old.saved()
        new.member_id = new_id
        # Same place in the order of members: Java's is a HashMap, so any order may be met.
        self.members = {(new_id if k == old.member_id else k): v for k, v in self.members.items()}
        self.members[new_id] = new
        self.renaming.discard(old.member_id)
        if self.leader == old.member_id:
            self.leader = new_id
        return new

    def _join_again(self, member: Member, request: contract.JoinRequest, reply: Reply) -> None:
        same = member.protocols == request.protocols
        leads = self.leader == member.member_id
        forced = self.phase is Phase.STABLE and leads
        member.parked_join = (request, reply)
        if self.phase in (Phase.COMPLETING, Phase.STABLE) and same and not forced:
            self._answer_with_current(member, skip_assignment=False)
        else:
            member.protocols = request.protocols
            self._rebalance_or_complete()

    def _answer_with_current(self, member: Member, *, skip_assignment: bool) -> None:
        assert member.parked_join is not None
        response = contract.JoinResponse(
            request=member.parked_join[0],
            error=ErrorCode.NONE,
            generation=self.generation,
            protocol=self.protocol,
            leader=self.leader,
            member_id=member.member_id,
            members=self._listed() if self.leader == member.member_id else (),
            skip_assignment=skip_assignment,
        )
        self._answer_join(member, response)

    def _listed(self) -> tuple[GroupMember, ...]:
        return tuple(
            GroupMember(member_id=m.member_id, instance_id=m.instance_id, subscription=m.subscription(self.protocol))
            for m in self.members.values()
        )

    # ------------------------------------------------------------------------------------------------ rebalance

    def _rebalance_or_complete(self) -> None:
        if self.phase is Phase.PREPARING:
            self._complete_join_when_all_are_there()
        else:
            self._prepare()

    def _prepare(self) -> None:
        """GroupMetadataManager.prepareRebalance."""
        self.renaming.clear()
        if self.phase is Phase.COMPLETING:
            for member in self.members.values():
                member.assignment = frozenset()
                self._answer_sync(member, ErrorCode.REBALANCE_IN_PROGRESS)
        self._pending_syncs.clear()
        self._sync_deadline_ms = None
        self._first_rebalance = self.phase is Phase.EMPTY
        self.phase = Phase.PREPARING
        wait_ms = self._initial_delay_ms if self._first_rebalance else self._rebalance_timeout_ms()
        self._join_deadline_ms = self._now_ms + wait_ms
        self._complete_join_when_all_are_there()

    def _rebalance_timeout_ms(self) -> int:
        return max((m.config.rebalance_timeout_ms for m in self.members.values()), default=0)

    def _complete_join_when_all_are_there(self) -> None:
        all_joined = all(m.parked_join for m in self.members.values()) and not self._pending_joins
        if self.phase is Phase.PREPARING and all_joined and not self._first_rebalance:
            self._complete_join()

    def _complete_join(self) -> None:
        """GroupMetadataManager.completeClassicGroupJoin."""
        self._join_deadline_ms = None
        for absent in [m for m in self.members.values() if not m.parked_join and m.instance_id is None]:
            self._remove(absent)
        joined = [m.member_id for m in self.members.values() if m.parked_join]
        if self.members and not joined:
            self._join_deadline_ms = self._now_ms + self._rebalance_timeout_ms()
            return
        self.generation += 1
        self._pending_syncs = set(self.members)
        if not self.members:
            self.phase, self.protocol, self.leader = Phase.EMPTY, "", ""
            self._save()
            return
        self.phase = Phase.COMPLETING
        self.protocol = self._vote()
        if self.leader not in joined:
            self.leader = joined[0]
        self._sync_deadline_ms = self._now_ms + self._rebalance_timeout_ms()
        for member in self.members.values():
            if member.parked_join:
                member.took_part_in = self.generation
                self._answer_with_current(member, skip_assignment=False)
            else:
                member.missed = self.generation
            self._renew(member)
            member.is_new = False

    def _vote(self) -> str:
        names = [[name for name, _ in member.protocols] for member in self.members.values()]
        common = set(names[0]).intersection(*names[1:])
        votes = Counter(next(name for name in own if name in common) for own in names)
        return votes.most_common(1)[0][0]

    # -------------------------------------------------------------------------------------------- of type consumer

    def _rename(self, request: contract.RenameRequest, reply: Reply) -> None:
        """GroupMetadataManager.convertToConsumerGroup, then replaceMember."""
        who = request.identity
        old = self.static(who.instance_id or "")
        if old is None or not self.generation:
            reply(contract.RenameResponse(request=request, error=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS))
            return
        if old.member_id in self.renaming:
            reply(contract.RenameResponse(request=request, error=ErrorCode.UNRELEASED_INSTANCE_ID))
            return
        if not self.renaming:
            for member in list(self.members.values()):
                if member.parked_join:
                    again = contract.JoinResponse(request=member.parked_join[0], error=ErrorCode.REBALANCE_IN_PROGRESS)
                    self._answer_join(member, again)
                self._answer_sync(member, ErrorCode.REBALANCE_IN_PROGRESS)
                member.is_new = False
                member.epoch, member.target, member.to_revoke = self.generation, member.assignment, frozenset()
            self._pending_syncs.clear()
            self._join_deadline_ms = self._sync_deadline_ms = None
            self._first_rebalance = False
            self.phase = Phase.STABLE
        new = self._put_in_place_of(old, who.member_id)
        new.expires_at_ms = self._now_ms + CONSUMER_SESSION_MS
        self.renaming.add(new.member_id)
        self._save()
        reply(contract.RenameResponse(request=request, error=ErrorCode.NONE))

    def _join_consumer_type(self, member: Member, request: contract.JoinRequest, reply: Reply) -> None:
        """GroupMetadataManager.classicGroupJoinToConsumerGroup, of a member with an unchanged subscription."""
        member.protocols = request.protocols
        self._reconcile(member, request.protocols[0][1].owned)
        self._renew(member)
        response = contract.JoinResponse(
            request=request,
            error=ErrorCode.NONE,
            generation=member.epoch,
            protocol=request.protocols[0][0],
            member_id=member.member_id,
        )
        self.renaming.discard(member.member_id)
        if not self.renaming:
            self._become_classic(next((m for m in self.members if m != member.member_id), member.member_id))
        self._save()
        reply(response)

    def _reconcile(self, member: Member, claimed: frozenset[TopicPartition]) -> None:
        """CurrentAssignmentBuilder: a partition to revoke is revoked once the member does not claim it any more.

        When none is left to revoke, the member gets the partitions of its target that no other member has.
        """
        member.to_revoke = ((member.assignment | member.to_revoke) - member.target) & claimed
        member.assignment &= member.target
        if not member.to_revoke:
            member.epoch = member.took_part_in = self.generation
            member.assignment |= member.target & self._of_nobody_but(member)

    def _of_nobody_but(self, member: Member) -> frozenset[TopicPartition]:
        had = frozenset(tp for m in self.members.values() for tp in m.assignment | m.to_revoke | m.target)
        return had.difference(*(m.assignment | m.to_revoke for m in self.members.values() if m is not member))

    def _assign_by_broker(self, freed: frozenset[TopicPartition] = frozenset()) -> None:
        """TargetAssignmentBuilder with a sticky, balanced assignor, for a new group epoch."""
        self.generation += 1
        members = list(self.members.values())
        free = sorted(freed.union(*(m.target for m in members)))
        most = -(-len(free) // max(1, len(members)))
        for member in members:
            member.target = frozenset(sorted(member.target)[:most])
        free = [tp for tp in free if not any(tp in m.target for m in members)]
        for tp in free:
            least = min(members, key=lambda m: len(m.target))
            least.target |= {tp}

    def _become_classic(self, leader: str) -> None:
        """ClassicGroup.fromConsumerGroup: all have their targets at once, in the generation of the group's epoch."""
        for member in self.members.values():
            member.assignment, member.to_revoke = member.target, frozenset()
        self.leader, self.protocol = leader, self._vote()

    # ------------------------------------------------------------------------------ SyncGroup, Heartbeat, Leave

    def _sync(self, request: contract.SyncRequest, reply: Reply) -> None:
        if error := self._refusal(request.identity, check_generation=True):
            reply(contract.SyncResponse(request=request, error=error))
            return
        member = self.members[request.identity.member_id]
        self._pending_syncs.discard(member.member_id)
        if self.phase is Phase.PREPARING:
            reply(contract.SyncResponse(request=request, error=ErrorCode.REBALANCE_IN_PROGRESS))
        elif self.phase is Phase.STABLE:
            reply(contract.SyncResponse(request=request, error=ErrorCode.NONE, assignment=member.assignment))
        else:
            member.parked_sync = (request, reply)
            if member.member_id == self.leader:
                self._settle(dict(request.assignments))

    def _settle(self, assignments: dict[str, frozenset[TopicPartition]]) -> None:
        self.phase = Phase.STABLE
        for member in self.members.values():
            member.assignment = assignments.get(member.member_id, frozenset())
        self._save()
        for member in self.members.values():
            self._answer_sync(member, ErrorCode.NONE)

    def _expire_syncs(self) -> None:
        self._sync_deadline_ms = None
        silent = [self.members[m] for m in self._pending_syncs if m in self.members]
        for member in silent:
            self._remove(member)
        if silent:
            self._prepare()

    def _heartbeat(self, request: contract.HeartbeatRequest, reply: Reply) -> None:
        error = self._refusal(request.identity, check_generation=True)
        if request.identity.member_id in self.renaming:
            error = ErrorCode.UNKNOWN_MEMBER_ID  # throwIfMemberDoesNotUseClassicProtocol
        if not error:
            member = self.members[request.identity.member_id]
            self._renew(member)
            rebalances = self.phase is Phase.PREPARING or (self.renaming and self._has_news(member))
            error = ErrorCode.REBALANCE_IN_PROGRESS if rebalances else ErrorCode.NONE
        reply(contract.HeartbeatResponse(request=request, error=error))

    def _has_news(self, member: Member) -> bool:
        """GroupMetadataManager.classicGroupHeartbeatToConsumerGroup."""
        pending = member.target - member.assignment
        waits = bool(pending) and pending <= self._of_nobody_but(member)
        return member.epoch < self.generation or bool(member.to_revoke) or waits

    def _leave(self, request: contract.LeaveRequest, reply: Reply) -> None:
        who = request.identity
        if not who.member_id and who.instance_id and (member := self.static(who.instance_id)):
            error = 0
        elif self._pending_joins.pop(who.member_id, None) is not None:
            member, error = None, 0
        else:
            error = self._refusal(who, check_generation=False)
            member = None if error else self.members[who.member_id]
        reply(contract.LeaveResponse(request=request, error=error))
        if member is not None:
            self._expel(member)
        self._complete_join_when_all_are_there()

    # ------------------------------------------------------------------------------------------------- members

    def _renew(self, member: Member) -> None:
        member.expires_at_ms = self._now_ms + member.config.session_timeout_ms

    def _expire(self, member: Member) -> None:
        if not member.is_new and (member.parked_join or member.parked_sync):
            self._renew(member)  # a parked request satisfies the heartbeat
            return
        self._expel(member)

    def _expel(self, member: Member) -> None:
        if member.parked_join:
            gone = contract.JoinResponse(request=member.parked_join[0], error=ErrorCode.UNKNOWN_MEMBER_ID)
            self._answer_join(member, gone)
        of_type_consumer = bool(self.renaming)
        self._remove(member)
        if of_type_consumer and self.members:
            self._assign_by_broker(member.target)
            if self.renaming:
                self._save()
                return
            self._become_classic(next(iter(self.members)))  # convertToClassicGroup: a member that leaves rebalances it
        if self.phase in (Phase.STABLE, Phase.COMPLETING):
            self._prepare()
        else:
            self._complete_join_when_all_are_there()

    def _refusal(self, who: MemberIdentity, *, check_generation: bool) -> int:
        """ClassicGroup.validateMember: the error code that a request of `who` meets."""
        if who.instance_id is not None:
            seat = self.static(who.instance_id)
            if seat is not None and seat.member_id != who.member_id:
                return ErrorCode.FENCED_INSTANCE_ID
        if who.member_id not in self.members:
            return ErrorCode.UNKNOWN_MEMBER_ID
        current = self.members[who.member_id].epoch if self.renaming else self.generation
        if check_generation and who.generation != current:
            return ErrorCode.ILLEGAL_GENERATION
        return ErrorCode.NONE

    def _remove(self, member: Member) -> None:
        del self.members[member.member_id]
        self.renaming.discard(member.member_id)
        self._pending_syncs.discard(member.member_id)
        if self.leader == member.member_id:
            self.leader = next(iter(self.members), "")

    def _answer_join(self, member: Member, response: contract.JoinResponse) -> None:
        if member.parked_join:
            request, reply = member.parked_join
            member.parked_join = None
            reply(replace(response, request=request))

    def _answer_sync(self, member: Member, error: int) -> None:
        if member.parked_sync:
            request, reply = member.parked_sync
            member.parked_sync = None
            self._renew(member)
            owned = frozenset() if error else member.assignment
            reply(contract.SyncResponse(request=request, error=error, assignment=owned))

    def _save(self) -> None:
        self._saved = Saved(
            generation=self.generation,
            protocol=self.protocol,
            leader=self.leader,
            members=[member.saved() for member in self.members.values()],
            renaming=frozenset(self.renaming),
        )
