"""Produce v3 to v13 (key 0).

v5: the start of the log. v7: zstd (KIP-110). v8: a text beside an error (KIP-467). v10: the leader's epoch beside
NOT_LEADER_OR_FOLLOWER (KIP-951). v13: topics by id.

Clients look for v0 in ApiVersions before they compress (KAFKA-18659), so v0 to v2 are named there, as Kafka 4 does.
Source: Kafka's KafkaApis.handleProduceRequest, ReplicaManager.appendToLocalLog.
"""

from __future__ import annotations

from typing import Final

from spark_kgroup.broker import batches, topic_configs
from spark_kgroup.broker.call import Call, HangUp
from spark_kgroup.broker.cluster import Cluster, Partition, Topic
from spark_kgroup.broker.log import NO_TIMESTAMP
from spark_kgroup.broker.refusal import Refused
from spark_kgroup.model import ErrorCode, TopicPartition
from spark_kgroup.wire.broker_schema import (
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)

_ZSTD_SINCE: Final = 7
_BY_ID_SINCE: Final = 13
_ACKS: Final = (-1, 0, 1)
_WITHOUT_START: Final = (ErrorCode.CORRUPT_MESSAGE, ErrorCode.MESSAGE_TOO_LARGE)
"""Errors beside which the start of the log is not told (ReplicaManager.appendToLocalLog)."""

_NO_TRANSACTIONS: Final = "this broker has no transactions"


def answer(cluster: Cluster, request: ProduceRequest, call: Call) -> ProduceResponse | None:
    """Append each batch. None if the producer wants no answer (acks 0).

    Raises:
        HangUp: it wants none, and a batch was refused. It learns that by the end of its connection.
    """
    responses = tuple(_topic(cluster, each, request, call) for each in request.topic_data)
    codes = {one.error_code for each in responses for one in each.partition_responses}
    if request.acks == 0:
        if codes <= {ErrorCode.NONE}:
            return None
        raise HangUp
    refused = ErrorCode.NOT_LEADER_OR_FOLLOWER in codes
    endpoints = tuple(NodeEndpoint(*node) for node in cluster.nodes.values()) if refused else ()
    return ProduceResponse(responses, 0, endpoints)


def _topic(cluster: Cluster, data: TopicProduceData, request: ProduceRequest, call: Call) -> TopicProduceResponse:
    by_id = call.version >= _BY_ID_SINCE
    topic = cluster.topic_of(data.topic_id) if by_id else cluster.topics.get(data.name)
    unknown = ErrorCode.UNKNOWN_TOPIC_ID if by_id else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    parts = tuple(
        _refused(each, Refused(unknown)) if topic is None else _partition(cluster, topic, each, request, call)
        for each in data.partition_data
    )
    return TopicProduceResponse(data.name, data.topic_id, parts)


def _partition(
    cluster: Cluster, topic: Topic, data: PartitionProduceData, request: ProduceRequest, call: Call
) -> PartitionProduceResponse:
    at = TopicPartition(topic.name, data.partition_index)
    there: Partition | None = None
    try:
        if request.acks not in _ACKS:
            raise Refused(ErrorCode.INVALID_REQUIRED_ACKS)
        if request.transactional_id is not None:
            raise Refused(ErrorCode.INVALID_TXN_STATE, _NO_TRANSACTIONS)
        there = cluster.partition(*at)
        return _appended(cluster, topic, at, cluster.led(call.node_id, *at), data, call)
    except Refused as refusal:
        return _refused(data, refusal, there)


def _appended(
    cluster: Cluster, topic: Topic, at: TopicPartition, partition: Partition, data: PartitionProduceData, call: Call
) -> PartitionProduceResponse:
    batch = batches.produced(
        data.records,
        batch_bytes_max=int(topic.setting(topic_configs.MAX_MESSAGE_BYTES)),
        zstd=call.version >= _ZSTD_SINCE,
    )
    by_append = topic.setting(topic_configs.TIMESTAMP_TYPE) == "LogAppendTime"
    ahead_ms = batch.max_timestamp_ms - call.now_ms
    if not by_append and ahead_ms > int(topic.setting(topic_configs.TIMESTAMP_AFTER_MAX)):
        raise Refused(ErrorCode.INVALID_TIMESTAMP, f"a record is {ahead_ms} ms ahead of the broker's clock")
    place = cluster.append(at, partition, batch, call.now_ms if by_append else None)
    start = partition.log.start_offset
    return PartitionProduceResponse(
        data.partition_index, ErrorCode.NONE, place.base_offset, place.append_time_ms, start
    )


def _refused(data: PartitionProduceData, refusal: Refused, there: Partition | None = None) -> PartitionProduceResponse:
    """The answer beside an error, with the leader or the start of the log where Kafka tells them."""
    leader, start = LeaderIdAndEpoch(), -1
    if there is not None and refusal.code == ErrorCode.NOT_LEADER_OR_FOLLOWER:
        leader = LeaderIdAndEpoch(there.leader, there.leader_epoch)
    elif there is not None and refusal.code not in _WITHOUT_START and not isinstance(refusal, batches.NoSuchBatch):
        start = there.log.start_offset
    return PartitionProduceResponse(
        data.partition_index,
        refusal.code,
        -1,
        NO_TIMESTAMP,
        start,
        error_message=refusal.text or None,
        current_leader=leader,
    )
