"""The ranges in tickets: their offsets, and the leaders of their partitions.

Runs on: driver. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from pyspark_kgroup.shared.tickets import Leader, OffsetRange
from spark_kgroup.model import TopicDescription, TopicPartition


def make_ranges(
    piece: Iterable[tuple[TopicPartition, tuple[int, int]]], topics: Mapping[str, TopicDescription]
) -> tuple[OffsetRange, ...]:
    """The ranges that one task reads, with the leaders and ids as `topics` have them."""
    return tuple(_make_range(tp, span, topics) for tp, span in piece)


def _make_range(tp: TopicPartition, span: tuple[int, int], topics: Mapping[str, TopicDescription]) -> OffsetRange:
    leader = find_leader(topics, tp)
    return OffsetRange(*tp, *span, leader, "" if leader is not None else _hex_id(topics.get(tp.topic)))


def find_leader(topics: Mapping[str, TopicDescription], partition: TopicPartition) -> Leader | None:
    """The leader of `partition`, or None if `topics` do not have it."""
    topic = topics.get(partition.topic)
    leader = topic.leaders.get(partition.partition) if topic is not None else None
    if topic is None or leader is None:
        return None
    return Leader(*leader, topic_id=_hex_id(topic))


def _hex_id(topic: TopicDescription | None) -> str:
    return topic.topic_id.hex if topic is not None and topic.topic_id is not None else ""
