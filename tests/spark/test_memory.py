"""The memory that a batch takes, and that many small batches leave none behind (the full soak: tests/programs/soak)."""

import gc
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from confluent_kafka import Producer
from harness.kafka import produce
from harness.processes import (
    STREAM_READER,
    WORKERS,
    Use,
    forget_peak,
    joined_reader,
    kinds_of,
    sidecar_processes,
    spark_processes,
    use_of,
    uses_until,
)
from harness.stream import Collected, options, start, wait_running
from harness.trickle import Trickle
from harness.waiting import wait_for
from pyspark.sql import DataFrame, SparkSession

from pyspark_kgroup.source import DefaultSource
from pyspark_kgroup.stream import KgroupStreamReader
from spark_kgroup.testing import ApacheKafka

NewTopic = Callable[[int], str]

MIB = 1024  # of a KiB


class Counted:
    """A sink that counts the rows that the query reads, and the bytes of their values.

    Attributes:
        goes_on: while it is not set, no batch ends.
        waits: a batch has begun and waits for `goes_on`.
    """

    def __init__(self) -> None:
        self.batches: list[tuple[int, int]] = []
        self.goes_on = threading.Event()
        self.goes_on.set()
        self.waits = threading.Event()

    def __call__(self, frame: DataFrame, _: int) -> None:
        if not self.goes_on.is_set():
            self.waits.set()
        assert self.goes_on.wait(300)
        rows, size = frame.selectExpr("count(*)", "coalesce(sum(length(value)), 0)").collect()[0]
        self.batches.append((rows, size))


def read_all(spark: SparkSession, server: str, topic: str, checkpoint: Path) -> list[tuple[int, int]]:
    counted = Counted()
    read = options(server, topic, f"group-of-{topic}")
    query = start(spark, read, checkpoint, counted, trigger={"availableNow": True})
    assert query.awaitTermination(300)
    return [batch for batch in counted.batches if batch[0]]


BOUND_KIB = 300_000_000 // 1024
LARGE = (500_000, 500_000_000)
"""Records and bytes: more than the bound."""


@pytest.fixture(scope="module")
def large_topic(apache_kafka: ApacheKafka) -> Iterator[str]:
    topic = f"large-{uuid4().hex[:8]}"
    apache_kafka.create_topic(topic, partitions=8)
    produce_kilobytes(apache_kafka.bootstrap_servers, topic, LARGE[0], partitions=8)
    yield topic
    apache_kafka.delete_topic(topic)


def test_a_large_batch_keeps_workers_small(
    spark: SparkSession, apache_kafka: ApacheKafka, new_topic: NewTopic, large_topic: str, tmp_path: Path
) -> None:
    """Under availableNow workers read by themselves."""
    small, server = new_topic(4), apache_kafka.bootstrap_servers
    produce(server, small, 100, partitions=4)
    read_all(spark, server, small, tmp_path / "small")
    idle_workers = idle(spark_processes(WORKERS))
    with watched(lambda: spark_processes(WORKERS)) as peaks:
        assert read_all(spark, server, large_topic, tmp_path / "large") == [LARGE]
    assert_small("worker", idle_workers, peaks)


@pytest.mark.full
def test_a_large_batch_keeps_sidecars_and_their_workers_small(
    spark: SparkSession, apache_kafka: ApacheKafka, new_topic: NewTopic, group: str, tmp_path: Path
) -> None:
    topic, server, counted = new_topic(8), apache_kafka.bootstrap_servers, Counted()
    wait_for(lambda: not sidecar_processes(), "the sidecars of earlier tests to end", 30)
    query = start(spark, options(server, topic, group), tmp_path, counted)

    def served_warm() -> bool:
        """After another small batch: the first ones are read directly, while the sidecar starts."""
        sent = sum(rows for rows, _ in counted.batches)
        produce(server, topic, 80, partitions=8, first=sent)
        wait_running(query, lambda: sum(rows for rows, _ in counted.batches) == sent + 80, "a small batch", 60)
        return len(sidecar_processes()) == 3

    wait_for(served_warm, "a sidecar, and a server for each seat", 120)
    served = sidecar_processes()
    idle_workers, idle_servers = idle(spark_processes(WORKERS)), idle(served)
    counted.goes_on.clear()
    produce(server, topic, 8, partitions=8)  # their batch waits while the large one is produced
    assert counted.waits.wait(60)
    produce_kilobytes(server, topic, LARGE[0], partitions=8)
    with (
        watched(lambda: spark_processes(WORKERS)) as workers,
        watched(sidecar_processes) as servers,
    ):
        counted.goes_on.set()
        wait_running(query, lambda: any(rows >= LARGE[0] for rows, _ in counted.batches), "the large batch", 300)
    assert sidecar_processes() == served
    query.stop()
    assert_small("worker", idle_workers, workers)
    assert_small("sidecar or server", idle_servers, servers)


def idle(pids: set[int]) -> dict[int, int]:
    """Their memory now, in KiB. Their peaks begin anew."""
    found = {pid: use.rss for pid in pids if (use := use_of(pid))}
    for pid in found:
        forget_peak(pid)
    return found


