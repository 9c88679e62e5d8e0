"""`python -m bench_tasks`: a slow operator behind a topic of few partitions, with and without more tasks.

One Spark in local mode drains the same topic with each source, in turn. The operator sleeps for each row, as one that
asks a service would. The table comes as Markdown on stdout, progress on stderr.
"""

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import pyarrow as pa
import typer
from harness.connector import connector_jars
from harness.kafka import produce
from harness.measuring import AT_FULL_SPEED, heed_only_the_first_stop, problems_told
from pyspark.sql import SparkSession
from rich.console import Console

import pyspark_kgroup
from spark_kgroup.testing import ApacheKafka

TOPIC = "slow"
SOURCES = {
    "kgroup": ("kgroup", {}),
    "kgroup, minPartitions": ("kgroup", {"minPartitions": "TASKS"}),
    "kafka, minPartitions": ("kafka", {"minPartitions": "TASKS"}),
}
"""Name -> (format, options)."""

console = Console(highlight=False, stderr=True, soft_wrap=True)
app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode="markdown")

EXAMPLES = """Examples:

    make bench-tasks

    make bench-tasks BENCH="--rows 40000 --partitions 1 --cores 8"
"""


def sleeping(row_ms: float) -> object:
    """An operator that takes so long for each row."""

    def slow(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            time.sleep(batch.num_rows * row_ms / 1000)
            yield batch

    return slow


def drain(spark: SparkSession, source: str, read: dict[str, str], row_ms: float, folder: Path) -> float:
    """How long a query takes that reads all there is, from its start to its end, in s."""
    frame = spark.readStream.format(source).options(**read).load().select("value")
    slow = frame.mapInArrow(sleeping(row_ms), "value binary")  # type: ignore[arg-type]
    begun_s = time.monotonic()
    query = slow.writeStream.format("noop").option("checkpointLocation", str(folder)).trigger(availableNow=True).start()
    query.awaitTermination()
    return time.monotonic() - begun_s


def measure(rows: int, partitions: int, cores: int, row_ms: float, repetitions: int) -> dict[str, list[float]]:
    """How long each source took in each repetition, in s."""
    os.environ["PYSPARK_PYTHON"] = pyspark_kgroup.python()
    os.environ["PYTHONSAFEPATH"] = "1"
    jars = connector_jars()
    with tempfile.TemporaryDirectory() as temporary, ApacheKafka(jvm_options=[AT_FULL_SPEED]) as kafka:
        kafka.create_topic(TOPIC, partitions=partitions)
        produce(kafka.bootstrap_servers, TOPIC, rows, partitions=partitions, size=100)
        builder = SparkSession.builder.master(f"local[{cores}]").config("spark.ui.enabled", "false")
        spark = builder.config("spark.jars", ",".join(map(str, jars))).getOrCreate()
        spark.sparkContext.setLogLevel("ERROR")
        took_s: dict[str, list[float]] = {name: [] for name in SOURCES}
        for repetition in range(repetitions + 1):
            for name, (source, more) in SOURCES.items():
                number = f"{repetition}-{len(took_s[name])}-{source}-{len(more)}"
                ours = {"kafka.group.id": f"group-{number}", "members": str(partitions)} if source == "kgroup" else {}
                read = {
                    "kafka.bootstrap.servers": kafka.bootstrap_servers,
                    "subscribe": TOPIC,
                    "startingOffsets": "earliest",
                    **ours,
                    **{option: value.replace("TASKS", str(cores)) for option, value in more.items()},
                }
                seconds = drain(spark, source, read, row_ms, Path(temporary) / number)
                console.print(f"{repetition or 'warm-up'}: {name} {seconds:.1f} s")
                if repetition:
                    took_s[name].append(seconds)
        spark.stop()
    return took_s


@app.command(epilog=EXAMPLES)
def main(
    rows: Annotated[int, typer.Option(min=1, help="Records in the topic.")] = 40_000,
    partitions: Annotated[int, typer.Option(min=1, help="Of the topic, and seats of the group.")] = 2,
    cores: Annotated[int, typer.Option(min=1, help="Tasks that run at once, and minPartitions.")] = 4,
    row_ms: Annotated[float, typer.Option(min=0, help="How long the operator takes for a row.")] = 1.0,
    repetitions: Annotated[int, typer.Option(min=1, help="Of each source, after one to warm up.")] = 3,
) -> None:
    """Drain a topic through a slow operator: kgroup as it is, with minPartitions, and format("kafka") with the same."""
    heed_only_the_first_stop()
    with problems_told(console):
        took_s = measure(rows, partitions, cores, row_ms, repetitions)
    base_s = statistics.median(took_s["kgroup"])
    lines = ["| source | median, s | rows/s | faster than kgroup without |", "|---|---|---|---|"]
    for name, each in took_s.items():
        median_s = statistics.median(each)
        lines.append(f"| {name} | {median_s:.1f} | {rows / median_s:,.0f} | {base_s / median_s:.2f} |")
    sys.stdout.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    app()
