"""`python -m bench_seats`: moves of partitions when executors are killed, of the built-in source and ours.

Starts a Kafka, and for each source and set-up a Spark cluster with a driver of its own, one after the other. No process
is left, nor after Ctrl-C.
"""

import json
import random
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated
from uuid import uuid4

import typer
from bench.tables import machine
from harness.connector import CONNECTOR_VERSION, connector_jars
from harness.measuring import AT_FULL_SPEED, heed_only_the_first_stop, problems_told
from rich.console import Console

from bench_seats.driver import Settings
from bench_seats.kills import CLUSTERS, EXECUTORS, REPLACED, Killing
from bench_seats.placement import OURS, SOURCES, Kill
from bench_seats.session import PARTITIONS, RECORDS_A_SECOND, Session
from bench_seats.tables import Killed, Setup, as_json, kills_table, missed, undisturbed_table
from bench_seats.undisturbed import Served, follow
from spark_kgroup.testing import ApacheKafka
from spark_kgroup.testing.free_ports import PortReservation

TRIGGER_MS = {"kills": 2_000, "undisturbed": 500}

JMX_TOOL = "org.apache.kafka.tools.JmxTool"
CONNECTIONS = "kafka.server:type=socket-server-metrics,listener=PLAINTEXT,networkProcessor=*"

What = StrEnum("What", ["kills", "undisturbed"])
Source = StrEnum("Source", list(SOURCES))  # type: ignore[misc]  # its members are computed

console = Console(highlight=False, width=None if Console().is_terminal else 180)
app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


class Bench:
    """All measurements on one Kafka.

    Args:
        folder: each session gets a folder in it.
        jmx_port: of the broker.
        seed: of the executors to kill and when, the same for each source and kind of replacement.
        tasks: minPartitions where executors are killed, or 0 for as many tasks as the source makes by itself.
    """

    def __init__(
        self, kafka: ApacheKafka, folder: Path, jars: list[Path], jmx_port: int, seed: int, tasks: int
    ) -> None:
        self.kills: dict[Killed, list[Kill]] = {}
        self.undisturbed: dict[Setup, Served] = {}
        self._kafka = kafka
        self._folder = folder
        self._jars = [str(jar) for jar in jars]
        self._jmx_url = f"service:jmx:rmi:///jndi/rmi://127.0.0.1:{jmx_port}/jmxrmi"
        self._seed = seed
        self._tasks = tasks

    def kill(self, where: Killed, count: int) -> None:
        """Kill so many executors of one source."""
        folder = self._new_folder()
        title = f"{where.source}, replaced on {where.replaced}"
        with console.status(f"{title}: starting Spark") as status, CLUSTERS[where.replaced](folder) as cluster:
            settings = self._settings(where.source, cluster.master, What.kills, observes=True)
            settings = replace(settings, tasks=self._tasks)
            with Session(settings, folder / "driver") as session:
                killing = Killing(session, cluster, self._kafka, random.Random(self._seed), self._connections)
                for number, kill in enumerate(killing.kills(count), start=1):
                    self.kills.setdefault(where, []).append(kill)
                    status.update(f"{title}: {number} of {count} kills")
                    console.print(
                        f"{title}, kill {number}: {kill.lost} partitions lost, {kill.moved} moved, "
                        f"gap {kill.gap_s:.1f} s{'' if kill.even else ', not even'}"
                    )

    def follow(self, setup: Setup, batches: int) -> None:
        """Let so many batches of ours run."""
        folder = self._new_folder()
        master = f"local-cluster[{EXECUTORS},{setup.cores},1024]"
        members = setup.seats or EXECUTORS * setup.cores
        settings = self._settings(OURS, master, What.undisturbed, members, cores=setup.cores, maps=setup.maps)
        title = f"Undisturbed, {setup}"
        with console.status(f"{title}: starting Spark") as status, Session(settings, folder / "driver") as session:
            served = self.undisturbed[setup] = follow(
                session, batches, lambda ran: status.update(f"{title}: {ran} of {batches} batches")
            )
        console.print(
            f"{title}: {served.home_share:.1%} at home, {served.server_share:.1%} by the seats' servers, "
            f"{served.ready_share:.1%} ready"
        )

    def _new_folder(self) -> Path:
        """A short name: it is TMPDIR, and the address of a Unix socket in it has at most 107 bytes."""
        folder = self._folder / str(len(list(self._folder.iterdir())))
        folder.mkdir()
        return folder

    def _settings(
        self, source: str, master: str, what: What, members: int = EXECUTORS, *, cores: int = 1, **more: bool
    ) -> Settings:
        name = f"seats-{uuid4().hex[:8]}"
        self._kafka.create_topic(name, PARTITIONS)
        return Settings(
            source=source,
            master=master,
            bootstrap=self._kafka.bootstrap_servers,
            topic=name,
            group=name,
            cores=cores,
            members=members,
            trigger_ms=TRIGGER_MS[what],
            jars=self._jars,
            **{"observes": False, "maps": False, **more},
        )

    def _connections(self) -> int:
        """How many connections the broker has accepted in its life, from its own metrics."""
        asked = ("--jmx-url", self._jmx_url, "--object-name", CONNECTIONS, "--attributes", "connection-creation-total")
        output = self._kafka.tool(JMX_TOOL, *asked, "--one-time", "--report-format", "properties")
        counts = [line.rpartition("=")[2] for line in output.splitlines() if "connection-creation-total" in line]
        return round(sum(float(count) for count in counts))


