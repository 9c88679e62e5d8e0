"""The listeners of all nodes, on one event loop: frames, headers, versions, bounds.

A connection is served in order, as Kafka does: a request behind a Fetch that waits is read when that is answered. A
frame that is too large, cut off, or no request that is served ends its connection, and no other one.
"""

from __future__ import annotations

import asyncio
import logging
import struct
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final

from spark_kgroup.broker.broker_clock import Clock
from spark_kgroup.broker.call import Call, HangUp, Later
from spark_kgroup.broker.cluster import Cluster, Node
from spark_kgroup.broker.groups import Groups
from spark_kgroup.broker.served import API_VERSIONS, SERVED, UNSUPPORTED_VERSION, Served
from spark_kgroup.broker.waiting import Waiting
from spark_kgroup.coordinator import CoordinatorConfig
from spark_kgroup.errors import ProtocolViolation
from spark_kgroup.wire.codec import RequestHeader, decode_request, decode_request_header, encode_response

log = logging.getLogger(__name__)

LOOPBACK: Final = "127.0.0.1"

REQUEST_BYTES_MAX: Final = 32 * 2**20
"""The largest request. Kafka: socket.request.max.bytes, 100 MiB. 32 MiB here, for a hostile request of many small
parts takes 30 times as much memory when it is read."""

FRAMES_BYTES_MAX: Final = 512 * 2**20
"""Requests and answers of all connections at one time. Kafka: queued.max.request.bytes, which has no default."""

CONNECTIONS_MAX: Final = 4_000
"""Connections at one time. Kafka has no bound (max.connections)."""

IDLE_S: Final = 600.0
"""How long a connection may be silent, or not take its answer. Kafka: connections.max.idle.ms, 10 min."""

_LENGTH: Final = struct.Struct(">i")

Intercept = Callable[[Served, Any, Call, int], Awaitable[Any]]
"""Called with each request before its handler, and the size of its frame. Returns None, or the answer in place of the
handler's. It may raise `HangUp`."""


async def _answer_nothing(*_: object) -> None:
    """Leave all requests to their handlers."""


