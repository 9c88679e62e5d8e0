"""A coordinator's half of the consumer protocol, as small as it can be: one group, members that subscribe all there is.

Paraphrases GroupMetadataManager.consumerGroupHeartbeat and CurrentAssignmentBuilder of Apache Kafka. An assignment is
computed when the group epoch moves, as the `uniform` assignor would: balanced, moving no more than it must.
"""

from __future__ import annotations

from dataclasses import dataclass

from spark_kgroup.member.config import ConsumerMemberConfig
from spark_kgroup.member.consumer_contract import (
    JOIN_EPOCH,
    LEAVE_EPOCH,
    RELEASE_EPOCH,
    ConsumerHeartbeatRequest,
    ConsumerHeartbeatResponse,
)
from spark_kgroup.model import ErrorCode, TopicIdPartition

Partitions = frozenset[TopicIdPartition]
NOTHING: Partitions = frozenset()
INTERVAL_MS = 3_000


@dataclass
class Member:
    """As ConsumerGroupMember: `revoking` is UNREVOKED_PARTITIONS, unless it is empty."""

    instance_id: str | None
    epoch: int
    previous_epoch: int
    session_ms: int
    rebalance_ms: int
    heard_at_ms: int
    assigned: Partitions = NOTHING
    revoking: Partitions = NOTHING
    revoking_since_ms: int = 0


class Refused(Exception):
    """An error code instead of an answer."""

    def __init__(self, code: int) -> None:
        self.code = code


