"""`python -m bench`: the built-in Kafka source and ours on the same topics of one broker, in turn.

Starts a Kafka, and for each source a Spark driver of its own: the built-in one, ours with either reader, both with
other settings of Spark ("tuned"), and one that only repeats ready rows, the ceiling. Every query is run once to warm
up, then in interleaved repetitions, so that other work of the machine meets all. Tables come as Markdown on stdout,
progress on stderr. No process is left, nor after Ctrl-C.
"""

import os
import socket
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from enum import StrEnum
from multiprocessing.connection import Connection
from pathlib import Path
from threading import Event
from typing import Annotated, Any, Self

import typer
from harness.connector import CONNECTOR_VERSION, connector_jars
from harness.measuring import AT_FULL_SPEED, Problem, heed_only_the_first_stop, problems_told
from rich.console import Console

import pyspark_kgroup
from bench.cpu import Cpu, cpu_seconds
from bench.driver import TRIGGER
from bench.results import CEILING, SOURCES, TITLES, Drained, Followed, summed
from bench.tables import cpu, latency, machine, memory, micro_batches, throughput, where_time_goes
from bench.workload import PARTITIONS, QUICK_SHAPES, SHAPES, Paced, Shape, fill
from spark_kgroup.testing import ApacheKafka
from spark_kgroup.testing.watchdog import ProcessGuard

RECORDS_A_SECOND = 1_000
LATENCY_TOPIC = "latency"
START_POLL_S = 0.2

EXAMPLES = """Examples:

    make bench

    make bench BENCH="--quick"

    make bench BENCH="--only small --only lz4 --source kafka --source native --repetitions 9"

    make bench >measured.txt

    PYSPARK_PYTHON=$PWD/.venv-spark-4.3.0/bin/python make bench
"""

console = Console(highlight=False, stderr=True, soft_wrap=True)
app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode="markdown")

# mypy cannot know members that are computed.
What = StrEnum("What", [*(shape.name for shape in SHAPES), LATENCY_TOPIC])  # type: ignore[misc]
Source = StrEnum("Source", list(SOURCES))  # type: ignore[misc]


class Driver:
    """A Spark driver for one source, in a process of its own. A context manager."""

    def __init__(self, source: str, kafka: ApacheKafka, folder: Path, jars: list[Path]) -> None:
        self.source = source
        self._kafka = kafka
        self._folder = folder / source
        self._folder.mkdir()
        self._jars = jars
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        """Start the process; `await_ready` waits for it."""
        with self._stack:
            guard = ProcessGuard()
            self._stack.callback(guard.close)
            self._listener = self._stack.enter_context(socket.socket(socket.AF_UNIX))
            self._listener.bind(str(self._folder / "socket"))
            self._listener.listen()
            self._listener.settimeout(START_POLL_S)
            log = self._stack.enter_context((self._folder / "log").open("wb"))
            command: list[str | Path] = [sys.executable, "-m", "bench.driver", self.source]
            command += [self._folder / "socket", self._folder, *self._jars]
            self._process = guard.popen(command, stdout=log, stderr=subprocess.STDOUT, environment=self._environment())
            self._stack = self._stack.pop_all()
        return self

    def await_ready(self) -> None:
        """Wait until the driver has its session."""
        self._connection = self._stack.enter_context(self._accept())
        self._jvm = self._hear()

    def _accept(self) -> Connection:
        while True:
            try:
                accepted, _ = self._listener.accept()
                return Connection(accepted.detach())
            except TimeoutError:
                if self._process.poll() is not None:
                    raise self._ended() from None

    def _environment(self) -> dict[str, str]:
        return {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(map(str, Path(__file__).parents[1:3])),
            "TMPDIR": str(self._folder),
        }

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def drain(self, topic: str, shape: Shape) -> Drained:
        """Read the topic once."""
        before = self._cpu()
        self._connection.send(("drain", (self.source, self._kafka.bootstrap_servers, topic, shape)))
        result = self._hear()
        cpu = self._cpu().since(before)
        rows = sum(batch["rows"] for batch in result["progress"])
        if rows != shape.records:
            raise Problem(f"{TITLES[self.source]} read {rows:,} of {shape.records:,} records of {topic}.")
        batches_ms = [batch["phases_ms"] for batch in result["progress"] if batch["rows"]]
        peaks = result["peaks"]
        return Drained(rows, result["seconds"], cpu, batches_ms, peaks["worker"], peaks["server"])

    def follow(self, topic: str, warm_up_s: float, measured_s: float) -> Followed:
        """Read the topic while no record is written, and then while records are.

        Of either time the first `warm_up_s` seconds do not count.
        """
        paced = Paced(self._kafka.bootstrap_servers, topic, RECORDS_A_SECOND)
        for _ in range(PARTITIONS):
            paced.send()
        self._connection.send(("follow", (self.source, self._kafka.bootstrap_servers, topic)))
        self._hear()
        idle = self._cpu_of(warm_up_s, measured_s)
        with paced:
            cpu = self._cpu_of(warm_up_s, measured_s)
        self._connection.send(paced.sent)
        result = self._hear()
        began_ns = max(born for born, _ in result["records"]) - int(measured_s * 1e9)
        latencies_ms = [(seen - born) / 1e6 for born, seen in result["records"] if born > began_ns]
        busy = [batch["phases_ms"] for batch in result["progress"] if batch["rows"]]
        mean = {phase: total / len(busy) for phase, total in summed(busy).items()}
        return Followed(latencies_ms, cpu, idle, mean)

    def _cpu_of(self, warm_up_s: float, measured_s: float) -> Cpu:
        """The CPU used in the seconds that are measured, after those to warm up."""
        Event().wait(warm_up_s)
        before = self._cpu()
        Event().wait(measured_s)
        return self._cpu().since(before)

    def _hear(self) -> Any:
        try:
            return self._connection.recv()
        except EOFError:
            raise self._ended() from None

    def _ended(self) -> Problem:
        last_lines = (self._folder / "log").read_text(errors="replace").splitlines()[-20:]
        return Problem("\n  ".join([f"The driver of {TITLES[self.source]} ended:", *last_lines]))

    def _cpu(self) -> Cpu:
        return cpu_seconds(self._kafka.nodes[0].pid, self._jvm)


