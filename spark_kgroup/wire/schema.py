"""The messages that this library speaks, as Kafka's schemas lay them out: a class for each, its fields in their order.

The source is Kafka's clients/src/main/resources/common/message (one JSON file a message). Fields have its names, in
Python's spelling, and a struct whose name there is not its own, as `Member`, has another one. `codec` reads and writes
by the fields' types: both directions are here, so that a test can be the broker. Error codes are numbers, as brokers
send them: `spark_kgroup.model.ErrorCode` names those that we know.

Tagged fields (KIP-482) of these versions are not laid out, and `codec` skips them: only the answer to ApiVersions has
any, the cluster's features, which this library does not use. A message that is laid out in several versions at once,
as the broker's are (`broker_schema`), says by an `On` for each field where that field is.
"""

# Not `from __future__ import annotations`: the codec looks at the types themselves, which costs a start no evaluation.

from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Any, Final, NamedTuple
from uuid import UUID

Int8 = Annotated[int, "b"]
Int16 = Annotated[int, "h"]
Int32 = Annotated[int, "i"]
Int64 = Annotated[int, "q"]
"""Whole numbers, with their codes in `struct`. A `UUID | None` has 16 bytes, all of them zero for None."""


class On(NamedTuple):
    """Where a field is on the wire, as `Annotated[str, On(until=12)]`: Kafka's `versions` and `tag`.

    Attributes:
        since: the first version that has the field.
        until: the last version that has it.
        default: its value where it is absent. A tagged field with this value is not written.
        tag: the number of a tagged field, or None for a field in its place.
    """

    since: int = 0
    until: int = 32_767
    default: Any = None
    tag: int | None = None


# ------------------------------------------------------------------------------------------------ ApiVersions


class ApiVersionsRequest(NamedTuple):
    client_software_name: str
    client_software_version: str


class ApiVersionsRequestV0(NamedTuple):
    pass


class ApiVersion(NamedTuple):
    api_key: Int16
    min_version: Int16
    max_version: Int16


class ApiVersionsResponse(NamedTuple):
    error_code: Int16
    api_keys: tuple[ApiVersion, ...]
    throttle_time_ms: Int32


class ApiVersionsResponseV0(NamedTuple):
    error_code: Int16
    api_keys: tuple[ApiVersion, ...]


# --------------------------------------------------------------------------------------------------- Metadata


class MetadataRequestTopic(NamedTuple):
    topic_id: UUID | None
    name: str | None


class MetadataRequest(NamedTuple):
    topics: tuple[MetadataRequestTopic, ...] | None
    allow_auto_topic_creation: bool
    include_topic_authorized_operations: bool


class MetadataResponseBroker(NamedTuple):
    node_id: Int32
    host: str
    port: Int32
    rack: str | None


class MetadataResponsePartition(NamedTuple):
    error_code: Int16
    partition_index: Int32
    leader_id: Int32
    leader_epoch: Int32
    replica_nodes: tuple[Int32, ...]
    isr_nodes: tuple[Int32, ...]
    offline_replicas: tuple[Int32, ...]


class MetadataResponseTopic(NamedTuple):
    error_code: Int16
    name: str | None
    topic_id: UUID | None
    is_internal: bool
    partitions: tuple[MetadataResponsePartition, ...]
    topic_authorized_operations: Int32


class MetadataResponse(NamedTuple):
    throttle_time_ms: Int32
    brokers: tuple[MetadataResponseBroker, ...]
    cluster_id: str | None
    controller_id: Int32
    topics: tuple[MetadataResponseTopic, ...]


# -------------------------------------------------------------------------------------------- FindCoordinator


class FindCoordinatorRequest(NamedTuple):
    key_type: Int8
    coordinator_keys: tuple[str, ...]


class Coordinator(NamedTuple):
    key: str
    node_id: Int32
    host: str
    port: Int32
    error_code: Int16
    error_message: str | None


class FindCoordinatorResponse(NamedTuple):
    throttle_time_ms: Int32
    coordinators: tuple[Coordinator, ...]


# ------------------------------------------------------------------- JoinGroup, SyncGroup, Heartbeat, LeaveGroup


class JoinGroupRequestProtocol(NamedTuple):
    name: str
    metadata: bytes


class JoinGroupRequest(NamedTuple):
    group_id: str
    session_timeout_ms: Int32
    rebalance_timeout_ms: Int32
    member_id: str
    group_instance_id: str | None
    protocol_type: str
    protocols: tuple[JoinGroupRequestProtocol, ...]
    reason: str | None


