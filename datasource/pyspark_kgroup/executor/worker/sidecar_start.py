"""Finds the sidecar of this executor and asks it for one query, or starts it where there is none.

Runs on: executor, in Spark's Python workers.
"""

from __future__ import annotations

import ipaddress
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final

import pyarrow as pa

from pyspark_kgroup.errors import ChannelEnded, KeyRefused
from pyspark_kgroup.executor.sidecar_dir import RecentFailures, SidecarDir
from pyspark_kgroup.executor.worker.registry_client import RegistryClient
from pyspark_kgroup.limits import SIDECAR_SILENCE_MS, SIDECAR_START_MS
from pyspark_kgroup.shared.channel import Channel, connect
from pyspark_kgroup.shared.messages import (
    AddQuery,
    CannotStart,
    Hung,
    NothingLeft,
    QueryMessage,
    Read,
    ReadDirectly,
    ReadFromServer,
    Ready,
    Refused,
    SidecarParameters,
    UnknownQuery,
)
from pyspark_kgroup.shared.tickets import Executor, RegistryAccess

_NO_SIDECAR: Final = "no-sidecar"
"""The mark of an executor on which no sidecar could be had for the query."""


SidecarAnswer = ReadFromServer | ReadDirectly | NothingLeft | Refused
"""A sidecar's answer: the ranges that a ticket reads, and how."""


_TRIES: Final = 2
"""How often a sidecar is asked: it may end at that very moment."""

_TRIES_MAX: Final = 5
"""How often it is asked within `_CROWDED_S` while it hangs up at once: of too many peers without the key, a sidecar
drops the oldest."""

_CROWDED_S: Final = 1.0


class SidecarUnavailable(Exception):
    """This executor cannot have a sidecar, or its sidecar cannot be reached: its workers read directly."""


class SidecarMissing(Exception):
    """This executor has no sidecar yet, or one that does not serve the query yet. No read waits for `start`."""


