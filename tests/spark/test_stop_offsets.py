"""A stream with an end in whole Spark: `availableNow` ends by itself, and under other triggers a listener ends it."""

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer
from harness.kafka import produce
from harness.offsets import committed
from harness.stream import Collected, await_rows, options, start
from harness.waiting import wait_for
from prometheus_client import CollectorRegistry
from pyspark.sql import SparkSession

from pyspark_kgroup.admission import HAS_ADMISSION_CONTROL
from pyspark_kgroup.listener import KgroupListener
from spark_kgroup.testing import ApacheKafka

PARTITIONS = 2
IDLE = "spark.sql.streaming.noDataProgressEventInterval"


@pytest.fixture
def listening(spark: SparkSession) -> Iterator[None]:
    listener = KgroupListener(CollectorRegistry())
    spark.conf.set(IDLE, "500ms")
    spark.streams.addListener(listener)
    yield
    spark.streams.removeListener(listener)
    spark.conf.unset(IDLE)


def places(collected: Collected) -> list[tuple[int, int]]:
    return sorted(row[1:3] for row in collected.rows)


@pytest.mark.skipif(not HAS_ADMISSION_CONTROL, reason="PySpark 4.0 and 4.1 show no latest offset in progress")
def test_a_listener_ends_a_query_whose_stops_are_reached_and_committed(
    spark: SparkSession,
    apache_kafka: ApacheKafka,
    new_topic: Callable[[int], str],
    group: str,
    tmp_path: Path,
    listening: None,
) -> None:
    server, topic, collected = apache_kafka.bootstrap_servers, new_topic(PARTITIONS), Collected()
    produce(server, topic, 100, partitions=PARTITIONS)
    read = options(server, topic, group, endingOffsets=json.dumps({topic: {"0": 30, "1": 60}}))
    query = start(spark, read, tmp_path, collected)
    await_rows(query, collected, 80)
    wait_for(lambda: query.lastProgress is not None and query.lastProgress.numInputRows == 0, "an idle trigger", 60)
    assert query.isActive, "ten records are still to come"
    produce(server, topic, 100, partitions=PARTITIONS, first=100)
    assert query.awaitTermination(120), "nobody has stopped it"
    assert places(collected) == [(0, n) for n in range(30)] + [(1, n) for n in range(60)]
    assert committed(server, group, topic, PARTITIONS) == {0: 30, 1: 60}
    again = start(spark, read, tmp_path, collected)
    assert again.awaitTermination(120), "it has nothing to read, so there is no batch"
    assert len(collected) == 90


def test_available_now_ends_before_the_timestamp(
    spark: SparkSession, apache_kafka: ApacheKafka, new_topic: Callable[[int], str], group: str, tmp_path: Path
) -> None:
    server, topic, collected = apache_kafka.bootstrap_servers, new_topic(PARTITIONS), Collected()
    now_ms = int(time.time() * 1000)
    producer = Producer({"bootstrap.servers": server})
    for index in range(100):
        producer.produce(topic, b"value", partition=index % PARTITIONS, timestamp=now_ms + index)
    assert producer.flush(30) == 0
    read = options(server, topic, group, endingTimestamp=now_ms + 41)
    query = start(spark, read, tmp_path, collected, trigger={"availableNow": True})
    assert query.awaitTermination(120)
    assert places(collected) == [(0, n) for n in range(21)] + [(1, n) for n in range(20)]
