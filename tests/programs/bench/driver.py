"""One Spark driver for one source, which runs queries on demand: `python -m bench.driver SOURCE SOCKET FOLDER JAR...`.

Each source has a driver, and so a JVM, of its own: neither inherits the other's garbage or compiled code. They get
their queries one after the other, so only one of them works at a time.
"""

import os
import sys
import time
from collections.abc import Callable
from multiprocessing.connection import Client, Connection
from pathlib import Path
from typing import Any
from uuid import uuid4

from harness.processes import WORKERS, forget_peak, sidecar_processes, spark_processes, use_of
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import DataStreamWriter, StreamingQuery

from bench.ceiling import Ceiling
from bench.results import BUILT_IN, BUILT_IN_TUNED, CEILING, OURS, OURS_TUNED
from bench.workload import Shape

CORES = 2

TRIGGER = "200 milliseconds"

READ_TIMEOUT_S = 120
"""Until the first record is read, and until all are. Measured: 1 to 5 s."""


TUNING = {
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.buffer.size": "1048576",
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
}
"""Unix sockets between JVM and Python with a larger buffer (Spark 4.1), and a checkpoint that is written without a
process of its own for each file, which only suits local file systems."""


def session(source: str, folder: Path, jars: list[str]) -> SparkSession:
    """The same settings for every source, and more for a tuned one."""
    os.environ["PYSPARK_DRIVER_PYTHON"] = os.environ["PYSPARK_PYTHON"]
    builder = SparkSession.builder.master(f"local[{CORES}]").appName("bench")
    settings = {
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.jars": ",".join(jars),
        "spark.local.dir": str(folder),
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.sql.shuffle.partitions": str(CORES),
        "spark.sql.streaming.numRecentProgressUpdates": "10000",
    }
    if source in (BUILT_IN_TUNED, OURS_TUNED):
        settings |= TUNING
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    spark.dataSource.register(Ceiling)
    return spark


class Queries:
    """Queries of one source."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self._spark = spark
        self._folder = folder

    def drain(self, source: str, bootstrap: str, topic: str, shape: Shape) -> dict[str, Any]:
        """Read the whole topic into noop: seconds from start to end, Spark's progress of each batch, peaks in KiB."""
        for pid in spark_processes(WORKERS):
            forget_peak(pid)
        name = uuid4().hex
        writer = self._writer(source, bootstrap, topic, name, shape).format("noop")
        writer = (
            writer.trigger(processingTime="0 seconds") if shape.batch_records else writer.trigger(availableNow=True)
        )
        began = time.monotonic()
        query = writer.start()
        try:
            if shape.batch_records:
                _await(query, lambda: _rows(query) >= shape.records)
            else:
                query.awaitTermination()
            seconds = time.monotonic() - began
            peaks = {"worker": _peak(spark_processes(WORKERS)), "server": _peak(sidecar_processes())}
        finally:
            query.stop()
        return {"seconds": seconds, "progress": [_plain(each) for each in query.recentProgress], "peaks": peaks}

    def follow(self, source: str, bootstrap: str, topic: str, connection: Connection) -> dict[str, Any]:
        """Read records as they are produced: (produced at, at the sink at) of every record, in ns since the epoch.

        1. Says that the query runs, when the first record is there. 2. Hears how many records there are in all, when
        all are sent. 3. Ends when they are read.
        """
        seen: list[tuple[int, int]] = []

        def sink(frame: DataFrame, _: int) -> None:
            values = [row.value for row in frame.select("value").collect()]
            now = time.time_ns()
            seen.extend((int(value), now) for value in values)

        writer = self._writer(source, bootstrap, topic, uuid4().hex).foreachBatch(sink).trigger(processingTime=TRIGGER)
        query = writer.start()
        try:
            _await(query, lambda: bool(seen))
            connection.send("runs")
            records = connection.recv()
            _await(query, lambda: len(seen) >= records)
        finally:
            query.stop()
        return {"records": seen, "progress": [_plain(each) for each in query.recentProgress]}

    def _writer(
        self, source: str, bootstrap: str, topic: str, name: str, shape: Shape | None = None
    ) -> DataStreamWriter:
        """A query of this name, which is its group's, too."""
        if source == CEILING:
            assert shape is not None, "there is no ceiling for what is produced meanwhile"
            options: dict[str, str | int] = {"records": shape.records, "valueBytes": shape.value_bytes, "tasks": CORES}
            options["batchRecords"] = shape.batch_records or shape.records
        else:
            options = {"kafka.bootstrap.servers": bootstrap, "subscribe": topic, "startingOffsets": "earliest"}
            if shape is not None and shape.batch_records:
                options["maxOffsetsPerTrigger"] = shape.batch_records
            if source not in (BUILT_IN, BUILT_IN_TUNED):
                options |= {"kafka.group.id": name, "members": CORES}
                options["reader"] = OURS if source == OURS_TUNED else source
        kind = {CEILING: CEILING, BUILT_IN: BUILT_IN, BUILT_IN_TUNED: BUILT_IN}.get(source, "kgroup")
        reader = self._spark.readStream.format(kind).options(**options)
        return reader.load().writeStream.option("checkpointLocation", str(self._folder / f"checkpoint-{name}"))


def _await(query: StreamingQuery, condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + READ_TIMEOUT_S
    while not condition():
        if (error := query.exception()) is not None:
            raise error
        if time.monotonic() > deadline:
            raise TimeoutError(f"Records are missing after {READ_TIMEOUT_S} s.")
        time.sleep(0.05)


def _rows(query: StreamingQuery) -> int:
    return sum(progress.numInputRows for progress in query.recentProgress)


def _peak(pids: set[int]) -> int:
    """The peak of the largest of them, in KiB, or 0 if there is none."""
    return max((use.peak for pid in pids if (use := use_of(pid)) is not None), default=0)


def _jvm(spark: SparkSession) -> Any:
    """py4j's view of the driver's JVM, or None in Spark Connect alone."""
    return spark._jvm


def _plain(progress: Any) -> dict[str, Any]:
    return {"rows": progress.numInputRows, "phases_ms": dict(progress.durationMs)}


def serve(connection: Connection, source: str, folder: Path, jars: list[str]) -> None:
    """Run requests from the connection until it ends: ("drain" or "follow", its arguments) -> its result."""
    spark = session(source, folder, jars)
    queries = Queries(spark, folder)
    connection.send(int(_jvm(spark).java.lang.ProcessHandle.current().pid()))
    while True:
        try:
            name, arguments = connection.recv()
        except EOFError:
            return
        if name == "drain":
            connection.send(queries.drain(*arguments))
        else:
            source, bootstrap, topic = arguments
            connection.send(queries.follow(source, bootstrap, topic, connection))


if __name__ == "__main__":
    with Client(sys.argv[2], "AF_UNIX") as connection:
        serve(connection, sys.argv[1], Path(sys.argv[3]), sys.argv[4:])
