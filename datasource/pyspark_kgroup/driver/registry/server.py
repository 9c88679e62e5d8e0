"""The registry's server: where executors reach the registry. It listens, in a thread of its own.

Runs on: driver. A daemon thread with an event loop, in the stream-reader process.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from pyspark_kgroup.driver.registry.peers import Admissions, Peer, Peers
from pyspark_kgroup.driver.registry.requests import Requests
from pyspark_kgroup.limits import (
    ACCEPT_AGAIN_S,
    CHANNEL_BACKLOG,
    REGISTRY_PORT_WAIT_MS,
    REGISTRY_REFUSALS_LOGGED_MS,
)
from pyspark_kgroup.shared.accept import next_connection
from pyspark_kgroup.shared.channel import new_key
from spark_kgroup.clock import monotonic_ms
from spark_kgroup.errors import OptionError
from spark_kgroup.limits import CLOSE_TIMEOUT_MS

log = logging.getLogger(__name__)

_LOOK_S: Final = 0.5
"""How often deadlines are looked at."""


class RegistryServer:
    """Accepts the connections of peers in a thread of its own, which Spark's thread starts and ends.

    Args:
        requests: answers the requests of peers that have shown the key.
        key: the application's secret, or None if this query shares none with other queries.
        bind_host: an address of this host to listen on, or "" for all, of IPv4 and of IPv6.
        port: where to listen, or 0 for any free port.
        clock: in milliseconds, and it goes on while the process is stopped.
        wait_s: how Spark's thread waits for a port that is taken.

    Attributes:
        bind_host: as given.
        key: for the query's tickets.
        port: where it listens, once it was started.
    """

    def __init__(
        self,
        requests: Requests,
        *,
        key: bytes | None = None,
        bind_host: str = "",
        port: int = 0,
        clock: Callable[[], int] = monotonic_ms,
        wait_s: Callable[[float], None] = time.sleep,
    ) -> None:
        self.key = key or new_key()
        self.port = port
        self.bind_host = bind_host
        self._clock = clock
        self._wait_s = wait_s
        self._peers = Peers(requests, key=self.key, clock=clock)
        self._warn_of_problem_at_ms = 0
        self._stopped = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    # ----------------------------------------------------------------------------------------------- Spark's thread

    def start(self) -> None:
        """Listen, and serve in a thread.

        Raises:
            OptionError: the port is taken, or the address is not of this host.
        """
        listener = self._listen()
        self.port = listener.getsockname()[1]
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._run, args=(self._loop, listener), name="kgroup registry", daemon=True
        )
        self._thread.start()

    def _listen(self) -> socket.socket:
        deadline_ms = self._clock() + REGISTRY_PORT_WAIT_MS
        while True:
            try:
                listener = _bind(self.bind_host, self.port)
            except OSError as problem:
                if problem.errno != errno.EADDRINUSE or self.port == 0 or self._clock() > deadline_ms:
                    raise OptionError(
                        f"The stream reader cannot listen on {self.bind_host or 'this host'}, port {self.port} "
                        f"({problem.strerror}). Give each query on this host another `registryPort`, or leave the "
                        "option out: any free port is taken."
                    ) from None
                self._wait_s(_LOOK_S / 5)
            else:
                listener.setblocking(False)
                return listener

    def close(self) -> None:
        """End every connection, and the thread. Safe to call twice."""
        if self._thread is None or self._loop is None:
            return
        with suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self._stopped.set)
        self._thread.join(CLOSE_TIMEOUT_MS / 1000)

    def counts(self) -> Admissions:
        """The connections so far."""
        return self._peers.counts()

    # --------------------------------------------------------------------------------------------------- its thread

    def _run(self, loop: asyncio.AbstractEventLoop, listener: socket.socket) -> None:
        with listener:
            loop.run_until_complete(self._serve(listener))
        loop.close()

    async def _serve(self, listener: socket.socket) -> None:
        accepting = asyncio.create_task(self._accept(listener))
        while not self._stopped.is_set():
            self._peers.end_overdue()
            self._peers.warn_of_refusals(self.port)
            with suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_S):
                    await self._stopped.wait()
        accepting.cancel()
        await asyncio.wait([accepting])
        await self._peers.end_all()

    async def _accept(self, listener: socket.socket) -> None:
        """Take one connection after the other: messages of honest peers are read between any two."""
        loop = asyncio.get_running_loop()
        while True:
            try:
                client, _ = await next_connection(listener)
                await loop.connect_accepted_socket(lambda: Peer(self._peers), client)
            except OSError as problem:
                self._warn_of_problem(problem)
                await asyncio.sleep(ACCEPT_AGAIN_S)

    def _warn_of_problem(self, problem: OSError) -> None:
        if self._clock() >= self._warn_of_problem_at_ms:
            log.warning(
                "The stream reader cannot accept connections of executors for now, which read directly meanwhile: "
                "%s. If descriptors are missing, raise the limit (ulimit -n) where the driver starts.",
                problem.strerror,
            )
            self._warn_of_problem_at_ms = self._clock() + REGISTRY_REFUSALS_LOGGED_MS


def _bind(host: str, port: int) -> socket.socket:
    """A socket that listens. One of IPv6 takes IPv4 as well (RFC 3493, section 5.3)."""
    if not host and socket.has_dualstack_ipv6():
        with suppress(OSError):  # IPv6 is switched off on this host, or IPv4 tells the error
            return socket.create_server(
                ("", port), family=socket.AF_INET6, backlog=CHANNEL_BACKLOG, dualstack_ipv6=True
            )
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, port), family=family, backlog=CHANNEL_BACKLOG)
