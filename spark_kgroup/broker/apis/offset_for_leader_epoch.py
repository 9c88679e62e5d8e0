"""OffsetForLeaderEpoch v2 to v4 (key 23). v3: the asking replica. v4 differs in its lengths alone.

Kafka 4 has no v0 and v1. Source: Kafka's Partition.lastOffsetForLeaderEpoch.
"""

from __future__ import annotations

from spark_kgroup.broker.call import Call
from spark_kgroup.broker.cluster import Cluster
from spark_kgroup.broker.log import UNDEFINED
from spark_kgroup.broker.refusal import Refused
from spark_kgroup.model import ErrorCode
from spark_kgroup.wire.broker_schema import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopicResult,
)


def answer(cluster: Cluster, request: OffsetForLeaderEpochRequest, call: Call) -> OffsetForLeaderEpochResponse:
    """Where each leader epoch ends."""
    topics = tuple(
        OffsetForLeaderTopicResult(
            topic.topic, tuple(_end(cluster, topic.topic, each, call) for each in topic.partitions)
        )
        for topic in request.topics
    )
    return OffsetForLeaderEpochResponse(0, topics)


def _end(cluster: Cluster, topic: str, asked: OffsetForLeaderPartition, call: Call) -> EpochEndOffset:
    try:
        partition = cluster.led(call.node_id, topic, asked.partition, asked.current_leader_epoch)
    except Refused as refusal:
        return EpochEndOffset(refusal.code, asked.partition, UNDEFINED, UNDEFINED)
    return EpochEndOffset(ErrorCode.NONE, asked.partition, *partition.log.end_of_epoch(asked.leader_epoch))