class Server:
    """The listeners of a cluster's nodes. It belongs to the loop on which `start` is called.

    Args:
        cluster: the state that all nodes share.
        clock: the time of records and sessions.
        group_config: settings of all groups.
        host: the address to listen on.
        intercept: sees each request first.
    """

    def __init__(
        self,
        cluster: Cluster,
        *,
        clock: Clock,
        group_config: CoordinatorConfig,
        host: str = LOOPBACK,
        intercept: Intercept = _answer_nothing,
    ) -> None:
        self._cluster = cluster
        self._clock = clock
        self._host = host
        self._intercept = intercept
        self._waiting = Waiting()
        self._groups = Groups(cluster, clock, group_config)
        self._servers: list[asyncio.Server] = []
        self._connections: dict[asyncio.Task[None], asyncio.StreamWriter] = {}
        self._frames = _Frames(FRAMES_BYTES_MAX)

    @property
    def connections(self) -> int:
        """How many are open."""
        return len(self._connections)

    async def start(self, racks: Sequence[str | None], ports: Sequence[int] | None = None) -> None:
        """Listen, with a node for each rack, whose ids begin at 1.

        Args:
            racks: of each node, or None.
            ports: of each node. By default the system chooses them.

        Raises:
            OSError: a port is taken.
        """
        for node_id, (rack, port) in enumerate(zip(racks, ports or [0] * len(racks), strict=True), 1):
            server = await asyncio.start_server(self._accept(node_id), self._host, port)
            self._servers.append(server)
            self._cluster.nodes[node_id] = Node(node_id, self._host, server.sockets[0].getsockname()[1], rack)
        self._groups.start()

    async def stop(self) -> None:
        """End all connections, and listen no more."""
        self._groups.stop()
        for server in self._servers:
            server.close()
        tasks = list(self._connections)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for server in self._servers:
            await server.wait_closed()
        self._servers.clear()

    def drop_connections(self) -> None:
        """End all connections, and go on listening."""
        for writer in self._connections.values():
            writer.transport.abort()

    def wake(self) -> None:
        """Wake the requests that wait for a change, and delete offsets of topics, AFTER the cluster was changed."""
        if self._cluster.changed:
            changed = frozenset(self._cluster.changed)
            self._cluster.changed.clear()
            self._waiting.wake(changed)
        if self._cluster.deleted_topics:
            deleted = tuple(self._cluster.deleted_topics)
            self._cluster.deleted_topics.clear()
            self._groups.delete_topics(deleted)

    # ------------------------------------------------------------------------------------------------ connections

    def _accept(self, node_id: int) -> Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            self._connections[task] = writer
            try:
                if len(self._connections) <= CONNECTIONS_MAX:
                    await self._serve(_Peer(node_id, reader, writer))
            except (asyncio.IncompleteReadError, OSError, TimeoutError, HangUp, asyncio.CancelledError):
                pass  # the client left, was silent for too long, or is sent away
            except ProtocolViolation as error:
                log.info("A connection of node %d ends: %s", node_id, error)
            except Exception:  # a bug of any kind ends this connection, and no other one
                log.exception("A request could not be answered")
            finally:
                writer.transport.abort()
                with suppress(OSError, asyncio.CancelledError):  # it ends here, however often it is cancelled
                    await writer.wait_closed()
                del self._connections[task]  # last: `stop` waits for those that are in there

        return serve

    async def _serve(self, peer: _Peer) -> None:
        while True:
            async with asyncio.timeout(IDLE_S):
                (size,) = _LENGTH.unpack(await peer.reader.readexactly(_LENGTH.size))
            if not 0 <= size <= REQUEST_BYTES_MAX:
                raise ProtocolViolation(f"a request has {size} bytes, and may have {REQUEST_BYTES_MAX}")
            with self._frames.of(size):
                async with asyncio.timeout(IDLE_S):
                    frame = await peer.reader.readexactly(size)
                answer = await self._answer(frame, peer)
            del frame
            if answer is not None:
                await self._send(answer, peer)

    async def _send(self, answer: bytes, peer: _Peer) -> None:
        with self._frames.of(len(answer)):
            peer.writer.write(answer)
            async with asyncio.timeout(IDLE_S):
                await peer.writer.drain()

    # --------------------------------------------------------------------------------------------------- requests

    async def _answer(self, frame: bytes, peer: _Peer) -> bytes | None:
        """The frame of the answer, or None if the request has none."""
        header, at = decode_request_header(frame)
        served, version = SERVED.get(header.api_key), header.api_version
        if served is None or not served.layout.first <= version <= served.layout.last:
            return _refused_version(header)
        flexible = version >= served.layout.flexible_since
        request = decode_request(served.layout.request, frame, at, version=version, flexible=flexible)
        call = Call(peer.node_id, version, self._clock.now_ms(), header.client_id or "", peer.client_host)
        response = await self._intercept(served, request, call, len(frame))
        if response is None:
            response = await self._handled(served, request, call, peer)
        if response is None:
            return None
        return encode_response(
            response,
            header.correlation_id,
            version=version,
            flexible=flexible,
            flexible_header=flexible and header.api_key != API_VERSIONS,
        )

    async def _handled(self, served: Served, request: Any, call: Call, peer: _Peer) -> Any:
        if served.answer is None:
            return await self._groups.answer(request, call, peer.is_gone)
        answer = served.answer(self._cluster, request, call)
        self.wake()
        until_s: float | None = None
        while isinstance(answer, Later):
            until_s = until_s or asyncio.get_running_loop().time() + answer.wait_ms / 1000
            changed = await self._waiting.wait(answer.partitions, until_s, peer.is_gone)
            call = call._replace(now_ms=self._clock.now_ms(), waited=not changed)
            answer = served.answer(self._cluster, request, call)
        return answer


def _refused_version(header: RequestHeader) -> bytes:
    """The answer to a version that is not served. Kafka answers only ApiVersions (KIP-511), and hangs up otherwise."""
    if header.api_key != API_VERSIONS:
        raise ProtocolViolation(f"API {header.api_key} is not served in version {header.api_version}")
    return encode_response(UNSUPPORTED_VERSION, header.correlation_id, version=0, flexible=False, flexible_header=False)


@dataclass(frozen=True, slots=True)
class _Peer:
    """One connection, and the node that it was made to."""

    node_id: int
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    @property
    def client_host(self) -> str:
        """As Kafka shows it."""
        peer = self.writer.get_extra_info("peername")
        return f"/{peer[0]}" if peer else "/unknown"

    def is_gone(self) -> bool:
        """Whether the client has closed the connection."""
        return self.reader.at_eof() or self.writer.transport.is_closing()


class _Frames:
    """The bytes of all frames that are held at one time."""

    def __init__(self, bytes_max: int) -> None:
        self._left = bytes_max

    @contextmanager
    def of(self, size: int) -> Iterator[None]:
        """Hold so many bytes.

        Raises:
            ProtocolViolation: all connections together would hold too many.
        """
        if size > self._left:
            raise ProtocolViolation(f"a frame of {size} bytes finds no room: other connections hold too many")
        self._left -= size
        try:
            yield
        finally:
            self._left += size
