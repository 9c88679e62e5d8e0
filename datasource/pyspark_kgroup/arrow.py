"""The columns of the source, and Kafka records as Arrow record batches of bounded size.

Runs on: both (the schema on the driver, the batches on executors).

The columns, their types and what stands for a missing timestamp or header are those of `format("kafka")` (Spark:
KafkaRecordToRowConverter). Spark takes a batch only if its schema equals Spark's own Arrow schema exactly.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from itertools import accumulate, chain
from typing import TYPE_CHECKING, Final, cast

import pyarrow as pa
import pyarrow.compute as pc
from confluent_kafka import Message

from spark_kgroup.errors import ProtocolViolation
from spark_kgroup.limits import ARROW_BATCH_BYTES_MAX

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

_HEADERS: Final = pa.list_(pa.field("element", pa.struct([("key", pa.string()), ("value", pa.binary())])))

_ARROW_SCHEMA: Final = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", tz="UTC")),
        ("timestampType", pa.int32()),
    ]
)

_ARROW_SCHEMA_WITH_HEADERS: Final = _ARROW_SCHEMA.append(pa.field("headers", _HEADERS))

_MICROSECONDS_A_MILLISECOND: Final = pa.scalar(1_000, pa.int64())


def arrow_schema(include_headers: bool) -> pa.Schema:
    """What every record batch looks like."""
    return _ARROW_SCHEMA_WITH_HEADERS if include_headers else _ARROW_SCHEMA


def spark_schema(include_headers: bool) -> StructType:
    """The columns as Spark names their types; every one may be null, as in `format("kafka")`."""
    # Imported here: reading needs no Spark, only describing does.
    from pyspark.sql.types import ArrayType, BinaryType, IntegerType, LongType, StringType, StructType, TimestampType

    schema = (
        StructType()
        .add("key", BinaryType())
        .add("value", BinaryType())
        .add("topic", StringType())
        .add("partition", IntegerType())
        .add("offset", LongType())
        .add("timestamp", TimestampType())
        .add("timestampType", IntegerType())
    )
    if include_headers:
        header = StructType().add("key", StringType()).add("value", BinaryType())
        schema = schema.add("headers", ArrayType(header))
    return schema


def record_batches(records: Sequence[Message], include_headers: bool) -> Iterator[pa.RecordBatch]:
    """`records` in their order, in batches of at most `ARROW_BATCH_BYTES_MAX` bytes of keys, values and headers.

    A larger record is a batch of its own. How many rows a batch has is the caller's affair: no more than `records`.

    Args:
        records: without errors among them.
        include_headers: adds the column `headers`.

    Raises:
        ProtocolViolation: a record's timestamp is beyond what Spark's timestamps can hold.
    """
    for first, end in _cuts(records, include_headers):
        yield _record_batch(records[first:end], include_headers)


def payload_bytes(records: Sequence[Message]) -> int:
    """Bytes of all keys and values."""
    keys = filter(None, map(Message.key, records))
    return sum(map(len, records)) + sum(map(len, keys))  # a message's length is that of its value


def _cuts(records: Sequence[Message], include_headers: bool) -> Iterator[tuple[int, int]]:
    """Where `records` are cut: (first, one past the last) of each batch."""
    if not records:
        return
    if not include_headers and payload_bytes(records) <= ARROW_BATCH_BYTES_MAX:
        yield 0, len(records)
        return
    first, before = 0, 0
    ends = list(accumulate(_size(record, include_headers) for record in records))
    for index, end in enumerate(ends):
        if end - before > ARROW_BATCH_BYTES_MAX and index > first:
            yield first, index
            first, before = index, ends[index - 1]
    yield first, len(records)


def _size(record: Message, include_headers: bool) -> int:
    size = len(record) + len(record.key() or b"")
    if include_headers:
        headers = cast("list[tuple[str, bytes | None]]", record.headers() or [])
        size += sum(len(name) + len(value or b"") for name, value in headers)
    return size


def _record_batch(records: Sequence[Message], include_headers: bool) -> pa.RecordBatch:
    times = array("q", chain.from_iterable(map(Message.timestamp, records)))  # kind, milliseconds, kind, ...
    columns = [
        pa.array(list(map(Message.key, records)), pa.binary()),
        pa.array(list(map(Message.value, records)), pa.binary()),
        pa.array(list(map(Message.topic, records)), pa.string()),
        _integers(array("i", cast("Iterator[int]", map(Message.partition, records))), pa.int32()),
        _integers(array("q", cast("Iterator[int]", map(Message.offset, records))), pa.int64()),
        _timestamps(records, times[1::2]),
        # librdkafka: 0 not available, 1 create time, 2 log append time; Java's TimestampType ids are one less.
        pc.subtract(_integers(times[::2], pa.int64()), 1).cast(pa.int32()),
    ]
    if include_headers:
        # Null, not empty, for a record without headers: so does Spark.
        columns.append(pa.array([record.headers() or None for record in records], _HEADERS))
    return pa.RecordBatch.from_arrays(columns, schema=arrow_schema(include_headers))


def _integers(numbers: array[int], kind: pa.DataType) -> pa.Array:
    """`numbers` without a copy (half the time of `pa.array` over Python's integers)."""
    return pa.Array.from_buffers(kind, len(numbers), [None, pa.py_buffer(numbers)])


def _timestamps(records: Sequence[Message], milliseconds: array[int]) -> pa.Array:
    """Microseconds since the epoch. A record without a timestamp has -1 ms, in Kafka's log as in Spark's column."""
    try:
        microseconds = pc.multiply_checked(_integers(milliseconds, pa.int64()), _MICROSECONDS_A_MILLISECOND)
    except pa.ArrowInvalid:
        far = max(range(len(records)), key=lambda row: abs(milliseconds[row]))
        record = records[far]
        raise ProtocolViolation(
            f"The record at offset {record.offset()} of {record.topic()}-{record.partition()} has the timestamp "
            f"{milliseconds[far]} ms, beyond what Spark can hold: its producer may have sent nanoseconds. "
            'Start after it with a fresh checkpoint and startingOffsets; format("kafka") cannot read it either.'
        ) from None
    return microseconds.cast(pa.timestamp("us", tz="UTC"))
