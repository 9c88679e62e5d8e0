"""Kafka's four codecs, by those that PyArrow was built with.

Runs on: executor.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final, NamedTuple

import pyarrow as pa

from pyspark_kgroup.limits import DECOMPRESSED_BYTES_MAX, DECOMPRESSED_PIECE_BYTES

_SNAPPY: Final = 2
_STREAMS: Final = {1: "gzip", 3: "lz4", 4: "zstd"}

_XERIAL: Final = b"\x82SNAPPY\x00"
"""How snappy-java's streams begin (SnappyCodec.java): this, two int32 of versions, then blocks behind their lengths."""

_XERIAL_HEAD_BYTES: Final = 16

_READ_BYTES_MIN: Final = 65_536
_RATIO: Final = 8
"""How much is decompressed at once, as a multiple of the compressed size: most batches come in one piece (measured:
text has 3 to 6)."""


class Undecodable(Exception):
    """Data that cannot be decompressed here."""


class MissingCodec(Undecodable):
    """PyArrow was built without the codec: a batch that has it can never be decompressed here."""


class TooLarge(Undecodable):
    """A block of snappy becomes more than `DECOMPRESSED_BYTES_MAX`."""


class Decompressed(NamedTuple):
    """The decompressed payload of a batch, or a part of it.

    Attributes:
        payload: all of it, or its first `DECOMPRESSED_PIECE_BYTES`.
        rest: gives the bytes that follow, or None if there are none.
    """

    payload: pa.Buffer
    rest: CompressedRemainder | None = None


class CompressedRemainder:
    """The part of one batch that is still to be decompressed.

    Args:
        stream: decompresses it.
        at_once: how many bytes are decompressed at once.
    """

    def __init__(self, stream: pa.CompressedInputStream, at_once: int) -> None:
        self._stream = stream
        self._at_once = at_once

    def read(self, bytes_min: int) -> Decompressed:
        """About `bytes_min` bytes, or fewer at the end of the stream, which must not be cut off.

        Raises:
            Undecodable: the data are not whole.
        """
        with _undecodable():
            pieces: list[pa.Buffer] = []
            size = 0
            while size < bytes_min:
                pieces.append(self._stream.read_buffer(self._at_once))
                size += pieces[-1].size
                if pieces[-1].size < self._at_once:  # a stream gives less only at its end
                    return Decompressed(_joined(pieces))
            return Decompressed(_joined(pieces), self)


def decompressed(codec: int, data: pa.Buffer) -> Decompressed:
    """`data` as it was before it was compressed with `codec`, Kafka's number for it.

    Raises:
        MissingCodec: this process has no such codec.
        TooLarge: it is snappy, and becomes too large.
        Undecodable: the codec is unknown, or the data are not whole.
    """
    with _undecodable():
        if codec == _SNAPPY:
            return Decompressed(_snappy(data))
        if codec in _STREAMS:
            stream = pa.CompressedInputStream(pa.BufferReader(data), _STREAMS[codec])
            at_once = min(max(_READ_BYTES_MIN, _RATIO * data.size), DECOMPRESSED_PIECE_BYTES)
            return CompressedRemainder(stream, at_once).read(DECOMPRESSED_PIECE_BYTES)
    raise Undecodable(f"a batch has the unknown codec {codec}")


@contextmanager
def _undecodable() -> Iterator[None]:
    """Raise PyArrow's errors as ours."""
    try:
        yield
    except pa.ArrowNotImplementedError as error:
        raise MissingCodec(f"PyArrow cannot decompress batches here ({error}): install one with this codec") from None
    except (pa.ArrowException, OSError) as error:
        raise Undecodable(f"a batch could not be decompressed ({error})") from None


def _joined(pieces: Sequence[pa.Buffer]) -> pa.Buffer:
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
        # A payload of one block needs no copy.
        if not joined and at == data.size:
            return block
        joined += memoryview(block)
    return pa.py_buffer(joined)


def _block(data: pa.Buffer, bytes_max: int) -> pa.Buffer:
    """A snappy block, decompressed: its first varint is its decompressed size (snappy: format_description.txt)."""
    size = 0
    for number, byte in enumerate(_first(data, 5)):
        size |= (byte & 0x7F) << (7 * number)
        if byte < 0x80:
            break
    else:
        raise Undecodable("a snappy block does not say how large it is")
    # BEFORE the call: PyArrow allocates the announced size at once.
    if size > bytes_max:
        raise _too_large()
    return pa.Codec("snappy").decompress(data, size)


def _first(data: pa.Buffer, count: int) -> bytes:
    """The first bytes, or fewer if there are no more, where PyArrow would raise an error."""
    return bytes(data.slice(0, min(count, data.size)).to_pybytes())


def _too_large() -> TooLarge:
    return TooLarge(f"a batch becomes more than {DECOMPRESSED_BYTES_MAX} bytes when it is decompressed")
