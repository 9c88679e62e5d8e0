"""The columns of the source, and its record batches: how to bound their size, and the last offsets in one.

Runs on: executors. (`columns` has the same columns for Spark's planner.) A worker that reads an ordinary batch does not
need `pyarrow.compute`, which takes 37 ms to import (measured): only the functions that need it import it.

The columns, their types and the values for a missing timestamp or header are those of `format("kafka")` (Spark:
KafkaRecordToRowConverter). Spark takes a batch only if its schema equals Spark's own Arrow schema exactly.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Final

import pyarrow as pa

from pyspark_kgroup.limits import ARROW_BATCH_BYTES_MAX
from spark_kgroup.model import TopicPartition

HEADERS: Final = pa.list_(pa.field("element", pa.struct([("key", pa.string()), ("value", pa.binary())])))

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

_ARROW_SCHEMA_WITH_HEADERS: Final = _ARROW_SCHEMA.append(pa.field("headers", HEADERS))


def arrow_schema(include_headers: bool) -> pa.Schema:
    """The schema of every record batch."""
    return _ARROW_SCHEMA_WITH_HEADERS if include_headers else _ARROW_SCHEMA


def repeat(text: str, rows: int) -> pa.Array:
    """`text` in each row."""
    # Rounded up to a power of 2, so that a few cached arrays serve batches of all sizes, as slices without a copy.
    return _repeat_cached(text, 1 << (rows - 1).bit_length()).slice(0, rows)


@lru_cache(maxsize=32)
def _repeat_cached(text: str, rows: int) -> pa.Array:
    one = text.encode()
    ends = array("i", range(0, len(one) * (rows + 1), len(one)))
    return pa.Array.from_buffers(pa.string(), rows, [None, pa.py_buffer(ends), pa.py_buffer(one * rows)])


def last_rows(batch: pa.RecordBatch) -> list[int]:
    """The last row of each run of rows of one partition, ascending."""
    import pyarrow.compute as pc

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
    import pyarrow.compute as pc

    theirs = pc.and_(pc.equal(batch["topic"], partition.topic), pc.equal(batch["partition"], partition.partition))
    return batch.filter(pc.invert(pc.and_(theirs, pc.greater_equal(batch["offset"], end_offset))))


def rebatch(batches: Sequence[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The rows of `batches` in batches of at most `ARROW_BATCH_BYTES_MAX` bytes of keys, values and headers.

    A larger record is a batch of its own. Small batches are joined, which costs next to nothing.

    Args:
        batches: all with one schema, and at most 2 GiB in any column.
    """
    for batch in pa.Table.from_batches(batches).combine_chunks().to_batches():
        if batch.nbytes <= ARROW_BATCH_BYTES_MAX:
            yield batch
        else:
            yield from _split(batch)


def _split(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    ends = _payload_ends(batch)
    first, before = 0, 0
    while first < batch.num_rows:
        end = max(first + 1, bisect_right(ends, before + ARROW_BATCH_BYTES_MAX, lo=first))
        yield batch.slice(first, end - first)
        first, before = end, ends[end - 1]


def _payload_ends(batch: pa.RecordBatch) -> list[int]:
    """Bytes of keys, values and headers up to and with each row."""
    import pyarrow.compute as pc

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
    import pyarrow.compute as pc

    return pc.fill_null(pc.binary_length(column), 0).cast(pa.int64())
