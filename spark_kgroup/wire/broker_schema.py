"""The messages that the embedded broker reads and answers, each in all versions that it serves.

As `schema`, from Kafka's JSON files: fields in their order, by its names (`index` and `count`, which a tuple has
itself, are `partition_index` and `total_count`). A class holds a message of any version: what a version lacks has its
default, and is not written. So a handler of the broker knows one request and one answer.
"""

# Not `from __future__ import annotations`: the codec looks at the types themselves.

from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Any, Final, NamedTuple
from uuid import UUID

from spark_kgroup.wire.schema import ApiVersion, Coordinator, DescribeConfigsSynonym, Int8, Int16, Int32, Int64, On

NO_AUTHORIZED_OPERATIONS: Final = -(2**31)
"""Says that the broker did not look which operations the client may do (AclUtils)."""


# ------------------------------------------------------------------------------------------------ ApiVersions


class ApiVersionsRequest(NamedTuple):
    client_software_name: Annotated[str, On(3, default="")]
    client_software_version: Annotated[str, On(3, default="")]


class SupportedFeature(NamedTuple):
    name: str
    min_version: Int16
    max_version: Int16


class FinalizedFeature(NamedTuple):
    name: str
    max_version_level: Int16
    min_version_level: Int16


class ApiVersionsResponse(NamedTuple):
    error_code: Int16
    api_keys: tuple[ApiVersion, ...]
    throttle_time_ms: Annotated[Int32, On(1, default=0)] = 0
    supported_features: Annotated[tuple[SupportedFeature, ...], On(3, tag=0, default=())] = ()
    finalized_features_epoch: Annotated[Int64, On(3, tag=1, default=-1)] = -1
    finalized_features: Annotated[tuple[FinalizedFeature, ...], On(3, tag=2, default=())] = ()
    zk_migration_ready: Annotated[bool, On(3, tag=3, default=False)] = False


# ------------------------------------------------------------------------------------ Metadata, DescribeCluster


class MetadataRequestTopic(NamedTuple):
    topic_id: Annotated[UUID | None, On(10)]
    name: str | None


class MetadataRequest(NamedTuple):
    topics: tuple[MetadataRequestTopic, ...] | None
    allow_auto_topic_creation: Annotated[bool, On(4, default=True)]
    include_cluster_authorized_operations: Annotated[bool, On(8, 10, default=False)]
    include_topic_authorized_operations: Annotated[bool, On(8, default=False)]


class MetadataResponseBroker(NamedTuple):
    node_id: Int32
    host: str
    port: Int32
    rack: Annotated[str | None, On(1)]


class MetadataResponsePartition(NamedTuple):
    error_code: Int16
    partition_index: Int32
    leader_id: Int32
    leader_epoch: Annotated[Int32, On(7, default=-1)]
    replica_nodes: tuple[Int32, ...]
    isr_nodes: tuple[Int32, ...]
    offline_replicas: Annotated[tuple[Int32, ...], On(5, default=())]


class MetadataResponseTopic(NamedTuple):
    error_code: Int16
    name: str | None
    topic_id: Annotated[UUID | None, On(10)]
    is_internal: Annotated[bool, On(1, default=False)]
    partitions: tuple[MetadataResponsePartition, ...]
    topic_authorized_operations: Annotated[Int32, On(8, default=NO_AUTHORIZED_OPERATIONS)] = NO_AUTHORIZED_OPERATIONS


class MetadataResponse(NamedTuple):
    throttle_time_ms: Annotated[Int32, On(3, default=0)]
    brokers: tuple[MetadataResponseBroker, ...]
    cluster_id: Annotated[str | None, On(2)]
    controller_id: Annotated[Int32, On(1, default=-1)]
    topics: tuple[MetadataResponseTopic, ...]
    cluster_authorized_operations: Annotated[Int32, On(8, 10, default=NO_AUTHORIZED_OPERATIONS)] = (
        NO_AUTHORIZED_OPERATIONS
    )


class DescribeClusterRequest(NamedTuple):
    include_cluster_authorized_operations: bool
    endpoint_type: Annotated[Int8, On(1, default=1)]


class DescribeClusterBroker(NamedTuple):
    broker_id: Int32
    host: str
    port: Int32
    rack: str | None


