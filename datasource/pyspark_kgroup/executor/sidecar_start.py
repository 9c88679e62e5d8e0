"""Finds the sidecar of this executor for one query and asks it, or starts it where there is none.

Runs on: executor, in Spark's Python workers.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from contextlib import suppress
from typing import Final

from pyspark_kgroup.errors import ChannelEnded, KeyRefused
from pyspark_kgroup.executor.place import Place, RecentFailures
from pyspark_kgroup.executor.registry_client import RegistryClient
from pyspark_kgroup.limits import SIDECAR_SILENCE_MS, SIDECAR_START_MS
from pyspark_kgroup.shared.channel import Channel, connect
from pyspark_kgroup.shared.messages import (
    CannotStart,
    Hung,
    NothingLeft,
    Read,
    ReadDirectly,
    ReadFromServer,
    Ready,
    Refused,
    SidecarParameters,
)
from pyspark_kgroup.shared.tickets import Executor, RegistryAccess

_NO_SIDECAR: Final = "no-sidecar"
"""The mark of an executor on which no sidecar could be started."""


SidecarAnswer = ReadFromServer | ReadDirectly | NothingLeft | Refused
"""What a sidecar says that a ticket reads, and how."""


_TRIES: Final = 2
"""How often a sidecar is asked: it may end at that very moment."""

_TRIES_MAX: Final = 5
"""How often while it hangs up at once, within `_CROWDED_S`: it drops the oldest peer that has not shown the key."""

_CROWDED_S: Final = 1.0


class SidecarUnavailable(Exception):
    """This executor cannot have a sidecar, or it cannot be reached: its workers read directly."""


class SidecarMissing(Exception):
    """This executor has no sidecar, or none yet: it can be started, and nobody waits for that."""


class SidecarClient:
    """The sidecar of `executor` for one query.

    Args:
        access: the query's.
        place: where the sidecar is to be found; None: this platform has none.
        registry: what a sidecar cannot do without.
        failures: of this executor, with this query.
    """

    def __init__(
        self,
        executor: Executor,
        access: RegistryAccess,
        place: Place | None,
        registry: RegistryClient,
        failures: RecentFailures,
    ) -> None:
        self._query = access.query
        self._place = place
        self._failures = failures
        self._parameters = SidecarParameters(
            folder=str(place.folder) if place is not None else "",
            key=access.key,
            registry_host=registry.host,
            registry_port=registry.port,
            executor=executor,
            prefetch_bytes=access.prefetch_bytes,
            idle_ms=access.idle_ms,
        )

    def request(self, request: Read) -> tuple[SidecarAnswer, Channel]:
        """Ask the sidecar.

        Raises:
            SidecarMissing: there is none that answers; `start` starts one.
            SidecarUnavailable: there can be none here, or none could be started a while ago.
            ChannelEnded: neither it nor its successor has answered.
        """
        tries, began_s = 0, time.monotonic()
        while tries < _TRIES or (tries < _TRIES_MAX and time.monotonic() - began_s < _CROWDED_S):
            tries += 1
            channel = self._connect()
            with suppress(ChannelEnded):  # as it may at that very moment
                answer = channel.ask(request, SIDECAR_SILENCE_MS / 1000)
                if isinstance(answer, SidecarAnswer):
                    return answer, channel
            channel.close()
        raise ChannelEnded("Neither the sidecar nor its successor has answered.")

    def start(self) -> None:
        """Start a sidecar if there is none, and wait until it listens; return at once if somebody else starts it.

        Raises:
            SidecarUnavailable: it cannot be started here.
        """
        place = self._require_place()
        try:
            with place.hold_lock():
                if (channel := self._connect_if_there()) is not None:
                    channel.close()
                elif not self._failures.has(_NO_SIDECAR):
                    self._start()
        except BlockingIOError:
            return
        except (OSError, SidecarUnavailable, subprocess.SubprocessError) as problem:
            raise self._give_up(problem) from None

    def _require_place(self) -> Place:
        if self._place is None or not self._parameters.executor.warm or not hasattr(os, "pidfd_open"):
            raise SidecarUnavailable(
                "This platform does not say whose worker a process is, and when that executor ends."
            )
        return self._place

    def _connect(self) -> Channel:
        """A channel to the sidecar; raises as `request`."""
        self._require_place()
        try:
            for _ in range(_TRIES_MAX):
                if (channel := self._connect_if_there()) is not None:
                    return channel
        except OSError as problem:
            raise self._give_up(problem) from None
        if self._failures.has(_NO_SIDECAR):
            raise SidecarUnavailable("It could not be started a while ago.")
        raise SidecarMissing

    def _give_up(self, problem: Exception) -> SidecarUnavailable:
        """For a while: no worker of this executor tries again before."""
        self._failures.add(_NO_SIDECAR)
        return SidecarUnavailable(str(problem))

    def report_hung(self, seat: str) -> None:
        """Let the sidecar replace a seat's server that lives and does nothing."""
        with suppress(OSError, ChannelEnded):  # whoever finds it hung next says so
            channel = self._connect_if_there()
            if channel is not None:
                channel.say(Hung(seat=seat))
                channel.close()

    def _connect_if_there(self) -> Channel | None:
        """A channel to the sidecar if one answers; none is started.

        Raises:
            OSError: the place is not ours alone; nobody was asked.
        """
        if self._place is None:
            return None
        try:
            with self._place.short_socket_path() as path:
                return connect(path, self._parameters.key, self._place.server)
        except (FileNotFoundError, ChannelEnded, KeyRefused):
            return None

    def _start(self) -> None:
        """Start a sidecar and wait until it listens. What it must know travels over its standard input."""
        ours, theirs = socket.socketpair()
        channel = Channel(ours)
        channel.trust()
        with ours:
            with theirs:
                process = subprocess.Popen(
                    [sys.executable, "-P", "-m", "pyspark_kgroup.executor.sidecar", self._query],
                    stdin=theirs.fileno(),
                    stdout=subprocess.DEVNULL,  # a worker's own may be the JVM's
                    env=_environment(),
                    cwd="/",
                    start_new_session=True,  # Spark ends its workers by their process group
                )
            try:
                channel.say(self._parameters)
                answer = channel.hear(SIDECAR_START_MS / 1000)
            except ChannelEnded as problem:
                process.kill()
                answer = CannotStart(reason=f"It did not start: {problem}")
            process.wait()  # what goes on is its child
        match answer:
            case Ready():
                return
            case CannotStart(reason=reason):
                raise SidecarUnavailable(reason)
        raise SidecarUnavailable("What was started is no sidecar.")


def _environment() -> dict[str, str]:
    """Ours, so that the sidecar finds what the worker has found; one thread, since it forks."""
    path = os.pathsep.join(os.path.abspath(entry) for entry in sys.path)
    one_thread = {"OPENBLAS_NUM_THREADS": "1", "JE_ARROW_MALLOC_CONF": "background_thread:false"}
    return {**os.environ, "PYTHONPATH": path, **one_thread}
