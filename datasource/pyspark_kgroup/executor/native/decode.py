"""One partition's part of a Fetch answer as Arrow batches of the source.

Runs on: executor.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from ctypes import CDLL, Array, byref, c_int32, c_int64, c_uint8
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from pyspark_kgroup.executor.native.codecs import CompressedRemainder, MissingCodec, TooLarge, Undecodable, decompressed
from pyspark_kgroup.executor.native.header_names import java_text
from pyspark_kgroup.executor.native.interface import (
    AbortedTransaction,
    ArrowSlot,
    Batch,
    Binary,
    Columns,
    Sizes,
    Status,
    Walk,
)
from pyspark_kgroup.limits import (
    ARROW_BATCH_BYTES_MAX,
    ARROW_BATCH_ROWS_MAX,
    DECODED_BYTES_MAX,
    DECOMPRESSED_BYTES_MAX,
    DECOMPRESSED_PIECE_BYTES,
    FETCH_JOINED_BYTES_MAX,
)
from pyspark_kgroup.shared.arrow import HEADERS, arrow_schema, repeat

log = logging.getLogger(__name__)

_REASONS: Final = {
    Status.OLD_FORMAT: "records are in a format of before Kafka 0.11",
    Status.BAD_CHECKSUM: "a batch does not have the checksum that it names",
    Status.MALFORMED: "a batch is not as Kafka writes it",
    Status.FAR_TIMESTAMP: "a record has a timestamp beyond Spark's range",
}

_LASTING: Final = {Status.OLD_FORMAT, Status.FAR_TIMESTAMP}
"""Reasons that a topic which has them once most likely has again."""

_BATCH_BYTES_MIN: Final = 61
"""A batch without records (DefaultRecordBatch.RECORD_BATCH_OVERHEAD)."""

_BATCHES_AT_ONCE: Final = 1_024
"""Most batches that one call finds: 64 KiB of structures."""

_BINARY: Final = pa.binary()
_STRING: Final = pa.string()
_INT32: Final = pa.int32()
_INT64: Final = pa.int64()
_TIMESTAMP: Final = pa.timestamp("us", tz="UTC")


_warned_of: set[str] = set()
"""Reasons that last, of which this process has warned."""


class FallbackToLibrdkafka(Exception):
    """Records or answers that are not read natively: librdkafka reads on from the offset that was asked for.

    Attributes:
        reason: for the log.
        lasting: the next reads will most likely meet the same reason.
    """

    def __init__(self, reason: str, *, lasting: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.lasting = lasting

    def tell(self) -> None:
        """Log why librdkafka reads. A lasting reason is logged once in this process: tasks come many times a second."""
        if not self.lasting:
            log.info("Reading on with librdkafka: %s.", self.reason)
        elif self.reason not in _warned_of:
            _warned_of.add(self.reason)
            log.warning("Reading with librdkafka, which is slower: %s.", self.reason)


class MalformedBatch(FallbackToLibrdkafka):
    """A batch that cannot be decoded: its producer wrote it so, or its bytes have changed on the way."""


@dataclass(frozen=True, slots=True)
class Decoded:
    """The records of an answer.

    Attributes:
        batches: in the schema of the source (`arrow_schema`), each of at most `ARROW_BATCH_ROWS_MAX` rows and about
            `FETCH_JOINED_BYTES_MAX` bytes. A larger record is a batch of its own.
        next_offset: where to read on: past the last complete batch, control batches and gaps included, or the end of
            the range. The start of the range if the answer has no complete batch.
        leader_epoch: of the batch before `next_offset` (a Fetch request's LastFetchedEpoch), or -1 if there was none.
        complete: False if decoding stopped at the bound of bytes: decode the same bytes again from `next_offset`.
    """

    batches: list[pa.RecordBatch]
    next_offset: int
    leader_epoch: int
    complete: bool


class Decoder:
    """Decodes one partition's part of Fetch answers. It keeps no state between calls.

    Args:
        library: of `library.load`.
        topic: its name.
        partition: its number.
        include_headers: adds the column `headers`.
        include_timestamps: False if the query does not read the column `timestamp`. Its values mean nothing then, and
            timestamps that Spark cannot hold are not refused.
    """

    def __init__(
        self,
        library: CDLL,
        topic: str,
        partition: int,
        *,
        include_headers: bool,
        include_timestamps: bool = True,
    ) -> None:
        self._library = library
        self._topic = topic
        self._partition = partition
        self._include_headers = include_headers
        self._include_timestamps = include_timestamps
        self._schema = arrow_schema(include_headers)

    def decode(
        self,
        records: memoryview,
        start: int,
        end: int,
        aborted: Sequence[tuple[int, int]] = (),
        bytes_max: int = DECODED_BYTES_MAX,
    ) -> Decoded:
        """The records with offsets in [start, end), in their order.

        Args:
            records: the field `records` of the answer. Not kept: it may be used again afterwards.
            start: the position.
            end: of the range.
            aborted: producer ids with first offsets, as the answer lists them under read_committed. Empty under
                read_uncommitted.
            bytes_max: the record batch with which so many bytes are reached is the last one.

        Raises:
            FallbackToLibrdkafka: a batch is not ordinary. None of `records` has been used then.
        """
        source = pa.py_buffer(records)
        walk = _walk(source, start, end, aborted)
        found = (Batch * min(_BATCHES_AT_ONCE, 1 + source.size // _BATCH_BYTES_MIN))()
        count = c_int32(len(found))
        batches: list[pa.RecordBatch] = []
        decoded_bytes = 0
        while count.value == len(found):  # a full array: there may be more
            self._call("kgroup_walk", byref(walk), found, len(found), byref(count))
            payloads = _Payloads(source, found, count.value, walk.compressed)
            for batch, leader_epoch in self._arrow_batches(payloads, start, end):
                batches.append(batch)
                decoded_bytes += batch.nbytes
                if decoded_bytes >= min(bytes_max, DECODED_BYTES_MAX):
                    return Decoded(batches, batch["offset"][-1].as_py() + 1, leader_epoch, complete=False)
        return Decoded(batches, min(max(start, walk.next_offset), end), walk.leader_epoch, complete=True)

    def _call(self, name: str, *arguments: object) -> None:
        status = getattr(self._library, name)(*arguments)
        if status == Status.MALFORMED:
            raise MalformedBatch(_REASONS[status])
        if status != Status.GOOD:
            raise FallbackToLibrdkafka(_REASONS[Status(status)], lasting=status in _LASTING)

    def _arrow_batches(self, payloads: _Payloads, start: int, end: int) -> Iterator[tuple[pa.RecordBatch, int]]:
        """Arrow batches of the record batches found, each with the leader epoch of the last record batch in it."""
        place, sizes = ArrowSlot(0, 0, 0, -1), Sizes()  # -1 is below the offset delta of any record
        wanted = (self._include_headers, self._include_timestamps, ARROW_BATCH_ROWS_MAX, FETCH_JOINED_BYTES_MAX)
        while place.batch < payloads.count:
            ready = payloads.make_ready(place)
            rest = (payloads.found, ready, byref(place), start, end)
            self._call("kgroup_measure", *rest, *wanted, byref(sizes))
            if sizes.rows:
                buffers = _Buffers(sizes, self._include_headers)
                self._call("kgroup_fill", *rest, self._partition, byref(buffers.columns))
                yield self._record_batch(buffers), payloads.found[place.batch].leader_epoch
            elif place.batch < ready:
                payloads.decompress_more(place)

    def _record_batch(self, buffers: _Buffers) -> pa.RecordBatch:
        rows = buffers.sizes.rows
        columns = [
            buffers.array(_BINARY, "key"),
            buffers.array(_BINARY, "value"),
            repeat(self._topic, rows),
            pa.Array.from_buffers(_INT32, rows, [None, buffers.partition], 0),
            pa.Array.from_buffers(_INT64, rows, [None, buffers.offset], 0),
            pa.Array.from_buffers(_TIMESTAMP, rows, [None, buffers.timestamp], 0),
            pa.Array.from_buffers(_INT32, rows, [None, buffers.timestamp_type], 0),
        ]
        if self._include_headers:
            columns.append(buffers.headers())
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)


def _walk(source: pa.Buffer, start: int, end: int, aborted: Sequence[tuple[int, int]]) -> Walk:
    walk = Walk(bytes=source.address, size=source.size, start=start, end=end, leader_epoch=-1)
    if aborted:
        producers = sorted({producer for producer, _ in aborted})  # C finds one by bisection
        places = {producer: place for place, producer in enumerate(producers)}
        by_offset = sorted(aborted, key=lambda transaction: transaction[1])
        walk.aborted = (AbortedTransaction * len(aborted))(
            *(AbortedTransaction(places[who], first) for who, first in by_offset)
        )
        walk.producers = (c_int64 * len(producers))(*producers)
        walk.aborted_now = (c_uint8 * len(producers))()
        walk.aborted_count, walk.producer_count = len(aborted), len(producers)
    return walk


class _Payloads:
    """The batches of a walk, decompressed as they are needed: a few megabytes at a time.

    Attributes:
        found: the batches. One that is ready names its decompressed payload, or the part of it that comes next.
        count: how many there are.
    """

    def __init__(self, source: pa.Buffer, found: Array[Batch], count: int, compressed: int) -> None:
        self.found = found
        self.count = count
        self._source = source
        self._ready = 0 if compressed else count  # uncompressed payloads are read in place
        self._kept: deque[tuple[int, pa.Buffer]] = deque()  # with the number of its batch
        self._kept_bytes = 0
        self._rest: CompressedRemainder | None = None  # of the last batch that is ready

    def make_ready(self, place: ArrowSlot) -> int:
        """Make enough batches ready for an Arrow batch from `place` on, and free the memory of those before.

        Returns:
            How many batches are ready.

        Raises:
            FallbackToLibrdkafka: one of them cannot be decompressed.
        """
        while self._kept and self._kept[0][0] < place.batch:
            self._kept_bytes -= self._kept.popleft()[1].size
        if self._ready <= place.batch:
            self._rest = None  # the range ended within the part that was decompressed
        while self._rest is None and self._is_short_of(place):
            batch = self.found[self._ready]
            payload = self._source.slice(batch.payload - self._source.address, batch.payload_bytes)
            self._ready += 1
            if batch.codec:
                with _fall_back_if_undecodable():
                    payload, self._rest = decompressed(batch.codec, payload)
            self._keep(payload)
        return self._ready

    def _is_short_of(self, place: ArrowSlot) -> bool:
        return self._ready < self.count and self._kept_bytes - place.at < ARROW_BATCH_BYTES_MAX

    def decompress_more(self, place: ArrowSlot) -> None:
        """Decompress more of the last ready batch, and append it to the bytes of that batch from `place` on.

        Raises:
            FallbackToLibrdkafka: the batch cannot be decompressed, or a record of it is too large.
        """
        assert self._rest is not None
        _, before = self._kept.pop()
        self._kept_bytes -= before.size
        left = before.slice(place.at)
        if left.size > DECOMPRESSED_BYTES_MAX:
            raise FallbackToLibrdkafka(
                f"a record becomes more than {DECOMPRESSED_BYTES_MAX} bytes when it is decompressed"
            )
        with _fall_back_if_undecodable():
            # As much again, so that a large record is not copied once for each piece of it.
            piece, self._rest = self._rest.read(max(left.size, DECOMPRESSED_PIECE_BYTES))
        self._keep(pa.py_buffer(b"".join((left, piece))))
        place.at = 0

    def _keep(self, payload: pa.Buffer) -> None:
        batch = self.found[self._ready - 1]
        batch.payload, batch.payload_bytes, batch.more = payload.address, payload.size, self._rest is not None
        self._kept.append((self._ready - 1, payload))  # C has only the address: the buffer must live on
        self._kept_bytes += payload.size


@contextmanager
def _fall_back_if_undecodable() -> Iterator[None]:
    """Raise `FallbackToLibrdkafka` for data that cannot be decompressed here, so that librdkafka reads them."""
    try:
        yield
    except MissingCodec as error:
        raise FallbackToLibrdkafka(str(error), lasting=True) from None
    except TooLarge as error:
        raise FallbackToLibrdkafka(str(error)) from None
    except Undecodable as error:
        raise MalformedBatch(str(error)) from None


class _Buffers:
    """The buffers of one Arrow batch: exactly as large as its rows need.

    Attributes:
        sizes: numbers of its rows, keys, values and headers, and their bytes.
        columns: the same buffers for `kgroup_fill`.
    """

    def __init__(self, sizes: Sizes, include_headers: bool) -> None:
        self.sizes = sizes
        rows = sizes.rows
        self.columns = Columns(rows=rows, headers=sizes.headers)
        self._binaries: dict[str, tuple[int, int, list[pa.Buffer | None]]] = {}
        self._binary("key", rows, sizes.key_bytes, sizes.keys)
        self._binary("value", rows, sizes.value_bytes, sizes.values)
        self.partition = self._allocated("partition", 4 * rows)
        self.offset = self._allocated("offset", 8 * rows)
        self.timestamp = self._allocated("timestamp_us", 8 * rows)
        self.timestamp_type = self._allocated("timestamp_type", 4 * rows)
        if include_headers:
            self._binary("header_key", sizes.headers, sizes.header_key_bytes, sizes.headers)
            self._binary("header_value", sizes.headers, sizes.header_value_bytes, sizes.header_values)
            self._offsets = self._allocated("header_offsets", 4 * (rows + 1))
            some_without = sizes.rows_with_headers < rows
            self._validity = self._allocated("header_validity", (rows + 7) // 8) if some_without else None

    def _allocated(self, field: str, size: int) -> pa.Buffer:
        buffer = pa.allocate_buffer(size)
        setattr(self.columns, field, buffer.address)
        return buffer

    def _binary(self, field: str, length: int, data_bytes: int, present: int) -> None:
        validity = pa.allocate_buffer((length + 7) // 8) if present < length else None
        offsets, data = pa.allocate_buffer(4 * (length + 1)), pa.allocate_buffer(data_bytes)
        addresses = (offsets.address, data.address, validity.address if validity else None)
        setattr(self.columns, field, Binary(*addresses, data_bytes))
        self._binaries[field] = (length, length - present, [validity, offsets, data])

    def array(self, kind: pa.DataType, field: str) -> pa.Array:
        """The column `field`, of type binary or string."""
        length, nulls, buffers = self._binaries[field]
        return pa.Array.from_buffers(kind, length, buffers, nulls)

    def headers(self) -> pa.Array:
        """The column of headers. Null, not empty, for a record without any: so does Spark."""
        names = self.array(_STRING, "header_key")
        try:
            names.validate(full=True)
        except pa.ArrowInvalid:  # rare: brokers take any bytes
            names = pa.array([java_text(name) for name in self.array(_BINARY, "header_key").to_pylist()], _STRING)
        pairs = [names, self.array(_BINARY, "header_value")]
        structs = pa.Array.from_buffers(HEADERS.value_type, self.sizes.headers, [None], 0, children=pairs)
        rows, filled = self.sizes.rows, self.sizes.rows_with_headers
        return pa.Array.from_buffers(HEADERS, rows, [self._validity, self._offsets], rows - filled, children=[structs])
