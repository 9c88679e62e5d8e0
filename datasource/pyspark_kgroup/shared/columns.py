"""The columns of the source, as Spark names them.

Runs on: both. Apart from `arrow`, which has the same ones: Spark's planner asks for columns before every query, in a
process that has not loaded PyArrow (170 CPU ms).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


COLUMNS: Final = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType")
"""All columns that a read has by default, in their order."""

TIMESTAMP: Final = "timestamp"

HEADERS: Final = "headers"
"""The column that a read has only with `includeHeaders`, or where `columns` names it."""


def spark_schema(columns: Sequence[str]) -> StructType:
    """Columns as Spark names their types. Every one may be null, as in `format("kafka")`."""
    # Imported here: reading needs no Spark, only describing does.
    from pyspark.sql.types import ArrayType, BinaryType, IntegerType, LongType, StringType, StructType, TimestampType

    header = StructType().add("key", StringType()).add("value", BinaryType())
    types = {
        "key": BinaryType(),
        "value": BinaryType(),
        "topic": StringType(),
        "partition": IntegerType(),
        "offset": LongType(),
        "timestamp": TimestampType(),
        "timestampType": IntegerType(),
        HEADERS: ArrayType(header),
    }
    schema = StructType()
    for column in columns:
        schema = schema.add(column, types[column])
    return schema
