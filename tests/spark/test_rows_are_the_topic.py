"""The stream's rows equal the topic's records exactly, over many micro-batches and across restarts."""

import json
import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from harness.kafka import Producing, contents, produce
from harness.offsets import committed
from harness.reader_option import READER
from harness.stream import Collected, assert_exactly, await_rows, options, start
from harness.waiting import wait_for
from pyarrow.parquet import read_metadata
from pyspark.sql import SparkSession

from pyspark_kgroup.admission import HAS_ADMISSION_CONTROL
from spark_kgroup.testing import ApacheKafka

NewTopic = Callable[[int], str]


@pytest.mark.parametrize(
    "more",
    [
        {},
        pytest.param({"maxOffsetsPerTrigger": 37}, marks=pytest.mark.full),
        pytest.param({"columns": "offset,value,partition,topic"}, marks=pytest.mark.full),
        {"reader": "librdkafka"},
    ],
)
def test_many_batches_while_a_producer_runs(
    spark: SparkSession,
    apache_kafka: ApacheKafka,
    new_topic: NewTopic,
    group: str,
    tmp_path: Path,
    more: dict[str, Any],
) -> None:
    topic = new_topic(4)
    server = apache_kafka.bootstrap_servers
    collected = Collected()
    # Where a batch is limited, a slow query would never catch up with a producer that goes on.
    most = 600 if "maxOffsetsPerTrigger" in more else math.inf
    with Producing(server, topic, partitions=4, per_round=20, pause_s=0.2, most=most) as producing:
        query = start(spark, options(server, topic, group, **more), tmp_path / "cp", collected)
        wait_for(lambda: len(collected.batches) >= 8 or query.exception(), "eight batches", 90)
    await_rows(query, collected, producing.sent, 120)
    query.stop()
    assert_exactly(collected, contents(server, topic))
    if "maxOffsetsPerTrigger" in more:
        assert max(map(len, collected.batches.values())) <= more["maxOffsetsPerTrigger"]


def test_no_file_is_empty_beside_other_files_of_its_batch(
    spark: SparkSession, apache_kafka: ApacheKafka, new_topic: NewTopic, group: str, tmp_path: Path
) -> None:
    """Late tickets may have no range to read. For an empty first one Spark's file writer would make a file."""
    topic, server, sink = new_topic(4), apache_kafka.bootstrap_servers, tmp_path / "sink"
    frame = spark.readStream.format("kgroup").options(**options(server, topic, group, members=4)).load()
    writer = frame.select("partition", "offset").writeStream.format("parquet").option("path", str(sink))
    query = writer.option("checkpointLocation", str(tmp_path / "cp")).trigger(processingTime="100 milliseconds").start()

    def batches() -> list[list[int]]:
        """Rows in each file of each batch that has any."""
        logs = [file for file in (sink / "_spark_metadata").glob("[0-9]*") if file.name.isdecimal()]
        paths = [[json.loads(line)["path"] for line in log.read_text().splitlines()[1:]] for log in logs]
        rows = [[read_metadata(path.removeprefix("file://")).num_rows for path in batch] for batch in paths]
        return [batch for batch in rows if sum(batch)]

    def reached(count: int) -> object:
        return query.exception() or sum(map(sum, batches())) == count

    for number in range(6):
        produce(server, topic, 1, partitions=1, first=number)
        wait_for(partial(reached, number + 1), f"record {number}", 90)
    query.stop()
    assert batches() == [[1]] * 6


