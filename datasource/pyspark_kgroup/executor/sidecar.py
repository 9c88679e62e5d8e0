"""One process beside an executor, for one query: it knows the registry, and keeps a server for each seat at home here.

Runs on: executor. Linux. Started by `sidecar_start` as `python -m pyspark_kgroup.executor.sidecar QUERY`.

Seat servers are forks of this process, so that they share what it has imported and start in milliseconds: it has one
thread, and never a Kafka client of its own. It ends with its executor's JVM, with the query (the registry hangs up or
falls silent), and when nobody has asked for long; the kernel ends the seat servers with it.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import ipaddress
import logging
import mmap
import os
import shutil
import signal
import socket
import struct
import sys
import time
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.abc import MetaPathFinder
from itertools import count
from pathlib import Path
from typing import Any, Final, Literal, NoReturn, cast

import pyarrow as pa

from pyspark_kgroup.errors import ChannelEnded, KeyRefused
from pyspark_kgroup.executor.ahead import Ahead
from pyspark_kgroup.executor.place import Place, place_prefix
from pyspark_kgroup.executor.seat_server import SeatServer, prefetcher_of
from pyspark_kgroup.executor.this_executor import start_ticks
from pyspark_kgroup.limits import (
    ACCEPT_AGAIN_S,
    CHANNEL_BACKLOG,
    CHANNEL_HANDSHAKE_MS,
    CHANNEL_RECEIVE_BYTES,
    CHANNEL_REQUEST_BYTES_MAX,
    SIDECAR_HEARTBEAT_MS,
    SIDECAR_NETWORK_TIMEOUT_MS,
    SIDECAR_SILENCE_MS,
    SIDECAR_UNAUTHENTICATED_MAX,
)
from pyspark_kgroup.shared.channel import Challenge, Channel, Frames, Message, connect, frame, peer_is_us
from pyspark_kgroup.shared.messages import (
    Bind,
    Bound,
    CannotStart,
    Finished,
    Heartbeat,
    Hello,
    Homes,
    Hung,
    NothingLeft,
    QueryMessage,
    Read,
    ReadAtHome,
    ReadDirectly,
    ReadFromServer,
    Ready,
    Refused,
    Serve,
    Served,
    SidecarParameters,
    Welcome,
    WorkerGone,
    parse,
    to_json,
)
from pyspark_kgroup.shared.tickets import Executor, ReadSettings, SidecarAddress
from spark_kgroup.errors import KgroupError

log = logging.getLogger(__name__)

_PR_SET_PDEATHSIG: Final = 1
_PR_SET_NAME: Final = 15
"""prctl(2)."""

_LOOK_S: Final = 1.0
"""How often what is idle is looked for."""


class _Link:
    """A channel in the event loop. Nothing is read of what follows a message: the socket may be handed on."""

    def __init__(self, sock: socket.socket, *, trusted: bool) -> None:
        sock.setblocking(False)
        self.socket = sock
        self._frames = Frames()
        self._sending = asyncio.Lock()
        if trusted:
            self._frames.trust()

    async def authenticate(self, key: bytes, server: str) -> None:
        """Let the peer show that it holds the key, and means `server`.

        Raises:
            KeyRefused: it does not, and learned nothing.
            ChannelEnded: it hung up.
        """
        challenge = Challenge(key, server)
        await self._send(challenge.message)
        await self._send(challenge.answer(await self._receive()))
        self._frames.trust(CHANNEL_REQUEST_BYTES_MAX)

    async def send(self, message: QueryMessage, number: int | None = None) -> None:
        """Send `message`; with a number as its id, which the answer repeats. Raises ChannelEnded."""
        await self._send(to_json(message) if number is None else {**to_json(message), "id": number})

    async def _send(self, message: Message) -> None:
        async with self._sending:
            try:
                await asyncio.get_running_loop().sock_sendall(self.socket, frame(message))
            except OSError as problem:
                raise ChannelEnded(f"The peer is gone ({problem}).") from None

    async def send_with_socket(self, message: QueryMessage, sock: socket.socket) -> None:
        """Send `message` with `sock` attached, over a Unix socket; raises as `send`."""
        data = frame(to_json(message))
        async with self._sending:
            try:
                sent = socket.send_fds(self.socket, [data], [sock.fileno()])
                await asyncio.get_running_loop().sock_sendall(self.socket, data[sent:])
            except OSError as problem:
                raise ChannelEnded(f"The peer is gone ({problem}).") from None

    async def receive(self) -> QueryMessage:
        """The next message; raises ChannelEnded, also for what is none."""
        return parse(await self._receive())

    async def receive_numbered(self) -> tuple[object, QueryMessage]:
        """The next message and its id; raises as `receive`."""
        raw = await self._receive()
        return raw.get("id"), parse(raw)

    async def _receive(self) -> Message:
        loop = asyncio.get_running_loop()
        while (message := self._frames.next()) is None:
            try:
                data = await loop.sock_recv(self.socket, min(self._frames.wanted, CHANNEL_RECEIVE_BYTES))
            except OSError as problem:
                raise ChannelEnded(f"The peer is gone ({problem}).") from None
            if not data:
                raise ChannelEnded("The peer hung up.")
            self._frames.feed(data)
        return message


class _RegistryLink:
    """The sidecar's connection to the registry: several requests may wait for their answers."""

    def __init__(self, link: _Link) -> None:
        self._link = link
        self._ids = count()
        self._waiting: dict[object, asyncio.Future[QueryMessage]] = {}

    async def hear(self) -> NoReturn:
        """Take answers until the registry hangs up, which raises ChannelEnded."""
        while True:
            number, answer = await self._link.receive_numbered()
            waiting = self._waiting.pop(number, None) if isinstance(number, int) else None
            if waiting is not None and not waiting.done():
                waiting.set_result(answer)

    async def ask(self, request: QueryMessage) -> QueryMessage:
        """Ask, and wait for the answer.

        Raises:
            ChannelEnded: there is none.
        """
        number = next(self._ids)
        self._waiting[number] = asyncio.get_running_loop().create_future()
        await self._link.send(request, number)
        try:
            async with asyncio.timeout(SIDECAR_SILENCE_MS / 1000):
                return await self._waiting[number]
        except TimeoutError:
            raise ChannelEnded("The registry is silent.") from None
        finally:
            self._waiting.pop(number, None)

    async def report(self, message: Served) -> None:
        """Say what was read, which wants no answer."""
        await self._link.send(message)


