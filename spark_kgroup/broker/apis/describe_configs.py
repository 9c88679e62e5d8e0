"""DescribeConfigs v1 to v4 (key 32), of topics and nodes. v3: types, and documentation (KIP-569), which is null here.

Kafka 4 has no v0. A node has no settings here. Settings of groups are not served.
Source: Kafka's ConfigHelper.describeConfigs.
"""

from __future__ import annotations

from typing import Final

from spark_kgroup.broker.call import Call
from spark_kgroup.broker.cluster import Cluster, Topic
from spark_kgroup.broker.refusal import Refused
from spark_kgroup.broker.topic_configs import SETTINGS
from spark_kgroup.model import ErrorCode
from spark_kgroup.wire.broker_schema import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
)
from spark_kgroup.wire.schema import DescribeConfigsSynonym

TOPIC, BROKER = 2, 4
"""Types of resources (ConfigResource.Type)."""

_OF_TOPIC, _DEFAULT = 1, 5
"""Where a value comes from (DescribeConfigsResponse.ConfigSource)."""

_NO_ROOM: Final = "this broker has settings of topics alone"


def answer(cluster: Cluster, request: DescribeConfigsRequest, _: Call) -> DescribeConfigsResponse:
    """The settings of each topic that was asked for."""
    described = (_described(cluster, each, with_synonyms=request.include_synonyms) for each in request.resources)
    return DescribeConfigsResponse(0, tuple(described))


def topic_of_resource(cluster: Cluster, resource_type: int, name: str) -> Topic:
    """The topic whose settings are described or changed.

    Raises:
        Refused: it is no topic, or there is none of this name.
    """
    if resource_type != TOPIC:
        raise Refused(ErrorCode.INVALID_REQUEST, _NO_ROOM)
    topic = cluster.topics.get(name)
    if topic is None:
        raise Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "This server does not host this topic-partition.")
    return topic


def source_of(topic: Topic, name: str) -> int:
    """Where the topic has the value of a setting from, by Kafka's number."""
    return _OF_TOPIC if name in topic.configs else _DEFAULT


def _described(cluster: Cluster, asked: DescribeConfigsResource, *, with_synonyms: bool) -> DescribeConfigsResult:
    kind, resource = asked.resource_type, asked.resource_name
    if kind == BROKER and resource in {"", *map(str, cluster.nodes)}:
        return DescribeConfigsResult(ErrorCode.NONE, None, kind, resource, ())
    try:
        topic = topic_of_resource(cluster, kind, resource)
    except Refused as refusal:
        return DescribeConfigsResult(refusal.code, refusal.text, kind, resource, ())
    keys = asked.configuration_keys
    configs = tuple(_config(topic, name, with_synonyms) for name in SETTINGS if not keys or name in keys)
    return DescribeConfigsResult(ErrorCode.NONE, None, kind, resource, configs)


def _config(topic: Topic, name: str, with_synonyms: bool) -> DescribeConfigsResourceResult:
    value, source, kind = topic.setting(name), source_of(topic, name), SETTINGS[name].kind
    synonyms: tuple[DescribeConfigsSynonym, ...] = ()
    if with_synonyms:
        default = DescribeConfigsSynonym(name, SETTINGS[name].default, _DEFAULT)
        synonyms = (default,) if source == _DEFAULT else (DescribeConfigsSynonym(name, value, source), default)
    return DescribeConfigsResourceResult(name, value, False, source, False, synonyms, kind, None)
