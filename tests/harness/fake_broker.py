"""A broker that speaks Kafka's real bytes on a real socket and answers as a test wants. And asyncio for tests."""

from __future__ import annotations

import asyncio
import gc
import struct
import time
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from datetime import timedelta
from functools import wraps
from ssl import SSLContext
from typing import Any, ParamSpec

from kio.schema.errors import ErrorCode
from kio.serial import entity_reader
from kio.static.primitive import i16, i32, i32Timedelta

from harness import kio_messages
from harness.kio_messages import encode_entity
from spark_kgroup.wire.address import Address

P = ParamSpec("P")
SCENARIO_TIMEOUT_S = 120
NO_THROTTLE = i32Timedelta.parse(timedelta(0))
REQUEST_TYPES = {(int(kind.__api_key__), int(kind.__version__)): kind for kind in kio_messages.RESPONSE_OF}
RANGES = {key: (0, version) for key, version in sorted(REQUEST_TYPES)}
HUNG_UP = object()
"""An answer: the broker closes the connection."""


def on_a_loop(scenario: Callable[P, Awaitable[None]]) -> Callable[P, None]:
    """Run a test on an event loop, within a bound. It must leave no task, no socket and no unseen error behind."""

    @wraps(scenario)
    def test(*args: P.args, **kwargs: P.kwargs) -> None:
        unseen: list[dict[str, Any]] = []

        async def run() -> None:
            asyncio.get_running_loop().set_exception_handler(lambda _, context: unseen.append(context))
            async with asyncio.timeout(SCENARIO_TIMEOUT_S):
                await scenario(*args, **kwargs)
            await asyncio.sleep(0)
            left = asyncio.all_tasks() - {asyncio.current_task()}
            assert not left, f"left behind: {left}"

        gc.freeze()  # objects from before are not looked at again: half a second for each test
        try:
            asyncio.run(run())
            gc.collect()  # sockets that were not closed say so now, and errors that were not looked at
        finally:
            gc.unfreeze()
        assert not unseen, unseen

    return test


async def until(condition: Callable[[], Any]) -> None:
    """Wait until `condition` holds, within a bound."""
    deadline_s = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline_s, "waited 120 s in vain"
        await asyncio.sleep(0.005)


class Raw(bytes):
    """An answer: these very bytes, in place of a frame."""


Answer = Callable[[Any], Any]


class FakeBroker:
    """Listens on 127.0.0.1. A context manager. `stop` and `start` restart it on its port.

    Args:
        answer: called with each request (a kio object), in order of arrival on each connection. Returns a response, a
            frame without its length (bytes), `Raw` bytes, `HUNG_UP`, or None for no answer. May be a coroutine
            function: requests behind it on the same connection wait, as with Kafka.
        ranges: API key -> the versions that ApiVersions shall claim.
        tls: the server's half, or None for plain TCP.
        more: types of requests that the driver's code does not send, and a client of this test does.

    Attributes:
        requests: all of them but ApiVersions, in order of arrival.
        connections: how many were accepted.
    """

    def __init__(
        self,
        answer: Answer | None = None,
        *,
        ranges: dict[int, tuple[int, int]] = RANGES,
        tls: SSLContext | None = None,
        more: Iterable[Any] = (),
    ) -> None:
        self.answer: Answer = answer or (lambda _: None)
        self.ranges = ranges
        self._request_types = {**REQUEST_TYPES, **{(int(one.__api_key__), int(one.__version__)): one for one in more}}
        self.requests: list[Any] = []
        self.connections = 0
        self._port = 0
        self._tls = tls
        self._server: asyncio.Server | None = None
        self._serving: set[asyncio.Task[None]] = set()

    @property
    def address(self) -> Address:
        return Address("127.0.0.1", self._port)

    @property
    def open_connections(self) -> int:
        return len(self._serving)

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", self._port, ssl=self._tls)
        self._port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._serving:
            task.cancel()
        await asyncio.gather(*self._serving, return_exceptions=True)
        await self._server.wait_closed()

    async def __aenter__(self) -> FakeBroker:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._serving.add(task)
        self.connections += 1
        try:
            await self._serve(reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass
        finally:
            writer.transport.abort()
            with suppress(OSError):  # a client that resets is none of a test's unseen errors
                await writer.wait_closed()
            self._serving.discard(task)  # last: `stop` waits for those that are in there

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            (size,) = struct.unpack(">i", await reader.readexactly(4))
            frame = await reader.readexactly(size)
            answer = await self._answer(frame)
            if answer is HUNG_UP:
                return
            if answer is not None:
                writer.write(answer if isinstance(answer, Raw) else struct.pack(">i", len(answer)) + answer)

    async def _answer(self, frame: bytes) -> Any:
        key, version, correlation_id = struct.unpack_from(">hhi", frame)
        request_type = self._request_types[key, version]
        if issubclass(request_type, kio_messages.ApiVersionsRequest | kio_messages.ApiVersionsRequestV0):
            response = self.api_versions(version)
        else:
            _, size = entity_reader(request_type.__header_schema__)(frame, 0)
            request, _ = entity_reader(request_type)(frame, size)
            self.requests.append(request)
            response = self.answer(request)
        if isinstance(response, Awaitable):
            response = await response
        if response is None or response is HUNG_UP or isinstance(response, bytes):
            return response
        return encode_entity(response.__header_schema__(correlation_id=i32(correlation_id))) + encode_entity(response)

    def api_versions(self, version: int) -> Any:
        """The answer to ApiVersions, which a test may replace."""
        return api_versions_response(self.ranges, version)


def api_versions_response(ranges: dict[int, tuple[int, int]], version: int, error: int = 0) -> Any:
    """ApiVersions v0 or v3 with these ranges by API key."""
    kind: Any = kio_messages.ApiVersionsResponseV0 if version == 0 else kio_messages.ApiVersionsResponse
    key_type = kind.__dataclass_fields__["api_keys"].type.__args__[0]
    keys = tuple(
        key_type(api_key=i16(key), min_version=i16(low), max_version=i16(high)) for key, (low, high) in ranges.items()
    )
    throttle = {} if version == 0 else {"throttle_time": NO_THROTTLE}
    return kind(error_code=ErrorCode(error), api_keys=keys, **throttle)
