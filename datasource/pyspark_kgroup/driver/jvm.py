"""The JVM that a stream reader answers to, and whether it is still there.

Runs on: driver.

1. a JVM is killed while its reader waits for the group's coordinator; 2. the query is started again, its reader takes
the seats and reads on; 3. the first reader wakes, joins, takes the seats back, and sets the group's offsets to where a
fresh query starts. Spark's reader learns that its JVM is gone only when it answers, and that is too late.

How Spark starts it (PythonStreamingSourceRunner, PythonWorkerFactory.createSimpleWorker; 4.0 to 4.3, and under Spark
Connect): the JVM's child, without Spark's daemon, connected to the JVM by one socket. The kernel closes that socket
when the JVM ends, however it ends, and Spark does when the query stops, after it has sent the reader SIGTERM.
"""

from __future__ import annotations

import atexit
import os
import select
import signal
import socket
import stat
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Final, Self

_HUNG_UP: Final = getattr(select, "POLLRDHUP", 0) | getattr(select, "POLLHUP", 0)
"""What poll(2) is to tell: that the other end sends nothing more (Linux has it), and, where that must be asked for, a
full hang-up (macOS watches nothing of a descriptor that nothing is asked of)."""

_LOOK_INTERVAL_MS: Final = 1_000
"""How often the parent is looked at, of which nobody tells."""


class Jvm:
    """The process at the other end of a reader's connection to Spark.

    Args:
        connection: a descriptor of that connection; it is kept for as long as this process lives.
    """

    def __init__(self, connection: int) -> None:
        self._connection = connection
        self._parent = os.getppid()

    @classmethod
    def of_this_process(cls) -> Self | None:
        """None where Spark did not start this process for itself alone, or the platform does not show its sockets."""
        address = _address_of_jvm()
        if address is None or not hasattr(select, "poll"):
            return None
        for descriptor in map(int, os.listdir("/proc/self/fd" if os.path.isdir("/proc/self/fd") else "/dev/fd")):
            if _peer_of(descriptor) == address:
                return cls(os.dup(descriptor))
        return None

    def alive(self) -> bool:
        """Whether the JVM is still there: two system calls, to be made right before each request to the group."""
        return os.getppid() == self._parent and not self._hung_up(0)

    def _hung_up(self, timeout_ms: int, signals: int | None = None) -> bool:
        poll = select.poll()
        poll.register(self._connection, _HUNG_UP)
        if signals is not None:
            poll.register(signals, select.POLLIN)
        return any(descriptor == self._connection for descriptor, _ in poll.poll(timeout_ms))

    def end_process_with_it(self, last: Callable[[], None]) -> None:
        """From now on, end this process as soon as the JVM is gone, or Spark sends SIGTERM.

        At once: it sends nothing, and waits for no thread and no pipe. Nobody is left to care, and the
        seats wait for the next start (KIP-345).

        Args:
            last: what is done before, however the process ends; it must be quick, and may be called again.
        """
        atexit.register(last)
        threading.Thread(target=self._end_with_it, args=(last, _terminations()), name="kgroup jvm", daemon=True).start()

    def _end_with_it(self, last: Callable[[], None], signals: int | None) -> None:
        while self.alive() and not (signals is not None and _terminated(signals)):
            self._hung_up(_LOOK_INTERVAL_MS, signals)
        last()
        os._exit(1)


def _terminations() -> int | None:
    """A descriptor from which SIGTERM can be read; None where somebody else handles it, or this is not the main thread.

    Python itself would run a handler only when its main thread is free.
    """
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
        return None
    readable, writable = os.pipe()
    os.set_blocking(readable, False)
    os.set_blocking(writable, False)
    signal.set_wakeup_fd(writable, warn_on_full_buffer=False)
    signal.signal(signal.SIGTERM, lambda *_: None)
    return readable


def _terminated(signals: int) -> bool:
    """Whether SIGTERM has come."""
    with suppress(BlockingIOError):
        return signal.SIGTERM in os.read(signals, 4096)
    return False


def _address_of_jvm() -> object:
    """Where Spark told this process to connect to, as `getpeername` would say it."""
    path, port = os.environ.get("PYTHON_WORKER_FACTORY_SOCK_PATH"), os.environ.get("PYTHON_WORKER_FACTORY_PORT", "")
    return path or (int(port) if port.isdecimal() else None)


def _peer_of(descriptor: int) -> object:
    """The port (TCP) or the path (Unix) that a socket is connected to, None for anything else."""
    with suppress(OSError):  # the one that listed them has gone; or it is not connected
        if stat.S_ISSOCK(os.fstat(descriptor).st_mode):
            blocking = os.get_blocking(descriptor)
            with socket.socket(fileno=os.dup(descriptor)) as sock:
                os.set_blocking(descriptor, blocking)  # Python's default timeout would change it, for Spark as well
                peer = sock.getpeername()
            return peer[1] if isinstance(peer, tuple) else peer
    return None
