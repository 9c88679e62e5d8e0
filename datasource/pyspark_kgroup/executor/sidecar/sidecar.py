"""One process beside an executor, for all queries of an application: it keeps the servers of the seats at home there.

Runs on: executor. Linux. Started by `sidecar_start` as `python -m pyspark_kgroup.executor.sidecar.sidecar EXECUTOR`.

The processes of seats' servers are forks of this one (`seat_processes`): it has one thread, and never a Kafka client of
its own. A worker hands it each query, with a connection to the query's registry (`sidecar_query`). It ends with its
executor's JVM, or with its last query. The kernel ends its forks with it.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from importlib.abc import MetaPathFinder
from pathlib import Path
from typing import Final, cast

import pyarrow as pa

from pyspark_kgroup.errors import ChannelEnded, KeyRefused
from pyspark_kgroup.executor.sidecar.seat_processes import SeatProcesses
from pyspark_kgroup.executor.sidecar.sidecar_link import Link
from pyspark_kgroup.executor.sidecar.sidecar_query import SidecarQuery
from pyspark_kgroup.executor.sidecar_dir import SidecarDir
from pyspark_kgroup.limits import (
    ACCEPT_AGAIN_S,
    CHANNEL_BACKLOG,
    CHANNEL_HANDSHAKE_MS,
    SIDECAR_NETWORK_TIMEOUT_MS,
    SIDECAR_SILENCE_MS,
    SIDECAR_UNAUTHENTICATED_MAX,
)
from pyspark_kgroup.shared import process_folder
from pyspark_kgroup.shared.accept import next_connection
from pyspark_kgroup.shared.available_cpus import available_cpus
from pyspark_kgroup.shared.channel import Channel, peer_is_us
from pyspark_kgroup.shared.messages import (
    AddQuery,
    CannotStart,
    Hello,
    Hung,
    QueryMessage,
    Read,
    ReadAtHome,
    Ready,
    SidecarParameters,
    UnknownQuery,
)
from pyspark_kgroup.shared.tickets import Executor, SidecarAddress
from pyspark_kgroup.shared.unauthenticated import Unauthenticated
from spark_kgroup.tasks import TaskSet

log = logging.getLogger(__name__)

_LOOK_S: Final = 1.0
"""How often the sidecar looks for idle servers and queries."""


def expect_request(message: QueryMessage) -> Read | Hung | AddQuery:
    """`message` as a request of a worker's. Raises ChannelEnded if a sidecar does not serve such requests."""
    if isinstance(message, Read | Hung | AddQuery):
        return message
    raise ChannelEnded(f"A worker sent a {type(message).__name__}, which is no request to a sidecar.")


