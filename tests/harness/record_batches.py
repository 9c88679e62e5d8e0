"""Record batches (format v2, KIP-98) made byte by byte: also those that no producer's library would send."""

from __future__ import annotations

import gzip
import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace

import crc32c
import pyarrow as pa

CODECS = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}

LOG_APPEND_TIME, TRANSACTIONAL, CONTROL = 8, 16, 32


@dataclass(frozen=True)
class Record:
    """A record of a log, the timestamp in ms since the epoch."""

    offset: int
    key: bytes | None = None
    value: bytes | None = b"v"
    headers: tuple[tuple[bytes, bytes | None], ...] = ()
    timestamp_ms: int = 1_700_000_000_000


@dataclass(frozen=True)
class Batch:
    """A batch with the fields of its head. A field that is None follows from the records."""

    records: Sequence[Record]
    codec: str = "none"
    xerial: bool = False
    base_offset: int | None = None
    last_offset: int | None = None
    count: int | None = None
    producer_id: int = -1
    producer_epoch: int = 0
    base_sequence: int = 0
    attributes: int = 0
    leader_epoch: int = 0
    append_time_ms: int | None = None
    magic: int = 2
    payload: bytes | None = None

    @property
    def first(self) -> int:
        return self.records[0].offset if self.base_offset is None else self.base_offset

    @property
    def last(self) -> int:
        return self.records[-1].offset if self.last_offset is None else self.last_offset

    def encoded(self) -> bytes:
        times = [record.timestamp_ms for record in self.records] or [-1]
        payload = b"".join(_record(record, self.first, times[0]) for record in self.records)
        payload = compressed(self.codec, payload, xerial=self.xerial) if self.payload is None else self.payload
        append = LOG_APPEND_TIME if self.append_time_ms is not None else 0
        checked = struct.pack(
            ">hiqqqhii",
            self.attributes | CODECS[self.codec] | append,
            self.last - self.first,
            times[0],
            max(times) if self.append_time_ms is None else self.append_time_ms,
            self.producer_id,
            self.producer_epoch,
            self.base_sequence,
            len(self.records) if self.count is None else self.count,
        )
        checked += payload
        head = struct.pack(
            ">qiibI", self.first, 9 + len(checked), self.leader_epoch, self.magic, crc32c.crc32c(checked)
        )
        return head + checked


def marker(offset: int, producer_id: int, *, commit: bool) -> bytes:
    """The control batch that ends a transaction (EndTransactionMarker.java)."""
    record = Record(offset, struct.pack(">hh", 0, int(commit)), struct.pack(">hi", 0, 0))
    return Batch([record], producer_id=producer_id, attributes=TRANSACTIONAL | CONTROL).encoded()


def in_transaction(batch: Batch, producer_id: int) -> Batch:
    return replace(batch, producer_id=producer_id, attributes=TRANSACTIONAL)


def varint(number: int) -> bytes:
    """Zigzag, as Kafka writes lengths and differences."""
    bits = number << 1 ^ number >> 63
    out = bytearray()
    while bits > 0x7F:
        out.append(bits & 0x7F | 0x80)
        bits >>= 7
    return bytes([*out, bits])


def sized(data: bytes | None) -> bytes:
    return varint(-1) if data is None else varint(len(data)) + data


def _record(record: Record, base_offset: int, base_timestamp_ms: int) -> bytes:
    body = b"\0" + varint(record.timestamp_ms - base_timestamp_ms) + varint(record.offset - base_offset)
    body += sized(record.key) + sized(record.value) + varint(len(record.headers))
    return sized(body + b"".join(sized(name) + sized(value) for name, value in record.headers))


def compressed(codec: str, data: bytes, *, xerial: bool = False) -> bytes:
    """As Kafka's clients do: gzip, lz4 and zstd as streams, snappy as one block, or in snappy-java's frame."""
    match codec:
        case "none":
            return data
        case "gzip":
            return gzip.compress(data, 1, mtime=0)  # as Java writes it, and the same bytes at any time
        case "snappy" if not xerial:
            return bytes(pa.compress(data, "snappy", asbytes=True))
        case "snappy":
            blocks = [pa.compress(data[at : at + 1024], "snappy", asbytes=True) for at in range(0, len(data), 1024)]
            framed = b"".join(struct.pack(">i", len(block)) + block for block in blocks)
            return b"\x82SNAPPY\0" + struct.pack(">ii", 1, 1) + framed
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, codec) as stream:
        stream.write(data)
    return bytes(sink.getvalue().to_pybytes())
