"""Ranges are read to their ends, or up to an unusual answer: the ranges left begin exactly where the rows end."""

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from ctypes import CDLL
from dataclasses import replace
from functools import partial
from typing import Any

import pyarrow as pa
import pytest
from harness.fake_broker import HUNG_UP, Answer
from harness.fetch_broker import FetchBroker, answering, partition, response
from harness.record_batches import CODECS, TRANSACTIONAL, Batch, Record, marker
from harness.waiting import wait_for

from pyspark_kgroup.errors import DataLoss
from pyspark_kgroup.executor.native import codecs, decode, fetched_log
from pyspark_kgroup.executor.native import library as library_module
from pyspark_kgroup.executor.native.broker_connection import Broker
from pyspark_kgroup.executor.native.library import Loaded
from pyspark_kgroup.executor.native.read_natively import Left, read_natively
from pyspark_kgroup.limits import FETCH_JOINED_BYTES_MAX
from pyspark_kgroup.shared.arrow import arrow_schema
from pyspark_kgroup.shared.tickets import OffsetRange, ReadSettings
from spark_kgroup import rights
from spark_kgroup.errors import BrokerError
from spark_kgroup.model import TopicPartition

pytestmark = pytest.mark.usefixtures("library")


def value(partition: int, offset: int) -> bytes:
    return b"%d/%d" % (partition, offset)


def log(number: int, first: int, count: int = 10, **more: Any) -> bytes:
    return Batch(
        [Record(offset, None, value(number, offset)) for offset in range(first, first + count)], **more
    ).encoded()


def settings(**config: str) -> ReadSettings:
    return ReadSettings(consumer_config=config)


def drained(
    ranges: Sequence[OffsetRange], how: ReadSettings | None = None
) -> tuple[list[pa.RecordBatch], Sequence[OffsetRange]]:
    """The batches, and the ranges that are left."""
    batches, left = drained_with_reasons(ranges, how)
    assert left.reasons.keys() <= {TopicPartition(r.topic, r.partition) for r in left.ranges}
    return batches, left.ranges


def drained_with_reasons(
    ranges: Sequence[OffsetRange], how: ReadSettings | None = None
) -> tuple[list[pa.RecordBatch], Left]:
    """The batches, and the ranges that are left with their reasons."""
    batches: list[pa.RecordBatch] = []
    reading = read_natively(ranges, how or settings())
    while True:
        try:
            batches.append(next(reading))
        except StopIteration as done:
            return batches, done.value


def reasons_of(left: Left) -> dict[TopicPartition, str]:
    return {partition: why.reason for partition, why in left.reasons.items()}


def rows(batches: Sequence[pa.RecordBatch]) -> dict[int, list[int]]:
    """The offsets of each partition, in order. Each value is the one that belongs to its offset."""
    found: dict[int, list[int]] = {}
    for row in pa.Table.from_batches(batches, schema=arrow_schema(False)).to_pylist():
        assert row["value"] == value(row["partition"], row["offset"])
        found.setdefault(row["partition"], []).append(row["offset"])
    return found


def test_ranges_are_read_exactly_wherever_batches_cut_them() -> None:
    with FetchBroker(
        answering(lambda n, offset: log(n, offset - offset % 10) + log(n, offset - offset % 10 + 10))
    ) as broker:
        leader = broker.leader()
        ranges = [
            OffsetRange("t", 0, 3, 77, leader),
            OffsetRange("t", 1, 40, 41, leader),
            OffsetRange("t", 2, 5, 5, leader),
        ]
        batches, left = drained(ranges)
    assert left == ()
    assert rows(batches) == {0: list(range(3, 77)), 1: [40]}


def test_a_read_without_ranges_asks_no_broker() -> None:
    assert drained([OffsetRange("t", 0, 5, 5)]) == ([], ())


@pytest.mark.parametrize("codec", sorted(CODECS))
def test_every_codec_is_read(codec: str) -> None:
    with FetchBroker(answering(lambda n, offset: log(n, offset, codec=codec))) as broker:
        batches, left = drained([OffsetRange("t", 0, 0, 30, broker.leader())])
    assert (rows(batches), left) == ({0: list(range(30))}, ())


