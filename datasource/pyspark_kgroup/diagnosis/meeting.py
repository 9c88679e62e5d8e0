"""The place where the tasks of an examination meet: each hears the driver's clock, and tries tasks of other executors.

Runs on: both. The user's own process listens while the tasks run. A task listens, too, tells its address, and waits
until all tasks have come or the time is over, so that each slot of the executors has one task.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from itertools import count
from typing import Any, Final

from pyspark_kgroup.errors import ChannelEnded, KeyRefused
from pyspark_kgroup.shared.channel import Challenge, Channel, connect, new_key
from spark_kgroup.wire import names

NAME: Final = "doctor"
"""The meeting's name in a handshake."""

_GATHER_S: Final = 5.0
"""How long the first task waits for the last one: the slots of some executors may be taken by other work."""

_REACH_S: Final = 2.0
"""How long one connection may take."""

_HANDSHAKE_S: Final = 5.0

_PEERS_MAX: Final = 10
"""A task tries at most so many other tasks."""

_AT_ONCE: Final = 10
"""Connections that a task tries at once."""

_TRY_S: Final = _PEERS_MAX / _AT_ONCE * _REACH_S + 3
"""How long a task may try other tasks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a task finds the meeting."""

    host: str
    port: int
    key: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Reach:
    """The hosts that a task reached.

    Attributes:
        driver_error: why the driver's host was not reached, or empty.
        driver_ms: how long a question there takes.
        clock_ahead_ms: how far the clock of this host is ahead of the driver's.
        peers: how many tasks of other executors were tried.
        peer_errors: of those that were not reached.
        broker_errors: of the brokers that were not reached.
    """

    driver_error: str = ""
    driver_ms: float = 0.0
    clock_ahead_ms: float = 0.0
    peers: int = 0
    peer_errors: Sequence[str] = ()
    broker_errors: Sequence[str] = ()

    def to_json(self) -> dict[str, Any]:
        """All fields by name."""
        return asdict(self)


class Meeting:
    """The driver's half, as a context manager.

    Args:
        tasks: how many are expected.
        host: the name of this host, for the tasks.
    """

    def __init__(self, tasks: int, host: str) -> None:
        self._tasks = tasks
        self._key = new_key()
        self._changed = threading.Condition()
        self._come: dict[int, tuple[str, str, int]] = {}  # number of the connection -> executor, host, port
        self._trying: set[int] = set()
        self._begun_s = 0.0
        self._listener = _listen()
        self.place = Place(host=host, port=self._listener.getsockname()[1], key=self._key)

    def __enter__(self) -> Meeting:
        threading.Thread(target=self._accept, name="kgroup doctor", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):  # the listener is closed
            for number in count():
                peer, address = self._listener.accept()
                serving = threading.Thread(
                    target=self._serve, args=(number, peer, str(address[0])), name="kgroup doctor's task", daemon=True
                )
                serving.start()

    def _serve(self, number: int, peer: socket.socket, host: str) -> None:
        channel = Channel(peer)
        challenge = Challenge(self._key, NAME)
        try:
            channel.send(challenge.message)
            channel.send(challenge.answer(channel.receive(_HANDSHAKE_S)))
            channel.trust()
            task = channel.receive(_HANDSHAKE_S)
            channel.send({"wall_ms": time.time() * 1000})
            channel.send({"peers": self._gather(number, (str(task["executor"]), host, int(task["port"])))})
            channel.receive(_TRY_S)  # it has tried other tasks
            self._wait_for_tries(number)
            channel.send({"over": True})
        except (ChannelEnded, KeyRefused, KeyError, ValueError, TypeError):
            pass  # its own report says that the driver was not reached
        finally:
            channel.close()
            self._end_try(number)

    def _gather(self, number: int, place: tuple[str, str, int]) -> list[tuple[str, str, int]]:
        """Wait for the other tasks, and return (executor, host, port) of one task of each executor."""
        with self._changed:
            if not self._come:
                self._begun_s = time.monotonic()
            self._come[number] = place
            self._trying.add(number)
            self._changed.notify_all()
            left_s = self._begun_s + _GATHER_S - time.monotonic()
            self._changed.wait_for(lambda: len(self._come) >= self._tasks, max(0.0, left_s))
            return list({come[0]: come for come in self._come.values()}.values())

    def _wait_for_tries(self, number: int) -> None:
        """Wait until each task has tried its peers: all listen until then."""
        self._end_try(number)
        with self._changed:
            self._changed.wait_for(lambda: not self._trying, _TRY_S)

    def _end_try(self, number: int) -> None:
        with self._changed:
            self._trying.discard(number)
            self._changed.notify_all()


def reach(place: Place | None, executor: str, brokers: Sequence[tuple[str, int]]) -> Reach:
    """Try the driver's host, the tasks of other executors, and the brokers. In a task.

    Args:
        place: where the meeting is, or None if the user's process is on another host than the driver.
        executor: ours.
        brokers: (host, port) of each.
    """
    if place is None:
        return Reach(broker_errors=_try_all(brokers))
    with _listen() as listener:
        threading.Thread(target=_accept_and_close, args=(listener,), name="kgroup doctor's peers", daemon=True).start()
        try:
            reached = _meet(place, executor, listener.getsockname()[1])
        except (ChannelEnded, KeyRefused) as problem:
            reached = Reach(driver_error=f"{place.host}:{place.port}: {problem}")
    return replace(reached, broker_errors=_try_all(brokers))


def _meet(place: Place, executor: str, port: int) -> Reach:
    channel = connect((place.host, place.port), place.key, NAME)
    try:
        asked_s, asked_at_ms = time.monotonic(), time.time() * 1000
        channel.send({"executor": executor, "port": port})
        wall_ms = float(channel.receive(_HANDSHAKE_S)["wall_ms"])
        took_ms = (time.monotonic() - asked_s) * 1000
        peers = channel.receive(_GATHER_S + _HANDSHAKE_S)["peers"]
        others = [(str(host), int(port)) for other, host, port in peers if other != executor][:_PEERS_MAX]
        errors = _try_all(others)
        channel.send({"tried": len(others)})
        with suppress(ChannelEnded):
            channel.receive(_TRY_S + _HANDSHAKE_S)  # until other tasks have tried us
    finally:
        channel.close()
    return Reach(
        driver_ms=took_ms,
        clock_ahead_ms=asked_at_ms + took_ms / 2 - wall_ms,
        peers=len(others),
        peer_errors=errors,
    )


def _try_all(addresses: Sequence[tuple[str, int]]) -> list[str]:
    """The errors of those to which no TCP connection comes about."""

    def error_of(address: tuple[str, int]) -> str:
        host, port = address
        try:
            names.connect(host, port, _REACH_S).close()
        except OSError as problem:
            return f"{host}:{port}: {problem}"
        return ""

    with ThreadPoolExecutor(_AT_ONCE, "kgroup doctor's connections") as pool:
        return list(filter(None, pool.map(error_of, addresses)))


def _listen() -> socket.socket:
    """A socket that listens on all addresses of this host, at any free port."""
    if socket.has_dualstack_ipv6():
        with suppress(OSError):  # IPv6 is switched off on this host
            return socket.create_server(("", 0), family=socket.AF_INET6, dualstack_ipv6=True)
    return socket.create_server(("", 0))


def _accept_and_close(listener: socket.socket) -> None:
    with suppress(OSError):  # the listener is closed
        while True:
            listener.accept()[0].close()