class JoinGroupResponseMember(NamedTuple):
    member_id: str
    group_instance_id: str | None
    metadata: bytes


class JoinGroupResponse(NamedTuple):
    throttle_time_ms: Int32
    error_code: Int16
    generation_id: Int32
    protocol_type: str | None
    protocol_name: str | None
    leader: str
    skip_assignment: bool
    member_id: str
    members: tuple[JoinGroupResponseMember, ...]


class SyncGroupRequestAssignment(NamedTuple):
    member_id: str
    assignment: bytes


class SyncGroupRequest(NamedTuple):
    group_id: str
    generation_id: Int32
    member_id: str
    group_instance_id: str | None
    protocol_type: str | None
    protocol_name: str | None
    assignments: tuple[SyncGroupRequestAssignment, ...]


class SyncGroupResponse(NamedTuple):
    throttle_time_ms: Int32
    error_code: Int16
    protocol_type: str | None
    protocol_name: str | None
    assignment: bytes


class HeartbeatRequest(NamedTuple):
    group_id: str
    generation_id: Int32
    member_id: str
    group_instance_id: str | None


class HeartbeatResponse(NamedTuple):
    throttle_time_ms: Int32
    error_code: Int16


class LeavingMember(NamedTuple):
    member_id: str
    group_instance_id: str | None
    reason: str | None


class LeaveGroupRequest(NamedTuple):
    group_id: str
    members: tuple[LeavingMember, ...]


class LeftMember(NamedTuple):
    member_id: str
    group_instance_id: str | None
    error_code: Int16


class LeaveGroupResponse(NamedTuple):
    throttle_time_ms: Int32
    error_code: Int16
    members: tuple[LeftMember, ...]


# ----------------------------------------------------------------------------------- OffsetCommit, OffsetFetch


class OffsetCommitRequestPartition(NamedTuple):
    partition_index: Int32
    committed_offset: Int64
    committed_leader_epoch: Int32
    committed_metadata: str | None


class OffsetCommitRequestTopic(NamedTuple):
    name: str
    partitions: tuple[OffsetCommitRequestPartition, ...]


class OffsetCommitRequest(NamedTuple):
    group_id: str
    generation_id_or_member_epoch: Int32
    member_id: str
    group_instance_id: str | None
    topics: tuple[OffsetCommitRequestTopic, ...]


class OffsetCommitRequestV9(OffsetCommitRequest):
    """The same, of which another version tells that its sender may be a member under the consumer protocol."""

    __slots__ = ()


class OffsetCommitResponsePartition(NamedTuple):
    partition_index: Int32
    error_code: Int16


class OffsetCommitResponseTopic(NamedTuple):
    name: str
    partitions: tuple[OffsetCommitResponsePartition, ...]


class OffsetCommitResponse(NamedTuple):
    throttle_time_ms: Int32
    topics: tuple[OffsetCommitResponseTopic, ...]


class OffsetFetchRequestTopics(NamedTuple):
    name: str
    partition_indexes: tuple[Int32, ...]


class OffsetFetchRequestGroup(NamedTuple):
    group_id: str
    topics: tuple[OffsetFetchRequestTopics, ...] | None


class OffsetFetchRequest(NamedTuple):
    groups: tuple[OffsetFetchRequestGroup, ...]
    require_stable: bool


class OffsetFetchRequestGroupV9(NamedTuple):
    group_id: str
    member_id: str | None
    member_epoch: Int32
    topics: tuple[OffsetFetchRequestTopics, ...] | None


class OffsetFetchRequestV9(NamedTuple):
    groups: tuple[OffsetFetchRequestGroupV9, ...]
    require_stable: bool


class OffsetFetchResponsePartitions(NamedTuple):
    partition_index: Int32
    committed_offset: Int64
    committed_leader_epoch: Int32
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
    throttle_time_ms: Int32
    groups: tuple[OffsetFetchResponseGroup, ...]


# --------------------------------------------------------------------------------- OffsetDelete, DeleteGroups


class OffsetDeleteRequestPartition(NamedTuple):
    partition_index: Int32


class OffsetDeleteRequestTopic(NamedTuple):
    name: str
    partitions: tuple[OffsetDeleteRequestPartition, ...]


class OffsetDeleteRequest(NamedTuple):
    group_id: str
    topics: tuple[OffsetDeleteRequestTopic, ...]


class OffsetDeleteResponsePartition(NamedTuple):
    partition_index: Int32
    error_code: Int16


class OffsetDeleteResponseTopic(NamedTuple):
    name: str
    partitions: tuple[OffsetDeleteResponsePartition, ...]


