"""The registry: tells executors which seat a ticket reads, over connections of peers that have shown the key.

Runs on: driver. A daemon thread with an event loop, in the stream-reader process. `seats` decides, the I/O is here.

Spark's thread plans scans, the loop binds tickets: both hold the lock while `seats` decides, and act after it. A
request is answered before the next one of its connection is looked at, and a peer that leaves its answers unread is not
read any further: the memory of a connection is bounded by two frames. An executor lives while its sidecar is connected.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import random
import secrets
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain
from typing import Final, cast

from pyspark_kgroup.driver.registry.record_sizes import RecordSizes
from pyspark_kgroup.driver.registry.reporting import Counts
from pyspark_kgroup.driver.registry.seats import Home, Scan, Seats
from pyspark_kgroup.errors import ChannelEnded, KeyRefused, SeatRefused
from pyspark_kgroup.limits import (
    ACCEPT_AGAIN_S,
    CHANNEL_BACKLOG,
    CHANNEL_BYTES_MAX,
    CHANNEL_HANDSHAKE_MS,
    CHANNEL_REQUEST_BYTES_MAX,
    CHANNEL_SEND_MS,
    REGISTRY_CONNECTIONS_MAX,
    REGISTRY_PORT_WAIT_MS,
    REGISTRY_REFUSALS_LOGGED_MS,
    REGISTRY_UNAUTHENTICATED_MAX,
    SIDECAR_SILENCE_MS,
    SIDECARS_IN_TICKET,
    SUCCEEDED_SIDECAR_SILENCE_MS,
    SUCCESSOR_WAIT_MS,
)
from pyspark_kgroup.shared.channel import REGISTRY, Challenge, Frames, Message, frame, new_key
from pyspark_kgroup.shared.messages import (
    Bind,
    Bound,
    Durable,
    Heartbeat,
    Hello,
    Homes,
    NothingLeft,
    QueryMessage,
    Refused,
    Served,
    Welcome,
    parse,
    to_json,
)
from pyspark_kgroup.shared.tickets import Executor, Position, Range, SidecarAddress
from pyspark_kgroup.shared.unauthenticated import Unauthenticated
from spark_kgroup.clock import monotonic_ms
from spark_kgroup.errors import OptionError
from spark_kgroup.limits import API_TIMEOUT_MS, CLOSE_TIMEOUT_MS

log = logging.getLogger(__name__)

_LOOK_S: Final = 0.5
"""How often deadlines are looked at."""

_NUMBERS_BYTES: Final = 64
"""Most bytes that the numbers of a range or position take in JSON, with quotes and commas: 10, 19 and 19 digits."""

_LEADER_BYTES: Final = 72
"""Most bytes that a leader takes beside its host: three numbers of 10, 5 and 10 digits, and the topic's id of 32."""

_READS: Final = {
    "server": Counts(warm_reads=1),
    "network": Counts(network_reads=1),
    "worker": Counts(direct_reads=1),
}
"""How a read is counted, by `Served.by`."""

_VERSIONS: Final = "Is the same version of spark-kgroup installed on the driver and on every executor?"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Planned:
    """The ranges that the seats read in one scan, each in one piece or several.

    Attributes:
        owned: where the batch after it begins. None once that is past: no server goes back for a task that computes an
            old batch again.
    """

    reads: Mapping[str, Sequence[Sequence[Range]]]
    owned: Mapping[str, Sequence[Position]] | None


