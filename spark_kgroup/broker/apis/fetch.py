"""Fetch v4 to v17 (key 1).

v7: sessions (KIP-227). v9: leader epochs (KIP-320). v12: truncation is found while fetching (KIP-595). v13: topics by
id. v15 moves the follower's id to a tag. v16: where leaders listen (KIP-951).

v18 would only add a follower's high watermark. A session is never given: the answer's session id 0 says so, as a broker
does whose cache of sessions is full, and the client goes on with whole requests. Source: Kafka's
ReplicaManager.fetchMessages, Partition.readRecords, FetchManager.newContext.
"""

from __future__ import annotations

from typing import Final

from spark_kgroup.broker.call import Call, Later
from spark_kgroup.broker.cluster import Cluster
from spark_kgroup.broker.log import UNDEFINED, Log
from spark_kgroup.broker.refusal import Refused
from spark_kgroup.model import ErrorCode, TopicPartition
from spark_kgroup.wire.broker_schema import (
    DivergingEpoch,
    FetchableTopicResponse,
    FetchedPartition,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    LeaderIdAndEpoch,
    NodeEndpoint,
)

FETCH_BYTES_MAX: Final = 55 * 2**20
"""Bytes in one answer, beyond its first batch (Kafka: fetch.max.bytes)."""

_BY_ID_SINCE: Final = 13
_NO_SESSION, _INITIAL_EPOCH, _FINAL_EPOCH = 0, 0, -1
_NO_EPOCH: Final = -1
_HINTED: Final = (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH)


def answer(cluster: Cluster, request: FetchRequest, call: Call) -> FetchResponse | Later:
    """The batches that were asked for, or `Later` while there are too few of them."""
    if request.session_epoch not in (_INITIAL_EPOCH, _FINAL_EPOCH):
        return FetchResponse(0, ErrorCode.FETCH_SESSION_ID_NOT_FOUND, _NO_SESSION, ())
    reading = _Reading(cluster, call, min(request.max_bytes, FETCH_BYTES_MAX))
    topics = tuple(reading.topic(each) for each in request.topics)
    waits = request.max_wait_ms > 0 and reading.partitions and reading.bytes < request.min_bytes
    if waits and not reading.ends_at_once and not call.waited:
        return Later(request.max_wait_ms, frozenset(reading.partitions))
    endpoints = tuple(NodeEndpoint(*node) for node in cluster.nodes.values()) if reading.hints else ()
    return FetchResponse(0, ErrorCode.NONE, _NO_SESSION, topics, endpoints)


class _Reading:
    """One answer as it grows.

    Attributes:
        bytes: of all batches in it.
        ends_at_once: whether it has an error or a truncation, and so does not wait for records.
        hints: whether it says where leaders listen.
        partitions: all that it waits for.
    """

    def __init__(self, cluster: Cluster, call: Call, bytes_max: int) -> None:
        self.bytes = 0
        self.ends_at_once = False
        self.hints = False
        self.partitions: set[TopicPartition] = set()
        self._cluster = cluster
        self._call = call
        self._bytes_max = bytes_max

    def topic(self, wanted: FetchTopic) -> FetchableTopicResponse:
        """The partitions of one topic."""
        name: str | None = wanted.topic
        if self._call.version >= _BY_ID_SINCE:
            topic = self._cluster.topic_of(wanted.topic_id)
            name = None if topic is None else topic.name
        partitions = tuple(self._partition(name, each) for each in wanted.partitions)
        return FetchableTopicResponse(wanted.topic, wanted.topic_id, partitions)

    def _partition(self, topic: str | None, wanted: FetchPartition) -> FetchedPartition:
        try:
            if topic is None:
                raise Refused(ErrorCode.UNKNOWN_TOPIC_ID)
            at = TopicPartition(topic, wanted.partition)
            partition = self._cluster.led(self._call.node_id, *at, wanted.current_leader_epoch)
            self.partitions.add(at)
            return self._read(partition.log, wanted)
        except Refused as refusal:
            self.ends_at_once = True
            return self._refused(topic, wanted.partition, refusal.code)

    def _read(self, log: Log, wanted: FetchPartition) -> FetchedPartition:
        diverging = _diverging(log, wanted)
        records = b""
        if diverging == DivergingEpoch():
            bytes_max = min(wanted.partition_max_bytes, self._bytes_max - self.bytes)
            records = log.read(wanted.fetch_offset, bytes_max, at_least_one=self.bytes == 0)
        else:
            self.ends_at_once = True
        self.bytes += len(records)
        end, start = log.end_offset, log.start_offset
        return FetchedPartition(
            wanted.partition, ErrorCode.NONE, end, end, start, diverging_epoch=diverging, records=records
        )

    def _refused(self, topic: str | None, index: int, code: int) -> FetchedPartition:
        leader = LeaderIdAndEpoch()
        if code in _HINTED and topic is not None:
            partition = self._cluster.partition(topic, index)
            leader = LeaderIdAndEpoch(partition.leader, partition.leader_epoch)
            self.hints = True
        return FetchedPartition(index, code, -1, -1, -1, current_leader=leader)


def _diverging(log: Log, wanted: FetchPartition) -> DivergingEpoch:
    """Where the client's log and this one part, the default if they do not (Partition.readRecords).

    Raises:
        Refused: the epoch of the client's last record is unknown here, or its offset is below the start.
    """
    if wanted.last_fetched_epoch == _NO_EPOCH:
        return DivergingEpoch()
    end = log.end_of_epoch(wanted.last_fetched_epoch)
    if end.epoch == UNDEFINED or wanted.fetch_offset < log.start_offset:
        raise Refused(ErrorCode.OFFSET_OUT_OF_RANGE)
    parted = end.epoch < wanted.last_fetched_epoch or end.end_offset < wanted.fetch_offset
    return DivergingEpoch(*end) if parted else DivergingEpoch()
