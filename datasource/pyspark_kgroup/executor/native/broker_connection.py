"""One connection to one broker: one request at a time, and its answer in memory that is used again.

Answers to Fetch are received as they come: no broker waits for the rest of another one's answer.

Runs on: executor.

Every failure is a `BrokerFailed`: librdkafka goes on with the partitions of that broker, tries again and reports the
cause. A SASL session that is about to end (KIP-368) is not renewed: `session_ends` says so, and a new connection takes
its place.
"""

from __future__ import annotations

import math
import socket
import ssl
import struct
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from functools import partial
from typing import Final, NamedTuple, Self

from pyspark_kgroup.executor.native import fetch_messages as messages
from pyspark_kgroup.executor.native.connection_security import ConnectionSecurity
from pyspark_kgroup.executor.native.decode import FallbackToLibrdkafka
from pyspark_kgroup.limits import FETCH_ANSWER_BYTES_MAX, FETCH_BROKERS_MS, FETCH_CONNECT_MS, FETCH_TURN_MS
from spark_kgroup.errors import KgroupError
from spark_kgroup.limits import (
    HANDSHAKE_FRAME_BYTES_MAX,
    KEEPALIVE_IDLE_S,
    REAUTHENTICATION_FACTORS,
    REQUEST_TIMEOUT_MS,
)
from spark_kgroup.threads import in_a_thread
from spark_kgroup.wire.security.tls import RenewedContext

_SOFTWARE: Final = ("spark-kgroup", "unknown")
"""Our name and version in the broker's metrics (KIP-511). To look up our version would import 58 modules more. The
driver's connections name it."""

_LENGTH: Final = struct.Struct(">i")
_LENGTH_MIN: Final = 4
"""Bytes of the shortest answer: each one repeats its request's correlation id."""

_LOOK_S: Final = 0.001
"""Least timeout of a receive, enough for bytes that have come already."""


