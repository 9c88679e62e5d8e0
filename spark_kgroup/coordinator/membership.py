"""SyncGroup, Heartbeat and LeaveGroup, and the end of a member's session."""

from __future__ import annotations

from collections.abc import Callable

from spark_kgroup.coordinator.classic_group import ClassicGroup
from spark_kgroup.coordinator.contract import Received, SyncTimer
from spark_kgroup.coordinator.rebalances import current_sync, refused_join, refused_sync
from spark_kgroup.coordinator.shard import Shard
from spark_kgroup.coordinator.versions import names_protocol
from spark_kgroup.model import ErrorCode
from spark_kgroup.wire.schema import (
    HeartbeatRequest,
    HeartbeatResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    LeavingMember,
    LeftMember,
    SyncGroupRequest,
)

# ------------------------------------------------------------------------------------------------- SyncGroup


def refusal_of_sync(shard: Shard, received: Received) -> ErrorCode:
    """The error of a SyncGroup that no group needs to see, NONE if there is none."""
    request = _sync(received)
    if names_protocol(received.version) and (request.protocol_type is None or request.protocol_name is None):
        return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    if not request.group_id:
        return ErrorCode.INVALID_GROUP_ID
    return ErrorCode.NONE if request.group_id in shard.groups else ErrorCode.UNKNOWN_MEMBER_ID


def sync_refused(error: ErrorCode) -> Callable[[Shard, ClassicGroup, Received], None]:
    """The handler of a state in which each SyncGroup has this answer."""

    def refuse(shard: Shard, _group: ClassicGroup, received: Received) -> None:
        shard.answer(received.token, refused_sync(error))

    return refuse


def sync_in_rebalance(shard: Shard, group: ClassicGroup, received: Received) -> None:
    """The generation that is synced ends."""
    error = _refusal_by_group(group, _sync(received)) or ErrorCode.REBALANCE_IN_PROGRESS
    shard.answer(received.token, refused_sync(error))


def sync_new_generation(shard: Shard, group: ClassicGroup, received: Received) -> None:
    """Park a follower's SyncGroup. The leader's settles the generation: all parked ones are answered."""
    request = _sync(received)
    if error := _refusal_by_group(group, request):
        shard.answer(received.token, refused_sync(error))
        return
    shard.park_sync(group.members[request.member_id], received.token)
    _has_synced(shard, group, request.member_id)
    if group.leader != request.member_id:
        return
    group.settle({each.member_id: each.assignment for each in request.assignments}, shard.now_ms)
    shard.append(group.record())
    for member in group.members.values():
        if shard.answer_sync(member, current_sync(group, member)):
            shard.renew(group, member)


def sync_at_rest(shard: Shard, group: ClassicGroup, received: Received) -> None:
    """The assignment that the leader made. A leader's SyncGroup changes it no more."""
    request = _sync(received)
    if error := _refusal_by_group(group, request):
        shard.answer(received.token, refused_sync(error))
        return
    _has_synced(shard, group, request.member_id)
    shard.answer(received.token, current_sync(group, group.members[request.member_id]))


def _has_synced(shard: Shard, group: ClassicGroup, member_id: str) -> None:
    group.pending_syncs.discard(member_id)
    if not group.pending_syncs:
        shard.timers.cancel(SyncTimer(group.name))


def _refusal_by_group(group: ClassicGroup, request: SyncGroupRequest) -> ErrorCode:
    """GroupMetadataManager.validateSyncGroup. An absent protocol type or name is no contradiction."""
    if error := group.refusal(request.member_id, request.group_instance_id):
        return error
    if request.generation_id != group.generation:
        return ErrorCode.ILLEGAL_GENERATION
    same_type = request.protocol_type in (None, group.protocol_type)
    same_name = request.protocol_name in (None, group.protocol) or group.protocol is None
    return ErrorCode.NONE if same_type and same_name else ErrorCode.INCONSISTENT_GROUP_PROTOCOL


def _sync(received: Received) -> SyncGroupRequest:
    assert isinstance(received.request, SyncGroupRequest)
    return received.request


# ------------------------------------------------------------------------------------------------- Heartbeat


def refusal_of_heartbeat(shard: Shard, request: HeartbeatRequest) -> ErrorCode:
    """The error of a Heartbeat that no group needs to see, NONE if there is none."""
    if not request.group_id:
        return ErrorCode.INVALID_GROUP_ID
    return ErrorCode.NONE if request.group_id in shard.groups else ErrorCode.UNKNOWN_MEMBER_ID


