"""Logs that are not just records one after the other: the rows are those of another client, to the last column."""

import logging
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from uuid import uuid4

import pytest
from confluent_kafka import Producer
from confluent_kafka import TopicPartition as AssignedPartition
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, OffsetSpec, ResourceType
from harness.kafka import MakeTopic, fill, run_transaction
from harness.offsets import await_end, committed, offset_of
from harness.query import Query
from harness.reference import Row, Rows, reference
from harness.sidecars import sleeping_executor
from harness.waiting import wait_for

from pyspark_kgroup.executor.native.library import load
from pyspark_kgroup.shared.tickets import Executor
from spark_kgroup.errors import WireError
from spark_kgroup.testing import ApacheKafka

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
TEN_MEGABYTES = 10 * 1024 * 1024

both_levels = pytest.mark.parametrize("isolation", ["read_committed", "read_uncommitted"])


@pytest.fixture(params=["a worker", "a sidecar"])
def executor(request: pytest.FixtureRequest) -> Iterator[Executor | None]:
    """The executor that reads, or None for a worker alone: each log is read in both ways."""
    if request.param == "a worker":
        yield None
    else:
        with sleeping_executor() as executor:
            yield executor


def read(server: str, topic: str, executor: Executor | None, **options: str) -> tuple[Rows, Query]:
    """The rows that a query delivers, and the query when it has come to rest."""
    group = f"group-{topic}-{uuid4().hex[:4]}"
    with Query(server, group, topic, executor=executor, includeHeaders="true", **options) as query:
        query.settle()
        if executor is not None and load().library is not None:
            query.await_served()
        else:
            assert query.served_warm == 0
    return rows_of(query), query


def rows_of(query: Query) -> Rows:
    return {
        partition: [
            Row(
                row["offset"],
                row["key"],
                row["value"],
                (row["timestamp"] - EPOCH) // timedelta(milliseconds=1),
                row["timestampType"],
                tuple((header["key"], header["value"]) for header in row["headers"] or ()),
            )
            for row in rows
        ]
        for (_, partition), rows in query.rows.items()
    }


def lag(kafka: ApacheKafka, query: Query, topic: str, partitions: int) -> list[int]:
    """The group's lag by partition: the end of each log less the committed offset."""
    found = committed(kafka.bootstrap_servers, query.options["kafka.group.id"], topic, partitions)
    latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]
    return [offset_of(kafka, topic, p, latest) - found[p] for p in range(partitions)]


# ---------------------------------------------------------------------------------------- the contents of records


def test_null_and_empty_keys_values_and_headers_are_read_as_they_are(
    apache_kafka: ApacheKafka, new_topic: MakeTopic, executor: Executor | None, producer: Producer
) -> None:
    topic = new_topic(3)  # partition 2 stays empty
    headers: list[tuple[str, str | bytes | None]] = [
        ("h", b"1"),
        ("h", None),
        ("h", b"1"),
        ("", b""),
        ("ü", b"\x00\xff"),
    ]
    for partition in range(2):
        for key, value in [(None, None), (b"", b""), (b"k", None), (None, b"v"), (b"k", b"v")]:
            producer.produce(topic, value, key, partition)
            producer.produce(topic, value, key, partition, headers=headers)
    assert producer.flush(120) == 0
    rows, query = read(apache_kafka.bootstrap_servers, topic, executor)
    assert rows == reference(apache_kafka.bootstrap_servers, topic, "read_uncommitted")
    assert rows[0][1].headers == tuple(headers)
    assert len(rows[0]) == len(rows[1]) == 10
    assert lag(apache_kafka, query, topic, 3) == [0, 0, 0]


@pytest.mark.parametrize("kind", ["CreateTime", "LogAppendTime"])
def test_timestamps_of_all_kinds_are_read_as_they_are(
    apache_kafka: ApacheKafka, new_topic: MakeTopic, executor: Executor | None, producer: Producer, kind: str
) -> None:
    topic = new_topic(message_timestamp_type=kind)
    for timestamp in (1, 1_700_000_000_123, -1, 1_000):
        producer.produce(topic, b"v", timestamp=timestamp)
    assert producer.flush(120) == 0
    rows, _ = read(apache_kafka.bootstrap_servers, topic, executor)
    assert rows == reference(apache_kafka.bootstrap_servers, topic, "read_uncommitted")
    if kind == "CreateTime":
        assert [row.timestamp for row in rows[0]] == [1, 1_700_000_000_123, -1, 1_000]


def test_a_timestamp_that_spark_cannot_hold_is_an_error_that_names_the_record(
    apache_kafka: ApacheKafka, new_topic: MakeTopic, executor: Executor | None, producer: Producer
) -> None:
    """As written by a producer that takes nanoseconds for milliseconds."""
    any_time = {"message_timestamp_after_max_ms": str(2**63 - 1)} if apache_kafka.release.number >= (3, 6) else {}
    topic = new_topic(**any_time)  # KIP-937: brokers before it take any
    nanoseconds = 1_712_345_678_123_456_789
    producer.produce(topic, b"v", timestamp=nanoseconds)
    assert producer.flush(120) == 0
    with (
        Query(apache_kafka.bootstrap_servers, f"group-{topic}", topic, executor=executor) as query,
        pytest.raises(WireError, match=f"offset 0 of {topic}-0 has the timestamp {nanoseconds} ms"),
    ):
        query.settle()


