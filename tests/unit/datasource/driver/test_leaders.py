"""The ranges in tickets: the offsets, the leader of each partition, and the id of its topic."""

from dataclasses import replace
from uuid import UUID

from pyspark_kgroup.driver.batch.leaders import make_ranges
from pyspark_kgroup.shared.tickets import Leader, OffsetRange
from spark_kgroup.model import PartitionLeader, TopicDescription, TopicPartition

TOPIC_ID = UUID(int=7)
T = TopicDescription(
    name="t", topic_id=TOPIC_ID, partition_count=2, leaders={0: PartitionLeader(1, "broker", 9092, epoch=5)}
)
LED, UNLED = T.partitions


def test_a_range_has_the_leader_of_its_partition_and_the_id_of_its_topic_once() -> None:
    """The id is in the leader. A second copy would make tickets of many partitions longer."""
    (made,) = make_ranges([(LED, (5, 10))], {"t": T})
    assert made == OffsetRange("t", 0, 5, 10, Leader(1, "broker", 9092, 5, TOPIC_ID.hex), unled_topic_id="")
    assert made.topic_id == TOPIC_ID.hex


def test_a_range_without_a_leader_has_the_id_of_its_topic_all_the_same() -> None:
    """Without it, a task would not notice that the topic was created again after the batch was planned."""
    (made,) = make_ranges([(UNLED, (5, 10))], {"t": T})
    assert made == OffsetRange("t", 1, 5, 10, None, unled_topic_id=TOPIC_ID.hex)
    assert made.topic_id == TOPIC_ID.hex


def test_a_range_of_a_cluster_without_topic_ids_has_none() -> None:
    topics = {"t": replace(T, topic_id=None)}
    assert [made.topic_id for made in make_ranges([(LED, (0, 1)), (UNLED, (0, 1))], topics)] == ["", ""]


def test_a_range_of_a_topic_that_brokers_did_not_describe_has_neither_leader_nor_id() -> None:
    assert make_ranges([(TopicPartition("u", 3), (5, 10))], {"t": T}) == (OffsetRange("u", 3, 5, 10, None, ""),)
