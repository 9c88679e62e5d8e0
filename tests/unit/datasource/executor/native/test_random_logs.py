"""Random logs by the thousand, each cut and each flipped byte: the rows are right, or the decoder refuses."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from ctypes import CDLL
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import pytest
from harness.record_batches import CODECS, Batch, Record, in_transaction, marker
from hypothesis import given, settings
from hypothesis import strategies as st

from pyspark_kgroup.executor.native import codecs as codecs_module
from pyspark_kgroup.executor.native import decode as decode_module
from pyspark_kgroup.executor.native.decode import Decoder, FallbackToLibrdkafka
from pyspark_kgroup.limits import DECOMPRESSED_PIECE_BYTES

ALL = 2**62

EXAMPLES = 250
"""Measured: 4 s, most of which Hypothesis takes to make the logs. Each run has new ones."""

Seen = list[tuple[int, bytes | None, bytes | None, int, int, tuple[tuple[bytes, bytes | None], ...]]]


@dataclass(frozen=True)
class Entry:
    """A batch of a log, or the marker of a transaction's end."""

    batch: Batch
    marker: bool = False
    commits: bool = False

    def encoded(self) -> bytes:
        if self.marker:
            return marker(self.batch.first, self.batch.producer_id, commit=self.commits)
        return self.batch.encoded()


def seen(library: CDLL, answer: bytes, start: int, end: int, aborted: Sequence[tuple[int, int]] = ()) -> Seen:
    """The rows, read in as many calls as it takes."""
    decoder, rows, position, complete = Decoder(library, "t", 0, include_headers=True), [], start, False
    while not complete:
        decoded = decoder.decode(memoryview(answer), position, end, aborted)
        assert decoded.complete or decoded.next_offset > position
        position, complete = decoded.next_offset, decoded.complete
        for batch in decoded.batches:
            batch.validate(full=True)
            for row in batch.set_column(5, "timestamp", batch["timestamp"].cast("int64")).to_pylist():
                headers = tuple((each["key"].encode(), each["value"]) for each in row["headers"] or ())
                times = (row["timestamp"], row["timestampType"])
                rows.append((row["offset"], row["key"], row["value"], *times, headers))
    return rows


def rows(batch: Batch) -> Seen:
    """The rows of a batch, as its records were put in."""
    append_ms = batch.append_time_ms
    return [
        (
            record.offset,
            record.key,
            record.value,
            1000 * (record.timestamp_ms if append_ms is None else append_ms),
            int(append_ms is not None),
            record.headers,
        )
        for record in batch.records
    ]


# --------------------------------------------------------------------------------------------------------- random logs

blobs = st.none() | st.binary(max_size=12) | st.integers(0, 300).map(bytes)
names = st.text(max_size=5).map(str.encode)
times_ms = st.integers(-(2**40), 2**42)
headers = st.lists(st.tuples(names, blobs), max_size=3).map(tuple)
records = st.tuples(blobs, blobs, headers, times_ms)
steps_between = st.lists(st.integers(1, 3), max_size=8)
codecs = st.sampled_from(list(CODECS))
append_times_ms = st.none() | times_ms


@st.composite
def batches(draw: st.DrawFn, first: int) -> Batch:
    base = first + draw(st.integers(0, 3))
    steps = draw(steps_between)
    offsets = [base + sum(steps[:n]) for n in range(len(steps))]
    return Batch(
        [Record(offset, *draw(records)) for offset in offsets],
        draw(codecs),
        xerial=draw(st.booleans()),
        base_offset=base,
        last_offset=(offsets or [base])[-1] + draw(st.integers(0, 3)),
        append_time_ms=draw(append_times_ms),
        leader_epoch=draw(st.integers(0, 2**31 - 1)),
    )


@st.composite
def logs(draw: st.DrawFn) -> list[Entry]:
    """Batches of producers in and out of transactions, and the ends of these. Some are left open."""
    log: list[Entry] = []
    first, open_ = draw(st.integers(0, 2**40)), set[int]()
    for _ in range(draw(st.integers(0, 8))):
        producer_id = draw(st.integers(-1, 3))
        if producer_id in open_ and draw(st.booleans()):
            open_.remove(producer_id)
            entry = Entry(Batch([Record(first)], producer_id=producer_id), marker=True, commits=draw(st.booleans()))
        else:
            batch = draw(batches(first))
            if producer_id >= 0:
                open_.add(producer_id)
                batch = in_transaction(batch, producer_id)
            entry = Entry(batch)
        log.append(entry)
        first = entry.batch.last + 1
    return log


