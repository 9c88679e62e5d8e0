"""Reads one ticket on an executor: by the seat's warm server if this executor is the seat's home, else by itself.

Runs on: executor, in Spark's Python workers.

A worker asks its executor's `sidecar`, and starts it if there is none. Where none can be started, the worker asks the
registry on the driver by itself, and reads by itself: slower, the same rows.
"""

from __future__ import annotations

import errno
import hashlib
import hmac
import logging
import math
import os
import platform
import socket
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import IO, Final

import pyarrow as pa

from pyspark_kgroup.errors import ChannelEnded, KeyRefused, RegistryUnreachable, SeatRefused
from pyspark_kgroup.executor.range_reader import read_ranges
from pyspark_kgroup.executor.seat_server import received
from pyspark_kgroup.executor.spark_delays import spare_delays
from pyspark_kgroup.limits import SEAT_SERVER_SILENCE_MS, SIDECAR_RETRY_MS, SIDECAR_SILENCE_MS, SIDECAR_START_MS
from pyspark_kgroup.shared.arrow import last_offsets
from pyspark_kgroup.shared.channel import Channel, connect
from pyspark_kgroup.shared.messages import (
    Bind,
    Bound,
    CannotStart,
    Hello,
    Hung,
    NothingLeft,
    QueryMessage,
    Read,
    ReadDirectly,
    ReadFromServer,
    Ready,
    Refused,
    Served,
    SidecarParameters,
    parse,
    to_json,
)
from pyspark_kgroup.shared.tickets import Executor, Range, TicketReads
from spark_kgroup.model import TopicPartition

log = logging.getLogger(__name__)

Answer = ReadFromServer | ReadDirectly | Bound | NothingLeft | Refused
"""What a ticket reads, as a sidecar or the registry says."""

_SOCKET_PATH_MAX: Final = 107
"""sun_path of unix(7), without the NUL at its end."""

_INSIST_S: Final = 3.0
"""How long a worker insists that the registry tells what to read (a busy driver may miss one handshake)."""

_TRIES: Final = 2
"""How often a sidecar is asked: the first one may end at that very moment."""


class SidecarUnavailable(Exception):
    """This executor cannot have a sidecar, or it cannot be reached; its workers read by themselves."""


# ----------------------------------------------------------------------------------------------------- one ticket


def read_ticket(ticket: TicketReads) -> Iterator[pa.RecordBatch]:
    """Read what one ticket stands for.

    Raises:
        SeatRefused: the ticket's batch is over (LATE only).
        RegistryUnreachable: only the registry knows what to read, and it cannot be reached from here.
        KgroupError: as `read_ranges`.
    """
    spare_delays()
    return read_on(this_executor(), ticket)


def read_on(executor: Executor, ticket: TicketReads) -> Iterator[pa.RecordBatch]:
    """As `read_ticket`, for a worker of `executor`."""
    answer, channel = _asked(executor, ticket)
    try:
        match answer:
            case ReadFromServer(seat=seat, ranges=ranges) if channel is not None:
                yield from _served(executor, ticket, channel, seat, ranges)
            case ReadDirectly(seat=seat, ranges=ranges) | Bound(seat=seat, ranges=ranges):
                yield from _counted(read_ranges(ranges, ticket.settings), seat, channel)
            case NothingLeft():
                pass
            case _ if ticket.reads is not None:
                yield from read_ranges(ticket.reads.ranges, ticket.settings)
            case _:
                raise SeatRefused(ticket.scan_id, ticket.ticket)
    finally:
        if channel is not None:
            channel.close()


