"""`python -m bench_assign`: our sticky assignor beside Java's, on the same groups.

Each case runs in a process of its own, ours and then Java's, a few times: a leader's first rebalance is a cold one.
Java runs as a single source file with Kafka's own jars. A Markdown table comes on stdout, progress on stderr.
"""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from harness.measuring import Problem, problems_told
from rich.console import Console

from bench_assign.cases import CASES, Case, Measured, Run
from bench_assign.table import machine, table
from spark_kgroup.testing.java import find_java
from spark_kgroup.testing.kafka_jars import kafka_jars

HERE = Path(__file__).parent
JAVA_HEAP = "3g"  # twice the need of the million partitions

EXAMPLES = """Examples:

    make bench-assign

    make bench-assign BENCH="--only million --repetitions 5"

    make bench-assign BENCH="--java-timeout-s 600" >measured.txt
"""

console = Console(highlight=False, stderr=True, soft_wrap=True)
app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode="markdown")

Only = StrEnum("Only", [case.name for case in CASES])  # type: ignore[misc]  # its members are computed


def ours(case: Case, repetitions: int) -> Measured:
    """Our assignor, in a process of its own."""
    found = _measure([sys.executable, "-P", "-m", "bench_assign.ours", case.name, str(repetitions)], "", None)
    assert found is not None
    return found


def java(case: Case, repetitions: int, timeout_s: float) -> Measured | None:
    """Java's, None if it took longer than `timeout_s`."""
    counts = (case.topics, case.partitions, case.leavers, repetitions)
    classes = os.pathsep.join(map(str, kafka_jars()))
    command = [
        str(find_java().executable),
        f"-Xmx{JAVA_HEAP}",
        "-cp",
        classes,
        str(HERE / "JavaAssignor.java"),
        *map(str, counts),
    ]
    return _measure(command, "".join(" ".join(map(str, wanted)) + "\n" for wanted in case.wanted()), timeout_s)


def _measure(command: Sequence[str], lines: str, timeout_s: float | None) -> Measured | None:
    """The runs that a program prints."""
    try:
        done = subprocess.run(command, input=lines, capture_output=True, text=True, timeout=timeout_s, check=False)
    except subprocess.TimeoutExpired:
        return None
    if done.returncode:
        raise Problem.of(command[0], done.stderr)
    runs = [json.loads(line) for line in done.stdout.splitlines()]
    return Measured([Run.of(run) for run in runs], max(run["peak_mib"] for run in runs))


@app.command(epilog=EXAMPLES)
def main(
    only: Annotated[list[Only] | None, typer.Option(help="Which groups. Repeatable.")] = None,
    repetitions: Annotated[int, typer.Option(min=1, help="Runs in each process; the first one is a cold one.")] = 4,
    java_timeout_s: Annotated[float, typer.Option(min=1, help="How long Java may take for all runs of a group.")] = 300,
) -> None:
    """Compare our cooperative-sticky assignor with Java's on this machine: time, memory, balance and moves."""
    on_machine = machine()
    cases = [case for case in CASES if case.name in (only or list(Only))]
    measured: dict[Case, tuple[Measured, Measured | None]] = {}
    with problems_told(console):
        for case in cases:
            with console.status(f"{case}: ours"):
                mine = ours(case, repetitions)
            console.print(f"{case}: ours {_in_short(mine)}")
            with console.status(f"{case}: Java's"):
                theirs = java(case, repetitions, java_timeout_s)
            console.print(f"{case}: Java's {_in_short(theirs) if theirs else f'took more than {java_timeout_s:g} s'}")
            measured[case] = mine, theirs
    typer.echo(f"{on_machine}\n\n{table(measured, java_timeout_s)}\n")


def _in_short(measured: Measured) -> str:
    return ", ".join(f"new {run.fresh_s:.2f} s, left {run.left_s:.2f} s" for run in measured.runs)


if __name__ == "__main__":
    app()
