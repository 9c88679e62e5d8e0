"""TCP proxies before every listener of a cluster: connections go through them, and they fail when they are told to.

Kafka advertises the proxies' ports, those of its controllers too (`ApacheKafka.advertised`), so that neither clients
nor nodes get past them. Which node a connection comes from is told by the process that has its other end: Linux. No
rights are needed for any of it.

A link that is cut keeps incoming bytes until it is healed, and hands them on then, as TCP does when packets were lost:
a connection stays open, and its end is not noticed on the other side.
"""

import asyncio
import os
import socket
import struct
import threading
from collections.abc import Callable, Coroutine, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, Final, NamedTuple, Self, TypeVar

CLIENTS: Final = 0
"""The source of a connection that comes from no node."""

_METADATA: Final = 3
"""Kafka's API key."""

_ESTABLISHED: Final = "01"
"""A TCP connection's state in /proc/net/tcp."""

_PIECE_BYTES: Final = 65_536
_CONNECT_TIMEOUT_S: Final = 5.0
_END_TIMEOUT_S: Final = 10.0
_OWNERS_TRIES: Final = 10
_OWNERS_EVERY_S: Final = 0.1
"""One look at all processes' files (10 ms) serves all connections that came in so long. Nodes connect again 20 times a
second to one that is gone: a look for each of them once took all of this thread, and the cluster stood still."""

_FRAME_BYTES_MAX: Final = 100 << 20
"""Kafka: socket.request.max.bytes."""


T = TypeVar("T")

Ports = tuple[int, int]
"""A connection's source port and destination port."""


class Cut(NamedTuple):
    """One direction of the connections from `source` (a node, or CLIENTS) to `node` carries no bytes."""

    source: int
    node: int
    requests: bool
    """Whether it is the direction of requests from `source`, else of answers from `node`."""


@dataclass(slots=True)
class Faults:
    """The faults that are on now.

    Attributes:
        delays_s: node -> how much later each piece of its answers to clients comes.
        reset_every: node -> one answer in so many to clients ends in its midst, with a reset: any one of them. Each
            n-th would be the same step of each login, which no client would get past.
        of_old: nodes that answer clients' Metadata as they did before.
    """

    cuts: frozenset[Cut] = frozenset()
    delays_s: dict[int, float] = field(default_factory=dict)
    reset_every: dict[int, int] = field(default_factory=dict)
    of_old: frozenset[int] = frozenset()


def cut_off(node: int, nodes: Iterable[int], *, hears: bool = False, is_heard: bool = False) -> frozenset[Cut]:
    """The cuts between `node` and the other `nodes`, none to clients. One way only, if it still hears or is heard."""
    others = [other for other in nodes if other != node]
    to_it = [Cut(other, node, requests=True) for other in others] + [Cut(node, o, requests=False) for o in others]
    from_it = [Cut(other, node, requests=False) for other in others] + [Cut(node, o, requests=True) for o in others]
    return frozenset([*([] if hears else to_it), *([] if is_heard else from_it)])


class _Reset(Exception):
    """A connection is to end with a reset."""


