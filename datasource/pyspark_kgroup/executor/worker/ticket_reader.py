"""Reads tickets: from the seat's warm server if this executor is the seat's home, else directly.

Runs on: executor, in Spark's Python workers.

A worker asks its executor's `sidecar`. Where there is none, the worker asks the registry on the driver, and reads
directly: slower, the same rows. Beside that it starts a sidecar for later reads, without waiting for it.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Generator, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache
from typing import Final

import pyarrow as pa

from pyspark_kgroup.errors import ChannelEnded, RegistryUnreachable, SeatRefused
from pyspark_kgroup.executor.batch_stream import receive
from pyspark_kgroup.executor.read.read_sizes import ReadSizes
from pyspark_kgroup.executor.sidecar_dir import RecentFailures, SidecarDir, find_sidecar_dir
from pyspark_kgroup.executor.worker.registry_client import RegistryAnswer, RegistryClient
from pyspark_kgroup.executor.worker.sidecar_start import (
    SidecarAnswer,
    SidecarClient,
    SidecarMissing,
    SidecarUnavailable,
)
from pyspark_kgroup.executor.worker.spark_delays import SparkDelays
from pyspark_kgroup.executor.worker.this_executor import settings_for_rack, this_executor
from pyspark_kgroup.limits import REGISTRY_PATIENCE_MS, SEAT_SERVER_SILENCE_MS, SIDECAR_START_AFTER_MS
from pyspark_kgroup.shared.arrow import last_offsets
from pyspark_kgroup.shared.channel import Channel
from pyspark_kgroup.shared.messages import (
    Bound,
    Read,
    ReadDirectly,
    ReadFromServer,
    Refused,
    Served,
)
from pyspark_kgroup.shared.tickets import Executor, OffsetRange, ReadSettings, RegistryAccess, TicketPayload
from spark_kgroup.model import TopicPartition

log = logging.getLogger(__name__)

_REUSED: Final = "SPARK_REUSE_WORKER"
"""Set by Spark for workers that live on after their tasks (PythonWorkerFactory, `spark.python.worker.reuse`)."""

_QUERIES_MAX: Final = 16
"""How many queries a worker keeps a `_Query` of. For a query that it has forgotten it makes another one."""

Answer = SidecarAnswer | RegistryAnswer
"""The ranges that a ticket reads, as the registry or a sidecar answered."""


def read_ticket(ticket: TicketPayload) -> Iterator[pa.RecordBatch]:
    """Read one ticket's ranges in the worker that this process is. Raises as `Worker.read`."""
    return _this_worker().read(ticket)


@cache
def _this_worker() -> Worker:
    return Worker(this_executor(_task_cpus()), SparkDelays())


class Worker:
    """A Python worker of an executor. There is one in each process, and Spark gives it many tickets.

    Args:
        delays: avoids some delays of Spark in this process. None in a process that is none of Spark's workers.
    """

    def __init__(self, executor: Executor, delays: SparkDelays | None = None) -> None:
        self._executor = executor
        self._delays = delays
        self._queries: dict[RegistryAccess, _Query] = {}
        self._warned: set[str] = set()

    def read(self, ticket: TicketPayload) -> Iterator[pa.RecordBatch]:
        """Read one ticket's ranges, as the caller takes the batches.

        Raises:
            SeatRefused: the ticket's batch is over (LATE only).
            RegistryUnreachable: only the registry knows which ranges to read, and it cannot be reached from here.
            KgroupError: as `reader.read_ranges`.
        """
        if self._delays is not None:
            self._delays.avoid()
        batches = self._read_batches(replace(ticket, settings=settings_for_rack(self._executor, ticket.settings)))
        columns = list(ticket.settings.columns)
        return (batch.select(columns) for batch in batches) if columns else batches

    def _read_batches(self, ticket: TicketPayload) -> Iterator[pa.RecordBatch]:
        # Without a registry (`prefetchBytes` 0) tickets carry their ranges.
        query = self._query(ticket.registry) if ticket.registry is not None else None
        answer, channel = query.ask(ticket) if query is not None else (None, None)
        try:
            ranges: Sequence[OffsetRange] = ()
            match answer:
                case ReadFromServer() if query is not None and channel is not None:
                    ranges = yield from query.receive(channel, answer, ticket.settings.include_headers)
                case ReadDirectly() | Bound() if query is not None:
                    ranges = yield from query.read_at_home(answer, ticket)
                case None | Refused() if ticket.reads is not None:
                    ranges = ticket.reads.ranges
                case None | Refused():
                    raise SeatRefused(ticket.scan_id, ticket.ticket)
            tells_sizes = ticket.registry is not None and ticket.registry.tells_sizes
            sizes = ReadSizes({r.topic for r in ranges} if tells_sizes else ())
            for batch in _read_directly(ranges, ticket.settings):
                sizes.add(batch)
                yield batch
            if channel is not None and ranges and isinstance(answer, ReadDirectly | Bound):
                with suppress(ChannelEnded):  # the registry, which counts rows, can no longer be told
                    served = Served(seat=answer.seat, by="worker", rows=sizes.rows, ready=0, sizes=sizes.by_topic())
                    channel.say(served)
        finally:
            if query is not None:
                query.on_read_over()
            if channel is not None:
                channel.close()

    def _query(self, access: RegistryAccess) -> _Query:
        if access not in self._queries:
            for oldest in list(self._queries)[: 1 - _QUERIES_MAX]:
                del self._queries[oldest]
            self._queries[access] = _Query(self._executor, access, self._warned)
        return self._queries[access]