class Sidecar:
    """Answers this executor's workers until its executor ends, or its last query.

    It answers workers of other executors as well: it serves the seats that have their home here, and asks the registry
    for those that cannot reach it.

    Args:
        parameters: as it was started with.
        listener: where workers of this executor connect.
        network: where workers of other executors connect, and its address. None if they cannot.
        executor_fd: of the executor's process.
    """

    def __init__(
        self,
        parameters: SidecarParameters,
        listener: socket.socket,
        network: tuple[socket.socket, SidecarAddress] | None,
        executor_fd: int,
    ) -> None:
        self._key = parameters.key
        self._executor = parameters.executor
        self._listener = listener
        self._place = SidecarDir(Path(parameters.folder))
        self._socket_inode = self._place.socket.stat().st_ino
        self._executor_fd = executor_fd
        self._network = network
        self._processes = SeatProcesses(parameters.executor.cores or available_cpus())
        self._queries: dict[str, SidecarQuery] = {}
        self._tasks = TaskSet(self._on_failure)

    async def run(self, asked: AddQuery, registry: socket.socket, tell: Callable[[Ready | CannotStart], None]) -> str:
        """Serve until the sidecar is to end. Returns why.

        Args:
            asked: the first query.
            registry: a connection to its registry.
            tell: gives the answer to the worker that started the sidecar.
        """
        loop = asyncio.get_running_loop()
        self._over: asyncio.Future[str] = loop.create_future()
        loop.add_reader(self._executor_fd, self._end, "its executor has ended")  # pidfd_open(2): readable at the end
        loop.add_signal_handler(signal.SIGTERM, self._end, "it has got SIGTERM")
        local = self._accept(self._listener, self._place.server, self._answer, peer_is_us)
        for lasting in (local, self._look_for_idle()):
            self._tasks.begin(lasting)
        tell(await self._add_query(asked, registry))
        if self._network is not None:
            network, address = self._network
            self._tasks.begin(self._accept(network, address.server, self._answer_other, _keep_alive))
        try:
            return await self._over
        finally:
            self._processes.end()
            self._place.vacate(self._socket_inode)
            process_folder.sweep()

    def _end(self, why: str) -> None:
        if not self._over.done():
            self._over.set_result(why)

    def _on_failure(self, problem: BaseException) -> None:
        log.error("The sidecar has failed.", exc_info=problem)
        self._end(f"it has failed: {problem!r}")

    async def _look_for_idle(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_S)
            now_s = time.monotonic()
            for query in list(self._queries.values()):
                query.look_for_idle(now_s)
            if not self._place.has_socket(self._socket_inode):
                self._end("another one has taken its place")  # a worker found this one silent

    # ------------------------------------------------------------------------------------------------------ queries

    async def _add_query(self, asked: AddQuery, registry: socket.socket) -> Ready | CannotStart:
        """Serve one more query, if its registry lets us. A query that is served already keeps its connection."""
        if asked.query in self._queries:
            registry.close()
            return Ready()
        query = SidecarQuery(asked, self._executor, Link(registry, trusted=True), self._processes)
        # BEFORE the greeting: a second worker may hand over the same query meanwhile.
        self._queries[asked.query] = query
        try:
            await query.greet(self._network[1] if self._network is not None else None)
        except ChannelEnded as problem:
            await self._forget(asked.query, str(problem))
            return CannotStart(reason=str(problem))
        self._tasks.begin(self._serve(asked.query, query))
        return Ready()

    async def _serve(self, name: str, query: SidecarQuery) -> None:
        await self._forget(name, await query.run())

    async def _forget(self, name: str, why: str) -> None:
        log.info("Query %s is over: %s.", name, why)
        query = self._queries.pop(name)
        await query.end()
        if not self._queries:
            self._end(f"its last query is over: {why}")

    # ------------------------------------------------------------------------------------------------------ workers

    async def _accept(
        self,
        listener: socket.socket,
        server: str,
        answer: Callable[[Link, QueryMessage], Awaitable[None]],
        may_be_ours: Callable[[socket.socket], bool],
    ) -> None:
        """Let workers connect.

        Args:
            listener: where they do.
            server: our name in their handshake.
            answer: serves the request of a worker that has shown the key.
            may_be_ours: whether a peer that has connected is heard at all.
        """
        warned = False
        unauthenticated = Unauthenticated[socket.socket](SIDECAR_UNAUTHENTICATED_MAX)
        room = asyncio.Semaphore(SIDECAR_UNAUTHENTICATED_MAX)
        while True:
            await asyncio.sleep(0)  # while peers wait, the next line does not yield: let other tasks run between two
            try:
                client, address = await next_connection(listener)
            except OSError as problem:
                # Mostly, no file descriptor is left. A worker that waits for too long starts another sidecar.
                if not warned:
                    log.warning(
                        "The sidecar cannot accept connections of workers for now: %s. If descriptors are missing, "
                        "raise the limit (ulimit -n) where executors start.",
                        problem.strerror,
                    )
                warned = True
                await asyncio.sleep(ACCEPT_AGAIN_S)
                continue
            if not may_be_ours(client):
                client.close()
                continue
            if (too_many := unauthenticated.add(client, address[0] if address else "")) is not None:
                with suppress(OSError):
                    too_many.shutdown(socket.SHUT_RDWR)  # its `_hear` closes it
            self._tasks.begin(self._hear(client, server, answer, unauthenticated, room))
            await room.acquire()  # the descriptor of a peer that goes is closed BEFORE the next peer gets one

    async def _hear(
        self,
        client: socket.socket,
        server: str,
        answer: Callable[[Link, QueryMessage], Awaitable[None]],
        unauthenticated: Unauthenticated[socket.socket],
        room: asyncio.Semaphore,
    ) -> None:
        """Serve one worker, from its greeting to the answer."""
        link = Link(client, trusted=False)
        try:
            try:
                async with asyncio.timeout(CHANNEL_HANDSHAKE_MS / 1000):
                    await link.authenticate(self._key, server)
                    request = await link.receive()
            finally:
                unauthenticated.discard(client)
                room.release()
            await answer(link, request)
        except (ChannelEnded, KeyRefused, TimeoutError) as problem:
            log.debug("a worker has gone: %s", problem)
        finally:
            client.close()

    async def _answer(self, link: Link, message: QueryMessage) -> None:
        request = expect_request(message)
        if isinstance(request, AddQuery):
            await link.send(await self._add_query(request, await link.receive_socket()))
        elif (query := self._queries.get(request.query)) is None:
            await link.send(UnknownQuery())
        elif isinstance(request, Hung):
            query.report_hung(request.seat)
        else:
            await query.answer(link, request)

    async def _answer_other(self, link: Link, message: QueryMessage) -> None:
        """Answer a worker of another executor, about a seat with its home here, or one that asks for the registry."""
        if not isinstance(message, ReadAtHome | Hung | Hello) or (query := self._queries.get(message.query)) is None:
            raise ChannelEnded(f"A worker sent a {type(message).__name__}, which is no request to a sidecar.")
        match message:
            case ReadAtHome():
                await query.answer_other(link, message)
            case Hung():
                query.report_hung(message.seat)
            case Hello():
                await query.ask_for(link)