def _served(
    executor: Executor, ticket: TicketReads, channel: Channel, seat: str, ranges: Sequence[Range]
) -> Iterator[pa.RecordBatch]:
    """What the seat's server sends; if it breaks off, the rest is read here."""
    unread = {TopicPartition(r.topic, r.partition): r for r in ranges}
    try:
        for batch in received(channel.socket, ticket.settings.include_headers, SEAT_SERVER_SILENCE_MS / 1000):
            for partition, offset in last_offsets(batch).items():
                unread[partition] = unread[partition]._replace(start_offset=offset + 1)
            yield batch
    except OSError as problem:
        log.info("The server of seat %s broke off (%s): its worker goes on.", seat, problem)
        channel.close()
        if isinstance(problem, TimeoutError):
            _tell_hung(executor, ticket, seat)
        yield from read_ranges(tuple(unread.values()), ticket.settings)


def _tell_hung(executor: Executor, ticket: TicketReads, seat: str) -> None:
    """Let the sidecar replace a server that lives and does nothing."""
    with suppress(OSError, ChannelEnded):  # whoever finds it hung next says so
        channel = _connected(place_of(executor, ticket.key), ticket.key)
        if channel is not None:
            channel.send(to_json(Hung(seat=seat)))
            channel.close()


def _counted(batches: Iterator[pa.RecordBatch], seat: str, channel: Channel | None) -> Iterator[pa.RecordBatch]:
    """Pass `batches` on, and say in the end how many rows they had."""
    rows = 0
    for batch in batches:
        rows += batch.num_rows
        yield batch
    if channel is not None:
        with suppress(ChannelEnded):  # nobody counts any more
            channel.send(to_json(Served(seat=seat, by="worker", rows=rows, ready=0)))


def _asked(executor: Executor, ticket: TicketReads) -> tuple[Answer | None, Channel | None]:
    """What this ticket is to read and how, and the channel of whoever said so.

    Raises:
        RegistryUnreachable: the ticket does not say what to read, and nobody can be asked.
    """
    if not ticket.registry_port:
        return None, None  # nothing is to be fetched ahead (`prefetchBytes` 0)
    for _ in range(_TRIES):
        try:
            channel = _sidecar(executor, ticket)
            return _what_to_read(channel, _request(ticket)), channel
        except SidecarUnavailable as why:
            _tell_once("No sidecar on this executor: its workers read by themselves, which is slower. %s", why)
            break
        except ChannelEnded as ended:
            log.debug("the sidecar has gone: %s", ended)
    deadline_s = time.monotonic() + _INSIST_S
    while True:
        try:
            return _asked_directly(replace(executor, warm=False), ticket)
        except RegistryUnreachable as problem:
            if ticket.reads is not None:
                _tell_once("%s This executor reads what its tickets say.", problem)
                return None, None
            if time.monotonic() > deadline_s:  # in local mode a task has one attempt
                raise
            time.sleep(_INSIST_S / 20)


def _answer(channel: Channel, request: Read | Hello | Bind) -> QueryMessage:
    try:
        channel.send(to_json(request))
        return parse(channel.receive(SIDECAR_SILENCE_MS / 1000))
    except ChannelEnded:
        channel.close()
        raise


def _what_to_read(channel: Channel, request: Read | Bind) -> Answer:
    answer = _answer(channel, request)
    if isinstance(answer, Answer):
        return answer
    channel.close()
    raise ChannelEnded("The peer does not answer what a ticket reads.")


def _request(ticket: TicketReads) -> Read:
    return Read(
        scan=ticket.scan_id,
        ticket=ticket.ticket,
        config=ticket.settings.consumer_config,
        headers=ticket.settings.include_headers,
    )


def _asked_directly(executor: Executor, ticket: TicketReads) -> tuple[Answer | None, Channel | None]:
    if ticket.reads is not None and _failed_lately(_REGISTRY, executor, ticket.key):
        return None, None
    with _registry_reached(executor, ticket) as channel:
        _answer(channel, Hello(executor=executor, sidecar=False))
        answer = _what_to_read(channel, Bind(scan=ticket.scan_id, ticket=ticket.ticket, executor=executor))
    return answer, channel