@dataclass(slots=True)
class _SeatProcess:
    """A seat's server, as the sidecar sees it.

    Attributes:
        reads_over: whether it serves a worker of this executor, or one of another over the network.
    """

    pid: int
    link: _Link
    busy: bool = False
    reads_over: Literal["server", "network"] = "server"
    asked_at_s: float = field(default_factory=time.monotonic)
    ended: bool = False

    def end(self) -> None:
        """Kill it; whoever follows it hears of that. Safe to call twice: its process id may be another's by then."""
        if self.ended:
            return
        self.ended = True
        with suppress(ProcessLookupError, ChildProcessError):
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        with suppress(OSError):
            self.link.socket.shutdown(socket.SHUT_RDWR)  # not closed: the event loop waits for it


def request_of(message: QueryMessage) -> Read | Hung:
    """What a worker asks for; raises ChannelEnded if it is nothing that a sidecar does."""
    if isinstance(message, Read | Hung):
        return message
    raise ChannelEnded(f"A worker sent a {type(message).__name__} where it asks for something.")


def bind_of(message: QueryMessage) -> Bind:
    """What a worker that cannot reach the registry asks it by way of us; raises ChannelEnded if it is nothing such."""
    if isinstance(message, Bind):
        return message
    raise ChannelEnded(f"A worker sent a {type(message).__name__} where it asks what its ticket reads.")


def account_of(message: QueryMessage, seat: str) -> Served:
    """What a worker says of the seat that it has read directly: it goes to the registry in our name.

    Raises:
        ChannelEnded: it says something else.
    """
    match message:
        case Served(by="worker") if message.seat == seat:
            return message
    raise ChannelEnded(f"A worker sent a {type(message).__name__} where it says what it has read of {seat}.")


