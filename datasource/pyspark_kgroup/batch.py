"""Spark's interface for `spark.read`: ranges of offsets, read once, in no group.

Runs on: both. `read` runs in the executors' workers, all other code where Spark plans the query.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSourceReader, InputPartition

from pyspark_kgroup.brief_errors import brief_errors
from pyspark_kgroup.shared.redacted import Redacted
from pyspark_kgroup.stream import Ticket, check_schema

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from pyspark_kgroup.driver.batch.filters import PushedFilters

log = logging.getLogger(__name__)

_ASKED_TO_FILTER: Final = "pyspark.sql.worker.data_source_pushdown_filters"
"""The program that Spark starts where a query has filters, and spark.sql.python.filterPushdown.enabled is set."""


def batch_reader(options: Mapping[str, str], schema: StructType) -> KgroupReader:
    """The reader of one query.

    A reader that takes filters is made only in the program in which Spark hands them over, and only with
    `pushFilters`=true: in other programs Spark refuses a reader that could take some. It is not the default, since
    Spark 4.1 to 4.3 keeps the tickets that a reader plans with the frame of one `load()`, whichever query asks next
    (PythonDataSourceV2.setReadInfo).
    """
    if {name.lower(): value for name, value in options.items()}.get("pushfilters", "").strip().lower() != "true":
        return KgroupReader(options, schema)
    main = getattr(sys.modules.get("__main__"), "__spec__", None)
    asked = _ASKED_TO_FILTER in sys.modules or (main is not None and main.name == _ASKED_TO_FILTER)
    return (KgroupFilteringReader if asked else KgroupReader)(options, schema)


class KgroupReader(DataSourceReader):
    """The reader of one batch query. Brokers are asked when Spark wants its partitions."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self._given = Redacted(options)
        self._schema = schema
        self._filters: PushedFilters | None = None

    @brief_errors()
    def partitions(self) -> Sequence[InputPartition]:
        """One ticket for each task."""
        from pyspark_kgroup.driver.batch.batch import plan_batch
        from pyspark_kgroup.driver.batch.filters import PushedFilters
        from pyspark_kgroup.options.batch import given_for_streams, parse_batch
        from pyspark_kgroup.wording import log_in_options_words

        options = parse_batch(self._given)
        if without_effect := given_for_streams(self._given):
            log.warning("A batch read has no use for %s: it joins no group.", ", ".join(without_effect))
        check_schema(self._schema, options.columns)
        undo = log_in_options_words()
        try:
            return [Ticket(ticket) for ticket in plan_batch(options, self._filters or PushedFilters())]
        finally:
            undo()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one ticket, which holds all that the task needs."""
        from pyspark_kgroup.executor.worker.ticket_reader import read_ticket

        if not isinstance(partition, Ticket):
            return iter(())  # where there are no partitions, Spark makes one of its own
        return read_ticket(partition.payload)

    def __getstate__(self) -> dict[str, Any]:
        """The parts that tasks need, without options, filters and secrets."""
        return {}


class KgroupFilteringReader(KgroupReader):
    """As `KgroupReader`, with filters of the query that spare reading."""

    def pushFilters(self, filters: list[Any]) -> Iterable[Any]:
        """Use filters on topic, partition, offset or timestamp. Spark applies the filters that are returned."""
        from pyspark_kgroup.driver.batch.filters import PushedFilters

        self._filters = PushedFilters()
        left = self._filters.take(filters)
        if self._filters.spares_reading:
            log.warning(
                "The filters of this query spare reading (pushFilters=true): Spark gives every later query on the same "
                "load() these rows and no others, and so a cell that is run again. Call load() for each query."
            )
        return left