@contextmanager
def _registry_reached(executor: Executor, ticket: TicketReads) -> Iterator[Channel]:
    """A channel to the registry, which stays open.

    Raises:
        RegistryUnreachable: it cannot be reached from here, or has gone meanwhile.
    """
    host = ticket.registry_host or driver_host()
    try:
        yield connect((host, ticket.registry_port), ticket.key)
    except (ChannelEnded, KeyRefused) as problem:
        _try_later(_REGISTRY, executor, ticket.key)
        raise RegistryUnreachable(host, ticket.registry_port, problem) from None


# --------------------------------------------------------------------------------------- what cannot be had for now

_REGISTRY: Final = "no-registry"
_SIDECAR: Final = "no-sidecar"
"""Marks in an executor's place: what one of its workers could not have, the others do not wait for."""

_failed_at_s: dict[tuple[str, str, bytes], float] = {}
"""The same in this process, for where no mark can be left: (mark, executor's key, query's key) -> when."""

_told: set[str] = set()


def _failed_lately(mark: str, executor: Executor, key: bytes) -> bool:
    if time.monotonic() - _failed_at_s.get((mark, executor.key, key), -math.inf) < SIDECAR_RETRY_MS / 1000:
        return True
    try:
        age_s = time.time() - place_of(executor, key).marked_wall_s(mark)
    except OSError:  # nobody has left one, or nobody can
        return False
    return abs(age_s) < SIDECAR_RETRY_MS / 1000  # below 0: the clock was set back


def _try_later(mark: str, executor: Executor, key: bytes) -> None:
    if not _failed_lately(mark, executor, key):  # or nobody would ever try again
        long_ago_s = time.monotonic() - SIDECAR_RETRY_MS / 1000
        for of_old in [which for which, at_s in list(_failed_at_s.items()) if at_s < long_ago_s]:
            _failed_at_s.pop(of_old, None)
        _failed_at_s[mark, executor.key, key] = time.monotonic()
        with suppress(OSError):  # each process finds out by itself then
            place_of(executor, key).mark(mark)


def _tell_once(text: str, problem: Exception) -> None:
    """Warn, once for each process: tasks come many times a second."""
    if text not in _told:
        _told.add(text)
        log.warning(text, problem)


# ------------------------------------------------------------------------------------------------- which executor


@cache
def this_executor() -> Executor:
    """The executor whose worker this process is: the nearest JVM among its ancestors."""
    host = platform.node()
    try:
        pid = os.getpid()
        while pid > 0:
            if _name_of(pid) == "java":
                command = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
                return Executor(
                    key=f"{host}:{pid}:{started(pid)}",
                    executor_id=_argument(command, "--executor-id") or "driver",
                    host=_argument(command, "--hostname") or host,
                    pid=pid,
                )
            pid = _parent_of(pid)
    except OSError as problem:  # no /proc here
        log.debug("which executor this is cannot be told: %s", problem)
    return Executor(key=f"{host}:{os.getppid()}", executor_id="", host=host, pid=os.getppid(), warm=False)


def started(pid: int) -> int:
    """When a process started, in clock ticks since boot (proc(5), stat): with its id, a name for it alone.

    Raises:
        OSError: there is no such process (any more).
    """
    return int(_stat(pid)[19])


def _stat(pid: int) -> list[str]:
    """Fields of /proc/PID/stat from the third on; the second may hold anything, spaces too."""
    return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()


def _parent_of(pid: int) -> int:
    return int(_stat(pid)[1])


def _name_of(pid: int) -> str:
    return Path(f"/proc/{pid}/comm").read_text(errors="replace").strip()


def _argument(command: list[str], name: str) -> str:
    return next((value for flag, value in pairwise(command) if flag == name), "")


def driver_host() -> str:
    """The driver's host as Spark knows it."""
    # Imported here: the sidecar imports this module, and needs nothing of Spark.
    from pyspark import TaskContext

    context = TaskContext.get()
    return (context.getLocalProperty("spark.driver.host") if context is not None else None) or "localhost"


# --------------------------------------------------------------------------------------------------- its sidecar


