"""Spark's interface for `spark.read`: ranges of offsets, read once, in no group.

Runs on: both. `read` runs in the executors' workers, all other code where Spark plans the query.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceReader, InputPartition

from pyspark_kgroup.brief_errors import brief_errors
from pyspark_kgroup.shared.redacted import Redacted
from pyspark_kgroup.stream import Ticket, check_schema

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

log = logging.getLogger(__name__)


class KgroupReader(DataSourceReader):
    """The reader of one batch query. Brokers are asked when Spark wants its partitions."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self._given = Redacted(options)
        self._schema = schema

    @brief_errors()
    def partitions(self) -> Sequence[InputPartition]:
        """One ticket for each task."""
        from pyspark_kgroup.driver.batch.batch_plan import plan_batch
        from pyspark_kgroup.options.batch_options import given_for_streams, parse_batch

        options = parse_batch(self._given)
        if without_effect := given_for_streams(self._given):
            log.warning("A batch read has no use for %s: it joins no group.", ", ".join(without_effect))
        check_schema(self._schema, options.columns)
        return [Ticket(ticket) for ticket in plan_batch(options)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one ticket, which holds all that the task needs."""
        from pyspark_kgroup.executor.worker.ticket_reader import read_ticket

        if not isinstance(partition, Ticket):
            return iter(())  # where there are no partitions, Spark makes one of its own
        return read_ticket(partition.payload)

    def __getstate__(self) -> dict[str, Any]:
        """The parts that tasks need, without options and secrets."""
        return {}
