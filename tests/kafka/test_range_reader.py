"""A seat reads exactly its ranges from a real Kafka: no record more, none less, in order."""

import gc
import math
import os
import pickle
import threading
import time
from base64 import urlsafe_b64encode
from collections import defaultdict
from collections.abc import Generator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast
from uuid import uuid4

import pyarrow as pa
import pytest
from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka import TopicPartition as AssignedPartition
from harness.kafka import fill, hex_id, run_transaction
from harness.offsets import await_end

from pyspark_kgroup.errors import DataLoss
from pyspark_kgroup.executor.read import range_reader, topic_ids, unread_ranges
from pyspark_kgroup.executor.read.range_reader import read_with_librdkafka
from pyspark_kgroup.executor.read.topic_ids import TopicIds
from pyspark_kgroup.options.parser import parse
from pyspark_kgroup.shared.arrow import arrow_schema
from pyspark_kgroup.shared.tickets import OffsetRange, ReadSettings
from spark_kgroup.errors import BrokerError, OptionError, WireError
from spark_kgroup.limits import API_TIMEOUT_MS, AUTHORIZATION_GRACE_MS
from spark_kgroup.testing import ApacheKafka

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

Found = dict[int, list[tuple[int, bytes | None]]]
"""Partition -> (offset, value), in the order read."""


def librdkafka_threads() -> int:
    """Threads of this process that are librdkafka's (it names them `rdk:...`), of any client."""
    names = []
    for thread in os.listdir("/proc/self/task"):
        try:
            names.append(Path(f"/proc/self/task/{thread}/comm").read_text())
        except FileNotFoundError:
            continue  # ended meanwhile
    return sum(name.startswith("rdk:") for name in names)


Reads = tuple[tuple[OffsetRange, ...], ReadSettings]


def seat(
    kafka: ApacheKafka, ranges: Sequence[OffsetRange], stall_timeout_ms: int = API_TIMEOUT_MS, **options: str
) -> Reads:
    required = {
        "kafka.bootstrap.servers": kafka.bootstrap_servers,
        "kafka.group.id": "reads",
        "subscribe": ",".join({r.topic for r in ranges}) or "t",
    }
    checked = parse(required | options)
    settings = ReadSettings(
        consumer_config=checked.consumer_config(),
        include_headers=checked.include_headers,
        fail_on_data_loss=checked.fail_on_data_loss,
        stall_timeout_ms=stall_timeout_ms,
    )
    return tuple(ranges), settings


def read(kafka: ApacheKafka, *ranges: OffsetRange, **options: str) -> list[dict[str, Any]]:
    table = pa.Table.from_batches(
        read_with_librdkafka(*seat(kafka, ranges, API_TIMEOUT_MS, **options)),
        schema=arrow_schema(options.get("includeHeaders") == "true"),
    )
    rows: list[dict[str, Any]] = table.to_pylist()
    return rows


def found(rows: list[dict[str, Any]]) -> Found:
    by_partition: defaultdict[int, list[tuple[int, bytes | None]]] = defaultdict(list)
    for row in rows:
        by_partition[row["partition"]].append((row["offset"], row["value"]))
    return dict(by_partition)


def numbers(first: int, end: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, end)]


# ----------------------------------------------------------------------------------------- exact ranges


def test_ranges_are_read_exactly_and_in_order(apache_kafka: ApacheKafka, topic: str, producer: Producer) -> None:
    for partition in range(4):
        fill(producer, topic, numbers(0, 3_000), partition)
    ranges = [OffsetRange(topic, 0, 0, 3_000), OffsetRange(topic, 1, 17, 2_345), OffsetRange(topic, 2, 2_999, 3_000)]
    rows = read(apache_kafka, *ranges)
    assert found(rows) == {
        r.partition: [(offset, b"%d" % offset) for offset in range(r.start_offset, r.end_offset)] for r in ranges
    }
    assert {row["topic"] for row in rows} == {topic}


def test_the_same_ranges_give_the_same_rows_again(apache_kafka: ApacheKafka, topic: str, producer: Producer) -> None:
    fill(producer, topic, numbers(0, 500), 1)
    travelled = pickle.loads(pickle.dumps(seat(apache_kafka, [OffsetRange(topic, 1, 100, 400)])))
    first = pa.Table.from_batches(read_with_librdkafka(*travelled))
    fill(producer, topic, numbers(500, 600), 1)
    assert pa.Table.from_batches(read_with_librdkafka(*travelled)).equals(first)
    assert first["offset"].to_pylist() == list(range(100, 400))


