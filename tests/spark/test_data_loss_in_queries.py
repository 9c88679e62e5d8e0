"""A running query whose records are gone: one error that says all, or the remaining rows. And a log of many kinds."""

import time
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka import TopicPartition as AssignedPartition
from confluent_kafka.admin import OffsetSpec
from harness.kafka import produce
from harness.offsets import committed
from harness.reference import Row, Rows, reference
from harness.stream import Collected, await_rows, options, start
from harness.waiting import wait_for
from pyspark.sql import DataFrame, SparkSession

from spark_kgroup.testing import ApacheKafka

NewTopic = Callable[[int], str]


def numbers(collected: Collected, topic: str) -> list[int]:
    return sorted(int(value) for name, _, _, value in collected.rows if name == topic)


def end_offset(kafka: ApacheKafka, topic: str) -> int:
    where = AssignedPartition(topic, 0)
    latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]
    offset: int = kafka.admin.list_offsets({where: latest})[where].result(30).offset
    return offset


def test_records_deleted_between_plan_and_read_fail_the_query_or_are_skipped(
    spark: SparkSession, apache_kafka: ApacheKafka, new_topic: NewTopic, group: str, tmp_path: Path
) -> None:
    """1. A batch 20..60 is planned. 2. Offsets below 40 are deleted. 3. Its tasks read. A restart replays it.

    Seat servers fetch no records ahead here, for records that they have by then are not lost.
    """
    topic, server = new_topic(1), apache_kafka.bootstrap_servers
    produce(server, topic, 20, partitions=1)
    collected = Collected()

    def sink(frame: DataFrame, batch_id: int) -> None:
        if len(collected) == 20:
            where = AssignedPartition(topic, 0, 40)
            wait_for(lambda: end_offset(apache_kafka, topic) == 60, "all 60 records")
            apache_kafka.admin.delete_records([where])[where].result(30)
        collected(frame, batch_id)

    read = options(server, topic, group, prefetchBytes=0)
    query = start(spark, read, tmp_path / "cp", sink)
    await_rows(query, collected, 20)
    produce(server, topic, 40, partitions=1, first=20)
    began = time.monotonic()
    message = rf"DataLoss: Offsets 20 .+ of {topic}-0 were .*to be read.*, but the log has 40 to .+failOn"
    with pytest.raises(Exception, match=message):
        query.awaitTermination(120)
    assert time.monotonic() - began < 60, "it is not tried again for long"
    query = start(spark, {**read, "failOnDataLoss": "false"}, tmp_path / "cp", collected)
    await_rows(query, collected, 40)
    produce(server, topic, 5, partitions=1, first=60)
    await_rows(query, collected, 45)
    wait_for(lambda: committed(server, group, topic, 1) == {0: 65}, "lag 0", 60)
    query.stop()
    assert numbers(collected, topic) == [*range(20), *range(40, 65)]


@pytest.mark.full
def test_a_topic_deleted_during_a_query_fails_it_and_costs_other_topics_no_record(
    spark: SparkSession, apache_kafka: ApacheKafka, new_topic: NewTopic, group: str, tmp_path: Path
) -> None:
    gone, there, server = new_topic(2), new_topic(2), apache_kafka.bootstrap_servers
    for topic in (gone, there):
        produce(server, topic, 20, partitions=2)
    collected = Collected()
    read = options(server, f"{gone},{there}", group)
    query = start(spark, read, tmp_path / "cp", collected)
    await_rows(query, collected, 40)
    apache_kafka.delete_topic(gone)
    message = rf"DataLoss: Offsets 10 on of {gone}-0 .+ the partition does not exist any more.+failOnDataLoss"
    with pytest.raises(Exception, match=message):
        query.awaitTermination(120)
    query = start(spark, {**read, "failOnDataLoss": "false"}, tmp_path / "cp", collected)
    produce(server, there, 10, partitions=2, first=20)
    await_rows(query, collected, 50)
    apache_kafka.create_topic(gone, 3)
    produce(server, gone, 90, partitions=3, first=1000)  # more than it had
    await_rows(query, collected, 140)
    query.stop()
    assert numbers(collected, there) == list(range(30))
    assert numbers(collected, gone) == [*range(20), *range(1000, 1090)]


def test_a_log_of_many_kinds_of_records_gives_the_rows_of_a_reference_consumer(
    spark: SparkSession, apache_kafka: ApacheKafka, new_topic: NewTopic, group: str, tmp_path: Path
) -> None:
    topic, server = new_topic(3), apache_kafka.bootstrap_servers
    fill_with_many_kinds(server, topic)
    found: dict[int, Rows] = {}

    def sink(frame: DataFrame, batch_id: int) -> None:
        columns = ("partition", "offset", "key", "value", "unix_millis(timestamp)", "timestampType", "headers")
        for partition, *row, headers in frame.selectExpr(*columns).collect():
            offset, key, value, timestamp, kind = row
            pairs = tuple((h.key, None if h.value is None else bytes(h.value)) for h in headers or ())
            key, value = (None if part is None else bytes(part) for part in (key, value))
            found.setdefault(batch_id, {}).setdefault(partition, []).append(
                Row(offset, key, value, timestamp, kind, pairs)
            )

    read = options(
        server,
        topic,
        group,
        includeHeaders="true",
        maxOffsetsPerTrigger=17,
        **{"kafka.isolation.level": "read_committed"},
    )
    query = start(spark, read, tmp_path / "cp", sink)
    wait_for(lambda: query.exception() or committed(server, group, topic, 3) == {0: 60, 1: 60, 2: 60}, "lag 0", 120)
    query.stop()
    assert query.exception() is None
    rows: Rows = {}
    for _, batch in sorted(found.items()):
        for partition, part in batch.items():
            rows.setdefault(partition, []).extend(part)
    assert rows == reference(server, topic, "read_committed")
    assert [len(part) for _, part in sorted(rows.items())] == [40, 40, 40]
    assert len(found) > 5


def fill_with_many_kinds(server: str, topic: str) -> None:
    """60 offsets in each partition: plain records, one committed and one aborted transaction, and their markers."""
    headers: list[tuple[str, str | bytes | None]] = [("h", b"1"), ("h", None), ("h", b"1"), ("", b"")]
    plain = Producer({"bootstrap.servers": server, "compression.type": "gzip", "enable.idempotence": True})
    transactional = Producer({"bootstrap.servers": server, "transactional.id": topic})
    transactional.init_transactions(30)
    for partition in range(3):
        for number in range(21):
            value = None if number % 5 == 0 else b"%d" % number
            plain.produce(
                topic, value, [None, b"", b"k"][number % 3], partition, headers=headers if number % 2 else None
            )
    assert plain.flush(120) == 0
    for count, commit in ((18, False), (19, True)):
        transactional.begin_transaction()
        for partition in range(3):
            for number in range(count):
                transactional.produce(topic, b"%d" % number, partition=partition, timestamp=1_700_000_000_000)
        assert transactional.flush(120) == 0  # aborting drops records that were not sent
        transactional.commit_transaction(30) if commit else transactional.abort_transaction(30)