class Bench:
    """The measurements on one Kafka.

    Args:
        repetitions: of each, beside one to warm up.
    """

    def __init__(self, kafka: ApacheKafka, drivers: list[Driver], repetitions: int) -> None:
        self._kafka = kafka
        self._drivers = drivers
        self._repetitions = repetitions

    def drain(self, shape: Shape) -> dict[str, list[Drained]]:
        """Fill a topic, and let every source read it in turn."""
        with console.status(f"Filling a topic with {shape}"):
            self._kafka.create_topic(shape.name, PARTITIONS)
            fill(self._kafka.bootstrap_servers, shape.name, shape)
        found: defaultdict[str, list[Drained]] = defaultdict(list)
        for repetition in range(self._repetitions + 1):
            for driver in self._drivers:
                title = f"{shape}, {TITLES[driver.source]}, {_named(repetition)}"
                with console.status(title):
                    drained = driver.drain(shape.name, shape)
                console.print(f"{title}: {drained.batches_s:.2f} s, {drained.seconds:.2f} s with start")
                if repetition:
                    found[driver.source].append(drained)
        return found

    def follow(self, warm_up_s: float, measured_s: float) -> dict[str, list[Followed]]:
        """Let every source in turn read a topic while it is written."""
        found: defaultdict[str, list[Followed]] = defaultdict(list)
        for repetition in range(self._repetitions):
            for driver in self._drivers:
                if driver.source == CEILING:
                    continue
                topic = f"{LATENCY_TOPIC}-{driver.source}-{repetition}"
                self._kafka.create_topic(topic, PARTITIONS)
                with console.status(f"{TITLES[driver.source]}: {RECORDS_A_SECOND:,} records/s"):
                    followed = driver.follow(topic, warm_up_s, measured_s)
                console.print(
                    f"latency, {TITLES[driver.source]}, {_named(repetition + 1)}: "
                    f"p50 {followed.p50_ms:.0f} ms, p99 {followed.p99_ms:.0f} ms"
                )
                found[driver.source].append(followed)
        return found


def _named(repetition: int) -> str:
    return f"run {repetition}" if repetition else "warm-up"


@app.command(epilog=EXAMPLES)
def main(
    quick: Annotated[bool, typer.Option("--quick", help="A hundredth of the records, one repetition.")] = False,
    only: Annotated[list[What] | None, typer.Option(help="What to measure. Repeatable.")] = None,
    source: Annotated[list[Source] | None, typer.Option(help="Who reads. Repeatable.")] = None,
    repetitions: Annotated[int, typer.Option(min=1, help="Of each measurement; medians are shown.")] = 5,
) -> None:
    """Compare format("kafka") and format("kgroup") on this machine: throughput, latency, CPU and memory."""
    wanted = only or list(What)
    shapes = [shape for shape in (QUICK_SHAPES if quick else SHAPES) if shape.name in wanted]
    warm_up_s, measured_s = (1.0, 2.0) if quick else (5.0, 20.0)
    os.environ.setdefault("PYSPARK_PYTHON", pyspark_kgroup.python())
    on_machine = machine(CONNECTOR_VERSION)
    heed_only_the_first_stop()
    with problems_told(console), ExitStack() as things:
        bench = _start(things, [each for each in SOURCES if each in (source or SOURCES)], 1 if quick else repetitions)
        drained = {shape: bench.drain(shape) for shape in shapes}
        followed = bench.follow(warm_up_s, measured_s) if LATENCY_TOPIC in wanted else {}
    for text in (on_machine, *_tables(drained, followed)):
        typer.echo(f"{text}\n")


def _start(things: ExitStack, sources: Sequence[str], repetitions: int) -> Bench:
    jars = connector_jars()
    folder = Path(things.enter_context(tempfile.TemporaryDirectory(prefix="kgroup-bench-", ignore_cleanup_errors=True)))
    with console.status("Starting Kafka, and a Spark driver for each source"):
        kafka = things.enter_context(ApacheKafka(jvm_options=["-Xmx1g", AT_FULL_SPEED]))
        drivers = [things.enter_context(Driver(source, kafka, folder, jars)) for source in sources]
        for driver in drivers:
            driver.await_ready()
    return Bench(kafka, drivers, repetitions)


def _tables(drained: dict[Shape, dict[str, list[Drained]]], followed: dict[str, list[Followed]]) -> Iterator[str]:
    at_once = {shape: by_source for shape, by_source in drained.items() if not shape.batch_records}
    in_batches = {shape: by_source for shape, by_source in drained.items() if shape.batch_records}
    if at_once:
        yield throughput(at_once)
    if in_batches:
        yield micro_batches(in_batches)
    if followed:
        yield latency(followed, RECORDS_A_SECOND, TRIGGER)
    yield cpu(drained, followed)
    if drained:
        yield memory(drained)
    titles = {str(shape): by_source for shape, by_source in drained.items()}
    yield where_time_goes(titles | ({"latency": followed} if followed else {}))


if __name__ == "__main__":
    app()