def test_two_topics_of_one_seat_are_read_in_one_range_each(
    apache_kafka: ApacheKafka, topic: str, producer: Producer
) -> None:
    other = f"{topic}-b"
    apache_kafka.create_topic(other, partitions=1)
    fill(producer, topic, numbers(0, 50))
    fill(producer, other, numbers(100, 150))
    rows = read(apache_kafka, OffsetRange(topic, 0, 10, 20), OffsetRange(other, 0, 40, 50))
    assert sorted((row["topic"], row["offset"], row["value"]) for row in rows) == [
        *((topic, offset, b"%d" % offset) for offset in range(10, 20)),
        *((other, offset, b"%d" % (offset + 100)) for offset in range(40, 50)),
    ]


def test_a_range_reads_the_same_while_a_producer_writes(
    apache_kafka: ApacheKafka, topic: str, producer: Producer
) -> None:
    fill(producer, topic, numbers(0, 1_000))
    stop = threading.Event()

    def produce_on() -> None:
        while not stop.is_set():
            fill(producer, topic, [b"later"] * 100)

    working = threading.Thread(target=produce_on)
    working.start()
    try:
        for _ in range(5):
            assert found(read(apache_kafka, OffsetRange(topic, 0, 300, 1_000))) == {
                0: [(offset, b"%d" % offset) for offset in range(300, 1_000)]
            }
    finally:
        stop.set()
        working.join()


def test_empty_ranges_are_read_without_a_broker() -> None:
    nowhere = ReadSettings(consumer_config={"bootstrap.servers": "127.0.0.1:1"})
    assert list(read_with_librdkafka([OffsetRange("t", 0, 5, 5)], nowhere)) == []


# --------------------------------------------------------------------------------------- the contents of records


def test_nulls_tombstones_and_headers(apache_kafka: ApacheKafka, topic: str, producer: Producer) -> None:
    headers: list[tuple[str, str | bytes | None]] = [("h", b"1"), ("h", None), ("g", b"")]
    producer.produce(topic, b"v", None, partition=0, headers=headers, timestamp=1_700_000_000_123)
    producer.produce(topic, None, b"k", partition=0)
    producer.produce(topic, b"", b"", partition=0)
    assert producer.flush(120) == 0
    rows = read(apache_kafka, OffsetRange(topic, 0, 0, 3), includeHeaders="true")
    assert [(row["key"], row["value"]) for row in rows] == [(None, b"v"), (b"k", None), (b"", b"")]
    first = rows[0]["headers"]
    assert isinstance(first, list)
    assert [(header["key"], header["value"]) for header in first] == headers
    assert [row["headers"] for row in rows[1:]] == [None, None]
    assert rows[0]["timestampType"] == 0
    assert rows[0]["timestamp"] == datetime(2023, 11, 14, 22, 13, 20, 123_000, UTC)
    assert "headers" not in read(apache_kafka, OffsetRange(topic, 0, 0, 1))[0]


def test_a_record_of_a_topic_with_log_append_time_has_that_timestamp_type(
    apache_kafka: ApacheKafka, producer: Producer
) -> None:
    topic = f"reads-{uuid4().hex[:8]}"
    apache_kafka.create_topic(topic, partitions=1, configs={"message.timestamp.type": "LogAppendTime"})
    fill(producer, topic, [b"v"])
    (row,) = read(apache_kafka, OffsetRange(topic, 0, 0, 1))
    assert row["timestampType"] == 1


def test_large_records_come_in_bounded_batches(apache_kafka: ApacheKafka, producer: Producer) -> None:
    topic = f"reads-{uuid4().hex[:8]}"
    apache_kafka.create_topic(topic, partitions=1, configs={"max.message.bytes": str(16 * 1024 * 1024)})
    limits = {"message.max.bytes": 16 * 1024 * 1024, "linger.ms": 0, "enable.idempotence": True}
    large = Producer({"bootstrap.servers": apache_kafka.bootstrap_servers, **limits})
    sizes = [1, 9 * 1024 * 1024, 1, 4 * 1024 * 1024, 4 * 1024 * 1024, 1]
    fill(large, topic, [b"x" * size for size in sizes])
    batches = list(read_with_librdkafka(*seat(apache_kafka, [OffsetRange(topic, 0, 0, len(sizes))])))
    read_sizes = [[len(value) for value in batch["value"].to_pylist()] for batch in batches]
    assert [size for batch in read_sizes for size in batch] == sizes
    assert all(sum(batch) <= 8 * 1024 * 1024 or len(batch) == 1 for batch in read_sizes)


