"""The partitions that each task reads, noted in the task itself, by one operator behind either source.

Runs on executors. An operator that is chained to a source runs in the source's task, and so on the same executor.
"""

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc

from bench_seats.executors import own_executor

COLUMNS = ("partition", "value")
"""Columns of the source. A value is the record's time of birth, in ns since the epoch, as text."""

SCHEMA = "partition INT, births_ms ARRAY<LONG>, executor STRING"


def observed(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """From `COLUMNS` to `SCHEMA`: one row for each partition that this task reads."""
    read = list(batches)
    if not read:
        return
    table = pa.Table.from_batches(read)
    births_ns = pc.cast(pc.cast(table["value"], pa.string()), pa.int64())
    births_ms = pc.cast(pc.divide(births_ns, 1_000_000), pa.int64())
    rows = pa.table({"partition": table["partition"], "births_ms": births_ms})
    grouped = rows.group_by("partition", use_threads=False).aggregate([("births_ms", "list")])
    executors = pa.array([own_executor()] * grouped.num_rows, pa.string())
    columns = [grouped["partition"], grouped["births_ms_list"], executors]
    yield from pa.table(columns, names=["partition", "births_ms", "executor"]).combine_chunks().to_batches()
