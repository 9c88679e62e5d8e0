"""Spark's interface: one stream reader per query, in the driver's long-lived stream-reader process.

Runs on: both. `read` runs in the executors' workers, all other code on the driver. A new worker imports this module
before it reads its first ticket, so each half is imported by the first call that needs it: a worker that loaded the
driver's half as well would spend more time on imports than on a small batch. The driver's is imported in a thread from
the first call on that only the driver gets.

Spark asks in this order: `latestOffset(start)`, then `partitions(start, end)`, then the tasks call `read`. `commit`
comes late, and not for the last batch of AvailableNow, so no code relies on it: positions go to the group at the next
boundary, when `start` says that they are durable. After a restart with an unfinished batch, `partitions` comes first.
"""

from __future__ import annotations

import gc
import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache, cached_property
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from pyspark_kgroup.admission import (
    HAS_ADMISSION_CONTROL,
    AdmissionControl,
    default_read_limit,
    is_at_once,
    takes_everything,
)
from pyspark_kgroup.brief_errors import brief_errors
from pyspark_kgroup.limits import NEW_OBJECTS_MAX
from pyspark_kgroup.offsets.checkpoint import EMPTY, Checkpoint
from pyspark_kgroup.offsets.plan import NO_LIMIT
from pyspark_kgroup.shared.redacted import Redacted
from pyspark_kgroup.shared.tickets import OffsetRange, ReadSettings, TicketPayload, TopicSize
from spark_kgroup.errors import OptionError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from pyspark_kgroup.driver.query import Query
    from pyspark_kgroup.offsets.kafka_offset import KafkaOffset
    from pyspark_kgroup.options.parser import SourceOptions


class Ticket(InputPartition):
    """One Spark input partition: the share of one seat in one micro-batch, with all that its task needs."""

    def __init__(self, payload: TicketPayload) -> None:
        super().__init__(payload)
        self.payload = payload


def check_schema(schema: StructType, columns: Sequence[str]) -> None:
    """See that Spark goes by our columns. Raises OptionError if a user gave another schema."""
    from pyspark_kgroup.shared.columns import spark_schema

    if schema != spark_schema(columns):
        raise OptionError(
            "kgroup has a fixed schema, like format('kafka'): remove .schema(...) from the query. To have fewer "
            "columns, name them in the option columns."
        )


@cache
def _load_drivers_half() -> None:
    """Import it while Spark is still starting the query: it asks for offsets 60 ms after its first call (measured)."""

    def load() -> None:
        gc.set_threshold(NEW_OBJECTS_MAX)
        gc.freeze()  # PyArrow and Spark stay: collections need not look at them during our imports (20 ms, measured)
        with suppress(ImportError):  # the first call that needs it raises the same error
            import pyspark_kgroup.driver.query  # noqa: F401

    threading.Thread(target=load, name="kgroup imports", daemon=True).start()


def _sample_sizes(ranges: Sequence[OffsetRange], settings: ReadSettings) -> Sequence[TopicSize]:
    from pyspark_kgroup.executor.read.record_samples import sample_sizes  # the driver of most queries reads no record

    return sample_sizes(ranges, settings)


def _of_kafka_source(offset: Mapping[str, Any]) -> KafkaOffset | None:
    """An offset of `format("kafka")`, where a query with its checkpoint was changed to kgroup. None for any other."""
    if type(offset.get("version")) is int:
        return None  # ours: nearly all queries need no more modules than that
    from pyspark_kgroup.offsets.kafka_offset import KafkaOffset

    return KafkaOffset.from_json(offset)