def test_a_log_with_every_codec_is_read_whole(
    apache_kafka: ApacheKafka, new_topic: MakeTopic, executor: Executor | None
) -> None:
    topic = new_topic()
    sent = []
    for codec in ("none", "gzip", "snappy", "lz4", "zstd"):
        producer = Producer(
            {
                "bootstrap.servers": apache_kafka.bootstrap_servers,
                "compression.type": codec,
                "linger.ms": 50,
                "enable.idempotence": True,
            }
        )
        values = [f"{codec} {number} ".encode() * 50 for number in range(200)]
        fill(producer, topic, values)
        sent += values
    rows, _ = read(apache_kafka.bootstrap_servers, topic, executor, maxOffsetsPerTrigger="333")
    assert [(row.offset, row.value) for row in rows[0]] == list(enumerate(sent))


def test_records_of_ten_megabytes_need_no_option(
    apache_kafka: ApacheKafka, new_topic: MakeTopic, executor: Executor | None
) -> None:
    topic = new_topic(2, max_message_bytes=str(2 * TEN_MEGABYTES))
    # Idempotent: a request of 10 MB may be slow, and one that is sent again must not change places with the next.
    limits = {"message.max.bytes": 2 * TEN_MEGABYTES, "enable.idempotence": True}
    producer = Producer({"bootstrap.servers": apache_kafka.bootstrap_servers, **limits})
    values = [b"small", b"x" * TEN_MEGABYTES, b"small", b"y" * TEN_MEGABYTES]
    for partition in range(2):
        fill(producer, topic, values, partition)
    rows, _ = read(apache_kafka.bootstrap_servers, topic, executor)
    for partition in range(2):
        assert [(row.offset, row.value) for row in rows[partition]] == list(enumerate(values))


@pytest.mark.parametrize("reader", ["native", "librdkafka"])
def test_a_batch_that_changed_on_the_brokers_disk_is_an_error_and_never_rows(
    apache_kafka: ApacheKafka, new_topic: MakeTopic, executor: Executor | None, producer: Producer, reader: str
) -> None:
    topic = new_topic()
    for value in (b"whole", b"damaged", b"whole again"):
        fill(producer, topic, [value], 0)
    (segment,) = (apache_kafka.nodes[0].directory / "data" / f"{topic}-0").glob("*.log")
    segment.write_bytes(segment.read_bytes().replace(b"damaged", b"Damaged"))
    with (
        Query(apache_kafka.bootstrap_servers, f"group-{topic}", topic, executor=executor, reader=reader) as query,
        pytest.raises(
            WireError,
            match=rf"{topic}-0 has records .* cannot be read: .* 3 times .*First start .*kafka-delete-records",
        ),
    ):
        query.settle()
    assert [row["value"] for rows in query.rows.values() for row in rows] in ([], [b"whole"])


class Mending(logging.Handler):
    """Puts a segment's bytes back when the first reader complains."""

    def __init__(self, segment: Path, whole: bytes) -> None:
        super().__init__()
        self._segment = segment
        self._whole = whole
        self.complaints = 0

    def emit(self, record: logging.LogRecord) -> None:
        if "Reading them again" in record.getMessage():
            self.complaints += 1
            self._segment.write_bytes(self._whole)


@pytest.mark.parametrize("reader", ["native", "librdkafka"])
def test_a_batch_that_is_whole_when_it_is_read_again_is_no_error(
    apache_kafka: ApacheKafka, new_topic: MakeTopic, producer: Producer, reader: str
) -> None:
    """Bytes change on the way, too. Records behind the damaged ones are not taken before these are read."""
    topic = new_topic()
    for value in (b"whole", b"damaged", b"whole again"):
        fill(producer, topic, [value], 0)
    (segment,) = (apache_kafka.nodes[0].directory / "data" / f"{topic}-0").glob("*.log")
    mending = Mending(segment, segment.read_bytes())
    segment.write_bytes(segment.read_bytes().replace(b"damaged", b"Damaged"))
    log = logging.getLogger("pyspark_kgroup.executor.read.unread_ranges")
    log.addHandler(mending)
    try:
        rows, _ = read(apache_kafka.bootstrap_servers, topic, None, reader=reader)
    finally:
        log.removeHandler(mending)
    assert [row.value for row in rows[0]] == [b"whole", b"damaged", b"whole again"]
    assert mending.complaints == 1


# --------------------------------------------------------------------------------------------- transactions