def test_aborted_transactions_and_markers_are_no_rows_and_positions_move_past_them() -> None:
    def say(number: int, offset: int) -> Any:
        aborted = log(number, 0, 5, producer_id=9, attributes=TRANSACTIONAL) + marker(5, 9, commit=False)
        committed = log(number, 6, 4, producer_id=9, attributes=TRANSACTIONAL) + marker(10, 9, commit=True)
        return partition(number, aborted + committed if offset < 6 else committed, aborted=((9, 0),))

    with FetchBroker(answering(say)) as broker:
        how = settings(**{"isolation.level": "read_committed"})
        batches, left = drained([OffsetRange("t", 0, 0, 11, broker.leader())], how)
        assert broker.fetches[0].isolation_level == 1
    assert (rows(batches), left) == ({0: [6, 7, 8, 9]}, ())


def test_compacted_offsets_are_passed_over() -> None:
    gaps = Batch([Record(12, None, value(0, 12)), Record(17, None, value(0, 17))], base_offset=10, last_offset=19)
    with FetchBroker(answering(lambda _, __: gaps.encoded())) as broker:
        batches, left = drained([OffsetRange("t", 0, 10, 20, broker.leader())])
        assert len(broker.fetches) == 1
    assert (rows(batches), left) == ({0: [12, 17]}, ())


# ------------------------------------------------------------------------------------------------------------ sizes


def test_small_batches_are_joined_up_to_a_bound_and_large_ones_are_handed_on() -> None:
    large = Batch([Record(100, None, b"x" * FETCH_JOINED_BYTES_MAX)]).encoded()

    def say(number: int, offset: int) -> bytes:
        return large if offset == 100 else log(number, offset)

    with FetchBroker(answering(say)) as broker:
        batches, left = drained([OffsetRange("t", 0, 0, 151, broker.leader())])
    assert [batch.num_rows for batch in batches] == [100, 1, 50]
    assert left == ()


# ------------------------------------------------------------------------------------------------------ hand-over


@pytest.fixture
def a_new_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has warned of no reason yet."""
    monkeypatch.setattr(decode, "_warned_of", set())


def bad_crc(first: int) -> bytes:
    good = bytearray(log(0, first))
    good[-1] ^= 1
    return bytes(good)


@pytest.mark.parametrize(
    ("odd", "why"),
    [
        (lambda _: partition(0, error=6), "t-0: NOT_LEADER_OR_FOLLOWER"),
        (lambda _: partition(0, error=1), "t-0: OFFSET_OUT_OF_RANGE"),
        (lambda _: partition(0, error=76), "t-0: UNSUPPORTED_COMPRESSION_TYPE"),
        (lambda first: log(0, first, magic=1), "record format 1"),
        (lambda first: log(0, first, codec="gzip", payload=b"no gzip"), "decompress"),
        (bad_crc, "checksum"),
    ],
)
@pytest.mark.parametrize("good", [0, 1, 3])
@pytest.mark.usefixtures("a_new_process")
def test_an_unusual_answer_ends_the_rows_where_the_next_reader_begins(
    odd: Callable[[int], Any], why: str, good: int, caplog: pytest.LogCaptureFixture
) -> None:
    """After none, one and three good answers of two partitions. The second partition is read to its end, or as far as
    it was fetched if the decoder found the unusual bytes."""
    caplog.set_level(logging.INFO)

    def say(number: int, offset: int) -> Any:
        return odd(offset) if number == 0 and offset >= 10 * good else log(number, offset)

    with FetchBroker(answering(say)) as broker:
        leader = broker.leader()
        batches, left = drained([OffsetRange("t", 0, 0, 100, leader), OffsetRange("t", 1, 0, 100, leader)])
    found = rows(batches)
    assert found.get(0, []) == list(range(10 * good))
    ends = {r.partition: (r.start_offset, r.end_offset) for r in left}
    assert ends[0] == (10 * good, 100)
    assert (1 in ends) == (why in ("decompress", "checksum"))
    assert found.get(1, []) == list(range(ends[1][0] if 1 in ends else 100))
    (line,) = [record.getMessage() for record in caplog.records if "with librdkafka" in record.getMessage()]
    assert why in line


def test_why_a_partition_is_left_is_said_of_it_alone() -> None:
    """Bytes that the decoder refuses end the read of all partitions. A broker's error for one partition does not."""

    def say(number: int, offset: int) -> Any:
        return partition(number, error=1) if number == 0 else log(number, offset) if offset < 20 else bad_crc(offset)

    with FetchBroker(answering(say)) as broker:
        _, left = drained_with_reasons([OffsetRange("t", n, 0, 100, broker.leader()) for n in range(2)])
    assert reasons_of(left) == {
        TopicPartition("t", 0): "t-0: OFFSET_OUT_OF_RANGE",
        TopicPartition("t", 1): "a batch does not have the checksum that it names",
    }


