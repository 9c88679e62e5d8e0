"""DeleteTopics v1 to v6 (key 20). v5: the answer has a text. v6: topics may be named by id.

Kafka 4 has no v0. Source: Kafka's ControllerApis.deleteTopics.
"""

from __future__ import annotations

from typing import Final

from spark_kgroup.broker.call import Call
from spark_kgroup.broker.cluster import Cluster
from spark_kgroup.model import ErrorCode
from spark_kgroup.wire.broker_schema import (
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)

_BY_ID_SINCE: Final = 6


def answer(cluster: Cluster, request: DeleteTopicsRequest, call: Call) -> DeleteTopicsResponse:
    """Delete each topic that there is."""
    by_name = tuple(DeleteTopicState(name, None) for name in request.topic_names)
    wanted = request.topics if call.version >= _BY_ID_SINCE else by_name
    return DeleteTopicsResponse(0, tuple(_deleted(cluster, each) for each in wanted))


def _deleted(cluster: Cluster, wanted: DeleteTopicState) -> DeletableTopicResult:
    if (wanted.name is None) == (wanted.topic_id is None):
        text = "You must specify either a topic name or a topic id, and not both."
        return DeletableTopicResult(wanted.name, wanted.topic_id, ErrorCode.INVALID_REQUEST, text)
    by_id = wanted.name is None
    topic = cluster.topic_of(wanted.topic_id) if by_id else cluster.topics.get(wanted.name or "")
    if topic is None:
        code = ErrorCode.UNKNOWN_TOPIC_ID if by_id else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return DeletableTopicResult(wanted.name, wanted.topic_id, code, None)
    cluster.delete_topic(topic)
    return DeletableTopicResult(topic.name, topic.topic_id, ErrorCode.NONE, None)
