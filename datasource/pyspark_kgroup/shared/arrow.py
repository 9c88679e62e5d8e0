"""The columns of the source, and Kafka records as Arrow record batches of bounded size.

Runs on: both (the schema on the driver, the batches on executors).

The columns, their types and what stands for a missing timestamp or header are those of `format("kafka")` (Spark:
KafkaRecordToRowConverter). Spark takes a batch only if its schema equals Spark's own Arrow schema exactly.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import chain
from typing import TYPE_CHECKING, Final, cast

import pyarrow as pa
import pyarrow.compute as pc
from confluent_kafka import Message

from pyspark_kgroup.limits import ARROW_BATCH_BYTES_MAX
from spark_kgroup.errors import ProtocolViolation
from spark_kgroup.model import TopicPartition

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

_ONE: Final = array("q", [1])
"""Not Python's 1: to make an Arrow scalar of it, or an array of a list, PyArrow imports pandas (half a second of CPU).
Usual records need neither: a query waits for a worker's first read after an executor has died."""


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


def record_batch(records: Sequence[Message], include_headers: bool, topic: str | None = None) -> pa.RecordBatch:
    """`records` in their order, each column made in one pass that calls no function of ours.

    Args:
        records: at least one, without errors among them.
        include_headers: adds the column `headers`.
        topic: theirs, if they all have the same: cheaper than to ask each.

    Raises:
        ProtocolViolation: a record's timestamp is beyond what Spark's timestamps can hold.
    """
    times = array("q", list(chain.from_iterable(map(Message.timestamp, records))))  # kind, milliseconds, kind, ...
    columns = [
        _keys(records),
        _binaries(list(map(Message.value, records))),
        _repeated(topic, len(records)) if topic else pa.array(list(map(Message.topic, records)), pa.string()),
        _integers(array("i", cast("list[int]", list(map(Message.partition, records)))), pa.int32()),
        _integers(array("q", cast("list[int]", list(map(Message.offset, records)))), pa.int64()),
        _timestamps(records, times[1::2]),
        # librdkafka: 0 not available, 1 create time, 2 log append time; Java's TimestampType ids are one less.
        pc.subtract(_integers(times[::2], pa.int64()), _integers(_ONE * len(records), pa.int64())).cast(pa.int32()),
    ]
    if include_headers:
        # Null, not empty, for a record without headers: so does Spark.
        columns.append(pa.array([record.headers() or None for record in records], _HEADERS))
    return pa.RecordBatch.from_arrays(columns, schema=arrow_schema(include_headers))


def last_rows(batch: pa.RecordBatch) -> list[int]:
    """The last row of each run of rows of one partition, ascending."""
    columns = (batch["topic"], batch["partition"])
    ends = {end for column in columns for end in pc.run_end_encode(column).run_ends.to_pylist()}
    return [end - 1 for end in sorted(ends)]


def last_offsets(batch: pa.RecordBatch) -> dict[TopicPartition, int]:
    """The last offset of each partition in `batch`: within a partition they only rise."""
    topics, partitions, offsets = batch["topic"], batch["partition"], batch["offset"]
    rows = last_rows(batch)
    return {TopicPartition(topics[row].as_py(), partitions[row].as_py()): offsets[row].as_py() for row in rows}


def before(batch: pa.RecordBatch, partition: TopicPartition, end_offset: int) -> pa.RecordBatch:
    """`batch` without the records of `partition` at or past `end_offset`."""
    theirs = pc.and_(pc.equal(batch["topic"], partition.topic), pc.equal(batch["partition"], partition.partition))
    return batch.filter(pc.invert(pc.and_(theirs, pc.greater_equal(batch["offset"], end_offset))))