class DescribeClusterResponse(NamedTuple):
    throttle_time_ms: Int32
    error_code: Int16
    error_message: str | None
    endpoint_type: Annotated[Int8, On(1, default=1)]
    cluster_id: str
    controller_id: Int32
    brokers: tuple[DescribeClusterBroker, ...]
    cluster_authorized_operations: Int32 = NO_AUTHORIZED_OPERATIONS


# -------------------------------------------------------------------------------------------- FindCoordinator


class FindCoordinatorRequest(NamedTuple):
    key: Annotated[str, On(until=3, default="")]
    key_type: Annotated[Int8, On(1, default=0)]
    coordinator_keys: Annotated[tuple[str, ...], On(4, default=())]


class FindCoordinatorResponse(NamedTuple):
    throttle_time_ms: Annotated[Int32, On(1, default=0)]
    error_code: Annotated[Int16, On(until=3, default=0)]
    error_message: Annotated[str | None, On(1, 3)]
    node_id: Annotated[Int32, On(until=3, default=-1)]
    host: Annotated[str, On(until=3, default="")]
    port: Annotated[Int32, On(until=3, default=-1)]
    coordinators: Annotated[tuple[Coordinator, ...], On(4, default=())]


# ------------------------------------------------------------------------------------ Produce, InitProducerId


class LeaderIdAndEpoch(NamedTuple):
    leader_id: Int32 = -1
    leader_epoch: Int32 = -1


class NodeEndpoint(NamedTuple):
    node_id: Int32
    host: str
    port: Int32
    rack: str | None


class PartitionProduceData(NamedTuple):
    partition_index: Int32
    records: bytes | None


class TopicProduceData(NamedTuple):
    name: Annotated[str, On(until=12, default="")]
    topic_id: Annotated[UUID | None, On(13)]
    partition_data: tuple[PartitionProduceData, ...]


class ProduceRequest(NamedTuple):
    transactional_id: str | None
    acks: Int16
    timeout_ms: Int32
    topic_data: tuple[TopicProduceData, ...]


class BatchIndexAndErrorMessage(NamedTuple):
    batch_index: Int32
    batch_index_error_message: str | None


class PartitionProduceResponse(NamedTuple):
    partition_index: Int32
    error_code: Int16
    base_offset: Int64
    log_append_time_ms: Int64
    log_start_offset: Annotated[Int64, On(5, default=-1)]
    record_errors: Annotated[tuple[BatchIndexAndErrorMessage, ...], On(8, default=())] = ()
    error_message: Annotated[str | None, On(8)] = None
    current_leader: Annotated[LeaderIdAndEpoch, On(10, tag=0, default=LeaderIdAndEpoch())] = LeaderIdAndEpoch()


class TopicProduceResponse(NamedTuple):
    name: Annotated[str, On(until=12, default="")]
    topic_id: Annotated[UUID | None, On(13)]
    partition_responses: tuple[PartitionProduceResponse, ...]


class ProduceResponse(NamedTuple):
    responses: tuple[TopicProduceResponse, ...]
    throttle_time_ms: Int32 = 0
    node_endpoints: Annotated[tuple[NodeEndpoint, ...], On(10, tag=0, default=())] = ()


class InitProducerIdRequest(NamedTuple):
    transactional_id: str | None
    transaction_timeout_ms: Int32
    producer_id: Annotated[Int64, On(3, default=-1)]
    producer_epoch: Annotated[Int16, On(3, default=-1)]


class InitProducerIdResponse(NamedTuple):
    throttle_time_ms: Int32
    error_code: Int16
    producer_id: Int64
    producer_epoch: Int16


# ------------------------------------------------------------------------------------------------------ Fetch


class FetchPartition(NamedTuple):
    partition: Int32
    current_leader_epoch: Annotated[Int32, On(9, default=-1)]
    fetch_offset: Int64
    last_fetched_epoch: Annotated[Int32, On(12, default=-1)]
    log_start_offset: Annotated[Int64, On(5, default=-1)]
    partition_max_bytes: Int32
    replica_directory_id: Annotated[UUID | None, On(17, tag=0)]


class FetchTopic(NamedTuple):
    topic: Annotated[str, On(until=12, default="")]
    topic_id: Annotated[UUID | None, On(13)]
    partitions: tuple[FetchPartition, ...]


