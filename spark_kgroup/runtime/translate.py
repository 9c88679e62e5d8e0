"""Translates between a member machine's requests and events, and Kafka's messages. No I/O."""

from __future__ import annotations

import logging
from collections.abc import Collection
from dataclasses import replace

from spark_kgroup.errors import ProtocolViolation
from spark_kgroup.member import contract
from spark_kgroup.member.machine import Config
from spark_kgroup.model import ErrorCode, GroupMember, Subscription
from spark_kgroup.wire import messages, schema
from spark_kgroup.wire.consumer_protocol import (
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)

log = logging.getLogger(__name__)


Asked = contract.Parkable | contract.HeartbeatRequest | contract.RenameRequest
"""The requests that go over a member's own connection."""


def to_message(request: Asked, config: Config, rack: str | None = None) -> schema.Request:
    """The Kafka message for a machine's request. `rack` is the member's, as its last join named it."""
    match request:
        case contract.JoinRequest(identity=who, protocols=protocols, reason=reason):
            return messages.join_group(
                config.group,
                who,
                [(name, encode_subscription(replace(subscription, rack=rack))) for name, subscription in protocols],
                session_timeout_ms=config.session_timeout_ms,
                rebalance_timeout_ms=config.rebalance_timeout_ms,
                reason=reason,
            )
        case contract.SyncRequest(identity=who, protocol=protocol, assignments=assignments):
            encoded = [(member, encode_assignment(partitions)) for member, partitions in assignments]
            return messages.sync_group(config.group, who, protocol, encoded)
        case contract.HeartbeatRequest(identity=who):
            return messages.heartbeat(config.group, who)
        case contract.RenameRequest(identity=who):
            # The same values as in the member's joins: a difference would make the broker assign anew.
            newest, _ = messages.consumer_group_heartbeat(
                config.group,
                who,
                rack=rack,
                rebalance_timeout_ms=config.rebalance_timeout_ms,
                topics=sorted(config.topics),
                owned=(),
            )
            return newest


def to_event(request: Asked, response: schema.Response) -> contract.Event:
    """The event that a broker's response to `request` makes.

    Raises:
        ProtocolViolation: our assignment is not in the consumer protocol, or the group's members are not distinct.
    """
    match request, response:
        case contract.JoinRequest(), schema.JoinGroupResponse():
            return _join_response(request, response)
        case contract.SyncRequest(), schema.SyncGroupResponse():
            error = _error(response, {request.protocol})
            owned = frozenset() if error else decode_assignment(response.assignment)
            return contract.SyncResponse(request=request, error=error, assignment=owned)
        case contract.HeartbeatRequest(), schema.HeartbeatResponse():
            return contract.HeartbeatResponse(request=request, error=int(response.error_code))
        case contract.RenameRequest(), schema.ConsumerGroupHeartbeatResponse():
            return contract.RenameResponse(request=request, error=int(response.error_code))
    raise AssertionError(f"{type(response).__name__} does not answer {type(request).__name__}")


def _error(response: schema.JoinGroupResponse | schema.SyncGroupResponse, protocols: Collection[str]) -> int:
    """The error of an answer. An answer in a protocol that we did not ask for is one (Java: AbstractCoordinator)."""
    error = int(response.error_code)
    of_ours = response.protocol_type in (None, "consumer") and response.protocol_name in (None, *protocols)
    return error if error or of_ours else ErrorCode.INCONSISTENT_GROUP_PROTOCOL


def _join_response(request: contract.JoinRequest, response: schema.JoinGroupResponse) -> contract.JoinResponse:
    error = _error(response, [name for name, _ in request.protocols])
    if not error and response.protocol_name is None:
        raise ProtocolViolation("A JoinGroup answer names no assignor.", retriable=True)
    if len({member.member_id for member in response.members}) < len(response.members):
        raise ProtocolViolation("A JoinGroup answer names a member twice.", retriable=True)
    return contract.JoinResponse(
        request=request,
        error=error,
        generation=response.generation_id,
        protocol=response.protocol_name or "",
        leader=response.leader,
        member_id=response.member_id,
        members=tuple(
            GroupMember(
                member_id=member.member_id,
                instance_id=member.group_instance_id,
                subscription=_decode_subscription(member),
            )
            for member in response.members
        ),
        skip_assignment=response.skip_assignment,
    )


def _decode_subscription(member: schema.JoinGroupResponseMember) -> Subscription:
    """A member whose subscription cannot be decoded subscribes to no topic, and the other members get all.

    Java's leader and franz-go's end with such a member, and so would ours: the broker would elect the next one, which
    ends, too. One broken member of another application would be the end of the whole group.
    """
    try:
        return decode_subscription(member.metadata)
    except ProtocolViolation as error:
        who = member.group_instance_id or member.member_id
        log.warning("member %r of the group gets no partitions: its subscription cannot be read: %s", who, error)
        return Subscription(topics=())
