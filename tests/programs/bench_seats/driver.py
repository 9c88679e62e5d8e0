"""One Spark driver with one query, until it is killed: `python -m bench_seats.driver FOLDER`.

FOLDER holds settings.json, and gets driver.json (which port executors know it by), batches.jsonl (each partition's
reader in each batch, where that is observed) and progress.jsonl (Spark's progress of each batch).
"""

import json
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import pandas as pd
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import DataStreamWriter, StreamingQueryListener
from pyspark.sql.streaming.listener import QueryProgressEvent

from bench_seats.observed import COLUMNS, SCHEMA, observed


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """One query.

    Attributes:
        source: "kafka" or "kgroup".
        cores: of each executor.
        members: seats of ours.
        observes: whether the sink notes each partition's reader (Arrow behind the source), else records go nowhere.
        maps: whether records go through a mapInPandas behind the source.
        tasks: minPartitions, or 0 for as many tasks as the source makes by itself.
    """

    source: str
    master: str
    bootstrap: str
    topic: str
    group: str
    cores: int
    members: int
    trigger_ms: int
    observes: bool
    maps: bool
    jars: list[str]
    tasks: int = 0


def session(settings: Settings, folder: Path) -> SparkSession:
    """The same for every source. conf/spark-defaults.conf holds the rest."""
    builder = SparkSession.builder.master(settings.master).appName(f"bench-seats {settings.source}")
    more = {
        "spark.executor.cores": str(settings.cores),
        "spark.jars": ",".join(settings.jars),
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
    }
    for name, value in more.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


class Sink:
    """Notes each partition's reader in each batch, and which executors Spark has by then."""

    def __init__(self, spark: SparkSession, file: IO[str]) -> None:
        self._status = spark.sparkContext._jsc.sc().statusStore()
        self._file = file

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        rows = frame.select(*COLUMNS).mapInArrow(observed, SCHEMA).collect()
        at_ms = time.time_ns() // 1_000_000
        reads = [[row.executor, row.partition, row.births_ms] for row in rows]
        say(self._file, {"batch": batch_id, "at_ms": at_ms, "live": self._live(), "reads": reads})

    def _live(self) -> list[str]:
        executors = self._status.executorList(True)
        ids = [executors.apply(index).id() for index in range(executors.size())]
        return [each for each in ids if each != "driver"]


class Progress(StreamingQueryListener):
    """Writes Spark's progress down."""

    def __init__(self, file: IO[str]) -> None:
        self._file = file

    def onQueryStarted(self, event: Any) -> None:
        pass

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        say(self._file, json.loads(event.progress.json))

    def onQueryIdle(self, event: Any) -> None:
        pass

    def onQueryTerminated(self, event: Any) -> None:
        pass


def say(file: IO[str], what: Any) -> None:
    file.write(json.dumps(what) + "\n")
    file.flush()


def unchanged(frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
    """A mapInPandas that changes no row: a Python worker more in every task."""
    yield from frames


def writer(spark: SparkSession, settings: Settings, folder: Path) -> DataStreamWriter:
    reader = spark.readStream.format(settings.source).option("kafka.bootstrap.servers", settings.bootstrap)
    reader = reader.option("subscribe", settings.topic).option("startingOffsets", "earliest")
    if settings.source == "kgroup":
        reader = reader.option("kafka.group.id", settings.group).option("members", settings.members)
    if settings.tasks:
        reader = reader.option("minPartitions", settings.tasks)
    frame = reader.load()
    if settings.maps:
        frame = frame.mapInPandas(unchanged, frame.schema)
    stream = frame.writeStream.option("checkpointLocation", str(folder / "checkpoint"))
    stream = stream.trigger(processingTime=f"{settings.trigger_ms} milliseconds")
    if settings.observes:
        return stream.foreachBatch(Sink(spark, (folder / "batches.jsonl").open("a")))
    return stream.format("noop")


def run(folder: Path) -> None:
    settings = Settings(**json.loads((folder / "settings.json").read_text()))
    spark = session(settings, folder)
    spark.streams.addListener(Progress((folder / "progress.jsonl").open("a")))
    (folder / "driver.json").write_text(json.dumps({"port": int(spark.conf.get("spark.driver.port") or 0)}))
    writer(spark, settings, folder).start().awaitTermination()


if __name__ == "__main__":
    run(Path(sys.argv[1]))
