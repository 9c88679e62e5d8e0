"""One TCP connection to one broker: frames, correlation, versions, bounds.

Requests are pipelined, and the broker answers them in order. A timeout closes the connection, as Kafka's own clients
do: the answer may still come, and all requests behind it would wait. When a caller is cancelled, its answer is dropped
and the other calls go on. The timeout of its request stays, or a connection that died in silence would never be
noticed.

A SASL session may end before the connection does (KIP-368). When most of it is over, the next request is held back, the
answers that are due are awaited, and the connection authenticates anew before any other request is sent. So the
connection survives a JoinGroup that is parked beyond the end of its session: the broker reads no request behind it and
checks a session only when a request arrives, and the first one to arrive is the SaslHandshake, which it accepts even
then (Kafka: SocketServer.processCompletedReceives). Java's client also waits for its next send.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import math
import socket
import ssl
import struct
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib.metadata import distributions
from itertools import chain, count
from pathlib import Path
from random import uniform
from typing import Final, Self

from spark_kgroup.errors import (
    AuthenticationFailed,
    ConnectionFailed,
    Disconnected,
    Orphaned,
    ProtocolViolation,
    RequestTimedOut,
    UnsupportedApi,
    WireError,
)
from spark_kgroup.limits import (
    CONNECT_TIMEOUT_MS,
    DECODED_AT_ONCE_BYTES_MAX,
    FRAME_BYTES_MAX,
    HANDSHAKE_FRAME_BYTES_MAX,
    IN_FLIGHT_MAX,
    KEEPALIVE_IDLE_S,
    REAUTHENTICATION_FACTORS,
    REAUTHENTICATION_INTERVAL_MS,
    REQUEST_TIMEOUT_MS,
)
from spark_kgroup.model import ErrorCode
from spark_kgroup.wire import messages, names, schema
from spark_kgroup.wire.address import Address
from spark_kgroup.wire.codec import decode_response, encode_request, read_correlation_id
from spark_kgroup.wire.schema import API_OF, Request, Response
from spark_kgroup.wire.security.settings import Plaintext, Security
from spark_kgroup.wire.security.tls import tls_failure

log = logging.getLogger(__name__)

_SOFTWARE: Final = "spark-kgroup"
"""Our name in the broker's metrics, beside our version (KIP-511)."""

_LENGTH: Final = struct.Struct(">i")

_CORRELATION_ID_BYTES: Final = 4

_ASKED_AGAIN_AND_AGAIN: Final = frozenset({schema.MetadataRequest, schema.ListOffsetsRequest})
"""The application sends these between any two pieces of work, and in a quiet cluster the answers stay the same: those
about 10,000 partitions take 0.05 s to decode. A response object never changes, so the last one can be given out
again."""

_HINTS: Final = {
    0: " before its first answer: does this listener expect TLS or SASL (`security.protocol`), or does the broker "
    "allow fewer connections (`max.connections`, `max.connections.per.ip`)?",
    1: " at the first request: does this listener expect SASL (`security.protocol`)?",
}
"""Number of answers on a connection -> why the broker may have closed it then. The first one is to ApiVersions."""


_NO_DESCRIPTOR: Final = (errno.EMFILE, errno.ENFILE)


@dataclass(frozen=True, slots=True)
class _Waiting:
    """A request that was sent: its type, the future that gets its answer, and the timer that ends the wait."""

    request_type: type[Request]
    answer: asyncio.Future[Response]
    timer: asyncio.TimerHandle


