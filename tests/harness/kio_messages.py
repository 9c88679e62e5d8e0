"""Kafka's messages as kio has them, a codec of others: brokers of tests read and write with it, and never with ours.

A test whose broker is kio's judges our codec with each request and each answer.
"""

import io
from dataclasses import fields, is_dataclass
from datetime import timedelta
from typing import Any

import kio.schema.api_versions.v0 as api_versions_v0
import kio.schema.consumer_group_heartbeat.v0.request as consumer_group_heartbeat_v0
import kio.schema.consumer_group_heartbeat.v1.request as consumer_group_heartbeat_v1
import kio.schema.offset_commit.v9.request as offset_commit_v9
import kio.schema.offset_fetch.v9.request as offset_fetch_v9
from kio.schema.api_versions.v3 import ApiVersionsRequest, ApiVersionsResponse
from kio.schema.consumer_group_describe.v0 import ConsumerGroupDescribeRequest as ConsumerGroupDescribeRequestV0
from kio.schema.consumer_group_describe.v0 import ConsumerGroupDescribeResponse as ConsumerGroupDescribeResponseV0
from kio.schema.consumer_group_describe.v1 import ConsumerGroupDescribeRequest, ConsumerGroupDescribeResponse
from kio.schema.consumer_group_heartbeat.v0 import ConsumerGroupHeartbeatResponse as ConsumerGroupHeartbeatResponseV0
from kio.schema.consumer_group_heartbeat.v1 import ConsumerGroupHeartbeatResponse
from kio.schema.delete_groups.v2 import DeleteGroupsRequest, DeleteGroupsResponse
from kio.schema.describe_configs.v4 import DescribeConfigsRequest, DescribeConfigsResponse
from kio.schema.describe_groups.v5 import DescribeGroupsRequest, DescribeGroupsResponse
from kio.schema.errors import ErrorCode as KnownError
from kio.schema.find_coordinator.v4 import FindCoordinatorRequest, FindCoordinatorResponse
from kio.schema.heartbeat.v4 import HeartbeatRequest, HeartbeatResponse
from kio.schema.join_group.v9 import JoinGroupRequest, JoinGroupResponse
from kio.schema.leave_group.v5 import LeaveGroupRequest, LeaveGroupResponse
from kio.schema.list_groups.v5 import ListGroupsRequest, ListGroupsResponse
from kio.schema.list_offsets.v7 import ListOffsetsRequest, ListOffsetsResponse
from kio.schema.metadata.v12 import MetadataRequest, MetadataResponse
from kio.schema.offset_commit.v8 import OffsetCommitRequest, OffsetCommitResponse
from kio.schema.offset_commit.v9 import OffsetCommitResponse as OffsetCommitResponseV9
from kio.schema.offset_delete.v0 import OffsetDeleteRequest, OffsetDeleteResponse
from kio.schema.offset_fetch.v8 import OffsetFetchRequest, OffsetFetchResponse
from kio.schema.offset_fetch.v9 import OffsetFetchResponse as OffsetFetchResponseV9
from kio.schema.sasl_authenticate.v2 import SaslAuthenticateRequest, SaslAuthenticateResponse
from kio.schema.sasl_handshake.v1 import SaslHandshakeRequest, SaslHandshakeResponse
from kio.schema.sync_group.v5 import SyncGroupRequest, SyncGroupResponse
from kio.serial import entity_writer

from spark_kgroup.wire.codec import decode_struct
from spark_kgroup.wire.schema import API_OF

ConsumerGroupHeartbeatRequest = consumer_group_heartbeat_v1.ConsumerGroupHeartbeatRequest
ConsumerGroupHeartbeatRequestV0 = consumer_group_heartbeat_v0.ConsumerGroupHeartbeatRequest
OffsetCommitRequestV9 = offset_commit_v9.OffsetCommitRequest
OffsetFetchRequestV9 = offset_fetch_v9.OffsetFetchRequest

ApiVersionsRequestV0 = api_versions_v0.ApiVersionsRequest
ApiVersionsResponseV0 = api_versions_v0.ApiVersionsResponse

