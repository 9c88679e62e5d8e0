"""A stream reader whose JVM was killed alone sends its group no more requests, wherever it stood, and ends.

The reader is Spark's real process. Its JVM is `harness.fake_jvm`, which a test can kill. It stands at a named point, is
stopped, loses its JVM, and wakes when the restarted query has its seats and has run batches. But for the last test it
is not ended by its watch over the JVM, which might come late: its requests must be right without the watch.
"""

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from harness.group_history import assert_never_rewound, group_history
from harness.kafka import produce
from harness.reader_process import ReaderProcess
from harness.waiting import wait_for

from pyspark_kgroup.offsets.checkpoint import EMPTY, Checkpoint
from pyspark_kgroup.shared.columns import COLUMNS, spark_schema
from pyspark_kgroup.source import DefaultSource
from spark_kgroup.errors import FencedInstanceId
from spark_kgroup.limits import STARTUP_TIMEOUT_MS
from spark_kgroup.testing import ApacheKafka

PARTITIONS = 4
RECORDS = 400


class Query:
    """The restarted query: the reader that Spark would ask, in this process, and the offset of Spark's logs."""

    def __init__(self, options: dict[str, str], durable: dict[str, Any] | None = None) -> None:
        self._reader: Any = DefaultSource(options).streamReader(spark_schema(COLUMNS))
        self.durable: dict[str, Any] = EMPTY.to_json() if durable is None else durable

    def __enter__(self) -> "Query":
        return self

    def __exit__(self, *_: object) -> None:
        self._reader.stop()

    def run_batch(self) -> dict[int, int]:
        """Run one batch, and return where it ends. The offset that was durable before is committed to the group."""
        end = self._reader.latestOffset(self.durable, None)
        if end != self.durable:
            self._reader.partitions(self.durable, end)
        self.durable = end
        return positions(end)


def positions(offset: dict[str, Any]) -> dict[int, int]:
    """Partition -> where the batch ends."""
    return {tp.partition: held.position for tp, held in Checkpoint.from_json(offset).owned.items()}


@pytest.fixture
def options(apache_kafka: ApacheKafka) -> dict[str, str]:
    """Options of a query on a topic of its own. Each batch reads 10 records of each partition."""
    topic = f"topic-{uuid4().hex[:8]}"
    apache_kafka.create_topic(topic, partitions=PARTITIONS)
    produce(apache_kafka.bootstrap_servers, topic, RECORDS, partitions=PARTITIONS)
    return {
        "kafka.bootstrap.servers": apache_kafka.bootstrap_servers,
        "kafka.group.id": f"of-{topic}",
        "subscribe": topic,
        "members": "2",
        "startingOffsets": "earliest",
        "maxOffsetsPerTrigger": "40",
        "kafka.session.timeout.ms": "30000",
        "kafka.heartbeat.interval.ms": "200",
    }


@pytest.fixture
def orphan(options: dict[str, str], tmp_path: Path, stop_at: str) -> Iterator[ReaderProcess]:
    """A reader that stands at the named point of its first boundary, stopped, with a dead JVM."""
    with ReaderProcess(tmp_path, options, stop_at, outlives_its_jvm=True) as reader:
        stand_still(reader, EMPTY.to_json())
        reader.kill_jvm()
        yield reader


def stand_still(reader: ReaderProcess, start: dict[str, Any]) -> None:
    """Let a reader come to its named point, and stop it there."""
    reader.ask(start)
    reader.await_stop_point()
    reader.pause()


def go_on(reader: ReaderProcess) -> None:
    """Let a stopped reader go on from its named point, until it has ended."""
    reader.release()
    reader.resume()
    reader.await_end()


def assert_goes_on(successor: Query, options: dict[str, str]) -> None:
    """The living query runs batches, its next start goes on exactly, and no commit of the group ever fell."""
    before = max(positions(successor.durable).values())
    assert set(successor.run_batch().values()) == {before + 10}
    assert set(successor.run_batch().values()) == {before + 20}
    with Query(options, successor.durable) as next_start:
        assert set(next_start.run_batch().values()) == {before + 30}
    assert_never_rewound(group_history(options["kafka.bootstrap.servers"], options["kafka.group.id"]))


