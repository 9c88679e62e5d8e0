"""`python -m bench_sessions`: many seats in one process on a real Kafka, under both protocols.

Each run has a process of its own. A Markdown table comes on stdout, progress on stderr.
"""

import json
import subprocess
import sys
from contextlib import ExitStack
from typing import Annotated
from uuid import uuid4

import typer
from harness.measuring import AT_FULL_SPEED, Problem, problems_told
from rich.console import Console

from bench_sessions.measured import Cpu, Sessions, machine, table
from spark_kgroup.model import CLASSIC, CONSUMER
from spark_kgroup.testing import ApacheKafka

EXAMPLES = """Examples:

    make bench-sessions

    make bench-sessions BENCH="--seats 100 --partitions 1000"
"""

console = Console(highlight=False, stderr=True, soft_wrap=True)
app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode="markdown")


def measure(kafka: ApacheKafka, protocol: str, seats: int, partitions: int) -> Sessions:
    """One run on a topic of its own."""
    topic = f"sessions-{uuid4().hex[:8]}"
    kafka.create_topic(topic, partitions)
    arguments = (kafka.bootstrap_servers, kafka.nodes[0].pid, topic, protocol, seats, partitions)
    command = [sys.executable, "-P", "-m", "bench_sessions.seats", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise Problem.of(protocol, done.stderr)
    found = json.loads(done.stdout)
    cpu = {name: Cpu(*found[name]) for name in ("starting", "minute", "noticing")}
    return Sessions(**{**found, **cpu})


@app.command(epilog=EXAMPLES)
def main(
    seats: Annotated[int, typer.Option(min=1, help="Static members in one process.")] = 1_000,
    partitions: Annotated[int, typer.Option(min=1, help="As many as seats are added later.")] = 2_000,
) -> None:
    """Measure the costs of many sessions of one process: their start, a minute at rest, and added partitions."""
    on_machine = machine()
    runs = []
    with problems_told(console), ExitStack() as things:
        with console.status("Starting Kafka"):
            kafka = things.enter_context(ApacheKafka(jvm_options=["-Xmx2g", AT_FULL_SPEED]))
        for protocol in (CLASSIC, CONSUMER):
            with console.status(f"{protocol}: {seats:,} seats"):
                runs.append(measure(kafka, protocol, seats, partitions))
            console.print(f"{protocol}: all have their share after {runs[-1].started_s:.1f} s")
    typer.echo(f"{on_machine}\n\n{table(runs)}\n")


if __name__ == "__main__":
    app()
