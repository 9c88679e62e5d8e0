"""`format("ceiling")`: the same rows as a Kafka source's, out of record batches that are ready, without a read.

What remains is Spark's: the start of a Python source, the way from its workers to the JVM, and the batches themselves.
No source in Python can be faster.
"""

from collections.abc import Iterator, MutableMapping, Sequence
from functools import lru_cache
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from pyspark_kgroup.limits import FETCH_JOINED_BYTES_MAX
from pyspark_kgroup.shared.arrow import arrow_schema, repeat
from pyspark_kgroup.shared.columns import COLUMNS, spark_schema

ROW_BYTES = 36
"""The bytes of a row beside its value: offsets, numbers, and the topic's name."""


class Ceiling(DataSource):
    """Options: records, valueBytes, batchRecords (of one micro-batch), tasks."""

    @classmethod
    def name(cls) -> str:
        return "ceiling"

    def schema(self) -> StructType:
        return spark_schema(COLUMNS)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: ARG002 -- Spark's signature
        return _Reader(self.options)


class _Reader(DataSourceStreamReader):
    def __init__(self, options: MutableMapping[str, str]) -> None:
        self._records = int(options["records"])
        self._value_bytes = int(options["valueBytes"])
        self._batch_records = int(options["batchRecords"])
        self._tasks = int(options["tasks"])

    def initialOffset(self) -> dict[str, int]:
        return {"records": 0}

    def latestOffset(self, start: dict[str, int], limit: Any) -> dict[str, int]:  # noqa: ARG002 -- Spark's signature
        return {"records": min(self._records, start["records"] + self._batch_records)}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        rows, rest = divmod(end["records"] - start["records"], self._tasks)
        return [InputPartition(rows + (task < rest)) for task in range(self._tasks)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        left = int(partition.value)
        while left:
            batch = ready_batch(self._value_bytes)
            yield batch.slice(0, left)
            left -= min(left, batch.num_rows)

    def commit(self, end: dict[str, int]) -> None:
        pass

    def stop(self) -> None:
        pass


@lru_cache(maxsize=1)
def ready_batch(value_bytes: int) -> pa.RecordBatch:
    """A batch as large as those that our source hands over."""
    rows = max(1, FETCH_JOINED_BYTES_MAX // (value_bytes + ROW_BYTES))
    schema = arrow_schema(include_headers=False)
    columns = [
        pa.nulls(rows, pa.binary()),
        pa.array([b"v" * value_bytes] * rows, pa.binary()),
        repeat("small", rows),
        pa.array([0] * rows, pa.int32()),
        pa.array(range(rows), pa.int64()),
        pa.array([0] * rows, schema.field("timestamp").type),
        pa.array([0] * rows, pa.int32()),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)
