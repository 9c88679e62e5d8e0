"""One query of a sidecar: asks the query's registry, and lets the servers of seats at home here read.

Runs on: executor.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from typing import Final, Literal

from pyspark_kgroup.errors import ChannelEnded
from pyspark_kgroup.executor.sidecar.seat_processes import PrefetchQuota, SeatProcesses, Server
from pyspark_kgroup.executor.sidecar.sidecar_link import Link, RegistryLink
from pyspark_kgroup.limits import (
    CHANNEL_HANDSHAKE_MS,
    SEAT_SERVER_LASTING_REST_MS,
    SEAT_SERVER_REST_MS,
    SIDECAR_HEARTBEAT_MS,
)
from pyspark_kgroup.shared.messages import (
    AddQuery,
    Bind,
    Bound,
    CannotFetch,
    Finished,
    Heartbeat,
    Hello,
    Homes,
    NothingLeft,
    QueryMessage,
    Read,
    ReadAtHome,
    ReadDirectly,
    ReadFromServer,
    Refused,
    Resting,
    Serve,
    Served,
    Welcome,
    WorkerGone,
)
from pyspark_kgroup.shared.tickets import Executor, ReadSettings, SidecarAddress
from spark_kgroup.tasks import TaskSet

log = logging.getLogger(__name__)

_NUMBERS: Final = re.compile(r"\d+")


def expect_bind(message: QueryMessage) -> Bind:
    """The request of a worker that asks the registry by way of us. Raises ChannelEnded if it is not a `Bind`."""
    if isinstance(message, Bind):
        return message
    raise ChannelEnded(f"A worker sent a {type(message).__name__} where it asks for the ranges of its ticket.")


def expect_served(message: QueryMessage, seat: str) -> Served:
    """A worker's report on the seat that it has read directly. This sidecar passes it on to the registry.

    Raises:
        ChannelEnded: the message is no such report.
    """
    match message:
        case Served(by="worker") if message.seat == seat:
            return message
    raise ChannelEnded(f"A worker sent a {type(message).__name__} where it reports its reads of {seat}.")


class SidecarQuery:
    """One query of the sidecar's. It ends when its registry hangs up or falls silent, or if no worker asks for long.

    Args:
        asked: as the worker asked for it.
        executor: the sidecar's.
        registry: a connection that has shown the key.
        processes: where its seats' servers run.
    """

    def __init__(self, asked: AddQuery, executor: Executor, registry: Link, processes: SeatProcesses) -> None:
        self._query = asked.query
        self._executor = executor
        self._prefetch_bytes = asked.prefetch_bytes
        self._idle_s = asked.idle_ms / 1000
        self._tells_sizes = asked.tells_sizes
        self._serves_others = False  # until the registry's `Welcome` says so
        self._link = registry
        self._registry = RegistryLink(registry)
        self._processes = processes
        self._quota = PrefetchQuota()
        self._servers: dict[str, Server] = {}
        self._rests_until_s: dict[str, float] = {}  # seats that cannot be fetched natively for now
        self._warned: set[str] = set()  # reasons without their numbers: an offset makes no other reason
        self._reads_as: Read | None = None  # the last request of this executor's own workers
        self._asked_at_s = time.monotonic()
        self._tasks = TaskSet(self._on_failure)
        self._over: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def greet(self, address: SidecarAddress | None) -> None:
        """Make this sidecar known to the registry, with its address for workers of other executors.

        Raises:
            ChannelEnded: the registry does not answer, or is another query's.
        """
        self._tasks.begin(self._registry.hear())  # first: an answer reaches `ask` only by way of `hear`
        match await self._registry.ask(
            Hello(query=self._query, executor=self._executor, sidecar=True, address=address)
        ):
            case Welcome(serves_others=serves_others):
                self._serves_others = serves_others
            case Refused(reason=reason):
                raise ChannelEnded(reason)
            case _:
                raise ChannelEnded("The registry does not answer to a greeting.")

    async def run(self) -> str:
        """Serve until the query is over, and say why."""
        self._tasks.begin(self._beat())
        return await self._over

    async def end(self) -> None:
        """End the servers (`Server.end`), and close the connection to the registry."""
        for server in self._servers.values():
            server.end()
        await self._tasks.end()
        # A `_follow` that was cancelled before its first step has let go of no server.
        for name in list(self._servers):
            self._let_go(name)
        self._link.socket.close()
        self._quota.close()

    def _on_failure(self, problem: BaseException) -> None:
        if self._over.done():
            return
        if isinstance(problem, ChannelEnded):
            self._over.set_result(f"its connection to the registry has ended: {problem}")
        else:
            log.error("The sidecar has failed.", exc_info=problem)
            self._over.set_result(f"it has failed: {problem!r}")

    async def _beat(self) -> None:
        """Tell the registry that we live. Its answer names the seats that have their home here still."""
        while True:
            match await self._registry.ask(Heartbeat()):
                case Homes(seats=homes):
                    pass
                case _:
                    raise ChannelEnded("The registry does not answer to a heartbeat.")
            for name, server in list(self._servers.items()):
                # Not in a read: its report would be lost, and its worker would see the server break off.
                if name not in homes and not server.busy:
                    server.end()
            await asyncio.sleep(SIDECAR_HEARTBEAT_MS / 1000)

    def look_for_idle(self, now_s: float) -> None:
        """End servers that no worker has asked for long, and the query if none has asked for long at all."""
        for server in list(self._servers.values()):
            # A single read may last longer than the idle time, since Spark sets its pace.
            if server.busy:
                self._asked_at_s = now_s
            elif server.asked_at_s < now_s - self._idle_s:
                server.end()
        if self._asked_at_s < now_s - self._idle_s and not self._over.done():
            self._over.set_result("no worker has asked for long")

    def report_hung(self, seat: str) -> None:
        """A worker has found a seat's server silent."""
        if (server := self._servers.get(seat)) is not None:
            server.kill()

    # ------------------------------------------------------------------------------------------------------ workers

    async def answer(self, link: Link, request: Read) -> None:
        """Answer a worker of this executor that asks which ranges its ticket reads.

        Raises:
            ChannelEnded: the worker has gone, or the registry.
        """
        self._asked_at_s = time.monotonic()
        self._reads_as = request
        bind = Bind(scan=request.scan, ticket=request.ticket, executor=self._executor)
        match await self._registry.ask(bind):
            case NothingLeft() | Refused() as answer:
                await link.send(answer)
            case Bound(seat=name, at_home=True) as bound if (server := self._idle_server(name, request)) is not None:
                await self._let_serve(server, link, bound, "server")
            case Bound(seat=name, ranges=ranges, home=home):
                await link.send(ReadDirectly(seat=name, ranges=ranges, home=home))
                # Without a timeout: the worker reads for as long as Spark takes, and its connection ends with it.
                await self._registry.report(expect_served(await link.receive(), name))
            case _:
                raise ChannelEnded("The registry does not answer with the ranges of a ticket.")

    async def answer_other(self, link: Link, asked: ReadAtHome) -> None:
        """Answer a worker of another executor that asks for a seat with its home here. Raises as `answer`."""
        # The registry names no home to guests then, but a peer with the key can ask without having been sent here.
        if not self._serves_others:
            raise ChannelEnded("A worker of another executor asks for records that are to stay here.")
        self._asked_at_s = time.monotonic()
        bind = Bind(scan=asked.scan, ticket=asked.ticket, executor=self._executor, for_guest=True)
        bound = await self._registry.ask(bind)
        if not isinstance(bound, Bound):
            raise ChannelEnded("The registry does not name the seat of a read.")
        server = None
        # A guest sends no settings, since they may hold secrets: the seat is read as for this executor's own workers.
        if bound.at_home and self._reads_as is not None:
            server = self._idle_server(bound.seat, self._reads_as)
        if server is not None:
            await self._let_serve(server, link, bound, "network")
        else:
            await link.send(ReadDirectly(seat=bound.seat, ranges=bound.ranges))

    async def ask_for(self, link: Link) -> None:
        """Ask the registry for a worker of another executor that cannot reach it. Raises as `answer`, or TimeoutError.

        The worker has greeted us in place of the registry.
        """
        self._asked_at_s = time.monotonic()
        # A worker looks only for a welcome: `serves_others` is for sidecars.
        await link.send(Welcome(serves_others=False))
        async with asyncio.timeout(CHANNEL_HANDSHAKE_MS / 1000):
            asked = expect_bind(await link.receive())
        answer = await self._registry.ask(asked)
        await link.send(answer)
        if isinstance(answer, Bound):
            await self._registry.report(expect_served(await link.receive(), answer.seat))

    async def _let_serve(self, server: Server, link: Link, bound: Bound, over: Literal["server", "network"]) -> None:
        # BEFORE the first `await`: another request would find the server idle.
        server.busy, server.reads_over, server.asked_at_s = True, over, time.monotonic()
        try:
            # BEFORE the socket is handed on: the worker expects this answer ahead of the server's batches.
            await link.send(ReadFromServer(seat=bound.seat, ranges=bound.ranges))
        except ChannelEnded:
            server.busy = False
            raise
        try:
            async with asyncio.timeout(CHANNEL_HANDSHAKE_MS / 1000):
                asked = Serve(ranges=bound.ranges, owned=bound.owned, tells_sizes=self._tells_sizes)
                await server.link.send_with_socket(asked, link.socket)
        except ChannelEnded:  # the server ends just now: the worker sees its connection end, and reads directly
            server.end()
        # It does not even take the request, though it has no other one: it hangs.
        except TimeoutError:
            server.kill()

    # ------------------------------------------------------------------------------------------------------ servers

    def _idle_server(self, name: str, request: Read) -> Server | None:
        """The seat's server, started if there is none.

        Returns:
            None if workers are to read directly: it is busy, about to end or cannot be started, the seat could not be
            fetched natively a while ago, or is not to be.
        """
        rests = time.monotonic() < self._rests_until_s.get(name, 0.0)
        if self._over.done() or rests or request.reader != "native":
            return None
        if name not in self._servers:
            self._divide(len(self._servers) + 1)  # BEFORE the server starts, since it looks at its quota then
            settings = ReadSettings(
                consumer_config=request.config,
                include_headers=request.headers,
                include_timestamps=request.timestamps,
            )
            try:
                self._servers[name] = self._processes.start_server(name, self._quota, settings)
            except OSError as problem:
                log.warning("There is no server for seat %s: its workers read directly. %s", name, problem)
                return None
            self._tasks.begin(self._follow(name, self._servers[name]))
        server = self._servers[name]
        return None if server.busy or server.ended else server

    def _divide(self, seats: int) -> None:
        """Let each of so many seats hold an equal part of the bytes."""
        self._quota.set(self._prefetch_bytes // max(1, seats))

    async def _follow(self, name: str, server: Server) -> None:
        """Take the reports of a seat's server on its reads, until it ends."""
        try:
            while True:
                match await server.link.receive():
                    case Finished(rows=rows, ready=ready, sizes=sizes):
                        server.busy = False
                        served = Served(seat=name, by=server.reads_over, rows=rows, ready=ready, sizes=sizes)
                        await self._registry.report(served)
                    case WorkerGone():
                        server.busy = False
                    case CannotFetch(reason=reason, lasting=lasting):
                        # The server ends by itself after this message, and the next `receive` says so.
                        self._let_rest(name, reason, SEAT_SERVER_LASTING_REST_MS if lasting else SEAT_SERVER_REST_MS)
                        await self._registry.report(Resting(seat=name))
                    case other:
                        raise ChannelEnded(f"A seat's server sent a {type(other).__name__}.")
        except ChannelEnded:
            log.debug("the server of seat %s has ended", name)
        finally:
            self._let_go(name)

    def _let_rest(self, name: str, reason: str, rest_ms: int) -> None:
        """A seat's server cannot fetch natively, and ends. Each kind of reason is a warning once, since it may last."""
        kind = _NUMBERS.sub("", reason)
        self._rests_until_s[name] = time.monotonic() + rest_ms / 1000
        level = logging.DEBUG if kind in self._warned else logging.WARNING
        self._warned.add(kind)
        log.log(
            level,
            "No record is fetched ahead for seat %s, and its workers read directly, for %d s: %s.",
            name,
            rest_ms / 1000,
            reason,
        )

    def _let_go(self, name: str) -> None:
        server = self._servers.pop(name)
        server.link.socket.close()
        self._processes.release(server.process)
        self._divide(len(self._servers))
