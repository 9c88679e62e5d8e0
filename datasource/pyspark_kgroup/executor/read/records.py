"""Kafka records as Arrow record batches.

Runs on: executor.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import chain
from operator import methodcaller
from typing import Final, cast

import pyarrow as pa
import pyarrow.compute as pc
from confluent_kafka import Message

from pyspark_kgroup.shared.arrow import HEADERS, arrow_schema, repeat
from spark_kgroup.errors import ProtocolViolation

_TIMESTAMP: Final = pa.timestamp("us", tz="UTC")

_ONE: Final = array("q", [1])
"""Not Python's 1: to make an Arrow scalar of it, or an array of a list, PyArrow imports pandas (half a second of CPU).
Usual records need neither: a query waits for a worker's first read after an executor has died."""


def record_batch(
    records: Sequence[Message], include_headers: bool, topic: str | None = None, *, include_timestamps: bool = True
) -> pa.RecordBatch:
    """`records` in their order, each column made in one pass that calls no function of ours.

    Args:
        records: at least one, without errors among them.
        include_headers: adds the column `headers`.
        topic: theirs, if they all have the same: cheaper than to ask each.
        include_timestamps: False if the query does not read the column `timestamp`: its values mean nothing then.

    Raises:
        ProtocolViolation: a record's timestamp is beyond the range of Spark's timestamps, or a header's name is one
            that librdkafka's Python client cannot show.
    """
    times = array("q", list(chain.from_iterable(map(Message.timestamp, records))))  # kind, milliseconds, kind, ...
    columns = [
        _keys(records),
        _binaries(list(map(Message.value, records))),
        repeat(topic, len(records)) if topic else pa.array(list(map(Message.topic, records)), pa.string()),
        _integers(array("i", cast("list[int]", list(map(Message.partition, records)))), pa.int32()),
        _integers(array("q", cast("list[int]", list(map(Message.offset, records)))), pa.int64()),
        _timestamps(records, times[1::2]) if include_timestamps else _integers(times[1::2], _TIMESTAMP),
        # librdkafka: 0 not available, 1 create time, 2 log append time. Java's TimestampType ids are one less.
        pc.subtract(_integers(times[::2], pa.int64()), _integers(_ONE * len(records), pa.int64())).cast(pa.int32()),
    ]
    if include_headers:
        columns.append(pa.array(list(map(_headers, records)), HEADERS))
    return pa.RecordBatch.from_arrays(columns, schema=arrow_schema(include_headers))


_HEADERS_OF: Final = methodcaller("headers")
"""librdkafka's client answers with a value and a pending error at once. A call from C checks for that, and raises
SystemError here. The interpreter's own call does so only until it is specialised, and then it is raised anywhere."""


def _headers(record: Message) -> list[tuple[str, bytes | None]] | None:
    """Null, not empty, for a record without headers: so does Spark. A name ends at a NUL here, as strings of C do."""
    try:
        return cast("list[tuple[str, bytes | None]]", _HEADERS_OF(record)) or None
    except (SystemError, UnicodeDecodeError):
        raise ProtocolViolation(
            f"The record at offset {record.offset()} of {record.topic()}-{record.partition()} has a header whose name "
            "is not UTF-8, which librdkafka's Python client cannot show. Read with reader=native, the default, which "
            'shows it as format("kafka") does, or without headers.'
        ) from None


def _keys(records: Sequence[Message]) -> pa.Array:
    keys = list(map(Message.key, records))
    nothing = keys.count(None) == len(keys)  # in most topics all records have keys, or none
    return pa.nulls(len(keys), pa.binary()) if nothing else _binaries(keys)


def _binaries(values: list[bytes | None]) -> pa.Array:
    """`values` end to end in one buffer, null for None (a quarter of the time of `pa.array`, which looks at each)."""
    try:
        joined = b"".join(cast("list[bytes]", values))
    except TypeError:  # None among them
        return pa.array(values, pa.binary())
    # 2 GiB is far: librdkafka holds no more than queued.max.messages.kbytes and one answer of each broker.
    ends = pc.cumulative_sum_checked(_integers(array("i", [0, *map(len, cast("list[bytes]", values))]), pa.int32()))
    return pa.Array.from_buffers(pa.binary(), len(values), [None, ends.buffers()[1], pa.py_buffer(joined)])


def _integers(numbers: array[int], kind: pa.DataType) -> pa.Array:
    """`numbers` without a copy (half the time of `pa.array` over Python's integers)."""
    return pa.Array.from_buffers(kind, len(numbers), [None, pa.py_buffer(numbers)])


def _timestamps(records: Sequence[Message], milliseconds: array[int]) -> pa.Array:
    """Microseconds since the epoch. A record without a timestamp has -1 ms, in Kafka's log as in Spark's column."""
    try:
        return _integers(milliseconds, pa.timestamp("ms", tz="UTC")).cast(_TIMESTAMP)
    except pa.ArrowInvalid:
        far = max(range(len(records)), key=lambda row: abs(milliseconds[row]))
        record = records[far]
        raise ProtocolViolation(
            f"The record at offset {record.offset()} of {record.topic()}-{record.partition()} has the timestamp "
            f"{milliseconds[far]} ms, beyond Spark's range: its producer may have sent nanoseconds. "
            "Read it without its timestamp: name the other columns in the option columns. Or start after it with a "
            'fresh checkpoint and startingOffsets. format("kafka") cannot read it at all.'
        ) from None