class KgroupStreamReader(AdmissionControl, DataSourceStreamReader):
    """The stream reader of one query. Spark calls it from one thread.

    Constructing it has no side effects: Spark builds and pickles more readers than it runs. The group is joined by the
    first call that needs it.
    """

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self._given = Redacted(options)
        self._schema = schema
        self._begun: Query | None = None
        self._planned_end: Mapping[str, Any] = EMPTY.to_json()
        self._returned: dict[str, Any] | None = None  # by the last boundary, if no batch was planned since
        self._bounded = False
        self._read: list[tuple[Mapping[str, Any], Checkpoint | KafkaOffset]] = []

    @cached_property
    def _options(self) -> SourceOptions:
        """The checked options. With a schema of the user's own, Spark has not asked for them before the first call."""
        from pyspark_kgroup.options.parser import parse

        options = parse(self._given)
        check_schema(self._schema, options.columns)
        return options

    @property
    def _query(self) -> Query:
        """The driver's half."""
        if self._begun is None:
            from pyspark_kgroup.driver.query import Query

            # Else a later batch knows better than a sample.
            alone = not HAS_ADMISSION_CONTROL and self._options.limit.size_bytes is not None
            self._begun = Query(self._options, bounded=self._bounded, sample=_sample_sizes if alone else None)
        return self._begun

    # --------------------------------------------------------------------------------------------- offsets

    def initialOffset(self) -> dict[str, Any]:
        """The empty offset: a constant, since Spark does not persist it and asks again on a replay."""
        _load_drivers_half()
        return EMPTY.to_json()

    @brief_errors()
    def getDefaultReadLimit(self) -> Any:
        """`maxOffsetsPerTrigger` and the like as Spark's read limit."""
        _load_drivers_half()
        return default_read_limit(*self._options.limit, self._options.min_offsets_per_trigger)

    def prepareForTriggerAvailableNow(self) -> None:
        """Spark's AvailableNow: read no further than the end offsets of the first boundary."""
        _load_drivers_half()
        self._bounded = True

    @brief_errors()
    def latestOffset(self, start: Mapping[str, Any] | None = None, limit: Any = None) -> dict[str, Any]:
        """The boundary between two batches: `start` is durable, and the result is the next batch's end.

        Args:
            start: the end of the last completed batch, or None before PySpark 4.2.
            limit: Spark's read limit, or None before PySpark 4.2.

        Raises:
            KgroupError: the cluster, the group or the checkpoint does not allow it. The message says why.
        """
        # PySpark 4.0 and 4.1 do not say where the batch starts. It starts where the last planned one ended: a restart
        # begins with partitions(X, X), a replay goes on with partitions(W, X), and this call comes when X is durable.
        # They plan no partitions of a batch that the sink does not look at (it knows the number, or foreachBatch
        # returns at once): then X is the offset that was returned last, since Spark makes a batch of all that is new
        # (constructNextBatch).
        start = (self._returned or self._planned_end) if start is None else start
        before = self._checkpoint(start)
        most = NO_LIMIT if takes_everything(limit) else self._options.limit
        after = self._query.advance(before, most, at_once=is_at_once(limit))
        # Unchanged means unchanged to the byte: any difference makes Spark run a batch.
        self._returned = dict(start) if after == before else after.to_json()
        return self._returned

    def _checkpoint(self, offset: Mapping[str, Any]) -> Checkpoint | KafkaOffset:
        """`offset` as a value. The last two are remembered, for Spark passes each offset several times."""
        for known, checkpoint in self._read:
            if known == offset:
                return checkpoint
        self._read = [(offset, _of_kafka_source(offset) or Checkpoint.from_json(offset)), *self._read[:1]]
        return self._read[0][1]

    @brief_errors()
    def reportLatestOffset(self) -> dict[str, Any] | None:
        """The ends of the logs and the executors of the seats, for the query's progress. No request is sent."""
        return self._begun.progress() if self._begun is not None else None

    def commit(self, end: dict[str, Any]) -> None:
        """No action: the next boundary commits the positions that `start` proves durable."""

    # ------------------------------------------------------------------------------------------------ reading

    @brief_errors()
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """One ticket for each seat that may have data between `start` and `end`."""
        # Tickets and the registry name the batch by this digest: the offsets of a large query are a megabyte.
        batch = sha256(json.dumps([start, end], sort_keys=True).encode()).hexdigest()
        tickets = self._query.tickets(batch, self._checkpoint(start), self._checkpoint(end))
        self._planned_end, self._returned = end, None
        return [Ticket(ticket) for ticket in tickets]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one ticket, which holds all that the task needs."""
        from pyspark_kgroup.executor.worker.ticket_reader import read_ticket

        assert isinstance(partition, Ticket)
        return read_ticket(partition.payload)

    # ----------------------------------------------------------------------------------------------- lifetime

    def stop(self) -> None:
        """End the sessions without leaving the group: the seats are static and wait for the next start.

        Mostly not called: Spark ends the process with SIGTERM, or its pipe closes. The runtime's thread is a daemon and
        holds only sockets, so those ends are clean too.
        """
        if self._begun is not None:
            self._begun.stop()
            self._begun = None