class ForgottenTopic(NamedTuple):
    topic: Annotated[str, On(until=12, default="")]
    topic_id: Annotated[UUID | None, On(13)]
    partitions: tuple[Int32, ...]


class ReplicaState(NamedTuple):
    replica_id: Int32 = -1
    replica_epoch: Int64 = -1


class FetchRequest(NamedTuple):
    cluster_id: Annotated[str | None, On(12, tag=0)]
    replica_id: Annotated[Int32, On(until=14, default=-1)]
    replica_state: Annotated[ReplicaState, On(15, tag=1, default=ReplicaState())]
    max_wait_ms: Int32
    min_bytes: Int32
    max_bytes: Int32
    isolation_level: Int8
    session_id: Annotated[Int32, On(7, default=0)]
    session_epoch: Annotated[Int32, On(7, default=-1)]
    topics: tuple[FetchTopic, ...]
    forgotten_topics_data: Annotated[tuple[ForgottenTopic, ...], On(7, default=())]
    rack_id: Annotated[str, On(11, default="")]


class DivergingEpoch(NamedTuple):
    epoch: Int32 = -1
    end_offset: Int64 = -1


class SnapshotId(NamedTuple):
    end_offset: Int64 = -1
    epoch: Int32 = -1


class AbortedTransaction(NamedTuple):
    producer_id: Int64
    first_offset: Int64


class FetchedPartition(NamedTuple):
    partition_index: Int32
    error_code: Int16
    high_watermark: Int64
    last_stable_offset: Int64
    log_start_offset: Annotated[Int64, On(5, default=-1)]
    diverging_epoch: Annotated[DivergingEpoch, On(12, tag=0, default=DivergingEpoch())] = DivergingEpoch()
    current_leader: Annotated[LeaderIdAndEpoch, On(12, tag=1, default=LeaderIdAndEpoch())] = LeaderIdAndEpoch()
    snapshot_id: Annotated[SnapshotId, On(12, tag=2, default=SnapshotId())] = SnapshotId()
    aborted_transactions: tuple[AbortedTransaction, ...] | None = None
    preferred_read_replica: Annotated[Int32, On(11, default=-1)] = -1
    records: bytes | None = b""


class FetchableTopicResponse(NamedTuple):
    topic: Annotated[str, On(until=12, default="")]
    topic_id: Annotated[UUID | None, On(13)]
    partitions: tuple[FetchedPartition, ...]


class FetchResponse(NamedTuple):
    throttle_time_ms: Int32
    error_code: Annotated[Int16, On(7, default=0)]
    session_id: Annotated[Int32, On(7, default=0)]
    responses: tuple[FetchableTopicResponse, ...]
    node_endpoints: Annotated[tuple[NodeEndpoint, ...], On(16, tag=0, default=())] = ()


# ----------------------------------------------------------- ListOffsets, OffsetForLeaderEpoch, DeleteRecords


class ListOffsetsPartition(NamedTuple):
    partition_index: Int32
    current_leader_epoch: Annotated[Int32, On(4, default=-1)]
    timestamp: Int64


class ListOffsetsTopic(NamedTuple):
    name: str
    partitions: tuple[ListOffsetsPartition, ...]


class ListOffsetsRequest(NamedTuple):
    replica_id: Int32
    isolation_level: Annotated[Int8, On(2, default=0)]
    topics: tuple[ListOffsetsTopic, ...]
    timeout_ms: Annotated[Int32, On(10, default=0)]


class ListOffsetsPartitionResponse(NamedTuple):
    partition_index: Int32
    error_code: Int16
    timestamp: Int64
    offset: Int64
    leader_epoch: Annotated[Int32, On(4, default=-1)]


class ListOffsetsTopicResponse(NamedTuple):
    name: str
    partitions: tuple[ListOffsetsPartitionResponse, ...]


class ListOffsetsResponse(NamedTuple):
    throttle_time_ms: Annotated[Int32, On(2, default=0)]
    topics: tuple[ListOffsetsTopicResponse, ...]


class OffsetForLeaderPartition(NamedTuple):
    partition: Int32
    current_leader_epoch: Int32
    leader_epoch: Int32


class OffsetForLeaderTopic(NamedTuple):
    topic: str
    partitions: tuple[OffsetForLeaderPartition, ...]


