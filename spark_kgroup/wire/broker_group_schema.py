"""The messages of groups that the embedded broker reads and answers, each in all versions that it serves.

As `broker_schema`. The coordinator takes the classes of `schema`, which have the newest version of each message.
"""

# Not `from __future__ import annotations`: the codec looks at the types themselves.

from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Final, NamedTuple

from spark_kgroup.wire.broker_schema import NO_AUTHORIZED_OPERATIONS, Layout
from spark_kgroup.wire.schema import (
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    Int16,
    Int32,
    Int64,
    JoinGroupRequestProtocol,
    OffsetCommitResponseTopic,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetFetchRequestTopics,
    On,
    SyncGroupRequestAssignment,
)

# ------------------------------------------------------------------- JoinGroup, SyncGroup, Heartbeat, LeaveGroup


class JoinGroupRequest(NamedTuple):
    group_id: str
    session_timeout_ms: Int32
    rebalance_timeout_ms: Int32
    member_id: str
    group_instance_id: Annotated[str | None, On(5)]
    protocol_type: str
    protocols: tuple[JoinGroupRequestProtocol, ...]
    reason: Annotated[str | None, On(8)]


class JoinGroupResponseMember(NamedTuple):
    member_id: str
    group_instance_id: Annotated[str | None, On(5)]
    metadata: bytes


class JoinGroupResponse(NamedTuple):
    throttle_time_ms: Int32
    error_code: Int16
    generation_id: Int32
    protocol_type: Annotated[str | None, On(7)]
    protocol_name: str | None
    leader: str
    skip_assignment: Annotated[bool, On(9, default=False)]
    member_id: str
    members: tuple[JoinGroupResponseMember, ...]


class SyncGroupRequest(NamedTuple):
    group_id: str
    generation_id: Int32
    member_id: str
    group_instance_id: Annotated[str | None, On(3)]
    protocol_type: Annotated[str | None, On(5)]
    protocol_name: Annotated[str | None, On(5)]
    assignments: tuple[SyncGroupRequestAssignment, ...]


class SyncGroupResponse(NamedTuple):
    throttle_time_ms: Annotated[Int32, On(1, default=0)]
    error_code: Int16
    protocol_type: Annotated[str | None, On(5)]
    protocol_name: Annotated[str | None, On(5)]
    assignment: bytes


class HeartbeatRequest(NamedTuple):
    group_id: str
    generation_id: Int32
    member_id: str
    group_instance_id: Annotated[str | None, On(3)]


class HeartbeatResponse(NamedTuple):
    throttle_time_ms: Annotated[Int32, On(1, default=0)]
    error_code: Int16


class LeavingMember(NamedTuple):
    member_id: str
    group_instance_id: str | None
    reason: Annotated[str | None, On(5)]


class LeaveGroupRequest(NamedTuple):
    group_id: str
    member_id: Annotated[str, On(until=2, default="")]
    members: Annotated[tuple[LeavingMember, ...], On(3, default=())]


class LeftMember(NamedTuple):
    member_id: str
    group_instance_id: str | None
    error_code: Int16


class LeaveGroupResponse(NamedTuple):
    throttle_time_ms: Annotated[Int32, On(1, default=0)]
    error_code: Int16
    members: Annotated[tuple[LeftMember, ...], On(3, default=())]


# ----------------------------------------------------------------------------------- OffsetCommit, OffsetFetch


class OffsetCommitRequestPartition(NamedTuple):
    partition_index: Int32
    committed_offset: Int64
    committed_leader_epoch: Annotated[Int32, On(6, default=-1)]
    committed_metadata: str | None


class OffsetCommitRequestTopic(NamedTuple):
    name: str
    partitions: tuple[OffsetCommitRequestPartition, ...]


class OffsetCommitRequest(NamedTuple):
    group_id: str
    generation_id_or_member_epoch: Int32
    member_id: str
    group_instance_id: Annotated[str | None, On(7)]
    retention_time_ms: Annotated[Int64, On(2, 4, default=-1)]
    topics: tuple[OffsetCommitRequestTopic, ...]


class OffsetCommitResponse(NamedTuple):
    throttle_time_ms: Annotated[Int32, On(3, default=0)]
    topics: tuple[OffsetCommitResponseTopic, ...]


