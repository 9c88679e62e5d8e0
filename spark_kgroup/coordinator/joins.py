"""JoinGroup: which of the cases it is, and the steps of each."""

from __future__ import annotations

from spark_kgroup.coordinator.classic_group import ClassicGroup, ClassicMember
from spark_kgroup.coordinator.config import NEW_MEMBER_JOIN_TIMEOUT_MS
from spark_kgroup.coordinator.contract import Received, SessionTimer
from spark_kgroup.coordinator.rebalances import (
    complete_if_all_joined,
    current_join,
    prepare,
    rebalance,
    refused_join,
    refused_sync,
)
from spark_kgroup.coordinator.shard import Shard
from spark_kgroup.coordinator.versions import requires_known_member_id, skips_assignment
from spark_kgroup.model import ErrorCode
from spark_kgroup.wire.schema import JoinGroupRequest

# ---------------------------------------------------------------------------------------------- before the group


def refusal_of_join(shard: Shard, request: JoinGroupRequest) -> ErrorCode:
    """The error of a JoinGroup that needs no group (GroupCoordinatorService.joinGroup), NONE if there is none."""
    config = shard.config
    if not request.group_id:
        return ErrorCode.INVALID_GROUP_ID
    if not config.group_min_session_timeout_ms <= request.session_timeout_ms <= config.group_max_session_timeout_ms:
        return ErrorCode.INVALID_SESSION_TIMEOUT
    if request.member_id and request.group_id not in shard.groups:
        return ErrorCode.UNKNOWN_MEMBER_ID
    return ErrorCode.NONE


def refused_by_group(shard: Shard, group: ClassicGroup, received: Received) -> bool:
    """Whether a JoinGroup is refused in any state but DEAD, and answered so.

    A member that finds no room is removed: that is how a group that is too large loses members.
    """
    request = _join(received)
    pending = request.member_id in group.pending_joins
    if not group.accepts(request.member_id, shard.config.group_max_size):
        shard.expel(group, request.member_id)
        answer = refused_join(ErrorCode.GROUP_MAX_SIZE_REACHED)
    elif not group.shares_protocol(request.protocol_type, request.protocols):
        answer = refused_join(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, request.member_id)
    elif pending and request.group_instance_id is not None:
        # A client may not become static on its way. Kafka throws an IllegalStateException.
        answer = refused_join(ErrorCode.UNKNOWN_SERVER_ERROR)
    elif request.member_id and not pending and (error := group.refusal(request.member_id, request.group_instance_id)):
        answer = refused_join(error, request.member_id)
    else:
        return False
    shard.answer(received.token, answer)
    return True


# ------------------------------------------------------------------------------------------------ new members


def give_id_or_add(shard: Shard, group: ClassicGroup, received: Received) -> None:
    """A dynamic member without an id is given one, and joins again with it (KIP-394). An old client joins at once."""
    request = _join(received)
    member_id = f"{received.client_id}-{shard.new_id()}"
    if not requires_known_member_id(received.version):
        _add(shard, group, received, member_id)
        return
    group.pending_joins.add(member_id)
    shard.set(SessionTimer(group.name, member_id), request.session_timeout_ms)
    shard.answer(received.token, refused_join(ErrorCode.MEMBER_ID_REQUIRED, member_id))


def add_static(shard: Shard, group: ClassicGroup, received: Received) -> None:
    """A static member that the group does not know."""
    _add(shard, group, received, f"{_join(received).group_instance_id}-{shard.new_id()}")


def add_pending(shard: Shard, group: ClassicGroup, received: Received) -> None:
    """A dynamic member joins with the id that it was given."""
    _add(shard, group, received, _join(received).member_id)


def _add(shard: Shard, group: ClassicGroup, received: Received, member_id: str) -> None:
    """The member takes part in the next generation (addMemberThenRebalanceOrCompleteJoin)."""
    request = _join(received)
    member = ClassicMember(
        member_id=member_id,
        instance_id=request.group_instance_id,
        client_id=received.client_id,
        client_host=received.client_host,
        rebalance_timeout_ms=request.rebalance_timeout_ms,
        session_timeout_ms=request.session_timeout_ms,
        protocols=request.protocols,
        is_new=True,
        parked_join=received.token,
    )
    group.member_added |= group.rebalances_first
    group.add(member, request.protocol_type)
    shard.set(SessionTimer(group.name, member_id), NEW_MEMBER_JOIN_TIMEOUT_MS)
    rebalance(shard, group)


