"""The columns of the source, as Spark names them.

Runs on: both. Apart from `arrow`, which has the same ones: Spark's planner asks for columns before every query, in a
process that has not loaded PyArrow (170 CPU ms).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


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