def test_a_topic_that_this_user_may_not_read_is_final_and_no_other_broker_is_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fetched_log, "FETCH_TROUBLE_MS", 0)
    refused = partition(1, error=29)
    with FetchBroker(answering(lambda n, offset: refused if n == 1 else log(n, offset))) as broker:
        ranges = [OffsetRange("t", 0, 0, 10, broker.leader()), OffsetRange("t", 1, 0, 10, broker.leader())]
        with pytest.raises(BrokerError, match=r"TOPIC_AUTHORIZATION_FAILED: t-1: grant READ on the topic"):
            drained(ranges)


def test_rights_that_are_back_after_a_moment_are_no_error() -> None:
    asked = iter(range(3))
    with FetchBroker(
        answering(lambda n, at: partition(n, error=29) if next(asked, None) is not None else log(n, at))
    ) as broker:
        batches, left = drained([OffsetRange("t", 0, 0, 10, broker.leader())])
    assert (rows(batches), left) == ({0: list(range(10))}, ())


def test_a_right_that_was_there_before_may_be_missing_for_a_minute(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A broker that starts may not have all ACLs yet. A group's commits have shown that the user had the right."""
    monkeypatch.setattr(fetched_log, "FETCH_TROUBLE_MS", 0)
    asked = iter(range(5))

    def say(number: int, at: int) -> Any:
        return partition(1, error=29) if number == 1 and next(asked, None) is not None else log(number, at)

    with FetchBroker(answering(say)) as broker:
        ranges = [OffsetRange("t", n, 0, 10, broker.leader()) for n in range(2)]
        batches, left = drained(ranges, replace(settings(), may_read=True))
    assert (rows(batches), left) == ({0: list(range(10)), 1: list(range(10))}, ())
    assert "TOPIC_AUTHORIZATION_FAILED: t-1: grant READ on the topic" in caplog.text


def test_a_right_that_was_there_before_and_stays_missing_is_final_after_that(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetched_log, "FETCH_TROUBLE_MS", 0)
    monkeypatch.setattr(rights, "AUTHORIZATION_GRACE_MS", 300)
    with FetchBroker(answering(lambda n, _: partition(n, error=29))) as broker:
        began_s = time.monotonic()
        with pytest.raises(BrokerError, match="TOPIC_AUTHORIZATION_FAILED"):
            drained([OffsetRange("t", 0, 0, 10, broker.leader())], replace(settings(), may_read=True))
    assert time.monotonic() >= began_s + 0.3


def test_a_broker_that_throttles_for_ever_is_left_after_half_of_the_reads_patience() -> None:
    """The other half is librdkafka's, whose patience counts from the same instant (`quiet_since_s`)."""
    with FetchBroker(lambda _: response({}, throttle_ms=1)) as broker:
        began_s = time.monotonic()
        _, left = drained_with_reasons(
            [OffsetRange("t", 0, 0, 10, broker.leader())], replace(settings(), stall_timeout_ms=1_000)
        )
    assert reasons_of(left) == {TopicPartition("t", 0): "no record came for 0.5 s"}
    assert began_s <= left.quiet_since_s <= began_s + 0.4


def is_past(at_s: float) -> bool:
    return time.monotonic() > at_s


def test_the_time_that_spark_takes_for_a_batch_is_not_the_brokers() -> None:
    logs = {at: log(0, at, 10_000) for at in range(0, 30_000, 10_000)}
    with FetchBroker(answering(lambda _, at: logs[at])) as broker:
        found = 0
        ranges, how = [OffsetRange("t", 0, 0, 30_000, broker.leader())], replace(settings(), stall_timeout_ms=1_000)
        for batch in read_natively(ranges, how):
            found += batch.num_rows
            wait_for(partial(is_past, time.monotonic() + 0.6), "longer than the patience")
    assert found == 30_000


def test_brokers_that_send_each_other_are_left_after_some_answers() -> None:
    """Each says that the other one is nearer (KIP-392)."""
    brokers: dict[int, Broker] = {}

    def pointing_to(other: int) -> Answer:
        return lambda request: answering(lambda n, _: partition(n, preferred=other), endpoints=brokers)(request)

    with FetchBroker(pointing_to(2)) as first, FetchBroker(pointing_to(1)) as second:
        brokers.update({1: first.address, 2: second.address})
        _, left = drained_with_reasons([OffsetRange("t", 0, 0, 10, first.leader(1))])
        assert len(first.fetches) + len(second.fetches) <= 6
    assert reasons_of(left) == {TopicPartition("t", 0): "t-0 has no record from offset 0 to 10"}


def losing(error: int) -> Callable[[int, int], Any]:
    """Partition 0 is gone from offset 20 on."""
    return lambda n, at: log(n, at) if n or at < 20 else partition(n, error=error)


def test_a_topic_whose_id_is_unknown_in_the_midst_is_left_to_librdkafka_there_and_other_topics_are_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fetched_log, "FETCH_TROUBLE_MS", 0)
    with FetchBroker(answering(losing(100))) as broker:
        ranges = [OffsetRange("t", n, 0, 50, broker.leader()) for n in range(2)]
        batches, left = drained_with_reasons(ranges)
        wait_for(lambda: broker.fake.open_connections == 0, "the end of both connections")
    assert rows(batches) == {0: list(range(20)), 1: list(range(50))}
    assert left.ranges == (ranges[0]._replace(start_offset=20),)
    assert isinstance(left.reasons[TopicPartition("t", 0)], fetched_log.UnknownTopicId)