RESPONSE_OF: dict[Any, Any] = {
    ApiVersionsRequest: ApiVersionsResponse,
    api_versions_v0.ApiVersionsRequest: api_versions_v0.ApiVersionsResponse,
    MetadataRequest: MetadataResponse,
    FindCoordinatorRequest: FindCoordinatorResponse,
    JoinGroupRequest: JoinGroupResponse,
    SyncGroupRequest: SyncGroupResponse,
    HeartbeatRequest: HeartbeatResponse,
    LeaveGroupRequest: LeaveGroupResponse,
    OffsetCommitRequest: OffsetCommitResponse,
    offset_commit_v9.OffsetCommitRequest: OffsetCommitResponseV9,
    OffsetFetchRequest: OffsetFetchResponse,
    offset_fetch_v9.OffsetFetchRequest: OffsetFetchResponseV9,
    OffsetDeleteRequest: OffsetDeleteResponse,
    DeleteGroupsRequest: DeleteGroupsResponse,
    ListOffsetsRequest: ListOffsetsResponse,
    DescribeGroupsRequest: DescribeGroupsResponse,
    consumer_group_heartbeat_v1.ConsumerGroupHeartbeatRequest: ConsumerGroupHeartbeatResponse,
    consumer_group_heartbeat_v0.ConsumerGroupHeartbeatRequest: ConsumerGroupHeartbeatResponseV0,
    ConsumerGroupDescribeRequest: ConsumerGroupDescribeResponse,
    ConsumerGroupDescribeRequestV0: ConsumerGroupDescribeResponseV0,
    DescribeConfigsRequest: DescribeConfigsResponse,
    ListGroupsRequest: ListGroupsResponse,
    SaslHandshakeRequest: SaslHandshakeResponse,
    SaslAuthenticateRequest: SaslAuthenticateResponse,
}
"""Type of request -> type of its response."""


def response_of(ours: Any) -> Any:
    """kio's type of the response to a request of our type."""
    return next(response for request, response in RESPONSE_OF.items() if _api(request) == _api_of_ours(ours))


def as_ours(response: Any) -> Any:
    """One of kio's responses as our codec has it."""
    ours = next(api for api in API_OF.values() if (api.key, api.version) == _api(type(response)))
    return decode_struct(ours.response, encode_entity(response), flexible=ours.flexible)


def as_tuples(value: Any) -> Any:
    """The values of a kio entity in their order, as our classes have them: times in milliseconds, codes as numbers.

    Tagged fields are left out.
    """
    if is_dataclass(value):
        return tuple(as_tuples(getattr(value, each.name)) for each in fields(value) if "tag" not in each.metadata)
    if isinstance(value, tuple):
        return tuple(map(as_tuples, value))
    if isinstance(value, timedelta):
        return round(value / timedelta(milliseconds=1))
    return int(value) if isinstance(value, KnownError) else value


def _api(kios: Any) -> tuple[int, int]:
    return int(kios.__api_key__), int(kios.__version__)


def _api_of_ours(ours: Any) -> tuple[int, int]:
    return API_OF[ours].key, API_OF[ours].version


def encode_entity(entity: Any) -> bytes:
    """The bytes of one kio entity, without any header."""
    with io.BytesIO() as buffer:
        entity_writer(type(entity))(buffer, entity)
        return buffer.getvalue()


def error_code(number: int) -> KnownError:
    """A number as kio's error code, also one that kio does not know."""
    try:
        return KnownError(number)
    except ValueError:
        unknown = int.__new__(KnownError, number)
        unknown._name_, unknown._value_, unknown.retriable = f"error_{number}", number, False
        return unknown


__all__ = [
    "RESPONSE_OF",
    "ApiVersionsRequest",
    "ApiVersionsRequestV0",
    "ApiVersionsResponse",
    "ApiVersionsResponseV0",
    "ConsumerGroupDescribeRequest",
    "ConsumerGroupDescribeRequestV0",
    "ConsumerGroupDescribeResponse",
    "ConsumerGroupDescribeResponseV0",
    "ConsumerGroupHeartbeatRequest",
    "ConsumerGroupHeartbeatRequestV0",
    "ConsumerGroupHeartbeatResponse",
    "ConsumerGroupHeartbeatResponseV0",
    "DeleteGroupsRequest",
    "DeleteGroupsResponse",
    "DescribeConfigsRequest",
    "DescribeConfigsResponse",
    "DescribeGroupsRequest",
    "DescribeGroupsResponse",
    "FindCoordinatorRequest",
    "FindCoordinatorResponse",
    "HeartbeatRequest",
    "HeartbeatResponse",
    "JoinGroupRequest",
    "JoinGroupResponse",
    "LeaveGroupRequest",
    "LeaveGroupResponse",
    "ListGroupsRequest",
    "ListGroupsResponse",
    "ListOffsetsRequest",
    "ListOffsetsResponse",
    "MetadataRequest",
    "MetadataResponse",
    "OffsetCommitRequest",
    "OffsetCommitRequestV9",
    "OffsetCommitResponse",
    "OffsetCommitResponseV9",
    "OffsetDeleteRequest",
    "OffsetDeleteResponse",
    "OffsetFetchRequest",
    "OffsetFetchRequestV9",
    "OffsetFetchResponse",
    "OffsetFetchResponseV9",
    "SaslAuthenticateRequest",
    "SaslAuthenticateResponse",
    "SaslHandshakeRequest",
    "SaslHandshakeResponse",
    "SyncGroupRequest",
    "SyncGroupResponse",
    "as_ours",
    "as_tuples",
    "encode_entity",
    "error_code",
    "response_of",
]
