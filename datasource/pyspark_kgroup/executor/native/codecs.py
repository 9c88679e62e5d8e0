"""Kafka's four codecs, by those that PyArrow was built with.

Runs on: executor.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa

from pyspark_kgroup.limits import DECOMPRESSED_BYTES_MAX

_SNAPPY: Final = 2
_STREAMS: Final = {1: "gzip", 3: "lz4", 4: "zstd"}

_XERIAL: Final = b"\x82SNAPPY\x00"
"""How snappy-java's streams begin (SnappyCodec.java): this, two int32 of versions, then blocks behind their lengths."""

_XERIAL_HEAD_BYTES: Final = 16

_READ_BYTES_MIN: Final = 65_536
_RATIO: Final = 8
"""What is decompressed at once, in compressed sizes: most batches come in one piece (measured: text 3 to 6)."""


class Undecodable(Exception):
    """Data that cannot be decompressed here."""


class MissingCodec(Undecodable):
    """PyArrow was built without the codec: a batch that has it can never be decompressed here."""


def decompressed(codec: int, data: pa.Buffer) -> pa.Buffer:
    """What `data` was before it was compressed with `codec`, Kafka's number for it.

    Raises:
        MissingCodec: this process has no such codec.
        Undecodable: the codec is unknown, the data are not whole, or become more than `DECOMPRESSED_BYTES_MAX`.
    """
    try:
        if codec == _SNAPPY:
            return _snappy(data)
        if codec in _STREAMS:
            return _streamed(_STREAMS[codec], data)
    except pa.ArrowNotImplementedError as error:
        raise MissingCodec(f"PyArrow cannot decompress batches here ({error}): install one with this codec") from None
    except (pa.ArrowException, OSError) as error:
        raise Undecodable(f"a batch could not be decompressed ({error})") from None
    raise Undecodable(f"a batch has the unknown codec {codec}")


def _streamed(codec: str, data: pa.Buffer) -> pa.Buffer:
    stream = pa.CompressedInputStream(pa.BufferReader(data), codec)
    at_once = max(_READ_BYTES_MIN, _RATIO * data.size)
    pieces, left, whole = [], DECOMPRESSED_BYTES_MAX + 1, False
    while not whole:
        wanted = min(left, at_once)
        pieces.append(stream.read_buffer(wanted))
        left -= pieces[-1].size
        whole = pieces[-1].size < wanted  # less only at the end, which must not be missing
        if not left:
            raise _too_large()
    return pieces[0] if len(pieces) == 1 else pa.py_buffer(b"".join(pieces))


def _snappy(data: pa.Buffer) -> pa.Buffer:
    if _first(data, len(_XERIAL)) != _XERIAL:
        return _block(data, DECOMPRESSED_BYTES_MAX)
    joined, at = bytearray(), _XERIAL_HEAD_BYTES  # not block by block: one may be empty, and an object takes 100 B
    while at < data.size:
        length = int.from_bytes(data.slice(at, 4).to_pybytes(), "big")
        at += 4
        if length > data.size - at:
            raise Undecodable("a batch ends in the midst of a snappy block")
        block = _block(data.slice(at, length), DECOMPRESSED_BYTES_MAX - len(joined))
        at += length
        if not joined and at == data.size:
            return block
        joined += memoryview(block)
    return pa.py_buffer(joined)


def _block(data: pa.Buffer, bytes_max: int) -> pa.Buffer:
    """A snappy block: the size of what it holds is its first varint (snappy: format_description.txt)."""
    size = 0
    for number, byte in enumerate(_first(data, 5)):
        size |= (byte & 0x7F) << (7 * number)
        if byte < 0x80:
            break
    else:
        raise Undecodable("a snappy block does not say how large it is")
    if size > bytes_max:
        raise _too_large()
    return pa.Codec("snappy").decompress(data, size)


def _first(data: pa.Buffer, count: int) -> bytes:
    """The first bytes; fewer if there are no more, where PyArrow would raise an error."""
    return bytes(data.slice(0, min(count, data.size)).to_pybytes())


def _too_large() -> Undecodable:
    return Undecodable(f"a batch becomes more than {DECOMPRESSED_BYTES_MAX} bytes when it is decompressed")
