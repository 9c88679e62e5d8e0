"""A query as sidecars see it: the registry of a driver, executors that are sleeping processes, and their workers."""

import os
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import count
from pathlib import Path

import pyarrow as pa

from harness.both_readers import leaders_of
from harness.reader_option import READER
from harness.waiting import wait_for
from pyspark_kgroup.driver.registry.registry import Registry
from pyspark_kgroup.driver.registry.requests import Requests
from pyspark_kgroup.driver.registry.seat_bindings import Scan
from pyspark_kgroup.driver.registry.server import RegistryServer
from pyspark_kgroup.executor.sidecar_dir import SidecarDir, find_sidecar_dir
from pyspark_kgroup.executor.worker.executor_query import ExecutorQuery
from pyspark_kgroup.executor.worker.registry_client import RegistryClient
from pyspark_kgroup.executor.worker.sidecar_client import SidecarClient, SidecarUnavailable
from pyspark_kgroup.executor.worker.sidecar_start import SidecarStart
from pyspark_kgroup.executor.worker.ticket_reader import Worker
from pyspark_kgroup.limits import SIDECAR_IDLE_MS, SIDECAR_RETRY_MS
from pyspark_kgroup.options.parser import SourceOptions, parse
from pyspark_kgroup.shared.process_folder import start_ticks
from pyspark_kgroup.shared.tickets import (
    Executor,
    Leader,
    Mode,
    OffsetRange,
    Position,
    ReadSettings,
    RegistryAccess,
    SeatRanges,
    TicketPayload,
)

Rows = list[tuple[int, int, bytes]]
"""(partition, offset, value), in the order read."""


def rows_of(batches: Iterator[pa.RecordBatch] | Sequence[pa.RecordBatch]) -> Rows:
    return [
        (partition, offset, value)
        for batch in batches
        for partition, offset, value in zip(
            batch["partition"].to_pylist(), batch["offset"].to_pylist(), batch["value"].to_pylist(), strict=True
        )
    ]


@contextmanager
def sleeping_executor(name: str = "1") -> Iterator[Executor]:
    """A process that stands for an executor's JVM. It ends with the context, if not before."""
    jvm = subprocess.Popen(["sleep", "3600"])
    try:
        yield Executor(key=f"here:{jvm.pid}:{start_ticks(jvm.pid)}", executor_id=name, host="here", pid=jvm.pid)
    finally:
        jvm.kill()
        jvm.wait()


class Query:
    """The driver's part of one query with a few seats: plans batches, and makes the tickets of their tasks.

    Args:
        owned: seat -> partitions of `topic` it owns.
        leaders: finds the leaders of partitions, when the query begins.
        homes_serve_others: as `Registry` takes it.
        key: as `RegistryServer` takes it.

    Attributes:
        tags: partition -> its log's tag. An absent partition has the tag of the beginning.
    """

    def __init__(
        self,
        bootstrap: str,
        topic: str,
        owned: Mapping[str, Sequence[int]],
        *,
        prefetch_bytes: int = 64 * 1024 * 1024,
        idle_ms: int = SIDECAR_IDLE_MS,
        leaders: Callable[[SourceOptions, str], Mapping[int, Leader]] = leaders_of,
        homes_serve_others: bool = False,
        key: bytes | None = None,
        **options: str,
    ) -> None:
        own = {"kafka.bootstrap.servers": bootstrap, "kafka.group.id": "sidecars", "subscribe": topic, "reader": READER}
        checked = parse({**own, **options})
        self._leaders = leaders(checked, topic)
        self.topic = topic
        self.tags: dict[int, str] = {}
        self.owned = dict(owned)
        self.registry = Registry(sorted(owned), homes_serve_others=homes_serve_others)
        self.server = RegistryServer(Requests(self.registry), key=key, bind_host="127.0.0.1")
        self.settings = ReadSettings(
            consumer_config=checked.consumer_config(),
            reader=checked.reader,
            include_headers=checked.include_headers,
            stall_timeout_ms=30_000,
        )
        self._prefetch_bytes = prefetch_bytes
        self._idle_ms = idle_ms
        self._workers: dict[Executor, Worker] = {}
        self._batches = count()

    def __enter__(self) -> "Query":
        self.server.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.server.close()

    def plan(self, ranges: Mapping[int, tuple[int, int]], *, batch: str | None = None) -> list[TicketPayload]:
        """The tickets of the next batch, which reads these offsets: partition -> (start, end)."""
        reads = {
            seat: [OffsetRange(self.topic, p, *ranges[p], self._leaders.get(p)) for p in partitions if p in ranges]
            for seat, partitions in self.owned.items()
        }
        reads = {seat: some for seat, some in reads.items() if some}
        owned = {
            seat: [
                Position(self.topic, p, ranges[p][1], self.tags.get(p, "first"), self._leaders.get(p))
                for p in partitions
                if p in ranges
            ]
            for seat, partitions in self.owned.items()
        }
        return self.plan_reads(reads, owned, batch=batch)

    def plan_reads(
        self,
        reads: Mapping[str, Sequence[OffsetRange]],
        owned: Mapping[str, Sequence[Position]],
        *,
        batch: str | None = None,
    ) -> list[TicketPayload]:
        """The tickets of the next batch, by seat, of any topics."""
        pieces = {seat: [ranges] for seat, ranges in reads.items()}
        scan = self.registry.plan(batch or f"batch {next(self._batches)}", pieces, owned)
        return [self._ticket(scan, number, reads) for number in range(len(scan.tickets))]

    def _ticket(self, scan: Scan, number: int, reads: Mapping[str, Sequence[OffsetRange]]) -> TicketPayload:
        seat = scan.tickets[number]
        fixed = None if seat is None else SeatRanges(seat=seat, ranges=tuple(reads[seat]))
        return TicketPayload(
            scan_id=scan.scan_id,
            ticket=number,
            mode=scan.mode,
            reads=fixed if scan.mode is Mode.FIXED else None,
            settings=self.settings,
            registry=RegistryAccess(
                host="127.0.0.1",
                port=self.server.port,
                key=self.server.key,
                query=self.registry.query,
                prefetch_bytes=self._prefetch_bytes,
                idle_ms=self._idle_ms,
            ),
            sidecars=self.registry.sidecars(),
        )

    def run(self, executor: Executor, ranges: Mapping[int, tuple[int, int]]) -> Rows:
        """All rows of the next batch, one task after the other, in one worker that lasts. A sidecar starts with it."""
        tickets = self.plan(ranges)
        if executor not in self._workers:
            self._workers[executor] = Worker(executor)
            start_sidecar(executor, tickets[0])
        return [row for ticket in tickets for row in rows_of(self._workers[executor].read(ticket))]

    def place(self, executor: Executor) -> SidecarDir:
        return find_sidecar_dir(executor, self.server.key)


