"""A query is changed from `format("kafka")` to `format("kgroup")` on its checkpoint, and goes on; and the way back."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from harness.kafka import produce
from harness.offsets import committed
from harness.stream import Collected, options
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col, count, lit, raise_error, timestamp_seconds, unix_timestamp, when, window
from pyspark.sql.functions import sum as total
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamReader
from typer.testing import CliRunner

from pyspark_kgroup.admission import HAS_ADMISSION_CONTROL
from pyspark_kgroup.checkpoint_files.command import export_files, show_files
from pyspark_kgroup.checkpoint_files.files import LocalFiles, checksum_of
from pyspark_kgroup.checkpoint_files.hadoop_files import HadoopFiles
from pyspark_kgroup.offsets.checkpoint import Checkpoint, Owned, Period, Topic
from spark_kgroup.admin.cli import app
from spark_kgroup.model import TopicPartition
from spark_kgroup.testing import ApacheKafka

NewTopic = Callable[[int], str]

pytestmark = pytest.mark.usefixtures("kafka_source")

PARTITIONS = 2
A_BATCH = 40
RECORD_S, WINDOW_S, LATE_S = 10, 60, 30
"""The n-th record is of second 10 n, and windows close when the watermark has passed them."""


class Job:
    """A windowed count with a watermark, appended to files, on either source."""

    def __init__(self, spark: SparkSession, server: str, topic: str, group: str, folder: Path) -> None:
        self.spark, self.server, self.topic, self.group, self.folder = spark, server, topic, group, folder
        self.sent = 0

    def produce(self, count: int) -> None:
        produce(self.server, self.topic, count, partitions=PARTITIONS, first=self.sent)
        self.sent += count

    def read(self, source: str, name: str, starts: str) -> DataFrame:
        kafka = {"kafka.bootstrap.servers": self.server, "subscribe": self.topic}
        read = kafka if source == "kafka" else options(self.server, self.topic, self.group)
        read |= {"maxOffsetsPerTrigger": str(A_BATCH), "startingOffsets": starts}
        reader = self.spark.readStream.format(source).options(**read)
        return (reader.name(name) if name else reader).load()

    def run(self, source: str, fails_at: int = -1, *, name: str = "", starts: str = "earliest") -> list[dict[str, Any]]:
        """Read all there is, and return the progress of each batch. The job fails at one record, if it is there."""
        number = col("value").cast("string").cast("long")
        broken = raise_error(lit("the job fails here")).cast("long")
        read = self.read(source, name, starts).select(
            when(number == fails_at, broken).otherwise(number).alias("number")
        )
        windows = (
            read.withColumn("at", timestamp_seconds(col("number") * RECORD_S))
            .withWatermark("at", f"{LATE_S} seconds")
            .groupBy(window("at", f"{WINDOW_S} seconds"))
            .agg(count("*").alias("records"), total("number").alias("sum"))
            .select(unix_timestamp("window.start").alias("start"), "records", "sum")
        )
        writer = windows.writeStream.option("checkpointLocation", str(self.folder / "checkpoint")).format("parquet")
        query = writer.trigger(availableNow=True).start(str(self.folder / "table"))
        return end(query)

    def rows(self) -> list[tuple[int, int, int]]:
        return sorted(tuple(row) for row in self.spark.read.parquet(str(self.folder / "table")).collect())

    def truth(self) -> list[tuple[int, int, int]]:
        """The windows of all records that the watermark has passed."""
        closed_s = (self.sent - 1) * RECORD_S - LATE_S
        found: dict[int, list[int]] = {}
        for number in range(self.sent):
            found.setdefault(number * RECORD_S // WINDOW_S * WINDOW_S, []).append(number)
        return [(at, len(of), sum(of)) for at, of in sorted(found.items()) if at + WINDOW_S <= closed_s]

    def batches(self, log: str) -> list[int]:
        """The numbers of the batches that a log of Spark's has. The sink's is made compact at every tenth."""
        return sorted(int(path.stem) for path in (self.folder / log).iterdir() if path.stem.isdecimal())


def end(query: StreamingQuery) -> list[dict[str, Any]]:
    query.awaitTermination(120)
    assert not query.isActive
    return [json.loads(progress.json) for progress in query.recentProgress]


@pytest.fixture
def job(
    spark: SparkSession, apache_kafka: ApacheKafka, new_topic: NewTopic, group: str, tmp_path: Path
) -> Iterator[Job]:
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    yield Job(spark, apache_kafka.bootstrap_servers, new_topic(PARTITIONS), group, tmp_path)
    spark.conf.unset("spark.sql.session.timeZone")


def test_a_stateful_query_that_failed_within_a_batch_goes_on_with_kgroup_and_moves_back(job: Job) -> None:
    job.produce(A_BATCH)
    job.run("kafka")
    job.produce(2 * A_BATCH)
    with pytest.raises(Exception, match="the job fails here"):
        job.run("kafka", fails_at=job.sent - 1)
    planned = job.batches("checkpoint/offsets")[-1]
    assert planned == job.batches("checkpoint/commits")[-1] + 1, "the last batch is not finished"

    job.produce(A_BATCH + 10)
    runs = 1 if HAS_ADMISSION_CONTROL else 3  # a batch each
    there = [batch for _ in range(runs) for batch in job.run("kgroup")]
    assert (there[0]["batchId"], there[0]["numInputRows"]) == (planned, A_BATCH), "the batch as it was planned"
    assert sum(batch["numInputRows"] for batch in there) == 2 * A_BATCH + 10
    if HAS_ADMISSION_CONTROL:  # else the last run's batch is committed by the next one
        assert sum(committed(job.server, job.group, job.topic, PARTITIONS).values()) == job.sent, "the group knows"

    exported = CliRunner().invoke(app, ["checkpoint", "export", "--checkpoint", str(job.folder / "checkpoint")])
    assert json.loads(exported.stdout) == {job.topic: dict.fromkeys("01", job.sent // PARTITIONS)}
    job.produce(A_BATCH)
    back = job.run("kafka")
    assert sum(batch["numInputRows"] for batch in back) == A_BATCH
    assert job.rows() == job.truth()
    assert (
        job.batches("table/_spark_metadata")
        == job.batches("checkpoint/commits")
        == list(range(back[-1]["batchId"] + 1))
    )


def test_one_of_two_sources_of_a_query_is_moved_and_the_other_one_stays(
    spark: SparkSession, apache_kafka: ApacheKafka, new_topic: NewTopic, group: str, tmp_path: Path
) -> None:
    server, collected = apache_kafka.bootstrap_servers, Collected()
    topics = [new_topic(PARTITIONS), new_topic(PARTITIONS)]

    def read(source: str, topic: str) -> DataFrame:
        chosen = options(server, topic, f"{group}-{topic}") if source == "kgroup" else {"subscribe": topic}
        defaults = {"kafka.bootstrap.servers": server, "startingOffsets": "earliest"}
        return spark.readStream.format(source).options(**defaults | chosen).load()

    def run(*sources: str) -> None:
        for topic in topics:
            produce(server, topic, A_BATCH, partitions=PARTITIONS, first=len(collected))
        one, another = map(read, sources, topics)
        writer = one.union(another).writeStream.option("checkpointLocation", str(tmp_path)).foreachBatch(collected)
        end(writer.trigger(availableNow=True).start())

    run("kafka", "kafka")
    run("kgroup", "kafka")
    run("kgroup", "kgroup")
    expected = [(topic, p, at) for topic in topics for p in range(PARTITIONS) for at in range(3 * A_BATCH // 2)]
    assert sorted(row[:3] for row in collected.rows) == sorted(expected)


def test_a_checkpoint_behind_a_file_system_of_hadoop_s_is_exported_as_on_this_disk(
    spark: SparkSession, tmp_path: Path
) -> None:
    """With the checksums that Spark looks at."""
    period = Period(topic_id="id", start=0, seat="g-0", generation=1)
    offset = Checkpoint(
        owned={TopicPartition("t", 0): Owned(period=period, position=5)},
        topics={"t": Topic(topic_id="id", first_sight=1)},
        group="g",
    ).to_json()
    text = "\n".join(["v1", "{}", json.dumps(offset)]).encode()
    for name, content in {"offsets/7": text, "commits/7": b"v1\n{}"}.items():
        LocalFiles(tmp_path).write(name, content)
    (tmp_path / "offsets" / ".7.crc").write_bytes(checksum_of(text))
    files = HadoopFiles(spark, tmp_path.as_uri())
    assert export_files(files, None, dry_run=False)["backup"] == f"{tmp_path.as_uri()}/kgroup-backup/offsets-7"
    exported = b'v1\n{}\n{"t":{"0":5}}'
    assert (tmp_path / "offsets" / "7").read_bytes() == files.read("offsets/7") == exported
    assert (tmp_path / "offsets" / ".7.crc").read_bytes() == checksum_of(exported)
    assert (tmp_path / "kgroup-backup" / "offsets-7").read_bytes() == text
    assert sorted(files.names("offsets")) == ["7"], "no file is left over"
    assert show_files(files)["partitions"][0]["position"] == 5


@pytest.mark.full
@pytest.mark.skipif(not hasattr(DataStreamReader, "name"), reason="sources have names since PySpark 4.2")
def test_named_sources_are_exchanged_there_and_back_and_need_no_export(job: Job) -> None:
    evolution = "spark.sql.streaming.queryEvolution.enableSourceEvolution"
    job.spark.conf.set(evolution, "true")
    try:
        job.produce(A_BATCH)
        stopped = job.run("kafka", name="kafka")[-1]["sources"][0]["endOffset"]
        job.produce(A_BATCH)
        job.run("kgroup", name="kgroup", starts=json.dumps(stopped))
        positions = committed(job.server, job.group, job.topic, PARTITIONS)
        job.produce(A_BATCH)
        starts = {job.topic: {str(partition): offset for partition, offset in positions.items()}}
        job.run("kafka", name="kafka_again", starts=json.dumps(starts))
    finally:
        job.spark.conf.unset(evolution)
    assert job.rows() == job.truth()
    assert job.batches("table/_spark_metadata") == job.batches("checkpoint/commits")