class Links:
    """All proxies of one cluster. A context manager that leaves no thread and no connection.

    Args:
        pids: node id -> its process id, as they are now.
        between_nodes: names of listeners that nodes alone connect to, and the only ones that nodes connect to.
        tls: names of listeners whose bytes cannot be understood: of these no Metadata is answered as of old.

    Attributes:
        seen: (source, node) of every connection that was ever made.
    """

    def __init__(
        self, pids: Callable[[], Mapping[int, int]], *, between_nodes: Iterable[str] = (), tls: Iterable[str] = ()
    ) -> None:
        self.seen: set[tuple[int, int]] = set()
        self._pids = pids
        self._between_nodes, self._tls = frozenset(between_nodes), frozenset(tls)
        self._faults = Faults()
        self._ports: dict[tuple[int, str], int] = {}
        self._upstreams: dict[tuple[int, str], int] = {}
        self._metadata: dict[int, dict[bytes, bytes]] = {}
        self._random = Random(0)
        self._tasks: set[asyncio.Task[Any]] = set()
        self._next_owners: asyncio.Task[Mapping[Ports, int]] | None = None
        self._looking = asyncio.Lock()
        self._clients: set[asyncio.StreamWriter] = set()
        self._loop = asyncio.new_event_loop()
        self._changed = asyncio.Event()
        self._thread = threading.Thread(target=self._loop.run_forever, name="links")

    # ---------------------------------------------------------------------------------------------- lifetime

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._do(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_END_TIMEOUT_S)
        assert not self._thread.is_alive(), "the proxies' thread did not end"
        self._loop.close()

    async def _end(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _do(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(_END_TIMEOUT_S)

    def port_before(self, node: int, listener: str, port: int) -> int:
        """The port of the proxy before a node's listener, which is opened at the first call (`Advertised`)."""
        self._upstreams[node, listener] = port
        if (node, listener) not in self._ports:
            server = socket.create_server(("127.0.0.1", 0))
            self._ports[node, listener] = server.getsockname()[1]
            self._loop.call_soon_threadsafe(self._serve, server, node, listener)
        return self._ports[node, listener]

    def bootstrap(self, listener: str) -> str:
        """HOST:PORT of the proxies before that listener of every node, separated by commas."""
        return ",".join(f"127.0.0.1:{port}" for (_, name), port in sorted(self._ports.items()) if name == listener)

    # ------------------------------------------------------------------------------------------------ faults

    def fail(self, faults: Faults) -> None:
        """From now on exactly these faults are on."""
        self._do(self._change(faults))

    def heal(self) -> None:
        """End all faults. Bytes that were kept are handed on."""
        self.fail(Faults())

    def reset_clients(self) -> None:
        """End every connection of a client with a reset, as a firewall does that forgets its table."""
        self._do(self._reset_clients())

    async def _change(self, faults: Faults) -> None:
        self._faults = faults
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def _reset_clients(self) -> None:
        for client in list(self._clients):
            _reset(client)

    # ------------------------------------------------------------------------------------------- connections

    def _serve(self, server: socket.socket, node: int, listener: str) -> None:
        async def serve() -> None:
            async with await asyncio.start_server(self._accepted(node, listener), sock=server) as serving:
                await serving.serve_forever()

        self._spawn(serve())

    def _spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _accepted(self, node: int, listener: str) -> Callable[[asyncio.StreamReader, asyncio.StreamWriter], None]:
        def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            self._spawn(self._connection(node, listener, reader, writer))

        return accepted

    async def _connection(
        self, node: int, listener: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """One client, until either side ends or it is reset."""
        source = CLIENTS
        upstream: asyncio.StreamWriter | None = None
        try:
            if listener not in self._between_nodes:
                self._clients.add(writer)
            opened = asyncio.open_connection("127.0.0.1", self._upstreams[node, listener])
            answers, to_node = await asyncio.wait_for(opened, _CONNECT_TIMEOUT_S)
            upstream = to_node
            if listener in self._between_nodes:
                source = await self._node_behind(writer)
            self.seen.add((source, node))
            link = _Link(self, source, node, understood=listener not in self._tls)
            pumps = [self._spawn(link.requests(reader, to_node)), self._spawn(link.answers(answers, writer))]
            try:
                await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for pump in pumps:
                    pump.cancel()
                results = await asyncio.gather(*pumps, return_exceptions=True)
            if any(isinstance(result, _Reset) for result in results):
                _reset(writer)
        except (OSError, TimeoutError):
            _reset(writer)  # the node does not listen: a client should see that at once
        finally:
            self._clients.discard(writer)
            for end in (writer, upstream):
                if end is not None:
                    end.close()

    async def _node_behind(self, writer: asyncio.StreamWriter) -> int:
        """The node that a connection comes from.

        Raises:
            OSError: its process is not found. It will connect again: were it taken for a client, a cut would leak.
        """
        ports = writer.get_extra_info("peername")[1], writer.get_extra_info("sockname")[1]
        for _ in range(_OWNERS_TRIES):
            if self._next_owners is None:
                self._next_owners = self._spawn(self._look_for_owners())
            if (source := (await asyncio.shield(self._next_owners)).get(ports)) is not None:
                return source
        raise OSError("no node has the other end of this connection")

    async def _look_for_owners(self) -> Mapping[Ports, int]:
        await asyncio.sleep(_OWNERS_EVERY_S)
        self._next_owners = None  # who comes from now on needs a later look
        async with self._looking:
            return await asyncio.to_thread(_owners, self._pids())

    async def passes(self, cut: Cut) -> None:
        """Wait as long as this direction is cut."""
        while cut in self._faults.cuts:
            await self._changed.wait()

    async def answer_passes(self, source: int, node: int) -> bool:
        """Wait as long as a piece of an answer takes. Returns whether it comes whole."""
        await self.passes(Cut(source, node, requests=False))
        if source != CLIENTS:
            return True
        if delay_s := self._faults.delays_s.get(node):
            await asyncio.sleep(delay_s)
        return not (every := self._faults.reset_every.get(node)) or self._random.randrange(every) != 0

    def metadata(self, node: int, question: bytes, answer: bytes) -> bytes:
        """The answer of `node` to a Metadata request, or its earlier one if it is to answer as before."""
        known = self._metadata.setdefault(node, {})
        if node in self._faults.of_old and question in known:
            return known[question]
        known[question] = answer
        return answer


@dataclass(slots=True)
class _Link:
    """Both directions of one connection.

    Attributes:
        asked: correlation id -> version and body of a Metadata request that is not answered yet.
    """

    links: Links
    source: int
    node: int
    understood: bool
    asked: dict[int, bytes] = field(default_factory=dict)

    async def requests(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        cut = Cut(self.source, self.node, requests=True)
        with suppress(asyncio.IncompleteReadError, OSError):
            while piece := await (self._request(reader) if self.understood else reader.read(_PIECE_BYTES)):
                await self.links.passes(cut)
                writer.write(piece)
                await writer.drain()
        await self.links.passes(cut)  # its end is not noticed either

    async def answers(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError, OSError):
            while piece := await (self._answer(reader) if self.understood else reader.read(_PIECE_BYTES)):
                if not await self.links.answer_passes(self.source, self.node):
                    writer.write(piece[: len(piece) // 2])
                    await writer.drain()
                    raise _Reset
                writer.write(piece)
                await writer.drain()
        await self.links.passes(Cut(self.source, self.node, requests=False))

    async def _request(self, reader: asyncio.StreamReader) -> bytes:
        """One request, whole. A Metadata request is remembered (Kafka: request header v1 and v2)."""
        head = await reader.readexactly(4)
        frame = await reader.readexactly(_length(head))
        if len(frame) >= 10 and self.source == CLIENTS:
            api_key, version, correlation_id, client_id_bytes = struct.unpack_from(">hhih", frame)
            if api_key == _METADATA:
                self.asked[correlation_id] = struct.pack(">h", version) + frame[10 + max(client_id_bytes, 0) :]
        return head + frame

    async def _answer(self, reader: asyncio.StreamReader) -> bytes:
        """One answer, whole."""
        head = await reader.readexactly(4)
        frame = await reader.readexactly(_length(head))
        if len(frame) >= 4 and self.asked:
            (correlation_id,) = struct.unpack_from(">i", frame)
            if (question := self.asked.pop(correlation_id, None)) is not None:
                frame = frame[:4] + self.links.metadata(self.node, question, frame[4:])
                head = struct.pack(">i", len(frame))
        return head + frame


def _length(head: bytes) -> int:
    (length,) = struct.unpack(">i", head)
    if not 0 <= length <= _FRAME_BYTES_MAX:
        raise OSError(f"no frame of Kafka's: {head!r}")
    return int(length)


def _reset(writer: asyncio.StreamWriter) -> None:
    """End a connection at once. The other side gets a reset (socket(7), SO_LINGER with no time)."""
    end = writer.get_extra_info("socket")
    with suppress(OSError):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


def _owners(pids: Mapping[int, int]) -> Mapping[Ports, int]:
    """Ports of each connection -> the node whose process made it (proc(5), net/tcp).

    While connections come and go, the kernel's table may leave one out.
    """
    connections: dict[str, Ports] = {}
    for table in ("tcp", "tcp6"):  # a JVM's sockets are in the second
        for fields in map(str.split, Path(f"/proc/net/{table}").read_text().splitlines()[1:]):
            if fields[3] == _ESTABLISHED:
                here, there = (int(address.rpartition(":")[2], 16) for address in fields[1:3])
                connections[f"socket:[{fields[9]}]"] = here, there
    return {connections[file]: node for node, pid in pids.items() for file in _open_files(pid) if file in connections}


def _open_files(pid: int) -> set[str]:
    found = set()
    with suppress(OSError):  # it has just ended
        for entry in os.scandir(f"/proc/{pid}/fd"):
            with suppress(OSError):  # closed since it was listed
                found.add(os.readlink(entry.path))
    return found
