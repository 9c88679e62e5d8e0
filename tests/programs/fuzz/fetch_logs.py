"""Logs of three partitions, as brokers have them. The right content of every row is known."""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from random import Random
from typing import NamedTuple

import pyarrow as pa
from harness.record_batches import CODECS, CONTROL, TRANSACTIONAL, Batch, Record, marker

from pyspark_kgroup.executor.native.codecs import decompressed
from pyspark_kgroup.executor.native.header_names import java_text

PARTITIONS = 3
BATCHES = 40
PRODUCERS = (7, 8, 9)
CHECKED_FROM = 21
"""Where in a batch the bytes begin that its checksum covers (DefaultRecordBatch: attributes and all behind them)."""

Headers = tuple[tuple[str, bytes | None], ...]


class Row(NamedTuple):
    """A record's columns in the source, beside its partition. The timestamp is in microseconds."""

    offset: int
    key: bytes | None
    value: bytes | None
    timestamp_us: int
    timestamp_type: int
    headers: Headers


class Head(NamedTuple):
    """A batch's head: the fields that no checksum covers come first."""

    base: int
    size: int
    epoch: int
    magic: int
    checksum: int
    attributes: int
    last_delta: int
    base_timestamp_ms: int
    max_timestamp_ms: int
    producer: int
    records: int

    @classmethod
    def of(cls, raw: bytes, at: int = 0) -> Head | None:
        """None where no head is left."""
        if len(raw) - at < 61:
            return None
        base, length, *rest, _, _, count = struct.unpack_from(">qiibIhiqqqhii", raw, at)
        return cls._make((base, 12 + length, *rest, count))

    @property
    def last(self) -> int:
        return self.base + self.last_delta


@dataclass(frozen=True)
class Written:
    """A batch of a log."""

    partition: int
    raw: bytes
    head: Head
    rows: Sequence[Row]

    @cached_property
    def checked(self) -> bytes:
        """The bytes that the checksum covers."""
        return self.raw[CHECKED_FROM:]


class Log:
    """One partition: batches of every codec, in and out of transactions, with gaps, nulls and headers."""

    def __init__(self, rng: Random, number: int) -> None:
        self.number = number
        self.batches: list[Written] = []
        self.aborted: list[tuple[int, int, int]] = []  # producer, first offset, offset of the marker
        self._rng = rng
        self._open: dict[int, int] = {}
        offset = rng.randrange(5)
        for _ in range(BATCHES):
            offset = self._append(offset) + rng.choice((0, 0, 0, 3))
        self.end = self.batches[-1].head.last + 1
        self._ends = [each.head.last + 1 for each in self.batches]

    def from_offset(self, offset: int, count: int) -> list[Written]:
        """At most `count` batches, from the one on that has `offset`, or else a later one."""
        first = bisect_left(self._ends, offset + 1)
        return self.batches[first : first + count]

    def aborted_among(self, batches: Sequence[Written]) -> list[tuple[int, int]]:
        """As listed by a broker: transactions that end behind the first batch and begin before the last one's end."""
        if not batches:
            return []
        first, last = batches[0].head.base, batches[-1].head.last
        met = [(begun, producer) for producer, begun, ended in self.aborted if begun <= last and ended >= first]
        return [(producer, begun) for begun, producer in sorted(met)]

    def _append(self, offset: int) -> int:
        """One past the offset of the batch that is added."""
        producer = self._rng.choice((-1, *PRODUCERS))
        if producer in self._open and self._rng.random() < 0.4:
            commit, begun = self._rng.random() < 0.5, self._open.pop(producer)
            self._note(marker(offset, producer, commit=commit), [])
            if not commit:
                self.aborted.append((producer, begun, offset))
            return offset + 1
        batch = self._batch(offset, producer)
        if producer >= 0:
            self._open.setdefault(producer, offset)
        self._note(batch.encoded(), [_row(batch, record) for record in batch.records])
        return batch.last + 1

    def _note(self, raw: bytes, rows: Sequence[Row]) -> None:
        head = Head.of(raw)
        assert head is not None
        self.batches.append(Written(self.number, raw, head, rows))

    def _batch(self, first: int, producer: int) -> Batch:
        rng = self._rng
        records, offset = [], first
        for _ in range(rng.choice((1, 2, 3, 5))):
            value = rng.choice((b"value %d %d" % (self.number, offset), b"", None, b"v" * rng.randrange(300)))
            headers = rng.choice(((), (), ((b"h", b"%d" % offset),), ((b"h", None), ("ü".encode(), b""))))
            key = rng.choice((None, b"", b"key %d" % offset))
            records.append(Record(offset, key, value, headers, 1_700_000_000_000 + rng.randrange(-5_000, 5_000)))
            offset += rng.choice((1, 1, 2))
        return Batch(
            records,
            codec=rng.choice(sorted(CODECS)),
            xerial=rng.random() < 0.5,
            last_offset=offset - 1,
            producer_id=producer,
            attributes=TRANSACTIONAL if producer >= 0 else 0,
            leader_epoch=5,
            append_time_ms=rng.choice((None, None, 1_800_000_000_000)),
        )


