"""A micro-batch that Spark reads twice, not at all, or not to its end: every record still comes once."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

from harness.kafka import contents, produce
from harness.stream import Collected, assert_exactly, await_rows, options, start, wait_running
from pyspark.sql import DataFrame, SparkSession

from spark_kgroup.testing import ApacheKafka

NewTopic = Callable[[int], str]

ROUNDS = 4


def test_two_jobs_over_each_batch_see_the_same_rows(
    spark: SparkSession, apache_kafka: ApacheKafka, new_topic: NewTopic, group: str, tmp_path: Path
) -> None:
    topic, server = new_topic(4), apache_kafka.bootstrap_servers
    collected = Collected()
    counted: list[tuple[int, int]] = []

    def count_and_collect(frame: DataFrame, batch_id: int) -> None:
        count = frame.count()
        collected(frame, batch_id)
        counted.append((count, len(collected.batches[batch_id])))

    query = start(spark, options(server, topic, group), tmp_path / "cp", count_and_collect)
    for number in range(ROUNDS):
        produce(server, topic, 40, partitions=4, first=40 * number)
        await_rows(query, collected, 40 * (number + 1))
    query.stop()
    assert_exactly(collected, contents(server, topic))
    assert all(first == second for first, second in counted)


def test_two_scans_of_one_batch_read_all_of_it_each(
    spark: SparkSession, apache_kafka: ApacheKafka, new_topic: NewTopic, group: str, tmp_path: Path
) -> None:
    topic, server = new_topic(4), apache_kafka.bootstrap_servers
    frame = spark.readStream.format("kgroup").options(**options(server, topic, group)).load()
    both = frame.selectExpr("*", "1 AS side").union(frame.selectExpr("*", "2 AS side"))
    sides: dict[int, list[tuple[int, int]]] = {1: [], 2: []}

    def collect(batch: DataFrame, _: int) -> None:
        for row in batch.select("side", "partition", "offset").collect():
            sides[row.side].append((row.partition, row.offset))

    writer = both.writeStream.option("checkpointLocation", str(tmp_path / "cp")).foreachBatch(collect)
    query = writer.trigger(processingTime="100 milliseconds").start()

    def reached(count: int) -> bool:
        return sum(map(len, sides.values())) >= count

    for number in range(ROUNDS):
        produce(server, topic, 40, partitions=4, first=40 * number)
        wait_running(query, partial(reached, 80 * (number + 1)), "both sides")
    query.stop()
    assert sorted(sides[1]) == sorted(sides[2]) == sorted(contents(server, topic))


def test_a_batch_whose_reading_stops_early_is_followed_by_whole_ones(
    spark: SparkSession, apache_kafka: ApacheKafka, new_topic: NewTopic, group: str, tmp_path: Path
) -> None:
    topic, server = new_topic(4), apache_kafka.bootstrap_servers
    collected = Collected()

    def look_then_collect(frame: DataFrame, batch_id: int) -> None:
        looked_at = len(frame.limit(3).collect())
        collected(frame, batch_id)
        assert looked_at == min(3, len(collected.batches[batch_id]))  # the first batch may adopt partitions alone

    query = start(spark, options(server, topic, group), tmp_path / "cp", look_then_collect)
    for number in range(ROUNDS):
        produce(server, topic, 4_000, partitions=4, first=4_000 * number)
        await_rows(query, collected, 4_000 * (number + 1))
    query.stop()
    assert_exactly(collected, contents(server, topic))


def test_a_python_stage_behind_the_source_gets_every_row_once(
    spark: SparkSession, apache_kafka: ApacheKafka, new_topic: NewTopic, group: str, tmp_path: Path
) -> None:
    topic, server = new_topic(4), apache_kafka.bootstrap_servers
    frame = spark.readStream.format("kgroup").options(**options(server, topic, group)).load()
    passed = frame.mapInArrow(lambda batches: batches, frame.schema)
    collected = Collected()
    writer = passed.writeStream.option("checkpointLocation", str(tmp_path / "cp")).foreachBatch(collected)
    query = writer.trigger(processingTime="100 milliseconds").start()
    for number in range(ROUNDS):
        produce(server, topic, 40, partitions=4, first=40 * number)
        await_rows(query, collected, 40 * (number + 1))
    query.stop()
    assert_exactly(collected, contents(server, topic))
