"""A Spark standalone cluster whose executors are the members of a consumer group, and which of them serves which seat.

Starts one master and some workers on this machine, with the files of `conf/`, runs the stream of `flights.py` on them,
and prints which executor serves which seat. Without `--bootstrap-server` it starts a Kafka, too. No process and no file
of it is left afterwards, nor after Ctrl-C.

On a cluster of yours: install the wheel for the Python of every worker and of the driver, and submit `flights.py`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import ExitStack
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import flights
import typer
from rich import box
from rich.table import Table
from terminal import as_program, console, step

from spark_kgroup.testing import ApacheKafka
from spark_kgroup.testing.class_archive import prepare_kafka
from spark_kgroup.testing.kafka_release import kafka_version
from spark_kgroup.testing.spark_cluster import SparkCluster, spark_environment

CONF = Path(__file__).parents[1] / "conf"

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command(
    epilog="Examples:\n\npython examples/standalone.py --rows 50000\n\n"
    "python examples/standalone.py --bootstrap-server 127.0.0.1:9092 --workers 3 --seats 6"
)
def main(
    bootstrap_server: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="A Kafka broker. By default one is started.")
    ] = None,
    topic: Annotated[
        str, typer.Option(help="Created if it does not exist. If it does, it must hold these rows.")
    ] = "flights",
    group: Annotated[str, typer.Option(help="The consumer group.")] = "flights",
    workers: Annotated[int, typer.Option(min=1, max=100, help="Each has an address and one executor.")] = 2,
    seats: Annotated[int, typer.Option(min=1, help="Static members of the group.")] = 4,
    rows: Annotated[int, typer.Option(min=1, max=flights.ALL_ROWS, help="How many flights.")] = flights.ALL_ROWS,
    rows_per_batch: Annotated[int, typer.Option(min=1, help="Most rows in a micro-batch.")] = flights.ROWS_PER_BATCH,
) -> None:
    """Stream New York's flights of 2013 on a Spark cluster of its own, and show which executor serves which seat."""
    began = time.monotonic()
    with as_program(), ExitStack() as things:
        folder = Path(things.enter_context(tempfile.TemporaryDirectory(prefix="kgroup-", ignore_cleanup_errors=True)))
        try:
            bootstrap = bootstrap_server or _kafka(things)
            cluster = _cluster(things, folder, workers)
            options = flights.kgroup_options(bootstrap, topic, group, seats, rows_per_batch)
            _run(things, folder, cluster, options, rows)
        finally:
            console.print("Stopping Spark and Kafka")
    console.print(f"Done: {time.monotonic() - began:.0f} s in all, and no process or file of it is left.")


def _kafka(things: ExitStack) -> str:
    prepare_kafka()  # shows its own progress the first time
    with step(f"Starting Apache Kafka {kafka_version()}"):
        return things.enter_context(ApacheKafka()).bootstrap_servers


def _cluster(things: ExitStack, folder: Path, workers: int) -> SparkCluster:
    with step(f"Starting a Spark master and {workers} workers"):
        cluster = things.enter_context(SparkCluster(folder, CONF))
        cluster.start_workers(*(f"127.0.0.{number}" for number in range(2, workers + 2)))
    return cluster


def _run(things: ExitStack, folder: Path, cluster: SparkCluster, options: Mapping[str, str], rows: int) -> None:
    """The stream up to its end. `things` ends all that it starts."""
    client, topic = flights.client_config(options["kafka.bootstrap.servers"]), options["subscribe"]
    with step("Reading the file"):
        table = flights.read_flights(rows)
    flights.publish(table, client, topic)
    with step(f"Starting Spark's driver on {cluster.master_url}"):
        os.environ.update(spark_environment(folder, CONF))
        spark = things.enter_context(flights.spark_session(folder, cluster.master_url))
    query = things.enter_context(flights.running_query(spark, options, f"{folder}/checkpoint"))
    lag = things.enter_context(flights.Lag(client, topic, options["kafka.group.id"]))
    flights.await_drained(query, len(table), lag)
    flights.show_comparison(flights.delays_in(spark.table(flights.DELAYS)), flights.delays_by_pandas(table))
    console.print(_seats_table(_seats(options["kafka.bootstrap.servers"], options["kafka.group.id"])))


def _seats(server: str, group: str) -> Mapping[str, Any]:
    """Instance id of a seat -> its member with the executor that serves it, as `kgroup describe` finds it in Kafka."""
    kgroup = Path(sys.executable).with_name("kgroup")
    command = [str(kgroup), "describe", "--bootstrap-server", server, "--group", group, "--json"]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return {member["instance_id"]: member for member in json.loads(output)["members"]}


def _seats_table(seats: Mapping[str, Any]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, title="Which executor serves which seat", title_justify="left")
    for heading in ("seat", "executor", "host", "since", "warm"):
        table.add_column(heading, no_wrap=True)
    for seat, found in sorted(seats.items()):
        since = f"{datetime.fromisoformat(found['since']).astimezone():%H:%M:%S}" if found["since"] else "-"
        table.add_row(seat, found["executor"] or "-", found["host"] or "-", since, "yes" if found["warm"] else "no")
    return table


if __name__ == "__main__":
    app()
