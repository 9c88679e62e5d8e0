"""One TCP connection to one broker: frames, correlation, versions, bounds.

Requests are pipelined; the broker answers them in order. A timeout closes the connection, as Kafka's own clients do:
the answer may still come, and everything behind it would wait.
"""

from __future__ import annotations

import asyncio
import struct
from dataclasses import dataclass
from itertools import count
from typing import Final, Self, TypeVar, cast

from spark_kgroup.errors import (
    ConnectionFailed,
    Disconnected,
    ProtocolViolation,
    RequestTimedOut,
    UnsupportedApi,
    WireError,
)
from spark_kgroup.limits import CONNECT_TIMEOUT_MS, FRAME_BYTES_MAX, IN_FLIGHT_MAX, REQUEST_TIMEOUT_MS
from spark_kgroup.model import ErrorCode
from spark_kgroup.wire import messages
from spark_kgroup.wire.codec import correlation_id_of, decode_response, encode_request
from spark_kgroup.wire.messages import Request, Response
from spark_kgroup.wire.security import Plaintext, Security

R = TypeVar("R", bound=Response)

_SOFTWARE: Final = ("spark-kgroup", "0.1.0")
"""Name and version for the broker's metrics (KIP-511)."""


@dataclass(frozen=True, slots=True, order=True)
class Address:
    """Where a broker listens."""

    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


