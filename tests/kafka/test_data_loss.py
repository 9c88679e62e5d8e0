"""Logs that no longer have what is asked of them, on a real Kafka: an error that says all, or a skip with a warning."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from uuid import uuid4

import pytest
from confluent_kafka import TopicPartition as AssignedPartition
from harness.kafka import produce

from pyspark_kgroup.options import parse
from pyspark_kgroup.worker import Range, SeatRanges, read_range
from spark_kgroup.errors import DataLoss
from spark_kgroup.testing import ApacheKafka

NewTopic = Callable[[int], str]


@pytest.fixture
def new_topic(apache_kafka: ApacheKafka) -> NewTopic:
    def make(partitions: int) -> str:
        name = f"loss-{uuid4().hex[:8]}"
        apache_kafka.create_topic(name, partitions)
        return name

    return make


def delete_records(kafka: ApacheKafka, topic: str, partition: int, before: int) -> None:
    where = AssignedPartition(topic, partition, before)
    kafka.admin.delete_records([where])[where].result(30)


def delete_topic(kafka: ApacheKafka, topic: str) -> None:
    kafka.admin.delete_topics([topic])[topic].result(30)


# ----------------------------------------------------------------------------------------------- executors


def seat(kafka: ApacheKafka, ranges: Sequence[Range], *, fail: bool) -> SeatRanges:
    required = {"kafka.bootstrap.servers": kafka.bootstrap_servers, "kafka.group.id": "g", "subscribe": "t"}
    config = parse({**required, "kafka.topic.metadata.propagation.max.ms": "500"}).consumer_config()
    return SeatRanges(seat="g-0", ranges=tuple(ranges), consumer_config=config, fail_on_data_loss=fail)


def read(reads: SeatRanges) -> dict[tuple[str, int], list[int]]:
    """(topic, partition) -> the offsets read, in order; an answer within 60 s."""
    found: dict[tuple[str, int], list[int]] = {}
    for batch in read_range(reads, stall_timeout_ms=60_000):
        for row in batch.select(["topic", "partition", "offset"]).to_pylist():
            found.setdefault((row["topic"], row["partition"]), []).append(row["offset"])
    return found


def assert_loss(
    reads: SeatRanges, told: str, left: dict[tuple[str, int], list[int]], log: pytest.LogCaptureFixture
) -> None:
    """One error that says all, or the rows that are `left` and a warning that says the same."""
    with pytest.raises(DataLoss, match=told + r".+failOnDataLoss=false.+fresh checkpoint"):
        read(replace(reads, fail_on_data_loss=True))
    with log.at_level(logging.WARNING, "pyspark_kgroup.worker"):
        assert read(replace(reads, fail_on_data_loss=False)) == left
    (warning,) = [record.getMessage() for record in log.records if "Data loss" in record.getMessage()]
    assert told.replace("\\", "") in warning


def test_records_that_are_deleted_before_they_are_read(
    apache_kafka: ApacheKafka, new_topic: NewTopic, caplog: pytest.LogCaptureFixture
) -> None:
    topic = new_topic(2)
    produce(apache_kafka.bootstrap_servers, topic, 200, partitions=2)
    delete_records(apache_kafka, topic, 0, 40)
    reads = seat(apache_kafka, [Range(topic, 0, 10, 90), Range(topic, 1, 0, 100)], fail=True)
    told = f"Offsets 10 to 89 of {topic}-0 were still to be read, but the log has 40 to 99"
    left = {(topic, 0): list(range(40, 90)), (topic, 1): list(range(100))}
    assert_loss(reads, told, left, caplog)


def test_all_records_of_a_range_are_deleted(
    apache_kafka: ApacheKafka, new_topic: NewTopic, caplog: pytest.LogCaptureFixture
) -> None:
    topic = new_topic(1)
    produce(apache_kafka.bootstrap_servers, topic, 100, partitions=1)
    delete_records(apache_kafka, topic, 0, 100)
    reads = seat(apache_kafka, [Range(topic, 0, 10, 90)], fail=True)
    assert_loss(
        reads, f"Offsets 10 to 89 of {topic}-0 were still to be read, but the log is empty and ends at 100", {}, caplog
    )


@pytest.mark.parametrize("first", [3, 5, 10])
def test_a_log_that_ends_before_the_range_does(
    apache_kafka: ApacheKafka, new_topic: NewTopic, caplog: pytest.LogCaptureFixture, first: int
) -> None:
    topic = new_topic(1)
    produce(apache_kafka.bootstrap_servers, topic, 5, partitions=1)
    reads = seat(apache_kafka, [Range(topic, 0, first, 20)], fail=True)
    told = f"Offsets {max(first, 5)} to 19 of {topic}-0 were still to be read, but the log has 0 to 4"
    left = {(topic, 0): list(range(first, 5))} if first < 5 else {}
    assert_loss(reads, told, left, caplog)


def test_a_topic_that_is_deleted_does_not_hold_up_the_others(
    apache_kafka: ApacheKafka, new_topic: NewTopic, caplog: pytest.LogCaptureFixture
) -> None:
    gone, there = new_topic(1), new_topic(1)
    for topic in (gone, there):
        produce(apache_kafka.bootstrap_servers, topic, 50, partitions=1)
    delete_topic(apache_kafka, gone)
    reads = seat(apache_kafka, [Range(gone, 0, 10, 50), Range(there, 0, 10, 50)], fail=True)
    told = f"Offsets 10 to 49 of {gone}-0 were still to be read, but the partition does not exist any more"
    assert_loss(reads, told, {(there, 0): list(range(10, 50))}, caplog)


def test_a_partition_that_its_new_topic_does_not_have(
    apache_kafka: ApacheKafka, new_topic: NewTopic, caplog: pytest.LogCaptureFixture
) -> None:
    topic = new_topic(1)
    produce(apache_kafka.bootstrap_servers, topic, 50, partitions=1)
    reads = seat(apache_kafka, [Range(topic, 0, 10, 50), Range(topic, 1, 10, 50)], fail=True)
    told = f"Offsets 10 to 49 of {topic}-1 were still to be read, but the partition does not exist any more"
    assert_loss(reads, told, {(topic, 0): list(range(10, 50))}, caplog)