class Registry:
    """The seats of one query, for the executors that read them. Thread-safe.

    Args:
        all_seats: instance ids.
        key: the application's secret, or None if this query shares none with other queries.
        homes_serve_others: whether a worker on another executor than a seat's home reads from there.
        bind_host: an address of this host to listen on, or "" for all, of IPv4 and of IPv6.
        port: where to listen, or 0 for any free port.
        clock: in milliseconds, and it goes on while the process is stopped.
        wait_s: how Spark's thread waits for a port that is taken.
        on_durable: is told of a batch that is in Spark's commit log, by `Checkpoint.digest`. It must not block.

    Attributes:
        bind_host: as given.
        clock: as given.
        key: for the query's tickets.
        query: names this run of the query, for its tickets.
        port: where it listens, once it was started.
        sizes: how large the records are that executors have read.
    """

    def __init__(
        self,
        all_seats: Sequence[str],
        *,
        key: bytes | None = None,
        homes_serve_others: bool = False,
        bind_host: str = "",
        port: int = 0,
        clock: Callable[[], int] = monotonic_ms,
        wait_s: Callable[[float], None] = time.sleep,
        on_durable: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.key = key or new_key()
        self.query = secrets.token_hex(8)
        self.port = port
        self.bind_host = bind_host
        self.clock = clock
        self._wait_s = wait_s
        self._on_durable = on_durable
        self._lock = threading.Lock()
        self._homes_serve_others = homes_serve_others
        self._seats = Seats(all_seats)
        self._sidecars: dict[str, _Peer] = {}  # executor -> its sidecar
        self._successors: dict[_Peer, Hello] = {}  # sidecars that wait for the end of the one before them
        self._warned_of: set[str] = set()  # executors that cannot reach us
        self._planned: dict[int, _Planned] = {}
        self._asks_nobody = False  # the last batch does not fit into messages
        self._counts = Counts()
        self.sizes = RecordSizes()
        self._peers: set[_Peer] = set()
        self._unauthenticated = Unauthenticated[_Peer](REGISTRY_UNAUTHENTICATED_MAX)
        self._refusals_warned = 0
        self._warn_of_refusals_at_ms = 0
        self._warn_of_problem_at_ms = 0
        self._stopped = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

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
        deadline_ms = self.clock() + REGISTRY_PORT_WAIT_MS
        while True:
            try:
                listener = _bind(self.bind_host, self.port)
            except OSError as problem:
                if problem.errno != errno.EADDRINUSE or self.port == 0 or self.clock() > deadline_ms:
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

    # ----------------------------------------------------------------------------------------------- Spark's thread

    def plan(
        self, batch: str, reads: Mapping[str, Sequence[Sequence[Range]]], owned: Mapping[str, Sequence[Position]]
    ) -> Scan:
        """A new scan of a batch.

        Args:
            batch: a digest of the batch's two offsets.
            reads: the pieces that each seat with data reads, in their order, mostly one.
            owned: the partitions of each seat at the end of the batch, and where the next batch will begin in them.
        """
        too_large = next((seat for seat in reads if not _fits(reads[seat], owned.get(seat, ()))), None)
        if too_large is not None:
            log.warning(
                "The %d partitions of seat %s do not fit into one message to its executor: the executors read this "
                "batch directly, which is slower. More `members` make the shares smaller.",
                len(owned.get(too_large, ())),
                too_large,
            )
        with self._lock:
            seats = [seat for seat in sorted(reads) for _ in reads[seat]]
            ranges = sum(len(piece) for pieces in reads.values() for piece in pieces)
            scan = self._seats.plan(batch, seats, late=too_large is None, ranges=ranges)
            self._asks_nobody = too_large is not None
            if too_large is None:
                self._planned[scan.scan_id] = _Planned(reads=reads, owned=owned)
            for number, planned in list(self._planned.items()):
                recent = self._seats.is_recent(number)
                if recent is None:
                    del self._planned[number]
                elif not recent and planned.owned is not None:
                    self._planned[number] = replace(planned, owned=None)
        return scan

    def is_untouched(self) -> bool:
        """As `Seats.is_untouched`, but False for a batch whose tickets need not ask."""
        with self._lock:
            return not self._asks_nobody and self._seats.is_untouched()

    def sidecars(self) -> tuple[SidecarAddress, ...]:
        """A few sidecars, at random: a worker that cannot reach us asks one of them."""
        with self._lock:
            known = [peer.address for peer in self._sidecars.values() if peer.address is not None]
        return tuple(random.sample(known, min(len(known), SIDECARS_IN_TICKET)))

    def slots(self) -> int:
        """As `Seats.slots`."""
        with self._lock:
            return self._seats.slots()

    def resize(self, all_seats: Sequence[str]) -> None:
        """As `Seats.resize`."""
        with self._lock:
            self._seats.resize(all_seats)

    def homes(self) -> Mapping[str, Home]:
        """Which executor each seat has as its home."""
        with self._lock:
            return self._seats.homes()

    def home(self, seat: str) -> Home | None:
        """Which executor one seat has as its home, or None if it has none."""
        with self._lock:
            return self._seats.home(seat)

    def counts(self) -> Counts:
        """The events so far."""
        return self._counts

    # ---------------------------------------------------------------------------------------------------- the loop

    def _run(self, loop: asyncio.AbstractEventLoop, listener: socket.socket) -> None:
        with listener:
            loop.run_until_complete(self._serve(listener))
        loop.close()

    async def _serve(self, listener: socket.socket) -> None:
        accepting = asyncio.create_task(self._accept(listener))
        while not self._stopped.is_set():
            self._end_overdue()
            self._warn_of_refusals()
            with suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_S):
                    await self._stopped.wait()
        accepting.cancel()
        await asyncio.wait([accepting])
        while self._peers:
            for peer in self._peers:
                peer.end()
            await asyncio.sleep(0)  # the loop closes their sockets

    async def _accept(self, listener: socket.socket) -> None:
        """Take one connection after the other: messages of honest peers are read between any two."""
        loop = asyncio.get_running_loop()
        while True:
            try:
                client, _ = await loop.sock_accept(listener)
                await loop.connect_accepted_socket(lambda: _Peer(self), client)
            except OSError as problem:
                self._warn_of_problem(problem)
                await asyncio.sleep(ACCEPT_AGAIN_S)

    def _warn_of_problem(self, problem: OSError) -> None:
        if self.clock() >= self._warn_of_problem_at_ms:
            log.warning(
                "The stream reader cannot accept connections of executors for now, which read directly meanwhile: "
                "%s. If descriptors are missing, raise the limit (ulimit -n) where the driver starts.",
                problem.strerror,
            )
            self._warn_of_problem_at_ms = self.clock() + REGISTRY_REFUSALS_LOGGED_MS

    def _end_overdue(self) -> None:
        now_ms = self.clock()
        for peer in [peer for peer in self._peers if peer.deadline_ms <= now_ms]:
            if (hello := self._successors.get(peer)) is not None:
                self._warn_of_second_sidecar(peer, hello.executor)
            peer.end()

    def _warn_of_refusals(self) -> None:
        if self._counts.refused > self._refusals_warned and self.clock() >= self._warn_of_refusals_at_ms:
            log.warning(
                "%d connections to port %d of this stream reader were closed: they did not show the key of this "
                "application.",
                self._counts.refused - self._refusals_warned,
                self.port,
            )
            self._refusals_warned = self._counts.refused
            self._warn_of_refusals_at_ms = self.clock() + REGISTRY_REFUSALS_LOGGED_MS

    # ------------------------------------------------------------------------------------------------ connections

    def on_connected(self, peer: _Peer) -> None:
        """A peer has connected, unauthenticated."""
        self._peers.add(peer)
        if (too_many := self._unauthenticated.add(peer, peer.host)) is not None:
            too_many.end()

    def admit(self, peer: _Peer) -> None:
        """A peer has shown the key.

        Raises:
            ChannelEnded: there are too many already.
        """
        if len(self._peers) - len(self._unauthenticated) >= REGISTRY_CONNECTIONS_MAX:
            raise ChannelEnded(f"{REGISTRY_CONNECTIONS_MAX} executors are connected already.")
        self._unauthenticated.discard(peer)
        self._counts += Counts(accepted=1)

    def on_ended(self, peer: _Peer) -> None:
        """A connection has ended."""
        self._peers.discard(peer)
        self._successors.pop(peer, None)
        if peer in self._unauthenticated:
            self._unauthenticated.discard(peer)
            self._counts += Counts(silent=1) if peer.left_silently else Counts(refused=1)
        if peer.sidecar_of is not None:
            log.info("The sidecar of executor %s has gone.", peer.sidecar_of.key)
            with self._lock:
                self._seats.on_sidecar_gone(peer.sidecar_of.key)
                del self._sidecars[peer.sidecar_of.key]
            self._admit_successor(peer.sidecar_of.key)

    # --------------------------------------------------------------------------------------------------- requests

    def answer(self, peer: _Peer, request: QueryMessage) -> QueryMessage | None:
        """Carry out a request of a peer that has shown the key. Returns the answer, or None for none, or none yet.

        Raises:
            ChannelEnded: the message is not one for a registry.
        """
        match request:
            case Heartbeat():
                return Homes(seats=self._homes_of(peer))
            case Bind():
                self._warn_of_detour(peer, request.executor)
                return self._bind(request)
            case Served():
                self._on_served(peer, request)
                return None
            case Hello(query=self.query, sidecar=True) if peer.sidecar_of is None:
                return self._on_sidecar(peer, request)
            case Hello(query=self.query):
                return Welcome(serves_others=False)
            case Durable():
                if request.query == self.query:  # the port may have been another query's before
                    self._on_durable(request.end)
                return None
            case Hello():  # the port was another query's before
                return Refused(reason="This is the registry of another query.")
        raise ChannelEnded(f"The peer sent the registry a {type(request).__name__}.")

    def _on_sidecar(self, peer: _Peer, hello: Hello) -> Welcome | None:
        """Answer a sidecar's greeting, or None if its executor has one: then it waits for that one's end, or its own.

        The application's key does not tell one executor from another, so any process that holds it may pass for a
        sidecar. An honest sidecar has taken the place of the one before it on their machine. The one before ends within
        a second because of that, or hangs and is silent.
        """
        executor = hello.executor
        if (before := self._sidecars.get(executor.key)) is not None:
            before.deadline_ms = min(before.deadline_ms, self.clock() + SUCCEEDED_SIDECAR_SILENCE_MS)
            self._successors[peer] = hello
            peer.patience_ms = SUCCESSOR_WAIT_MS
            return None
        peer.sidecar_of, peer.address, peer.patience_ms = executor, hello.address, SIDECAR_SILENCE_MS
        log.info("The sidecar of executor %s has come.", executor.key)
        with self._lock:
            self._seats.on_sidecar_joined(executor, self.clock())
            self._sidecars[executor.key] = peer
        return Welcome(serves_others=self._homes_serve_others)

    def _admit_successor(self, executor: str) -> None:
        """The executor's sidecar has gone: answer the successor that has waited longest, if there is one."""
        for peer, hello in self._successors.items():
            if hello.executor.key == executor:
                del self._successors[peer]
                peer.respond(self._on_sidecar(peer, hello))
                return

    def _warn_of_second_sidecar(self, peer: _Peer, executor: Executor) -> None:
        log.warning(
            "Two processes say that they are the sidecar of executor %r: one at %s, which lives, and one at %s, which "
            "was refused. One of them holds this application's key and passes for what it is not.",
            executor.executor_id or executor.key,
            self._sidecars[executor.key].host,
            peer.host,
        )

    def _warn_of_detour(self, peer: _Peer, executor: Executor) -> None:
        """Warn once of an executor that asks by way of another one's sidecar."""
        way = peer.sidecar_of
        if way is None or way.key == executor.key or executor.key in self._warned_of:
            return
        if len(self._warned_of) >= REGISTRY_CONNECTIONS_MAX:
            self._warned_of.clear()
        self._warned_of.add(executor.key)
        log.warning(
            "Executor %s on host %s cannot reach port %d of this stream reader: it asks by way of executor %s on host "
            "%s, and has no sidecar of its own, which is slower. Open that port to it (options `registryPort` and "
            "`registryHost`).",
            executor.executor_id or executor.key,
            executor.host,
            self.port,
            way.executor_id or way.key,
            way.host,
        )

    def _homes_of(self, peer: _Peer) -> tuple[str, ...]:
        """The seats whose servers are to run beside this peer's executor."""
        with self._lock:
            homes = self._seats.homes()
        mine = peer.sidecar_of.key if peer.sidecar_of is not None else None
        return tuple(seat for seat, home in homes.items() if home.executor.key == mine)

    def _bind(self, asked: Bind) -> Bound | NothingLeft | Refused:
        try:
            with self._lock:
                planned = self._planned.get(asked.scan)
                if planned is None:  # BEFORE it counts as a report, which only an answered request does
                    raise SeatRefused(asked.scan, asked.ticket)
                binding = self._seats.bind(
                    asked.scan, asked.ticket, asked.executor, self.clock(), for_guest=asked.for_guest
                )
                home = self._seats.home(binding.seat) if binding.seat is not None else None
                sidecar = self._sidecars.get(home.executor.key) if home is not None else None
        except SeatRefused as refused:
            return Refused(reason=str(refused))
        if binding.seat is None:
            return NothingLeft()
        guest = home is not None and home.executor.key != asked.executor.key
        self._counts += Counts(guest_bindings=int(guest))
        # Of several pieces the seat's server has the beginning of the first one ahead. It cannot serve two at a time,
        # and for a later one would fetch records that other tasks are reading. So later pieces are read directly.
        served = binding.piece == 0 and planned.owned is not None
        return Bound(
            seat=binding.seat,
            at_home=binding.at_home and served,
            ranges=tuple(planned.reads[binding.seat][binding.piece]),
            owned=tuple(planned.owned.get(binding.seat, ())) if served and planned.owned is not None else (),
            home=sidecar.address if sidecar is not None and guest and served and self._homes_serve_others else None,
        )

    def _on_served(self, peer: _Peer, read: Served) -> None:
        self._counts += replace(_READS[read.by], rows=read.rows, rows_ready=read.ready)
        self.sizes.add(read.sizes)
        if read.by != "worker" and peer.sidecar_of is not None:
            with self._lock:
                self._seats.on_served(read.seat, peer.sidecar_of.key)