class OffsetDeleteResponse(NamedTuple):
    error_code: Int16
    throttle_time_ms: Int32
    topics: tuple[OffsetDeleteResponseTopic, ...]


class DeleteGroupsRequest(NamedTuple):
    groups_names: tuple[str, ...]


class DeletedGroup(NamedTuple):
    group_id: str
    error_code: Int16


class DeleteGroupsResponse(NamedTuple):
    throttle_time_ms: Int32
    results: tuple[DeletedGroup, ...]


# ------------------------------------------------------------------------------------------------ ListOffsets


class ListOffsetsPartition(NamedTuple):
    partition_index: Int32
    current_leader_epoch: Int32
    timestamp: Int64


class ListOffsetsTopic(NamedTuple):
    name: str
    partitions: tuple[ListOffsetsPartition, ...]


class ListOffsetsRequest(NamedTuple):
    replica_id: Int32
    isolation_level: Int8
    topics: tuple[ListOffsetsTopic, ...]


class ListOffsetsPartitionResponse(NamedTuple):
    partition_index: Int32
    error_code: Int16
    timestamp: Int64
    offset: Int64
    leader_epoch: Int32


class ListOffsetsTopicResponse(NamedTuple):
    name: str
    partitions: tuple[ListOffsetsPartitionResponse, ...]


class ListOffsetsResponse(NamedTuple):
    throttle_time_ms: Int32
    topics: tuple[ListOffsetsTopicResponse, ...]


# ---------------------------------------------------------------- DescribeGroups, ListGroups, DescribeConfigs


class DescribeGroupsRequest(NamedTuple):
    groups: tuple[str, ...]
    include_authorized_operations: bool


class DescribedClassicMember(NamedTuple):
    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    member_metadata: bytes
    member_assignment: bytes


class DescribedClassicGroup(NamedTuple):
    error_code: Int16
    group_id: str
    group_state: str
    protocol_type: str
    protocol_data: str
    members: tuple[DescribedClassicMember, ...]
    authorized_operations: Int32


class DescribeGroupsResponse(NamedTuple):
    throttle_time_ms: Int32
    groups: tuple[DescribedClassicGroup, ...]


class ListGroupsRequest(NamedTuple):
    states_filter: tuple[str, ...]
    types_filter: tuple[str, ...]


class ListedGroup(NamedTuple):
    group_id: str
    protocol_type: str
    group_state: str
    group_type: str


class ListGroupsResponse(NamedTuple):
    throttle_time_ms: Int32
    error_code: Int16
    groups: tuple[ListedGroup, ...]


class DescribeConfigsResource(NamedTuple):
    resource_type: Int8
    resource_name: str
    configuration_keys: tuple[str, ...] | None


class DescribeConfigsRequest(NamedTuple):
    resources: tuple[DescribeConfigsResource, ...]
    include_synonyms: bool
    include_documentation: bool


class DescribeConfigsSynonym(NamedTuple):
    name: str
    value: str | None
    source: Int8


class DescribeConfigsResourceResult(NamedTuple):
    name: str
    value: str | None
    read_only: bool
    config_source: Int8
    is_sensitive: bool
    synonyms: tuple[DescribeConfigsSynonym, ...]
    config_type: Int8
    documentation: str | None


class DescribeConfigsResult(NamedTuple):
    error_code: Int16
    error_message: str | None
    resource_type: Int8
    resource_name: str
    configs: tuple[DescribeConfigsResourceResult, ...]


class DescribeConfigsResponse(NamedTuple):
    throttle_time_ms: Int32
    results: tuple[DescribeConfigsResult, ...]


# ------------------------------------------------------------------ the consumer protocol (KIP-848) of brokers


class PartitionsOfTopicId(NamedTuple):
    topic_id: UUID | None
    partitions: tuple[Int32, ...]


class ConsumerGroupHeartbeatRequest(NamedTuple):
    group_id: str
    member_id: str
    member_epoch: Int32
    instance_id: str | None
    rack_id: str | None
    rebalance_timeout_ms: Int32
    subscribed_topic_names: tuple[str, ...] | None
    subscribed_topic_regex: str | None
    server_assignor: str | None
    topic_partitions: tuple[PartitionsOfTopicId, ...] | None


class ConsumerGroupHeartbeatRequestV0(NamedTuple):
    group_id: str
    member_id: str
    member_epoch: Int32
    instance_id: str | None
    rack_id: str | None
    rebalance_timeout_ms: Int32
    subscribed_topic_names: tuple[str, ...] | None
    server_assignor: str | None
    topic_partitions: tuple[PartitionsOfTopicId, ...] | None


