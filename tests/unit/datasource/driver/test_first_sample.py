"""Which records are read before the first batch where a run may have one batch alone, and when none are."""

from collections.abc import Mapping, Sequence

import pytest

from pyspark_kgroup.driver.boundary.first_sample import FirstSample
from pyspark_kgroup.limits import RECORD_BYTES_UNKNOWN, SAMPLED_PARTITIONS_MAX, SAMPLED_TOPICS_MAX
from pyspark_kgroup.shared.tickets import OffsetRange
from spark_kgroup.model import TopicPartition

LIMIT = 10 * RECORD_BYTES_UNKNOWN


class Sample:
    """Remembers which ranges were read."""

    def __init__(self) -> None:
        self.read: list[Sequence[OffsetRange]] = []
        self.first = FirstSample(self.read.append)

    def take(self, available: Mapping[TopicPartition, tuple[int, int]]) -> None:
        self.first.take(available, LIMIT)

    def spans(self) -> dict[tuple[str, int], tuple[int, int]]:
        (ranges,) = self.read
        return {(r.topic, r.partition): (r.start_offset, r.end_offset) for r in ranges}


def available(**partitions: tuple[int, int]) -> dict[TopicPartition, tuple[int, int]]:
    return {TopicPartition(name[0], int(name[1:])): span for name, span in partitions.items()}


def test_of_each_topic_the_fullest_partitions_are_read_from_where_the_batch_begins() -> None:
    sample = Sample()
    sample.take(available(t0=(5, 30), t1=(9, 9), t2=(0, 5_000), t3=(100, 5_000), t4=(0, 24), u0=(7, 8)))
    assert sample.spans() == {("t", 2): (0, 5_000), ("t", 3): (100, 5_000), ("t", 0): (5, 30), ("u", 0): (7, 8)}


def test_of_very_many_topics_the_fullest_are_read() -> None:
    sample = Sample()
    topics = range(SAMPLED_TOPICS_MAX + 50)
    sample.take({TopicPartition(f"t{n}", p): (0, 10 + n) for n in topics for p in range(5)})
    read = {topic for topic, _ in sample.spans()}
    assert read == {f"t{n}" for n in topics[50:]}
    assert len(sample.spans()) == SAMPLED_TOPICS_MAX * SAMPLED_PARTITIONS_MAX


@pytest.mark.parametrize(("records", "samples"), [(1_000, 1), (10, 0)], ids=["more than fit", "all fit"])
def test_a_sample_is_read_before_the_first_batch_alone(records: int, samples: int) -> None:
    """Executors tell the sizes of the records that it has."""
    sample = Sample()
    sample.take(available(t0=(3, 3)))
    for end in (records, 5_000):
        sample.take(available(t0=(0, end)))
    assert len(sample.read) == samples