def read_on(executor: Executor, ticket: TicketPayload) -> Iterator[pa.RecordBatch]:
    """Read in a worker of `executor` that has not read before, beside a sidecar."""
    start_sidecar(executor, ticket)
    return Worker(executor).read(ticket)


def start_sidecar(executor: Executor, ticket: TicketPayload) -> None:
    """Start the sidecar of the ticket's query if there can be one and is none, and wait for it, as no worker does."""
    access = ticket.registry
    assert access is not None
    query = ExecutorQuery.of(executor, access)
    with suppress(SidecarUnavailable):
        SidecarStart(query, RegistryClient(query), SidecarClient(query), lambda _: None).start(lambda: None)


def with_registry_at(port: int, ticket: TicketPayload) -> TicketPayload:
    """The ticket of a query whose registry is at another port."""
    assert ticket.registry is not None
    return replace(ticket, registry=replace(ticket.registry, port=port))


def let_retry_time_pass(place: SidecarDir) -> None:
    """Make the marks in the place's folder as old as they are when workers try again."""
    for mark in place.folder.glob("no-*"):
        then_s = mark.stat().st_mtime - SIDECAR_RETRY_MS / 1000
        os.utime(mark, (then_s, then_s))


def sidecars_of(query: Query, executor: Executor) -> list[int]:
    """Pids of the query's sidecars on this executor, found by the socket in their folder."""
    socket = str(query.place(executor).socket)
    with Path("/proc/net/unix").open() as table:
        inodes = {line.split()[6] for line in table if line.rstrip().endswith(socket) and " 00010000 " in line}
    return sorted(pid for pid in _pids() if inodes & _sockets(pid) and _parent(pid) not in _listening(inodes))


def _listening(inodes: set[str]) -> set[int]:
    return {pid for pid in _pids() if inodes & _sockets(pid)}


def _pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def _sockets(pid: int) -> set[str]:
    targets: list[str] = []
    with suppress(OSError):  # it ends just now
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(FileNotFoundError):  # this one was closed meanwhile, the process goes on
                targets.append(os.readlink(entry))
    return {target[8:-1] for target in targets if target.startswith("socket:[")}


def _parent(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


def seat_servers_of(sidecar: int) -> list[int]:
    """Pids of the processes in which seats have their servers."""
    try:
        children = Path(f"/proc/{sidecar}/task/{sidecar}/children").read_text().split()
    except OSError:
        return []
    return [int(pid) for pid in children]


def alive(pid: int) -> bool:
    """Whether the process runs: it is there, and no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def await_gone(pids: Sequence[int], timeout_s: float = 30.0) -> None:
    wait_for(lambda: not any(map(alive, pids)), f"the end of {pids}", timeout_s, every_s=0.01)


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
