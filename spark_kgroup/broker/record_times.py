"""The timestamps of the records in a batch, for ListOffsets by timestamp.

Only that look-up needs more than a batch's head. PyArrow decompresses, and is imported when the first compressed batch
is looked at: a broker that is asked for no timestamps starts without it.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from spark_kgroup.broker.batches import HEAD_BYTES, Batch
from spark_kgroup.broker.refusal import Refused
from spark_kgroup.model import ErrorCode

_GZIP, _SNAPPY, _LZ4, _ZSTD = 1, 2, 3, 4
_XERIAL: Final = b"\x82SNAPPY\x00"
_XERIAL_HEAD_BYTES: Final = 16
"""snappy-java's streams begin with these: the magic bytes and two int32 of versions (SnappyCodec.java)."""

DECOMPRESSED_BYTES_MAX: Final = 256 * 2**20
"""The most that a batch may decompress to. Kafka has no bound. A batch of 1 MiB (max.message.bytes) of text has 3 to 6
times as much, and a hostile one 1,000 times as much."""


class RecordTime(NamedTuple):
    """The offset of a record, and its timestamp in ms since 1970."""

    offset: int
    timestamp_ms: int


def at_or_after(batch: Batch, timestamp_ms: int) -> Iterator[RecordTime]:
    """The records with this timestamp or a later one, in the order of the batch (FileRecords.searchForTimestamp).

    Raises:
        Refused: the records cannot be read.
    """
    if batch.max_timestamp_ms < timestamp_ms:
        return
    if batch.has_append_time:
        for offset in range(batch.base_offset, batch.last_offset + 1):
            yield RecordTime(offset, batch.max_timestamp_ms)
        return
    for each in record_times(batch):
        if each.timestamp_ms >= timestamp_ms:
            yield each


def record_times(batch: Batch) -> Iterator[RecordTime]:
    """Each record's offset and timestamp, in the order of the batch.

    Raises:
        Refused: the records cannot be read.
    """
    content = _decompressed(batch.codec, batch.raw[HEAD_BYTES:])
    at = 0
    for _ in range(batch.count):
        size, at = _varint(content, at)
        timestamp_delta_ms, after = _varint(content, at + 1)  # the record's attributes come first, and are unused
        offset_delta, _ = _varint(content, after)
        yield RecordTime(batch.base_offset + offset_delta, batch.base_timestamp_ms + timestamp_delta_ms)
        at += size


def _unreadable(text: str) -> Refused:
    return Refused(ErrorCode.CORRUPT_MESSAGE, text)


def _varint(content: bytes, at: int) -> tuple[int, int]:
    """A zigzag varint of at most 10 bytes (ByteUtils.readVarlong), and where it ends."""
    bits = 0
    for shift in range(0, 70, 7):
        if not 0 <= at < len(content):
            raise _unreadable("the records end within a record")
        byte = content[at]
        at += 1
        bits |= (byte & 0x7F) << shift
        if byte < 0x80:
            return bits >> 1 ^ -(bits & 1), at
    raise _unreadable("a record holds an endless varint")


def _decompressed(codec: int, raw: bytes) -> bytes:
    try:
        if codec == _GZIP:
            return zlib.decompressobj(wbits=31).decompress(raw, DECOMPRESSED_BYTES_MAX)
        return raw if codec == 0 else _by_pyarrow(codec, raw)
    except (zlib.error, OSError, ValueError) as error:  # PyArrow's errors are OSError and ValueError
        raise _unreadable(f"the records cannot be decompressed: {error}") from None


def _by_pyarrow(codec: int, raw: bytes) -> bytes:
    import pyarrow

    if codec == _SNAPPY:
        return b"".join(_snappy_block(pyarrow, block) for block in _snappy_blocks(raw))
    name = {_LZ4: "lz4", _ZSTD: "zstd"}[codec]
    with pyarrow.CompressedInputStream(pyarrow.BufferReader(raw), name) as stream:
        return bytes(stream.read(DECOMPRESSED_BYTES_MAX))


def _snappy_blocks(raw: bytes) -> Iterator[bytes]:
    """One block, or those of snappy-java's stream, each behind its length."""
    if not raw.startswith(_XERIAL):
        yield raw
        return
    at = _XERIAL_HEAD_BYTES
    while at < len(raw):
        size = int.from_bytes(raw[at : at + 4], "big")
        yield raw[at + 4 : at + 4 + size]
        at += 4 + size


def _snappy_block(pyarrow: Any, block: bytes) -> bytes:
    size = 0
    for place, byte in enumerate(block[:5]):  # a block begins with its decompressed size, an unsigned varint
        size |= (byte & 0x7F) << 7 * place
        if byte < 0x80:
            break
    if size > DECOMPRESSED_BYTES_MAX:
        raise _unreadable(f"a block of snappy claims {size} bytes")
    return bytes(pyarrow.decompress(block, size, "snappy", asbytes=True))