@both_levels
def test_a_log_with_committed_aborted_and_open_transactions_is_read_as_its_isolation_says(
    apache_kafka: ApacheKafka,
    new_topic: MakeTopic,
    executor: Executor | None,
    producer: Producer,
    transactions: Producer,
    isolation: str,
) -> None:
    """Plain records, committed and aborted ones in turn. In partition 1 a transaction stays open for a while."""
    topic, server = new_topic(3), apache_kafka.bootstrap_servers
    for turn in range(4):
        fill(producer, topic, [b"plain %d" % turn] * 3)
        run_transaction(transactions, topic, [b"t %d" % turn] * 5, 0, commit=turn % 2 == 0)  # the last is aborted
    run_transaction(transactions, topic, [b"aborted"] * 3, 2, commit=False)
    transactions.begin_transaction()
    fill(transactions, topic, [b"open"] * 4, 1)
    fill(producer, topic, [b"after"] * 2, 1)
    await_end(apache_kafka, topic, 0, 36)
    options = {"kafka.isolation.level": isolation, "maxOffsetsPerTrigger": "7"}
    with Query(server, f"group-{topic}", topic, executor=executor, includeHeaders="true", **options) as query:
        query.settle()
        assert rows_of(query) == reference(server, topic, isolation)
        assert (1 in rows_of(query)) == (isolation == "read_uncommitted"), "an open transaction hides what follows it"
        assert len(rows_of(query)[0]) == (22 if isolation == "read_committed" else 32)
        transactions.commit_transaction(30)
        await_end(apache_kafka, topic, 1, 7)
        wait_for(lambda: query.settle() or len(rows_of(query)[1]) == 6, "what was open")
        query.settle()
        assert rows_of(query) == reference(server, topic, isolation)
    assert lag(apache_kafka, query, topic, 3) == [0, 0, 0], "also past the markers at the logs' ends"


@both_levels
def test_a_log_of_control_records_only_gives_no_row_and_has_no_lag(
    apache_kafka: ApacheKafka, new_topic: MakeTopic, executor: Executor | None, transactions: Producer, isolation: str
) -> None:
    topic = new_topic()
    run_transaction(transactions, topic, [b"gone"] * 3, 0, commit=True)
    await_end(apache_kafka, topic, 0, 4)
    where = AssignedPartition(topic, 0, 3)
    apache_kafka.admin.delete_records([where])[where].result(30)
    rows, query = read(apache_kafka.bootstrap_servers, topic, executor, **{"kafka.isolation.level": isolation})
    assert rows == {}
    assert lag(apache_kafka, query, topic, 1) == [0]


# --------------------------------------------------------------------------------------------- compaction


@pytest.fixture
def quick_cleaner(apache_kafka: ApacheKafka) -> Iterator[None]:
    """The broker looks for logs to compact all the time, not every 15 s."""

    def alter(operation: AlterConfigOpType) -> None:
        entry = ConfigEntry("log.cleaner.backoff.ms", "50", incremental_operation=operation)
        broker = ConfigResource(ResourceType.BROKER, str(apache_kafka.nodes[0].node_id), incremental_configs=[entry])
        apache_kafka.admin.incremental_alter_configs([broker])[broker].result(30)

    alter(AlterConfigOpType.SET)
    yield
    alter(AlterConfigOpType.DELETE)


@pytest.mark.usefixtures("quick_cleaner")
def test_a_compacted_log_with_gaps_also_at_the_end_of_a_range(
    apache_kafka: ApacheKafka,
    new_topic: MakeTopic,
    executor: Executor | None,
    producer: Producer,
    transactions: Producer,
) -> None:
    """Most offsets are gone, but not lost: `failOnDataLoss` reports no loss, wherever a batch ends."""
    topic = new_topic(
        cleanup_policy="compact", min_cleanable_dirty_ratio="0.001", segment_bytes="1048576", delete_retention_ms="0"
    )
    server = apache_kafka.bootstrap_servers
    filler = b"." * 1_000
    for number in range(1_000):
        producer.produce(topic, b"%d" % number + filler, b"%d" % (number % 5))
    assert producer.flush(120) == 0
    run_transaction(transactions, topic, [b"aborted" + filler] * 200, 0, commit=False)
    for number in range(1_000):  # the segments before this one are closed, and compacted
        producer.produce(topic, b"%d" % number + filler, b"%d" % (number % 7))
    assert producer.flush(120) == 0
    await_end(apache_kafka, topic, 0, 2_201)  # with the marker: before it no record behind the transaction is readable

    def compacted() -> Rows | None:
        found = reference(server, topic, "read_committed")
        return found if len(found[0]) < 1_300 else None

    expected = wait_for(compacted, "a compacted log", 60, every_s=0.2)
    rows, query = read(
        server, topic, executor, maxOffsetsPerTrigger="97", **{"kafka.isolation.level": "read_committed"}
    )
    assert rows == expected or rows == reference(server, topic, "read_committed"), "the cleaner went on meanwhile"
    offsets = [row.offset for row in rows[0]]
    # The cleaner may have left none of the first 1,200 offsets: then the gap is at the beginning.
    assert max(b - a for a, b in pairwise([-1, *offsets])) > 97, "a batch without any record"
    assert lag(apache_kafka, query, topic, 1) == [0]
