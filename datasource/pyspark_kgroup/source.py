"""The front door: `format("kgroup")`.

Runs on: both. Spark builds a data source in several processes and pickles instances between them, so constructors only
keep what they are given: no socket, no thread, no file.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.errors import AnalysisException
from pyspark.sql.datasource import DataSource, DataSourceStreamReader
from pyspark.sql.types import StructType

from pyspark_kgroup.arrow import spark_schema
from pyspark_kgroup.options import parse
from pyspark_kgroup.stream import KgroupStreamReader

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class DefaultSource(DataSource):
    """Streams Kafka topics as a real consumer group (the class name is the one that Spark looks for).

    Options are documented in `pyspark_kgroup.options`. Columns are those of `format("kafka")`: key, value, topic,
    partition, offset, timestamp, timestampType, and headers with `includeHeaders`.
    """

    @classmethod
    def name(cls) -> str:
        """What users write in `format(...)`."""
        return "kgroup"

    def schema(self) -> StructType:
        """The fixed schema.

        Raises:
            OptionError: an option is missing, unknown or contradictory.
        """
        return spark_schema(parse(self.options).include_headers)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """The reader of one query. Options are read by its first call: an error here would reach users garbled."""
        return KgroupStreamReader(dict(self.options), schema)


def register(spark: SparkSession) -> None:
    """Make `format("kgroup")` known where Spark does not find `pyspark_*` packages by itself.

    Harmless where Spark knows it already. Needed when the package is not importable by Spark's planner process, for
    example when it came with `addArtifacts`.
    """
    try:
        spark.dataSource.register(DefaultSource)
    except AnalysisException as error:
        # PySpark 4.0 and 4.1 refuse what they have found by themselves already; later ones replace it.
        if "DATA_SOURCE_ALREADY_EXISTS" not in str(error):
            raise