class SidecarClient:
    """The sidecar of `executor` for one query.

    Args:
        access: the query's.
        place: where the sidecar is to be found, or None if this platform has none.
        registry: of the query. A sidecar needs a connection to it.
        failures: of this executor, with this query.
    """

    def __init__(
        self,
        executor: Executor,
        access: RegistryAccess,
        place: SidecarDir | None,
        registry: RegistryClient,
        failures: RecentFailures,
    ) -> None:
        self._executor = executor
        self._access = access
        self._place = place
        self._registry = registry
        self._failures = failures

    def request(self, request: Read) -> tuple[SidecarAnswer, Channel]:
        """Ask the sidecar.

        Raises:
            SidecarMissing: there is none that answers and serves the query. `start` sees to it.
            SidecarUnavailable: there can be none here, or none could be started a while ago.
            ChannelEnded: neither it nor its successor has answered.
        """
        tries, began_s = 0, time.monotonic()
        while tries < _TRIES or (tries < _TRIES_MAX and time.monotonic() - began_s < _CROWDED_S):
            tries += 1
            channel = self._connect()
            with suppress(ChannelEnded):  # the sidecar may end at that very moment
                answer = channel.ask(request, SIDECAR_SILENCE_MS / 1000)
                if isinstance(answer, SidecarAnswer):
                    return answer, channel
                if isinstance(answer, UnknownQuery):
                    channel.close()
                    raise self._missing()
            channel.close()
        raise ChannelEnded("Neither the sidecar nor its successor has answered.")

    def start(self, on_handed_over: Callable[[], None] = lambda: None) -> None:
        """Let a sidecar serve the query: start one if there is none. Return at once if another worker does so.

        Args:
            on_handed_over: called as soon as the sidecar starts even if this process ends.

        Raises:
            SidecarUnavailable: no sidecar can be had here.
        """
        place = self._require_place()
        try:
            with place.hold_lock():
                if not self._failures.has(_NO_SIDECAR):
                    self._hand_over_query(self._registry.connect(), on_handed_over)
        except BlockingIOError:
            return
        except (OSError, SidecarUnavailable, ChannelEnded, KeyRefused, subprocess.SubprocessError) as problem:
            raise self._give_up(problem) from None

    def _hand_over_query(self, registry: Channel, on_handed_over: Callable[[], None]) -> None:
        """Let the sidecar serve the query over this connection. Raises the errors that `start` catches."""
        with registry.socket:
            host = _host_for_others(registry.socket, self._executor)
            answer: QueryMessage | None = None
            if (channel := self._connect_if_there()) is not None:
                with channel.socket, suppress(ChannelEnded):  # it may end at that very moment
                    self._name_query(channel, registry.socket)
                    answer = channel.hear(SIDECAR_SILENCE_MS / 1000)
            if answer is None:
                answer = self._start_process(host, registry.socket, on_handed_over)
        match answer:
            case Ready():
                return
            case CannotStart(reason=reason):
                raise SidecarUnavailable(reason)
        raise SidecarUnavailable("What was started is no sidecar.")

    def _name_query(self, channel: Channel, registry: socket.socket) -> None:
        """Ask for this query to be served over this connection. Raises ChannelEnded."""
        access = self._access
        channel.say(
            AddQuery(
                query=access.query,
                prefetch_bytes=access.prefetch_bytes,
                idle_ms=access.idle_ms,
                tells_sizes=access.tells_sizes,
            )
        )
        try:
            socket.send_fds(channel.socket, [b"+"], [registry.fileno()])
        except OSError as problem:
            raise ChannelEnded(f"The sidecar has gone ({problem}).") from None

    def _require_place(self) -> SidecarDir:
        if self._place is None or not self._executor.warm or not hasattr(os, "pidfd_open"):
            raise SidecarUnavailable(
                "This platform does not say whose worker a process is, and when that executor ends."
            )
        return self._place

    def _connect(self) -> Channel:
        """A channel to the sidecar. Raises as `request`."""
        self._require_place()
        try:
            for _ in range(_TRIES_MAX):
                if (channel := self._connect_if_there()) is not None:
                    return channel
        except OSError as problem:
            raise self._give_up(problem) from None
        raise self._missing()

    def _missing(self) -> Exception:
        if self._failures.has(_NO_SIDECAR):
            return SidecarUnavailable("It could not be started a while ago.")
        return SidecarMissing()

    def _give_up(self, problem: Exception) -> SidecarUnavailable:
        """Mark the failure: for `SIDECAR_RETRY_MS`, no worker of this executor tries again."""
        self._failures.add(_NO_SIDECAR)
        return SidecarUnavailable(str(problem))

    def report_hung(self, seat: str) -> None:
        """Let the sidecar end a seat's server that hangs. The next read starts another one."""
        with suppress(OSError, ChannelEnded):  # the next worker that finds it hung reports it
            channel = self._connect_if_there()
            if channel is not None:
                channel.say(Hung(query=self._access.query, seat=seat))
                channel.close()

    def _connect_if_there(self) -> Channel | None:
        """A channel to the sidecar, or None if none answers. None is started.

        Raises:
            OSError: the place is not this user's alone. No process was asked.
        """
        if self._place is None:
            return None
        try:
            with self._place.short_socket_path() as path:
                return connect(path, self._access.key, self._place.server)
        except (FileNotFoundError, ChannelEnded, KeyRefused):
            return None

    def _start_process(self, host: str, registry: socket.socket, on_handed_over: Callable[[], None]) -> QueryMessage:
        """Start a sidecar and wait until it listens. Its parameters travel over its standard input.

        Args:
            host: where workers of other executors are to reach it.
            registry: as `_name_query` takes it.
            on_handed_over: as `start` takes it.

        Returns:
            Its answer, or `CannotStart` if it ended or was silent.
        """
        parameters = SidecarParameters(
            folder=str(self._require_place().folder), key=self._access.key, executor=self._executor, host=host
        )
        ours, theirs = socket.socketpair()
        channel = Channel(ours)
        channel.trust()
        with ours:
            with theirs:
                process = subprocess.Popen(
                    [sys.executable, "-P", "-m", "pyspark_kgroup.executor.sidecar.sidecar", self._executor.key],
                    stdin=theirs.fileno(),
                    stdout=subprocess.DEVNULL,  # a worker's own may be the JVM's
                    env=_environment(),
                    cwd="/",
                    start_new_session=True,  # Spark ends its workers by their process group
                )
            try:
                channel.say(parameters)
                self._name_query(channel, registry)
                on_handed_over()
                answer = channel.hear(SIDECAR_START_MS / 1000)
            except ChannelEnded as problem:
                process.kill()
                answer = CannotStart(reason=f"It did not start: {problem}")
            process.wait()  # it ends at once: the sidecar goes on as its child
        return answer


def _host_for_others(registry: socket.socket, executor: Executor) -> str:
    """The host at which workers of other executors reach the sidecar, or "" if there are no other executors.

    It is the host by which Spark knows this executor. Where the driver is reached by the loopback interface, all
    executors are on this host, and the sidecar listens at the loopback address alone.
    """
    if executor.executor_id in ("", "driver"):  # local mode has one executor
        return ""
    ours = str(registry.getsockname()[0])
    return ours if ipaddress.ip_address(ours.partition("%")[0]).is_loopback else executor.host.strip("[]")


def _environment() -> dict[str, str]:
    """The worker's environment, with its module path and with settings for a process that forks and has many threads.

    Libraries start no threads of their own, since the sidecar forks. Its forks have many threads, so allocators are
    chosen for these. Measured: with 64 seats of an executor with 4 cores 1,000 MB under Arrow's default, mimalloc, 390
    under jemalloc and 310 under malloc. jemalloc takes 20 % less CPU than both.
    """
    path = os.pathsep.join(os.path.abspath(entry) for entry in sys.path)
    one_thread = {"OPENBLAS_NUM_THREADS": "1", "JE_ARROW_MALLOC_CONF": "background_thread:false"}
    pool = "jemalloc" if "jemalloc" in pa.supported_memory_backends() else "system"
    chosen = {"ARROW_DEFAULT_MEMORY_POOL": pool, "MALLOC_ARENA_MAX": "2"}
    return {**chosen, **os.environ, "PYTHONPATH": path, **one_thread}