class Connection:
    """An open connection. Made by `open`; belongs to one event loop."""

    def __init__(
        self,
        address: Address,
        streams: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        *,
        client_id: str,
        request_timeout_ms: int,
    ) -> None:
        self.address = address
        self._reader, self._writer = streams
        self._client_id = client_id
        self._request_timeout_ms = request_timeout_ms
        self._ids = count(1)
        self._waiting: dict[int, tuple[type[Request], asyncio.Future[Response]]] = {}
        self._ended: WireError | None = None
        self._versions: dict[int, tuple[int, int]] | None = None
        self._receiver = asyncio.create_task(self._receive(), name=f"receive from {address}")

    @classmethod
    async def open(
        cls,
        address: Address,
        *,
        client_id: str,
        security: Security | None = None,
        connect_timeout_ms: int = CONNECT_TIMEOUT_MS,
        request_timeout_ms: int = REQUEST_TIMEOUT_MS,
    ) -> Self:
        """Connect, negotiate versions, authenticate.

        Raises:
            ConnectionFailed: nobody listens there, or not in time.
            ProtocolViolation: whoever listens there does not speak Kafka.
            WireError: it ended, timed out or refused us while being set up.
        """
        security = security or Plaintext()
        try:
            async with asyncio.timeout(connect_timeout_ms / 1000):
                streams = await asyncio.open_connection(address.host, address.port, ssl=security.ssl_context())
        except TimeoutError:
            raise ConnectionFailed(f"{address} did not accept a connection within {connect_timeout_ms} ms.") from None
        except OSError as error:
            raise ConnectionFailed(f"{address}: {error.strerror or error}.") from error
        connection = cls(address, streams, client_id=client_id, request_timeout_ms=request_timeout_ms)
        try:
            await connection._negotiate(min(request_timeout_ms, connect_timeout_ms))
            await security.authenticate(connection)
        except BaseException:
            await connection.close()
            raise
        return connection

    @property
    def closed(self) -> bool:
        """Whether nothing can be sent any more."""
        return self._ended is not None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """End the connection; whoever still waits gets `Disconnected`. Safe to call twice."""
        self._end(Disconnected(f"The connection to {self.address} was closed here."))
        self._receiver.cancel()
        await asyncio.gather(self._receiver, return_exceptions=True)

    # ------------------------------------------------------------------------------------------------- calls

    async def call(self, request: Request, *, timeout_ms: int | None = None) -> Response:
        """Send `request`, wait for its answer.

        Raises:
            UnsupportedApi: the broker does not speak this version of the API.
            RequestTimedOut: no answer in time; the connection is closed.
            Disconnected: the connection ended.
            ProtocolViolation: the answer cannot be decoded.
        """
        self._check_version(request)
        return await self._exchange(request, timeout_ms or self._request_timeout_ms)

    async def _exchange(self, request: Request, timeout_ms: int) -> Response:
        if self._ended is not None:
            raise self._ended
        if len(self._waiting) >= IN_FLIGHT_MAX:
            raise RequestTimedOut(f"{IN_FLIGHT_MAX} requests to {self.address} await their answers already.")
        correlation_id = next(self._ids)
        answer: asyncio.Future[Response] = asyncio.get_running_loop().create_future()
        self._waiting[correlation_id] = (type(request), answer)
        self._writer.write(encode_request(request, correlation_id, self._client_id))
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                return await answer
        except TimeoutError:
            error = RequestTimedOut(f"{self.address} did not answer {_name(request)} within {timeout_ms} ms.")
            self._end(error)
            raise error from None

    async def _receive(self) -> None:
        try:
            while True:
                (length,) = struct.unpack(">i", await self._reader.readexactly(4))
                if not 4 <= length <= FRAME_BYTES_MAX:
                    raise ProtocolViolation(
                        f"{self.address} sent a frame of {length} bytes: this is not a Kafka broker's plain listener "
                        "(is it a TLS or HTTP port?)."
                    )
                self._answer(await self._reader.readexactly(length))
        except asyncio.IncompleteReadError:
            self._end(Disconnected(f"{self.address} closed the connection."))
        except OSError as error:
            self._end(Disconnected(f"{self.address}: {error.strerror or error}."))
        except WireError as error:
            self._end(error)

    def _answer(self, frame: bytes) -> None:
        correlation_id = correlation_id_of(frame)
        waiting = self._waiting.pop(correlation_id, None)
        if waiting is None:
            raise ProtocolViolation(f"{self.address} answered request {correlation_id}, which was never sent.")
        request_type, answer = waiting
        if answer.done():
            return  # its caller was cancelled; the answer is nobody's
        try:
            answer.set_result(decode_response(request_type, frame))
        except ProtocolViolation as error:
            answer.set_exception(error)

    def _end(self, error: WireError) -> None:
        if self._ended is not None:
            return
        self._ended = error
        for _, answer in self._waiting.values():
            if not answer.done():
                answer.set_exception(error)
        self._waiting.clear()
        self._writer.close()

    # ----------------------------------------------------------------------------------------------- versions

    async def _negotiate(self, timeout_ms: int) -> None:
        """Learn the broker's version ranges. A broker too old for v3 says so in a v0 answer (KIP-511)."""
        name, version = _SOFTWARE
        request = messages.ApiVersionsRequest(client_software_name=name, client_software_version=version)
        response = await self._exchange(request, timeout_ms)
        assert isinstance(response, messages.ApiVersionsResponse | messages.ApiVersionsResponseV0)
        if int(response.error_code) == ErrorCode.UNSUPPORTED_VERSION:
            response = cast(
                "messages.ApiVersionsResponse", await self._exchange(messages.ApiVersionsRequestV0(), timeout_ms)
            )
        if int(response.error_code) != ErrorCode.NONE:
            raise ProtocolViolation(
                f"{self.address} refused ApiVersions with {ErrorCode.name_of(int(response.error_code))}."
            )
        self._versions = {key.api_key: (key.min_version, key.max_version) for key in response.api_keys}

    def _check_version(self, request: Request) -> None:
        if self._versions is None:
            return  # being set up
        low, high = self._versions.get(request.__api_key__, (0, -1))
        if not low <= request.__version__ <= high:
            spoken = f"speaks {low} to {high}" if high >= 0 else "does not know it"
            raise UnsupportedApi(
                f"{_name(request)} v{request.__version__} is needed, but the broker at {self.address} {spoken}: "
                "spark-kgroup needs Apache Kafka 3.6 or newer."
            )


def _name(request: Request) -> str:
    return type(request).__name__.removesuffix("Request")
