"""The first steps of a new user, and Spark's messages about them: our own words, and none of our frames."""

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from harness.application import Application
from harness.kafka import produce
from harness.stream import Collected, await_rows, options, start
from pyspark.sql import DataFrame, SparkSession

from pyspark_kgroup import python, register
from spark_kgroup.testing import ApacheKafka

NewTopic = Callable[[int], str]

PYTHON_LINES_MAX = 3
"""Beside the sentence itself, Spark has one before it and its SQLSTATE."""


def brief_message(action: Callable[[], object]) -> str:
    """Python's part of the error of `action`, without Spark's description of the query below it."""
    with pytest.raises(Exception, match="kgroup") as problem:
        action()
    message = str(problem.value).partition("=== Streaming Query ===")[0].partition("JVM stacktrace")[0].strip()
    assert "Traceback" not in message
    assert 'File "' not in message
    assert len(message.splitlines()) <= PYTHON_LINES_MAX, message
    return message


def stream(spark: SparkSession, read: dict[str, str]) -> DataFrame:
    return spark.readStream.format("kgroup").options(**read).load()


def run(spark: SparkSession, read: dict[str, str], checkpoint: Path) -> None:
    start(spark, read, checkpoint, Collected()).awaitTermination(120)


# ------------------------------------------------------------------------------------ uses that are refused


@pytest.mark.parametrize("mode", ["append", "overwrite"])
def test_a_batch_write_is_refused_with_the_way_out(spark: SparkSession, mode: str) -> None:
    message = brief_message(lambda: spark.range(3).write.format("kgroup").mode(mode).save())
    assert 'write with format("kafka")' in message


def test_a_stream_of_another_source_into_kgroup_is_refused_with_the_way_out(
    spark: SparkSession, tmp_path: Path
) -> None:
    rows = spark.readStream.format("rate").load()
    writer = rows.writeStream.format("kgroup").option("checkpointLocation", str(tmp_path))
    message = brief_message(lambda: writer.start().awaitTermination(120))
    assert 'write with format("kafka")' in message


# --------------------------------------------------------------------------------------- errors at a start


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"subscribe": "no-such-topic"}, "'no-such-topic' does not exist"),
        ({"members": "none"}, "Option members is 'none'"),
        ({"kafka.error_cb": "1"}, "Option kafka.error_cb cannot be used"),
        ({"kafka.bootstrap.servers": "127.0.0.1:1"}, "No broker could be reached"),
        ({"startingOffsets": '{"TOPIC": {"0": 1}}'}, "does not name TOPIC-1, TOPIC-2: "),
        ({"startingOffsets": '{"TOPIC": {"0": 0, "1": 0, "2": 0, "9": 0}}'}, "do not exist: TOPIC-9."),
        (
            {"startingOffsets": '{"TOPIC": {"0": 7, "1": 8, "2": 0}}'},
            "beyond the end of TOPIC-0: 7 (ends at 0), TOPIC-1",
        ),
        ({"kafka.session.timeout.ms": "1000"}, "Option kafka.heartbeat.interval.ms is 500 ms"),
    ],
)
def test_an_error_at_a_start_is_our_sentence_and_no_frame(
    spark: SparkSession,
    apache_kafka: ApacheKafka,
    new_topic: NewTopic,
    group: str,
    tmp_path: Path,
    changes: dict[str, str],
    message: str,
) -> None:
    topic = new_topic(3)
    read = options(apache_kafka.bootstrap_servers, topic, group) | changes
    read["startingOffsets"] = read["startingOffsets"].replace("TOPIC", topic)
    assert message.replace("TOPIC", topic) in brief_message(lambda: run(spark, read, tmp_path / "cp"))


def test_a_schema_of_the_users_own_is_refused_in_brief(
    spark: SparkSession, apache_kafka: ApacheKafka, new_topic: NewTopic, group: str, tmp_path: Path
) -> None:
    read = options(apache_kafka.bootstrap_servers, new_topic(1), group)
    frame = spark.readStream.format("kgroup").schema("value string").options(**read).load()
    writer = frame.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "cp"))
    assert "remove .schema" in brief_message(lambda: writer.start().awaitTermination(120))


def test_an_unfinished_first_batch_of_the_built_in_source_is_refused_with_the_way_out(
    spark: SparkSession, apache_kafka: ApacheKafka, new_topic: NewTopic, group: str, tmp_path: Path
) -> None:
    topic, checkpoint = new_topic(1), tmp_path / "cp"
    read, collected = options(apache_kafka.bootstrap_servers, topic, group), Collected()
    produce(apache_kafka.bootstrap_servers, topic, 10, partitions=1)
    query = start(spark, read, checkpoint, collected)
    await_rows(query, collected, 10)
    query.stop()
    for path in [*(checkpoint / "offsets").iterdir(), *(checkpoint / "commits").iterdir()]:
        if path.name != "0" or path.parent.name == "commits":
            path.unlink()
    first = checkpoint / "offsets" / "0"  # as KafkaSourceOffset writes it
    *head, _ = first.read_text().splitlines()
    first.write_text("\n".join([*head, json.dumps({topic: {"0": 10}})]))
    assert 'Finish it with format("kafka")' in brief_message(lambda: run(spark, read, checkpoint))


# -------------------------------------------------------------------------------------- warnings at a start


@pytest.mark.full
def test_a_start_warns_of_idle_seats_of_a_start_at_the_end_and_of_another_checkpoint(
    apache_kafka: ApacheKafka, new_topic: NewTopic, group: str, tmp_path: Path
) -> None:
    """More seats than partitions, a group without offsets, by the default, then another group and topic."""
    server, first, second = apache_kafka.bootstrap_servers, new_topic(2), new_topic(2)
    read = options(server, first, group, members=5)
    del read["startingOffsets"]
    log = tmp_path / "driver.log"
    with Application(tmp_path, read, trigger="availableNow") as application:
        assert application.await_end() == 0
    log_text = log.read_text()
    assert "5 seats for 2 partitions: 3 seats stay without a partition" in log_text
    assert f"no committed offsets for {first}-0, {first}-1: reading starts at the end" in log_text
    assert "The checkpoint" not in log_text
    with Application(tmp_path, options(server, second, f"{group}-2"), trigger="availableNow") as application:
        assert application.await_end() == 0
    log_text = log.read_text().removeprefix(log_text)
    assert f"written by group '{group}', but kafka.group.id is '{group}-2'" in log_text
    assert f"topics {first}, of which this query reads none" in log_text
    assert "seats for 2 partitions" not in log_text


def test_register_warns_of_an_environment_that_was_not_activated(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    register(spark)
    assert caplog.text == ""
    (tmp_path / "python3").symlink_to(sys.executable)
    for name in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON", "PYSPARK_GATEWAY_PORT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    register(spark)
    assert f"Spark starts {tmp_path / 'python3'}" in caplog.text
    assert f"PYSPARK_PYTHON={python()}" in caplog.text
