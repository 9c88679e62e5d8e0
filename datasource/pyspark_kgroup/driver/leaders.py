"""What tickets say of a range: its offsets, and who leads its partition.

Runs on: driver. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from pyspark_kgroup.shared.tickets import Leader, Range
from spark_kgroup.model import TopicDescription, TopicPartition

if TYPE_CHECKING:
    from pyspark_kgroup.offsets.pieces import Piece


def ranges_of(piece: Piece, topics: Mapping[str, TopicDescription]) -> tuple[Range, ...]:
    """What one task reads, with the leaders as `topics` say."""
    return tuple(Range(*tp, *span, leader_of(topics, tp)) for tp, span in piece)


def leader_of(topics: Mapping[str, TopicDescription], partition: TopicPartition) -> Leader | None:
    """Who leads `partition`, as far as `topics` say."""
    topic = topics.get(partition.topic)
    leader = topic.leaders.get(partition.partition) if topic is not None else None
    if topic is None or leader is None:
        return None
    return Leader(*leader, topic_id=topic.topic_id.hex if topic.topic_id is not None else "")