def _fits(pieces: Sequence[Sequence[Range]], owned: Sequence[Position]) -> bool:
    """Whether each piece of a seat's share fits into a message. An estimate: measuring costs as much as sending."""
    reads = max(pieces, key=len)
    names = sum(len(one.topic) for one in reads) + sum(len(one.topic) + len(one.tag) for one in owned)
    leaders = chain((one.leader for one in reads), (one.leader for one in owned))
    hosts = [len(leader.host) for leader in leaders if leader is not None]
    numbers = (len(reads) + len(owned) + 1) * _NUMBERS_BYTES + len(hosts) * _LEADER_BYTES
    return names + sum(hosts) + numbers <= CHANNEL_BYTES_MAX


class _Peer(asyncio.Protocol):
    """One connection. Its peer is unauthenticated until it has shown the key.

    Attributes:
        deadline_ms: when it is ended: the handshake takes too long, the peer is silent, or it does not read our
            messages.
        host: the IP address that it has connected from.
        sidecar_of: the executor whose sidecar the peer says it is: alive while this connection is. None for a worker.
        address: where workers of other executors reach that sidecar.
        left_silently: whether the peer has connected and hung up, without sending a byte.
        patience_ms: how long it may be silent after a message.
    """

    def __init__(self, registry: Registry) -> None:
        self.deadline_ms = registry.clock() + CHANNEL_HANDSHAKE_MS
        self.host = ""
        self.sidecar_of: Executor | None = None
        self.address: SidecarAddress | None = None
        self.left_silently = True
        self.patience_ms = API_TIMEOUT_MS
        self._registry = registry
        self._request_id: int | str | None = None
        self._challenge = Challenge(registry.key, REGISTRY)
        self._trusted = False
        self._frames = Frames()
        self._reads_answers = True

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Speak first."""
        self._transport = cast("asyncio.Transport", transport)
        if peername := transport.get_extra_info("peername"):  # None: it has gone already
            self.host = peername[0].removeprefix("::ffff:")  # a socket of IPv6 shows peers of IPv4 so
        self._registry.on_connected(self)
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
        self.deadline_ms = self._registry.clock() + CHANNEL_SEND_MS

    def resume_writing(self) -> None:
        """The peer has read our messages."""
        self._reads_answers = True
        self._transport.resume_reading()
        self._extend_deadline()
        self._take_messages()

    def connection_lost(self, _: Exception | None) -> None:
        """It has ended."""
        self._registry.on_ended(self)

    def end(self) -> None:
        """End the connection at once, and drop messages that are still to be sent. Safe to call twice."""
        self.left_silently = False
        self._transport.abort()

    def _take_messages(self) -> None:
        try:
            while self._reads_answers and (message := self._frames.next()) is not None:
                self._take(message)
        except KeyRefused:
            self.end()
        except ChannelEnded as ended:
            if self._trusted:
                log.warning("An executor was not understood (%s). %s", ended, _VERSIONS)
            self.end()

    def _take(self, message: Message) -> None:
        if not self._trusted:
            proof = self._challenge.answer(message)
            self._registry.admit(self)
            self._trusted = True
            self._frames.trust(CHANNEL_REQUEST_BYTES_MAX)
            self._extend_deadline()
            self._transport.write(frame(proof))
        else:
            self._request_id = _id_of(message)
            self.respond(self._registry.answer(self, parse(message)))

    def respond(self, response: QueryMessage | None) -> None:
        """Answer the last request, unless `response` is None: it wants no answer, or not yet."""
        self._extend_deadline()
        if response is not None:
            self._transport.write(frame({**to_json(response), "id": self._request_id}))  # may pause us

    def _extend_deadline(self) -> None:
        self.deadline_ms = self._registry.clock() + self.patience_ms


def _id_of(request: Message) -> int | str | None:
    number = request.get("id")
    if number is None or isinstance(number, int | str):
        return number
    raise ChannelEnded("no such id")  # an id is sent back, so it must not be a nested value


def _bind(host: str, port: int) -> socket.socket:
    """A socket that listens. One of IPv6 takes IPv4 as well (RFC 3493, section 5.3)."""
    if not host and socket.has_dualstack_ipv6():
        with suppress(OSError):  # IPv6 is switched off on this host, or IPv4 tells the error
            return socket.create_server(
                ("", port), family=socket.AF_INET6, backlog=CHANNEL_BACKLOG, dualstack_ipv6=True
            )
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, port), family=family, backlog=CHANNEL_BACKLOG)