class HeartbeatAssignment(NamedTuple):
    topic_partitions: tuple[PartitionsOfTopicId, ...]


class ConsumerGroupHeartbeatResponse(NamedTuple):
    throttle_time_ms: Int32
    error_code: Int16
    error_message: str | None
    member_id: str | None
    member_epoch: Int32
    heartbeat_interval_ms: Int32
    assignment: HeartbeatAssignment | None


class ConsumerGroupDescribeRequest(NamedTuple):
    group_ids: tuple[str, ...]
    include_authorized_operations: bool


class ConsumerGroupDescribeRequestV0(ConsumerGroupDescribeRequest):
    """The same, whose answer lacks each member's protocol."""

    __slots__ = ()


class PartitionsOfTopic(NamedTuple):
    topic_id: UUID | None
    topic_name: str
    partitions: tuple[Int32, ...]


class DescribedAssignment(NamedTuple):
    topic_partitions: tuple[PartitionsOfTopic, ...]


class DescribedConsumerV0(NamedTuple):
    member_id: str
    instance_id: str | None
    rack_id: str | None
    member_epoch: Int32
    client_id: str
    client_host: str
    subscribed_topic_names: tuple[str, ...]
    subscribed_topic_regex: str | None
    assignment: DescribedAssignment
    target_assignment: DescribedAssignment


class DescribedConsumer(NamedTuple):
    member_id: str
    instance_id: str | None
    rack_id: str | None
    member_epoch: Int32
    client_id: str
    client_host: str
    subscribed_topic_names: tuple[str, ...]
    subscribed_topic_regex: str | None
    assignment: DescribedAssignment
    target_assignment: DescribedAssignment
    member_type: Int8


class DescribedConsumerGroupV0(NamedTuple):
    error_code: Int16
    error_message: str | None
    group_id: str
    group_state: str
    group_epoch: Int32
    assignment_epoch: Int32
    assignor_name: str
    members: tuple[DescribedConsumerV0, ...]
    authorized_operations: Int32


class DescribedConsumerGroup(NamedTuple):
    error_code: Int16
    error_message: str | None
    group_id: str
    group_state: str
    group_epoch: Int32
    assignment_epoch: Int32
    assignor_name: str
    members: tuple[DescribedConsumer, ...]
    authorized_operations: Int32


class ConsumerGroupDescribeResponseV0(NamedTuple):
    throttle_time_ms: Int32
    groups: tuple[DescribedConsumerGroupV0, ...]


class ConsumerGroupDescribeResponse(NamedTuple):
    throttle_time_ms: Int32
    groups: tuple[DescribedConsumerGroup, ...]


# ------------------------------------------------------------------------------------------------------- SASL


class SaslHandshakeRequest(NamedTuple):
    mechanism: str


class SaslHandshakeResponse(NamedTuple):
    error_code: Int16
    mechanisms: tuple[str, ...]


class SaslAuthenticateRequest(NamedTuple):
    auth_bytes: bytes


class SaslAuthenticateResponse(NamedTuple):
    error_code: Int16
    error_message: str | None
    auth_bytes: bytes
    session_lifetime_ms: Int64


# ------------------------------------------------------------ subscriptions and assignments inside JoinGroup


class PartitionsOfName(NamedTuple):
    topic: str
    partitions: tuple[Int32, ...]


class ConsumerProtocolSubscriptionV0(NamedTuple):
    topics: tuple[str, ...]
    user_data: bytes | None


class ConsumerProtocolSubscriptionV1(NamedTuple):
    topics: tuple[str, ...]
    user_data: bytes | None
    owned_partitions: tuple[PartitionsOfName, ...]


class ConsumerProtocolSubscriptionV2(NamedTuple):
    topics: tuple[str, ...]
    user_data: bytes | None
    owned_partitions: tuple[PartitionsOfName, ...]
    generation_id: Int32


class ConsumerProtocolSubscriptionV3(NamedTuple):
    topics: tuple[str, ...]
    user_data: bytes | None
    owned_partitions: tuple[PartitionsOfName, ...]
    generation_id: Int32
    rack_id: str | None


class ConsumerProtocolAssignment(NamedTuple):
    """The same in all versions."""

    assigned_partitions: tuple[PartitionsOfName, ...]
    user_data: bytes | None


# ------------------------------------------------------------------------------------------- APIs and versions

