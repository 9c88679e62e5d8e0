"""A classic group while it is of type consumer, because a seat changes its member id (decision 72): a model.

Written from Kafka's GroupMetadataManager (4.x). Simplified: the broker's own assignor deals out only partitions that
members have had. Kept, because members trip over it:

- A RenameRequest gives another member id to a static seat. Until all renamed members have joined, the group answers
  joins at once, and afterwards any member may be its leader (ClassicGroup.fromConsumerGroup).
- If a member joins or leaves meanwhile, the broker's own assignor runs: members reach the new epoch one by one. A
  member that is late when the group is a classic one again is in an older generation than its assignment.
- Every change is persisted at once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

from spark_kgroup.coordinator import GroupMetadata
from spark_kgroup.coordinator.classic_group import ClassicGroup, ClassicMember
from spark_kgroup.coordinator.records import PersistedMember
from spark_kgroup.member import contract
from spark_kgroup.member.config import MemberConfig
from spark_kgroup.model import ErrorCode, MemberIdentity, Subscription, TopicPartition
from spark_kgroup.wire.consumer_protocol import (
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from spark_kgroup.wire.schema import JoinGroupRequestProtocol

CONSUMER_SESSION_MS = 45_000
"""GroupCoordinatorConfig.CONSUMER_GROUP_SESSION_TIMEOUT_MS: of a member that has not sent JoinGroup yet."""

Partitions = frozenset[TopicPartition]
NONE: Partitions = frozenset()

Response = (
    contract.JoinResponse
    | contract.SyncResponse
    | contract.HeartbeatResponse
    | contract.RenameResponse
    | contract.LeaveResponse
)
Reply = Callable[[Response], None]


class Participation(Protocol):
    """The last generation that was formed with a join of a member, and the last one without."""

    took_part_in: int
    missed: int


@dataclass
class ConvertedMember:
    """A member that speaks the classic protocol in a group of type consumer.

    `to_revoke` are partitions of an earlier assignment that the member may still have.
    """

    member_id: str
    instance_id: str | None
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocols: tuple[tuple[str, Subscription], ...]
    expires_at_ms: int
    epoch: int
    assignment: Partitions = NONE
    target: Partitions = NONE
    to_revoke: Partitions = NONE
    took_part_in: int = -1
    missed: int = -1
    joined: bool = False

    def subscription(self, protocol: str) -> Subscription:
        return dict(self.protocols)[protocol]


class ModelConversion:
    """The group from the first RenameRequest until no renamed member is left to join.

    Attributes:
        leaves: the member that ended the conversion by leaving. It is in `members` still.
    """

    def __init__(
        self,
        group: ClassicGroup,
        participation: Callable[[ClassicMember], Participation],
        ids: Iterator[int],
        now_ms: int,
    ) -> None:
        self.generation, self.protocol, self.leader = group.generation, group.protocol or "", group.leader or ""
        self.members = {key: _converted(m, group.generation, participation(m)) for key, m in group.members.items()}
        self.renaming: set[str] = set()
        self.leaves: str | None = None
        self._ids = ids
        self._pending = set(group.pending_joins)
        self._now_ms = now_ms
        self.begin_sessions(now_ms)

    # ------------------------------------------------------------------------------------------------- requests

    def receive(self, request: contract.Request, config: MemberConfig | None, reply: Reply, now_ms: int) -> None:
        """Take one request. All are answered at once. A rename needs no `config`."""
        self._now_ms = now_ms
        match request:
            case contract.RenameRequest():
                reply(contract.RenameResponse(request=request, error=self._rename(request.identity)))
            case contract.JoinRequest():
                assert config is not None
                reply(self._join(request, config))
            case contract.SyncRequest():
                error = self._refusal(request.identity, check_epoch=True)
                share = NONE if error else self.members[request.identity.member_id].assignment
                reply(contract.SyncResponse(request=request, error=error, assignment=share))
            case contract.HeartbeatRequest():
                reply(contract.HeartbeatResponse(request=request, error=self._beat(request.identity)))
            case contract.LeaveRequest():
                reply(contract.LeaveResponse(request=request, error=self._leave(request.identity)))

    def refusal_of_commit(self, identity: MemberIdentity) -> int:
        """The error code of a commit."""
        if error := self._refusal(identity, check_epoch=True):
            return error
        return ErrorCode.UNSUPPORTED_VERSION if identity.member_id in self.renaming else ErrorCode.NONE

    def next_wakeup_at_ms(self) -> int | None:
        """When the next session is over."""
        return min((m.expires_at_ms for m in self.members.values()), default=None)

    def tick(self, now_ms: int) -> None:
        """Remove one member whose session is over. It may end the conversion."""
        self._now_ms = now_ms
        late = next((m for m in self.members.values() if m.expires_at_ms <= now_ms), None)
        if late is not None:
            self._expel(late)

    def begin_sessions(self, now_ms: int) -> None:
        """Count every session from now on."""
        self._now_ms = now_ms
        for member in self.members.values():
            self._renew(member)

    # ------------------------------------------------------------------------------------- back to a classic group

    def record(self, now_ms: int) -> GroupMetadata:
        """ClassicGroup.fromConsumerGroup: all have their targets at once, in the generation of the group's epoch."""
        protocol = self._vote()
        members = tuple(
            PersistedMember(
                member_id=m.member_id,
                instance_id=m.instance_id,
                client_id="dynamic",
                client_host="/simulated",
                rebalance_timeout_ms=m.rebalance_timeout_ms,
                session_timeout_ms=m.session_timeout_ms,
                metadata=encode_subscription(m.subscription(protocol)),
                assignment=encode_assignment(m.target),
            )
            for m in self.members.values()
        )
        return GroupMetadata(
            group="g",
            protocol_type="consumer",
            generation=self.generation,
            protocol=protocol,
            leader=self.leader,
            since_ms=now_ms,
            members=members,
        )

    def _vote(self) -> str:
        named = [[name for name, _ in member.protocols] for member in self.members.values()]
        common = set(named[0]).intersection(*named)
        votes = Counter(next(name for name in own if name in common) for own in named)
        return votes.most_common(1)[0][0]

    def protocols_of(self, member_id: str) -> tuple[JoinGroupRequestProtocol, ...]:
        """All that a member's last JoinGroup had."""
        named = self.members[member_id].protocols
        return tuple(JoinGroupRequestProtocol(name, encode_subscription(each)) for name, each in named)

    # ---------------------------------------------------------------------------------------------------- steps

    def _rename(self, who: MemberIdentity) -> int:
        """GroupMetadataManager.replaceMember."""
        old = next((m for m in self.members.values() if m.instance_id == who.instance_id), None)
        if old is None:
            return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        if old.member_id in self.renaming:
            return ErrorCode.UNRELEASED_INSTANCE_ID
        self._put_in_place_of(old, who.member_id)
        old.expires_at_ms = self._now_ms + CONSUMER_SESSION_MS
        self.renaming.add(who.member_id)
        return ErrorCode.NONE

    def _put_in_place_of(self, old: ConvertedMember, new_id: str) -> None:
        self.renaming.discard(old.member_id)
        if self.leader == old.member_id:
            self.leader = new_id
        old.member_id = new_id
        self.members = {m.member_id: m for m in self.members.values()}

    def _join(self, request: contract.JoinRequest, config: MemberConfig) -> contract.JoinResponse:
        """GroupMetadataManager.classicGroupJoinToConsumerGroup."""
        who = request.identity
        member_id = who.member_id or f"{config.instance_id or 'dynamic'}-{next(self._ids):03}"
        old = next(
            (m for m in self.members.values() if m.instance_id is not None and m.instance_id == who.instance_id), None
        )
        if not who.member_id and who.instance_id is None:
            self._pending.add(member_id)
            return contract.JoinResponse(request=request, error=ErrorCode.MEMBER_ID_REQUIRED, member_id=member_id)
        if not who.member_id and old is not None:
            self._put_in_place_of(old, member_id)
        elif not who.member_id or member_id in self._pending:
            self._add(member_id, request, config)
        elif error := self._refusal(who, check_epoch=False):
            return contract.JoinResponse(request=request, error=error, member_id=member_id)
        return self._joined(self.members[member_id], request)

    def _add(self, member_id: str, request: contract.JoinRequest, config: MemberConfig) -> None:
        self._pending.discard(member_id)
        self.members[member_id] = ConvertedMember(
            member_id=member_id,
            instance_id=config.instance_id,
            session_timeout_ms=config.session_timeout_ms,
            rebalance_timeout_ms=config.rebalance_timeout_ms,
            protocols=request.protocols,
            expires_at_ms=0,
            epoch=0,
        )
        self._assign_by_broker()

    def _joined(self, member: ConvertedMember, request: contract.JoinRequest) -> contract.JoinResponse:
        member.protocols = request.protocols
        self._reconcile(member, request.protocols[0][1].owned)
        self.renaming.discard(member.member_id)
        self._renew(member)
        if not self.renaming:
            self.leader = next((m for m in self.members if m != member.member_id), member.member_id)
        return contract.JoinResponse(
            request=request,
            error=ErrorCode.NONE,
            generation=member.epoch,
            protocol=request.protocols[0][0],
            member_id=member.member_id,
        )

    def _beat(self, who: MemberIdentity) -> int:
        error = self._refusal(who, check_epoch=True)
        if who.member_id in self.renaming:
            return ErrorCode.UNKNOWN_MEMBER_ID  # throwIfMemberDoesNotUseClassicProtocol
        if error:
            return error
        member = self.members[who.member_id]
        self._renew(member)
        return ErrorCode.REBALANCE_IN_PROGRESS if self._has_news(member) else ErrorCode.NONE

    def _has_news(self, member: ConvertedMember) -> bool:
        """GroupMetadataManager.classicGroupHeartbeatToConsumerGroup."""
        pending = member.target - member.assignment
        waits = bool(pending) and pending <= self._of_nobody_but(member)
        return member.epoch < self.generation or bool(member.to_revoke) or waits

    def _leave(self, who: MemberIdentity) -> int:
        if not who.member_id and who.instance_id:
            member = next((m for m in self.members.values() if m.instance_id == who.instance_id), None)
            if member is None:
                return ErrorCode.UNKNOWN_MEMBER_ID
        elif who.member_id in self._pending:
            self._pending.discard(who.member_id)
            return ErrorCode.NONE
        elif error := self._refusal(who, check_epoch=False):
            return error
        else:
            member = self.members[who.member_id]
        self._expel(member)
        return ErrorCode.NONE

    def _expel(self, member: ConvertedMember) -> None:
        """A member leaves. If none is left to be renamed after that, the classic group rebalances without it."""
        self.renaming.discard(member.member_id)
        free, member.target = member.target, NONE
        if not self.renaming:
            self.leaves = member.member_id
        else:
            del self.members[member.member_id]
        self._assign_by_broker(free, without=member)
        if self.leader == member.member_id:
            self.leader = next((m for m in self.members if m != member.member_id), member.member_id)

    def _refusal(self, who: MemberIdentity, *, check_epoch: bool) -> int:
        seats = {m.instance_id: m.member_id for m in self.members.values() if m.instance_id is not None}
        if who.instance_id is not None and seats.get(who.instance_id, who.member_id) != who.member_id:
            return ErrorCode.FENCED_INSTANCE_ID
        if who.member_id not in self.members:
            return ErrorCode.UNKNOWN_MEMBER_ID
        late = check_epoch and who.generation != self.members[who.member_id].epoch
        return ErrorCode.ILLEGAL_GENERATION if late else ErrorCode.NONE

    def _renew(self, member: ConvertedMember) -> None:
        renamed = member.member_id in self.renaming
        member.expires_at_ms = self._now_ms + (CONSUMER_SESSION_MS if renamed else member.session_timeout_ms)

    # ---------------------------------------------------------------------------------------------- assignments

    def _reconcile(self, member: ConvertedMember, claimed: Partitions) -> None:
        """CurrentAssignmentBuilder: a partition to revoke is revoked once the member does not claim it any more.

        When none is left to revoke, the member gets the partitions of its target that no other member has.
        """
        member.to_revoke = ((member.assignment | member.to_revoke) - member.target) & claimed
        member.assignment &= member.target
        if not member.to_revoke:
            member.epoch = member.took_part_in = self.generation
            member.assignment |= member.target & self._of_nobody_but(member)

    def _of_nobody_but(self, member: ConvertedMember) -> Partitions:
        had = frozenset(tp for m in self.members.values() for tp in m.assignment | m.to_revoke | m.target)
        return had.difference(*(m.assignment | m.to_revoke for m in self.members.values() if m is not member))

    def _assign_by_broker(self, freed: Partitions = NONE, *, without: ConvertedMember | None = None) -> None:
        """TargetAssignmentBuilder with a sticky, balanced assignor, for a new group epoch."""
        self.generation += 1
        members = [m for m in self.members.values() if m is not without]
        free = sorted(freed.union(*(m.target for m in members)))
        most = -(-len(free) // max(1, len(members)))
        for member in members:
            member.target = frozenset(sorted(member.target)[:most])
        free = [tp for tp in free if not any(tp in m.target for m in members)]
        for tp in free if members else ():
            least = min(members, key=lambda m: len(m.target))
            least.target |= {tp}


def _converted(member: ClassicMember, epoch: int, participation: Participation) -> ConvertedMember:
    share = decode_assignment(member.assignment)
    return ConvertedMember(
        member_id=member.member_id,
        instance_id=member.instance_id,
        session_timeout_ms=member.session_timeout_ms,
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        protocols=tuple((each.name, decode_subscription(each.metadata)) for each in member.protocols),
        expires_at_ms=0,
        epoch=epoch,
        assignment=share,
        target=share,
        took_part_in=participation.took_part_in,
        missed=participation.missed,
    )
