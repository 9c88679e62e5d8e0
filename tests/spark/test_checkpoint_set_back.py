"""A checkpoint that is set back, by hand or by a crash: it decides the offsets of a batch, so no record is skipped.

The group has heard of batches by then that the checkpoint does not know of.
"""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from harness.application import Application, rows
from harness.kafka import contents, produce
from harness.mostly import mostly
from harness.offsets import committed
from harness.stream import Collected, assert_exactly, options, start
from harness.waiting import wait_for
from pyspark.sql import SparkSession

from spark_kgroup.model import CONSUMER
from spark_kgroup.testing import ApacheKafka

NewTopic = Callable[[int], str]

RECORDS = 40
"""Records of each run, over two partitions."""


def to_files(spark: SparkSession, read: dict[str, str], home: Path) -> None:
    """One run of an availableNow query into a file sink. Sink and checkpoint live in `home`."""
    frame = spark.readStream.format("kgroup").options(**read).load().select("partition", "offset")
    writer = frame.writeStream.format("parquet").option("path", str(home / "sink"))
    query = writer.option("checkpointLocation", str(home / "checkpoint")).trigger(availableNow=True).start()
    query.awaitTermination()


def batches_in(checkpoint: Path) -> list[int]:
    """The batches in Spark's commit log, oldest first."""
    return sorted(int(file.name) for file in (checkpoint / "commits").iterdir() if file.name.isdecimal())


def forget_from(checkpoint: Path, batch: int) -> None:
    """The logs' files of this batch and all later ones are gone, with the checksums that Spark keeps beside them."""
    for log in ("offsets", "commits"):
        for file in (checkpoint / log).iterdir():
            number = file.name.removeprefix(".").removesuffix(".crc")
            if number.isdecimal() and int(number) >= batch:
                file.unlink()


@mostly(CONSUMER)
@pytest.mark.usefixtures("group_protocol")
def test_a_restored_checkpoint_and_sink_end_with_every_record_once(
    spark: SparkSession, apache_kafka: ApacheKafka, new_topic: NewTopic, group: str, tmp_path: Path
) -> None:
    topic, server = new_topic(2), apache_kafka.bootstrap_servers
    read, home = options(server, topic, group), tmp_path / "home"
    for number in range(3):
        produce(server, topic, RECORDS, partitions=2, first=RECORDS * number)
        to_files(spark, read, home)
        shutil.copytree(home, tmp_path / f"backup-{number}")
    for number in (1, 0):
        shutil.rmtree(home)
        shutil.copytree(tmp_path / f"backup-{number}", home)
        to_files(spark, read, home)
        found = [(row.partition, row.offset) for row in spark.read.parquet(str(home / "sink")).collect()]
        assert sorted(found) == sorted(contents(server, topic))


def test_a_query_repeats_the_batches_whose_logs_were_deleted(
    spark: SparkSession, apache_kafka: ApacheKafka, new_topic: NewTopic, group: str, tmp_path: Path
) -> None:
    topic, server = new_topic(2), apache_kafka.bootstrap_servers
    read, checkpoint, collected = options(server, topic, group), tmp_path / "checkpoint", Collected()
    for number in range(3):
        produce(server, topic, RECORDS, partitions=2, first=RECORDS * number)
        start(spark, read, checkpoint, collected, trigger={"availableNow": True}).awaitTermination()
    assert sum(committed(server, group, topic, 2).values()) >= 2 * RECORDS
    first = batches_in(checkpoint)[-2]
    forget_from(checkpoint, first)
    collected.batches = {batch: seen for batch, seen in collected.batches.items() if batch < first}
    start(spark, read, checkpoint, collected, trigger={"availableNow": True}).awaitTermination()
    assert_exactly(collected, contents(server, topic))


@pytest.mark.full
@pytest.mark.usefixtures("class_archive")
def test_a_crash_that_loses_the_newest_checkpoint_files_skips_no_record(
    apache_kafka: ApacheKafka, new_topic: NewTopic, group: str, tmp_path: Path
) -> None:
    """1. A batch is in Spark's logs, and committed. 2. The machine dies before its disk has the newest files."""
    topic, server = new_topic(2), apache_kafka.bootstrap_servers
    read = options(server, topic, group)
    produce(server, topic, RECORDS, partitions=2)
    with Application(tmp_path, read, sink="batches") as application:
        application.await_rows(RECORDS)
        produce(server, topic, RECORDS, partitions=2, first=RECORDS)
        application.await_rows(2 * RECORDS)
        wait_for(lambda: committed(server, group, topic, 2) == {0: RECORDS, 1: RECORDS}, "the group to know", 60)
        application.kill()
    newest = max(row.batch_id for row in rows(tmp_path))  # a later one has none: partitions changed their seats
    forget_from(tmp_path / "checkpoint", newest)
    (tmp_path / "sink" / f"batch-{newest}.parquet").unlink()
    assert len(rows(tmp_path)) < 2 * RECORDS
    produce(server, topic, RECORDS, partitions=2, first=2 * RECORDS)
    with Application(tmp_path, read, sink="batches") as application:
        application.await_rows(3 * RECORDS)
        application.stop()
    assert sorted((row.partition, row.offset) for row in rows(tmp_path)) == sorted(contents(server, topic))
