"""The requests of executors' processes: what each is answered, and which connection is whose sidecar.

Runs on: driver, in the thread of the registry's server.

An executor lives while its sidecar is connected. `registry` has what is answered, `peers` has the connections.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Protocol

from pyspark_kgroup.driver.registry.registry import Registry
from pyspark_kgroup.errors import ChannelEnded
from pyspark_kgroup.limits import (
    REGISTRY_CONNECTIONS_MAX,
    SIDECAR_SILENCE_MS,
    SUCCEEDED_SIDECAR_SILENCE_MS,
    SUCCESSOR_WAIT_MS,
)
from pyspark_kgroup.shared.messages import (
    Bind,
    Durable,
    Heartbeat,
    Hello,
    Homes,
    QueryMessage,
    Refused,
    Resting,
    Served,
    Welcome,
)
from pyspark_kgroup.shared.tickets import Executor

log = logging.getLogger(__name__)


class Connection(Protocol):
    """The connection of a peer that has shown the key, as far as its requests are concerned.

    Attributes:
        host: the IP address that the peer has connected from.
        port: the port of this stream reader that the peer has connected to.
        patience_ms: how long the peer may be silent after a message.
    """

    host: str
    port: int
    patience_ms: int

    def expect_within(self, silence_ms: int) -> None:
        """End the connection soon, unless the peer sends a message within `silence_ms`."""

    def respond(self, response: QueryMessage | None) -> None:
        """Answer the peer's last request, unless `response` is None: the request wants no answer, or not yet."""


class Requests:
    """Answers the requests of peers, and knows which of them are sidecars. The server's thread alone uses it.

    Args:
        registry: has the seats that are asked for.
        on_durable: is told of a batch that is in Spark's commit log, by `Checkpoint.digest`. It must not block.
    """

    def __init__(self, registry: Registry, *, on_durable: Callable[[str], None] = lambda _: None) -> None:
        self._registry = registry
        self._on_durable = on_durable
        self._sidecars: dict[str, Connection] = {}  # executor -> its sidecar
        # The executor that each sidecar says it is of. A worker's connection is not in it.
        self._executors: dict[Connection, Executor] = {}
        self._successors: dict[Connection, Hello] = {}  # sidecars that wait for the end of the one before them
        self._warned_of: set[str] = set()  # executors that cannot reach us

    def answer(self, peer: Connection, request: QueryMessage) -> QueryMessage | None:
        """Carry out a request of a peer that has shown the key. Returns the answer, or None for none, or none yet.

        Raises:
            ChannelEnded: the message is not one for a registry.
        """
        match request:
            case Heartbeat():
                return Homes(seats=self._seats_at_home(peer))
            case Bind():
                self._warn_of_detour(peer, request.executor)
                return self._registry.bind(request)
            case Served():
                self._registry.on_served(request, self._executors.get(peer))
                return None
            case Resting() if peer in self._executors:
                self._registry.on_resting(request.seat, self._executors[peer])
                return None
            case Hello(query=self._registry.query, sidecar=True) if peer not in self._executors:
                return self._on_sidecar(peer, request)
            case Hello(query=self._registry.query):
                return Welcome(serves_others=False)
            case Durable():
                if request.query == self._registry.query:  # the port may have been another query's before
                    self._on_durable(request.end)
                return None
            case Hello():  # the port was another query's before
                return Refused(reason="This is the registry of another query.")
        raise ChannelEnded(f"The peer sent the registry a {type(request).__name__}.")

    def on_overdue(self, peer: Connection) -> None:
        """A connection is about to be ended, since its peer is silent for too long, or waits for too long."""
        if (hello := self._successors.get(peer)) is not None:
            self._warn_of_second_sidecar(peer, hello.executor)

    def on_ended(self, peer: Connection) -> None:
        """A connection has ended, whether its peer had shown the key or not."""
        self._successors.pop(peer, None)
        if (executor := self._executors.pop(peer, None)) is not None:
            log.info("The sidecar of executor %s has gone.", executor.key)
            self._registry.on_sidecar_gone(executor.key)
            del self._sidecars[executor.key]
            self._admit_successor(executor.key)

    def _on_sidecar(self, peer: Connection, hello: Hello) -> Welcome | None:
        """Answer a sidecar's greeting, or None if its executor has one: then it waits for that one's end, or its own.

        The application's key does not tell one executor from another, so any process that holds it may pass for a
        sidecar. An honest sidecar has taken the place of the one before it on their machine. The one before ends within
        a second because of that, or hangs and is silent.
        """
        executor = hello.executor
        if (before := self._sidecars.get(executor.key)) is not None:
            before.expect_within(SUCCEEDED_SIDECAR_SILENCE_MS)
            self._successors[peer] = hello
            peer.patience_ms = SUCCESSOR_WAIT_MS
            return None
        self._sidecars[executor.key], self._executors[peer] = peer, executor
        peer.patience_ms = SIDECAR_SILENCE_MS
        log.info("The sidecar of executor %s has come.", executor.key)
        self._registry.on_sidecar_joined(executor, hello.address)
        return Welcome(serves_others=self._registry.homes_serve_others)

    def _admit_successor(self, executor: str) -> None:
        """The executor's sidecar has gone: answer the successor that has waited longest, if there is one."""
        for peer, hello in self._successors.items():
            if hello.executor.key == executor:
                del self._successors[peer]
                peer.respond(self._on_sidecar(peer, hello))
                return

    def _warn_of_second_sidecar(self, peer: Connection, executor: Executor) -> None:
        log.warning(
            "Two processes say that they are the sidecar of executor %r: one at %s, which lives, and one at %s, which "
            "was refused. One of them has this application's key and is no sidecar of that executor.",
            executor.executor_id or executor.key,
            self._sidecars[executor.key].host,
            peer.host,
        )

    def _warn_of_detour(self, peer: Connection, executor: Executor) -> None:
        """Warn once of an executor that asks by way of another one's sidecar."""
        way = self._executors.get(peer)
        if way is None or way.key == executor.key or executor.key in self._warned_of:
            return
        if len(self._warned_of) >= REGISTRY_CONNECTIONS_MAX:
            self._warned_of.clear()  # bounds the memory, and at worst a warning comes again
        self._warned_of.add(executor.key)
        log.warning(
            "Executor %s on host %s cannot reach port %d of this stream reader: it asks by way of executor %s on host "
            "%s, and has no sidecar of its own, which is slower. Open that port to it (options `registryPort` and "
            "`registryHost`).",
            executor.executor_id or executor.key,
            executor.host,
            peer.port,
            way.executor_id or way.key,
            way.host,
        )

    def _seats_at_home(self, peer: Connection) -> tuple[str, ...]:
        """The seats whose servers are to run beside this peer's executor."""
        mine = self._executors.get(peer)
        homes = self._registry.homes()
        return tuple(seat for seat, home in homes.items() if mine is not None and home.executor.key == mine.key)
