"""The front door: `format("kgroup")`.

Runs on: both. Spark builds a data source in several processes and pickles instances between them, so constructors only
keep what they are given: no socket, no thread, no file.
"""

from __future__ import annotations

import logging
import os
import sys
from typing import TYPE_CHECKING, Final

from pyspark.errors import AnalysisException
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from pyspark_kgroup.brief_errors import brief_errors
from pyspark_kgroup.shared.columns import spark_schema
from pyspark_kgroup.stream import KgroupStreamReader
from spark_kgroup.errors import OptionError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


log = logging.getLogger(__name__)

_ONLY_READS: Final = 'format("kgroup") reads from Kafka, it does not write: write with format("kafka").'


class DefaultSource(DataSource):
    """Kafka topics as a real consumer group, or read once (the class name is the one that Spark looks for).

    Options are documented in `pyspark_kgroup.options.rows`. Columns are those of `format("kafka")`: key, value, topic,
    partition, offset, timestamp, timestampType, and headers with `includeHeaders`, or those that `columns` names.
    """

    @classmethod
    def name(cls) -> str:
        """The name that users write in `format(...)`."""
        return "kgroup"

    @brief_errors()
    def schema(self) -> StructType:
        """The fixed schema.

        Raises:
            OptionError: the options are neither those of a stream nor those of a batch read: Spark does not say here
                which of the two it is to be. An option that is wrong only for that one raises in its first call.
        """
        # Imported here: of the five processes of a query that load this class one asks for its columns.
        from pyspark_kgroup.options.parser import parse

        try:
            return spark_schema(parse(self.options).columns)
        except OptionError as error:
            return spark_schema(self._columns_of_batch(error))

    def _columns_of_batch(self, of_stream: OptionError) -> tuple[str, ...]:
        """The columns of a batch read, which may lack a group. Raises `of_stream` unless the options may be of one."""
        from pyspark_kgroup.options.batch_options import concerns_batches, parse_batch

        if not concerns_batches(self.options):
            raise of_stream
        return parse_batch(self.options).columns

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """The reader of one query. Options are read by its first call: an error here would reach users garbled."""
        return KgroupStreamReader(dict(self.options), schema)

    def reader(self, schema: StructType) -> DataSourceReader:
        """The reader of one batch query, which joins no group. Options are read by its first call."""
        from pyspark_kgroup.batch import KgroupReader  # most queries are streams

        return KgroupReader(dict(self.options), schema)

    @brief_errors()
    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Refused: this is a source.

        Raises:
            OptionError: always. The message names the format to write with.
        """
        raise OptionError(_ONLY_READS)

    @brief_errors()
    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        """Refused: this is a source.

        Raises:
            OptionError: always. The message names the format to write with.
        """
        raise OptionError(_ONLY_READS)


def register(spark: SparkSession) -> None:
    """Make `format("kgroup")` known where Spark does not find `pyspark_*` packages by itself.

    Harmless where Spark knows it already. Needed when the package is not importable by Spark's planner process, for
    example when it came with `addArtifacts`. Warns if Spark starts another Python than the one that runs this. It
    chooses none: a session keeps the PYSPARK_PYTHON that it started with, and the executors may have other paths.
    """
    from pyspark_kgroup.driver.startup.spark_python import other_python, python  # in the user's own process only

    other = other_python(os.environ, sys.prefix)
    if other is not None and not spark.conf.get("spark.pyspark.python", None):
        log.warning(
            "Spark starts %s, but this program runs under %s. If spark-kgroup is not installed for Spark's, activate "
            "the environment, or set PYSPARK_PYTHON=%s before the session starts.",
            other,
            sys.executable,
            python(),
        )
    try:
        spark.dataSource.register(DefaultSource)
    except AnalysisException as error:
        # PySpark 4.0 and 4.1 refuse a source that they have found by themselves already. Later ones replace it.
        if "DATA_SOURCE_ALREADY_EXISTS" not in str(error):
            raise
