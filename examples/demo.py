"""`make demo`: a real Kafka, real data, a Spark stream that is a consumer group, and that group as Kafka shows it.

Starts Apache Kafka (fetched once, 45 MB), runs `flights.py` on it, and while the query still runs asks Kafka's own
command-line tool for the group. No process and no file of it is left afterwards, nor after Ctrl-C.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import flights
import typer
from rich import box
from rich.table import Table
from terminal import as_program, console, step

from spark_kgroup.testing import ApacheKafka
from spark_kgroup.testing.class_archive import prepare_kafka
from spark_kgroup.testing.group_tool import PartitionRow
from spark_kgroup.testing.kafka_release import kafka_version

TOPIC = GROUP = "flights"
SEATS = 4

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command(epilog="Example:\n\npython examples/demo.py --rows 50000")
def main(
    rows: Annotated[int, typer.Option(min=1, max=flights.ALL_ROWS, help="How many flights.")] = flights.ALL_ROWS,
) -> None:
    """Stream New York's flights of 2013 through a consumer group on a Kafka of its own."""
    began = time.monotonic()
    console.print(
        f"[bold]{rows:,} flights, {flights.PARTITIONS} partitions, {SEATS} seats, one consumer group[/bold]\n"
    )
    with as_program(), ExitStack() as things:
        try:
            _run(rows, things)
        finally:
            console.print("Stopping the query, Spark and Kafka")
    console.print(f"Done: {time.monotonic() - began:.0f} s in all, and no process or file of it is left.")


def _run(rows: int, things: ExitStack) -> None:
    """The demo up to its end. `things` ends all that it starts."""
    folder = things.enter_context(tempfile.TemporaryDirectory(prefix="kgroup-", ignore_cleanup_errors=True))
    prepare_kafka()  # shows its own progress the first time
    with step(f"Starting Apache Kafka {kafka_version()}"):
        kafka = things.enter_context(ApacheKafka())
    client = flights.client_config(kafka.bootstrap_servers)
    with step("Reading the file"):
        table = flights.read_flights(rows)
    flights.publish(table, client, TOPIC)
    with step("Starting Spark"):
        spark = things.enter_context(flights.spark_session(Path(folder)))
    options = flights.kgroup_options(kafka.bootstrap_servers, TOPIC, GROUP, SEATS, flights.ROWS_PER_BATCH)
    query = things.enter_context(flights.running_query(spark, options, f"{folder}/checkpoint"))
    lag = things.enter_context(flights.Lag(client, TOPIC, GROUP))
    flights.await_drained(query, len(table), lag)
    flights.show_comparison(flights.delays_in(spark.table(flights.DELAYS)), flights.delays_by_pandas(table))
    show_group(kafka)


def show_group(kafka: ApacheKafka) -> None:
    """Print the group as Kafka's own command-line tool describes it: every number in these tables is Kafka's."""
    console.print()
    with step("Asking Kafka's own kafka-consumer-groups while the query runs"):
        state = kafka.describe_group_state(GROUP)
        rows = kafka.describe_group(GROUP)
    console.print(
        f"Group {GROUP} is {state.state}: {state.member_count} members, assignor {state.assignor}, "
        f"coordinator {state.coordinator}",
        soft_wrap=True,
    )
    console.print(_members_table(rows))
    console.print(_offsets_table(rows))


def _members_table(rows: Sequence[PartitionRow]) -> Table:
    owned: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        owned.setdefault((row.instance_id or "-", row.member_id or "-"), []).append(str(row.partition))
    table = _table("--describe --members --verbose")
    for heading in ("instance id", "member id", "partitions"):
        table.add_column(heading, no_wrap=True)
    for (instance_id, member_id), partitions in sorted(owned.items()):
        table.add_row(instance_id, member_id, ", ".join(partitions))
    return table


def _offsets_table(rows: Sequence[PartitionRow]) -> Table:
    table = _table("--describe --offsets")
    table.add_column("topic")
    for heading in ("partition", "committed", "log end", "lag"):
        table.add_column(heading, justify="right")
    table.add_column("instance id")
    for row in rows:
        offsets = ("-" if each is None else f"{each:,}" for each in (row.current_offset, row.log_end_offset, row.lag))
        table.add_row(row.topic, str(row.partition), *offsets, row.instance_id or "-")
    return table


def _table(arguments: str) -> Table:
    return Table(box=box.SIMPLE_HEAD, title=f"kafka-consumer-groups {arguments}", title_justify="left")


if __name__ == "__main__":
    app()