@app.command()
def main(
    kills: Annotated[int, typer.Option(min=1, help="Of each source and kind of replacement.")] = 10,
    batches: Annotated[int, typer.Option(min=1, help="Of each undisturbed set-up.")] = 200,
    seed: Annotated[int | None, typer.Option(help="For the same victims and moments again.")] = None,
    only: Annotated[What | None, typer.Option()] = None,
    tasks: Annotated[int, typer.Option(min=0, help="minPartitions where executors are killed.")] = 0,
    source: Annotated[Source | None, typer.Option(help="Only this one.")] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write all figures there, too.")] = None,
) -> None:
    """Kill executors of format("kafka") and format("kgroup"), then leave ours alone: moves, and warm reads."""
    seed = random.randrange(10**6) if seed is None else seed
    heed_only_the_first_stop()
    began = time.monotonic()
    with problems_told(console), ExitStack() as things:
        bench = _start(things, seed, tasks)
        console.print(machine(CONNECTOR_VERSION))
        console.print(f"{PARTITIONS} partitions, {EXECUTORS} executors, {RECORDS_A_SECOND:,} records/s; --seed {seed}")
        try:
            _measure(bench, [source.value] if source else SOURCES, only, kills, batches)
        finally:  # figures so far are told, even if an error ends it
            _report(bench, time.monotonic() - began, json_file, seed)
    if missed(bench.kills, bench.undisturbed):
        raise typer.Exit(1)


def _start(things: ExitStack, seed: int, tasks: int) -> Bench:
    jars = connector_jars()
    folder = Path(things.enter_context(tempfile.TemporaryDirectory(prefix="kgroup-bench-", ignore_cleanup_errors=True)))
    port = PortReservation("127.0.0.1", 1)
    things.callback(port.close)
    jmx = {
        "port": port.ports[0],
        "rmi.port": port.ports[0],
        "host": "127.0.0.1",
        "authenticate": "false",
        "ssl": "false",
    }
    options = [f"-Dcom.sun.management.jmxremote.{name}={value}" for name, value in jmx.items()]
    with console.status("Starting Kafka"):
        kafka = things.enter_context(
            ApacheKafka(jvm_options=["-Xmx1g", AT_FULL_SPEED, "-Djava.rmi.server.hostname=127.0.0.1", *options])
        )
    return Bench(kafka, folder, jars, port.ports[0], seed, tasks)


def _measure(bench: Bench, sources: Sequence[str], only: What | None, kills: int, batches: int) -> None:
    if only in (None, What.kills):
        for replaced in REPLACED:
            for source in sources:
                bench.kill(Killed(replaced, source), kills)
    if only in (None, What.undisturbed) and OURS in sources:
        setups = [Setup(cores, maps) for cores in (1, 2) for maps in (False, True)]
        for setup in (*setups, Setup(1, False, seats=2), Setup(2, False, seats=2)):
            bench.follow(setup, batches)


def _report(bench: Bench, seconds: float, json_file: Path | None, seed: int) -> None:
    if json_file is not None:
        figures = {"machine": machine(CONNECTOR_VERSION), "seed": seed, **as_json(bench.kills, bench.undisturbed)}
        json_file.write_text(json.dumps(figures, indent=1))
    if bench.kills:
        console.print(kills_table(bench.kills))
        console.print("  ".join(f"{short}: {words}." for short, words in REPLACED.items()))
    if bench.undisturbed:
        console.print(undisturbed_table(bench.undisturbed))
    console.print(f"{seconds / 60:.0f} min in all.")
    for each in missed(bench.kills, bench.undisturbed):
        console.print(f"MISSED {each}")


if __name__ == "__main__":
    app()
