"""Spares Spark's worker processes waits and repeated work of Spark's that a small batch would notice.

Runs on: executor, in Spark's Python workers.
"""

from __future__ import annotations

import gc
import os
import socket
import stat
from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from ipaddress import ip_address
from typing import Final

_OLDEST_GENERATION: Final = 2
"""The generation that `gc.collect()` collects."""

_SPARKS_DESCRIPTORS: Final = 3
"""How many descriptors Spark's worker has of the connection to its JVM (pyspark/daemon.py): the socket, and a file for
each direction."""


class SparkDelays:
    """Avoids Spark's delays in this process, one of Spark's workers. There is one instance in each process."""

    def __init__(self) -> None:
        self._reads = 0

    def avoid(self) -> None:
        """Avoid the delays in this process. To be called at the beginning of each read."""
        self._reads += 1
        match self._reads:
            case 1:
                acknowledge_at_once(connections_to_jvm())
            case 2:
                _freeze_living_objects()


def _freeze_living_objects() -> None:
    """Take all living objects out of the garbage collector's sight, once in a worker's life.

    Spark's worker collects all garbage after each task (pyspark/daemon.py), which walks every object of every imported
    module: 40 ms of CPU in each worker (measured), just when Spark writes its commit log. By the second read all
    modules that the query needs are imported, and the garbage of the first has just been collected. A frozen object is
    freed as ever when its last reference goes. Only cycles of frozen objects would stay.
    """
    gc.freeze()


def acknowledge_at_once(connections: Sequence[socket.socket]) -> None:
    """Let the kernel acknowledge bytes on `connections` as soon as they are read, from the end of this task on.

    1. Spark's JVM sends a task in several small pieces over TCP, without TCP_NODELAY, so the second piece waits until
    the first is acknowledged. 2. Linux delays an acknowledgement by 40 ms where answers follow requests, as they do
    here, to send it along with the answer. 3. The answer needs the second piece. TCP_QUICKACK (tcp(7)) ends that until
    the next answer is sent: so it is set after each task, when all is sent and Spark's worker collects its garbage
    (pyspark/daemon.py). Measured: a task of 55 ms takes 16 ms.
    """

    def set_again(phase: str, collection: dict[str, int]) -> None:
        if phase == "stop" and collection["generation"] == _OLDEST_GENERATION:
            for connection in connections:
                with suppress(OSError):  # it has ended, and so will the worker
                    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)

    if connections:
        gc.callbacks.append(set_again)


def connections_to_jvm() -> list[socket.socket]:
    """The TCP connection between this worker of Spark's and its JVM. All other sockets are left to their owners.

    Returns:
        A socket of our own for it. Empty unless the connection is TCP and held by three descriptors, and /proc and
        TCP_QUICKACK exist.
    """
    # With a default timeout Python makes each new socket object non-blocking. That would hit Spark's socket too: the
    # duplicate shares its file description.
    if not hasattr(socket, "TCP_QUICKACK") or socket.getdefaulttimeout() is not None:
        return []
    held: defaultdict[int, list[int]] = defaultdict(list)
    with suppress(OSError):
        for descriptor in map(int, os.listdir("/proc/self/fd")):
            with suppress(OSError):  # the descriptor of the listing itself
                status = os.fstat(descriptor)
                if stat.S_ISSOCK(status.st_mode):
                    held[status.st_ino].append(descriptor)
    connections = []
    for descriptors in held.values():
        if len(descriptors) >= _SPARKS_DESCRIPTORS:
            sock = socket.socket(fileno=os.dup(descriptors[0]))
            if _is_over_loopback(sock):
                connections.append(sock)
            else:
                sock.close()
    return connections


def _is_over_loopback(sock: socket.socket) -> bool:
    """Whether this is a TCP connection to this host. Spark's may also be a Unix socket."""
    if sock.family not in (socket.AF_INET, socket.AF_INET6) or sock.type != socket.SOCK_STREAM:
        return False
    try:
        peer = ip_address(sock.getpeername()[0])
    except OSError:  # it listens
        return False
    # An IPv6 socket shows an IPv4 peer as ::ffff:127.0.0.1, which Python 3.11 does not count as loopback.
    return (getattr(peer, "ipv4_mapped", None) or peer).is_loopback
