"""Fetch answers through the native decoder: the rows are those that were put in, or it refuses.

The answers were encoded by kafka-python, or byte by byte (`harness.record_batches`). The rules are those of Java's
CompletedFetch and DefaultRecordBatch.
"""

import time
import tracemalloc
from collections.abc import Callable, Iterable, Sequence
from ctypes import CDLL
from dataclasses import replace
from typing import NamedTuple

import pytest
from harness.record_batches import CODECS, CONTROL, Batch, Record, compressed, in_transaction, marker, sized, varint
from kafka.record.default_records import DefaultRecordBatchBuilder

from pyspark_kgroup.executor.native import codecs as codecs_module
from pyspark_kgroup.executor.native import decode as decode_module
from pyspark_kgroup.executor.native.decode import Decoded, Decoder, FallbackToLibrdkafka
from pyspark_kgroup.limits import ARROW_BATCH_BYTES_MAX, ARROW_BATCH_ROWS_MAX, FETCH_JOINED_BYTES_MAX
from pyspark_kgroup.shared.arrow import arrow_schema

ALL = 2**62
"""The end of a range that no log reaches."""

RECORDS_AT = 61
"""Where a batch's records begin (DefaultRecordBatch.RECORDS_OFFSET)."""

TIME_MS = 1_700_000_000_000

Decode = Callable[..., Decoded]


class Row(NamedTuple):
    """A row of the source in all its columns."""

    key: bytes | None
    value: bytes | None
    topic: str
    partition: int
    offset: int
    timestamp_us: int
    timestamp_type: int
    headers: tuple[tuple[str, bytes | None], ...] | None


@pytest.fixture
def decode(library: CDLL) -> Decode:
    """Decodes an answer of a partition, headers included."""

    def run(answer: bytes, start: int = 0, end: int = ALL, aborted: Sequence[tuple[int, int]] = ()) -> Decoded:
        decoder = Decoder(library, "t", 3, include_headers=True)
        return decoder.decode(memoryview(answer), start, end, aborted)

    return run


def rows_of(decoded: Decoded) -> list[Row]:
    found = []
    for batch in decoded.batches:
        assert batch.schema.equals(arrow_schema("headers" in batch.schema.names))
        batch.validate(full=True)
        columns = dict(zip(batch.schema.names, batch.columns, strict=True))
        columns["timestamp"] = columns["timestamp"].cast("int64")
        columns.setdefault("headers", [None] * batch.num_rows)
        for row in zip(*columns.values(), strict=True):
            *plain, headers = (value if value is None else value.as_py() for value in row)
            found.append(Row._make([*plain, headers and tuple((each["key"], each["value"]) for each in headers)]))
    return found


def expected(records: Iterable[Record], append_time_ms: int | None = None) -> list[Row]:
    return [
        Row(
            record.key,
            record.value,
            "t",
            3,
            record.offset,
            1000 * (record.timestamp_ms if append_time_ms is None else append_time_ms),
            int(append_time_ms is not None),
            tuple((name.decode(), value) for name, value in record.headers) or None,
        )
        for record in records
    ]


def log(first: int, count: int) -> list[Record]:
    """Ordinary records."""
    return [
        Record(offset, b"k%d" % offset, b"v" * (offset % 7), timestamp_ms=TIME_MS + offset)
        for offset in range(first, first + count)
    ]