def test_rows_of_a_batch_are_bounded(
    apache_kafka: ApacheKafka, topic: str, producer: Producer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(range_reader, "ARROW_BATCH_ROWS_MAX", 100)
    fill(producer, topic, numbers(0, 1_050))
    fill(producer, topic, numbers(0, 1_050), 1)
    batches = list(
        read_with_librdkafka(*seat(apache_kafka, [OffsetRange(topic, 0, 0, 1_050), OffsetRange(topic, 1, 0, 1_050)]))
    )
    assert max(batch.num_rows for batch in batches) <= 100
    assert sum(batch.num_rows for batch in batches) == 2_100


# ---------------------------------------------------------------------------------------- transactions


def recreate(kafka: ApacheKafka, topic: str, values: Sequence[bytes]) -> None:
    kafka.delete_topic(topic)
    kafka.create_topic(topic, partitions=2)
    fill(Producer({"bootstrap.servers": kafka.bootstrap_servers}), topic, values)


@pytest.fixture
def believed_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic_ids, "TOPIC_GONE_AFTER_MS", 0)


@pytest.mark.usefixtures("believed_at_once")
def test_a_topic_that_was_created_again_before_its_range_is_read_gives_no_row_of_the_later_one(
    apache_kafka: ApacheKafka, topic: str, producer: Producer, caplog: pytest.LogCaptureFixture
) -> None:
    """librdkafka reads by name: the later topic's records lie at the planned offsets, and a later batch reads them."""
    fill(producer, topic, numbers(0, 100))
    planned = OffsetRange(topic, 0, 10, 100, unled_topic_id=hex_id(apache_kafka.admin, topic))
    assert len(read(apache_kafka, planned)) == 90
    recreate(apache_kafka, topic, numbers(500, 600))
    earlier_id = urlsafe_b64encode(bytes.fromhex(planned.topic_id)).decode().rstrip("=")
    with pytest.raises(DataLoss, match=rf"Offsets 10 to 99 of {topic}-0 .* \(id .*, was {earlier_id}\): it was del"):
        read(apache_kafka, planned)
    assert read(apache_kafka, planned, failOnDataLoss="false") == []
    assert "Skipping to offset 100." in caplog.text
    assert len(read(apache_kafka, planned._replace(unled_topic_id=hex_id(apache_kafka.admin, topic)))) == 90


@pytest.mark.usefixtures("believed_at_once")
def test_records_of_a_topic_of_the_same_name_in_another_cluster_are_no_rows_and_no_loss(
    apache_kafka: ApacheKafka, topic: str, producer: Producer
) -> None:
    fill(producer, topic, numbers(0, 100))
    planned = OffsetRange(topic, 0, 10, 100, unled_topic_id="1" * 32)
    ranges, settings = seat(apache_kafka, [planned], 1_000, failOnDataLoss="false")
    with pytest.raises(WireError, match=r"another cluster answers .* the driver's is another\)"):
        list(read_with_librdkafka(ranges, replace(settings, cluster="another")))
    ours = str(apache_kafka.admin.list_topics(timeout=20).cluster_id)  # confluent-kafka types it as None
    assert list(read_with_librdkafka(ranges, replace(settings, cluster=ours))) == [], "its topic was created again"