def beat(answer: ErrorCode) -> Callable[[Shard, ClassicGroup, Received], None]:
    """The handler of a state in which a member of the present generation has this answer, and its session goes on."""

    def take_beat(shard: Shard, group: ClassicGroup, received: Received) -> None:
        request = received.request
        assert isinstance(request, HeartbeatRequest)
        error = group.refusal(request.member_id, request.group_instance_id)
        if not error and request.generation_id != group.generation:
            error = ErrorCode.ILLEGAL_GENERATION
        if not error:
            shard.renew(group, group.members[request.member_id])
        shard.answer(received.token, HeartbeatResponse(0, error or answer))

    return take_beat


def beat_refused(error: ErrorCode) -> Callable[[Shard, ClassicGroup, Received], None]:
    """The handler of a state without members."""

    def refuse(shard: Shard, _group: ClassicGroup, received: Received) -> None:
        shard.answer(received.token, HeartbeatResponse(0, error))

    return refuse


# ------------------------------------------------------------------------------------------------ LeaveGroup


def refused_leave(shard: Shard, request: LeaveGroupRequest) -> LeaveGroupResponse | None:
    """The answer to a LeaveGroup that no group needs to see, None if a group has to."""
    if not request.group_id:
        return LeaveGroupResponse(0, ErrorCode.INVALID_GROUP_ID, ())
    if request.group_id in shard.groups:
        return None
    return LeaveGroupResponse(0, 0, tuple(_left(each, ErrorCode.UNKNOWN_MEMBER_ID) for each in request.members))


def leave(then: Callable[[Shard, ClassicGroup], None]) -> Callable[[Shard, ClassicGroup, Received], None]:
    """The handler of LeaveGroup, and after it `then`, if a member left (classicGroupLeaveToClassicGroup)."""

    def take_leave(shard: Shard, group: ClassicGroup, received: Received) -> None:
        request = received.request
        assert isinstance(request, LeaveGroupRequest)
        left = tuple(_left(each, _remove(shard, group, each)) for each in request.members)
        shard.answer(received.token, LeaveGroupResponse(0, ErrorCode.NONE, left))
        if any(each.error_code == ErrorCode.NONE for each in left):
            then(shard, group)

    return take_leave


def leave_unavailable(shard: Shard, _group: ClassicGroup, received: Received) -> None:
    """The group is DEAD."""
    shard.answer(received.token, LeaveGroupResponse(0, ErrorCode.COORDINATOR_NOT_AVAILABLE, ()))


def _remove(shard: Shard, group: ClassicGroup, leaving: LeavingMember) -> ErrorCode:
    """Remove one member, by its id, or by its instance id alone (KIP-345, the admin's way)."""
    member_id = leaving.member_id
    if not member_id:
        member_id = group.seats.get(leaving.group_instance_id or "", "")
        if not member_id:
            return ErrorCode.UNKNOWN_MEMBER_ID
    elif member_id not in group.pending_joins and (error := group.refusal(member_id, leaving.group_instance_id)):
        return error
    if member := group.members.get(member_id):
        shard.answer_join(member, refused_join(ErrorCode.UNKNOWN_MEMBER_ID))
    shard.expel(group, member_id)
    return ErrorCode.NONE


def _left(leaving: LeavingMember, error: ErrorCode) -> LeftMember:
    return LeftMember(leaving.member_id, leaving.group_instance_id, error)


# ----------------------------------------------------------------------------------------------- sessions, end


def session_over(
    then: Callable[[Shard, ClassicGroup], None], *, of_pending: Callable[[Shard, ClassicGroup], None]
) -> Callable[[Shard, ClassicGroup, str], None]:
    """The handler of a session's end. `of_pending` follows if the member has not joined, `then` if it had."""

    def end_session(shard: Shard, group: ClassicGroup, member_id: str) -> None:
        member = group.members.get(member_id)
        if member is not None and member.waits:
            return  # its session begins anew with the answer to its parked request
        if member is not None:
            shard.answer_join(member, refused_join(ErrorCode.UNKNOWN_MEMBER_ID))
        shard.expel(group, member_id)
        (of_pending if member is None else then)(shard, group)

    return end_session


def resign(shard: Shard, group: ClassicGroup) -> None:
    """Another broker coordinates the group from now on (GroupMetadataManager.onUnloaded)."""
    for member in group.members.values():
        shard.answer_join(member, refused_join(ErrorCode.NOT_COORDINATOR, member.member_id))
        shard.answer_sync(member, refused_sync(ErrorCode.NOT_COORDINATOR))
    group.die(shard.now_ms)