ODD = [
    Record(0, None, None),
    Record(1, b"", b""),
    Record(2, b"k", None, ((b"h", None),)),
    Record(3, None, b"v", ((b"", b""), ("ü€😀".encode(), b"\xff\x00"), (b"h", b"1"), (b"h", None))),
    Record(4, b"k" * 300, b"v" * 70_000, timestamp_ms=-1),
    Record(5, b"k", b"v", timestamp_ms=0),
    Record(6, b"k", b"v", timestamp_ms=2**53 // 1000),
    Record(7, b"k", b"v", timestamp_ms=-(10**12)),
]


# ----------------------------------------------------------------------------------------------- contents of records


def test_nulls_empty_values_headers_and_timestamps_are_read_as_they_are(decode: Decode) -> None:
    assert rows_of(decode(Batch(ODD).encoded())) == expected(ODD)


@pytest.mark.parametrize("codec", CODECS)
def test_a_log_with_every_codec_is_read_whole(decode: Decode, codec: str) -> None:
    batches = [Batch(ODD, codec), Batch(log(8, 500), codec), Batch(log(508, 1), codec)]
    decoded = decode(b"".join(batch.encoded() for batch in batches))
    assert rows_of(decoded) == expected([record for batch in batches for record in batch.records])
    assert (decoded.next_offset, decoded.complete) == (509, True)


def test_codecs_may_change_from_batch_to_batch(decode: Decode) -> None:
    batches = [Batch(log(10 * n, 10), codec) for n, codec in enumerate([*CODECS, *reversed(CODECS)])]
    assert rows_of(decode(b"".join(batch.encoded() for batch in batches))) == expected(log(0, 100))


def test_snappy_in_the_frame_of_snappy_java_is_read(decode: Decode) -> None:
    records = log(0, 2000)
    assert rows_of(decode(Batch(records, "snappy", xerial=True).encoded())) == expected(records)


@pytest.mark.parametrize("more", range(12))
def test_the_last_block_of_snappy_javas_frame_may_have_a_few_bytes_only(decode: Decode, more: int) -> None:
    """Each block holds 1,024 bytes, and a record takes 9 beside its value. Of one byte snappy makes three."""
    records = [Record(0, None, bytes(1_015 + more))]
    assert rows_of(decode(Batch(records, "snappy", xerial=True).encoded())) == expected(records)


@pytest.mark.parametrize("gzip", [False, True])
def test_records_that_kafka_python_encodes_are_read(decode: Decode, gzip: bool) -> None:
    builder = DefaultRecordBatchBuilder(2, int(gzip), False, -1, -1, -1, 1 << 20)
    for record in ODD:
        headers = [(name.decode(), value) for name, value in record.headers]
        builder.append(record.offset, record.timestamp_ms, record.key, record.value, headers)
    assert rows_of(decode(bytes(builder.build()))) == expected(ODD)


def test_a_batch_with_log_append_time_has_it_in_every_row(decode: Decode) -> None:
    assert rows_of(decode(Batch(ODD, append_time_ms=TIME_MS).encoded())) == expected(ODD, TIME_MS)


@pytest.mark.parametrize("far", [{"timestamp_ms": 2**62}, {"timestamp_ms": -(2**62)}])
def test_a_far_timestamp_is_no_obstacle_where_timestamps_are_not_asked_for(library: CDLL, far: dict[str, int]) -> None:
    log = Batch([Record(0), Record(1, b"k", **far), Record(2)]).encoded()  # type: ignore[arg-type]
    decoder = Decoder(library, "t", 3, include_headers=False, include_timestamps=False)
    decoded = decoder.decode(memoryview(log), 0, ALL)
    assert [(row.offset, row.key) for row in rows_of(decoded)] == [(0, None), (1, b"k"), (2, None)]
    with pytest.raises(FallbackToLibrdkafka, match="timestamp"):
        Decoder(library, "t", 3, include_headers=False).decode(memoryview(log), 0, ALL)


def test_headers_that_are_not_asked_for_are_no_column(library: CDLL) -> None:
    decoded = Decoder(library, "t", 3, include_headers=False).decode(memoryview(Batch(ODD).encoded()), 0, ALL)
    assert rows_of(decoded) == [row._replace(headers=None) for row in expected(ODD)]


def test_memory_of_any_kind_is_read_and_may_be_used_again_afterwards(library: CDLL) -> None:
    memory = bytearray(b"...") + Batch(ODD).encoded()
    decoded = Decoder(library, "t", 3, include_headers=True).decode(memoryview(memory)[3:], 0, ALL)
    memory[:] = b"\xff" * len(memory)
    memory.clear()
    assert rows_of(decoded) == expected(ODD)


# ------------------------------------------------------------------------------------------ records left out of rows


@pytest.mark.parametrize("start", range(12))
@pytest.mark.parametrize("end", range(1, 13))
def test_a_cut_range_has_exactly_its_records(decode: Decode, start: int, end: int) -> None:
    records = log(1, 9)
    answer = Batch(records[:4]).encoded() + Batch(records[4:], "lz4").encoded()
    decoded = decode(answer, start, end)
    assert rows_of(decoded) == expected(record for record in records if start <= record.offset < end)
    assert decoded.next_offset == min(max(start, 10), end)


def test_gaps_of_compaction_are_passed_within_between_and_behind_batches(decode: Decode) -> None:
    first, second = [Record(12), Record(15)], [Record(40)]
    answer = Batch(first, base_offset=10, last_offset=19).encoded() + Batch(second, last_offset=44).encoded()
    decoded = decode(answer, 10)
    assert rows_of(decoded) == expected([*first, *second])
    assert decoded.next_offset == 45


def test_an_end_within_a_gap_is_reached(decode: Decode) -> None:
    decoded = decode(Batch([Record(1)]).encoded() + Batch([Record(50)]).encoded(), 0, 20)
    assert rows_of(decoded) == expected([Record(1)])
    assert decoded.next_offset == 20


def test_an_empty_batch_is_passed(decode: Decode) -> None:
    decoded = decode(Batch([], base_offset=5, last_offset=9, leader_epoch=4).encoded(), 5)
    assert (decoded.batches, decoded.next_offset, decoded.leader_epoch) == ([], 10, 4)


def test_control_batches_are_passed(decode: Decode) -> None:
    answer = marker(0, 7, commit=True) + Batch([Record(1)]).encoded() + marker(2, 7, commit=False)
    decoded = decode(answer)
    assert rows_of(decoded) == expected([Record(1)])
    assert decoded.next_offset == 3


def test_an_empty_answer_leaves_the_position(decode: Decode) -> None:
    decoded = decode(b"", 17)
    assert (decoded.batches, decoded.next_offset, decoded.leader_epoch) == ([], 17, -1)


def test_the_leader_epoch_is_that_of_the_last_batch(decode: Decode) -> None:
    answer = Batch([Record(0)], leader_epoch=3).encoded() + Batch([Record(1)], leader_epoch=8).encoded()
    assert decode(answer).leader_epoch == 8


# ------------------------------------------------------------------------------------------------------- transactions


def test_an_aborted_transaction_is_left_out_up_to_its_marker(decode: Decode) -> None:
    answer = b"".join(
        [
            in_transaction(Batch([Record(0)]), 7).encoded(),  # aborted
            in_transaction(Batch([Record(1)]), 8).encoded(),
            Batch([Record(2)], producer_id=7).encoded(),  # of the same producer, in no transaction
            in_transaction(Batch([Record(3)], "zstd"), 7).encoded(),  # aborted
            marker(4, 7, commit=False),
            in_transaction(Batch([Record(5)]), 7).encoded(),  # the next one
            marker(6, 8, commit=True),
            marker(7, 7, commit=True),
        ]
    )
    decoded = decode(answer, aborted=[(7, 0)])
    assert [row.offset for row in rows_of(decoded)] == [1, 2, 5]
    assert decoded.next_offset == 8
    assert [row.offset for row in rows_of(decode(answer))] == [0, 1, 2, 3, 5]


def test_a_producer_whose_transactions_are_aborted_again_and_again_is_left_out_each_time(decode: Decode) -> None:
    answer = b"".join(
        in_transaction(Batch([Record(2 * n)]), 7).encoded() + marker(2 * n + 1, 7, commit=n % 3 == 0) for n in range(9)
    )
    aborted = [(7, 2 * n) for n in range(9) if n % 3]
    decoded = decode(answer, aborted=aborted[::-1])  # in any order
    assert [row.offset for row in rows_of(decoded)] == [0, 6, 12]


def test_a_transaction_that_began_before_the_answer_is_left_out(decode: Decode) -> None:
    answer = in_transaction(Batch([Record(100)]), 7).encoded() + in_transaction(Batch([Record(101)]), 8).encoded()
    assert [row.offset for row in rows_of(decode(answer, 100, aborted=[(7, 3), (9, 50)]))] == [101]


def test_a_transaction_that_is_aborted_later_is_not_left_out_before(decode: Decode) -> None:
    answer = in_transaction(Batch([Record(0)]), 7).encoded() + marker(1, 7, commit=True)
    answer += in_transaction(Batch([Record(2)]), 7).encoded() + marker(3, 7, commit=False)
    assert [row.offset for row in rows_of(decode(answer, aborted=[(7, 2)]))] == [0]


def test_an_answer_that_is_decoded_in_parts_leaves_out_aborted_records(
    decode: Decode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decode_module, "_BATCHES_AT_ONCE", 2)
    answer = b"".join(in_transaction(Batch([Record(n)]), n % 2).encoded() for n in range(20))
    assert [row.offset for row in rows_of(decode(answer, aborted=[(1, 5)]))] == [*range(4), *range(4, 20, 2)]


def test_a_long_list_of_aborted_transactions_is_decoded_in_time(decode: Decode) -> None:
    """A broker may list any transactions. These took 10 s in C, which cannot be interrupted, and twice as many 40 s."""
    answer = b"".join(in_transaction(Batch([Record(n)]), 7 + n).encoded() for n in range(2))
    aborted = [*((10**9 + n, 0) for n in range(200_000)), (7, 0)]
    begun_s = time.process_time()
    assert [row.offset for row in rows_of(decode(answer, aborted=aborted))] == [1]
    assert time.process_time() - begun_s < 3


# --------------------------------------------------------------------------------------------------------- how much


def test_a_part_of_a_batch_at_the_end_is_left_over(decode: Decode) -> None:
    whole, part = Batch(log(0, 5)).encoded(), Batch(log(5, 5)).encoded()
    for size in range(len(part)):
        decoded = decode(whole + part[:size])
        assert rows_of(decoded) == expected(log(0, 5))
        assert decoded.next_offset == 5


def test_more_rows_than_a_batch_may_have_become_several(decode: Decode) -> None:
    records = [Record(n, None, b"") for n in range(ARROW_BATCH_ROWS_MAX + 10)]
    for codec in ("none", "lz4"):
        decoded = decode(
            b"".join(Batch(records[at : at + 3000], codec).encoded() for at in range(0, len(records), 3000))
        )
        assert [batch.num_rows for batch in decoded.batches] == [ARROW_BATCH_ROWS_MAX, 10]
        assert rows_of(decoded) == expected(records)


def test_a_record_of_10_mb_is_a_batch_of_its_own(decode: Decode) -> None:
    records = [Record(0), Record(1, b"k", bytes(10_000_000)), Record(2), Record(3, bytes(10_000_000), None)]
    for codec in CODECS:
        decoded = decode(b"".join(Batch([record], codec).encoded() for record in records))
        assert [batch.num_rows for batch in decoded.batches] == [1, 1, 1, 1]
        assert rows_of(decoded) == expected(records)


def test_batches_have_about_the_bytes_that_they_may(decode: Decode) -> None:
    records = [Record(n, b"k", bytes(250_000), ((b"h", bytes(250_000)),)) for n in range(20)]
    decoded = decode(b"".join(Batch(records[at : at + 5], "gzip").encoded() for at in range(0, 20, 5)))
    assert all(batch.nbytes < FETCH_JOINED_BYTES_MAX + 1000 for batch in decoded.batches)
    assert [batch.num_rows for batch in decoded.batches] == [4, 4, 4, 4, 4]
    assert rows_of(decoded) == expected(records)


def test_an_answer_that_becomes_too_large_is_decoded_in_several_calls(
    decode: Decode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decode_module, "DECODED_BYTES_MAX", 3_000_000)
    records = [Record(n, b"k", bytes(1_000_000)) for n in range(40)]
    batches = [Batch(records[at : at + 10], "gzip", leader_epoch=at) for at in range(0, 40, 10)]
    batches.append(in_transaction(Batch([Record(40)], leader_epoch=40), 7))
    answer = b"".join(batch.encoded() for batch in batches)
    rows, position, calls = [], 0, 0
    while position < 41:
        decoded = decode(answer, position, aborted=[(7, 0)])
        assert sum(batch.nbytes for batch in decoded.batches) < 2 * ARROW_BATCH_BYTES_MAX
        assert decoded.complete == (decoded.next_offset == 41)
        rows += rows_of(decoded)
        assert decoded.leader_epoch == (decoded.next_offset - 1) // 10 * 10
        position, calls = decoded.next_offset, calls + 1
    assert rows == expected(records)
    assert calls > 3


# ------------------------------------------------------------------------------------------------------- the unusual


def test_a_timestamp_beyond_spark_s_range_is_unusual(decode: Decode) -> None:
    far = [Record(0), Record(1, timestamp_ms=TIME_MS * 1_000_000), Record(2)]
    with pytest.raises(FallbackToLibrdkafka, match="timestamp"):
        decode(Batch(far).encoded())
    assert rows_of(decode(Batch(far).encoded(), 2)) == expected(far[2:])
    with pytest.raises(FallbackToLibrdkafka, match="timestamp"):
        decode(Batch([Record(0)], append_time_ms=2**60).encoded())


@pytest.mark.parametrize("magic", [0, 1])
def test_a_record_format_of_before_kafka_0_11_is_unusual(decode: Decode, magic: int) -> None:
    with pytest.raises(FallbackToLibrdkafka, match=r"before Kafka 0\.11"):
        decode(Batch([Record(0)], magic=magic).encoded())


def test_a_wrong_checksum_is_unusual(decode: Decode) -> None:
    answer = bytearray(Batch([Record(0)]).encoded())
    answer[-1] ^= 1
    with pytest.raises(FallbackToLibrdkafka, match="checksum"):
        decode(bytes(answer))


MALFORMED = {
    "a magic byte of the future": Batch([Record(0)], magic=3),
    "fewer records than it says": Batch([Record(0)], count=2),
    "more records than it says": Batch([Record(0), Record(1)], count=1),
    "a negative number of records": Batch([Record(0)], count=-1),
    "offsets that do not rise": Batch([Record(1), Record(1)], base_offset=0),
    "an offset before the first": Batch([Record(0)], base_offset=1, last_offset=1),
    "an offset behind the last": Batch([Record(5)], base_offset=0, last_offset=4),
    "a last offset before the first": Batch([Record(0)], last_offset=-1),
    "an end beyond any offset": Batch([Record(2**63 - 2)], last_offset=2**63 - 1),
    "no bytes at all": Batch([Record(0)], payload=b""),
    "a record of no bytes": Batch([Record(0)], payload=b"\0"),
    "a record longer than the batch": Batch([Record(0)], payload=varint(99) + bytes(20)),
    "a length of more than 64 bits": Batch([Record(0)], payload=b"\xff" * 10 + b"\x01" + bytes(90)),
    "a length of 10 bytes and 65 bits": Batch([Record(0)], payload=b"\xff" * 9 + b"\x02" + bytes(90)),
    "a negative length": Batch([Record(0)], payload=varint(-5) + bytes(20)),
    "a key longer than the record": Batch([Record(0)], payload=sized(bytes(3) + varint(9) + bytes(3)) + bytes(9)),
    "a key's length below null": Batch([Record(0)], payload=sized(bytes(3) + varint(-2) + bytes(3))),
    "a value longer than the record": Batch([Record(0)], payload=sized(bytes(4) + varint(9) + bytes(3)) + bytes(9)),
    "a record that ends before its value": Batch([Record(0)], payload=sized(bytes(4))),
    "a record that ends before its headers": Batch([Record(0)], payload=sized(bytes(5))),
    "more headers than bytes": Batch([Record(0)], payload=sized(bytes(5) + varint(50) + bytes(20))),
    "a negative number of headers": Batch([Record(0)], payload=sized(bytes(5) + varint(-1))),
    "a header without a name": Batch([Record(0)], payload=sized(bytes(5) + varint(1) + varint(-1) + varint(0))),
    "a header longer than the record": Batch([Record(0)], payload=sized(bytes(5) + varint(1) + varint(0) + varint(9))),
    "bytes behind the headers": Batch([Record(0)], payload=sized(bytes(6) + b"x")),
}


@pytest.mark.parametrize("batch", MALFORMED.values(), ids=MALFORMED)
def test_a_batch_that_is_not_as_kafka_writes_it_is_unusual(decode: Decode, batch: Batch) -> None:
    with pytest.raises(FallbackToLibrdkafka, match="not as Kafka writes it"):
        decode(batch.encoded(), end=2**63 - 1)


@pytest.mark.parametrize("size", [0, 4, 48, -1, -(2**31)])
def test_a_batch_that_says_to_be_smaller_than_its_head_is_unusual(decode: Decode, size: int) -> None:
    answer = bytearray(Batch([Record(0)]).encoded())
    answer[8:12] = size.to_bytes(4, "big", signed=True)
    with pytest.raises(FallbackToLibrdkafka, match="not as Kafka writes it"):
        decode(bytes(answer))


def test_batches_out_of_order_are_unusual(decode: Decode) -> None:
    for second in (0, 4):
        with pytest.raises(FallbackToLibrdkafka, match="not as Kafka writes it"):
            decode(Batch(log(0, 5)).encoded() + Batch([Record(second)]).encoded())
    with pytest.raises(FallbackToLibrdkafka, match="not as Kafka writes it"):
        decode(Batch([Record(-1)]).encoded())


@pytest.mark.parametrize("key", [b"", b"\0\0\0", None])
def test_a_control_batch_of_an_aborted_producer_without_a_type_is_unusual(decode: Decode, key: bytes | None) -> None:
    control = Batch([Record(0, key)], producer_id=7, attributes=CONTROL)
    with pytest.raises(FallbackToLibrdkafka, match="not as Kafka writes it"):
        decode(control.encoded(), aborted=[(7, 0)])
    with pytest.raises(FallbackToLibrdkafka, match="not as Kafka writes it"):
        decode(replace(control, codec="gzip").encoded(), aborted=[(7, 0)])
    assert decode(control.encoded()).next_offset == 1


def test_a_header_name_that_is_not_utf8_is_shown_and_other_names_stay_as_they_are(decode: Decode) -> None:
    headers = ((b"caf\xe9", b"1"), ("ü".encode(), None), (b"a\0b", b"2"))
    decoded = decode(Batch([Record(0), Record(1, headers=headers), Record(2, headers=((b"h", b""),))]).encoded())
    assert [row.headers for row in rows_of(decoded)] == [
        None,
        (("caf\ufffd", b"1"), ("ü", None), ("a\0b", b"2")),
        (("h", b""),),
    ]


@pytest.mark.parametrize("codec", [name for name in CODECS if name != "none"])
def test_a_batch_that_cannot_be_decompressed_is_unusual(decode: Decode, codec: str) -> None:
    whole = compressed(codec, b"".join(bytes([n]) for n in range(200)))
    for payload in (b"", b"\xff" * 40, whole[:-5], whole[: len(whole) // 2]):
        with pytest.raises(FallbackToLibrdkafka, match=r"decompressed|snappy|not as Kafka writes it"):
            decode(Batch([Record(0)], codec, payload=payload).encoded())


@pytest.mark.parametrize("payload", [b"\x82SNAPPY\0", b"\x82SNAPPY\0" + bytes(8) + b"\xff" * 8, b"\x80" * 8])
def test_a_broken_frame_of_snappy_java_is_unusual(decode: Decode, payload: bytes) -> None:
    with pytest.raises(FallbackToLibrdkafka, match=r"snappy|not as Kafka writes it"):
        decode(Batch([Record(0)], "snappy", payload=payload).encoded())


@pytest.mark.parametrize("number", [5, 6, 7])
def test_an_unknown_codec_is_unusual(decode: Decode, number: int) -> None:
    with pytest.raises(FallbackToLibrdkafka, match=f"codec {number}"):
        decode(Batch([Record(0)], attributes=number).encoded())


def test_empty_blocks_in_snappy_javas_frame_take_no_more_memory_than_they_have_bytes(decode: Decode) -> None:
    """An object for each took sixty times as much: 6 GB for the largest answer that is taken."""
    whole = Batch([Record(0)], "snappy", xerial=True)
    frame = whole.encoded()[RECORDS_AT:]
    payload = frame[:16] + b"\0\0\0\1\0" * 100_000 + frame[16:]
    answer = Batch([Record(0)], "snappy", payload=payload).encoded()
    decode(answer)
    tracemalloc.start()
    assert rows_of(decode(answer)) == expected([Record(0)])
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak_bytes < len(payload)


@pytest.mark.parametrize("xerial", [False, True])
def test_a_batch_of_snappy_that_becomes_too_large_is_unusual(
    decode: Decode, monkeypatch: pytest.MonkeyPatch, xerial: bool
) -> None:
    batch = Batch([Record(0, None, bytes(100_000))], "snappy", xerial=xerial)
    size = len(replace(batch, codec="none").encoded()) - 61
    monkeypatch.setattr(codecs_module, "DECOMPRESSED_BYTES_MAX", size)
    assert rows_of(decode(batch.encoded())) == expected(batch.records)
    monkeypatch.setattr(codecs_module, "DECOMPRESSED_BYTES_MAX", size - 1)
    with pytest.raises(FallbackToLibrdkafka, match="more than"):
        decode(batch.encoded())


STREAMS = ["gzip", "lz4", "zstd"]


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches are decompressed 100 bytes at a time."""
    for module in (codecs_module, decode_module):
        monkeypatch.setattr(module, "DECOMPRESSED_PIECE_BYTES", 100)


@pytest.mark.parametrize("codec", STREAMS)
@pytest.mark.usefixtures("small_pieces")
def test_a_batch_is_decompressed_in_pieces_of_any_size(decode: Decode, codec: str) -> None:
    records = [Record(n, b"k" * (n % 7), bytes([n]) * (n * 37 % 450), ((b"h", b"1" * n),)) for n in range(60)]
    log = Batch(records, codec).encoded() + Batch([Record(60)], "snappy").encoded()
    for start, end in [(0, ALL), (0, 60), (17, 43), (59, 61), (60, 61), (0, 1)]:
        read = decode(log, start, end)
        assert rows_of(read) == [row for row in expected([*records, Record(60)]) if start <= row.offset < end]
        assert (read.next_offset, read.complete) == (min(end, 61), True)


@pytest.mark.parametrize("codec", STREAMS)
@pytest.mark.usefixtures("small_pieces")
def test_a_record_that_becomes_too_large_is_unusual(
    decode: Decode, monkeypatch: pytest.MonkeyPatch, codec: str
) -> None:
    batch = Batch([Record(0, None, bytes(100_000)), Record(1)], codec)
    monkeypatch.setattr(decode_module, "DECOMPRESSED_BYTES_MAX", 100_000)
    assert rows_of(decode(batch.encoded())) == expected(batch.records)
    monkeypatch.setattr(decode_module, "DECOMPRESSED_BYTES_MAX", 40_000)
    with pytest.raises(FallbackToLibrdkafka, match="a record becomes more than"):
        decode(batch.encoded())


@pytest.mark.parametrize("codec", STREAMS)
@pytest.mark.usefixtures("small_pieces")
def test_a_batch_whose_later_pieces_are_odd_is_unusual(decode: Decode, codec: str) -> None:
    records = b"".join(sized(bytes(3) + sized(b"k" * 40) + sized(b"v" * 40) + varint(0)) for _ in range(1))
    good = Batch([Record(n, b"k" * 40, b"v" * 40) for n in range(20)], codec)
    payload = replace(good, codec="none").encoded()[61:]
    for odd, count in [
        (payload[:-1], 20),
        (payload, 21),
        (payload, 19),
        (payload + records, 20),
        (payload[:800] + varint(0), 20),
        (payload[:-90] + b"\xff" * 90, 20),
    ]:
        batch = replace(good, payload=compressed(codec, odd), count=count)
        with pytest.raises(FallbackToLibrdkafka, match="not as Kafka writes it"):
            decode(batch.encoded())
    whole = compressed(codec, payload)
    for cut in (whole[: len(whole) // 2], whole[:-3]):
        with pytest.raises(FallbackToLibrdkafka, match=r"decompressed|not as Kafka writes it"):
            decode(replace(good, payload=cut).encoded())


def test_a_codec_that_pyarrow_was_built_without_is_unusual_and_lasts(
    decode: Decode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(codecs_module._STREAMS, 3, "lz4_raw")  # never a stream: refused by the same error
    with pytest.raises(FallbackToLibrdkafka, match="PyArrow cannot decompress") as raised:
        decode(Batch([Record(0)], "lz4").encoded())
    assert raised.value.lasting
