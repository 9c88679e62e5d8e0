"""The steps of a rebalance: from the first reason for it to the answers of all parked JoinGroups."""

from __future__ import annotations

from spark_kgroup.coordinator.classic_group import ClassicGroup, ClassicMember
from spark_kgroup.coordinator.contract import JoinTimer, SyncTimer
from spark_kgroup.coordinator.shard import Shard
from spark_kgroup.coordinator.state import State
from spark_kgroup.model import NO_GENERATION, UNKNOWN_MEMBER_ID, ErrorCode
from spark_kgroup.wire.schema import JoinGroupResponse, SyncGroupResponse


def refused_join(error: ErrorCode, member_id: str = UNKNOWN_MEMBER_ID) -> JoinGroupResponse:
    """A JoinGroup answer that has only an error, and sometimes a member id."""
    return JoinGroupResponse(0, error, NO_GENERATION, None, None, "", False, member_id, ())


def refused_sync(error: ErrorCode) -> SyncGroupResponse:
    """A SyncGroup answer that has only an error."""
    return SyncGroupResponse(0, error, None, None, b"")


def current_join(
    group: ClassicGroup, member: ClassicMember, *, to_leader: bool, skip: bool = False
) -> JoinGroupResponse:
    """The present generation, for a member of it. The leader is told all members if `to_leader`."""
    leads = group.leader == member.member_id
    return JoinGroupResponse(
        throttle_time_ms=0,
        error_code=ErrorCode.NONE,
        generation_id=group.generation,
        protocol_type=group.protocol_type,
        protocol_name=group.protocol,
        leader=group.leader or "",
        skip_assignment=skip,
        member_id=member.member_id,
        members=group.listed() if leads and to_leader else (),
    )


def current_sync(group: ClassicGroup, member: ClassicMember) -> SyncGroupResponse:
    """A member's assignment in the present generation."""
    return SyncGroupResponse(0, ErrorCode.NONE, group.protocol_type, group.protocol, member.assignment)


def rebalance(shard: Shard, group: ClassicGroup) -> None:
    """The group has a reason to rebalance: begin, or look whether the one that goes on is complete."""
    if group.state is State.PREPARING_REBALANCE:
        complete_if_all_joined(shard, group)
    else:
        prepare(shard, group)


def prepare(shard: Shard, group: ClassicGroup) -> None:
    """Have all members join again (GroupMetadataManager.prepareRebalance)."""
    if group.state is State.COMPLETING_REBALANCE:
        for member in group.members.values():
            member.assignment = b""
            if shard.answer_sync(member, refused_sync(ErrorCode.REBALANCE_IN_PROGRESS)):
                shard.renew(group, member)
    group.pending_syncs.clear()
    shard.timers.cancel(SyncTimer(group.name))
    group.become(State.PREPARING_REBALANCE, shard.now_ms)
    if group.rebalances_first:
        group.initial_wait_ms = shard.config.group_initial_rebalance_delay_ms
        group.initial_left_ms = max(group.rebalance_timeout_ms - group.initial_wait_ms, 0)
        shard.set(JoinTimer(group.name), group.initial_wait_ms)
    elif group.all_have_joined:
        complete(shard, group)
    else:
        shard.set(JoinTimer(group.name), group.rebalance_timeout_ms)


def complete_if_all_joined(shard: Shard, group: ClassicGroup) -> None:
    """End the wait for members, unless one is missing or the initial delay is not over (maybeCompleteJoinPhase)."""
    if not group.rebalances_first and group.all_have_joined:
        complete(shard, group)


def join_time_over(shard: Shard, group: ClassicGroup) -> None:
    """The rebalance timeout is over, or a part of the initial delay (tryCompleteInitialRebalanceElseSchedule).

    KIP-134: each part in which a member was added is followed by another one, up to the rebalance timeout.
    """
    if not (group.rebalances_first and group.member_added and group.initial_left_ms):
        complete(shard, group)
        return
    group.member_added = False
    wait_ms = min(shard.config.group_initial_rebalance_delay_ms, group.initial_left_ms)
    group.initial_left_ms = max(group.initial_left_ms - group.initial_wait_ms, 0)
    group.initial_wait_ms = wait_ms
    shard.set(JoinTimer(group.name), wait_ms)


def complete(shard: Shard, group: ClassicGroup) -> None:
    """Begin a generation without the dynamic members that have not joined (completeClassicGroupJoin).

    A static member that has not joined stays in the group until its session is over (KIP-345). If no member has joined,
    the group goes on waiting.
    """
    shard.timers.cancel(JoinTimer(group.name))
    for absent in [m for m in group.members.values() if m.parked_join is None and m.instance_id is None]:
        shard.expel(group, absent.member_id)
    if not group.elect_joined_leader() and group.members:
        shard.set(JoinTimer(group.name), group.rebalance_timeout_ms)
        return
    group.begin_generation(shard.now_ms)
    if group.state is State.EMPTY:
        shard.append(group.record())
        return
    for member in group.members.values():
        shard.answer_join(member, current_join(group, member, to_leader=True))
        shard.renew(group, member)
        member.is_new = False
    shard.set(SyncTimer(group.name), group.rebalance_timeout_ms)


def sync_time_over(shard: Shard, group: ClassicGroup) -> None:
    """Members that have sent no SyncGroup are removed, and the others rebalance (expirePendingSync)."""
    for member_id in list(group.pending_syncs):
        shard.expel(group, member_id)
    prepare(shard, group)


def after_removal(shard: Shard, group: ClassicGroup) -> None:
    """A member's session is over. A rebalance that waited for it alone is complete, also in its initial delay.

    Kafka's removeMemberAndUpdateClassicGroup and removePendingMemberAndUpdateClassicGroup look at the members only.
    """
    if group.state is State.PREPARING_REBALANCE and group.all_have_joined:
        complete(shard, group)
