"""What Spark's worker processes wait for, or do over and over, that a small batch would notice; it is spared here.

Runs on: executor, in Spark's Python workers.
"""

from __future__ import annotations

import gc
import os
import socket
import stat
from collections.abc import Sequence
from contextlib import suppress
from itertools import count
from typing import Final

_OLDEST_GENERATION: Final = 2
"""What `gc.collect()` collects."""

_reads_here = count(1)
"""Numbers the reads of this process."""


def spare_delays() -> None:
    """To be called at the beginning of each read in a worker, before it opens connections of its own."""
    match next(_reads_here):
        case 1 if hasattr(socket, "TCP_QUICKACK"):
            acknowledge_at_once(tcp_connections())
        case 2:
            _spare_collections()


def _spare_collections() -> None:
    """Take what is alive now out of the garbage collector's sight, once in a worker's life.

    Spark's worker collects all garbage after each task (pyspark/daemon.py), which walks every object of every imported
    module: 40 ms of CPU in each worker (measured), just when Spark writes its commit log. By the second read all that
    the query needs is imported, and the garbage of the first has just been collected. What is frozen is freed as ever
    when nothing refers to it; only cycles of it would stay.
    """
    gc.freeze()


def acknowledge_at_once(connections: Sequence[socket.socket]) -> None:
    """Let the kernel acknowledge what comes over `connections` at once, from the end of this task on.

    1. Spark's JVM sends a task in several small pieces over TCP, without TCP_NODELAY, so the second piece waits until
    the first is acknowledged; 2. Linux delays an acknowledgement by 40 ms where answers follow requests, as they do
    here, to send it along with the answer; 3. the answer needs the second piece. TCP_QUICKACK (tcp(7)) ends that until
    the next answer is sent: so it is set after each task, when Spark's worker collects its garbage (pyspark/daemon.py).
    Measured: a task of 55 ms takes 16 ms.
    """

    def set_again(phase: str, collection: dict[str, int]) -> None:
        if phase == "stop" and collection["generation"] == _OLDEST_GENERATION:
            for connection in connections:
                with suppress(OSError):  # the JVM has closed it: the worker is about to end
                    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)

    if connections:
        gc.callbacks.append(set_again)


def tcp_connections() -> list[socket.socket]:
    """The TCP connections that this process has by now: in a new worker, the one to its JVM.

    Returns:
        A socket of our own for each. None where /proc does not tell.
    """
    found: dict[int, socket.socket] = {}
    with suppress(OSError):
        for descriptor in map(int, os.listdir("/proc/self/fd")):
            with suppress(OSError):  # the one that listed them
                status = os.fstat(descriptor)
                if stat.S_ISSOCK(status.st_mode) and status.st_ino not in found:  # Spark's worker has several of one
                    found[status.st_ino] = socket.socket(fileno=os.dup(descriptor))
    connections = []
    for each in found.values():
        if each.family in (socket.AF_INET, socket.AF_INET6) and each.type == socket.SOCK_STREAM and _is_connected(each):
            connections.append(each)
        else:
            each.close()
    return connections


def _is_connected(sock: socket.socket) -> bool:
    try:
        sock.getpeername()
    except OSError:
        return False
    return True