class OffsetFetchRequestGroup(NamedTuple):
    group_id: str
    member_id: Annotated[str | None, On(9)]
    member_epoch: Annotated[Int32, On(9, default=-1)]
    topics: tuple[OffsetFetchRequestTopics, ...] | None


class OffsetFetchRequest(NamedTuple):
    group_id: Annotated[str, On(until=7, default="")]
    topics: Annotated[tuple[OffsetFetchRequestTopics, ...] | None, On(until=7)]
    groups: Annotated[tuple[OffsetFetchRequestGroup, ...], On(8, default=())]
    require_stable: Annotated[bool, On(7, default=False)]


class OffsetFetchResponsePartitions(NamedTuple):
    partition_index: Int32
    committed_offset: Int64
    committed_leader_epoch: Annotated[Int32, On(5, default=-1)]
    metadata: str | None
    error_code: Int16


class OffsetFetchResponseTopics(NamedTuple):
    name: str
    partitions: tuple[OffsetFetchResponsePartitions, ...]


class OffsetFetchResponseGroup(NamedTuple):
    group_id: str
    topics: tuple[OffsetFetchResponseTopics, ...]
    error_code: Int16


class OffsetFetchResponse(NamedTuple):
    throttle_time_ms: Annotated[Int32, On(3, default=0)]
    topics: Annotated[tuple[OffsetFetchResponseTopics, ...], On(until=7, default=())]
    error_code: Annotated[Int16, On(2, 7, default=0)]
    groups: Annotated[tuple[OffsetFetchResponseGroup, ...], On(8, default=())]


# ------------------------------------------------------------------------------------ DescribeGroups, ListGroups


class DescribeGroupsRequest(NamedTuple):
    groups: tuple[str, ...]
    include_authorized_operations: Annotated[bool, On(3, default=False)]


class DescribedMember(NamedTuple):
    member_id: str
    group_instance_id: Annotated[str | None, On(4)]
    client_id: str
    client_host: str
    member_metadata: bytes
    member_assignment: bytes


class DescribedGroup(NamedTuple):
    error_code: Int16
    group_id: str
    group_state: str
    protocol_type: str
    protocol_data: str
    members: tuple[DescribedMember, ...]
    authorized_operations: Annotated[Int32, On(3, default=NO_AUTHORIZED_OPERATIONS)]


class DescribeGroupsResponse(NamedTuple):
    throttle_time_ms: Annotated[Int32, On(1, default=0)]
    groups: tuple[DescribedGroup, ...]


class ListGroupsRequest(NamedTuple):
    states_filter: Annotated[tuple[str, ...], On(4, default=())]
    types_filter: Annotated[tuple[str, ...], On(5, default=())]


class ListedGroup(NamedTuple):
    group_id: str
    protocol_type: str
    group_state: Annotated[str, On(4, default="")]
    group_type: Annotated[str, On(5, default="")]


class ListGroupsResponse(NamedTuple):
    throttle_time_ms: Annotated[Int32, On(1, default=0)]
    error_code: Int16
    groups: tuple[ListedGroup, ...]


GROUP_LAYOUTS: Final[Mapping[int, Layout]] = MappingProxyType(
    {
        each.key: each
        for each in (
            Layout("OffsetCommit", 8, 2, 9, 8, OffsetCommitRequest, OffsetCommitResponse),
            Layout("OffsetFetch", 9, 1, 9, 6, OffsetFetchRequest, OffsetFetchResponse),
            Layout("JoinGroup", 11, 2, 9, 6, JoinGroupRequest, JoinGroupResponse),
            Layout("Heartbeat", 12, 0, 4, 4, HeartbeatRequest, HeartbeatResponse),
            Layout("LeaveGroup", 13, 0, 5, 4, LeaveGroupRequest, LeaveGroupResponse),
            Layout("SyncGroup", 14, 0, 5, 4, SyncGroupRequest, SyncGroupResponse),
            Layout("DescribeGroups", 15, 0, 5, 5, DescribeGroupsRequest, DescribeGroupsResponse),
            Layout("ListGroups", 16, 0, 5, 3, ListGroupsRequest, ListGroupsResponse),
            Layout("DeleteGroups", 42, 0, 2, 2, DeleteGroupsRequest, DeleteGroupsResponse),
            Layout("OffsetDelete", 47, 0, 0, 1, OffsetDeleteRequest, OffsetDeleteResponse),
        )
    }
)
"""API key -> its layout."""