class OffsetForLeaderEpochRequest(NamedTuple):
    replica_id: Annotated[Int32, On(3, default=-2)]
    topics: tuple[OffsetForLeaderTopic, ...]


class EpochEndOffset(NamedTuple):
    error_code: Int16
    partition: Int32
    leader_epoch: Int32
    end_offset: Int64


class OffsetForLeaderTopicResult(NamedTuple):
    topic: str
    partitions: tuple[EpochEndOffset, ...]


class OffsetForLeaderEpochResponse(NamedTuple):
    throttle_time_ms: Int32
    topics: tuple[OffsetForLeaderTopicResult, ...]


class DeleteRecordsPartition(NamedTuple):
    partition_index: Int32
    offset: Int64


class DeleteRecordsTopic(NamedTuple):
    name: str
    partitions: tuple[DeleteRecordsPartition, ...]


class DeleteRecordsRequest(NamedTuple):
    topics: tuple[DeleteRecordsTopic, ...]
    timeout_ms: Int32


class DeleteRecordsPartitionResult(NamedTuple):
    partition_index: Int32
    low_watermark: Int64
    error_code: Int16


class DeleteRecordsTopicResult(NamedTuple):
    name: str
    partitions: tuple[DeleteRecordsPartitionResult, ...]


class DeleteRecordsResponse(NamedTuple):
    throttle_time_ms: Int32
    topics: tuple[DeleteRecordsTopicResult, ...]


# ------------------------------------------------------------------ CreateTopics, DeleteTopics, CreatePartitions


class CreatableReplicaAssignment(NamedTuple):
    partition_index: Int32
    broker_ids: tuple[Int32, ...]


class CreatableTopicConfig(NamedTuple):
    name: str
    value: str | None


class CreatableTopic(NamedTuple):
    name: str
    num_partitions: Int32
    replication_factor: Int16
    assignments: tuple[CreatableReplicaAssignment, ...]
    configs: tuple[CreatableTopicConfig, ...]


class CreateTopicsRequest(NamedTuple):
    topics: tuple[CreatableTopic, ...]
    timeout_ms: Int32
    validate_only: bool


class CreatableTopicConfigs(NamedTuple):
    name: str
    value: str | None
    read_only: bool
    config_source: Int8
    is_sensitive: bool


class CreatableTopicResult(NamedTuple):
    name: str
    topic_id: Annotated[UUID | None, On(7)]
    error_code: Int16
    error_message: str | None
    topic_config_error_code: Annotated[Int16, On(5, tag=0, default=0)] = 0
    num_partitions: Annotated[Int32, On(5, default=-1)] = -1
    replication_factor: Annotated[Int16, On(5, default=-1)] = -1
    configs: Annotated[tuple[CreatableTopicConfigs, ...] | None, On(5)] = ()


class CreateTopicsResponse(NamedTuple):
    throttle_time_ms: Int32
    topics: tuple[CreatableTopicResult, ...]


class DeleteTopicState(NamedTuple):
    name: str | None
    topic_id: UUID | None


class DeleteTopicsRequest(NamedTuple):
    topics: Annotated[tuple[DeleteTopicState, ...], On(6, default=())]
    topic_names: Annotated[tuple[str, ...], On(until=5, default=())]
    timeout_ms: Int32


class DeletableTopicResult(NamedTuple):
    name: str | None
    topic_id: Annotated[UUID | None, On(6)]
    error_code: Int16
    error_message: Annotated[str | None, On(5)]


class DeleteTopicsResponse(NamedTuple):
    throttle_time_ms: Int32
    responses: tuple[DeletableTopicResult, ...]


class CreatePartitionsAssignment(NamedTuple):
    broker_ids: tuple[Int32, ...]


class CreatePartitionsTopic(NamedTuple):
    name: str
    total_count: Int32
    assignments: tuple[CreatePartitionsAssignment, ...] | None


class CreatePartitionsRequest(NamedTuple):
    topics: tuple[CreatePartitionsTopic, ...]
    timeout_ms: Int32
    validate_only: bool


class CreatePartitionsTopicResult(NamedTuple):
    name: str
    error_code: Int16
    error_message: str | None


class CreatePartitionsResponse(NamedTuple):
    throttle_time_ms: Int32
    results: tuple[CreatePartitionsTopicResult, ...]


