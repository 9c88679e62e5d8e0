"""A seat whose server cannot fetch it: the sidecar lets its workers read directly for a while."""

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from harness.fake_broker import on_a_loop, until

from pyspark_kgroup.executor.sidecar import sidecar_query
from pyspark_kgroup.executor.sidecar.seat_processes import Process, SeatProcesses, Server
from pyspark_kgroup.executor.sidecar.sidecar_link import Link
from pyspark_kgroup.executor.sidecar.sidecar_query import SidecarQuery
from pyspark_kgroup.shared.messages import AddQuery, CannotFetch, Read, Resting
from pyspark_kgroup.shared.tickets import Executor, Reader

REASON = "t-0: UNKNOWN_SERVER_ERROR"


class Processes(SeatProcesses):
    """Starts no process. Each server is the other end of its link."""

    def __init__(self) -> None:
        super().__init__(1)
        self.servers: list[Link] = []

    def start_server(self, *_: Any) -> Server:
        ours, theirs = socket.socketpair()
        self.servers.append(Link(theirs, trusted=True))
        return Server(Process(0, ours.dup(), ended=True), Link(ours, trusted=True))

    def release(self, process: Process) -> None:
        process.control.close()


class Seats:
    """The seats of one query of a sidecar."""

    def __init__(self, query: SidecarQuery, processes: Processes, registry: Link) -> None:
        self._query = query
        self._processes = processes
        self.registry = registry

    @property
    def started(self) -> int:
        return len(self._processes.servers)

    def are_served(self, seat: str, reader: Reader = "native") -> bool:
        """Whether a read of the seat is the server's."""
        asked = Read(query="q", scan=1, ticket=0, config={}, reader=reader, headers=False, timestamps=True)
        return self._query._idle_server(seat, asked) is not None

    async def end_with(self, reason: str, *, lasting: bool = False) -> None:
        """The server that was started last cannot fetch."""
        server = self._processes.servers[-1]
        await server.send(CannotFetch(reason=reason, lasting=lasting))
        server.socket.close()
        await until(lambda: not self._query._servers)


@asynccontextmanager
async def seats() -> AsyncIterator[Seats]:
    processes = Processes()
    ours, theirs = socket.socketpair()
    asked = AddQuery(query="q", prefetch_bytes=1 << 20, idle_ms=60_000, tells_sizes=False)
    executor = Executor(key="here:1:1", executor_id="1", host="here", pid=1)
    query = SidecarQuery(asked, executor, Link(ours, trusted=True), processes)
    with theirs:
        try:
            yield Seats(query, processes, Link(theirs, trusted=True))
        finally:
            await query.end()
            for server in processes.servers:
                server.socket.close()


@on_a_loop
async def test_a_seat_that_cannot_be_fetched_is_read_directly_for_a_while_and_its_neighbour_is_served() -> None:
    async with seats() as some:
        assert some.are_served("g-0")
        await some.end_with(REASON)
        assert not some.are_served("g-0")
        assert some.are_served("g-1")
        assert some.started == 2


@on_a_loop
async def test_the_registry_hears_that_the_seat_rests() -> None:
    """Else progress and commits would go on to call the seat warm."""
    async with seats() as some:
        assert some.are_served("g-0")
        await some.end_with(REASON)
        assert await some.registry.receive() == Resting(seat="g-0")


def test_after_that_while_the_seat_has_a_server_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sidecar_query, "SEAT_SERVER_REST_MS", 0)

    @on_a_loop
    async def scenario() -> None:
        async with seats() as some:
            for started in (1, 2):
                assert some.are_served("g-0")
                assert some.started == started
                await some.end_with(REASON)

    scenario()


def test_where_the_reason_lasts_the_seat_has_no_server_for_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sidecar_query, "SEAT_SERVER_REST_MS", 0)

    @on_a_loop
    async def scenario() -> None:
        async with seats() as some:
            assert some.are_served("g-0")
            await some.end_with("there is no decoder for this platform", lasting=True)
            assert not some.are_served("g-0")

    scenario()


def test_a_reason_that_comes_again_is_a_warning_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sidecar_query, "SEAT_SERVER_REST_MS", 0)

    @on_a_loop
    async def scenario() -> None:
        async with seats() as some:
            for reason in (REASON, REASON, "t-1: no records from 7", "t-1: no records from 9"):
                assert some.are_served("g-0")
                await some.end_with(reason)

    scenario()
    warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert [text.rpartition(" s: ")[2] for text in warnings] == [f"{REASON}.", "t-1: no records from 7."]
    assert warnings[0].startswith("No record is fetched ahead for seat g-0, and its workers read directly, for 0 s")


@on_a_loop
async def test_no_record_is_fetched_ahead_where_librdkafka_is_to_read() -> None:
    async with seats() as some:
        assert not some.are_served("g-0", "librdkafka")
        assert some.started == 0
