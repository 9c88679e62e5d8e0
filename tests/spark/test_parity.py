"""Properties of the engine that Spark's tests of its own Kafka source show, and no other test of ours does.

`PARITY.md` beside this file has the whole list.
"""

import json
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from confluent_kafka import Producer
from harness.kafka import contents, produce
from harness.reader_option import READER
from harness.stream import Collected, await_rows, options, wait_running
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import count, unix_millis, window
from pyspark.sql.streaming import StreamingQuery

from spark_kgroup.testing import ApacheKafka

NewTopic = Callable[[int], str]

LONG_MAX = 2**63 - 1


def input_rows(query: StreamingQuery) -> int:
    """How many rows Spark says it has read, in all triggers so far."""
    return sum(json.loads(each.json)["numInputRows"] for each in query.recentProgress)


def test_records_are_counted_in_windows_of_their_own_time_and_in_progress(
    spark: SparkSession, apache_kafka: ApacheKafka, new_topic: NewTopic, group: str, tmp_path: Path
) -> None:
    """Also: the largest limit that Spark can hand back is none."""
    topic, server = new_topic(2), apache_kafka.bootstrap_servers
    first_ms = time.time_ns() // 1_000_000 // 5_000 * 5_000 - 3_600_000
    producer = Producer({"bootstrap.servers": server, "enable.idempotence": True})
    for at_ms in (0, 1, 4_999, 5_000, 60_000):
        producer.produce(topic, b"v", partition=at_ms % 2, timestamp=first_ms + at_ms)
    assert producer.flush(60) == 0
    counted: dict[int, int] = {}

    def collect(frame: DataFrame, _: int) -> None:
        counted.update({row.start - first_ms: row.records for row in frame.collect()})

    frame = spark.readStream.format("kgroup").options(**options(server, topic, group, maxOffsetsPerTrigger=LONG_MAX))
    windows = frame.load().withWatermark("timestamp", "10 seconds").groupBy(window("timestamp", "5 seconds"))
    sums = windows.agg(count("*").alias("records")).select(unix_millis("window.start").alias("start"), "records")
    writer = sums.writeStream.outputMode("complete").option("checkpointLocation", str(tmp_path)).foreachBatch(collect)
    query = writer.trigger(availableNow=True).start()
    assert query.awaitTermination(120)
    assert counted == {0: 3, 5_000: 1, 60_000: 1}
    assert input_rows(query) == 5


def test_a_union_goes_on_with_one_stream_when_the_other_has_run_dry_and_after_a_restart(
    spark: SparkSession, apache_kafka: ApacheKafka, new_topic: NewTopic, group: str, tmp_path: Path
) -> None:
    topics, server = [new_topic(1), new_topic(1)], apache_kafka.bootstrap_servers
    for topic, records in zip(topics, (4, 12), strict=True):
        produce(server, topic, records, partitions=1)
    collected = Collected()

    def stream(topic: str) -> DataFrame:
        read = options(server, topic, f"{group}-{topic}", members=1, maxOffsetsPerTrigger=2)
        return spark.readStream.format("kgroup").options(**read).load()

    for count_so_far in (4 + 6, 4 + 12):
        writer = stream(topics[0]).union(stream(topics[1])).writeStream.foreachBatch(collected)
        writer = writer.option("checkpointLocation", str(tmp_path / "cp"))
        query = writer.trigger(processingTime="100 milliseconds").start()
        await_rows(query, collected, count_so_far)
        query.stop()
    for topic in topics:
        rows = [(partition, offset) for name, partition, offset, _ in collected.rows if name == topic]
        assert rows == sorted(contents(server, topic))
    assert max(Counter(row[0] for row in rows).most_common(1)[0][1] for rows in collected.batches.values() if rows) == 2


def test_a_stream_is_joined_with_itself_where_each_side_has_its_own_group(
    spark: SparkSession, apache_kafka: ApacheKafka, new_topic: NewTopic, group: str, tmp_path: Path
) -> None:
    topic, server = new_topic(2), apache_kafka.bootstrap_servers
    found: list[tuple[int, int, int]] = []

    def side(name: str) -> DataFrame:
        read = options(server, topic, f"{group}-{name}", members=1)
        values = spark.readStream.format("kgroup").options(**read).load()
        return values.selectExpr("CAST(CAST(value AS STRING) AS INT) AS value").selectExpr("value % 5 AS key", "value")

    def collect(frame: DataFrame, _: int) -> None:
        found.extend(tuple(row) for row in frame.collect())

    joined = side("left").join(side("right"), "key")
    writer = joined.writeStream.option("checkpointLocation", str(tmp_path / "cp")).foreachBatch(collect)
    query = writer.trigger(processingTime="100 milliseconds").start()
    produce(server, topic, 2, partitions=2, first=1)
    wait_running(query, lambda: len(found) >= 2, "the first two")
    produce(server, topic, 1, partitions=2, first=6)
    produce(server, topic, 1, partitions=2, first=3)
    wait_running(query, lambda: len(found) >= 6 and input_rows(query) >= 8, "all six, also in progress")
    query.stop()
    assert sorted(found) == [(1, 1, 1), (1, 1, 6), (1, 6, 1), (1, 6, 6), (2, 2, 2), (3, 3, 3)]
    assert input_rows(query) == 8, "each side reads the four records"


def test_a_frame_of_a_batch_read_is_read_twice_in_one_query_and_keeps_its_offsets(
    spark: SparkSession, apache_kafka: ApacheKafka, new_topic: NewTopic
) -> None:
    """Where `format("kafka")` looks anew for each query, a frame of a Python source keeps its first end offsets."""
    topic, server = new_topic(1), apache_kafka.bootstrap_servers
    given = {"kafka.bootstrap.servers": server, "subscribe": topic, "reader": READER}
    produce(server, topic, 11, partitions=1)
    frame = spark.read.format("kgroup").options(**given).load()
    assert sorted(row.offset for row in frame.union(frame).collect()) == sorted([*range(11)] * 2)
    produce(server, topic, 9, partitions=1, first=11)
    assert frame.count() == 11
    assert spark.read.format("kgroup").options(**given).load().count() == 20
