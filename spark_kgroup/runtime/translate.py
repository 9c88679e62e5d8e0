"""Between a member machine's requests and events, and Kafka's messages. No I/O."""

from __future__ import annotations

from datetime import timedelta

from spark_kgroup.member import effects as fx
from spark_kgroup.member.classic import MemberConfig
from spark_kgroup.model import GroupMember
from spark_kgroup.wire import messages
from spark_kgroup.wire.consumer_protocol import (
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)

PROTOCOL_TYPE = "consumer"
"""The kind of group that consumers form (ConsumerProtocol.PROTOCOL_TYPE)."""


def to_message(request: fx.Request, config: MemberConfig) -> messages.Request:
    """The Kafka message for what a machine wants sent."""
    match request:
        case fx.JoinRequest():
            return _join(request, config)
        case fx.SyncRequest():
            return _sync(request, config)
        case fx.HeartbeatRequest(identity=who):
            return messages.HeartbeatRequest(
                group_id=config.group,
                generation_id=who.generation,
                member_id=who.member_id,
                group_instance_id=who.instance_id,
            )
        case fx.LeaveRequest(identity=who, reason=reason):
            member = messages.MemberIdentity(member_id=who.member_id, group_instance_id=who.instance_id, reason=reason)
            return messages.LeaveGroupRequest(group_id=config.group, members=(member,))


def _join(request: fx.JoinRequest, config: MemberConfig) -> messages.JoinGroupRequest:
    return messages.JoinGroupRequest(
        group_id=config.group,
        session_timeout=timedelta(milliseconds=config.session_timeout_ms),
        rebalance_timeout=timedelta(milliseconds=config.rebalance_timeout_ms),
        member_id=request.identity.member_id,
        group_instance_id=request.identity.instance_id,
        protocol_type=PROTOCOL_TYPE,
        protocols=tuple(
            messages.JoinGroupRequestProtocol(name=name, metadata=encode_subscription(subscription))
            for name, subscription in request.protocols
        ),
        reason=request.reason,
    )


def _sync(request: fx.SyncRequest, config: MemberConfig) -> messages.SyncGroupRequest:
    return messages.SyncGroupRequest(
        group_id=config.group,
        generation_id=request.identity.generation,
        member_id=request.identity.member_id,
        group_instance_id=request.identity.instance_id,
        protocol_type=PROTOCOL_TYPE,
        protocol_name=request.protocol,
        assignments=tuple(
            messages.SyncGroupRequestAssignment(member_id=member, assignment=encode_assignment(partitions))
            for member, partitions in request.assignments
        ),
    )


def to_event(request: fx.Request, response: messages.Response) -> fx.Event:
    """The event that a broker's response to `request` makes.

    Raises:
        ProtocolViolation: a member's subscription or assignment is not in the consumer protocol.
    """
    match request, response:
        case fx.JoinRequest(), messages.JoinGroupResponse():
            return _joined(request, response)
        case fx.SyncRequest(), messages.SyncGroupResponse():
            # An empty assignment may come without any bytes (ConsumerCoordinator deserializes only what is there).
            owned = decode_assignment(response.assignment) if response.assignment else frozenset()
            return fx.SyncResponse(request=request, error=int(response.error_code), assignment=owned)
        case fx.HeartbeatRequest(), messages.HeartbeatResponse():
            return fx.HeartbeatResponse(request=request, error=int(response.error_code))
        case fx.LeaveRequest(), messages.LeaveGroupResponse():
            own = (int(member.error_code) for member in response.members)
            return fx.LeaveResponse(request=request, error=int(response.error_code) or next(own, 0))
    raise AssertionError(f"{type(response).__name__} does not answer {type(request).__name__}")


def _joined(request: fx.JoinRequest, response: messages.JoinGroupResponse) -> fx.JoinResponse:
    return fx.JoinResponse(
        request=request,
        error=int(response.error_code),
        generation=response.generation_id,
        protocol=response.protocol_name or "",
        leader=response.leader,
        member_id=response.member_id,
        members=tuple(
            GroupMember(
                member_id=member.member_id,
                instance_id=member.group_instance_id,
                subscription=decode_subscription(member.metadata),
            )
            for member in response.members
        ),
        skip_assignment=response.skip_assignment,
    )
