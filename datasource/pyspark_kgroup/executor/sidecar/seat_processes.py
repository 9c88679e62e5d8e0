"""The processes in which seats have their servers, as many as the executor runs tasks at once.

Runs on: executor. Linux.

Each is a fork of the `sidecar`: it shares the modules that the sidecar has imported, and starts in milliseconds. The
seats of all queries are spread over the processes, a thread each (`seat_server`). The executor's own tasks read
no more seats at once than it runs tasks, and guests of other executors come on top. A server's work, mostly in C, holds
no lock of Python's. A process ends with its last seat,
so that its memory is free, and with the sidecar.
"""

from __future__ import annotations

import ctypes
import gc
import logging
import mmap
import os
import signal
import socket
import struct
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, Literal, NoReturn

import pyarrow as pa

from pyspark_kgroup.errors import ChannelEnded
from pyspark_kgroup.executor.native.decode import FallbackToLibrdkafka
from pyspark_kgroup.executor.native.reader_setup import CredentialsUnusable
from pyspark_kgroup.executor.sidecar.prefetch_buffer import PrefetchBuffer
from pyspark_kgroup.executor.sidecar.seat_server import SeatServer, make_prefetcher
from pyspark_kgroup.executor.sidecar.sidecar_link import Link
from pyspark_kgroup.limits import CHANNEL_SEND_MS
from pyspark_kgroup.shared.channel import Frames, frame
from pyspark_kgroup.shared.messages import CannotFetch, StartSeatServer, parse, to_json
from pyspark_kgroup.shared.tickets import ReadSettings

log = logging.getLogger(__name__)

_PR_SET_PDEATHSIG: Final = 1
_PR_SET_NAME: Final = 15
"""prctl(2)."""

_SIZE: Final = struct.Struct("Q")


class PrefetchQuota:
    """How many bytes each seat of one query may hold ahead: set by the sidecar, and seen by all servers at once."""

    def __init__(self, descriptor: int | None = None) -> None:
        # A descriptor can be sent to a process that was forked before this query came. An anonymous mapping cannot.
        self.descriptor = os.memfd_create("kgroup quota") if descriptor is None else descriptor
        if descriptor is None:
            os.ftruncate(self.descriptor, _SIZE.size)
        self._memory = mmap.mmap(self.descriptor, _SIZE.size)

    def set(self, size: int) -> None:
        """Let each seat hold so many bytes."""
        _SIZE.pack_into(self._memory, 0, size)

    def get(self) -> int:
        """How many bytes each seat may hold."""
        return int(_SIZE.unpack_from(self._memory)[0])

    def close(self) -> None:
        """Unmap it here. Servers that have it keep it."""
        self._memory.close()
        os.close(self.descriptor)


@dataclass(slots=True, eq=False)
class Process:
    """One of the processes, as the sidecar sees it.

    Attributes:
        control: where it is told of new seats.
        seats: how many have their server in it.
    """

    pid: int
    control: socket.socket
    seats: int = 0
    ended: bool = False

    def end(self) -> None:
        """Kill it, which ends the links to its servers. Safe to call twice, though its id may be another's by then."""
        if self.ended:
            return
        self.ended = True
        self.control.close()
        with suppress(ProcessLookupError, ChildProcessError):
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)  # else it would stay as a zombie


@dataclass(slots=True, eq=False)
class Server:
    """A seat's server, as the sidecar sees it.

    Attributes:
        reads_over: whether it serves a worker of this executor, or one of another over the network.
    """

    process: Process
    link: Link
    busy: bool = False
    reads_over: Literal["server", "network"] = "server"
    asked_at_s: float = field(default_factory=time.monotonic)
    ended: bool = False

    def end(self) -> None:
        """Hang up. It ends after its read, or with its process if that has no other seat. Safe to call twice."""
        self.ended = True
        with suppress(OSError):
            self.link.socket.shutdown(socket.SHUT_RDWR)  # not closed: the event loop waits for it

    def kill(self) -> None:
        """End it with its process, as it hangs. Servers of other seats there start anew with their next reads."""
        self.ended = True
        self.process.end()


