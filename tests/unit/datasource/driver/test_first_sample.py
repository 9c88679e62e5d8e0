"""Which records are read before the first batch where a run may have one batch alone, and when none are."""

from collections.abc import Mapping, Sequence
from uuid import UUID

import pytest

from pyspark_kgroup.driver.boundary.first_sample import FirstSample
from pyspark_kgroup.limits import RECORD_BYTES_UNKNOWN, SAMPLED_OFFSETS
from pyspark_kgroup.shared.tickets import OffsetRange
from spark_kgroup.model import PartitionLeader, TopicDescription, TopicPartition

LIMIT = 10 * RECORD_BYTES_UNKNOWN
TOPICS = {
    "t": TopicDescription(
        name="t", partition_count=5, topic_id=UUID(int=7), leaders={3: PartitionLeader(1, "b", 9092, 4)}
    )
}


class Sample:
    """Remembers which ranges were read."""

    def __init__(self) -> None:
        self.read: list[Sequence[OffsetRange]] = []
        self.first = FirstSample(self.read.append)

    def take(self, available: Mapping[TopicPartition, tuple[int, int]], limit: int | None = LIMIT) -> None:
        self.first.take(available, TOPICS, limit)

    def spans(self) -> dict[tuple[str, int], tuple[int, int]]:
        (ranges,) = self.read
        return {(r.topic, r.partition): (r.start_offset, r.end_offset) for r in ranges}


def available(**partitions: tuple[int, int]) -> dict[TopicPartition, tuple[int, int]]:
    return {TopicPartition(name[0], int(name[1:])): span for name, span in partitions.items()}


def test_of_each_topic_the_fullest_partitions_are_read_from_where_the_batch_begins() -> None:
    sample = Sample()
    sample.take(available(t0=(5, 30), t1=(9, 9), t2=(0, 5_000), t3=(100, 5_000), t4=(0, 24), u0=(7, 8)))
    assert sample.spans() == {
        ("t", 2): (0, SAMPLED_OFFSETS),
        ("t", 3): (100, 100 + SAMPLED_OFFSETS),
        ("t", 0): (5, 30),
        ("u", 0): (7, 8),
    }
    (led,) = [r for r in sample.read[0] if (r.topic, r.partition) == ("t", 3)]
    assert led.leader is not None
    assert led.leader.topic_id == UUID(int=7).hex


def test_one_sample_is_read_in_the_life_of_a_process() -> None:
    sample = Sample()
    for end in (1_000, 2_000):
        sample.take(available(t0=(0, end)))
    assert len(sample.read) == 1


@pytest.mark.parametrize(
    ("spans", "limit"),
    [({"t0": (0, 10)}, LIMIT), ({"t0": (3, 3)}, LIMIT), ({"t0": (0, 1_000)}, None)],
    ids=["records of any size fit", "no record", "no limit in bytes"],
)
def test_nothing_is_read_where_sizes_do_not_matter_but_a_later_batch_has_its_sample(
    spans: dict[str, tuple[int, int]], limit: int | None
) -> None:
    sample = Sample()
    sample.take(available(**spans), limit)
    assert sample.read == []
    sample.take(available(t0=(0, 1_000)))
    assert len(sample.read) == 1