@dataclass(frozen=True, slots=True)
class Place:
    """Where the sidecar of one executor and one query is to be found: a folder that only this user can open."""

    folder: Path

    @property
    def socket(self) -> Path:
        """Where it listens."""
        return self.folder / "socket"

    @property
    def server(self) -> str:
        """The sidecar's name in a handshake: what a worker proves to it is of no use with any other server."""
        return f"sidecar {self.folder}"

    @contextmanager
    def reached(self) -> Iterator[Path]:
        """The socket by a name that is short enough for one, however deep the folder lies.

        Raises:
            OSError: there is no such folder, or it is not ours alone.
        """
        self._check()  # BEFORE anybody connects: whoever made the folder could answer
        if len(os.fsencode(self.socket)) <= _SOCKET_PATH_MAX:
            yield self.socket  # as people find it in the list of sockets
            return
        folder = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            yield Path(f"/proc/self/fd/{folder}") / self.socket.name
        finally:
            os.close(folder)

    @property
    def lock(self) -> Path:
        """Held by whoever starts a sidecar, or removes what it leaves."""
        return self.folder / "lock"

    @contextmanager
    def locked(self, timeout_s: float) -> Iterator[None]:
        """Hold the lock; the folder is there then.

        Raises:
            TimeoutError: somebody else held it for too long.
            OSError: the folder cannot be made, or is not ours alone.
        """
        deadline_s = time.monotonic() + timeout_s
        while True:
            self._make()
            if (held := self._opened()) is not None:
                with held:
                    if _locked(held.fileno()) and os.fstat(held.fileno()).st_nlink > 0:
                        yield
                        return
            if time.monotonic() > deadline_s:
                raise TimeoutError(f"{self.lock} is held by somebody else")
            time.sleep(0.01)

    def mark(self, name: str) -> None:
        """Leave a mark for the other workers of this executor; raises OSError as `locked`."""
        self._make()
        (self.folder / name).touch()

    def marked_wall_s(self, name: str) -> float:
        """When the mark was left last, in seconds since the epoch.

        Raises:
            OSError: it never was, or the folder is not ours alone.
        """
        self._check()
        return (self.folder / name).stat().st_mtime

    def _make(self) -> None:
        self.folder.mkdir(mode=0o700, exist_ok=True)
        self._check()

    def _check(self) -> None:
        found = self.folder.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or stat.S_IMODE(found.st_mode) & 0o077:
            raise PermissionError(errno.EPERM, "not a folder of this user alone", str(self.folder))

    def _opened(self) -> IO[str] | None:
        try:
            return self.lock.open("a")
        except FileNotFoundError:  # a sidecar may remove it, and the folder, as it ends
            return None

    def is_of(self, socket_inode: int) -> bool:
        """Whether the socket is still the one that a sidecar has made."""
        try:
            return self.socket.stat().st_ino == socket_inode
        except FileNotFoundError:
            return False

    def vacate(self, socket_inode: int) -> None:
        """Remove everything, unless it is another sidecar's by now, or about to be."""
        with suppress(OSError), self.lock.open("a") as held:
            if _locked(held.fileno()) and self.is_of(socket_inode):
                for left in self.folder.iterdir():
                    left.unlink()
                self.folder.rmdir()


def _locked(descriptor: int) -> bool:
    import fcntl  # here: there is none on Windows, where this module must import all the same

    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def place_of(executor: Executor, key: bytes) -> Place:
    """Where the sidecar of `executor` for the query with `key` is.

    Raises:
        OSError: it can be nowhere.
    """
    # With the key, of the executor: from the folders that are there, nobody can tell how the next one will be called.
    digest = hmac.digest(key, f"place of {executor.key}".encode(), "sha256").hex()[:16]
    name = f"{place_prefix()}{executor.pid}-{executor.key.rpartition(':')[2]}-{digest}"
    return Place(Path(tempfile.gettempdir()) / name)


def place_prefix() -> str:
    """What the names of all folders of this user begin with, among processes that see the same process ids."""
    processes = os.stat("/proc/self/ns/pid").st_ino
    host = hashlib.sha256(platform.node().encode()).hexdigest()[:8]  # the folder may be one of several hosts
    return f"kgroup-{os.geteuid()}-{host}-{processes}-"


