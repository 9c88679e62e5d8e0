"""ListOffsets v1 to v10 (key 2).

v2: isolation levels. v4: leader epochs. v7: the largest timestamp (KIP-734). v8, v9: the offsets of tiered storage
(KIP-405, KIP-1005), of which there is none here.

Kafka 4 has no v0. v11 would ask for what is not yet tiered. Without transactions, both isolation levels are the same.
Source: Kafka's UnifiedLog.fetchOffsetByTimestamp, Partition.fetchOffsetForTimestamp.
"""

from __future__ import annotations

from typing import Final

from spark_kgroup.broker.call import Call
from spark_kgroup.broker.cluster import Cluster, Partition
from spark_kgroup.broker.log import NO_TIMESTAMP, UNDEFINED, Found
from spark_kgroup.broker.refusal import Refused
from spark_kgroup.model import ErrorCode
from spark_kgroup.wire.broker_schema import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)

_LATEST, _EARLIEST, _LARGEST_TIMESTAMP, _EARLIEST_LOCAL, _LATEST_TIERED = -1, -2, -3, -4, -5
_NEEDS: Final = {_LARGEST_TIMESTAMP: 7, _EARLIEST_LOCAL: 8, _LATEST_TIERED: 9}
"""Special timestamp -> the first version that has it (ReplicaManager.timestampMinSupportedVersion)."""

_UNKNOWN_OFFSET: Final = -1
_NOT_FOUND: Final = Found(_UNKNOWN_OFFSET, NO_TIMESTAMP, UNDEFINED)


def answer(cluster: Cluster, request: ListOffsetsRequest, call: Call) -> ListOffsetsResponse:
    """The offset of each partition at the time that was asked for."""
    topics = tuple(
        ListOffsetsTopicResponse(
            topic.name, tuple(_listed(cluster, topic.name, each, call) for each in topic.partitions)
        )
        for topic in request.topics
    )
    return ListOffsetsResponse(0, topics)


def _listed(cluster: Cluster, topic: str, asked: ListOffsetsPartition, call: Call) -> ListOffsetsPartitionResponse:
    code, found = ErrorCode.NONE.value, _NOT_FOUND
    try:
        partition = cluster.led(call.node_id, topic, asked.partition_index, asked.current_leader_epoch)
        found = _found(partition, asked.timestamp, call)
    except Refused as refusal:
        code = refusal.code
    return ListOffsetsPartitionResponse(
        asked.partition_index, code, found.timestamp_ms, found.offset, found.leader_epoch
    )


def _found(partition: Partition, timestamp_ms: int, call: Call) -> Found:
    log = partition.log
    if timestamp_ms < _LATEST_TIERED or call.version < _NEEDS.get(timestamp_ms, 0):
        raise Refused(ErrorCode.UNSUPPORTED_VERSION)
    match timestamp_ms:
        case -1:
            return Found(log.end_offset, NO_TIMESTAMP, partition.leader_epoch)
        case -2 | -4:
            return Found(log.start_offset, NO_TIMESTAMP, log.earliest_epoch())
        case -3:
            return log.find_largest_timestamp() or _NOT_FOUND
        case -5:
            return _NOT_FOUND
    return log.find_timestamp(timestamp_ms) or _NOT_FOUND
