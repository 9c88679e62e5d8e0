"""Metadata v0 to v12 (key 3).

v1: null, not an empty list, asks for all topics. v5: offline replicas. v7: leader epochs. v10: topic ids. v12: topics
may be asked for by id.

v13 would only add an error for the whole answer, which asks a client to begin anew (KIP-1102). Source: Kafka's
KafkaApis.handleTopicMetadataRequest, KRaftMetadataCache.
"""

from __future__ import annotations

from typing import Final

from spark_kgroup.broker.call import Call
from spark_kgroup.broker.cluster import Cluster, Node, Topic
from spark_kgroup.broker.refusal import Refused
from spark_kgroup.model import ErrorCode, is_kafka_name
from spark_kgroup.wire.broker_schema import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)

_NULL_MEANS_ALL_SINCE: Final = 1
_BY_ID_SINCE: Final = 12


def answer(cluster: Cluster, request: MetadataRequest, call: Call) -> MetadataResponse:
    """Nodes, and the topics that were asked for."""
    asked = request.topics
    if asked is None or (not asked and call.version < _NULL_MEANS_ALL_SINCE):
        topics = tuple(map(_found, cluster.topics.values()))
    else:
        topics = tuple(_topic(cluster, each, request.allow_auto_topic_creation, call) for each in asked)
    brokers = tuple(map(_broker, cluster.nodes.values()))
    return MetadataResponse(0, brokers, cluster.cluster_id, cluster.controller_id, topics)


def _broker(node: Node) -> MetadataResponseBroker:
    return MetadataResponseBroker(node.node_id, node.host, node.port, node.rack)


def _topic(cluster: Cluster, asked: MetadataRequestTopic, may_create: bool, call: Call) -> MetadataResponseTopic:
    if asked.topic_id is not None and call.version >= _BY_ID_SINCE:
        by_id = cluster.topic_of(asked.topic_id)
        if by_id is not None:
            return _found(by_id)
        return MetadataResponseTopic(ErrorCode.UNKNOWN_TOPIC_ID, None, asked.topic_id, False, ())
    name = asked.name or ""
    if (topic := cluster.topics.get(name)) is not None:
        return _found(topic)
    return MetadataResponseTopic(_code_of_unknown(cluster, name, may_create), name, None, False, ())


def _code_of_unknown(cluster: Cluster, name: str, may_create: bool) -> int:
    """Creates the topic if that is allowed: it is there when the client asks again, as with Kafka."""
    if not is_kafka_name(name):
        return ErrorCode.INVALID_TOPIC_EXCEPTION
    if not (may_create and cluster.auto_create):
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    try:
        cluster.create_topic(name, cluster.assign(1, 1))
    except Refused as refusal:
        return refusal.code
    return ErrorCode.LEADER_NOT_AVAILABLE


def _found(topic: Topic) -> MetadataResponseTopic:
    partitions = tuple(
        MetadataResponsePartition(
            ErrorCode.NONE, index, each.leader, each.leader_epoch, each.replicas, each.replicas, ()
        )
        for index, each in enumerate(topic.partitions)
    )
    return MetadataResponseTopic(ErrorCode.NONE, topic.name, topic.topic_id, False, partitions)
