"""`endingTimestamp` and its kind on a real Kafka: a stream stops where librdkafka finds the first record so young."""

import json
import time
from collections.abc import Mapping, Sequence
from typing import Any
from uuid import uuid4

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka import TopicPartition as At
from harness import offsets
from harness.kafka import MakeTopic
from harness.query import Query

from pyspark_kgroup.driver.registry.registry import Registry
from pyspark_kgroup.driver.registry.seat_bindings import Scan
from pyspark_kgroup.shared.tickets import Position
from spark_kgroup.testing import ApacheKafka

HOUR_MS = 3_600_000
FIRST_MS = int(time.time() * 1000) - 24 * HOUR_MS
"""Brokers delete records that are a week old."""

HOURS = {0: [1, 5, 3, 2, 8, 8, 13], 1: [4], 2: []}
"""Partition -> the times of its records, in hours since then. Producers may send them in any order."""

MORE = {1: [6, 2], 2: [9]}
"""The records that come while the query runs."""


def send(kafka: ApacheKafka, topic: str, hours: dict[int, list[int]]) -> None:
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "compression.type": "lz4"})
    for partition, each in hours.items():
        for hour in each:
            producer.produce(topic, b"value", partition=partition, timestamp=FIRST_MS + hour * HOUR_MS)
            assert producer.flush(30) == 0


def stops(kafka: ApacheKafka, topic: str, at_ms: int) -> dict[int, int]:
    """Partition -> where librdkafka finds the first record that is not older. Partitions without one are absent."""
    judge = Consumer({"bootstrap.servers": kafka.bootstrap_servers, "group.id": "judge"})
    try:
        found = judge.offsets_for_times([At(topic, partition, at_ms) for partition in HOURS], 30)
    finally:
        judge.close()
    return {at.partition: at.offset for at in found if at.offset >= 0}


def read_by(query: Query) -> dict[int, list[int]]:
    return {partition: [row["offset"] for row in rows] for (_, partition), rows in query.rows.items()}


@pytest.mark.parametrize("hour", [1, 4, 8])
@pytest.mark.parametrize("option", ["endingTimestamp", "endingOffsetsByTimestamp"])
def test_a_stream_stops_where_librdkafka_finds_the_first_record_that_is_not_older(
    apache_kafka: ApacheKafka, new_topic: MakeTopic, hour: int, option: str
) -> None:
    topic, group, at_ms = new_topic(len(HOURS)), f"group-{uuid4().hex[:8]}", FIRST_MS + hour * HOUR_MS
    by_partition = json.dumps({topic: {str(partition): at_ms for partition in HOURS}})
    end = {option: str(at_ms) if option == "endingTimestamp" else by_partition}
    query = Query(apache_kafka.bootstrap_servers, group, topic, executor=None, **end)
    ends = dict.fromkeys(HOURS, 0)

    def read_on(sent: dict[int, list[int]]) -> None:
        send(apache_kafka, topic, sent)
        ends.update({partition: ends[partition] + len(hours) for partition, hours in sent.items()})
        query.settle()
        known = stops(apache_kafka, topic, at_ms)
        assert read_by(query) == {p: list(range(known.get(p, end))) for p, end in ends.items() if known.get(p, end)}

    with query:
        read_on(HOURS)
        read_on(MORE)
    with query:  # a process that knows of no stop yet
        read_on(MORE)


def test_no_seat_fetches_ahead_of_a_partition_at_its_stop(
    apache_kafka: ApacheKafka, new_topic: MakeTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    owned_by_batch: list[dict[int, int]] = []
    plan = Registry.plan

    def watched(registry: Registry, batch: str, reads: Any, owned: Mapping[str, Sequence[Position]]) -> Scan:
        owned_by_batch.append({at.partition: at.offset for each in owned.values() for at in each})
        return plan(registry, batch, reads, owned)

    monkeypatch.setattr(Registry, "plan", watched)
    topic = new_topic(len(HOURS))
    send(apache_kafka, topic, HOURS)
    end = {"endingOffsets": json.dumps({topic: {"0": 3, "1": 2, "2": 5}})}
    with Query(apache_kafka.bootstrap_servers, f"group-{uuid4().hex[:8]}", topic, executor=None, **end) as query:
        query.settle()
        send(apache_kafka, topic, {1: [6]})
        query.settle()
    assert owned_by_batch[0] == {0: 3, 1: 1, 2: 0}, "what is read up to its stop, its server has fetched ahead before"
    assert owned_by_batch[-1] == {1: 2, 2: 0}


def test_deleterecords_at_a_stop_loses_no_record_also_before_a_restart(
    apache_kafka: ApacheKafka, new_topic: MakeTopic
) -> None:
    topic, group = new_topic(len(HOURS)), f"group-{uuid4().hex[:8]}"
    send(apache_kafka, topic, HOURS)
    end = {"endingOffsets": json.dumps({topic: {"0": 3, "1": 2, "2": 0}})}
    query = Query(apache_kafka.bootstrap_servers, group, topic, executor=None, **end)
    with query:
        query.settle()
        where = At(topic, 0, 5)
        apache_kafka.admin.delete_records([where])[where].result(30)
        query.settle()
    send(apache_kafka, topic, MORE)
    with query:
        query.settle()
    assert read_by(query) == {0: [0, 1, 2], 1: [0, 1]}
    assert offsets.committed(apache_kafka.bootstrap_servers, group, topic, len(HOURS)) == {0: 3, 1: 2, 2: 0}
