"""`python -m bench_scale`: the costs that grow with partitions, seats and executors, and how much.

The driver's half runs on a real Kafka, each size in a process of its own. Executors above three are simulated: the
registry's own bookkeeping, and Spark's placement of tasks. Tables in Markdown come on stdout, progress on stderr.
"""

import json
import subprocess
import sys
from contextlib import ExitStack
from typing import Annotated
from uuid import uuid4

import typer
from bench_sessions.measured import machine
from confluent_kafka.admin import AdminClient, NewPartitions
from harness.measuring import AT_FULL_SPEED, Problem, heed_only_the_first_stop, problems_told
from harness.waiting import wait_for
from rich.console import Console

from bench_scale.lasting import lasting_table, watch
from bench_scale.measured import Boundaries, boundaries_table, placement_table
from bench_scale.placement import simulate
from spark_kgroup.testing import ApacheKafka

EXAMPLES = """Examples:

    make bench-scale

    make bench-scale BENCH="--partitions-max 1000 --seats-max 64"

    make bench-scale BENCH="--minutes 60 --partitions-max 100"
"""

SIZES = [(100, 4), (1_000, 4), (1_000, 64), (10_000, 4), (10_000, 64), (10_000, 1_000)]
"""(partitions, seats)."""

LASTING = (10_000, 100)
"""Partitions and seats of the query that runs for long."""

CREATED_AT_ONCE = 5_000

CREATED_S = 600.0
"""How long partitions may take to be there. Measured: 25 s for 10,000, minutes beside other work."""

EXECUTORS = [(3, 4), (30, 4), (300, 4)]
"""(executors, cores of each)."""

SEATS = (4, 64, 1_000)

console = Console(highlight=False, stderr=True, soft_wrap=True)
app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode="markdown")


def create(kafka: ApacheKafka, topic: str, partitions: int) -> None:
    """Create a topic in steps: a controller makes no more than 10,000 records at once (QuorumController)."""
    kafka.create_topic(topic, min(partitions, CREATED_AT_ONCE))
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    for count in range(2 * CREATED_AT_ONCE, partitions + 1, CREATED_AT_ONCE):
        admin.create_partitions([NewPartitions(topic, count)])[topic].result(CREATED_S)
    wait_for(
        lambda: len(admin.list_topics(topic).topics[topic].partitions) == partitions,
        f"{partitions} partitions",
        CREATED_S,
    )


def measure(kafka: ApacheKafka, topic: str, partitions: int, seats: int) -> Boundaries:
    """Measure one size, in a process of its own."""
    arguments = (kafka.bootstrap_servers, topic, partitions, seats)
    command = [sys.executable, "-P", "-m", "bench_scale.boundaries", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise Problem.of(f"{partitions} partitions, {seats} seats", done.stderr)
    return Boundaries(**json.loads(done.stdout))


@app.command(epilog=EXAMPLES)
def main(
    partitions_max: Annotated[int, typer.Option(min=100, help="Leave out sizes with more.")] = 10_000,
    seats_max: Annotated[int, typer.Option(min=4, help="Leave out sizes with more.")] = 1_000,
    minutes: Annotated[
        int, typer.Option(min=0, help="For how long a query of 10,000 partitions and 100 seats runs, every 5 s.")
    ] = 0,
    seed: Annotated[int, typer.Option(help="Of the simulated placement.")] = 1,
) -> None:
    """Measure the costs of a query as partitions, seats and executors grow."""
    on_machine = machine()
    heed_only_the_first_stop()
    sizes = [(partitions, seats) for partitions, seats in SIZES if partitions <= partitions_max and seats <= seats_max]
    with problems_told(console), ExitStack() as things:
        placements = [
            simulate(executors, cores, seats, part, seed)
            for executors, cores in EXECUTORS
            for seats in SEATS
            for part in (1.0, 0.2)
        ]
        with console.status("Starting Kafka"):
            kafka = things.enter_context(ApacheKafka(jvm_options=["-Xmx3g", AT_FULL_SPEED]))
        topics: dict[int, str] = {}
        runs = []
        for partitions, seats in sizes:
            title = f"{partitions:,} partitions, {seats:,} seats"
            with console.status(title):
                if partitions not in topics:
                    topics[partitions] = f"scale-{partitions}-{uuid4().hex[:8]}"
                    create(kafka, topics[partitions], partitions)
                runs.append(measure(kafka, topics[partitions], partitions, seats))
            console.print(f"{title}: {runs[-1].idle_ms:.0f} ms idle, {runs[-1].busy_ms:.0f} ms busy")
        typer.echo(f"{on_machine}\n\n{boundaries_table(runs)}\n\n{placement_table(placements)}\n")
    if minutes:
        # Another broker: one alone bears no 20,000 partitions.
        with problems_told(console), ApacheKafka(jvm_options=["-Xmx3g", AT_FULL_SPEED]) as kafka:
            topic = f"lasting-{uuid4().hex[:8]}"
            create(kafka, topic, LASTING[0])
            seen = watch(kafka, topic, *LASTING, minutes=minutes, show=console.print)
            typer.echo(f"{lasting_table(seen)}\n")


if __name__ == "__main__":
    app()