def aborted_in(log: Sequence[Entry]) -> list[tuple[int, int]]:
    """As a broker lists them: with the first offset of each transaction that an abort marker ends."""
    begun: dict[int, int] = {}
    found = []
    for entry in log:
        producer_id = entry.batch.producer_id
        if not entry.marker:
            if producer_id >= 0:
                begun.setdefault(producer_id, entry.batch.first)
        elif (first := begun.pop(producer_id, None)) is not None and not entry.commits:
            found.append((producer_id, first))
    return found


def expected(log: Sequence[Entry], start: int, end: int, *, committed: bool) -> Seen:
    """Looked up from the other side: a batch is aborted if the next marker of its producer says so."""
    found: Seen = []
    for number, entry in enumerate(log):
        ends = [later for later in log[number:] if later.marker and later.batch.producer_id == entry.batch.producer_id]
        aborted = committed and bool(ends) and not ends[0].commits
        if not entry.marker and not aborted:
            found += [row for row in rows(entry.batch) if start <= row[0] < end]
    return found


@contextmanager
def small_batches(small: bool) -> Iterator[None]:
    """So small that a short log reaches every limit."""
    limits: dict[str, Any] = {
        "ARROW_BATCH_ROWS_MAX": 3,
        "ARROW_BATCH_BYTES_MAX": 200,
        "FETCH_JOINED_BYTES_MAX": 200,
        "DECODED_BYTES_MAX": 900,
        "DECOMPRESSED_PIECE_BYTES": 20,
        "_BATCHES_AT_ONCE": 2,
    }
    changed = limits if small else {"_BATCHES_AT_ONCE": 1_024}
    with (
        patch.multiple(decode_module, **changed),
        patch.object(codecs_module, "DECOMPRESSED_PIECE_BYTES", 20 if small else DECOMPRESSED_PIECE_BYTES),
    ):
        yield


@settings(max_examples=EXAMPLES)
@given(log=logs(), committed=st.booleans(), small=st.booleans(), data=st.data())
def test_a_random_log_is_read_as_it_was_written(
    library: CDLL, log: list[Entry], committed: bool, small: bool, data: st.DataObject
) -> None:
    first, last = (log[0].batch.first, log[-1].batch.last) if log else (0, 0)
    start = data.draw(st.integers(first, last + 1), label="start")
    end = data.draw(st.integers(start + 1, last + 3), label="end")
    answer = b"".join(entry.encoded() for entry in log)
    aborted = aborted_in(log) if committed else []
    with small_batches(small):
        assert seen(library, answer, start, end, aborted) == expected(log, start, end, committed=committed)


# --------------------------------------------------------------------------------------------------- damaged answers

LOG = [
    Batch([Record(10, b"k", b"v"), Record(11, None, None), Record(13, b"", b"", ((b"h", None), (b"g", b"1")))]),
    Batch([Record(15, b"k" * 20, b"v" * 20, timestamp_ms=-1)], "lz4", append_time_ms=5),
    Batch([Record(16)], "gzip"),
    Batch([Record(17), Record(18)], "snappy", xerial=True, last_offset=19),
    Batch([Record(20, None, b"v" * 30)], "zstd"),
    Batch([Record(21)], "snappy"),
]
ENCODED = [batch.encoded() for batch in LOG]
BEGINS = [sum(map(len, ENCODED[:number])) for number in range(len(ENCODED))]


def test_a_log_that_is_cut_anywhere_gives_the_rows_of_its_whole_batches(library: CDLL) -> None:
    answer = b"".join(ENCODED)
    for size in range(len(answer) + 1):
        whole = [batch for batch, begin, raw in zip(LOG, BEGINS, ENCODED, strict=True) if begin + len(raw) <= size]
        assert seen(library, answer[:size], 0, ALL) == [row for batch in whole for row in rows(batch)]


@pytest.mark.parametrize("number", range(len(LOG)))
def test_a_flipped_bit_gives_right_rows_or_is_unusual(library: CDLL, number: int) -> None:
    """But for a batch's first offset, which the checksum does not cover (KIP-98): an offset below the batch before is
    unusual, and any other one could be right.
    """
    answer, every = b"".join(ENCODED), [row for batch in LOG for row in rows(batch)]
    before = [row for batch in LOG[:number] for row in rows(batch)]
    for at in range(len(ENCODED[number])):
        for bit in range(8):
            flipped = bytearray(answer)
            flipped[BEGINS[number] + at] ^= 1 << bit
            try:
                found = seen(library, bytes(flipped), 0, ALL)
            except FallbackToLibrdkafka:
                assert not 12 <= at < 16, "nobody reads rows by the leader epoch"
                continue
            if at < 8:
                assert [row[1:] for row in found] == [row[1:] for row in every][: len(found)]
            elif at < 12:
                assert found == before, "a batch that seems to be longer is left over"
            else:
                assert 12 <= at < 16
                assert found == every