def bounded(batches: Sequence[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The rows of `batches` in batches of at most `ARROW_BATCH_BYTES_MAX` bytes of keys, values and headers.

    A larger record is a batch of its own. Small batches are joined, which costs next to nothing.

    Args:
        batches: all with one schema; at most 2 GiB in any column.
    """
    for batch in pa.Table.from_batches(batches).combine_chunks().to_batches():
        if batch.nbytes <= ARROW_BATCH_BYTES_MAX:
            yield batch
        else:
            yield from _cut(batch)


def _cut(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    ends = _payload_ends(batch)
    first, before = 0, 0
    while first < batch.num_rows:
        end = max(first + 1, bisect_right(ends, before + ARROW_BATCH_BYTES_MAX, lo=first))
        yield batch.slice(first, end - first)
        first, before = end, ends[end - 1]


def _payload_ends(batch: pa.RecordBatch) -> list[int]:
    """Bytes of keys, values and headers up to and with each row."""
    sizes = pc.add(_lengths(batch["key"]), _lengths(batch["value"]))
    ends: list[int] = pc.cumulative_sum(sizes).to_pylist()
    if "headers" not in batch.schema.names:
        return ends
    headers = batch["headers"]
    fields = headers.flatten()
    sizes = pc.add(_lengths(fields.field("key")), _lengths(fields.field("value")))
    up_to = [0, *pc.cumulative_sum(sizes).to_pylist()]
    row_ends = pc.cumulative_sum(pc.fill_null(pc.list_value_length(headers), 0)).to_pylist()
    return [end + up_to[row_end] for end, row_end in zip(ends, row_ends, strict=True)]


def _lengths(column: pa.Array) -> pa.Array:
    """Bytes of each value, 0 for null."""
    return pc.fill_null(pc.binary_length(column), 0).cast(pa.int64())


def _keys(records: Sequence[Message]) -> pa.Array:
    keys = list(map(Message.key, records))
    nothing = keys.count(None) == len(keys)  # in most topics all records have keys, or none
    return pa.nulls(len(keys), pa.binary()) if nothing else _binaries(keys)


def _binaries(values: list[bytes | None]) -> pa.Array:
    """`values` end to end in one buffer (a quarter of the time of `pa.array`, which looks at each); null for None."""
    try:
        joined = b"".join(cast("list[bytes]", values))
    except TypeError:  # None among them
        return pa.array(values, pa.binary())
    # 2 GiB is far: librdkafka holds no more than queued.max.messages.kbytes and one answer of each broker.
    ends = pc.cumulative_sum_checked(_integers(array("i", [0, *map(len, cast("list[bytes]", values))]), pa.int32()))
    return pa.Array.from_buffers(pa.binary(), len(values), [None, ends.buffers()[1], pa.py_buffer(joined)])


def _repeated(text: str, rows: int) -> pa.Array:
    """`text` in each row."""
    return _repeated_at_least(text, 1 << (rows - 1).bit_length()).slice(0, rows)


@lru_cache(maxsize=32)
def _repeated_at_least(text: str, rows: int) -> pa.Array:
    one = text.encode()
    ends = array("i", range(0, len(one) * (rows + 1), len(one)))
    return pa.Array.from_buffers(pa.string(), rows, [None, pa.py_buffer(ends), pa.py_buffer(one * rows)])


def _integers(numbers: array[int], kind: pa.DataType) -> pa.Array:
    """`numbers` without a copy (half the time of `pa.array` over Python's integers)."""
    return pa.Array.from_buffers(kind, len(numbers), [None, pa.py_buffer(numbers)])


def _timestamps(records: Sequence[Message], milliseconds: array[int]) -> pa.Array:
    """Microseconds since the epoch. A record without a timestamp has -1 ms, in Kafka's log as in Spark's column."""
    try:
        return _integers(milliseconds, pa.timestamp("ms", tz="UTC")).cast(pa.timestamp("us", tz="UTC"))
    except pa.ArrowInvalid:
        far = max(range(len(records)), key=lambda row: abs(milliseconds[row]))
        record = records[far]
        raise ProtocolViolation(
            f"The record at offset {record.offset()} of {record.topic()}-{record.partition()} has the timestamp "
            f"{milliseconds[far]} ms, beyond what Spark can hold: its producer may have sent nanoseconds. "
            'Start after it with a fresh checkpoint and startingOffsets; format("kafka") cannot read it either.'
        ) from None
