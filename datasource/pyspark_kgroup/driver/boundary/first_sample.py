"""Has some records read before the first batch of a process, to know how large they are (`maxBytesPerTrigger`).

Runs on: driver, with PySpark 4.0 and 4.1. There a run under AvailableNow is a single batch, and Spark writes its offset
before executors read it: what they see of sizes reaches no later batch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from pyspark_kgroup.limits import RECORD_BYTES_UNKNOWN, SAMPLED_PARTITIONS_MAX, SAMPLED_TOPICS_MAX
from pyspark_kgroup.shared.tickets import OffsetRange
from spark_kgroup.model import TopicPartition


class FirstSample:
    """The sample of one process, which is read before its first batch alone.

    Args:
        read: reads some records of each topic in these ranges, and remembers their sizes. It raises nothing: without a
            sample the first batch is small.
    """

    def __init__(self, read: Callable[[Sequence[OffsetRange]], None]) -> None:
        self._read = read
        self._over = False

    def take(self, available: Mapping[TopicPartition, tuple[int, int]], limit_bytes: int) -> None:
        """Read the sample, if this is the first batch, and its records exceed the limit at 1 MiB each.

        Args:
            available: partition -> its position, and the end of its new offsets.
            limit_bytes: of the batch.
        """
        counts = {tp: end - position for tp, (position, end) in available.items() if end > position}
        if self._over or not counts:
            return
        self._over = True  # executors see the records of the first batch, however few
        if sum(counts.values()) * RECORD_BYTES_UNKNOWN > limit_bytes:
            self._read([OffsetRange(*tp, *available[tp]) for tp in _fullest(counts)])


def _fullest(counts: Mapping[TopicPartition, int]) -> list[TopicPartition]:
    """The partitions with the most new offsets: `SAMPLED_PARTITIONS_MAX` of each topic, `SAMPLED_TOPICS_MAX` topics."""
    chosen, of_topic = [], Counter[str]()
    for tp in sorted(counts, key=lambda tp: (-counts[tp], tp)):
        if tp.topic not in of_topic and len(of_topic) == SAMPLED_TOPICS_MAX:
            continue
        of_topic[tp.topic] += 1
        if of_topic[tp.topic] <= SAMPLED_PARTITIONS_MAX:
            chosen.append(tp)
    return chosen
