"""The JVM that a stream reader answers to, and whether it is still there.

Runs on: driver.

1. A JVM is killed while its reader waits for the group's coordinator. 2. The query is started again, and its reader
takes the seats and reads on. 3. The first reader wakes, joins, takes the seats back, and sets the group's offsets to
where a fresh query starts. Spark's reader learns that its JVM is gone only when it answers, and that is too late.

Spark starts the reader (PythonStreamingSourceRunner, PythonWorkerFactory.createSimpleWorker; 4.0 to 4.3, and under
Spark Connect) as a child of the JVM, without Spark's daemon, connected to the JVM by one socket. The kernel closes that
socket when the JVM ends, however it ends. Spark closes it when the query stops, after it has sent the reader SIGTERM.
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
"""The events to ask of poll(2): that the other end stopped sending (on Linux), and a full hang-up, which must be asked
for on macOS: it does not watch a descriptor for which no event is asked."""

_LOOK_INTERVAL_MS: Final = 1_000
"""How often the parent's process id is looked at: no event tells that the parent has ended."""


class Jvm:
    """The process at the other end of a reader's connection to Spark.

    Args:
        connection: a descriptor of that connection, which is kept for as long as this process lives.
    """

    def __init__(self, connection: int) -> None:
        self._connection = connection
        self._parent = os.getppid()

    @classmethod
    def of_this_process(cls) -> Self | None:
        """The JVM to which Spark connected this process, or None if there is none, or the platform hides sockets."""
        address = _address_of_jvm()
        if address is None or not hasattr(select, "poll"):
            return None
        for descriptor in map(int, os.listdir("/proc/self/fd" if os.path.isdir("/proc/self/fd") else "/dev/fd")):
            if _find_peer(descriptor) == address:
                # A copy: Spark may close its own, and that number may then be another file's.
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

        It ends at once: it sends no message, and waits for no thread and no pipe. No process needs its answers any
        more, and the seats wait for the next start (KIP-345).

        Args:
            last: is called before the process ends, however it ends. It must be quick, and may be called again.
        """
        atexit.register(last)
        threading.Thread(target=self._end_with_it, args=(last, _terminations()), name="kgroup jvm", daemon=True).start()

    def _end_with_it(self, last: Callable[[], None], signals: int | None) -> None:
        while self.alive() and not (signals is not None and _terminated(signals)):
            self._hung_up(_LOOK_INTERVAL_MS, signals)
        last()
        os._exit(1)


def _terminations() -> int | None:
    """A descriptor from which SIGTERM can be read. None if other code handles SIGTERM, or off the main thread.

    Python itself would run a handler only when its main thread is free.
    """
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
        return None
    readable, writable = os.pipe()
    # `_terminated` reads after every poll, and `set_wakeup_fd` refuses a descriptor that blocks.
    os.set_blocking(readable, False)
    os.set_blocking(writable, False)
    signal.set_wakeup_fd(writable, warn_on_full_buffer=False)
    # Without a handler the kernel ends the process at once, and `last` would not be called.
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


def _find_peer(descriptor: int) -> object:
    """The port (TCP) or the path (Unix) that a socket is connected to, or None for any other descriptor."""
    with suppress(OSError):  # the descriptor that listed them is closed by now, or this one is not connected
        if stat.S_ISSOCK(os.fstat(descriptor).st_mode):
            blocking = os.get_blocking(descriptor)
            with socket.socket(fileno=os.dup(descriptor)) as sock:
                os.set_blocking(descriptor, blocking)  # Python's default timeout would change it, for Spark as well
                peer = sock.getpeername()
            return peer[1] if isinstance(peer, tuple) else peer
    return None