@pytest.mark.usefixtures("believed_at_once")
def test_a_topic_that_is_created_again_during_a_read_gives_no_row_of_the_later_one(
    apache_kafka: ApacheKafka, topic: str, producer: Producer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(range_reader, "ARROW_BATCH_ROWS_MAX", 40)
    fill(producer, topic, numbers(0, 100))
    planned = OffsetRange(topic, 0, 0, 300, unled_topic_id=hex_id(apache_kafka.admin, topic))
    batches = read_with_librdkafka(*seat(apache_kafka, [planned], API_TIMEOUT_MS, failOnDataLoss="false"))
    rows = next(batches)["value"].to_pylist()
    recreate(apache_kafka, topic, numbers(500, 800))
    for batch in batches:
        rows += batch["value"].to_pylist()
    assert rows == numbers(0, len(rows))
    assert 40 <= len(rows) <= 100


@pytest.mark.usefixtures("believed_at_once")
def test_a_topic_that_is_gone_when_its_records_are_handed_out_was_not_created_again(
    apache_kafka: ApacheKafka, topic: str
) -> None:
    ids = TopicIds({topic: "1" * 32}, {"bootstrap.servers": apache_kafka.bootstrap_servers}, 10.0)
    assert ids.changed([topic]) == {topic: hex_id(apache_kafka.admin, topic)}
    apache_kafka.delete_topic(topic)
    assert ids.changed([topic]) == {}


def test_a_broker_that_names_the_id_of_an_earlier_topic_for_a_moment_is_not_believed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A broker that lags behind. Brokers are asked for 30 s before records count as another topic's."""
    answers = iter([{"t": "1" * 32, "u": "3" * 32}, {"t": "1" * 32}, {"t": "2" * 32}])
    now_s = 0.0

    def pause(seconds: float) -> None:
        nonlocal now_s
        now_s += seconds

    monkeypatch.setattr("pyspark_kgroup.executor.read.topic_ids.time.sleep", pause)
    ids = TopicIds({"t": "2" * 32, "u": "3" * 32, "old": ""}, {}, 10.0, lambda: now_s)
    monkeypatch.setattr(ids, "_ask", lambda _: next(answers))
    assert ids.changed(["t", "u", "old"]) == {}
    assert next(answers, None) is None
    monkeypatch.setattr(ids, "_ask", lambda _: {"t": "1" * 32})
    now_s = 100.0
    assert ids.changed(["t"]) == {"t": "1" * 32}
    assert now_s == 130.0


def test_each_look_at_another_id_is_by_a_client_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """librdkafka asks the controller that it has heard of, and hears of another one from that broker alone."""
    now_s = 0.0
    clients: list[AdminClient] = []

    def pause(seconds: float) -> None:
        nonlocal now_s
        now_s += seconds

    def ask(_: list[str]) -> dict[str, str]:
        if ids._client is None:
            ids._client = cast("AdminClient", object())
            clients.append(ids._client)
        return {"t": "2" * 32 if len(clients) == 3 else "1" * 32}

    monkeypatch.setattr("pyspark_kgroup.executor.read.topic_ids.time.sleep", pause)
    ids = TopicIds({"t": "2" * 32}, {}, 10.0, lambda: now_s)
    monkeypatch.setattr(ids, "_ask", ask)
    assert ids.changed(["t"]) == {}
    assert len(clients) == 3


def test_a_right_that_was_taken_away_before_records_are_handed_out_is_waited_for_and_then_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now_s, missing_until_s = 0.0, AUTHORIZATION_GRACE_MS / 1000 - 1

    def pause(seconds: float) -> None:
        nonlocal now_s
        now_s += seconds

    def ask(_: list[str]) -> dict[str, str]:
        if now_s < missing_until_s:
            raise KafkaException(KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED), "t")
        return {"t": "2" * 32, "u": "3" * 32}

    monkeypatch.setattr("pyspark_kgroup.executor.read.topic_ids.time.sleep", pause)
    ids = TopicIds({"t": "2" * 32, "u": "3" * 32}, {}, 300.0, lambda: now_s)
    monkeypatch.setattr(ids, "_ask", ask)
    assert ids.changed(["t", "u"]) == {}
    missing_until_s = math.inf
    began_s = now_s
    with pytest.raises(BrokerError, match="TOPIC_AUTHORIZATION_FAILED: t: grant READ on the topic to this user"):
        ids.changed(["t", "u"])
    assert AUTHORIZATION_GRACE_MS <= (now_s - began_s) * 1000 < 300_000


def test_ids_that_no_broker_tells_are_an_error_after_the_patience_of_a_read() -> None:
    ids = TopicIds({"t": "2" * 32}, {"bootstrap.servers": "127.0.0.1:1"}, 0.0)
    with pytest.raises(WireError, match="No broker says whether t was created again during this batch"):
        ids.changed(["t"])


