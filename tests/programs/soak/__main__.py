"""Thousands of tiny batches through Spark: does any resource that they use grow?

`make soak BATCHES=10000` prints memory, files, sockets and threads of the driver's stream reader and JVM, of the Python
workers and of the sidecar at twenty moments, and exits with 1 if one of them leaks.

Memory is judged by the line through the moments after the first fifth (caches and arenas fill up before): its rise for
each batch, as far as that is more than its own scatter, is the leak. Files, sockets and threads are counted.
"""

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any
from uuid import uuid4

from harness.processes import STREAM_READER, Use, joined_reader, kinds_of, spark_processes, use_of, uses_until
from harness.stream import options, start, wait_running
from harness.trickle import Trickle
from pyspark.sql import DataFrame, SparkSession

import pyspark_kgroup
from spark_kgroup.testing import ApacheKafka

MOMENTS = 20
WINDOW = 20
"""Batches that a moment lasts: a worker has a consumer open only while it reads."""

WARM_UP = 0.2
"""Part of the run that memory may use to fill caches."""

LEAK_BYTES_A_BATCH = 4096
"""More counts as a leak. Less could not be told from scatter in 1,500 batches, and is 40 MB in 10,000."""

SPARE = 3
"""Files, sockets and threads that may come and go. Of hundreds, as a JVM has them, a tenth may."""


class Counting:
    """A sink that counts batches and rows."""

    def __init__(self) -> None:
        self.batches = 0
        self.rows = 0

    def __call__(self, frame: DataFrame, _: int) -> None:
        self.rows += frame.count()
        self.batches += 1

    def has_had(self, batches: int) -> Callable[[], bool]:
        """Whether it has had so many, whenever that is asked."""
        return lambda: self.batches >= batches


def rise_of(points: list[tuple[int, int]]) -> tuple[float, float]:
    """Slope of the line through the points, and half the width of its 95 % interval."""
    mean_x, mean_y = fmean(x for x, _ in points), fmean(y for _, y in points)
    spread = sum((x - mean_x) ** 2 for x, _ in points)
    slope = sum((x - mean_x) * (y - mean_y) for x, y in points) / spread
    scatter = sum((y - mean_y - slope * (x - mean_x)) ** 2 for x, y in points) / (len(points) - 2)
    return slope, 2.1 * (scatter / spread) ** 0.5


def leaks(kind: str, moments: list[tuple[int, Use]]) -> list[str]:
    """The resources that grew and must not, in words."""
    warm = [(batches, use) for batches, use in moments if batches >= WARM_UP * moments[-1][0]]
    first, last = warm[0][1], warm[-1][1]
    found = [
        f"{kind}: {name} {getattr(first, name)} -> {getattr(last, name)}"
        for name in ("files", "sockets", "threads")
        if getattr(last, name) > getattr(first, name) + max(SPARE, getattr(first, name) // 10)
    ]
    slope, doubt = rise_of([(batches, use.rss * 1024) for batches, use in warm])
    print(f"{kind}: memory rises by {slope:,.0f} bytes a batch (+- {doubt:,.0f})")
    if slope - doubt > LEAK_BYTES_A_BATCH:
        found.append(f"{kind}: {slope:,.0f} bytes of memory a batch")
    return found


def run(spark: SparkSession, kafka: ApacheKafka, batches: int, folder: Path) -> dict[str, list[tuple[int, Use]]]:
    topic, sink = f"soak-{uuid4().hex[:8]}", Counting()
    kafka.create_topic(topic, partitions=2)
    read = options(kafka.bootstrap_servers, topic, topic)
    before = spark_processes(STREAM_READER)
    with Trickle(kafka.bootstrap_servers, topic):
        query = start(spark, read, folder / "checkpoint", sink, trigger={"processingTime": "0 seconds"})
        wait_running(query, lambda: sink.batches >= 1, "the first batch", 120)
        reader = joined_reader(before, int(read["members"]))
        kinds = kinds_of(reader)
        seen: dict[str, list[tuple[int, Use]]] = {kind: [] for kind in (*kinds, "jvm")}
        for moment in range(1, MOMENTS + 1):
            due = batches * moment // MOMENTS
            wait_running(query, sink.has_had(due), f"batch {due}", batches * 10)
            end = sink.batches + WINDOW
            uses = uses_until(query, sink.has_had(end), f"batch {end}", WINDOW * 10, kinds)
            uses["jvm"] = jvm_use(spark)
            for kind, use in uses.items():
                seen[kind].append((sink.batches, use))
                show(kind, sink.batches, use)
        assert spark_processes(STREAM_READER) - before == {reader}, "another reader took over"
        query.stop()
    print(f"{sink.batches} batches, {sink.rows} rows")
    return seen


def jvm_use(spark: SparkSession) -> Use:
    """The driver's JVM. Its memory is that of the heap after a collection."""
    jvm: Any = spark.sparkContext._jvm
    use = use_of(jvm.java.lang.ProcessHandle.current().pid())
    assert use is not None
    jvm.java.lang.System.gc()
    runtime = jvm.java.lang.Runtime.getRuntime()
    return replace(use, rss=(runtime.totalMemory() - runtime.freeMemory()) // 1024)


def show(kind: str, batches: int, use: Use) -> None:
    print(
        f"{time.strftime('%H:%M:%S')} {batches:7,} batches  {kind:7} {use.rss / 1024:7.1f} MiB  "
        f"{use.files:3} files  {use.sockets:3} sockets  {use.threads:3} threads",
        flush=True,
    )


def table(seen: dict[str, list[tuple[int, Use]]]) -> None:
    print("\n| | 10 % | 50 % | 100 % |\n|---|---|---|---|")
    for kind, moments in seen.items():
        at = [moments[round(MOMENTS * part) - 1][1] for part in (0.1, 0.5, 1.0)]
        print(f"| {kind}: memory, MiB | " + " | ".join(f"{use.rss / 1024:.1f}" for use in at) + " |")
        for name in ("files", "sockets", "threads"):
            print(f"| {kind}: {name} | " + " | ".join(str(getattr(use, name)) for use in at) + " |")
    print()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batches", type=int, default=10_000)
    batches = parser.parse_args().batches
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = pyspark_kgroup.python()
    os.environ["PYTHONSAFEPATH"] = "1"  # the soak is of the wheel
    with tempfile.TemporaryDirectory() as folder, ApacheKafka() as kafka:
        spark = (
            SparkSession.builder.master("local[2]")
            .config("spark.ui.enabled", "false")
            .config("spark.driver.host", "127.0.0.1")
            .config("spark.driver.bindAddress", "127.0.0.1")
            .config("spark.sql.adaptive.enabled", "false")  # its pools have a thread for each query of a minute
            .getOrCreate()
        )
        spark.sparkContext.setLogLevel("ERROR")
        try:
            seen = run(spark, kafka, batches, Path(folder))
        finally:
            spark.stop()
    table(seen)
    found = [leak for kind, moments in seen.items() for leak in leaks(kind, moments)]
    print("\n".join(f"LEAK {leak}" for leak in found) or "nothing leaks")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