class Connection:
    """An open connection. Made by `open`, and belongs to one event loop."""

    def __init__(
        self,
        address: Address,
        streams: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        *,
        client_id: str,
        security: Security,
        request_timeout_ms: int,
        alive: Callable[[], bool],
    ) -> None:
        self.address = address
        reader, self._writer = streams
        self._client_id = client_id
        self._request_timeout_ms = request_timeout_ms
        self._alive = alive
        self._in_flight = _InFlight()
        self._responses = _Responses()
        self._login = _Login(self, security)
        self._versions: _Versions | None = None
        self._answers_to_open: int | None = None
        """How many answers it took to open it, or None until it is open."""
        self._ended: WireError | None = None
        self._unsent: list[bytes] = []
        self._receiver = asyncio.create_task(self._receive(reader), name=f"receive from {address}")

    @classmethod
    async def open(
        cls,
        address: Address,
        *,
        client_id: str,
        turn: int = 0,
        security: Security | None = None,
        connect_timeout_ms: int = CONNECT_TIMEOUT_MS,
        request_timeout_ms: int = REQUEST_TIMEOUT_MS,
        alive: Callable[[], bool] = lambda: True,
    ) -> Self:
        """Connect, negotiate versions, authenticate.

        Args:
            address: of its host's addresses, the first to accept a connection is taken.
            client_id: for the broker's logs, quotas and metrics.
            turn: which of the host's addresses is tried first. One that accepts connections and never answers would
                otherwise be taken each time.
            security: TLS and SASL.
            alive: asked before each request. If it returns False, the connection ends instead.
            connect_timeout_ms: bound on the look-up, TCP and TLS together, and on each request until it is open.
            request_timeout_ms: bound on each request.

        Raises:
            ConnectionFailed: no connection was accepted there, or not in time.
            ProtocolViolation: the peer that listens there does not speak Kafka.
            AuthenticationFailed: TLS or SASL did not let us in.
            WireError: it ended, timed out or refused us while being set up.
        """
        security = security or Plaintext()
        streams = await _connect(address, turn, security, connect_timeout_ms)
        connection = cls(
            address,
            streams,
            client_id=client_id,
            security=security,
            request_timeout_ms=request_timeout_ms,
            alive=alive,
        )
        try:
            await connection._negotiate(min(request_timeout_ms, connect_timeout_ms))
            await connection._login.authenticate()
            connection._answers_to_open = connection._in_flight.answered
        except BaseException:
            await connection.close()
            raise
        return connection

    @property
    def closed(self) -> bool:
        """Whether the connection has ended: no request can be sent any more."""
        return self._ended is not None

    @property
    def has_answered(self) -> bool:
        """Whether it has answered any request since it was opened."""
        return self._answers_to_open is not None and self._in_flight.answered > self._answers_to_open

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """End the connection. Calls that still wait raise `Disconnected`. Safe to call twice."""
        self._end(Disconnected(f"The connection to {self.address} was closed here."))
        tasks = [task for task in (self._receiver, self._login.renewing) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        with suppress(OSError):  # of a connection that had failed already
            await self._writer.wait_closed()

    # ------------------------------------------------------------------------------------------------- calls

    async def call(self, request: Request, *, timeout_ms: int | None = None) -> Response:
        """Send `request`, wait for its answer. Beyond `IN_FLIGHT_MAX` it waits for its turn before it is sent.

        Raises:
            UnsupportedApi: the broker does not speak this version of the API.
            Orphaned: the process that we work for has ended. The connection is closed.
            RequestTimedOut: no answer in time. The connection is closed.
            Disconnected: the connection ended, or was ended here because an answer on it cannot be decoded.
            AuthenticationFailed: our SASL session was over and could not be renewed. The connection is closed.
        """
        self._check_version(request)
        timeout_ms = timeout_ms or self._request_timeout_ms
        # No bound of its own: a request that has a place is answered in time, or the connection ends. The place comes
        # before the renewal, or a request could be sent in the midst of it.
        async with self._in_flight.places:
            if self._login.is_due:
                await self._login.renew_before(request, timeout_ms)
            return await self._exchange(request, timeout_ms)

    async def ask(self, request: Request) -> Response:
        """As `call`, for the requests of authentication itself."""
        self._check_version(request)
        # Not by `call`, which holds requests back until this authentication is over.
        return await self._exchange(request, min(self._request_timeout_ms, CONNECT_TIMEOUT_MS))

    async def _exchange(self, request: Request, timeout_ms: int) -> Response:
        if self._ended is not None:
            raise self._ended.again()
        correlation_id = self._in_flight.next_id()
        frame = encode_request(request, correlation_id, self._client_id)
        message = f"{self.address} did not answer {_name(request)} within {timeout_ms} ms."
        timer = asyncio.get_running_loop().call_later(timeout_ms / 1000, self._overdue, correlation_id, message)
        answer = self._in_flight.add(correlation_id, type(request), timer)
        if not self._unsent:
            asyncio.get_running_loop().call_soon(self._flush)
        self._unsent.append(frame)
        return await answer

    def _flush(self) -> None:
        """Write the requests of this turn of the loop at once. Heartbeats of many seats are due at the same moment."""
        frames, self._unsent = b"".join(self._unsent), []
        if self._ended is not None:
            return
        # Asked right before the write, with no await between: this process may have been stopped for an hour before.
        if self._alive():
            self._writer.write(frames)
        else:
            self._end(
                Orphaned(f"No request is sent to {self.address} any more: the process that we work for has ended.")
            )

    def _overdue(self, correlation_id: int, message: str) -> None:
        # The call that is overdue hears that it timed out, the other calls that the connection was closed.
        self._in_flight.fail(correlation_id, RequestTimedOut(message))
        self._end(Disconnected(f"The connection to {self.address} was closed here: {message}"))

    async def _receive(self, reader: asyncio.StreamReader) -> None:
        try:
            while True:
                (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
                # Each response begins with a correlation id, which is as long as the length itself.
                if not _LENGTH.size <= length <= self._frame_bytes_max():
                    raise ProtocolViolation(
                        f"{self.address} sent a frame of {length} bytes: this is not a Kafka broker's plain listener "
                        "(is it a TLS or HTTP port? See `security.protocol`)."
                    )
                await self._answer(await reader.readexactly(length))
        except asyncio.IncompleteReadError:
            self._end(Disconnected(f"{self.address} closed the connection{_HINTS.get(self._in_flight.answered, '.')}"))
        except ssl.SSLError as error:  # with TLS 1.3, that a broker refuses our certificate comes after the handshake
            self._end(_tls_failure(self._login.security, self.address, error))
        except OSError as error:
            self._end(Disconnected(f"{self.address}: {error.strerror or error}."))
        except WireError as error:
            # If the peer has spoken Kafka already, the error is about this connection, not about the peer.
            self._end(error if self._versions is None else Disconnected(f"The connection was closed here: {error}"))
        except Exception as bug:  # a bug of any kind: no caller may wait for an answer that is not read any more
            log.exception("%s: cannot go on reading", self.address)
            self._end(Disconnected(f"{self.address}: reading failed: {bug!r}."))

    def _frame_bytes_max(self) -> int:
        return HANDSHAKE_FRAME_BYTES_MAX if self._answers_to_open is None else FRAME_BYTES_MAX

    async def _answer(self, frame: bytes) -> None:
        correlation_id = read_correlation_id(frame)
        waiting = self._in_flight.find(correlation_id)
        if waiting is None:
            raise ProtocolViolation(f"{self.address} answered request {correlation_id}, which was never sent.")
        # Before the decoding, which may take long: the broker has answered in time.
        waiting.timer.cancel()
        if not waiting.answer.done():  # else its caller was cancelled, and the answer is dropped
            response = await self._responses.decode(waiting.request_type, frame)
            if not waiting.answer.done():
                waiting.answer.set_result(response)
        self._in_flight.drop(correlation_id)

    def _end(self, error: WireError) -> None:
        if self._ended is not None:
            return
        self._ended = error
        self._in_flight.fail_all(error)
        self._login.cancel()
        # Not close(): that waits until the unsent bytes are sent, also if the peer reads no more.
        self._writer.transport.abort()

    # ----------------------------------------------------------------------------------------------- versions

    async def _negotiate(self, timeout_ms: int) -> None:
        """Learn the broker's version ranges. A broker too old for v3 says so in a v0 answer (KIP-511)."""
        hello = schema.ApiVersionsRequest(client_software_name=_SOFTWARE, client_software_version=_software_version())
        # Not by `call`, which checks the request against versions that are not known yet.
        response = await self._exchange(hello, timeout_ms)
        if isinstance(response, schema.ApiVersionsResponseV0):
            response = await self._exchange(schema.ApiVersionsRequestV0(), timeout_ms)
        assert isinstance(response, schema.ApiVersionsResponse | schema.ApiVersionsResponseV0)
        code = int(response.error_code)
        if code != ErrorCode.NONE:
            raise ProtocolViolation(f"{self.address} refused ApiVersions with {ErrorCode.name_of(code)}.")
        ranges: dict[int, tuple[int, int]] = {
            key.api_key: (key.min_version, key.max_version) for key in response.api_keys
        }
        self._versions = _Versions(self.address, ranges)

    def _check_version(self, request: Request) -> None:
        assert self._versions is not None, "open() has negotiated"
        self._versions.check(request)

    def speaks(self, api_key: int, version: int) -> bool:
        """Whether the broker knows this version of an API."""
        assert self._versions is not None, "open() has negotiated"
        low, high = self._versions.spoken(api_key)
        return low <= version <= high


class _InFlight:
    """The requests of one connection that were sent and have no answer yet.

    Attributes:
        places: one for each request. A request without a place waits for its turn.
        drained: set while none is awaited.
        answered: how many were, since the connection began.
    """

    def __init__(self) -> None:
        self.places = asyncio.Semaphore(IN_FLIGHT_MAX)
        self.drained = asyncio.Event()
        self.drained.set()
        self.answered = 0
        self._ids = count(1)
        self._waiting: dict[int, _Waiting] = {}

    def next_id(self) -> int:
        """A correlation id that was not used yet."""
        return next(self._ids)

    def add(
        self, correlation_id: int, request_type: type[Request], timer: asyncio.TimerHandle
    ) -> asyncio.Future[Response]:
        """The future of a request's answer. `timer` ends the wait for it."""
        answer: asyncio.Future[Response] = asyncio.get_running_loop().create_future()
        self._waiting[correlation_id] = _Waiting(request_type, answer, timer)
        self.drained.clear()
        return answer

    def find(self, correlation_id: int) -> _Waiting | None:
        """The request with this id, or None if none was sent that has no answer yet."""
        return self._waiting.get(correlation_id)

    def drop(self, correlation_id: int) -> None:
        """Forget a request AFTER its answer. The connection may have ended while a large frame was decoded."""
        self._waiting.pop(correlation_id, None)
        self.answered += 1
        if not self._waiting:
            self.drained.set()

    def fail(self, correlation_id: int, error: WireError) -> None:
        """Let the caller of one request raise `error`. The connection ends AFTER that."""
        answer = self._waiting.pop(correlation_id).answer
        if not answer.done():
            answer.set_exception(error)

    def fail_all(self, error: WireError) -> None:
        """Let the callers of all requests raise `error`."""
        for waiting in self._waiting.values():
            waiting.timer.cancel()
            if not waiting.answer.done():
                waiting.answer.set_exception(error.again())
        self._waiting.clear()
        self.drained.set()


class _Responses:
    """Decodes the answers on one connection."""

    def __init__(self) -> None:
        self._last: dict[type[Request], tuple[bytes, Response]] = {}

    async def decode(self, request_type: type[Request], frame: bytes) -> Response:
        """The response in `frame`: the last one again if all bytes but the correlation id are the same."""
        content = frame[_CORRELATION_ID_BYTES:]
        last = self._last.get(request_type)
        if last is not None and last[0] == content:
            return last[1]
        response = await _decode(request_type, frame)
        if request_type in _ASKED_AGAIN_AND_AGAIN:
            self._last[request_type] = content, response
        return response


class _Versions:
    """The versions of each API that a broker speaks."""

    def __init__(self, address: Address, ranges: Mapping[int, tuple[int, int]]) -> None:
        self._address = address
        self._ranges = ranges

    def spoken(self, api_key: int) -> tuple[int, int]:
        """The oldest and the newest version, or (0, -1) if the broker does not know the API."""
        return self._ranges.get(api_key, (0, -1))

    def check(self, request: Request) -> None:
        """Raises UnsupportedApi for a request in a version that the broker does not speak."""
        api = API_OF[type(request)]
        low, high = self.spoken(api.key)
        if not low <= api.version <= high:
            spoken = f"speaks v{low} to v{high}" if high >= 0 else "does not know this API"
            newer = api.version < low
            fix = (
                "use a newer spark-kgroup"
                if newer
                else f"Apache Kafka {messages.oldest_kafka(request)} or newer is needed"
            )
            raise UnsupportedApi(
                f"{api.name} v{api.version} is needed, but the broker at {self._address} {spoken}: {fix}."
            )


class _Login:
    """The login of one connection, and its renewals: see the head of this module.

    Attributes:
        security: of the connection.
        renewing: the renewal that is under way, or None.
    """

    def __init__(self, connection: Connection, security: Security) -> None:
        self.security = security
        self.renewing: asyncio.Task[None] | None = None
        self._connection = connection
        self._renew_at_s = math.inf
        self._renewable_at_s = 0.0

    @property
    def is_due(self) -> bool:
        """Whether the next request has to wait for a renewal."""
        return self.renewing is not None or asyncio.get_running_loop().time() >= self._renew_at_s

    async def authenticate(self) -> None:
        """Authenticate, and note when that must be done again."""
        lifetime_ms = await self.security.authenticate(self._connection.address, self._connection.ask)
        if lifetime_ms:
            now_s = asyncio.get_running_loop().time()
            self._renew_at_s = now_s + lifetime_ms / 1000 * uniform(*REAUTHENTICATION_FACTORS)
            self._renewable_at_s = now_s + REAUTHENTICATION_INTERVAL_MS / 1000

    def cancel(self) -> None:
        """End a renewal with the connection. The calls that wait for it raise the connection's error when they send."""
        # A renewal that fails ends the connection itself, and must not cancel itself in the midst of that.
        if self.renewing is not None and self.renewing is not asyncio.current_task():
            self.renewing.cancel()

    async def renew_before(self, request: Request, timeout_ms: int) -> None:
        """Hold `request` back until the SASL session is renewed. All calls meanwhile wait for the same renewal."""
        if self.renewing is None:
            self.renewing = asyncio.create_task(self._renew(), name=f"authenticate anew at {self._connection.address}")
        # Wait without awaiting the task: a cancelled caller must not end it halfway, and its error ends the connection.
        held_s = max(0.0, self._renewable_at_s - asyncio.get_running_loop().time())
        # A broker refuses two authentications within a second. That wait is ours, so it does not use up the bound.
        done, _ = await asyncio.wait([self.renewing], timeout=timeout_ms / 1000 + held_s)
        if not done:
            address = self._connection.address
            message = f"{address}: {_name(request)} waited {timeout_ms} ms for the SASL session to be renewed."
            self._connection._end(Disconnected(f"The connection to {address} was closed here: {message}"))
            raise RequestTimedOut(message)

    async def _renew(self) -> None:
        try:
            await self._connection._in_flight.drained.wait()
            # A session that a token about to expire began may end before it may be renewed. A request sent in between
            # would end the connection.
            await asyncio.sleep(self._renewable_at_s - asyncio.get_running_loop().time())
            if not self._connection.closed:
                await self.authenticate()
        except WireError as error:
            self._connection._end(error)  # calls that wait for the renewal raise this error when they send
        finally:
            self.renewing = None


async def _connect(
    address: Address, turn: int, security: Security, timeout_ms: int
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A TCP connection to one of the host's addresses, with TLS if `security` asks for it."""
    late = "was not asked, for this machine's files of certificates could not be looked at"
    context = None
    try:
        async with asyncio.timeout(timeout_ms / 1000):
            context = await security.ssl_context()
            late = "could not be resolved by this machine's DNS"
            addresses = await names.resolve_addresses(address.host, address.port)
            late = "did not accept a connection"
            first = turn % len(addresses)
            tcp = await names.connect_to_first(addresses[first:] + addresses[:first])
            late = "did not finish a TLS handshake"
            return await _streams(tcp, context, address.host)
    except TimeoutError:
        raise ConnectionFailed(f"{address} {late} within {timeout_ms} ms.") from None
    except ssl.SSLError as error:
        raise _tls_failure(security, address, error) from None
    except OSError as error:
        if context is not None and isinstance(error, ConnectionResetError | ConnectionAbortedError):
            hint = "does this listener speak TLS (`security.protocol`)?"
            raise ConnectionFailed(f"{address} closed the connection in the TLS handshake: {hint}") from error
        reason = "no file descriptor is left for it (ulimit -n)" if error.errno in _NO_DESCRIPTOR else error.strerror
        raise ConnectionFailed(f"{address}: {reason or error}.") from error


def _tls_failure(security: Security, address: Address, error: ssl.SSLError) -> WireError:
    failure = tls_failure(address, error)
    return security.on_tls_refused(address, failure) if isinstance(failure, AuthenticationFailed) else failure


async def _streams(
    tcp: socket.socket, context: ssl.SSLContext | None, host: str
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    try:
        _keep_alive(tcp)
        _forget_unsent(tcp)
        # The dot at the end of a whole name is for DNS. No certificate has it (RFC 6066, section 3).
        name = host.removesuffix(".") if context else None
        return await asyncio.open_connection(sock=tcp, ssl=context, server_hostname=name)
    except BaseException:
        tcp.close()
        raise


async def _decode(request_type: type[Request], frame: bytes) -> Response:
    """The response in `frame`. A large one is decoded beside the event loop, on which all seats send heartbeats."""
    if len(frame) <= DECODED_AT_ONCE_BYTES_MAX:
        return decode_response(request_type, frame)
    return await asyncio.to_thread(decode_response, request_type, frame)


@cache
def _software_version(beside: Path = Path(__file__).parents[2]) -> str:
    """The installed version of this package, looked up beside it first.

    To look elsewhere takes long: an application may have large archives on `sys.path`, whose index is read for this.
    Measured in a process with three: 60 ms.
    """
    found = chain(distributions(name=_SOFTWARE, path=[str(beside)]), distributions(name=_SOFTWARE))
    ours = next(found, None)
    return ours.version if ours is not None else "unknown"  # run from files that were never installed


def _keep_alive(tcp: socket.socket) -> None:
    """Let the kernel notice a broker whose host vanished: a parked join is awaited for the whole rebalance timeout."""
    tcp.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", KEEPALIVE_IDLE_S), ("TCP_KEEPINTVL", KEEPALIVE_IDLE_S), ("TCP_KEEPCNT", 3)):
        if (option := getattr(socket, name, None)) is not None:  # macOS lacks the first
            tcp.setsockopt(socket.IPPROTO_TCP, option, value)


def _forget_unsent(tcp: socket.socket) -> None:
    """Have the kernel drop unsent bytes when the connection ends in any way (socket(7), SO_LINGER with 0 s).

    1. The network swallows our JoinGroup. 2. This process is killed, and the kernel would go on sending for minutes.
    3. The restarted process has joined when the old JoinGroup arrives, and is fenced by it.
    """
    tcp.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def _name(request: Request) -> str:
    return API_OF[type(request)].name