class ModelConsumerGroup:
    """The group, and the partitions of its topics."""

    def __init__(self, partitions: Partitions) -> None:
        self.members: dict[str, Member] = {}
        self.epoch = 0
        self.target: dict[str, Partitions] = {}
        self.partitions = partitions

    def change_metadata(self, partitions: Partitions) -> None:
        """Topics grew, or were created anew."""
        self.partitions = partitions
        self._assign_anew()

    def member_id_of(self, instance_id: str | None) -> str:
        """The member id that has the seat, empty if no member has it."""
        return next(
            (i for i, m in self.members.items() if instance_id is not None and m.instance_id == instance_id), ""
        )

    def expire(self, now_ms: int) -> None:
        """Remove members that were silent for a session, or have had to revoke for a whole rebalance timeout."""
        late = [
            member_id
            for member_id, m in self.members.items()
            if now_ms - m.heard_at_ms >= m.session_ms or (m.revoking and now_ms - m.revoking_since_ms >= m.rebalance_ms)
        ]
        for member_id in late:
            self._remove(member_id)

    def receive(
        self, request: ConsumerHeartbeatRequest, config: ConsumerMemberConfig, now_ms: int
    ) -> ConsumerHeartbeatResponse:
        """Answer one heartbeat."""
        self.expire(now_ms)
        try:
            return self._answer(request, config, now_ms)
        except Refused as refused:
            return ConsumerHeartbeatResponse(request=request, error=refused.code)

    def _answer(
        self, request: ConsumerHeartbeatRequest, config: ConsumerMemberConfig, now_ms: int
    ) -> ConsumerHeartbeatResponse:
        who = request.identity
        if who.generation in (LEAVE_EPOCH, RELEASE_EPOCH):
            self._leave(request)
            return ConsumerHeartbeatResponse(request=request, error=ErrorCode.NONE, epoch=who.generation)
        member = self._join(request, config, now_ms) if who.generation == JOIN_EPOCH else self._known(request)
        member.heard_at_ms = now_ms
        before = member.assigned
        self._reconcile(who.member_id, request.owned, now_ms)
        says_all = request.full and request.owned is not None
        return ConsumerHeartbeatResponse(
            request=request,
            error=ErrorCode.NONE,
            epoch=member.epoch,
            interval_ms=INTERVAL_MS,
            assignment=member.assigned if says_all or member.assigned != before else None,
        )

    def _join(self, request: ConsumerHeartbeatRequest, config: ConsumerMemberConfig, now_ms: int) -> Member:
        assert request.full, "a join says everything"
        assert request.owned == NOTHING, "INVALID_REQUEST: a join may claim nothing"
        who = request.identity
        current = self.member_id_of(who.instance_id)
        member = Member(who.instance_id, 0, 0, config.session_timeout_ms, config.rebalance_timeout_ms, now_ms)
        if current:
            if self.members[current].epoch != RELEASE_EPOCH:
                raise Refused(ErrorCode.UNRELEASED_INSTANCE_ID)
            member.assigned = self.members.pop(current).assigned
            self.members[who.member_id] = member
            self.target[who.member_id] = self.target.pop(current)
            return member
        if known := self.members.get(who.member_id):
            if known.previous_epoch != JOIN_EPOCH or known.assigned:
                raise Refused(ErrorCode.FENCED_MEMBER_EPOCH)
            return known
        self.members[who.member_id] = member
        self._assign_anew()
        return member

    def _known(self, request: ConsumerHeartbeatRequest) -> Member:
        who = request.identity
        if who.instance_id is not None:
            current = self.member_id_of(who.instance_id)
            if current not in ("", who.member_id):
                raise Refused(ErrorCode.FENCED_INSTANCE_ID)
        member = self.members.get(who.member_id)
        if member is None:
            raise Refused(ErrorCode.UNKNOWN_MEMBER_ID)
        if who.generation in (LEAVE_EPOCH, RELEASE_EPOCH) or who.generation == member.epoch:
            return member
        # The answer that had the new epoch may have been lost. A released member is in an epoch below every other one.
        behind_by_one = who.generation == member.previous_epoch and who.generation < member.epoch
        if not behind_by_one or request.owned is None or not request.owned <= member.assigned:
            raise Refused(ErrorCode.FENCED_MEMBER_EPOCH)
        return member

    def _leave(self, request: ConsumerHeartbeatRequest) -> None:
        member = self._known(request)
        if request.identity.generation == LEAVE_EPOCH:
            self._remove(request.identity.member_id)
        else:
            member.epoch, member.revoking = RELEASE_EPOCH, NOTHING

    def _remove(self, member_id: str) -> None:
        del self.members[member_id]
        del self.target[member_id]
        self._assign_anew()

    # ---------------------------------------------------------------------------------------------- assignments

    def _assign_anew(self) -> None:
        """A new group epoch and its target: each member keeps partitions up to its share, then shares are filled."""
        self.epoch += 1
        names = sorted(self.members, key=lambda i: (-len(self.target.get(i, NOTHING)), i))
        left = sorted(self.partitions)
        least, more = divmod(len(left), len(names)) if names else (0, 0)
        target: dict[str, set[TopicIdPartition]] = {}
        for place, name in enumerate(names):
            quota = least + (place < more)
            target[name] = set(sorted(self.target.get(name, NOTHING) & self.partitions)[:quota])
        free = [each for each in left if not any(each in share for share in target.values())]
        for place, name in enumerate(names):
            while len(target[name]) < least + (place < more):
                target[name].add(free.pop())
        self.target = {name: frozenset(share) for name, share in target.items()}

    def _owned_by_another(self, member_id: str) -> Partitions:
        return NOTHING.union(*(m.assigned | m.revoking for i, m in self.members.items() if i != member_id))

    def _reconcile(self, member_id: str, owned: Partitions | None, now_ms: int) -> None:
        """CurrentAssignmentBuilder.build."""
        member, target = self.members[member_id], self.target[member_id]
        epoch = member.epoch
        if member.revoking:
            if owned is None or owned & member.revoking:
                return
            member.revoking, epoch = NOTHING, member.epoch + 1
        elif member.epoch == self.epoch and member.assigned == target:
            return
        kept = member.assigned & target
        pending = member.assigned - target
        if pending and (owned is None or owned & pending):
            member.revoking, member.revoking_since_ms = pending, now_ms
        else:
            kept |= target - self._owned_by_another(member_id)
            epoch = self.epoch
        member.assigned = kept
        if epoch != member.epoch:
            member.previous_epoch, member.epoch = member.epoch, epoch
