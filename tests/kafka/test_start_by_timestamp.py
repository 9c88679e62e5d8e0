"""`startingTimestamp` and its kind on a real Kafka: offsets as librdkafka finds them, and the records that are read."""

import json
import time
from collections.abc import Iterator
from uuid import uuid4

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka import TopicPartition as At
from harness.query import Query

from spark_kgroup.errors import OptionError
from spark_kgroup.testing import ApacheKafka

HOUR_MS = 3_600_000
FIRST_MS = int(time.time() * 1000) - 24 * HOUR_MS
"""Brokers delete records that are a week old."""

HOURS = {0: [1, 5, 3, 2, 8, 8, 13], 1: [4], 2: []}
"""Partition -> the times of its records, in hours since then. Producers may send them in any order."""


@pytest.fixture(scope="module")
def topic(apache_kafka: ApacheKafka) -> str:
    name = f"timestamps-{uuid4().hex[:8]}"
    apache_kafka.create_topic(name, partitions=len(HOURS))
    producer = Producer({"bootstrap.servers": apache_kafka.bootstrap_servers, "compression.type": "lz4"})
    for partition, hours in HOURS.items():
        for hour in hours:
            producer.produce(name, b"value", partition=partition, timestamp=FIRST_MS + hour * HOUR_MS)
            producer.flush(30)
    return name


@pytest.fixture(scope="module")
def judge(apache_kafka: ApacheKafka) -> Iterator[Consumer]:
    consumer = Consumer({"bootstrap.servers": apache_kafka.bootstrap_servers, "group.id": "judge"})
    yield consumer
    consumer.close()


def read(kafka: ApacheKafka, topic: str, **options: str) -> dict[int, list[int]]:
    """Partition -> offsets that a new query reads."""
    with Query(kafka.bootstrap_servers, f"group-{uuid4().hex[:8]}", topic, executor=None, **options) as query:
        query.settle()
    return {partition: [row["offset"] for row in rows] for (_, partition), rows in query.rows.items()}


@pytest.mark.parametrize("hour", [0, 1, 2, 4, 6, 8, 9, 13])
def test_a_query_starts_where_librdkafka_finds_the_first_record_that_is_not_older(
    apache_kafka: ApacheKafka, topic: str, judge: Consumer, hour: int
) -> None:
    at_ms = FIRST_MS + hour * HOUR_MS
    asked = [At(topic, partition, at_ms) for partition in HOURS]
    ends = {partition: len(hours) for partition, hours in HOURS.items()}
    found = {at.partition: at.offset for at in judge.offsets_for_times(asked, 30)}
    starts = {partition: offset if offset >= 0 else ends[partition] for partition, offset in found.items()}
    expected = {p: list(range(start, ends[p])) for p, start in starts.items() if start < ends[p]}
    strategy = {"startingOffsetsByTimestampStrategy": "latest"}
    assert read(apache_kafka, topic, startingTimestamp=str(at_ms), **strategy) == expected
    by_partition = json.dumps({topic: {str(partition): at_ms for partition in HOURS}})
    assert read(apache_kafka, topic, startingOffsetsByTimestamp=by_partition, **strategy) == expected


@pytest.mark.parametrize(("hour", "expected"), [(4, {0: [1, 2, 3, 4, 5, 6], 1: [0]}), (6, {0: [4, 5, 6]}), (14, {})])
def test_a_group_without_offsets_starts_a_duration_ago(
    apache_kafka: ApacheKafka, topic: str, hour: int, expected: dict[int, list[int]]
) -> None:
    """KIP-1106. Where there is no record since then, a partition starts at its end."""
    ago_s = int(time.time()) - (FIRST_MS + hour * HOUR_MS) // 1000
    options = {"startingOffsets": "committed", "kafka.auto.offset.reset": f"by_duration:PT{ago_s + 60}S"}
    assert read(apache_kafka, topic, **options) == expected


def test_a_query_fails_where_a_partition_has_no_record_so_young_unless_it_may_start_at_the_end(
    apache_kafka: ApacheKafka, topic: str
) -> None:
    at_ms = FIRST_MS + 5 * HOUR_MS
    with pytest.raises(OptionError, match=rf"in {topic}-1 \({at_ms} ms: 2\d\d\d-[-0-9: ]+ UTC\), {topic}-2 \("):
        read(apache_kafka, topic, startingTimestamp=str(at_ms))
