"""CreatePartitions v0 to v3 (key 37), which differ in their lengths alone.

Source: Kafka's ReplicationControlManager.createPartitions.
"""

from __future__ import annotations

from spark_kgroup.broker.call import Call
from spark_kgroup.broker.cluster import Cluster, Topic
from spark_kgroup.broker.refusal import Refused
from spark_kgroup.model import ErrorCode
from spark_kgroup.wire.broker_schema import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
    CreatePartitionsTopicResult,
)


def answer(cluster: Cluster, request: CreatePartitionsRequest, _: Call) -> CreatePartitionsResponse:
    """Grow each topic to the count that is asked for."""
    results = tuple(_grown(cluster, each, validate_only=request.validate_only) for each in request.topics)
    return CreatePartitionsResponse(0, results)


def _grown(cluster: Cluster, wanted: CreatePartitionsTopic, *, validate_only: bool) -> CreatePartitionsTopicResult:
    try:
        topic = cluster.topics.get(wanted.name)
        if topic is None:
            raise Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "This server does not host this topic-partition.")
        assignment = _assignment(cluster, topic, wanted)
    except Refused as refusal:
        return CreatePartitionsTopicResult(wanted.name, refusal.code, refusal.text)
    if not validate_only:
        cluster.add_partitions(topic, assignment)
    return CreatePartitionsTopicResult(wanted.name, ErrorCode.NONE, None)


def _assignment(cluster: Cluster, topic: Topic, wanted: CreatePartitionsTopic) -> list[list[int]]:
    there = len(topic.partitions)
    added = wanted.total_count - there
    if added == 0:
        raise Refused(ErrorCode.INVALID_PARTITIONS, f"Topic already has {there} partition(s).")
    if added < 0:
        text = f"The topic {topic.name} has {there} partition(s), and {wanted.total_count} would not be an increase."
        raise Refused(ErrorCode.INVALID_PARTITIONS, text)
    factor = len(topic.partitions[0].replicas)
    if wanted.assignments is None:
        return cluster.assign(added, factor, first=there)
    by_hand = [list(each.broker_ids) for each in wanted.assignments]
    if len(by_hand) != added or any(len(replicas) != factor for replicas in by_hand):
        text = f"{added} partition(s) of {factor} replica(s) are added, and the assignment has others"
        raise Refused(ErrorCode.INVALID_REPLICA_ASSIGNMENT, text)
    for replicas in by_hand:
        cluster.check_assignment(replicas)
    return by_hand
