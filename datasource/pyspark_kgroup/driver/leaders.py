"""Who leads a partition, as executors are told.

Runs on: driver. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping

from pyspark_kgroup.shared.tickets import Leader
from spark_kgroup.model import TopicDescription, TopicPartition


def leader_of(topics: Mapping[str, TopicDescription], partition: TopicPartition) -> Leader | None:
    """Who leads `partition`, as far as `topics` say."""
    topic = topics.get(partition.topic)
    leader = topic.leaders.get(partition.partition) if topic is not None else None
    if topic is None or leader is None:
        return None
    return Leader(*leader, topic_id=topic.topic_id.hex if topic.topic_id is not None else "")