class Sidecar:
    """Answers this executor's workers until its executor or its query ends, or nobody asks any more.

    It answers workers of other executors as well: it serves the seats that have their home here, and asks the registry
    for those that cannot reach it.

    Args:
        parameters: as it was started with.
        registry: a socket to the registry, which knows this sidecar already.
        listener: where workers of this executor connect.
        network: where those of others do, and where that is; None if nowhere.
        executor_fd: of the executor's process.
    """

    def __init__(
        self,
        parameters: SidecarParameters,
        registry: socket.socket,
        listener: socket.socket,
        network: tuple[socket.socket, SidecarAddress] | None,
        executor_fd: int,
    ) -> None:
        self._key = parameters.key
        self._executor = parameters.executor
        self._prefetch_bytes = parameters.prefetch_bytes
        self._idle_s = parameters.idle_ms / 1000
        self._registry = _RegistryLink(_Link(registry, trusted=True))
        self._listener = listener
        self._place = Place(Path(parameters.folder))
        self._socket_inode = self._place.socket.stat().st_ino
        self._executor_fd = executor_fd
        self._share = mmap.mmap(-1, struct.calcsize("Q"))  # shared with the seat servers
        self._seats: dict[str, _SeatProcess] = {}
        self._network = network
        self._reads_as: Read | None = None  # the last of this executor's workers
        self._asked_at_s = time.monotonic()
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self) -> str:
        """Serve; returns why it is over."""
        loop = asyncio.get_running_loop()
        self._over: asyncio.Future[str] = loop.create_future()
        loop.add_reader(self._executor_fd, self._end, "its executor has ended")
        loop.add_signal_handler(signal.SIGTERM, self._end, "it has got SIGTERM")
        local = self._accept(self._listener, self._place.server, self._answer, peer_is_us)
        for lasting in (self._registry.hear(), self._beat(), local, self._look_for_idle()):
            self._begin(lasting)
        if self._network is not None:
            network, address = self._network
            self._begin(self._accept(network, address.server, self._answer_other, _keep_alive))
        try:
            return await self._over
        finally:
            for seat in self._seats.values():
                seat.end()
            self._place.vacate(self._socket_inode)

    def _end(self, why: str) -> None:
        if not self._over.done():
            self._over.set_result(why)

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._on_done)

    def _on_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (problem := task.exception()) is not None:
            if isinstance(problem, ChannelEnded):  # a worker's ends that worker alone (`_hear`): it is the registry's
                self._end(f"its connection to the registry has ended: {problem}")
            else:
                log.error("The sidecar has failed.", exc_info=problem)
                self._end(f"it has failed: {problem!r}")

    async def _beat(self) -> None:
        """Tell the registry that we live; its answer names the seats that have their home here still."""
        while True:
            match await self._registry.ask(Heartbeat()):
                case Homes(seats=homes):
                    pass
                case _:
                    raise ChannelEnded("The registry does not answer to a heartbeat.")
            for name, seat in list(self._seats.items()):
                if name not in homes and not seat.busy:
                    seat.end()
            await asyncio.sleep(SIDECAR_HEARTBEAT_MS / 1000)

    async def _look_for_idle(self) -> None:
        while True:
            await asyncio.sleep(min(_LOOK_S, self._idle_s))
            long_ago_s = time.monotonic() - self._idle_s
            for seat in list(self._seats.values()):
                if seat.busy:
                    self._asked_at_s = time.monotonic()
                elif seat.asked_at_s < long_ago_s:
                    seat.end()
            if self._asked_at_s < long_ago_s:
                self._end("nobody has asked for long")
            if not self._place.is_of(self._socket_inode):
                self._end("another one has taken its place")  # a worker found this one silent

    # ------------------------------------------------------------------------------------------------------ workers

    async def _accept(
        self,
        listener: socket.socket,
        server: str,
        answer: Callable[[_Link, QueryMessage], Awaitable[None]],
        may_be_ours: Callable[[socket.socket], bool],
    ) -> None:
        """Let workers connect.

        Args:
            listener: where they do.
            server: our name in their handshake.
            answer: what is done for one that has shown the key.
            may_be_ours: whether somebody who has connected is heard at all.
        """
        loop, warned = asyncio.get_running_loop(), False
        unauthenticated: dict[socket.socket, None] = {}  # the oldest first
        while True:
            try:
                client, _ = await loop.sock_accept(listener)
            except OSError as problem:  # mostly, no file descriptor is left; who waits for too long starts another one
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
            if len(unauthenticated) >= SIDECAR_UNAUTHENTICATED_MAX:
                with suppress(OSError):
                    next(iter(unauthenticated)).shutdown(socket.SHUT_RDWR)
            unauthenticated[client] = None
            self._begin(self._hear(client, server, answer, unauthenticated))

    async def _hear(
        self,
        client: socket.socket,
        server: str,
        answer: Callable[[_Link, QueryMessage], Awaitable[None]],
        unauthenticated: dict[socket.socket, None],
    ) -> None:
        """One worker, from its greeting to the answer."""
        link = _Link(client, trusted=False)
        try:
            try:
                async with asyncio.timeout(CHANNEL_HANDSHAKE_MS / 1000):
                    await link.authenticate(self._key, server)
                    request = await link.receive()
            finally:
                del unauthenticated[client]
            await answer(link, request)
        except (ChannelEnded, KeyRefused, TimeoutError) as problem:
            log.debug("a worker has gone: %s", problem)
        finally:
            client.close()

    async def _answer_other(self, link: _Link, message: QueryMessage) -> None:
        """What a worker of another executor asks for: a seat that has its home here, or what the registry knows."""
        self._asked_at_s = time.monotonic()
        match message:
            case ReadAtHome():
                await self._serve_other(link, message)
            case Hello():
                await link.send(Welcome())
                async with asyncio.timeout(CHANNEL_HANDSHAKE_MS / 1000):
                    asked = bind_of(await link.receive())
                answer = await self._registry.ask(asked)
                await link.send(answer)
                if isinstance(answer, Bound):
                    await self._registry.report(account_of(await link.receive(), answer.seat))
            case _:
                raise ChannelEnded(f"A worker sent a {type(message).__name__} where it asks for something.")

    async def _serve_other(self, link: _Link, asked: ReadAtHome) -> None:
        bound = await self._registry.ask(Bind(scan=asked.scan, ticket=asked.ticket, executor=self._executor))
        if not isinstance(bound, Bound):
            raise ChannelEnded("The registry does not name the seat of a read.")
        seat = None
        if bound.at_home and self._reads_as is not None:
            seat = self._idle_seat(bound.seat, self._reads_as)
        if seat is not None:
            await self._let_serve(seat, link, bound, "network")
        else:
            await link.send(ReadDirectly(seat=bound.seat, ranges=bound.ranges))

    async def _answer(self, link: _Link, message: QueryMessage) -> None:
        request = request_of(message)
        if isinstance(request, Hung):
            if (hung := self._seats.get(request.seat)) is not None:
                hung.end()
            return
        self._asked_at_s = time.monotonic()
        self._reads_as = request
        bind = Bind(scan=request.scan, ticket=request.ticket, executor=self._executor)
        match await self._registry.ask(bind):
            case NothingLeft() | Refused() as answer:
                await link.send(answer)
            case Bound(seat=name, at_home=True) as bound if (seat := self._idle_seat(name, request)) is not None:
                await self._let_serve(seat, link, bound, "server")
            case Bound(seat=name, ranges=ranges, home=home):
                await link.send(ReadDirectly(seat=name, ranges=ranges, home=home))
                await self._registry.report(account_of(await link.receive(), name))
            case _:
                raise ChannelEnded("The registry does not answer what a ticket reads.")

    async def _let_serve(
        self, seat: _SeatProcess, link: _Link, bound: Bound, over: Literal["server", "network"]
    ) -> None:
        seat.busy, seat.reads_over, seat.asked_at_s = True, over, time.monotonic()
        try:
            await link.send(ReadFromServer(seat=bound.seat, ranges=bound.ranges))
        except ChannelEnded:
            seat.busy = False
            raise
        try:
            async with asyncio.timeout(CHANNEL_HANDSHAKE_MS / 1000):
                await seat.link.send_with_socket(Serve(ranges=bound.ranges, owned=bound.owned), link.socket)
        except (ChannelEnded, TimeoutError):  # it ends just now, or hangs: its worker hears that
            seat.end()

    # ------------------------------------------------------------------------------------------------- seat servers

    def _idle_seat(self, name: str, request: Read) -> _SeatProcess | None:
        """The seat's server, started if there is none; None if it is busy, about to end, or cannot be had."""
        if name not in self._seats:
            self._divide(len(self._seats) + 1)  # BEFORE it starts, which looks at its share
            try:
                self._seats[name] = self._fork(name, request)
            except OSError as problem:
                log.warning("There is no server for seat %s: its workers read directly. %s", name, problem)
                return None
            self._begin(self._follow(name, self._seats[name]))
        seat = self._seats[name]
        return None if seat.busy or seat.ended else seat

    def _divide(self, seats: int) -> None:
        """Let each of so many seats hold its share."""
        struct.pack_into("Q", self._share, 0, self._prefetch_bytes // max(1, seats))

    async def _follow(self, name: str, seat: _SeatProcess) -> None:
        """Take what a seat's server says of its reads, until it ends."""
        try:
            while True:
                match await seat.link.receive():
                    case Finished(rows=rows, ready=ready):
                        seat.busy = False
                        await self._registry.report(Served(seat=name, by=seat.reads_over, rows=rows, ready=ready))
                    case WorkerGone():
                        seat.busy = False
                    case other:
                        raise ChannelEnded(f"A seat's server sent a {type(other).__name__}.")
        except ChannelEnded:
            log.debug("the server of seat %s has ended", name)
        finally:
            seat.end()
            seat.link.socket.close()
            del self._seats[name]
            self._divide(len(self._seats))

    def _fork(self, name: str, request: Read) -> _SeatProcess:
        ours, theirs = socket.socketpair()
        try:
            pid = os.fork()
        except OSError:
            ours.close()
            theirs.close()
            raise
        if pid == 0:
            _become_seat_server(name, theirs, self._share, request)
        theirs.close()
        return _SeatProcess(pid, _Link(ours, trusted=True))


def _become_seat_server(name: str, control: socket.socket, share: mmap.mmap, request: Read) -> NoReturn:
    """What a fork does: nothing of the sidecar's goes on in it."""
    try:
        gc.freeze()  # nothing of the sidecar's is collected here: that would close descriptors
        libc = ctypes.CDLL(None)
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        libc.prctl(_PR_SET_NAME, f"seat {name}"[-15:].encode())
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        for descriptor in map(int, os.listdir("/proc/self/fd")):
            if descriptor > 2 and descriptor != control.fileno():
                with suppress(OSError):  # the one that listed them
                    os.close(descriptor)
        control.setblocking(True)
        settings = ReadSettings(consumer_config=request.config, reader=request.reader, include_headers=request.headers)
        ahead = Ahead()
        prefetcher = prefetcher_of(ahead, lambda: struct.unpack_from("Q", share)[0], settings)
        SeatServer(control, ahead, prefetcher).run()
    except BaseException as problem:  # whatever it is, this process must not become a second sidecar
        log.warning(
            "The server of seat %s ends: %r. Its worker goes on, and the next read starts another.", name, problem
        )
        log.debug("it ends", exc_info=True)
    finally:
        os._exit(0)


# -------------------------------------------------------------------------------------------------------- the process


def main() -> None:
    """Start as the parameters on standard input say, and tell there whether that worked."""
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    parent = Channel(socket.socket(fileno=os.dup(0)))
    parent.trust()
    parameters = parent.hear(CHANNEL_HANDSHAKE_MS / 1000)
    if not isinstance(parameters, SidecarParameters):
        raise ChannelEnded("Whoever started this sidecar did not say for what.")
    if os.fork():
        os._exit(0)  # the worker that started us waits for this, and is not our parent any more
    _warm_up()
    try:
        sidecar = _start(parameters)
    except (OSError, KgroupError) as problem:
        with suppress(ChannelEnded):
            parent.say(CannotStart(reason=str(problem)))
        return
    nowhere = os.open(os.devnull, os.O_RDWR)
    os.dup2(nowhere, 0)
    os.close(nowhere)
    with suppress(ChannelEnded):  # the worker has ended: it did not wait
        parent.say(Ready())
    parent.close()
    why = asyncio.run(sidecar.run())
    log.info("The sidecar ends: %s.", why)


class _NoPandas:
    """Stands in `sys.meta_path` and says that pandas is not installed."""

    @staticmethod
    def find_spec(name: str, _path: object = None, _target: object = None) -> None:
        """As importlib wants it."""
        if name == "pandas":
            raise ImportError("not needed here")


def _warm_up() -> None:
    """Let PyArrow do once, for all forks, what it does at its first conversion: it looks for pandas, and finds none.

    Measured: without pandas a seat's server is 40 MB smaller, and the first one answers half a second sooner.
    """
    sys.meta_path.insert(0, cast("MetaPathFinder", _NoPandas))
    pa.scalar(0)
    del sys.meta_path[0]


def _start(parameters: SidecarParameters) -> Sidecar:
    """A sidecar that listens, and that the registry knows.

    Raises:
        OSError: the executor has gone, or its folder.
        KgroupError: the registry cannot be reached.
    """
    place, executor = Place(Path(parameters.folder)), parameters.executor
    executor_fd = os.pidfd_open(executor.pid)
    if executor.key.rpartition(":")[2] != str(start_ticks(executor.pid)):
        raise ProcessLookupError("the executor has gone")
    registry = connect((parameters.registry_host, parameters.registry_port), parameters.key)
    network = _listen_to_others(registry, executor)
    hello = Hello(executor=executor, sidecar=True, address=network[1] if network is not None else None)
    if not isinstance(registry.ask(hello, CHANNEL_HANDSHAKE_MS / 1000), Welcome):
        raise ChannelEnded("The registry does not answer to a greeting.")
    _sweep(place.folder.parent)
    place.socket.unlink(missing_ok=True)  # of one that was killed
    listener = socket.socket(socket.AF_UNIX)
    with place.short_socket_path() as path:
        listener.bind(str(path))
    listener.listen(CHANNEL_BACKLOG)
    listener.setblocking(False)
    return Sidecar(parameters, registry.socket, listener, network, executor_fd)


def _listen_to_others(registry: Channel, executor: Executor) -> tuple[socket.socket, SidecarAddress] | None:
    """A socket for workers of other executors, and where they find it; None if there are none, or there can be no such.

    It is where this executor is reached by others, as Spark knows it, unless the driver is reached by the loopback
    interface: then the others are on this host, and nobody else has to know of it.
    """
    if executor.executor_id in ("", "driver"):  # local mode has one executor
        return None
    ours = registry.socket.getsockname()[0]
    host = ours if ipaddress.ip_address(ours.partition("%")[0]).is_loopback else executor.host.strip("[]")
    try:
        family, _, _, _, address = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0]
        listener = socket.create_server(address[:2], family=family, backlog=CHANNEL_BACKLOG)
    except OSError as problem:
        log.info("Workers of other executors cannot reach this one: %s does not listen (%s).", host, problem)
        return None
    listener.setblocking(False)
    return listener, SidecarAddress(host, listener.getsockname()[1], executor.key)


def _keep_alive(client: socket.socket) -> bool:
    """Let a connection over the network end when the other host has gone without a word; whether it is there still."""
    try:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        client.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, SIDECAR_SILENCE_MS // 1000)
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, SIDECAR_SILENCE_MS // 1000)
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, SIDECAR_NETWORK_TIMEOUT_MS)
    except OSError:
        return False
    return True


def _sweep(folders: Path) -> None:
    """Remove what sidecars left behind that were killed together with their executors."""
    prefix = place_prefix()
    for folder in folders.glob(f"{prefix}*"):
        pid, _, rest = folder.name.removeprefix(prefix).partition("-")
        try:
            alive = str(start_ticks(int(pid))) == rest.partition("-")[0]
        except (OSError, ValueError):
            alive = False
        with suppress(FileNotFoundError):  # somebody else sweeps as well
            if not alive and folder.lstat().st_uid == os.geteuid():
                shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
