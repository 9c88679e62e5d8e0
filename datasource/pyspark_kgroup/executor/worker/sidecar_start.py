"""Starts the sidecar of this executor for later reads, or lets the one that is there serve one more query.

Runs on: executor, in Spark's Python workers.
"""

from __future__ import annotations

import ipaddress
import logging
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

import pyarrow as pa

from pyspark_kgroup.errors import ChannelEnded, KeyRefused
from pyspark_kgroup.executor.worker.executor_query import ExecutorQuery
from pyspark_kgroup.executor.worker.registry_client import RegistryClient
from pyspark_kgroup.executor.worker.sidecar_client import NO_SIDECAR, SidecarClient, SidecarUnavailable
from pyspark_kgroup.limits import SIDECAR_SILENCE_MS, SIDECAR_START_AFTER_MS, SIDECAR_START_MS
from pyspark_kgroup.shared.channel import Channel
from pyspark_kgroup.shared.messages import AddQuery, CannotStart, QueryMessage, Ready, SidecarParameters
from pyspark_kgroup.shared.tickets import Executor

log = logging.getLogger(__name__)

_REUSED: Final = "SPARK_REUSE_WORKER"
"""Set by Spark for workers that live on after their tasks (PythonWorkerFactory, `spark.python.worker.reuse`)."""


class SidecarStart:
    """Starts the sidecar of an executor for one query. No read waits for that.

    Args:
        query: the query on this executor.
        registry: of the query. A sidecar needs a connection to it.
        sidecar: by which a sidecar is found that is there already.
        on_failure: is told, in a thread of its own, why no sidecar can be had here for a query that goes on.
    """

    def __init__(
        self,
        query: ExecutorQuery,
        registry: RegistryClient,
        sidecar: SidecarClient,
        on_failure: Callable[[SidecarUnavailable], None],
    ) -> None:
        self._query = query
        self._registry = registry
        self._sidecar = sidecar
        self._on_failure = on_failure
        self._read_over = threading.Event()
        self._handed_over = threading.Event()  # a sidecar that starts no longer needs this process
        self._handed_over.set()  # no sidecar starts now, so `on_read_over` need not wait

    # ---------------------------------------------------------------------------------------------------- beside reads

    def soon(self) -> None:
        """Start a sidecar for later reads. This read has the CPU first: the executor itself has only just started."""
        self._read_over.clear()
        if self._ends_with_task():
            self._read_over.set()  # the thread starts the sidecar at once: it ends with this process
        self._handed_over.clear()
        threading.Thread(target=self._start_after_read, name="kgroup sidecar start", daemon=True).start()

    def on_read_over(self) -> None:
        """A read has ended: the CPU is free, and this process may be about to end."""
        self._read_over.set()
        if self._ends_with_task():
            self._handed_over.wait(SIDECAR_START_AFTER_MS / 1000)

    def _ends_with_task(self) -> bool:
        """Whether this process ends with its task: Spark says so, or has started it without the daemon that keeps it.

        `spark.python.use.daemon` set to false does that, and leaves `_REUSED` as it is: the worker is then a child of
        the JVM itself.
        """
        return not os.environ.get(_REUSED) or os.getppid() == self._query.executor.pid

    def _start_after_read(self) -> None:
        self._read_over.wait(SIDECAR_START_AFTER_MS / 1000)
        try:
            self.start(self._handed_over.set)
        except SidecarUnavailable as why:
            # A short query may be over before its sidecar has started, which is nothing to mend.
            if self._registry.serves_query():
                self._on_failure(why)
            else:
                log.debug("no sidecar, and no registry of its query: %s", why)
        finally:
            self._handed_over.set()

    # ------------------------------------------------------------------------------------------------------- the start

    def start(self, on_handed_over: Callable[[], None]) -> None:
        """Let a sidecar serve the query: start one if there is none. Return at once if another worker does so.

        Args:
            on_handed_over: called as soon as the sidecar starts even if this process ends.

        Raises:
            SidecarUnavailable: no sidecar can be had here.
        """
        place = self._sidecar.require_place()
        try:
            with place.hold_lock():
                # Asked again under the lock: another worker may have failed while this one waited for its read.
                if not self._query.failures.has(NO_SIDECAR):
                    self._hand_over_query(self._registry.connect(), place.folder, on_handed_over)
        except BlockingIOError:
            return
        except (OSError, SidecarUnavailable, ChannelEnded, KeyRefused, subprocess.SubprocessError) as problem:
            raise self._sidecar.give_up(problem) from None

    def _hand_over_query(self, registry: Channel, folder: Path, on_handed_over: Callable[[], None]) -> None:
        """Let the sidecar serve the query over this connection. Raises the errors that `start` catches."""
        with registry.socket:
            answer: QueryMessage | None = None
            if (channel := self._sidecar.connect_if_there()) is not None:
                with channel.socket, suppress(ChannelEnded):  # it may end at that very moment
                    self._name_query(channel, registry.socket)
                    answer = channel.hear(SIDECAR_SILENCE_MS / 1000)
            if answer is None:
                answer = self._start_process(folder, registry.socket, on_handed_over)
        match answer:
            case Ready():
                return
            case CannotStart(reason=reason):
                raise SidecarUnavailable(reason)
        raise SidecarUnavailable("The started process is no sidecar.")

    def _name_query(self, channel: Channel, registry: socket.socket) -> None:
        """Ask for this query to be served over this connection. Raises ChannelEnded."""
        access = self._query.access
        channel.say(
            AddQuery(
                query=access.query,
                prefetch_bytes=access.prefetch_bytes,
                idle_ms=access.idle_ms,
                tells_sizes=access.tells_sizes,
            )
        )
        try:
            # A descriptor needs a byte to travel with. It is not the frame's, whose reader takes no descriptors.
            socket.send_fds(channel.socket, [b"+"], [registry.fileno()])
        except OSError as problem:
            raise ChannelEnded(f"The sidecar has gone ({problem}).") from None

    def _start_process(self, folder: Path, registry: socket.socket, on_handed_over: Callable[[], None]) -> QueryMessage:
        """Start a sidecar and wait until it listens. Its parameters travel over its standard input.

        Args:
            folder: where it is to be found.
            registry: as `_name_query` takes it.
            on_handed_over: as `start` takes it.

        Returns:
            Its answer, or `CannotStart` if it ended or was silent.
        """
        executor = self._query.executor
        parameters = SidecarParameters(
            folder=str(folder),
            key=self._query.access.key,
            executor=executor,
            host=_host_for_others(registry, executor),
        )
        ours, theirs = socket.socketpair()
        channel = Channel(ours)
        channel.trust()
        with ours:
            with theirs:
                process = subprocess.Popen(
                    [sys.executable, "-P", "-m", "pyspark_kgroup.executor.sidecar.sidecar", executor.key],
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
    # The sidecar starts in another folder, where a relative entry would mean another place.
    path = os.pathsep.join(os.path.abspath(entry) for entry in sys.path)
    one_thread = {"OPENBLAS_NUM_THREADS": "1", "JE_ARROW_MALLOC_CONF": "background_thread:false"}
    pool = "jemalloc" if "jemalloc" in pa.supported_memory_backends() else "system"
    chosen = {"ARROW_DEFAULT_MEMORY_POOL": pool, "MALLOC_ARENA_MAX": "2"}
    # A user's choice of allocators wins. The bounds on threads hold in any case: a fork has only the forking thread.
    return {**chosen, **os.environ, "PYTHONPATH": path, **one_thread}
