"""What a micro-batch reads: decided by its two offsets alone, on every replay, whoever owns the partitions by then.

Runs on: driver. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping

from pyspark_kgroup.checkpoint import Checkpoint, Owned
from spark_kgroup.model import TopicPartition

Ranges = dict[TopicPartition, tuple[int, int]]
"""Partition -> (first offset, one past the last)."""


def ranges_by_seat(start: Checkpoint, end: Checkpoint) -> dict[str, Ranges]:
    """Everything between `start` and `end`, by the instance id of the seat that owned it.

    For each partition in `end`: from where `start` stands if both are the same ownership period, else from where the
    period in `end` began (design section 7). Seats without data are absent.

    Raises:
        AssertionError: `end` lies before `start` within one period: a bug, never a user's fault.
    """
    plan: dict[str, Ranges] = {}
    for partition, owned in sorted(end.owned.items(), key=lambda item: item[0]):
        first = _first_offset(start, end, partition, owned)
        assert owned.position >= first, f"{partition} would run backwards: {first} to {owned.position}"
        if owned.position > first:
            plan.setdefault(owned.period.seat, {})[partition] = (first, owned.position)
    return plan


def _first_offset(start: Checkpoint, end: Checkpoint, partition: TopicPartition, owned: Owned) -> int:
    before = start.owned.get(partition)
    same_topic = _topic_id(start, partition) == _topic_id(end, partition)
    if before is not None and same_topic and before.period == owned.period:
        return before.position
    return owned.period.start


def _topic_id(checkpoint: Checkpoint, partition: TopicPartition) -> str | None:
    topic = checkpoint.topics.get(partition.topic)
    return topic.topic_id if topic is not None else None


def limited(available: Mapping[TopicPartition, tuple[int, int]], limit: int | None) -> dict[TopicPartition, int]:
    """End offsets that take at most `limit` offsets in all, shared in proportion to what each partition has.

    Args:
        available: partition -> (position, end offset), position <= end offset.
        limit: offsets for the whole batch (Spark's maxOffsetsPerTrigger), at least 1; None takes everything.

    Returns:
        Partition -> new position. If `limit` cuts, exactly `limit` offsets are taken.
    """
    sizes = {tp: end - position for tp, (position, end) in available.items()}
    total = sum(sizes.values())
    if limit is None or total <= limit:
        return {tp: end for tp, (_, end) in available.items()}
    shares = {tp: size * limit // total for tp, size in sizes.items()}
    left = limit - sum(shares.values())
    # What rounding left over goes to the largest remainders, so that no partition starves.
    by_remainder = sorted(sizes, key=lambda tp: (-(sizes[tp] * limit % total), tp))
    for tp in by_remainder[:left]:
        shares[tp] += 1
    return {tp: position + shares[tp] for tp, (position, _) in available.items()}
