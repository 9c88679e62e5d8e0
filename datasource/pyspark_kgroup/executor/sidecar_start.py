"""Finds the sidecar of this executor for one query, starts it where there is none, and asks it.

Runs on: executor, in Spark's Python workers.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from contextlib import suppress
from typing import Final

from pyspark_kgroup.errors import ChannelEnded, KeyRefused, RegistryUnreachable
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
"""How often a sidecar is asked: the first one may end at that very moment."""


class SidecarUnavailable(Exception):
    """This executor cannot have a sidecar, or it cannot be reached: its workers read directly."""


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
        self._registry = registry
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
        """Ask the sidecar, which is started if there is none.

        Raises:
            SidecarUnavailable: it cannot be started here.
            ChannelEnded: neither it nor its successor has answered.
        """
        for _ in range(_TRIES):
            channel = self._connect()
            with suppress(ChannelEnded):  # as it may at that very moment
                answer = channel.ask(request, SIDECAR_SILENCE_MS / 1000)
                if isinstance(answer, SidecarAnswer):
                    return answer, channel
            channel.close()
        raise ChannelEnded("Neither the sidecar nor its successor has answered.")

    def _connect(self) -> Channel:
        """A channel to the sidecar, which is started if there is none.

        Raises:
            SidecarUnavailable: it cannot be started here.
        """
        if self._place is None or not self._parameters.executor.warm or not hasattr(os, "pidfd_open"):
            raise SidecarUnavailable(
                "This platform does not say whose worker a process is, and when that executor ends."
            )
        try:
            return self._connect_or_start(self._place)
        except (OSError, RegistryUnreachable, SidecarUnavailable, subprocess.SubprocessError) as problem:
            self._failures.add(_NO_SIDECAR)
            raise SidecarUnavailable(str(problem)) from None

    def report_hung(self, seat: str) -> None:
        """Let the sidecar replace a seat's server that lives and does nothing."""
        with suppress(OSError, ChannelEnded):  # whoever finds it hung next says so
            channel = self._connect_if_there()
            if channel is not None:
                channel.say(Hung(seat=seat))
                channel.close()

    def _connect_or_start(self, place: Place) -> Channel:
        if (channel := self._connect_unless_failed()) is not None:
            return channel
        with place.hold_lock(SIDECAR_START_MS / 1000):
            if (channel := self._connect_unless_failed()) is not None:
                return channel
            self._registry.check()  # a sidecar, which starts slowly, could do nothing without it
            self._start()
        if (channel := self._connect_if_there()) is not None:
            return channel
        raise SidecarUnavailable("It ended as soon as it had started.")

    def _connect_unless_failed(self) -> Channel | None:
        """A channel to the sidecar if there is one.

        Raises:
            SidecarUnavailable: there is none, and none could be started a while ago.
        """
        channel = self._connect_if_there()
        if channel is None and self._failures.has(_NO_SIDECAR):
            raise SidecarUnavailable("It could not be started a while ago.")
        return channel

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