# --------------------------------------------------------------------------------------------- static members


def replace_at_rest(shard: Shard, group: ClassicGroup, received: Received) -> None:
    """A static member is back without its id, and the group is STABLE: no rebalance, if the protocol stays.

    The leader is told all members, and keeps the assignment (KIP-814). A client that cannot be told so gets the old
    leader's member id for the leader's, and takes itself for a follower.
    """
    leader_before = group.leader
    new = _replace(shard, group, received)
    if group.vote() != group.protocol:
        rebalance(shard, group)
        return
    shard.append(group.record())
    if skips_assignment(received.version):
        answer = current_join(group, new, to_leader=True, skip=group.leader == new.member_id)
    else:
        answer = current_join(group, new, to_leader=False)._replace(leader=leader_before or "")
    shard.answer_join(new, answer)


def replace_and_prepare(shard: Shard, group: ClassicGroup, received: Received) -> None:
    """The leader may assign to the old id already, so that the new one would be left out."""
    _replace(shard, group, received)
    prepare(shard, group)


def replace_and_wait(shard: Shard, group: ClassicGroup, received: Received) -> None:
    """A static member is back without its id while the group rebalances anyway."""
    _replace(shard, group, received)
    complete_if_all_joined(shard, group)


def _replace(shard: Shard, group: ClassicGroup, received: Received) -> ClassicMember:
    """Give the seat to a new member id, and fence the old one (updateStaticMemberThenRebalanceOrCompleteJoin)."""
    request = _join(received)
    assert request.group_instance_id is not None
    old = group.members[group.seats[request.group_instance_id]]
    shard.answer_join(old, refused_join(ErrorCode.FENCED_INSTANCE_ID, old.member_id))
    shard.answer_sync(old, refused_sync(ErrorCode.FENCED_INSTANCE_ID))
    new = group.replace(old, f"{request.group_instance_id}-{shard.new_id()}")
    shard.timers.cancel(SessionTimer(group.name, old.member_id))
    shard.renew(group, new)  # for the old member's session timeout: Kafka takes the new one's from the next beat on
    new.take_over(request)
    new.parked_join = received.token
    return new


# ---------------------------------------------------------------------------------------------- known members


def rejoin(shard: Shard, group: ClassicGroup, received: Received) -> None:
    """A member joins again, and the group waits for the others."""
    request = _join(received)
    member = group.members[request.member_id]
    member.take_over(request)
    shard.park_join(member, received.token)
    rebalance(shard, group)


def rejoin_new_generation(shard: Shard, group: ClassicGroup, received: Received) -> None:
    """A member that has not changed may have missed the answer to its last JoinGroup: it is given again."""
    request = _join(received)
    member = group.members[request.member_id]
    if member.protocols == request.protocols:
        shard.answer(received.token, current_join(group, member, to_leader=True))
    else:
        rejoin(shard, group, received)


def rejoin_at_rest(shard: Shard, group: ClassicGroup, received: Received) -> None:
    """A leader that joins wants a rebalance, since topics may have changed. An unchanged follower does not."""
    request = _join(received)
    member = group.members[request.member_id]
    if member.protocols == request.protocols and group.leader != member.member_id:
        shard.answer(received.token, current_join(group, member, to_leader=False))
    else:
        rejoin(shard, group, received)


def join_unavailable(shard: Shard, _group: ClassicGroup, received: Received) -> None:
    """The group is DEAD."""
    answer = refused_join(ErrorCode.COORDINATOR_NOT_AVAILABLE, _join(received).member_id)
    shard.answer(received.token, answer)


def _join(received: Received) -> JoinGroupRequest:
    assert isinstance(received.request, JoinGroupRequest)
    return received.request