@pytest.mark.parametrize("fail", [True, False])
def test_a_log_that_is_cut_in_the_midst_is_an_error_or_read_on_with_a_warning(
    fail: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """KIP-320: the broker compares the last epoch read. A fetch that has read no record yet cannot be compared."""

    def answer(request: Any) -> Any:
        ((topic,),) = [request.topics]
        read = topic.partitions[0].last_fetched_epoch >= 0
        return answering(lambda n, at: partition(n, diverging=(0, 15)) if read and at == 20 else log(n, at))(request)

    with FetchBroker(answer) as broker:
        ranges = [OffsetRange("t", 0, 0, 50, broker.leader())]
        how = replace(settings(), fail_on_data_loss=fail)
        if fail:
            with pytest.raises(DataLoss, match=r"Offsets 20 to 49 of t-0 .+from offset 15 on .+it was truncated"):
                drained(ranges, how)
            return
        batches, left = drained(ranges, how)
    assert (rows(batches), left) == ({0: list(range(50))}, ())
    (warning,) = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert warning.endswith("Skipping to offset 20.")


def test_a_connection_that_ends_in_the_midst_leaves_the_rest() -> None:
    def say(request: Any) -> Any:
        ((_, _, offset),) = [(t.topic_id, p.partition, p.fetch_offset) for t in request.topics for p in t.partitions]
        return HUNG_UP if offset == 20 else answering(lambda n, at: log(n, at))(request)

    with FetchBroker(say) as broker:
        batches, left = drained([OffsetRange("t", 0, 0, 30, broker.leader()), OffsetRange("t", 1, 0, 0)])
    assert rows(batches) == {0: list(range(20))}
    assert [(r.start_offset, r.end_offset) for r in left] == [(20, 30)]


def test_a_broker_that_is_gone_leaves_its_own_ranges_and_all_other_ranges_are_read(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    with FetchBroker(answering(lambda n, offset: log(n, offset))) as broker:
        with FetchBroker(answering(lambda n, offset: log(n, offset))) as other:
            gone = other.leader(2)
        batches, left = drained([OffsetRange("t", 0, 0, 30, gone), OffsetRange("t", 1, 0, 300, broker.leader(1))])
    assert rows(batches) == {1: list(range(300))}
    assert left == (OffsetRange("t", 0, 0, 30, gone),)
    (line,) = [record.getMessage() for record in caplog.records if "with librdkafka" in record.getMessage()]
    assert "refused" in line


@pytest.mark.parametrize(
    ("odd", "why"),
    [
        (lambda: log(0, 10, codec="lz4"), "PyArrow cannot decompress"),
        (lambda: log(0, 10, magic=1), "record format 1"),
        (lambda: log(0, 10, append_time_ms=2**62), "timestamp"),
    ],
)
@pytest.mark.usefixtures("a_new_process")
def test_a_reason_that_lasts_is_given_once_in_a_process(
    odd: Callable[[], bytes], why: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(codecs._STREAMS, CODECS["lz4"], "lz4_raw")  # as PyArrow without lz4: refused by the same error
    how = settings()
    with FetchBroker(answering(lambda n, offset: log(n, offset) if offset < 10 else odd())) as broker:
        whole = OffsetRange("t", 0, 0, 100, broker.leader())
        for _ in range(3):
            _, left = drained([whole], how)
            assert left == (whole._replace(start_offset=10),)
    (warning,) = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert warning.startswith("Reading with librdkafka, which is slower: ")
    assert why in warning


def test_a_batch_that_is_odd_behind_good_ones_in_an_answer_leaves_the_whole_answer() -> None:
    """Its rows are decoded together: none of them has been handed over."""
    with FetchBroker(answering(lambda n, offset: log(n, offset) + bad_crc(offset + 10))) as broker:
        batches, left = drained([OffsetRange("t", 0, 0, 30, broker.leader())])
    assert sum(batch.num_rows for batch in batches) == left[0].start_offset


def test_a_range_without_a_known_leader_is_left_and_all_other_ranges_are_read() -> None:
    with FetchBroker(answering(lambda n, at: log(n, at))) as broker:
        unknown = OffsetRange("t", 1, 0, 20)
        batches, left = drained(
            [OffsetRange("t", 0, 0, 20, broker.leader()), unknown, OffsetRange("t", 2, 0, 20, broker.leader())]
        )
    assert (rows(batches), left) == ({0: list(range(20)), 2: list(range(20))}, (unknown,))


@pytest.mark.usefixtures("a_new_process")
def test_an_unknown_property_or_a_missing_decoder_leaves_everything_with_one_warning_each(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    ranges = (OffsetRange("t", 0, 0, 10),)
    for _ in range(2):
        assert drained(ranges, settings(debug="all")) == ([], ranges)
        assert drained(ranges, settings(**{"security.protocol": "SSL", "ssl.ca.location": "/nowhere"})) == ([], ranges)
    monkeypatch.setattr(library_module, "load", lambda: Loaded(None, "this installation has no decoder"))
    for _ in range(2):
        assert drained(ranges) == ([], ranges)
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert [next(why for why in ("debug", "/nowhere", "no decoder") if why in line) for line in warnings] == [
        "debug",
        "/nowhere",
        "no decoder",
    ]


def test_connections_end_with_the_read_and_when_spark_stops_early(library: CDLL) -> None:
    with FetchBroker(answering(lambda n, offset: log(n, offset, 5_000))) as broker:
        ranges = [OffsetRange("t", 0, 0, 1_000_000, broker.leader())]
        with closing(read_natively(ranges, settings())) as reading:
            assert next(reading).num_rows > 0
            assert broker.fake.open_connections == 1
        wait_for(lambda: broker.fake.open_connections == 0, "the end of the connection")
        drained([ranges[0]._replace(end_offset=5_000)])
        wait_for(lambda: broker.fake.open_connections == 0, "the end of the connection")


def test_a_reader_that_is_stopped_early_leaves_no_range_to_librdkafka(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    with FetchBroker(answering(lambda n, offset: log(n, offset, 5_000))) as broker:
        reading: Iterator[pa.RecordBatch] = read_natively([OffsetRange("t", 0, 0, 10**6, broker.leader())], settings())
        next(reading)
        reading.close()  # type: ignore[attr-defined]
    assert "librdkafka" not in caplog.text