@pytest.mark.parametrize("isolation", ["read_committed", "read_uncommitted"])
def test_a_range_may_end_behind_its_last_record(
    apache_kafka: ApacheKafka, topic: str, transactions: Producer, isolation: str
) -> None:
    # offsets: 0-9 committed, 10 marker, 11-15 aborted, 16 marker. Partition 1 has only aborted records
    run_transaction(transactions, topic, numbers(0, 10), commit=True)
    run_transaction(transactions, topic, [b"aborted"] * 5, commit=False)
    run_transaction(transactions, topic, [b"aborted"] * 3, partition=1, commit=False)
    await_end(apache_kafka, topic, 0, 17)
    await_end(apache_kafka, topic, 1, 4)
    committed = [(offset, b"%d" % offset) for offset in range(10)]
    uncommitted: Found = {
        0: [*committed, *((offset, b"aborted") for offset in range(11, 16))],
        1: [(offset, b"aborted") for offset in range(3)],
    }
    expected = {0: committed} if isolation == "read_committed" else uncommitted
    started = time.monotonic()
    for end in (11, 13, 16, 17):  # behind a marker, amid the aborted, before and behind the last marker
        rows = read(
            apache_kafka,
            OffsetRange(topic, 0, 0, end),
            OffsetRange(topic, 1, 0, 4),
            **{"kafka.isolation.level": isolation},
        )
        cut = {
            p: [(offset, value) for offset, value in records if p == 1 or offset < end]
            for p, records in expected.items()
        }
        assert found(rows) == cut
    assert time.monotonic() - started < 20  # by the end of the log, never by running into a timeout


def test_ranges_without_any_visible_record_end_without_a_row(
    apache_kafka: ApacheKafka, topic: str, transactions: Producer
) -> None:
    run_transaction(transactions, topic, [b"seen"], commit=True)  # 0, marker 1
    run_transaction(transactions, topic, [b"aborted"] * 4, commit=False)  # 2-5, marker 6
    run_transaction(transactions, topic, [b"seen"], commit=True)  # 7, marker 8
    await_end(apache_kafka, topic, 0, 9)
    for first, end in [(1, 2), (2, 6), (1, 7), (3, 4), (8, 9)]:
        assert (
            read(apache_kafka, OffsetRange(topic, 0, first, end), **{"kafka.isolation.level": "read_committed"}) == []
        )
    (row,) = read(apache_kafka, OffsetRange(topic, 0, 1, 9), **{"kafka.isolation.level": "read_committed"})
    assert (row["offset"], row["value"]) == (7, b"seen")


def test_an_open_transaction_behind_the_range_does_not_hold_it_up(
    apache_kafka: ApacheKafka, topic: str, transactions: Producer
) -> None:
    run_transaction(transactions, topic, numbers(0, 3), commit=True)
    await_end(apache_kafka, topic, 0, 4)
    transactions.begin_transaction()
    fill(transactions, topic, [b"open"] * 3)
    try:
        rows = read(apache_kafka, OffsetRange(topic, 0, 0, 4), **{"kafka.isolation.level": "read_committed"})
        assert found(rows) == {0: [(0, b"0"), (1, b"1"), (2, b"2")]}
    finally:
        transactions.abort_transaction(30)


def test_aborted_records_that_keep_coming_do_not_hold_a_range_up(
    apache_kafka: ApacheKafka, topic: str, transactions: Producer
) -> None:
    run_transaction(transactions, topic, numbers(0, 3), commit=True)  # marker 3
    run_transaction(transactions, topic, [b"aborted"] * 3, commit=False)  # 4-6, marker 7
    await_end(apache_kafka, topic, 0, 8)
    stop = threading.Event()

    def abort_on() -> None:
        while not stop.is_set():
            run_transaction(transactions, topic, [b"aborted"] * 20, commit=False)

    working = threading.Thread(target=abort_on)
    working.start()
    try:
        reads = seat(apache_kafka, [OffsetRange(topic, 0, 0, 8)], 20_000, **{"kafka.isolation.level": "read_committed"})
        for _ in range(3):
            table = pa.Table.from_batches(read_with_librdkafka(*reads))
            assert table["offset"].to_pylist() == [0, 1, 2]
    finally:
        stop.set()
        working.join()


# Three things end a range (see `range_reader`). Each must do so alone, the first two without waiting for an idle look.


