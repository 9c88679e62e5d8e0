"""The peers of a registry's server: processes that have connected, which talk only after they have shown the key.

Runs on: driver, in the thread of the registry's server.

A request is answered before the next one of its connection is looked at, and a peer that leaves its answers unread is
not read any further: the memory of a connection is bounded by two frames.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final, cast

from pyspark_kgroup.driver.registry.requests import Requests
from pyspark_kgroup.errors import ChannelEnded, KeyRefused
from pyspark_kgroup.limits import (
    CHANNEL_HANDSHAKE_MS,
    CHANNEL_REQUEST_BYTES_MAX,
    CHANNEL_SEND_MS,
    REGISTRY_CONNECTIONS_MAX,
    REGISTRY_REFUSALS_LOGGED_MS,
    REGISTRY_UNAUTHENTICATED_MAX,
)
from pyspark_kgroup.shared.channel import REGISTRY, Challenge, Frames, Message, frame
from pyspark_kgroup.shared.messages import QueryMessage, parse, to_json
from pyspark_kgroup.shared.unauthenticated import Unauthenticated
from spark_kgroup.limits import API_TIMEOUT_MS

log = logging.getLogger(__name__)

_VERSIONS: Final = "Is the same version of spark-kgroup installed on the driver and on every executor?"


@dataclass(frozen=True, slots=True, kw_only=True)
class Admissions:
    """Connections that a server has counted since it started.

    Attributes:
        accepted: those whose peer has shown the key.
        refused: those whose peer has not.
        silent: those whose peer has left without sending a byte: a worker that was killed, or a port scan.
    """

    accepted: int = 0
    refused: int = 0
    silent: int = 0


class Peers:
    """All peers of one server: how many there may be, and how long they may be silent.

    The server's thread alone uses it, but for `counts`, which may be called in any thread.

    Args:
        requests: answers the requests of peers that have shown the key.
        key: the secret that peers have to show.
        clock: in milliseconds, and it goes on while the process is stopped.

    Attributes:
        key: as given.
        clock: as given.
    """

    def __init__(self, requests: Requests, *, key: bytes, clock: Callable[[], int]) -> None:
        self.key = key
        self.clock = clock
        self._requests = requests
        self._connected: set[Peer] = set()
        self._unauthenticated = Unauthenticated[Peer](REGISTRY_UNAUTHENTICATED_MAX)
        self._counts = Admissions()
        self._refusals_warned = 0
        self._warn_of_refusals_at_ms = 0

    def counts(self) -> Admissions:
        """The connections so far."""
        return self._counts

    def on_connected(self, peer: Peer) -> None:
        """A peer has connected, unauthenticated."""
        self._connected.add(peer)
        if (too_many := self._unauthenticated.add(peer, peer.host)) is not None:
            too_many.end()

    def admit(self, peer: Peer) -> Requests:
        """A peer has shown the key. Returns what answers its requests from now on.

        Raises:
            ChannelEnded: there are too many already.
        """
        if len(self._connected) - len(self._unauthenticated) >= REGISTRY_CONNECTIONS_MAX:
            raise ChannelEnded(f"{REGISTRY_CONNECTIONS_MAX} executors are connected already.")
        self._unauthenticated.discard(peer)
        self._counts = replace(self._counts, accepted=self._counts.accepted + 1)
        return self._requests

    def on_ended(self, peer: Peer) -> None:
        """A connection has ended."""
        self._connected.discard(peer)
        if peer in self._unauthenticated:
            self._unauthenticated.discard(peer)
            self._count_unauthenticated(peer)
        self._requests.on_ended(peer)

    def _count_unauthenticated(self, peer: Peer) -> None:
        before = self._counts
        if peer.left_silently:
            self._counts = replace(before, silent=before.silent + 1)
        else:
            self._counts = replace(before, refused=before.refused + 1)

    def end_overdue(self) -> None:
        """End the connections whose deadline is over."""
        now_ms = self.clock()
        for peer in [peer for peer in self._connected if peer.deadline_ms <= now_ms]:
            self._requests.on_overdue(peer)
            peer.end()

    async def end_all(self) -> None:
        """End every connection, and wait until the loop has closed their sockets."""
        while self._connected:
            # `abort` calls `connection_lost` in the loop's next turn, so the set does not change during the iteration.
            for peer in self._connected:
                peer.end()
            await asyncio.sleep(0)

    def warn_of_refusals(self, port: int) -> None:
        """Warn of peers that did not show the key, at most once in a while.

        Args:
            port: where the server listens.
        """
        if self._counts.refused > self._refusals_warned and self.clock() >= self._warn_of_refusals_at_ms:
            log.warning(
                "%d connections to port %d of this stream reader were closed: they did not show the key of this "
                "application.",
                self._counts.refused - self._refusals_warned,
                port,
            )
            self._refusals_warned = self._counts.refused
            self._warn_of_refusals_at_ms = self.clock() + REGISTRY_REFUSALS_LOGGED_MS


class Peer(asyncio.Protocol):
    """One connection. Its peer is unauthenticated until it has shown the key. The server's thread alone uses it.

    Attributes:
        deadline_ms: when it is ended: the handshake takes too long, the peer is silent, or it does not read our
            messages.
        host: the IP address that it has connected from.
        port: the port of ours that it has connected to.
        left_silently: whether the peer has connected and hung up, without sending a byte.
        patience_ms: how long it may be silent after a message.
    """

    def __init__(self, peers: Peers) -> None:
        self.deadline_ms = peers.clock() + CHANNEL_HANDSHAKE_MS
        self.host = ""
        self.port = 0
        self.left_silently = True
        self.patience_ms = API_TIMEOUT_MS
        self._peers = peers
        self._requests: Requests | None = None  # None until the peer has shown the key
        self._request_id: int | str | None = None
        self._challenge = Challenge(peers.key, REGISTRY)
        self._frames = Frames()
        self._reads_answers = True

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Speak first."""
        self._transport = cast("asyncio.Transport", transport)
        if peername := transport.get_extra_info("peername"):  # None: it has gone already
            self.host = peername[0].removeprefix("::ffff:")  # a socket of IPv6 shows peers of IPv4 so
        if sockname := transport.get_extra_info("sockname"):
            self.port = sockname[1]
        self._peers.on_connected(self)
        self._transport.write(frame(self._challenge.message))

    def data_received(self, data: bytes) -> None:
        """Some bytes have come."""
        self.left_silently = False
        self._frames.feed(data)
        self._take_messages()

    def pause_writing(self) -> None:
        """The peer does not read our messages: read no further from it until it does."""
        self._reads_answers = False
        self._transport.pause_reading()
        self.deadline_ms = self._peers.clock() + CHANNEL_SEND_MS

    def resume_writing(self) -> None:
        """The peer has read our messages."""
        self._reads_answers = True
        self._transport.resume_reading()
        self._extend_deadline()
        self._take_messages()

    def connection_lost(self, _: Exception | None) -> None:
        """It has ended."""
        self._peers.on_ended(self)

    def end(self) -> None:
        """End the connection at once, and drop messages that are still to be sent. Safe to call twice."""
        self.left_silently = False  # it has not left by itself, so it counts as refused
        self._transport.abort()

    def expect_within(self, silence_ms: int) -> None:
        """End the connection soon, unless the peer sends a message within `silence_ms`."""
        self.deadline_ms = min(self.deadline_ms, self._peers.clock() + silence_ms)

    def _take_messages(self) -> None:
        try:
            while self._reads_answers and (message := self._frames.next()) is not None:
                self._take(message)
        except KeyRefused:
            self.end()
        except ChannelEnded as ended:
            if self._requests is not None:
                log.warning("An executor sent a message that the driver does not understand (%s). %s", ended, _VERSIONS)
            self.end()

    def _take(self, message: Message) -> None:
        if self._requests is None:
            proof = self._challenge.answer(message)
            self._requests = self._peers.admit(self)
            self._frames.trust(CHANNEL_REQUEST_BYTES_MAX)
            self._extend_deadline()
            self._transport.write(frame(proof))
        else:
            self._request_id = _read_id(message)
            self.respond(self._requests.answer(self, parse(message)))

    def respond(self, response: QueryMessage | None) -> None:
        """Answer the last request, unless `response` is None: it wants no answer, or not yet."""
        self._extend_deadline()
        if response is not None:
            self._transport.write(frame({**to_json(response), "id": self._request_id}))  # may pause us

    def _extend_deadline(self) -> None:
        self.deadline_ms = self._peers.clock() + self.patience_ms


def _read_id(request: Message) -> int | str | None:
    number = request.get("id")
    if number is None or isinstance(number, int | str):
        return number
    raise ChannelEnded("no such id")  # an id is sent back, so it must not be a nested value