@pytest.mark.parametrize(
    "stop_at",
    [
        "before connecting",
        "before join",
        "join parked",
        "before sync",
        "sync parked",
        "during adoption",
        "before start is committed",
        "after start is committed",
    ],
)
def test_a_reader_whose_jvm_is_gone_leaves_its_successor_alone(orphan: ReaderProcess, options: dict[str, str]) -> None:
    with Query(options) as successor:
        assert [set(successor.run_batch().values()) for _ in range(3)] == [{10}, {20}, {30}]
        go_on(orphan)
        assert_goes_on(successor, options)


def test_a_reader_whose_jvm_is_gone_moves_no_start_at_latest_forward(options: dict[str, str], tmp_path: Path) -> None:
    options["startingOffsets"] = "latest"
    with ReaderProcess(tmp_path, options, "before join", outlives_its_jvm=True) as reader:
        stand_still(reader, EMPTY.to_json())
        reader.kill_jvm()
        with Query(options) as successor:
            assert set(successor.run_batch().values()) == {RECORDS // PARTITIONS}
            produce(options["kafka.bootstrap.servers"], options["subscribe"], RECORDS, partitions=PARTITIONS)
            successor.run_batch()
            go_on(reader)
            assert_goes_on(successor, options)


def test_a_reader_whose_jvm_is_gone_does_not_join_when_it_has_its_look_at_the_group(
    options: dict[str, str], tmp_path: Path
) -> None:
    with Query(options) as first:
        first.run_batch()
    stop_at = "before the look at the group"
    with ReaderProcess(tmp_path, options, stop_at, outlives_its_jvm=True) as reader:
        stand_still(reader, first.durable)
        reader.kill_jvm()
        with Query(options, first.durable) as successor:
            successor.run_batch()
            go_on(reader)
            assert_goes_on(successor, options)


def test_a_reader_that_is_held_up_while_its_query_is_stopped_and_started_again_leaves_it_alone(
    options: dict[str, str], tmp_path: Path
) -> None:
    with ReaderProcess(tmp_path, options, "before join", outlives_its_jvm=True) as reader:
        stand_still(reader, EMPTY.to_json())
        reader.stop_query()
        with Query(options) as successor:
            successor.run_batch()
            go_on(reader)
            assert_goes_on(successor, options)


@pytest.mark.parametrize("starting", ["earliest", "latest"])
def test_a_reader_that_was_held_up_together_with_its_jvm_takes_the_seats_and_moves_no_offset(
    options: dict[str, str], tmp_path: Path, starting: str
) -> None:
    # It looks like a second driver, and the newest driver keeps the seats. But it is an older run.
    options["startingOffsets"] = starting
    with ReaderProcess(tmp_path, options, "before join") as reader:
        stand_still(reader, EMPTY.to_json())
        with Query(options) as second:
            second.run_batch()
            produce(options["kafka.bootstrap.servers"], options["subscribe"], RECORDS, partitions=PARTITIONS)
            second.run_batch()
            second.run_batch()
            reader.release()
            reader.resume()
            reader.answer()
            with pytest.raises(FencedInstanceId):
                wait_for(lambda: not second.run_batch(), "the second driver to be fenced")
        reader.stop_query()
        reader.await_end()
    with Query(options, second.durable) as next_start:
        assert set(next_start.run_batch().values()) == {max(positions(second.durable).values()) + 10}
    assert_never_rewound(group_history(options["kafka.bootstrap.servers"], options["kafka.group.id"]))


def test_a_reader_ends_with_its_jvm_while_it_waits_for_brokers(options: dict[str, str], tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        options["kafka.bootstrap.servers"] = f"127.0.0.1:{silent.getsockname()[1]}"
        with ReaderProcess(tmp_path, options) as reader:
            reader.ask(EMPTY.to_json())
            silent.settimeout(60)
            accepted, _ = silent.accept()
            with accepted:
                reader.kill_jvm()
                reader.await_end(timeout_s=STARTUP_TIMEOUT_MS / 1000 / 2)