def _sidecar(executor: Executor, ticket: TicketReads) -> Channel:
    """A channel to the sidecar of `executor`, which is started if there is none.

    Raises:
        SidecarUnavailable: it cannot be started here.
    """
    if not executor.warm or not hasattr(os, "pidfd_open"):
        raise SidecarUnavailable("This platform does not tell which executor a process belongs to, and when it ends.")
    try:
        place = place_of(executor, ticket.key)
        if (channel := _found(place, executor, ticket.key)) is not None:
            return channel
        with place.locked(SIDECAR_START_MS / 1000):
            if (channel := _found(place, executor, ticket.key)) is not None:
                return channel
            with _registry_reached(executor, ticket) as registry:
                registry.close()  # a sidecar, which starts slowly, could do nothing without it
            _start(place, executor, ticket)
        if (channel := _connected(place, ticket.key)) is not None:
            return channel
        problem: Exception = SidecarUnavailable("It ended as soon as it had started.")
    except (OSError, RegistryUnreachable, SidecarUnavailable, subprocess.SubprocessError) as failed:
        problem = failed
    _try_later(_SIDECAR, executor, ticket.key)
    raise SidecarUnavailable(str(problem)) from None


def _found(place: Place, executor: Executor, key: bytes) -> Channel | None:
    """A channel to the sidecar if there is one.

    Raises:
        SidecarUnavailable: there is none, and none could be started a while ago.
    """
    channel = _connected(place, key)
    if channel is None and _failed_lately(_SIDECAR, executor, key):
        raise SidecarUnavailable("It could not be started a while ago.")
    return channel


def _connected(place: Place, key: bytes) -> Channel | None:
    """A channel to the sidecar, None if nobody of ours answers there.

    Raises:
        OSError: the place is not ours alone; nobody was asked.
    """
    try:
        with place.reached() as path:
            return connect(path, key, place.server)
    except (FileNotFoundError, ChannelEnded, KeyRefused):
        return None


def _start(place: Place, executor: Executor, ticket: TicketReads) -> None:
    """Start a sidecar and wait until it listens. What it must know travels over its standard input."""
    ours, theirs = socket.socketpair()
    channel = Channel(ours)
    channel.trust()
    with ours:
        with theirs:
            sidecar = subprocess.Popen(
                [sys.executable, "-P", "-m", "pyspark_kgroup.executor.sidecar", ticket.query],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,  # a worker's own may be the JVM's
                env=_environment(),
                cwd="/",
                start_new_session=True,  # Spark ends its workers by their process group
            )
        try:
            channel.send(to_json(_start_parameters(place, executor, ticket)))
            answer = parse(channel.receive(SIDECAR_START_MS / 1000))
        except ChannelEnded as problem:
            sidecar.kill()
            answer = CannotStart(reason=f"It did not start: {problem}")
        sidecar.wait()  # what goes on is its child
    match answer:
        case Ready():
            return
        case CannotStart(reason=reason):
            raise SidecarUnavailable(reason)
    raise SidecarUnavailable("What was started is no sidecar.")


def _start_parameters(place: Place, executor: Executor, ticket: TicketReads) -> SidecarParameters:
    return SidecarParameters(
        folder=str(place.folder),
        key=ticket.key,
        registry_host=ticket.registry_host or driver_host(),
        registry_port=ticket.registry_port,
        executor=executor,
        prefetch_bytes=ticket.prefetch_bytes,
        idle_ms=ticket.idle_ms,
    )


def _environment() -> dict[str, str]:
    """Ours, so that the sidecar finds what the worker has found; one thread, since it forks."""
    path = os.pathsep.join(os.path.abspath(entry) for entry in sys.path)
    alone = {"OPENBLAS_NUM_THREADS": "1", "JE_ARROW_MALLOC_CONF": "background_thread:false"}
    return {**os.environ, "PYTHONPATH": path, **alone}
