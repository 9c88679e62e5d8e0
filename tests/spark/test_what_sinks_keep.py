"""A sink keeps two things beyond a batch: the batch's frame, and the numbers of the batches that it has seen."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from harness.kafka import produce
from harness.offsets import lag
from harness.stream import options, start
from harness.waiting import wait_for
from prometheus_client import CollectorRegistry
from pyspark.sql import DataFrame, SparkSession

from pyspark_kgroup.listener import KgroupListener
from spark_kgroup.testing import ApacheKafka

PARTITIONS = 4
KEPT = 4
LATER = 5


def test_a_frame_that_foreach_batch_has_kept_can_be_computed_again_some_batches_later(
    spark: SparkSession, apache_kafka: ApacheKafka, new_topic: Callable[[int], str], group: str, tmp_path: Path
) -> None:
    server, topic = apache_kafka.bootstrap_servers, new_topic(PARTITIONS)
    produce(server, topic, 2_000, partitions=PARTITIONS)
    frames: dict[int, DataFrame] = {}
    rows: dict[int, list[tuple[int, int]]] = {}

    def of(frame: DataFrame) -> list[tuple[int, int]]:
        return sorted((row.partition, row.offset) for row in frame.select("partition", "offset").collect())

    def keep(frame: DataFrame, batch_id: int) -> None:
        frames[batch_id], rows[batch_id] = frame, of(frame)

    query = start(spark, options(server, topic, group, maxOffsetsPerTrigger="40"), tmp_path, keep)
    wait_for(lambda: max(rows, default=0) >= KEPT + LATER or not query.isActive, "some batches", 120)
    assert rows[KEPT] != []
    assert of(frames[KEPT]) == rows[KEPT]
    query.stop()


def test_a_query_goes_on_after_a_batch_that_foreach_batch_does_not_look_at(
    spark: SparkSession, apache_kafka: ApacheKafka, new_topic: Callable[[int], str], group: str, tmp_path: Path
) -> None:
    """Spark plans no tickets for it, and before 4.2 has no other call that says where the next one begins."""
    server, topic = apache_kafka.bootstrap_servers, new_topic(1)
    produce(server, topic, 200, partitions=1)
    seen: list[int] = []
    offsets: list[int] = []

    def sink(frame: DataFrame, batch_id: int) -> None:
        seen.append(batch_id)
        if batch_id % 2:
            offsets.extend(row.offset for row in frame.select("offset").collect())

    query = start(spark, options(server, topic, group, members="1", maxOffsetsPerTrigger="20"), tmp_path, sink)
    wait_for(lambda: lag(server, group, topic) == 0 or not query.isActive, "the end", 120)
    query.stop()
    assert seen == list(range(len(seen)))
    assert offsets == sorted(set(offsets)), "nothing twice"
    assert 80 <= len(offsets) <= 120, "every other batch of 20"


def test_a_listener_warns_of_a_first_batch_that_the_sink_has_skipped(
    spark: SparkSession,
    apache_kafka: ApacheKafka,
    new_topic: Callable[[int], str],
    group: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The checkpoint was deleted, the table kept, and the records that came since are in no table."""
    server, topic, listener = apache_kafka.bootstrap_servers, new_topic(2), KgroupListener(CollectorRegistry())
    read = options(server, topic, group)

    def run() -> int:
        frame = spark.readStream.format("kgroup").options(**read).load()
        writer = frame.writeStream.option("checkpointLocation", str(tmp_path / "checkpoint")).format("parquet")
        writer.trigger(availableNow=True).start(str(tmp_path / "table")).awaitTermination()
        return spark.read.parquet(str(tmp_path / "table")).count()

    spark.streams.addListener(listener)
    produce(server, topic, 100, partitions=2)
    assert run() == 100
    shutil.rmtree(tmp_path / "checkpoint")
    produce(server, topic, 40, partitions=2, first=100)
    assert "no task has read" not in caplog.text
    assert run() == 100
    wait_for(lambda: "A batch of 140 offsets is done, and no task has read" in caplog.text, "the warning", 60)
    spark.streams.removeListener(listener)
