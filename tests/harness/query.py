"""The source as Spark drives it, without Spark: for tests that need a real Kafka and no JVM beside it."""

import json
from typing import Any, Self

from harness.group_protocol import spoken
from harness.reader_option import READER
from harness.sidecars import read_on
from harness.waiting import wait_for
from pyspark_kgroup.limits import END_OFFSETS_MAX_AGE_MS
from pyspark_kgroup.offsets.checkpoint import EMPTY
from pyspark_kgroup.shared.columns import COLUMNS, HEADERS, spark_schema
from pyspark_kgroup.shared.tickets import Executor
from pyspark_kgroup.stream import KgroupStreamReader, Ticket
from spark_kgroup.clock import monotonic_ms


class Query:
    """One query and its checkpoint. A context manager: each `with` is a run, in which the reader is a new one.

    Offsets travel as JSON. A batch is done when it is read.

    Args:
        executor: the executor whose sidecar reads, or None for a worker that is on no executor, and reads by itself.

    Attributes:
        options: may be changed between two runs.
        rows: (topic, partition) -> the rows read, in order.
        durable: the end of the last batch that is done.
        planned: the end of the batch that is not done yet.
    """

    def __init__(
        self, bootstrap: str, group: str, topics: str, *, executor: Executor | None = None, **more: str
    ) -> None:
        self._executor = executor
        options = {
            "kafka.bootstrap.servers": bootstrap,
            "kafka.group.id": group,
            "subscribe": topics,
            "reader": READER,
            "members": "1",
            "startingOffsets": "earliest",
            "kafka.session.timeout.ms": "30000",
            "kafka.heartbeat.interval.ms": "500",
            "kafka.metadata.max.age.ms": "500",
            **more,
        }
        self.options = spoken(options)
        self.rows: dict[tuple[str, int], list[dict[str, Any]]] = {}
        self.durable = json.dumps(EMPTY.to_json())
        self.planned = ""

    def __enter__(self) -> Self:
        headers = self.options.get("includeHeaders") == "true"
        all_columns = (*COLUMNS, HEADERS) if headers else COLUMNS
        columns = self.options["columns"].split(",") if "columns" in self.options else all_columns
        self._reader = KgroupStreamReader(self.options, spark_schema(columns))
        return self

    def __exit__(self, *_: object) -> None:
        self._reader.stop()

    def plan(self) -> bool:
        """Plan the next batch. Returns whether there is one."""
        self.planned = json.dumps(self._reader.latestOffset(json.loads(self.durable)))
        return self.planned != self.durable

    def run(self) -> None:
        """Read the planned batch, and call it done."""
        for ticket in self._reader.partitions(json.loads(self.durable), json.loads(self.planned)):
            assert isinstance(ticket, Ticket)
            read = self._reader.read(ticket) if self._executor is None else read_on(self._executor, ticket.payload)
            for batch in read:
                for row in batch.to_pylist():
                    self.rows.setdefault((row["topic"], row["partition"]), []).append(row)
        self.durable = self.planned

    def skip(self) -> None:
        """Call the planned batch done without reading it, as with a sink that has the batch's number already."""
        self._reader.partitions(json.loads(self.durable), json.loads(self.planned))
        self.durable = self.planned

    def trigger(self) -> bool:
        """Plan and run the next batch. Returns whether there was one."""
        if not self.plan():
            return False
        self.run()
        return True

    @property
    def served_warm(self) -> int:
        """How many reads of this run the sidecar has served."""
        report = self._reader.reportLatestOffset()
        return int(report["reads"]["at_home"]) if report is not None else 0

    def await_served(self) -> None:
        """Wait until a read that the sidecar has served is counted, which is a moment after its worker is done."""
        wait_for(lambda: self.served_warm > 0, "a read to be counted as the sidecar's", 30)

    def settle(self) -> None:
        """Trigger until no batch is left to run, by ends of logs that are listed after this call."""
        began_ms = monotonic_ms()

        def idle() -> bool:
            relisted = monotonic_ms() - began_ms > END_OFFSETS_MAX_AGE_MS
            return not self.trigger() and relisted

        wait_for(idle, "nothing more to read", 120)

    def read(self, topic: str, count: int, partition: int = 0) -> list[int]:
        """Trigger until `count` records of a partition have been read. Returns the numbers that they hold."""

        def enough() -> bool:
            self.trigger()
            return len(self.rows.get((topic, partition), ())) >= count

        wait_for(enough, f"{count} records of {topic}-{partition}", 60)
        return [int(row["value"]) for row in self.rows[topic, partition]]