def assert_small(kind: str, idle: dict[int, int], peaks: dict[int, int]) -> None:
    """No peak is far above an idle process, in KiB."""
    above = max(peaks.values()) - min(idle.values())
    print(f"idle {kind} {min(idle.values()) // MIB} MiB, at most {above // MIB} MiB above in {len(peaks)} of them")
    assert above < BOUND_KIB


def produce_kilobytes(server: str, topic: str, count: int, *, partitions: int) -> None:
    """Values of 1,000 bytes that do not compress, as fast as it goes."""
    producer = Producer(
        {
            "bootstrap.servers": server,
            "linger.ms": 20,
            "queue.buffering.max.kbytes": 262_144,
            "enable.idempotence": True,
        }
    )
    noise = os.urandom(1_000_000)
    for index in range(count):
        begin = index * 997 % 999_000
        while True:
            try:
                producer.produce(topic, value=noise[begin : begin + 1_000], partition=index % partitions)
                break
            except BufferError:
                producer.poll(0.1)
    assert producer.flush(120) == 0


@contextmanager
def watched(processes: Callable[[], set[int]]) -> Iterator[dict[int, int]]:
    """The largest peak of each of these processes that lived meanwhile, in KiB."""
    peaks: dict[int, int] = {}
    done = threading.Event()

    def watch() -> None:
        while not done.wait(0.1):
            for pid in processes():
                if (use := use_of(pid)) is not None:
                    peaks[pid] = max(peaks.get(pid, 0), use.peak)

    watching = threading.Thread(target=watch, name="watching")
    watching.start()
    try:
        yield peaks
    finally:
        done.set()
        watching.join(30)


WARM, BATCHES = 40, 90
"""Batches until everything is allocated that stays, and until the end. A leak of each batch shows 50 times."""

WINDOW = 20
"""The last batches of each, in which use is measured."""


@pytest.mark.full
def test_tiny_batches_leave_no_memory_behind(
    spark: SparkSession, apache_kafka: ApacheKafka, new_topic: NewTopic, group: str, tmp_path: Path
) -> None:
    topic, server = new_topic(2), apache_kafka.bootstrap_servers
    collected = Collected()
    before = spark_processes(STREAM_READER)

    def reached(count: int) -> bool:
        return len(collected.batches) >= count

    with Trickle(server, topic):
        query = start(
            spark, options(server, topic, group), tmp_path / "cp", collected, trigger={"processingTime": "0 seconds"}
        )
        wait_running(query, lambda: len(collected.batches) >= 1, "the first batch", 120)
        reader = joined_reader(before, members=2)
        kinds = kinds_of(reader)
        uses: list[dict[str, Use]] = []
        for batches in (WARM, BATCHES):
            wait_running(query, partial(reached, batches - WINDOW), f"{batches} - {WINDOW} batches", 240)
            uses.append(uses_until(query, partial(reached, batches), f"{batches} batches", 240, kinds))
        assert spark_processes(STREAM_READER) - before == {reader}
        query.stop()
    warm, end = uses
    print(f"after {WARM} batches: {warm}\nafter {BATCHES}: {end}")
    for kind in warm:
        assert end[kind].files <= warm[kind].files + 3
        assert end[kind].sockets <= warm[kind].sockets + 2
        assert end[kind].threads <= warm[kind].threads + 2
        assert end[kind].rss <= warm[kind].rss + 16 * MIB  # 330 KiB a batch, and the soak is finer


def test_boundaries_and_reads_keep_no_objects(apache_kafka: ApacheKafka, new_topic: NewTopic, group: str) -> None:
    # Without Spark in between a leak shows to the object.
    topic, server = new_topic(2), apache_kafka.bootstrap_servers
    produce(server, topic, 20, partitions=2)
    source = DefaultSource(options(server, topic, group))
    reader = source.streamReader(source.schema())
    assert isinstance(reader, KgroupStreamReader)
    try:
        first = reader.initialOffset()
        start = wait_for(lambda: changed(first, reader.latestOffset(first)), "an offset")
        tickets = reader.partitions(first, start)
        assert tickets

        def cycles(boundaries: int, reads: int) -> tuple[int, int, int]:
            for _ in range(boundaries):
                assert reader.latestOffset(start) == start
            for index in range(reads):
                assert sum(batch.num_rows for batch in reader.read(tickets[index % len(tickets)])) == 10
            gc.collect()
            use = use_of(os.getpid())
            assert use is not None
            return len(gc.get_objects()), use.files, use.threads

        start = settled(reader, start)
        cycles(200, 20)
        objects, files, threads = cycles(200, 20)
        after = cycles(1_500, 60)
        print(f"objects {objects} -> {after[0]}, files {files} -> {after[1]}, threads {threads} -> {after[2]}")
        assert after[0] - objects < 500  # 1,500 boundaries, 60 reads: less than one for three boundaries
        assert after[1] <= files + 2
        assert after[2] <= threads + 2
    finally:
        reader.stop()


def changed(before: dict[str, Any], after: dict[str, Any]) -> dict[str, Any] | None:
    return after if after != before else None


def settled(reader: KgroupStreamReader, start: dict[str, Any]) -> dict[str, Any]:
    """The offset after which there is no new record."""
    while (after := reader.latestOffset(start)) != start:
        start = after
    return start
