"""DeleteRecords v0 to v2 (key 21), which differ in their lengths alone. Offset -1 means the end.

Source: Kafka's Partition.deleteRecordsOnLeader.
"""

from __future__ import annotations

from typing import Final

from spark_kgroup.broker import topic_configs
from spark_kgroup.broker.call import Call
from spark_kgroup.broker.cluster import Cluster
from spark_kgroup.broker.refusal import Refused
from spark_kgroup.model import ErrorCode, TopicPartition
from spark_kgroup.wire.broker_schema import (
    DeleteRecordsPartition,
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
)

_END: Final = -1
_UNKNOWN: Final = -1


def answer(cluster: Cluster, request: DeleteRecordsRequest, call: Call) -> DeleteRecordsResponse:
    """Delete the records before each partition's offset."""
    topics = tuple(
        DeleteRecordsTopicResult(
            topic.name, tuple(_deleted(cluster, topic.name, each, call) for each in topic.partitions)
        )
        for topic in request.topics
    )
    return DeleteRecordsResponse(0, topics)


def _deleted(cluster: Cluster, topic: str, asked: DeleteRecordsPartition, call: Call) -> DeleteRecordsPartitionResult:
    at = TopicPartition(topic, asked.partition_index)
    try:
        partition = cluster.led(call.node_id, *at)
        if "delete" not in cluster.topics[topic].setting(topic_configs.CLEANUP_POLICY).split(","):
            raise Refused(ErrorCode.POLICY_VIOLATION)
        offset = partition.log.end_offset if asked.offset == _END else asked.offset
        if offset < 0:
            raise Refused(ErrorCode.OFFSET_OUT_OF_RANGE)
        cluster.delete_records(at, partition, offset)
    except Refused as refusal:
        return DeleteRecordsPartitionResult(asked.partition_index, _UNKNOWN, refusal.code)
    return DeleteRecordsPartitionResult(asked.partition_index, partition.log.start_offset, ErrorCode.NONE)