# ----------------------------------------------------------------- DescribeConfigs, IncrementalAlterConfigs


class DescribeConfigsResource(NamedTuple):
    resource_type: Int8
    resource_name: str
    configuration_keys: tuple[str, ...] | None


class DescribeConfigsRequest(NamedTuple):
    resources: tuple[DescribeConfigsResource, ...]
    include_synonyms: bool
    include_documentation: Annotated[bool, On(3, default=False)]


class DescribeConfigsResourceResult(NamedTuple):
    name: str
    value: str | None
    read_only: bool
    config_source: Int8
    is_sensitive: bool
    synonyms: tuple[DescribeConfigsSynonym, ...]
    config_type: Annotated[Int8, On(3, default=0)]
    documentation: Annotated[str | None, On(3)]


class DescribeConfigsResult(NamedTuple):
    error_code: Int16
    error_message: str | None
    resource_type: Int8
    resource_name: str
    configs: tuple[DescribeConfigsResourceResult, ...]


class DescribeConfigsResponse(NamedTuple):
    throttle_time_ms: Int32
    results: tuple[DescribeConfigsResult, ...]


class AlterableConfig(NamedTuple):
    name: str
    config_operation: Int8
    value: str | None


class AlterConfigsResource(NamedTuple):
    resource_type: Int8
    resource_name: str
    configs: tuple[AlterableConfig, ...]


class IncrementalAlterConfigsRequest(NamedTuple):
    resources: tuple[AlterConfigsResource, ...]
    validate_only: bool


class AlterConfigsResourceResponse(NamedTuple):
    error_code: Int16
    error_message: str | None
    resource_type: Int8
    resource_name: str


class IncrementalAlterConfigsResponse(NamedTuple):
    throttle_time_ms: Int32
    responses: tuple[AlterConfigsResourceResponse, ...]


# --------------------------------------------------------------------------------------------------- the layouts


class Layout(NamedTuple):
    """An API as its messages are laid out above.

    Attributes:
        first: the oldest version that is laid out.
        last: the newest one.
        flexible_since: the first version whose messages are flexible (KIP-482).
    """

    name: str
    key: int
    first: int
    last: int
    flexible_since: int
    request: Any
    response: Any


LAYOUTS: Final[Mapping[int, Layout]] = MappingProxyType(
    {
        each.key: each
        for each in (
            Layout("Produce", 0, 3, 13, 9, ProduceRequest, ProduceResponse),
            Layout("Fetch", 1, 4, 17, 12, FetchRequest, FetchResponse),
            Layout("ListOffsets", 2, 1, 10, 6, ListOffsetsRequest, ListOffsetsResponse),
            Layout("Metadata", 3, 0, 12, 9, MetadataRequest, MetadataResponse),
            Layout("FindCoordinator", 10, 0, 5, 3, FindCoordinatorRequest, FindCoordinatorResponse),
            Layout("ApiVersions", 18, 0, 4, 3, ApiVersionsRequest, ApiVersionsResponse),
            Layout("CreateTopics", 19, 2, 7, 5, CreateTopicsRequest, CreateTopicsResponse),
            Layout("DeleteTopics", 20, 1, 6, 4, DeleteTopicsRequest, DeleteTopicsResponse),
            Layout("DeleteRecords", 21, 0, 2, 2, DeleteRecordsRequest, DeleteRecordsResponse),
            Layout("InitProducerId", 22, 0, 5, 2, InitProducerIdRequest, InitProducerIdResponse),
            Layout("OffsetForLeaderEpoch", 23, 2, 4, 4, OffsetForLeaderEpochRequest, OffsetForLeaderEpochResponse),
            Layout("DescribeConfigs", 32, 1, 4, 4, DescribeConfigsRequest, DescribeConfigsResponse),
            Layout("CreatePartitions", 37, 0, 3, 2, CreatePartitionsRequest, CreatePartitionsResponse),
            Layout(
                "IncrementalAlterConfigs", 44, 0, 1, 1, IncrementalAlterConfigsRequest, IncrementalAlterConfigsResponse
            ),
            Layout("DescribeCluster", 60, 0, 1, 0, DescribeClusterRequest, DescribeClusterResponse),
        )
    }
)
"""API key -> its layout."""
