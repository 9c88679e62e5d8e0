"""One size in a process of its own: the driver's half of a query, on a running Kafka. It prints `Boundaries` as JSON.

Records come from another process, which is asked for them over standard input and output.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict
from typing import Any, cast

from bench_sessions.measured import memory_mib

from bench_scale.measured import Boundaries
from pyspark_kgroup.limits import END_OFFSETS_MAX_AGE_MS
from pyspark_kgroup.offsets.checkpoint import EMPTY
from pyspark_kgroup.shared.columns import COLUMNS, spark_schema
from pyspark_kgroup.stream import KgroupStreamReader
from spark_kgroup.wire.connection import Connection
from spark_kgroup.wire.schema import Request, Response

IDLE = 20
BUSY = 5
BOUND_S = 300


class Traffic:
    """Counts of requests and bytes over all connections of this process."""

    def __init__(self) -> None:
        self.counts = Counter[str]()
        counts, exchange, answer = self.counts, Connection._exchange, Connection._answer

        async def counted_exchange(self: Connection, request: Request, timeout_ms: int) -> Response:
            counts["requests"] += 1
            if not isinstance(self._writer, _CountingWriter):
                self._writer = cast("asyncio.StreamWriter", _CountingWriter(self._writer, counts))
            return await exchange(self, request, timeout_ms)

        async def counted_answer(self: Connection, frame: bytes) -> None:
            counts["bytes"] += len(frame)
            await answer(self, frame)

        Connection._exchange = counted_exchange  # type: ignore[method-assign]
        Connection._answer = counted_answer  # type: ignore[method-assign]


class _CountingWriter:
    def __init__(self, writer: Any, counts: Counter[str]) -> None:
        self._writer = writer
        self._counts = counts

    def write(self, data: bytes) -> None:
        self._counts["bytes"] += len(data)
        self._writer.write(data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._writer, name)


class Producer:
    """A process that writes one record to each partition when it is asked to."""

    def __init__(self, bootstrap: str, topic: str, partitions: int) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "bench_scale.producer", bootstrap, topic, str(partitions)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def fill(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        if not self._process.stdout.readline():
            raise RuntimeError("the producer has ended")

    def end(self) -> None:
        self._process.terminate()
        self._process.wait(30)


class Trigger:
    """One query, trigger after trigger. No task runs: a planned batch counts as read."""

    def __init__(self, options: dict[str, str], durable: dict[str, Any]) -> None:
        self._reader = KgroupStreamReader(options, spark_schema(COLUMNS))
        self._reader.initialOffset()  # as Spark does first
        self.durable = durable

    def pull(self) -> int:
        """One trigger. Returns how many tasks its batch has, or 0 if there is none."""
        end = json.loads(json.dumps(self._reader.latestOffset(self.durable)))
        if end == self.durable:
            return 0
        tickets = self._reader.partitions(self.durable, end)
        self.durable = end
        return len(tickets)

    def first(self) -> float:
        """Seconds until there is a first offset with all partitions."""
        began_s = time.monotonic()
        self.pull()
        return time.monotonic() - began_s

    def settle(self) -> None:
        """Trigger until three triggers in a row have no new record."""
        quiet, bound_s = 0, time.monotonic() + BOUND_S
        while quiet < 3:
            if time.monotonic() > bound_s:
                raise TimeoutError(f"not at rest after {BOUND_S} s")
            time.sleep(2 * END_OFFSETS_MAX_AGE_MS / 1000)
            quiet = 0 if self.pull() else quiet + 1

    def stop(self) -> None:
        self._reader.stop()


def measure(bootstrap: str, topic: str, partitions: int, seats: int) -> Boundaries:
    """Measure one size."""
    options = {
        "kafka.bootstrap.servers": bootstrap,
        "kafka.group.id": f"{topic}-{seats}",
        "subscribe": topic,
        "members": str(seats),
        "startingOffsets": "earliest",
    }
    traffic, producer = Traffic(), Producer(bootstrap, topic, partitions)
    try:
        producer.fill()
        query = Trigger(options, EMPTY.to_json())
        started_s = query.first()
        query.settle()
        query.stop()
        query = Trigger(options, query.durable)
        restarted_s = query.first()
        query.settle()
        idle_s, idle = _mean(query.pull, IDLE, traffic, prepare=lambda: time.sleep(2 * END_OFFSETS_MAX_AGE_MS / 1000))
        tasks: list[int] = []

        def busy() -> None:
            tasks.append(query.pull())

        def records() -> None:
            producer.fill()
            time.sleep(2 * END_OFFSETS_MAX_AGE_MS / 1000)

        busy_s, sent = _mean(busy, BUSY, traffic, prepare=records)
        offset = json.dumps(query.durable, separators=(",", ":"))
        query.stop()
    finally:
        producer.end()
    return Boundaries(
        partitions=partitions,
        seats=seats,
        started_s=started_s,
        restarted_s=restarted_s,
        idle_ms=1_000 * idle_s,
        busy_ms=1_000 * busy_s,
        idle_requests=idle["requests"],
        busy_requests=sent["requests"],
        busy_kb=sent["bytes"] / 1_000,
        tasks=max(tasks),
        offset_kb=len(offset) / 1_000,
        memory_mib=memory_mib(),
    )


def _mean(
    work: Callable[[], object], times: int, traffic: Traffic, prepare: Callable[[], None]
) -> tuple[float, dict[str, float]]:
    """CPU seconds and traffic of `work`, without those of `prepare` before each time."""
    cpu_s, sent = 0.0, Counter[str]()
    for _ in range(times):
        prepare()
        before_s, before = time.process_time(), traffic.counts.copy()
        work()
        cpu_s += time.process_time() - before_s
        sent += traffic.counts - before
    return cpu_s / times, {name: sent[name] / times for name in ("requests", "bytes")}


if __name__ == "__main__":
    bootstrap, topic, partitions, seats = sys.argv[1:]
    print(json.dumps(asdict(measure(bootstrap, topic, int(partitions), int(seats)))))  # the parent reads it
