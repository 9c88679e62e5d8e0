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
import logging
import mmap
import os
import shutil
import signal
import socket
import struct
import sys
import time
from collections.abc import Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.abc import MetaPathFinder
from itertools import count
from pathlib import Path
from typing import Any, Final, NoReturn, cast

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
from pyspark_kgroup.shared.tickets import ReadSettings
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
    """A seat's server, as the sidecar sees it."""

    pid: int
    link: _Link
    busy: bool = False
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
    """Answers this executor's workers until its executor or its query ends, or nobody asks any more."""

    def __init__(
        self, parameters: SidecarParameters, registry: socket.socket, listener: socket.socket, executor_fd: int
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
        self._unauthenticated: dict[socket.socket, None] = {}  # the oldest first
        self._asked_at_s = time.monotonic()
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self) -> str:
        """Serve; returns why it is over."""
        loop = asyncio.get_running_loop()
        self._over: asyncio.Future[str] = loop.create_future()
        loop.add_reader(self._executor_fd, self._end, "its executor has ended")
        loop.add_signal_handler(signal.SIGTERM, self._end, "it has got SIGTERM")
        for lasting in (self._registry.hear(), self._beat(), self._accept(), self._look_for_idle()):
            self._begin(lasting)
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

    async def _accept(self) -> None:
        loop, warned = asyncio.get_running_loop(), False
        while True:
            try:
                client, _ = await loop.sock_accept(self._listener)
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
            if not peer_is_us(client):
                client.close()
                continue
            if len(self._unauthenticated) >= SIDECAR_UNAUTHENTICATED_MAX:
                with suppress(OSError):
                    next(iter(self._unauthenticated)).shutdown(socket.SHUT_RDWR)
            self._unauthenticated[client] = None
            self._begin(self._hear(client))

    async def _hear(self, client: socket.socket) -> None:
        """One worker, from its greeting to the answer."""
        link = _Link(client, trusted=False)
        try:
            try:
                async with asyncio.timeout(CHANNEL_HANDSHAKE_MS / 1000):
                    await link.authenticate(self._key, self._place.server)
                    request = request_of(await link.receive())
            finally:
                del self._unauthenticated[client]
            await self._answer(link, request)
        except (ChannelEnded, KeyRefused, TimeoutError) as problem:
            log.debug("a worker has gone: %s", problem)
        finally:
            client.close()

    async def _answer(self, link: _Link, request: Read | Hung) -> None:
        if isinstance(request, Hung):
            if (hung := self._seats.get(request.seat)) is not None:
                hung.end()
            return
        self._asked_at_s = time.monotonic()
        bind = Bind(scan=request.scan, ticket=request.ticket, executor=self._executor)
        match await self._registry.ask(bind):
            case NothingLeft() | Refused() as answer:
                await link.send(answer)
            case Bound(seat=name, at_home=True) as bound if (seat := self._idle_seat(name, request)) is not None:
                seat.busy = True
                await self._let_serve(seat, link, bound)
            case Bound(seat=name, ranges=ranges):
                await link.send(ReadDirectly(seat=name, ranges=ranges))
                await self._registry.report(account_of(await link.receive(), name))
            case _:
                raise ChannelEnded("The registry does not answer what a ticket reads.")

    async def _let_serve(self, seat: _SeatProcess, link: _Link, bound: Bound) -> None:
        seat.asked_at_s = time.monotonic()
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
                        await self._registry.report(Served(seat=name, by="server", rows=rows, ready=ready))
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
    if not isinstance(registry.ask(Hello(executor=executor, sidecar=True), CHANNEL_HANDSHAKE_MS / 1000), Welcome):
        raise ChannelEnded("The registry does not answer to a greeting.")
    _sweep(place.folder.parent)
    place.socket.unlink(missing_ok=True)  # of one that was killed
    listener = socket.socket(socket.AF_UNIX)
    with place.short_socket_path() as path:
        listener.bind(str(path))
    listener.listen(CHANNEL_BACKLOG)
    listener.setblocking(False)
    return Sidecar(parameters, registry.socket, listener, executor_fd)


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