def _row(batch: Batch, record: Record) -> Row:
    append_ms = batch.append_time_ms
    timestamp_ms = record.timestamp_ms if append_ms is None else append_ms
    headers = tuple((name.decode(), value) for name, value in record.headers)
    return Row(record.offset, record.key, record.value, timestamp_ms * 1000, int(append_ms is not None), headers)


# ---------------------------------------------------------------------------------------------- reading, the simple way


def visible(batches: Iterable[tuple[Head, bytes]], aborted: Sequence[tuple[int, int]]) -> Iterable[tuple[Head, bytes]]:
    """Batches (head, checked bytes) that are neither control batches nor aborted (Java: CompletedFetch).

    Args:
        aborted: producers with the first offsets of their aborted transactions.
    """
    pending, open_ = sorted(aborted, key=lambda each: each[1]), set[int]()
    for head, checked in batches:
        while pending and pending[0][1] <= head.last:
            open_.add(pending.pop(0)[0])
        if head.attributes & CONTROL:
            if head.producer in open_ and _aborts(checked):
                open_.discard(head.producer)
        elif head.producer < 0 or not (head.attributes & TRANSACTIONAL and head.producer in open_):
            yield head, checked


def _aborts(checked: bytes) -> bool:
    reader = _Reader(checked[61 - CHECKED_FROM :])
    return reader.record_key()[2:4] == b"\0\0"


def rows_of(head: Head, checked: bytes, start: int, end: int, *, headers: bool) -> Iterable[Row]:
    """The records of any batch in [start, end): simple and slow, and trusting that no end is amid a record.

    Headers that no caller wants are not looked at: those of records before `start`, or of all.
    """
    payload = checked[61 - CHECKED_FROM :]
    if codec := head.attributes & 7:
        read = decompressed(codec, pa.py_buffer(payload))
        payload = read.payload.to_pybytes()
        while read.rest is not None:
            read = read.rest.read(1)
            payload += read.payload.to_pybytes()
    reader = _Reader(payload)
    for _ in range(head.records):
        row = reader.row(head, start, end, headers=headers)
        if row.offset >= end:
            return
        if row.offset >= start:
            yield row


class _Reader:
    """Reads records one by one."""

    def __init__(self, raw: bytes) -> None:
        self._raw = raw
        self._at = 0

    def row(self, head: Head, start: int, end: int, *, headers: bool) -> Row:
        length = self._number()
        behind = self._at + length
        self._at += 1
        timestamp_ms, offset = head.base_timestamp_ms + self._number(), head.base + self._number()
        key, value = self._bytes(), self._bytes()
        count = self._number() if headers and start <= offset < end else 0
        pairs = tuple([(java_text(self._bytes() or b""), self._bytes()) for _ in range(count)])
        self._at = behind
        append = bool(head.attributes & 8)
        timestamp_ms = head.max_timestamp_ms if append else timestamp_ms
        return Row(offset, key, value, timestamp_ms * 1000, int(append), pairs)

    def record_key(self) -> bytes:
        self._number()
        self._at += 1
        self._number()
        self._number()
        return self._bytes() or b""

    def _number(self) -> int:
        bits, shift = 0, 0
        while True:
            byte = self._raw[self._at]
            self._at += 1
            bits |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return bits >> 1 ^ -(bits & 1)

    def _bytes(self) -> bytes | None:
        length = self._number()
        if length < 0:
            return None
        self._at += length
        return self._raw[self._at - length : self._at]