# -------------------------------------------------------------------------------------------------------- the process


def main() -> None:
    """Start as the parameters on standard input say, and tell there whether that worked."""
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    parent = Channel(socket.socket(fileno=os.dup(0)))  # a copy, since descriptor 0 is replaced below
    parent.trust()
    try:
        parameters = parent.hear(CHANNEL_HANDSHAKE_MS / 1000)
        query = parent.hear(CHANNEL_HANDSHAKE_MS / 1000)
        byte, descriptors, _, _ = socket.recv_fds(parent.socket, 1, 1)
    except (ChannelEnded, OSError):
        byte = b""
    if not byte:
        return  # the worker has died, as after a task that failed: the next one starts another sidecar
    if not isinstance(parameters, SidecarParameters):
        raise ChannelEnded("The worker that started this sidecar sent no parameters.")
    if not isinstance(query, AddQuery) or not descriptors:
        raise ChannelEnded("The worker that started this sidecar named no query.")
    if os.fork():
        os._exit(0)  # the worker that started us waits for this, and is not our parent any more
    _warm_up()
    try:
        sidecar = _start(parameters)
    except OSError as problem:
        with suppress(ChannelEnded):
            parent.say(CannotStart(reason=str(problem)))
        return
    # Descriptor 0 is the worker's socket: this process and its forks would keep it open after `parent` is closed.
    nowhere = os.open(os.devnull, os.O_RDWR)
    os.dup2(nowhere, 0)
    os.close(nowhere)

    def tell(answer: Ready | CannotStart) -> None:
        with suppress(ChannelEnded):  # the worker has ended: it did not wait
            parent.say(answer)
        parent.close()

    why = asyncio.run(sidecar.run(query, socket.socket(fileno=descriptors[0]), tell))
    log.info("The sidecar ends: %s.", why)


class _NoPandas:
    """Stands in `sys.meta_path` and says that pandas is not installed."""

    @staticmethod
    def find_spec(name: str, _path: object = None, _target: object = None) -> None:
        """As importlib calls it: pandas cannot be imported, and other finders find all other modules."""
        if name == "pandas":
            raise ImportError("not needed here")


def _warm_up() -> None:
    """Let PyArrow look for pandas once for all forks, as it does at its first conversion, and find none.

    Measured: without pandas a seat's server is 40 MB smaller, and the first one answers half a second sooner.
    """
    sys.meta_path.insert(0, cast("MetaPathFinder", _NoPandas))
    pa.scalar(0)
    del sys.meta_path[0]


def _start(parameters: SidecarParameters) -> Sidecar:
    """A sidecar that listens. Raises OSError if the executor has gone, or its folder."""
    place, executor = SidecarDir(Path(parameters.folder)), parameters.executor
    executor_fd = os.pidfd_open(executor.pid)
    # AFTER the pidfd is open: it stays with its process, so this proves that it is not a later one with the same pid.
    if executor.key.rpartition(":")[2] != str(process_folder.start_ticks(executor.pid)):
        raise ProcessLookupError("the executor has gone")
    network = _listen_to_others(parameters.host, executor) if parameters.host else None
    process_folder.sweep()
    place.socket.unlink(missing_ok=True)  # of a sidecar that was killed
    listener = socket.socket(socket.AF_UNIX)
    with place.short_socket_path() as path:
        listener.bind(str(path))
    listener.listen(CHANNEL_BACKLOG)
    listener.setblocking(False)
    return Sidecar(parameters, listener, network, executor_fd)


def _listen_to_others(host: str, executor: Executor) -> tuple[socket.socket, SidecarAddress] | None:
    """A socket for workers of other executors, and its address, or None if this host cannot listen there."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0]
        listener = socket.create_server(address[:2], family=family, backlog=CHANNEL_BACKLOG)
    except OSError as problem:
        log.info("Workers of other executors cannot reach this one: %s does not listen (%s).", host, problem)
        return None
    listener.setblocking(False)
    return listener, SidecarAddress(host, listener.getsockname()[1], executor.key)


def _keep_alive(client: socket.socket) -> bool:
    """Let the kernel end a connection whose other host vanishes. False if the connection has ended already."""
    try:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        client.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, SIDECAR_SILENCE_MS // 1000)
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, SIDECAR_SILENCE_MS // 1000)
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, SIDECAR_NETWORK_TIMEOUT_MS)
    except OSError:
        return False
    return True


if __name__ == "__main__":
    main()
