"""One blocking connection to one broker: one request at a time, and its answer in memory that is used again.

Runs on: executor.

Whatever goes wrong is `Unusual`: whoever reads goes on with librdkafka, which tries again and knows what to tell. A
SASL session that is about to end (KIP-368) is not renewed: `session_ends` says so, and a new connection takes its
place.
"""

from __future__ import annotations

import math
import socket
import ssl
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Final, NamedTuple, Self

from pyspark_kgroup.executor.native import fetch_messages as messages
from pyspark_kgroup.executor.native.connection_security import ConnectionSecurity
from pyspark_kgroup.executor.native.decode import Unusual
from pyspark_kgroup.limits import FETCH_ANSWER_BYTES_MAX, FETCH_CONNECT_MS
from spark_kgroup.errors import KgroupError
from spark_kgroup.limits import (
    HANDSHAKE_FRAME_BYTES_MAX,
    KEEPALIVE_IDLE_S,
    REAUTHENTICATION_FACTORS,
    REQUEST_TIMEOUT_MS,
)
from spark_kgroup.wire.threads import in_a_thread

_SOFTWARE: Final = ("spark-kgroup", "unknown")
"""Our name and version in the broker's metrics (KIP-511). To know our version takes 58 modules more to import; the
driver's connections say it."""

_LENGTH: Final = struct.Struct(">i")
_LENGTH_MIN: Final = 4
"""Each answer has its request's number."""


class Broker(NamedTuple):
    """Where a broker listens."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host if self.host.isprintable() else ascii(self.host)}:{self.port}"


class AnswerMemory:
    """Memory for one answer after the other, as long as nobody holds a part of the last one.

    Fresh memory for each would cost a page fault every 4 KiB.
    """

    def __init__(self) -> None:
        self._memory = bytearray()

    def room(self, size: int) -> memoryview:
        """Room for `size` bytes; what is in it is lost unless somebody holds a view of it."""
        if len(self._memory) < size or self._is_held():
            self._memory = bytearray(size)
        return memoryview(self._memory)[:size]

    def _is_held(self) -> bool:
        try:
            self._memory.append(0)  # Python refuses to resize what somebody has a view of
        except BufferError:
            return True
        self._memory.pop()
        return False


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
            Unusual: it did not come about.
        """
        deadline_s = time.monotonic() + FETCH_CONNECT_MS / 1000
        with _unusual_at(broker):
            connection = cls(broker, client_id, _connected(broker, security.context, deadline_s))
            try:
                connection._agree_on_versions(deadline_s, by_id=by_id)
                connection._log_in(security, deadline_s)
            except BaseException:
                connection.close()
                raise
            return connection

    def fileno(self) -> int:
        """For `select`: readable when an answer begins to come."""
        return self._socket.fileno()

    @property
    def session_ends(self) -> bool:
        """Whether nothing should be sent any more, because the broker soon wants to know anew who we are."""
        return time.monotonic() >= self._session_ends_at_s

    def close(self) -> None:
        """End the connection. Safe to call twice."""
        self._socket.close()

    def ask_to_fetch(self, body: bytes) -> None:
        """Send a Fetch; its answer must be taken before the next one is sent.

        Raises:
            Unusual: the connection has ended.
        """
        with _unusual_at(self.broker):
            self._send(messages.FETCH, self.fetch_version, body, time.monotonic() + REQUEST_TIMEOUT_MS / 1000)

    def take_fetched(self, memory: AnswerMemory) -> memoryview:
        """The answer to the last Fetch, without its header; waits until all of it is there.

        Raises:
            Unusual: the connection has ended, or the answer takes too long.
        """
        with _unusual_at(self.broker):
            deadline_s = time.monotonic() + REQUEST_TIMEOUT_MS / 1000
            return self._receive(messages.FETCH, memory, FETCH_ANSWER_BYTES_MAX, deadline_s)

    # --------------------------------------------------------------------------------------------------- first contact

    def _agree_on_versions(self, deadline_s: float, *, by_id: bool) -> None:
        body = messages.api_versions_request(*_SOFTWARE)
        answer = self._exchange(messages.API_VERSIONS, messages.API_VERSIONS_VERSION, body, deadline_s)
        first, last = messages.fetch_versions(answer)
        self.fetch_version = min(last, messages.FETCH_BY_ID if by_id else messages.FETCH_BY_NAME)
        if not max(first, messages.FETCH_BY_NAME) <= self.fetch_version:
            raise Unusual(f"speaks Fetch in versions {first} to {last}")

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
            challenge, lifetime_ms = messages.sasl_answer(self._exchange(*api, body, deadline_s))
            try:
                message = exchange.send(challenge)
            except StopIteration:
                message = None
        if lifetime_ms:
            self._session_ends_at_s = time.monotonic() + lifetime_ms / 1000 * REAUTHENTICATION_FACTORS[0]

    def _exchange(self, api: int, api_version: int, body: bytes, deadline_s: float) -> memoryview:
        self._send(api, api_version, body, deadline_s)
        return self._receive(api, AnswerMemory(), HANDSHAKE_FRAME_BYTES_MAX, deadline_s)

    # ---------------------------------------------------------------------------------------------------------- frames

    def _send(self, api: int, api_version: int, body: bytes, deadline_s: float) -> None:
        self._correlation_id = (self._correlation_id + 1) & 0x7FFFFFFF
        self._socket.settimeout(_left_s(deadline_s))
        self._socket.sendall(messages.frame(api, api_version, self._correlation_id, self._client_id, body))

    def _receive(self, api: int, memory: AnswerMemory, bytes_max: int, deadline_s: float) -> memoryview:
        head = bytearray(_LENGTH.size)
        self._fill(memoryview(head), deadline_s)
        (length,) = _LENGTH.unpack(head)
        if not _LENGTH_MIN <= length <= bytes_max:
            raise Unusual(f"an answer of {length} bytes")
        answer = memory.room(length)
        self._fill(answer, deadline_s)
        return messages.answer_body(api, self._correlation_id, answer)

    def _fill(self, room: memoryview, deadline_s: float) -> None:
        while room:
            self._socket.settimeout(_left_s(deadline_s))
            count = self._socket.recv_into(room)
            if not count:
                raise Unusual("the broker has closed the connection")
            room = room[count:]


def _connected(broker: Broker, context: ssl.SSLContext | None, deadline_s: float) -> socket.socket:
    """A TCP connection, with TLS if there is a context."""
    look_up = partial(socket.getaddrinfo, broker.host, broker.port, type=socket.SOCK_STREAM)
    # In a thread: a resolver knows no bound that we could give it.
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
    with suppress(AttributeError, OSError):  # not every system lets one choose
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, KEEPALIVE_IDLE_S)


def _left_s(deadline_s: float) -> float:
    left_s = deadline_s - time.monotonic()
    if left_s <= 0:
        raise TimeoutError
    return left_s


@contextmanager
def _unusual_at(broker: Broker) -> Iterator[None]:
    try:
        yield
    except Unusual as unusual:
        raise Unusual(f"{broker}: {unusual.reason}") from None
    except TimeoutError:
        raise Unusual(f"{broker} did not answer in time") from None
    except (OSError, UnicodeError, KgroupError) as problem:  # UnicodeError: of a host that cannot be a name
        raise Unusual(f"{broker}: {problem}") from None
