"""Reads tickets: from a server of the seat on this executor or at the seat's home, or else directly from brokers.

Runs on: executor, in Spark's Python workers.

`TicketReader.read` is the ladder of one read, and the modules beside it are its rungs. A worker asks its executor's
sidecar (`sidecar_client`). Where there is none, the worker asks the registry on the driver (`registry_client`), and
reads directly from brokers: slower, the same rows. Beside that it starts a sidecar for later reads (`sidecar_start`),
without waiting for it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from functools import cache, partial
from typing import Final

import pyarrow as pa

from pyspark_kgroup.errors import ChannelEnded, RegistryUnreachable, SeatRefused
from pyspark_kgroup.executor.batch_stream import receive
from pyspark_kgroup.executor.read.read_sizes import ReadSizes
from pyspark_kgroup.executor.worker.executor_query import ExecutorQuery
from pyspark_kgroup.executor.worker.registry_client import RegistryAnswer, RegistryClient
from pyspark_kgroup.executor.worker.sidecar_client import (
    SidecarAnswer,
    SidecarClient,
    SidecarGivenUp,
    SidecarMissing,
    SidecarUnavailable,
)
from pyspark_kgroup.executor.worker.sidecar_start import SidecarStart
from pyspark_kgroup.executor.worker.spark_delays import SparkDelays
from pyspark_kgroup.executor.worker.this_executor import settings_for_rack, this_executor
from pyspark_kgroup.limits import SEAT_SERVER_SILENCE_MS
from pyspark_kgroup.shared.arrow import last_offsets
from pyspark_kgroup.shared.channel import Channel
from pyspark_kgroup.shared.messages import Bound, ReadDirectly, ReadFromServer, Refused, Served
from pyspark_kgroup.shared.tickets import Executor, OffsetRange, ReadSettings, RegistryAccess, TicketPayload
from spark_kgroup.model import TopicPartition

log = logging.getLogger(__name__)

_QUERIES_MAX: Final = 16
"""How many queries a worker keeps a `TicketReader` of. For a query that it has forgotten it makes another one."""

_NO_SIDECAR: Final = "No sidecar on this executor: its workers read directly, which is slower. %s"

_NO_REGISTRY: Final = "%s This executor reads the ranges that its tickets carry."


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
        self._readers: dict[RegistryAccess, TicketReader] = {}
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
        ticket = replace(ticket, settings=settings_for_rack(self._executor, ticket.settings))
        if ticket.registry is not None:
            batches = self._reader(ticket.registry).read(ticket)
        else:  # `prefetchBytes` 0, or a batch read
            batches = _read_from_brokers(_own_ranges(ticket), ticket.settings)
        columns = list(ticket.settings.columns)
        return (batch.select(columns) for batch in batches) if columns else batches

    def _reader(self, access: RegistryAccess) -> TicketReader:
        if access not in self._readers:
            for oldest in list(self._readers)[: 1 - _QUERIES_MAX]:  # the newest stay, with room for one more
                del self._readers[oldest]
            self._readers[access] = TicketReader(self._executor, access, self._warn_once)
        return self._readers[access]

    def _warn_once(self, text: str, problem: Exception) -> None:
        """Warn once in this process: tasks come many times a second."""
        if text not in self._warned:
            self._warned.add(text)
            log.warning(text, problem)


class TicketReader:
    """Reads the tickets of one query in this process.

    Args:
        executor: the executor whose worker this process is.
        access: of the query.
        warn_once: warns of a problem with a text that holds its place, unless this process has warned with that text.
    """

    def __init__(self, executor: Executor, access: RegistryAccess, warn_once: Callable[[str, Exception], None]) -> None:
        query = ExecutorQuery.of(executor, access)
        self._registry = RegistryClient(query)
        self._sidecar = SidecarClient(query)
        self._sidecar_start = SidecarStart(query, self._registry, self._sidecar, partial(warn_once, _NO_SIDECAR))
        self._tells_sizes = access.tells_sizes
        self._warn_once = warn_once

    def read(self, ticket: TicketPayload) -> Iterator[pa.RecordBatch]:
        """Read one ticket's ranges, down a ladder: each rung leaves the ranges that it has not read to the last one.

        1. The seat's server on this executor sends them, if this executor's sidecar has answered that it does.
        2. The seat's server at its home, on another executor, sends them over the network, if the answer names a home.
        3. This process reads them from brokers: the rest of them, or the ticket's own where there is no answer.

        Raises as `Worker.read`.
        """
        answer, channel = self._ask(ticket)
        try:
            left: Sequence[OffsetRange] = ()  # other tickets read all, if the answer is `NothingLeft`
            match answer:
                case ReadFromServer() if channel is not None:
                    on_hung = partial(self._sidecar.report_hung, answer.seat)
                    left = yield from _receive(answer, channel, ticket.settings, on_hung)
                case ReadDirectly() | Bound():
                    left = answer.ranges
                    if (home := answer.home) and (reached := self._registry.ask_sidecar_at_home(home, ticket)):
                        on_hung = partial(self._registry.report_hung, home, answer.seat)
                        left = yield from _receive(*reached, ticket.settings, on_hung)
                case None | Refused():
                    left = _own_ranges(ticket)
            sizes = ReadSizes({r.topic for r in left} if self._tells_sizes else ())
            for batch in _read_from_brokers(left, ticket.settings):
                sizes.add(batch)
                yield batch
            # A server reports its own rows, so this report has only the rows that this process has read.
            if channel is not None and left and isinstance(answer, ReadDirectly | Bound):
                with suppress(ChannelEnded):  # the registry, which counts rows, can no longer be told
                    served = Served(seat=answer.seat, by="worker", rows=sizes.rows, ready=0, sizes=sizes.by_topic())
                    channel.say(served)
        finally:
            self._sidecar_start.on_read_over()
            if channel is not None:
                channel.close()

    def _ask(self, ticket: TicketPayload) -> tuple[SidecarAnswer | RegistryAnswer | None, Channel | None]:
        """Ask this executor's sidecar, or else the registry, for the ranges that the ticket reads.

        Returns:
            The answer and the channel on which it came, or (None, None) if the ticket's own ranges are to be read.

        Raises:
            RegistryUnreachable: the ticket carries no ranges, and the registry cannot be reached.
        """
        missing = False
        try:
            return self._sidecar.request(ticket)
        except SidecarMissing:
            missing = True
        except (SidecarGivenUp, ChannelEnded) as problem:
            log.debug("no sidecar answers: %s", problem)
        except SidecarUnavailable as why:
            self._warn_once(_NO_SIDECAR, why)
        try:
            answered = self._registry.bind(ticket)
        except RegistryUnreachable as problem:
            if ticket.reads is None:
                raise
            self._warn_once(_NO_REGISTRY, problem)
            answered = None
        if missing and answered is not None:  # a sidecar needs the registry, too
            self._sidecar_start.soon()
        return answered or (None, None)


def _receive(
    answer: ReadFromServer, channel: Channel, settings: ReadSettings, on_hung: Callable[[], None]
) -> Generator[pa.RecordBatch, None, Sequence[OffsetRange]]:
    """The batches that the seat's server sends over the channel, which is closed then.

    A server that is silent for too long is an `on_hung`. The end of a connection is none: its sidecar sees it, too.

    Returns:
        The ranges that are left to read: none, unless the server broke off.
    """
    unread = {TopicPartition(r.topic, r.partition): r for r in answer.ranges}
    try:
        with closing(channel):
            for batch in receive(channel.socket, settings.include_headers, SEAT_SERVER_SILENCE_MS / 1000):
                for partition, offset in last_offsets(batch).items():
                    unread[partition] = unread[partition]._replace(start_offset=offset + 1)
                yield batch
    except OSError as problem:
        log.info("The server of seat %s broke off (%s): its worker goes on.", answer.seat, problem)
        if isinstance(problem, TimeoutError):
            on_hung()
        return tuple(unread.values())
    return ()


def _own_ranges(ticket: TicketPayload) -> Sequence[OffsetRange]:
    """The ranges that the ticket carries. Raises SeatRefused if the registry alone knows them."""
    if ticket.reads is None:
        raise SeatRefused(ticket.scan_id, ticket.ticket)
    return ticket.reads.ranges


def _read_from_brokers(ranges: Sequence[OffsetRange], settings: ReadSettings) -> Iterator[pa.RecordBatch]:
    """As `reader.read_ranges`, whose module is imported only if ranges are left to read."""
    if ranges:
        from pyspark_kgroup.executor.read.reader import read_ranges

        yield from read_ranges(ranges, settings)


def _task_cpus() -> int:
    """How many cores each task has (`spark.task.cpus`)."""
    from pyspark import TaskContext

    context = TaskContext.get()
    return max(1, context.cpus() or 1) if context is not None else 1