class Broker(NamedTuple):
    """Where a broker listens."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host if self.host.isprintable() else ascii(self.host)}:{self.port}"


class AnswerMemory:
    """Memory that is used for one answer after the other, as long as no view of the last one is held.

    Fresh memory for each would cost a page fault every 4 KiB.
    """

    def __init__(self) -> None:
        self._memory = bytearray()

    def room(self, size: int) -> memoryview:
        """Room for `size` bytes. It overwrites the last answer, unless a view of that is held."""
        if len(self._memory) < size or self._is_held():
            self._memory = bytearray(size)
        return memoryview(self._memory)[:size]

    def _is_held(self) -> bool:
        try:
            self._memory.append(0)  # Python refuses to resize a buffer of which a view exists
        except BufferError:
            return True
        self._memory.pop()
        return False


class BrokerFailed(FallbackToLibrdkafka):
    """One broker cannot be asked, or did not answer properly. Other brokers may answer all the same."""


class BrokerConnection:
    """An open connection. Made by `open`.

    Attributes:
        broker: the other end.
        fetch_version: the version of Fetch that is spoken.
    """

    def __init__(self, broker: Broker, client_id: str, connected: socket.socket) -> None:
        self.broker = broker
        self.fetch_version = messages.FETCH_BY_NAME
        self._client_id = client_id
        self._socket = connected
        self._correlation_id = 0
        self._incoming: _Incoming | None = None
        self._session_ends_at_s = math.inf

    @classmethod
    def open(cls, broker: Broker, client_id: str, security: ConnectionSecurity, *, by_id: bool) -> Self:
        """Connect, log in, and find a version of Fetch that both speak, all within `FETCH_CONNECT_MS`.

        Args:
            broker: of its addresses, the first that accepts is taken.
            client_id: for the broker's logs, quotas and metrics.
            security: TLS and SASL.
            by_id: whether the ids of all topics are known, so that topics need no names.

        Raises:
            BrokerFailed: the connection could not be opened in time, or the login was refused.
        """
        deadline_s = time.monotonic() + FETCH_CONNECT_MS / 1000
        with _failing(broker):
            connection = cls(broker, client_id, _connected(broker, security.tls, deadline_s))
            try:
                connection._agree_on_versions(deadline_s, by_id=by_id)
                connection._log_in(security, deadline_s)
            except BaseException:
                connection.close()
                raise
            return connection

    def fileno(self) -> int:
        """For `select`: readable when an answer begins to come, or goes on."""
        return self._socket.fileno()

    @property
    def session_ends(self) -> bool:
        """Whether no more requests should be sent, because the SASL session is about to end (KIP-368)."""
        return time.monotonic() >= self._session_ends_at_s

    @property
    def has_ended(self) -> bool:
        """Whether the broker has ended it while no request was under way (Kafka: connections.max.idle.ms, 10 min)."""
        try:
            self._socket.settimeout(0)
            self._socket.recv(1)
        except (BlockingIOError, ssl.SSLWantReadError):
            return False
        except OSError:
            return True
        return True  # closed, or the broker sent bytes without a request

    def close(self) -> None:
        """End the connection. Safe to call twice."""
        self._socket.close()

    def ask_to_fetch(self, body: bytes) -> None:
        """Send a Fetch. Its answer must be taken before the next one is sent.

        Raises:
            BrokerFailed: the connection has ended.
        """
        with _failing(self.broker):
            self._send(messages.FETCH, self.fetch_version, body, time.monotonic() + REQUEST_TIMEOUT_MS / 1000)

    def take_fetched(self, memory: AnswerMemory) -> memoryview | None:
        """Receive more of the answer to the last Fetch, for `FETCH_TURN_MS` at most.

        Returns:
            The answer without its header, or None as long as it is not whole.

        Raises:
            BrokerFailed: the connection has ended, or the answer takes too long.
        """
        with _failing(self.broker):
            now_s = time.monotonic()
            if self._incoming is None:
                self._incoming = _Incoming(memory, FETCH_ANSWER_BYTES_MAX, now_s + REQUEST_TIMEOUT_MS / 1000)
            answer = self._incoming.receive(self._socket, now_s + FETCH_TURN_MS / 1000)
            if answer is None:
                return None
            self._incoming = None
            return messages.answer_body(messages.FETCH, self._correlation_id, answer)

    def brokers(self) -> dict[int, Broker]:
        """Where all brokers listen, by their nodes. To be asked for while no Fetch is under way.

        Raises:
            BrokerFailed: the connection has ended, or the answer takes too long.
        """
        with _failing(self.broker):
            deadline_s = time.monotonic() + FETCH_BROKERS_MS / 1000
            body = messages.brokers_request()
            answer = self._exchange(messages.METADATA, messages.METADATA_VERSION, body, deadline_s)
            return {node_id: Broker(*where) for node_id, where in messages.brokers(answer).items()}

    # --------------------------------------------------------------------------------------------------- first contact

    def _agree_on_versions(self, deadline_s: float, *, by_id: bool) -> None:
        body = messages.api_versions_request(*_SOFTWARE)
        answer = self._exchange(messages.API_VERSIONS, messages.API_VERSIONS_VERSION, body, deadline_s)
        first, last = messages.fetch_versions(answer)
        self.fetch_version = min(last, messages.FETCH_BY_ID if by_id else messages.FETCH_BY_NAME)
        if not max(first, messages.FETCH_BY_NAME) <= self.fetch_version:
            raise FallbackToLibrdkafka(f"speaks Fetch in versions {first} to {last}", lasting=True)

    def _log_in(self, security: ConnectionSecurity, deadline_s: float) -> None:
        if security.login is None:
            return
        body = messages.sasl_handshake_request(security.login.mechanism)
        handshake = self._exchange(messages.SASL_HANDSHAKE, messages.SASL_HANDSHAKE_VERSION, body, deadline_s)
        messages.check_handshake(handshake)
        exchange = security.login.begin()
        message: bytes | None = next(exchange)
        lifetime_ms = 0
        while message is not None:
            body = messages.sasl_authenticate_request(message)
            api = (messages.SASL_AUTHENTICATE, messages.SASL_AUTHENTICATE_VERSION)
            answer = self._exchange(*api, body, deadline_s)
            try:
                challenge, lifetime_ms = messages.sasl_answer(answer)
            except FallbackToLibrdkafka:
                security.login.on_refused()
                raise
            try:
                message = exchange.send(challenge)
            except StopIteration:
                message = None
        if lifetime_ms:
            self._session_ends_at_s = time.monotonic() + lifetime_ms / 1000 * REAUTHENTICATION_FACTORS[0]

    def _exchange(self, api: int, api_version: int, body: bytes, deadline_s: float) -> memoryview:
        self._send(api, api_version, body, deadline_s)
        incoming = _Incoming(AnswerMemory(), HANDSHAKE_FRAME_BYTES_MAX, deadline_s)
        # At the deadline `receive` raises TimeoutError.
        while (answer := incoming.receive(self._socket, deadline_s)) is None:
            pass
        return messages.answer_body(api, self._correlation_id, answer)

    # ---------------------------------------------------------------------------------------------------------- frames

    def _send(self, api: int, api_version: int, body: bytes, deadline_s: float) -> None:
        self._correlation_id = (self._correlation_id + 1) & 0x7FFFFFFF  # an int32 of Kafka's
        self._socket.settimeout(_left_s(deadline_s))
        self._socket.sendall(messages.frame(api, api_version, self._correlation_id, self._client_id, body))


class _Incoming:
    """An answer that comes in pieces.

    Args:
        memory: where it is put.
        bytes_max: how long it may be.
        deadline_s: when all of it has to be there.
    """

    def __init__(self, memory: AnswerMemory, bytes_max: int, deadline_s: float) -> None:
        self._memory = memory
        self._bytes_max = bytes_max
        self._deadline_s = deadline_s
        self._length = bytearray(_LENGTH.size)
        self._missing = memoryview(self._length)
        self._answer: memoryview | None = None

    def receive(self, connected: socket.socket, until_s: float) -> memoryview | None:
        """Receive more, until `until_s` at most: the answer with its header, or None as long as it is not whole.

        Raises:
            TimeoutError: it is not whole, and its time is over.
            FallbackToLibrdkafka: it is too long or too short, or the broker has closed the connection.
        """
        self._fill(connected, until_s)
        if self._answer is None and not self._missing:
            (length,) = _LENGTH.unpack(self._length)
            if not _LENGTH_MIN <= length <= self._bytes_max:
                raise FallbackToLibrdkafka(f"an answer of {length} bytes")
            self._missing = self._answer = self._memory.room(length)
            self._fill(connected, until_s)
        if not self._missing:
            return self._answer
        _left_s(self._deadline_s)  # for its TimeoutError
        return None

    def _fill(self, connected: socket.socket, until_s: float) -> None:
        while self._missing:
            connected.settimeout(max(until_s - time.monotonic(), _LOOK_S))
            try:
                count = connected.recv_into(self._missing)
            except TimeoutError:
                return
            if not count:
                raise FallbackToLibrdkafka("the broker has closed the connection")
            self._missing = self._missing[count:]
            # `select` does not see bytes that TLS has decrypted already.
            decrypted = isinstance(connected, ssl.SSLSocket) and connected.pending()
            if time.monotonic() >= until_s and not decrypted:
                return


class Connecting:
    """A connection that is being opened by a thread, so that the caller does not wait for it.

    Args:
        broker: the other end.
        open_: opens it.

    Raises:
        BrokerFailed: this machine has no thread or no socket left for it.
    """

    def __init__(self, broker: Broker, open_: Callable[[], BrokerConnection]) -> None:
        with _failing(broker):
            # `select` waits for descriptors, and a future has none: one socket of this pair closes when it is done.
            self._ends, end = socket.socketpair()
            try:
                self._opening = in_a_thread(open_, f"connect to {broker}")
            except OSError:
                self._ends.close()
                end.close()
                raise
        self._opening.add_done_callback(lambda _: end.close())

    def fileno(self) -> int:
        """For `select`: readable when it is open, or has failed."""
        return self._ends.fileno()

    @property
    def is_done(self) -> bool:
        """Whether it is open, or has failed."""
        return self._opening.done()

    def connection(self) -> BrokerConnection:
        """The open connection, which is the caller's from now on. To be called once, when it is done.

        Raises:
            BrokerFailed: as `BrokerConnection.open`.
        """
        self._ends.close()
        return self._opening.result(0)

    def close(self) -> None:
        """Give the connection up: it is closed as soon as it is open."""
        self._ends.close()
        self._opening.add_done_callback(_close)


def _close(opened: Future[BrokerConnection]) -> None:
    if opened.exception() is None:
        opened.result().close()


def _connected(broker: Broker, tls: RenewedContext | None, deadline_s: float) -> socket.socket:
    """A TCP connection, with TLS if it is asked for."""
    context = tls.context() if tls is not None else None
    look_up = partial(socket.getaddrinfo, broker.host, broker.port, type=socket.SOCK_STREAM)
    # In a thread: a resolver takes no timeout.
    addresses = in_a_thread(look_up, f"look up {broker.host[:40]!a}").result(_left_s(deadline_s))
    problem: OSError | None = None
    for family, kind, protocol, _, address in addresses:
        connected = socket.socket(family, kind, protocol)
        try:
            connected.settimeout(_left_s(deadline_s))
            connected.connect(address)
            _tune(connected)
            return context.wrap_socket(connected, server_hostname=broker.host) if context else connected
        except OSError as error:
            connected.close()
            problem = error
    raise problem or OSError("no address")


def _tune(connected: socket.socket) -> None:
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    with suppress(AttributeError, OSError):  # not every system has this setting
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, KEEPALIVE_IDLE_S)


def _left_s(deadline_s: float) -> float:
    left_s = deadline_s - time.monotonic()
    if left_s <= 0:
        raise TimeoutError
    return left_s


@contextmanager
def _failing(broker: Broker) -> Iterator[None]:
    try:
        yield
    except FallbackToLibrdkafka as fallback:
        raise BrokerFailed(f"{broker}: {fallback.reason}", lasting=fallback.lasting) from None
    except TimeoutError:
        raise BrokerFailed(f"{broker} did not answer in time") from None
    except (OSError, UnicodeError, KgroupError) as problem:  # UnicodeError: of a host that cannot be a name
        raise BrokerFailed(f"{broker}: {problem}") from None
