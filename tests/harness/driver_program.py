"""The program of a driver process under test: one kgroup query, until its standard input ends.

Started by `harness.application`, with a folder that holds `application.json`. Needs no module of the harness but the
stop points, which are on its PYTHONPATH.
"""

import json
import os
import select
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery
from sitecustomize import reach


class Progress:
    """Appends each progress of a query to a file, one JSON object per line.

    It asks the query, for PySpark's listener takes 0.2 s of CPU for each event (measured): it passes each collection of
    the event from Java, and looks 14 classes up by name for the Java exception at each end.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._newest = ""

    def note(self, query: StreamingQuery) -> None:
        last = query.lastProgress
        if last is None or last.json == self._newest:
            return
        reports = [each.json for each in query.recentProgress]
        fresh = reports[reports.index(self._newest) + 1 :] if self._newest in reports else reports
        with self._path.open("a") as file:
            file.writelines(f"{json.dumps(json.loads(report))}\n" for report in fresh)
        self._newest = reports[-1]


def keyed_by_batch(folder: Path) -> Callable[[DataFrame, int], None]:
    """A foreachBatch sink with the batch id as key: a later attempt at a batch replaces an earlier one, whole."""
    folder.mkdir(exist_ok=True)

    def write(frame: DataFrame, batch_id: int) -> None:
        unfinished = folder / f".{batch_id}"
        pq.write_table(frame.toArrow(), unfinished)
        os.replace(unfinished, folder / f"batch-{batch_id}.parquet")
        reach("after sink, before commit log")

    return write


SHUFFLED_PARTITIONS = 12
"""More than cores: the last of them are fetched long after the first."""


def after_shuffle(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Passes rows on. Its first task stands at the point "after shuffle" before it has taken all of its rows."""
    for batch in batches:
        reach("after shuffle")
        yield batch


def start(spark: SparkSession, folder: Path, settings: dict[str, Any]) -> StreamingQuery:
    frame = spark.readStream.format("kgroup").options(**settings["read"]).load()
    rows = frame.select("topic", "partition", "offset", "value")
    if settings["shuffles"]:
        rows = rows.repartition(SHUFFLED_PARTITIONS, "partition", "offset").mapInArrow(after_shuffle, rows.schema)
    writer = rows.writeStream
    if settings["sink"] == "files":
        writer = writer.format("parquet").option("path", str(folder / "sink"))
    else:
        writer = writer.foreachBatch(keyed_by_batch(folder / "sink"))
    trigger = settings["trigger"]
    when = {"availableNow": True} if trigger == "availableNow" else {"processingTime": trigger}
    return writer.option("checkpointLocation", str(folder / "checkpoint")).trigger(**when).start()


_TOO_BUSY = "worker failed to connect back"
"""Spark gives a Python process 10 s to start (PythonWorkerFactory): too short on a busy machine."""


def run(spark: SparkSession, folder: Path, settings: dict[str, Any]) -> None:
    """One query to its end, and again if it could not start because the machine is too busy."""
    while True:
        try:
            return watch(start(spark, folder, settings), Progress(folder / "progress.jsonl"))
        except StreamingQueryException as error:
            if _TOO_BUSY not in str(error):
                raise


def watch(query: StreamingQuery, progress: Progress) -> None:
    """Wait until the query ends, with its error if it failed, or stop it when our standard input ends."""
    while query.isActive:
        progress.note(query)
        if select.select([sys.stdin], [], [], 0.1)[0]:
            query.stop()
    progress.note(query)
    if (error := query.exception()) is not None:
        raise error


def main(folder: Path) -> None:
    settings = json.loads((folder / "application.json").read_text())
    builder = SparkSession.builder.master(settings["master"]).appName(folder.name)
    for name, value in settings["conf"].items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("WARN")
    try:
        run(spark, folder, settings)
    except Exception as error:
        (folder / "failure.txt").write_text(str(error))
        raise
    finally:
        spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