def timed_read(kafka: ApacheKafka, ranges: Sequence[OffsetRange], **librdkafka: str) -> tuple[list[int], float]:
    """Offsets read with read_committed, and the seconds it took."""
    ranges, settings = seat(kafka, ranges, 30_000, **{"kafka.isolation.level": "read_committed"})
    settings = replace(settings, consumer_config={**settings.consumer_config, **librdkafka})
    started = time.monotonic()
    offsets = [offset for batch in read_with_librdkafka(ranges, settings) for offset in batch["offset"].to_pylist()]
    return offsets, time.monotonic() - started


def test_a_record_ends_a_range(
    apache_kafka: ApacheKafka, topic: str, producer: Producer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(range_reader, "_POLL_S", 60.0)
    fill(producer, topic, numbers(0, 100))
    for end in (50, 100):
        offsets, seconds = timed_read(
            apache_kafka, [OffsetRange(topic, 0, 0, end)], **{"enable.partition.eof": "false"}
        )
        assert offsets == list(range(end))
        assert seconds < 45


def test_the_end_of_the_log_ends_a_range(
    apache_kafka: ApacheKafka, topic: str, transactions: Producer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(range_reader, "_POLL_S", 60.0)
    run_transaction(transactions, topic, numbers(0, 3), commit=True)
    await_end(apache_kafka, topic, 0, 4)
    offsets, seconds = timed_read(apache_kafka, [OffsetRange(topic, 0, 0, 4)])
    assert offsets == [0, 1, 2]
    assert seconds < 45


def test_the_position_ends_a_range(apache_kafka: ApacheKafka, topic: str, transactions: Producer) -> None:
    run_transaction(transactions, topic, numbers(0, 3), commit=True)
    run_transaction(transactions, topic, [b"aborted"] * 3, commit=False)
    await_end(apache_kafka, topic, 0, 8)
    offsets, seconds = timed_read(apache_kafka, [OffsetRange(topic, 0, 0, 8)], **{"enable.partition.eof": "false"})
    assert offsets == [0, 1, 2]
    assert seconds < 45


# ------------------------------------------------------------------------------------------------ failures


@pytest.fixture
def signs_believed_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unread_ranges, "END_BELOW_MS", 0)
    monkeypatch.setattr(unread_ranges, "UNKNOWN_FOR_MS", 0)
    monkeypatch.setattr(unread_ranges, "_LOOKS_MIN", 1)


def test_records_that_are_gone_are_data_loss(apache_kafka: ApacheKafka, topic: str, producer: Producer) -> None:
    fill(producer, topic, numbers(0, 100), 2)
    fill(producer, topic, numbers(0, 100), 3)
    where = AssignedPartition(topic, 2, 40)
    apache_kafka.admin.delete_records([where])[where].result(30)
    with pytest.raises(DataLoss, match=rf"Offsets 10 to 89 of {topic}-2 "):
        read(apache_kafka, OffsetRange(topic, 2, 10, 90), OffsetRange(topic, 3, 0, 0))
    assert len(read(apache_kafka, OffsetRange(topic, 2, 40, 90))) == 50


@pytest.mark.usefixtures("signs_believed_at_once")
def test_a_range_past_the_log_is_data_loss(apache_kafka: ApacheKafka, topic: str, producer: Producer) -> None:
    fill(producer, topic, numbers(0, 5))
    with pytest.raises(DataLoss, match=rf"Offsets 10 to 19 of {topic}-0 "):
        read(apache_kafka, OffsetRange(topic, 0, 10, 20))


@pytest.mark.usefixtures("signs_believed_at_once")
def test_a_log_that_ends_too_early_is_distinguished_from_a_slow_one(
    apache_kafka: ApacheKafka, topic: str, producer: Producer
) -> None:
    fill(producer, topic, numbers(0, 5))
    with pytest.raises(DataLoss, match=rf"Offsets 5 to 19 of {topic}-0 .+ the log has 0 to 4"):
        read(apache_kafka, OffsetRange(topic, 0, 0, 20))


@pytest.mark.usefixtures("signs_believed_at_once")
def test_a_topic_that_does_not_exist_is_one_clear_error(apache_kafka: ApacheKafka) -> None:
    options = {"kafka.topic.metadata.propagation.max.ms": "100"}  # 5 s else
    with pytest.raises(DataLoss, match=r"Offsets 0 to 4 of nowhere-0 .+does not exist any more"):
        read(apache_kafka, OffsetRange("nowhere", 0, 0, 5), **options)


def test_no_broker_is_an_error_within_the_bound() -> None:
    options = parse({"kafka.bootstrap.servers": "127.0.0.1:1", "kafka.group.id": "g", "subscribe": "t"})
    settings = ReadSettings(consumer_config=options.consumer_config(), stall_timeout_ms=1_000)
    started = time.monotonic()
    with pytest.raises(
        WireError, match=r"No record came for 1 s from t-0 .+librdkafka said last: .+advertised.listeners"
    ):
        list(read_with_librdkafka([OffsetRange("t", 0, 0, 5)], settings))
    assert time.monotonic() - started < 30, "without its bound, 5 minutes"


def test_a_configuration_that_this_librdkafka_does_not_know_is_one_clear_error() -> None:
    settings = ReadSettings(consumer_config={"group.id": "g", "from.tomorrow": "1"})
    with pytest.raises(OptionError, match=r"from\.tomorrow"):
        list(read_with_librdkafka([OffsetRange("t", 0, 0, 5)], settings))


# ---------------------------------------------------------------------------------------------- lifetime


def test_the_consumer_ends_with_the_read(apache_kafka: ApacheKafka, topic: str, producer: Producer) -> None:
    fill(producer, topic, numbers(0, 20_000))
    before = librdkafka_threads()
    batches = read_with_librdkafka(*seat(apache_kafka, [OffsetRange(topic, 0, 0, 20_000)]))
    assert librdkafka_threads() == before  # no thread starts before the first batch is asked for
    rows = next(batches).num_rows
    assert rows + sum(batch.num_rows for batch in batches) == 20_000
    assert librdkafka_threads() == before


def test_the_consumer_ends_when_spark_stops_early(
    apache_kafka: ApacheKafka, topic: str, producer: Producer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(range_reader, "ARROW_BATCH_ROWS_MAX", 100)
    fill(producer, topic, numbers(0, 20_000))
    before = librdkafka_threads()
    batches = read_with_librdkafka(*seat(apache_kafka, [OffsetRange(topic, 0, 0, 20_000)]))
    assert next(batches).num_rows <= 100
    assert librdkafka_threads() > before
    assert isinstance(batches, Generator)
    batches.close()
    assert librdkafka_threads() == before


@pytest.mark.usefixtures("signs_believed_at_once")
def test_the_consumer_ends_with_an_error(apache_kafka: ApacheKafka, topic: str, producer: Producer) -> None:
    fill(producer, topic, numbers(0, 5))
    before = librdkafka_threads()
    with pytest.raises(DataLoss):
        read(apache_kafka, OffsetRange(topic, 0, 10, 20))
    assert librdkafka_threads() == before


def test_the_time_that_a_caller_takes_between_batches_is_no_stall(
    apache_kafka: ApacheKafka, topic: str, producer: Producer, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = 0.0
    monkeypatch.setattr(range_reader, "_POLL_S", 0.0)
    for first in range(0, 100, 10):
        fill(producer, topic, numbers(first, first + 10))
    # One small log batch a fetch: after most batches the next look finds no record yet.
    reads = seat(
        apache_kafka,
        [OffsetRange(topic, 0, 0, 100)],
        1_000,
        **{"kafka.fetch.message.max.bytes": "200", "kafka.queued.min.messages": "1"},
    )
    batches, sizes = read_with_librdkafka(*reads, lambda: now_s), []
    for batch in batches:
        sizes.append(batch.num_rows)
        now_s += 3_600  # Spark takes an hour for the batch
    assert sum(sizes) == 100
    assert len(sizes) > 2


def test_the_collector_rests_among_records_and_works_for_the_caller(
    apache_kafka: ApacheKafka, topic: str, producer: Producer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(range_reader, "ARROW_BATCH_ROWS_MAX", 10_000)

    def collections() -> int:
        return sum(generation["collections"] for generation in gc.get_stats())

    fill(producer, topic, numbers(0, 50_000))
    batches = read_with_librdkafka(*seat(apache_kafka, [OffsetRange(topic, 0, 0, 50_000)]))
    first = next(batches)  # with the imports that it needs
    before, rows = collections(), first.num_rows
    for batch in batches:
        assert gc.isenabled()
        rows += batch.num_rows
    assert rows == 50_000
    assert gc.isenabled()
    assert collections() - before < 10  # it would be 50 and more: one for every 700 records


def test_secrets_do_not_show() -> None:
    assert "hush" not in repr(ReadSettings(consumer_config={"sasl.password": "hush"}))
