"""Two readers on the same seats: the newest one keeps them, the older one stops and says why."""

import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from harness.group_history import assert_never_rewound, group_history
from harness.kafka import contents, produce
from harness.mostly import mostly
from harness.stream import Collected, assert_exactly, await_rows, options, start
from harness.waiting import wait_for
from pyspark.sql import DataFrame, SparkSession

from spark_kgroup.model import CLASSIC, CONSUMER
from spark_kgroup.testing import ApacheKafka

NewTopic = Callable[[int], str]
Twice = Callable[[SparkSession, dict[str, str]], DataFrame]

NOTICED_S = 20.0
"""Some heartbeats of the options and an idle batch on a busy machine, and less than the session of 30 s."""


def assert_fenced(error: object, seat_prefix: str) -> None:
    """The error names the seat, and the likely reasons with their fixes."""
    message = str(error)
    assert "FENCED_INSTANCE_ID" in message
    assert f"the seat '{seat_prefix}-" in message
    assert "another query on the same load()" in message
    assert "`instanceIdPrefix`" in message
    assert "a self-join" in message
    assert "`kafka.group.id`" in message
    assert "is an old driver still alive" in message


@mostly(CONSUMER)
@pytest.mark.usefixtures("group_protocol")
def test_an_idle_query_is_fenced_within_a_heartbeat(
    spark: SparkSession, apache_kafka: ApacheKafka, new_topic: NewTopic, group: str, tmp_path: Path
) -> None:
    topic = new_topic(2)
    server = apache_kafka.bootstrap_servers
    read = options(server, topic, group)
    produce(server, topic, 20, partitions=2)
    first, second = Collected(), Collected()
    older = start(spark, read, tmp_path / "one", first)
    await_rows(older, first, 20)
    newer = start(spark, read, tmp_path / "two", second)
    await_rows(newer, second, 20)  # so it has the seats by now
    assert_fenced(wait_for(older.exception, "the fenced error", NOTICED_S), group)
    produce(server, topic, 20, partitions=2, first=20)
    await_rows(newer, second, 40)
    newer.stop()
    assert len(first) == 20
    assert_exactly(second, contents(server, topic))


@mostly(CLASSIC)
@pytest.mark.usefixtures("group_protocol")
def test_a_query_that_is_fenced_inside_a_batch_commits_no_more_offsets(
    spark: SparkSession, apache_kafka: ApacheKafka, new_topic: NewTopic, group: str, tmp_path: Path
) -> None:
    topic = new_topic(2)
    server = apache_kafka.bootstrap_servers
    read = options(
        server,
        topic,
        group,
        startingOffsets="committed",
        instanceIdPrefix="job",
        **{"kafka.auto.offset.reset": "earliest"},
    )
    first, second, in_batch, go_on = Collected(), Collected(), threading.Event(), threading.Event()

    def slow_sink(frame: DataFrame, batch_id: int) -> None:
        if len(first) >= 20:
            in_batch.set()
            assert go_on.wait(120)
        first(frame, batch_id)

    produce(server, topic, 20, partitions=2)
    older = start(spark, read, tmp_path / "one", slow_sink)
    await_rows(older, first, 20)
    finished = set(first.batches)
    produce(server, topic, 20, partitions=2, first=20)
    assert in_batch.wait(60)
    newer = start(spark, read, tmp_path / "two", second)
    await_rows(newer, second, 20)
    produce(server, topic, 20, partitions=2, first=40)
    await_rows(newer, second, 40)
    go_on.set()
    assert_fenced(wait_for(older.exception, "the fenced error", NOTICED_S), "job")
    unfinished = {batch_id: rows for batch_id, rows in first.batches.items() if batch_id not in finished}
    assert len(unfinished) == 1, "the batch that was running is finished, and there is none after it"
    produce(server, topic, 20, partitions=2, first=60)
    await_rows(newer, second, 60)
    newer.stop()
    # The records that both have read are those of the batch that was unfinished when the seats were taken.
    running = {(p, o) for rows in unfinished.values() for _, p, o, _ in rows}
    assert {(p, o) for _, p, o, _ in first.rows} & {(p, o) for _, p, o, _ in second.rows} == running
    assert {(p, o) for _, p, o, _ in [*first.rows, *second.rows]} == contents(server, topic).keys()
    assert_never_rewound(group_history(server, group))


def self_join(spark: SparkSession, read: dict[str, str]) -> DataFrame:
    stream = spark.readStream.format("kgroup").options(**read).load()
    return stream.alias("a").join(stream.alias("b"), ["partition", "offset"]).select("a.*")


def two_loads(spark: SparkSession, read: dict[str, str]) -> DataFrame:
    source = spark.readStream.format("kgroup").options(**read)
    return source.load().union(source.load())


@pytest.mark.parametrize("twice", [self_join, pytest.param(two_loads, marks=pytest.mark.full)])
def test_two_readers_of_one_group_in_one_query_get_an_error_that_explains_both_causes(
    spark: SparkSession, apache_kafka: ApacheKafka, new_topic: NewTopic, group: str, tmp_path: Path, twice: Twice
) -> None:
    topic = new_topic(2)
    produce(apache_kafka.bootstrap_servers, topic, 20, partitions=2)
    frame = twice(spark, options(apache_kafka.bootstrap_servers, topic, group))
    query = (
        frame.writeStream.format("noop")
        .option("checkpointLocation", str(tmp_path / "cp"))
        .trigger(processingTime="100 milliseconds")
        .start()
    )
    assert_fenced(wait_for(query.exception, "the fenced error", 60), group)


def test_a_union_of_one_stream_with_itself_is_one_reader(
    spark: SparkSession, apache_kafka: ApacheKafka, new_topic: NewTopic, group: str, tmp_path: Path
) -> None:
    topic = new_topic(2)
    server = apache_kafka.bootstrap_servers
    produce(server, topic, 20, partitions=2)
    stream = spark.readStream.format("kgroup").options(**options(server, topic, group)).load()
    collected = Collected()
    query = (
        stream.union(stream)
        .writeStream.option("checkpointLocation", str(tmp_path / "cp"))
        .foreachBatch(collected)
        .trigger(processingTime="100 milliseconds")
        .start()
    )
    await_rows(query, collected, 40)
    produce(server, topic, 20, partitions=2, first=20)
    await_rows(query, collected, 80)
    query.stop()
    every = [(p, o) for _, p, o, _ in collected.rows]
    assert sorted(every) == sorted([*contents(server, topic)] * 2)
