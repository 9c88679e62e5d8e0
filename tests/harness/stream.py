"""A kgroup query under test, with all rows that it delivered."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

from harness.group_protocol import spoken
from harness.reader_option import READER
from harness.waiting import wait_for

Row = tuple[str, int, int, bytes]
"""(topic, partition, offset, value)."""


@dataclass
class Collected:
    """The rows of a foreachBatch sink keyed by batch id: a replayed batch replaces its first attempt."""

    batches: dict[int, list[Row]] = field(default_factory=dict)
    attempts: list[tuple[int, list[Row]]] = field(default_factory=list)

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        rows = [
            (r.topic, r.partition, r.offset, bytes(r.value))
            for r in frame.select("topic", "partition", "offset", "value").collect()
        ]
        self.batches[batch_id] = rows
        self.attempts.append((batch_id, rows))

    @property
    def rows(self) -> list[Row]:
        return [row for _, rows in sorted(self.batches.items()) for row in rows]

    def __len__(self) -> int:
        return sum(map(len, self.batches.values()))


def options(bootstrap: str, topic: str, group: str, **more: Any) -> dict[str, str]:
    """Options of a small kgroup stream."""
    base = {
        "kafka.bootstrap.servers": bootstrap,
        "kafka.group.id": group,
        "subscribe": topic,
        "reader": READER,
        "members": "2",
        "startingOffsets": "earliest",
        "kafka.session.timeout.ms": "30000",
        "kafka.metadata.max.age.ms": "1000",
        "kafka.heartbeat.interval.ms": "500",
    }
    return spoken({**base, **{name: str(value) for name, value in more.items()}})


def start(
    spark: SparkSession,
    read: dict[str, str],
    checkpoint: Path,
    sink: Any,
    *,
    trigger: dict[str, Any] | None = None,
) -> StreamingQuery:
    """Start a query on `sink` (a foreachBatch function)."""
    frame = spark.readStream.format("kgroup").options(**read).load()
    writer = frame.writeStream.option("checkpointLocation", str(checkpoint)).foreachBatch(sink)
    return writer.trigger(**(trigger or {"processingTime": "100 milliseconds"})).start()


def assert_exactly(collected: Collected, found: Mapping[tuple[int, int], bytes | None]) -> None:
    """Each record of the topic once, with its value, and in order within each partition of each batch."""
    seen = [(partition, offset) for _, partition, offset, _ in collected.rows]
    assert len(seen) == len(set(seen)), "some records were delivered twice"
    assert {(p, o): v for _, p, o, v in collected.rows} == found
    for rows in collected.batches.values():
        last: dict[int, int] = {}
        for _, partition, offset, _ in rows:
            assert offset > last.get(partition, -1), f"partition {partition} out of order"
            last[partition] = offset


def await_rows(query: StreamingQuery, collected: Collected, count: int, timeout_s: float = 60.0) -> None:
    """Wait until `count` rows were delivered. A failed query raises its error at once."""
    wait_running(query, lambda: len(collected) >= count, f"{count} rows (have {len(collected)})", timeout_s)


def wait_running(query: StreamingQuery, condition: Callable[[], bool], what: str, timeout_s: float = 60.0) -> None:
    """`wait_for` a condition that `query` brings about. A failed query raises its error at once."""

    def holds() -> bool:
        if (error := query.exception()) is not None:
            raise error
        return condition()

    wait_for(holds, what, timeout_s)