def test_a_drained_stream_has_lag_zero_and_one_member_per_seat(
    spark: SparkSession, apache_kafka: ApacheKafka, new_topic: NewTopic, group: str, tmp_path: Path
) -> None:
    topic = new_topic(5)
    server = apache_kafka.bootstrap_servers
    produce(server, topic, 100, partitions=4)  # partition 4 stays empty: its lag must be known all the same
    collected = Collected()
    query = start(spark, options(server, topic, group, members=3), tmp_path / "cp", collected)
    await_rows(query, collected, 100)
    ends = {**dict.fromkeys(range(4), 25), 4: 0}
    wait_for(lambda: committed(server, group, topic, 5) == ends, "lag 0 for every partition", 60)
    members = apache_kafka.describe_members(group)
    assert sorted(m.instance_id or "" for m in members) == [f"{group}-{k}" for k in range(3)]
    assert sorted(len(m.assignment) for m in members) == [1, 2, 2]
    query.stop()


def test_available_now_reads_all_there_is_and_ends(
    spark: SparkSession, apache_kafka: ApacheKafka, new_topic: NewTopic, group: str, tmp_path: Path
) -> None:
    topic = new_topic(3)
    server = apache_kafka.bootstrap_servers
    collected = Collected()
    # Before PySpark 4.2 Spark asks for no boundary after the last batch: the group trails by one run.
    for sent in (0, 90):
        produce(server, topic, 90, partitions=3, first=sent)
        read = options(server, topic, group)
        query = start(spark, read, tmp_path / "cp", collected, trigger={"availableNow": True})
        assert query.awaitTermination(90)
        assert_exactly(collected, contents(server, topic))
        trails_by = 0 if HAS_ADMISSION_CONTROL else 30
        assert committed(server, group, topic, 3) == dict.fromkeys(range(3), sent // 3 + 30 - trails_by)


def test_available_now_with_a_limit_takes_many_batches_from_pyspark_4_2_on_the_later_ones_at_home(
    spark: SparkSession, apache_kafka: ApacheKafka, new_topic: NewTopic, group: str, tmp_path: Path
) -> None:
    topic = new_topic(3)
    server = apache_kafka.bootstrap_servers
    produce(server, topic, 1_290, partitions=3)
    collected = Collected()
    read = options(server, topic, group, maxOffsetsPerTrigger=40)
    query = start(spark, read, tmp_path / "cp", collected, trigger={"availableNow": True})
    assert query.awaitTermination(90)
    taken = [len(rows) for _, rows in sorted(collected.batches.items()) if rows]
    if HAS_ADMISSION_CONTROL:
        assert taken == [40] * 32 + [10]
        assert query.lastProgress is not None
        reads = json.loads(query.lastProgress.json)["sources"][0]["latestOffset"]["reads"]
        assert (reads["at_home"] > 0) == (READER == "native"), "nothing is fetched ahead with librdkafka"
    else:
        assert taken == [40]


@pytest.mark.full
def test_available_now_with_a_limit_in_bytes_reads_about_as_many_in_each_run(
    spark: SparkSession, apache_kafka: ApacheKafka, new_topic: NewTopic, group: str, tmp_path: Path
) -> None:
    topic, limit = new_topic(3), 20_000
    server = apache_kafka.bootstrap_servers
    produce(server, topic, 1_290, partitions=3, size=100)
    collected = Collected()
    read = options(server, topic, group, maxBytesPerTrigger=limit)
    for _ in range(2):
        query = start(spark, read, tmp_path / "cp", collected, trigger={"availableNow": True})
        assert query.awaitTermination(90)
    sizes = [len(rows) * 150 for _, rows in sorted(collected.batches.items()) if rows]
    if HAS_ADMISSION_CONTROL:
        assert_exactly(collected, contents(server, topic))
        sizes = sizes[1:-1]  # nothing is known of the records before the first one
    else:
        assert len(sizes) == 2, "a run is one batch"
    assert sizes
    assert all(limit / 2 < size < limit * 1.2 for size in sizes), sizes


def test_once_reads_all_there_is_in_one_batch(
    spark: SparkSession, apache_kafka: ApacheKafka, new_topic: NewTopic, group: str, tmp_path: Path
) -> None:
    topic = new_topic(2)
    server = apache_kafka.bootstrap_servers
    produce(server, topic, 60, partitions=2)
    collected = Collected()
    limit = {"maxOffsetsPerTrigger": 7} if HAS_ADMISSION_CONTROL else {}  # which is not for this trigger
    query = start(spark, options(server, topic, group, **limit), tmp_path / "cp", collected, trigger={"once": True})
    assert query.awaitTermination(90)
    assert_exactly(collected, contents(server, topic))
    assert len([rows for rows in collected.batches.values() if rows]) == 1


def test_stop_and_restart_from_the_checkpoint(
    spark: SparkSession, apache_kafka: ApacheKafka, new_topic: NewTopic, group: str, tmp_path: Path
) -> None:
    topic = new_topic(4)
    server = apache_kafka.bootstrap_servers
    collected = Collected()
    sent = 0
    for _ in range(3):
        produce(server, topic, 50, partitions=4, first=sent)
        sent += 50
        query = start(spark, options(server, topic, group), tmp_path / "cp", collected)
        await_rows(query, collected, sent)
        query.stop()
    assert_exactly(collected, contents(server, topic))


def test_replay_of_the_last_uncommitted_batch_yields_the_same_rows(
    spark: SparkSession, apache_kafka: ApacheKafka, new_topic: NewTopic, group: str, tmp_path: Path
) -> None:
    topic = new_topic(4)
    server = apache_kafka.bootstrap_servers
    produce(server, topic, 80, partitions=4)
    read = options(server, topic, group)
    collected = Collected()
    query = start(spark, read, tmp_path / "cp", collected)
    await_rows(query, collected, 80)
    produce(server, topic, 40, partitions=4, first=80)
    await_rows(query, collected, 120)
    query.stop()

    # As if the driver had died after the sink wrote and before Spark's commit log.
    last = max(batch for batch, rows in collected.batches.items() if rows)
    first_attempt = sorted(collected.batches[last])
    for batch in range(last, max(collected.batches) + 2):
        for name in (str(batch), f".{batch}.crc"):
            (tmp_path / "cp" / "commits" / name).unlink(missing_ok=True)
            if batch > last:
                (tmp_path / "cp" / "offsets" / name).unlink(missing_ok=True)
    produce(server, topic, 40, partitions=4, first=120)
    again = Collected()
    query = start(spark, read, tmp_path / "cp", again)
    await_rows(query, again, len(first_attempt) + 40)
    query.stop()
    assert sorted(again.batches[last]) == first_attempt
    collected.batches = {**{b: r for b, r in collected.batches.items() if b < last}, **again.batches}
    assert_exactly(collected, contents(server, topic))


def test_idle_triggers_make_no_batches(
    spark: SparkSession, apache_kafka: ApacheKafka, new_topic: NewTopic, group: str, tmp_path: Path
) -> None:
    topic = new_topic(2)
    server = apache_kafka.bootstrap_servers
    produce(server, topic, 10, partitions=2)
    collected = Collected()
    query = start(spark, options(server, topic, group), tmp_path / "cp", collected)
    await_rows(query, collected, 10)
    wait_for(lambda: query.lastProgress and query.status["message"].startswith("Waiting"), "an idle query", 30)
    offsets = tmp_path / "cp" / "offsets"
    before = sorted(p.name for p in offsets.glob("[0-9]*"))
    triggers = len(query.recentProgress)
    wait_for(lambda: len(query.recentProgress) > triggers or not query.status["isDataAvailable"], "an idle trigger", 30)
    produce(server, topic, 10, partitions=2, first=10)
    await_rows(query, collected, 20)
    query.stop()
    after = sorted(p.name for p in offsets.glob("[0-9]*"))
    since = [name for name in after if name not in before]
    assert since
    assert all(collected.batches[int(name)] for name in since), "an idle trigger ran a batch"
    entry = json.loads((offsets / after[-1]).read_text().splitlines()[2])
    assert set(entry) == {"version", "topics", "periods", "owned", "released", "group", "app", "run", "cluster"}
