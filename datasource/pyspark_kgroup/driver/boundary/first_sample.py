"""Has some records read before the first batch of a process, to know how large they are (`maxBytesPerTrigger`).

Runs on: driver, with PySpark 4.0 and 4.1. There a run under AvailableNow is a single batch, and Spark writes its offset
before executors read it: what they see of sizes reaches no later batch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from pyspark_kgroup.driver.batch.leaders import make_ranges
from pyspark_kgroup.limits import RECORD_BYTES_UNKNOWN, SAMPLED_OFFSETS, SAMPLED_PARTITIONS_MAX
from pyspark_kgroup.shared.tickets import OffsetRange
from spark_kgroup.model import TopicDescription, TopicPartition


class FirstSample:
    """The sample of one process, which is taken once.

    Args:
        read: reads these ranges, and tells the sizes of their records to the object of which `record_bytes` asks.
            Raises nothing: without a sample the first batch is small.
    """

    def __init__(self, read: Callable[[Sequence[OffsetRange]], None]) -> None:
        self._read = read
        self._taken = False

    def take(
        self,
        available: Mapping[TopicPartition, tuple[int, int]],
        topics: Mapping[str, TopicDescription],
        limit_bytes: int | None,
    ) -> None:
        """Read the sample, unless it was read before, or the limit holds for records of any size.

        Args:
            available: partition -> its position, and the end of its new offsets.
            topics: as brokers describe them.
            limit_bytes: of the batch.
        """
        if self._taken or limit_bytes is None:
            return
        counts = {tp: end - position for tp, (position, end) in available.items() if end > position}
        if sum(counts.values()) * RECORD_BYTES_UNKNOWN <= limit_bytes:
            return
        self._taken = True
        sampled = ((tp, available[tp]) for tp in _fullest(counts))
        self._read(make_ranges([(tp, (at, min(end, at + SAMPLED_OFFSETS))) for tp, (at, end) in sampled], topics))


def _fullest(counts: Mapping[TopicPartition, int]) -> list[TopicPartition]:
    """Of each topic the partitions with the most new offsets, `SAMPLED_PARTITIONS_MAX` at most."""
    chosen, per_topic = [], Counter[str]()
    for tp in sorted(counts, key=lambda tp: (-counts[tp], tp)):
        per_topic[tp.topic] += 1
        if per_topic[tp.topic] <= SAMPLED_PARTITIONS_MAX:
            chosen.append(tp)
    return chosen