class _Query:
    """One query on this executor, as one of its workers sees it: the state that the query's tickets share.

    Args:
        warned: texts of warnings that this process has logged.
    """

    def __init__(self, executor: Executor, access: RegistryAccess, warned: set[str]) -> None:
        self._executor = executor
        self._query = access.query
        place = _sidecar_dir_or_none(executor, access.key)
        failures = RecentFailures(place, access.query)
        self._registry = RegistryClient(access.host or driver_host(), access.port, access.query, access.key, failures)
        self._sidecar = SidecarClient(executor, access, place, self._registry, failures)
        self._warned = warned
        self._read_over = threading.Event()
        self._handed_over = threading.Event()  # a sidecar that starts no longer needs this process
        self._handed_over.set()

    def ask(self, ticket: TicketPayload) -> tuple[Answer | None, Channel | None]:
        """Ask the sidecar, or else the registry, for the ranges that the ticket reads.

        Returns:
            The answer and the channel on which it came, or (None, None) if the ticket's own ranges are to be read.

        Raises:
            RegistryUnreachable: the ticket carries no ranges, and the registry cannot be reached.
        """
        missing = False
        try:
            return self._sidecar.request(self._make_read(ticket))
        except SidecarMissing:
            missing = True
        except SidecarUnavailable as why:
            self._warn_no_sidecar(why)
        except ChannelEnded as ended:
            log.debug("the sidecar has gone: %s", ended)
        answer, channel = self._ask_registry(ticket)
        if missing and answer is not None:  # a sidecar needs the registry, too
            self._start_sidecar_soon()
        return answer, channel

    def _make_read(self, ticket: TicketPayload) -> Read:
        """The request to a sidecar."""
        return Read(
            query=self._query,
            scan=ticket.scan_id,
            ticket=ticket.ticket,
            config=ticket.settings.consumer_config,
            reader=ticket.settings.reader,
            headers=ticket.settings.include_headers,
            timestamps=ticket.settings.include_timestamps,
        )

    def _ask_registry(self, ticket: TicketPayload) -> tuple[RegistryAnswer | None, Channel | None]:
        """As `ask`, for a worker that reads directly."""
        asked = self._executor, ticket.scan_id, ticket.ticket, ticket.sidecars
        if ticket.reads is None:
            return self._registry.bind(*asked, insist_s=REGISTRY_PATIENCE_MS / 1000)
        try:
            if self._registry.has_way(ticket.sidecars):
                return self._registry.bind(*asked)
        except RegistryUnreachable as problem:
            self._warn_once("%s This executor reads what its tickets say.", problem)
        return None, None

    def _start_sidecar_soon(self) -> None:
        """Start a sidecar for later reads. This read has the CPU first: the executor itself has only just started."""
        self._read_over.clear()
        if self._ends_with_task():
            self._read_over.set()  # the thread starts the sidecar at once: it ends with this process
        self._handed_over.clear()
        threading.Thread(target=self._start_sidecar, name="kgroup sidecar start", daemon=True).start()

    def _ends_with_task(self) -> bool:
        """Whether this process ends with its task: Spark says so, or has started it without the daemon that keeps it.

        `spark.python.use.daemon` set to false does that, and leaves `_REUSED` as it is: the worker is then a child of
        the JVM itself.
        """
        return not os.environ.get(_REUSED) or os.getppid() == self._executor.pid

    def on_read_over(self) -> None:
        """A read has ended: the CPU is free, and this process may be about to end."""
        self._read_over.set()
        if self._ends_with_task():
            self._handed_over.wait(SIDECAR_START_AFTER_MS / 1000)

    def _start_sidecar(self) -> None:
        self._read_over.wait(SIDECAR_START_AFTER_MS / 1000)
        try:
            self._sidecar.start(self._handed_over.set)
        except SidecarUnavailable as why:
            self._warn_no_sidecar(why)
        finally:
            self._handed_over.set()

    def _warn_no_sidecar(self, why: SidecarUnavailable) -> None:
        self._warn_once("No sidecar on this executor: its workers read directly, which is slower. %s", why)

    def _warn_once(self, text: str, problem: Exception) -> None:
        """Warn once in this process: tasks come many times a second."""
        if text not in self._warned:
            self._warned.add(text)
            log.warning(text, problem)

    def read_at_home(
        self, answer: ReadDirectly | Bound, ticket: TicketPayload
    ) -> Generator[pa.RecordBatch, None, Sequence[OffsetRange]]:
        """The batches that the seat's home, another executor, sends over the network.

        Returns:
            The ranges that are left to read: all, if the home does not serve them.
        """
        if (
            answer.home is None
            or (served := self._registry.ask_home(answer.home, ticket.scan_id, ticket.ticket)) is None
        ):
            return answer.ranges
        read, channel = served
        try:
            return (yield from self.receive(channel, read, ticket.settings.include_headers))
        finally:
            channel.close()

    def receive(
        self, channel: Channel, answer: ReadFromServer, include_headers: bool
    ) -> Generator[pa.RecordBatch, None, Sequence[OffsetRange]]:
        """The batches that the seat's server sends.

        Returns:
            The ranges that are left to read: none, unless the server broke off.
        """
        unread = {TopicPartition(r.topic, r.partition): r for r in answer.ranges}
        try:
            for batch in receive(channel.socket, include_headers, SEAT_SERVER_SILENCE_MS / 1000):
                for partition, offset in last_offsets(batch).items():
                    unread[partition] = unread[partition]._replace(start_offset=offset + 1)
                yield batch
        except OSError as problem:
            log.info("The server of seat %s broke off (%s): its worker goes on.", answer.seat, problem)
            channel.close()
            if isinstance(problem, TimeoutError):
                self._sidecar.report_hung(answer.seat)
            return tuple(unread.values())
        return ()


def _sidecar_dir_or_none(executor: Executor, key: bytes) -> SidecarDir | None:
    try:
        return find_sidecar_dir(executor, key)
    except OSError as problem:
        log.debug("there is no place for a sidecar: %s", problem)
        return None


def _task_cpus() -> int:
    """How many cores each task has (`spark.task.cpus`)."""
    from pyspark import TaskContext

    context = TaskContext.get()
    return max(1, context.cpus() or 1) if context is not None else 1


def driver_host() -> str:
    """The driver's host as Spark knows it."""
    # Imported here: a test's worker runs without Spark.
    from pyspark import TaskContext

    context = TaskContext.get()
    return (context.getLocalProperty("spark.driver.host") if context is not None else None) or "localhost"


def _read_directly(ranges: Sequence[OffsetRange], settings: ReadSettings) -> Iterator[pa.RecordBatch]:
    """As `reader.read_ranges`, whose module is imported only if ranges are left to read."""
    if ranges:
        from pyspark_kgroup.executor.read.reader import read_ranges

        yield from read_ranges(ranges, settings)
