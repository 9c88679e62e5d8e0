"""CreateTopics v2 to v7 (key 19).

v4: -1 asks for default numbers (KIP-464). v5: the answer has the topic's settings. v7: and its id.

Kafka 4 has no v0 and v1. Source: Kafka's ReplicationControlManager.createTopic.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

from spark_kgroup.broker.apis.describe_configs import source_of
from spark_kgroup.broker.call import Call
from spark_kgroup.broker.cluster import Cluster, Topic
from spark_kgroup.broker.refusal import Refused
from spark_kgroup.broker.topic_configs import SETTINGS
from spark_kgroup.model import ErrorCode
from spark_kgroup.wire.broker_schema import (
    CreatableTopic,
    CreatableTopicConfigs,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)

_DEFAULT: Final = -1
_PARTITIONS: Final = 1
_REPLICATION_FACTOR: Final = 1
"""Kafka: num.partitions and default.replication.factor, both 1."""


def answer(cluster: Cluster, request: CreateTopicsRequest, _: Call) -> CreateTopicsResponse:
    """Create each topic, or say why not. A topic that is named twice is not created."""
    times = Counter(topic.name for topic in request.topics)
    results = [
        _created(cluster, topic, validate_only=request.validate_only)
        for topic in request.topics
        if times[topic.name] == 1
    ]
    twice = [name for name, count in times.items() if count > 1]
    results += [_refused(name, ErrorCode.INVALID_REQUEST, "Duplicate topic name.") for name in twice]
    return CreateTopicsResponse(0, tuple(results))


def _created(cluster: Cluster, wanted: CreatableTopic, *, validate_only: bool) -> CreatableTopicResult:
    configs = {each.name: each.value for each in wanted.configs}
    try:
        assignment = _assignment(cluster, wanted)
        if not validate_only:
            return _result(cluster.create_topic(wanted.name, assignment, configs))
        cluster.check_new_topic(wanted.name, assignment, configs)
    except Refused as refusal:
        return _refused(wanted.name, refusal.code, refusal.text)
    return CreatableTopicResult(
        wanted.name, None, 0, None, num_partitions=len(assignment), replication_factor=len(assignment[0])
    )


def _assignment(cluster: Cluster, wanted: CreatableTopic) -> list[list[int]]:
    if wanted.assignments:
        return _assignment_by_hand(cluster, wanted)
    if wanted.replication_factor < _DEFAULT or wanted.replication_factor == 0:
        text = "Replication factor must be larger than 0, or -1 to use the default value."
        raise Refused(ErrorCode.INVALID_REPLICATION_FACTOR, text)
    if wanted.num_partitions < _DEFAULT or wanted.num_partitions == 0:
        text = "Number of partitions was set to an invalid non-positive value."
        raise Refused(ErrorCode.INVALID_PARTITIONS, text)
    partitions = _PARTITIONS if wanted.num_partitions == _DEFAULT else wanted.num_partitions
    factor = _REPLICATION_FACTOR if wanted.replication_factor == _DEFAULT else wanted.replication_factor
    return cluster.assign(partitions, factor)


def _assignment_by_hand(cluster: Cluster, wanted: CreatableTopic) -> list[list[int]]:
    if wanted.replication_factor != _DEFAULT or wanted.num_partitions != _DEFAULT:
        text = "A manual partition assignment was specified, but the numbers were not set to -1."
        raise Refused(ErrorCode.INVALID_REQUEST, text)
    by_index = {each.partition_index: list(each.broker_ids) for each in wanted.assignments}
    if len(by_index) < len(wanted.assignments) or set(by_index) != set(range(len(by_index))):
        text = "partitions should be a consecutive 0-based integer sequence"
        raise Refused(ErrorCode.INVALID_REPLICA_ASSIGNMENT, text)
    if len(set(map(len, by_index.values()))) > 1:
        text = "all partitions of a topic have the same replication factor"
        raise Refused(ErrorCode.INVALID_REPLICA_ASSIGNMENT, text)
    for replicas in by_index.values():
        cluster.check_assignment(replicas)
    return [by_index[index] for index in range(len(by_index))]


def _result(topic: Topic) -> CreatableTopicResult:
    configs = tuple(
        CreatableTopicConfigs(name, topic.setting(name), False, source_of(topic, name), False) for name in SETTINGS
    )
    partitions, factor = len(topic.partitions), len(topic.partitions[0].replicas)
    return CreatableTopicResult(
        topic.name,
        topic.topic_id,
        ErrorCode.NONE,
        None,
        num_partitions=partitions,
        replication_factor=factor,
        configs=configs,
    )


def _refused(name: str, code: int, text: str) -> CreatableTopicResult:
    return CreatableTopicResult(name, None, code, text)