Request = (
    ApiVersionsRequest
    | ApiVersionsRequestV0
    | MetadataRequest
    | FindCoordinatorRequest
    | JoinGroupRequest
    | SyncGroupRequest
    | HeartbeatRequest
    | LeaveGroupRequest
    | OffsetCommitRequest
    | OffsetFetchRequest
    | OffsetFetchRequestV9
    | OffsetDeleteRequest
    | DeleteGroupsRequest
    | ListOffsetsRequest
    | DescribeGroupsRequest
    | ListGroupsRequest
    | DescribeConfigsRequest
    | ConsumerGroupHeartbeatRequest
    | ConsumerGroupHeartbeatRequestV0
    | ConsumerGroupDescribeRequest
    | SaslHandshakeRequest
    | SaslAuthenticateRequest
)
Response = (
    ApiVersionsResponse
    | ApiVersionsResponseV0
    | MetadataResponse
    | FindCoordinatorResponse
    | JoinGroupResponse
    | SyncGroupResponse
    | HeartbeatResponse
    | LeaveGroupResponse
    | OffsetCommitResponse
    | OffsetFetchResponse
    | OffsetDeleteResponse
    | DeleteGroupsResponse
    | ListOffsetsResponse
    | DescribeGroupsResponse
    | ListGroupsResponse
    | DescribeConfigsResponse
    | ConsumerGroupHeartbeatResponse
    | ConsumerGroupDescribeResponse
    | ConsumerGroupDescribeResponseV0
    | SaslHandshakeResponse
    | SaslAuthenticateResponse
)


class Api(NamedTuple):
    """How a request travels, and what answers it.

    Attributes:
        flexible: whether lengths are varints, and each struct ends with tagged fields (KIP-482).
        response: the class of what answers it.
    """

    name: str
    key: int
    version: int
    flexible: bool
    response: Any


API_OF: Final[Mapping[type[Any], Api]] = MappingProxyType(
    {
        ApiVersionsRequest: Api("ApiVersions", 18, 3, True, ApiVersionsResponse),
        ApiVersionsRequestV0: Api("ApiVersions", 18, 0, False, ApiVersionsResponseV0),
        MetadataRequest: Api("Metadata", 3, 12, True, MetadataResponse),
        FindCoordinatorRequest: Api("FindCoordinator", 10, 4, True, FindCoordinatorResponse),
        JoinGroupRequest: Api("JoinGroup", 11, 9, True, JoinGroupResponse),
        SyncGroupRequest: Api("SyncGroup", 14, 5, True, SyncGroupResponse),
        HeartbeatRequest: Api("Heartbeat", 12, 4, True, HeartbeatResponse),
        LeaveGroupRequest: Api("LeaveGroup", 13, 5, True, LeaveGroupResponse),
        OffsetCommitRequest: Api("OffsetCommit", 8, 8, True, OffsetCommitResponse),
        OffsetCommitRequestV9: Api("OffsetCommit", 8, 9, True, OffsetCommitResponse),
        OffsetFetchRequest: Api("OffsetFetch", 9, 8, True, OffsetFetchResponse),
        OffsetFetchRequestV9: Api("OffsetFetch", 9, 9, True, OffsetFetchResponse),
        OffsetDeleteRequest: Api("OffsetDelete", 47, 0, False, OffsetDeleteResponse),
        DeleteGroupsRequest: Api("DeleteGroups", 42, 2, True, DeleteGroupsResponse),
        ListOffsetsRequest: Api("ListOffsets", 2, 7, True, ListOffsetsResponse),
        DescribeGroupsRequest: Api("DescribeGroups", 15, 5, True, DescribeGroupsResponse),
        ListGroupsRequest: Api("ListGroups", 16, 5, True, ListGroupsResponse),
        DescribeConfigsRequest: Api("DescribeConfigs", 32, 4, True, DescribeConfigsResponse),
        ConsumerGroupHeartbeatRequest: Api("ConsumerGroupHeartbeat", 68, 1, True, ConsumerGroupHeartbeatResponse),
        ConsumerGroupHeartbeatRequestV0: Api("ConsumerGroupHeartbeat", 68, 0, True, ConsumerGroupHeartbeatResponse),
        ConsumerGroupDescribeRequest: Api("ConsumerGroupDescribe", 69, 1, True, ConsumerGroupDescribeResponse),
        ConsumerGroupDescribeRequestV0: Api("ConsumerGroupDescribe", 69, 0, True, ConsumerGroupDescribeResponseV0),
        SaslHandshakeRequest: Api("SaslHandshake", 17, 1, False, SaslHandshakeResponse),
        SaslAuthenticateRequest: Api("SaslAuthenticate", 36, 2, True, SaslAuthenticateResponse),
    }
)
"""Each request's API."""