class SeatProcesses:
    """The processes of one sidecar.

    Args:
        count: how many there may be.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self._processes: list[Process] = []

    def start_server(self, seat: str, quota: PrefetchQuota, settings: ReadSettings) -> Server:
        """A new server for a seat.

        Raises:
            OSError: no process can be had for it.
        """
        process = self._with_room()
        ours, theirs = socket.socketpair()
        host = StartSeatServer(
            seat=seat,
            config=settings.consumer_config,
            headers=settings.include_headers,
            timestamps=settings.include_timestamps,
        )
        process.seats += 1  # before the sending can fail, since `release` counts it back
        try:
            with theirs:
                data = frame(to_json(host))
                # A stream socket may take a part of the message only. The descriptors travel with its first byte.
                sent = socket.send_fds(process.control, [data], [theirs.fileno(), quota.descriptor])
                process.control.sendall(data[sent:])
        except (OSError, ChannelEnded) as problem:  # it has been stopped, or was killed
            ours.close()
            process.end()
            self.release(process)
            raise OSError(f"its process takes no more seats: {problem}") from None
        return Server(process, Link(ours, trusted=True))

    def release(self, process: Process) -> None:
        """A seat's server in `process` has ended."""
        process.seats -= 1
        if process.seats == 0:
            process.end()
            self._processes.remove(process)

    def end(self) -> None:
        """End them all."""
        for process in self._processes:
            process.end()

    def _with_room(self) -> Process:
        """A new process if there may be one more, else the one with the fewest seats."""
        living = [process for process in self._processes if not process.ended]
        if len(living) >= self._count:
            return min(living, key=lambda process: process.seats)
        ours, theirs = socket.socketpair()
        try:
            pid = os.fork()
        except OSError:
            ours.close()
            theirs.close()
            raise
        if pid == 0:
            _become_seats_process(theirs)
        theirs.close()
        # The sidecar's event loop waits while a seat is handed over, so a stopped process must not block that for ever.
        ours.settimeout(CHANNEL_SEND_MS / 1000)
        self._processes.append(Process(pid, ours))
        return self._processes[-1]


# --------------------------------------------------------------------------------------------------- in the process


def _become_seats_process(control: socket.socket) -> NoReturn:
    """Be a process of seats' servers, from the fork on. The sidecar's own work does not go on in it."""
    try:
        gc.freeze()  # the sidecar's objects are not collected here: that would close descriptors
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        _name_thread("kgroup seats")
        # The fork has the event loop's wake-up socket: a signal here would wake the sidecar's loop.
        signal.set_wakeup_fd(-1)
        # asyncio's handler only wakes a loop, and none runs here: SIGTERM would have no effect.
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        # A copy here would keep connections of workers and registries open after the sidecar has closed them.
        for descriptor in map(int, os.listdir("/proc/self/fd")):
            if descriptor > 2 and descriptor != control.fileno():
                with suppress(OSError):  # the descriptor of the listing itself
                    os.close(descriptor)
        _host_seats(control)
    except BaseException as problem:  # after any error, this process must not go on as a second sidecar
        log.warning("A process of seats' servers ends: %r. The next reads start another.", problem)
        log.debug("it ends", exc_info=True)
    finally:
        os._exit(0)  # not `sys.exit`, which would unwind the sidecar's event loop in this copy of it


def _host_seats(control: socket.socket) -> None:
    """Start the servers of seats until the sidecar hangs up. Raises ChannelEnded if a message names no new seat."""
    control.setblocking(True)
    frames = Frames()
    frames.trust()
    descriptors: list[int] = []
    while True:
        data, more, _, _ = socket.recv_fds(control, 65_536, 2)
        if not data:
            return
        frames.feed(data)
        # Descriptors come with the first byte of their message, so never later than the message.
        descriptors += more
        while (message := frames.next()) is not None:
            host = parse(message)
            if not isinstance(host, StartSeatServer) or len(descriptors) < 2:
                raise ChannelEnded(f"The sidecar sent a {type(host).__name__} where it names a new seat.")
            seat, quota = socket.socket(fileno=descriptors.pop(0)), PrefetchQuota(descriptors.pop(0))
            threading.Thread(target=_serve, args=(host, seat, quota), name=f"seat {host.seat}", daemon=True).start()


def _serve(host: StartSeatServer, control: socket.socket, quota: PrefetchQuota) -> None:
    """Be the server of one seat, until the sidecar hangs up or the seat cannot be fetched natively."""
    _name_thread(f"seat {host.seat}"[-15:])  # Linux keeps 15 bytes, and a seat's number is at the end
    settings = ReadSettings(
        consumer_config=host.config,
        include_headers=host.headers,
        include_timestamps=host.timestamps,
    )
    ahead = PrefetchBuffer()
    can_start = False
    try:
        control.setblocking(True)
        prefetcher = make_prefetcher(ahead, quota.get, settings)
        can_start = True
        try:
            SeatServer(control, ahead, prefetcher).run()
        finally:
            prefetcher.close()
    except (BrokenPipeError, ConnectionResetError):
        log.debug("the sidecar has let seat %s go in the midst of a read", host.seat)
    except FallbackToLibrdkafka as fallback:
        # What this process lacks, it will lack again. A record or a broker that is not ordinary may be past soon.
        lasting = fallback.lasting and not can_start and not isinstance(fallback, CredentialsUnusable)
        with suppress(OSError):  # the sidecar has hung up
            control.sendall(frame(to_json(CannotFetch(reason=fallback.reason, lasting=lasting))))
    except Exception as problem:
        log.warning(
            "The server of seat %s ends: %r. Its worker goes on, and the next read starts another.", host.seat, problem
        )
        log.debug("it ends", exc_info=True)
    finally:
        control.close()  # so that the sidecar knows
        quota.close()
        # The process may live on for other seats: this seat's memory goes back to the system now.
        del ahead
        pa.default_memory_pool().release_unused()


def _name_thread(name: str) -> None:
    """Name this thread as `top -H` shows it. The main thread's name is also its process's."""
    ctypes.CDLL(None).prctl(_PR_SET_NAME, name.encode())
