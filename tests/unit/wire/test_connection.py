"""One connection against a broker that speaks real bytes, and against odd servers that do not."""

import asyncio
import logging
import socket
import ssl
import struct
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from harness import kio_messages
from harness.fake_broker import HUNG_UP, NO_THROTTLE, RANGES, FakeBroker, Raw, api_versions_response, on_a_loop, until
from harness.kio_messages import HeartbeatRequest, encode_entity
from kio.schema.errors import ErrorCode as KioErrorCode
from kio.schema.find_coordinator.v4.response import Coordinator
from kio.schema.metadata.v12.response import MetadataResponsePartition, MetadataResponseTopic
from kio.schema.types import BrokerId, TopicName
from kio.static.primitive import i32

from spark_kgroup.errors import (
    AuthenticationFailed,
    ConnectionFailed,
    Disconnected,
    Orphaned,
    ProtocolViolation,
    RequestTimedOut,
    UnsupportedApi,
)
from spark_kgroup.limits import DECODED_AT_ONCE_BYTES_MAX, IN_FLIGHT_MAX
from spark_kgroup.model import MemberIdentity
from spark_kgroup.wire import connection as connection_module
from spark_kgroup.wire import messages, schema
from spark_kgroup.wire.address import Address
from spark_kgroup.wire.codec import decode_response
from spark_kgroup.wire.connection import Connection
from spark_kgroup.wire.security.settings import Send

pytestmark = pytest.mark.filterwarnings("error::ResourceWarning")


def beat(generation: int = 0) -> schema.Request:
    return messages.heartbeat("g", MemberIdentity(instance_id=None, member_id="m", generation=generation))


def ok(error: int = 0) -> kio_messages.HeartbeatResponse:
    return kio_messages.HeartbeatResponse(throttle_time=NO_THROTTLE, error_code=KioErrorCode(error))


def code_of(response: schema.Response) -> int:
    assert isinstance(response, schema.HeartbeatResponse)
    return response.error_code


def frame(correlation_id: int, error: int = 0) -> bytes:
    return struct.pack(">ib", correlation_id, 0) + encode_entity(ok(error))


def framed(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


async def connect(broker: FakeBroker, **settings: Any) -> Connection:
    return await Connection.open(broker.address, client_id="test", **settings)


# ------------------------------------------------------------------------------------------------------- requests


@on_a_loop
async def test_requests_of_one_moment_are_written_at_once_and_each_gets_its_answer() -> None:
    async with FakeBroker(lambda request: ok(request.generation_id)) as broker, await connect(broker) as connection:
        written: list[bytes] = []
        write = connection._writer.write

        def noted(frames: bytes) -> None:
            written.append(frames)
            write(frames)

        connection._writer.write = noted  # type: ignore[method-assign, assignment]
        codes = (16, 22, 25, 27)
        answers = await asyncio.gather(*(connection.call(beat(code)) for code in codes))
        assert tuple(map(code_of, answers)) == codes
        assert len(written) == 1
        await connection.call(beat(16))
        assert len(written) == 2


@on_a_loop
async def test_a_request_gets_its_answer() -> None:
    async with FakeBroker(lambda _: ok(27)) as broker, await connect(broker) as connection:
        response = await connection.call(beat(3))
        assert isinstance(response, schema.HeartbeatResponse)
        assert response.error_code == 27
        assert [request.generation_id for request in broker.requests] == [3]
        assert not connection.closed
    assert connection.closed


@on_a_loop
async def test_requests_are_pipelined_and_answers_find_their_callers() -> None:
    together = asyncio.Event()

    async def answer(request: Any) -> Any:
        await together.wait()
        return ok(request.generation_id)

    async with FakeBroker(answer) as broker, await connect(broker) as connection:
        calls = [asyncio.create_task(connection.call(beat(n))) for n in range(20)]
        await until(lambda: broker.requests)
        together.set()
        assert [code_of(response) for response in await asyncio.gather(*calls)] == list(range(20))


@on_a_loop
async def test_answers_may_come_in_pieces() -> None:
    whole = framed(frame(2, 25))

    async def in_pieces(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await greet(reader, writer)
        await reader.readexactly(4)
        for byte in whole:
            writer.write(bytes([byte]))
            await writer.drain()
            await asyncio.sleep(0)

    async with odd_server(in_pieces) as address, await Connection.open(address, client_id="c") as connection:
        assert code_of(await connection.call(beat())) == 25


@on_a_loop
async def test_a_cancelled_caller_does_not_disturb_other_callers() -> None:
    go_on = asyncio.Event()

    async def answer(request: Any) -> Any:
        await go_on.wait()
        return ok(request.generation_id)

    async with FakeBroker(answer) as broker, await connect(broker) as connection:
        first, second = (asyncio.create_task(connection.call(beat(n))) for n in (1, 2))
        await until(lambda: broker.requests)
        first.cancel()
        await asyncio.wait([first])
        go_on.set()
        assert code_of(await second) == 2
        assert code_of(await connection.call(beat(3))) == 3


@on_a_loop
async def test_requests_beyond_the_bound_wait_for_a_place_and_are_answered() -> None:
    at_once: list[int] = []
    go_on = asyncio.Event()

    async def answer(request: Any) -> Any:
        await go_on.wait()
        return ok(request.generation_id % 90)

    async with FakeBroker(answer) as broker, await connect(broker) as connection:
        calls = [asyncio.create_task(connection.call(beat(n))) for n in range(3 * IN_FLIGHT_MAX)]
        await until(lambda: broker.requests)
        at_once.append(len(connection._in_flight._waiting))
        go_on.set()
        codes = [code_of(response) for response in await asyncio.gather(*calls)]
        assert codes == [n % 90 for n in range(3 * IN_FLIGHT_MAX)]
    assert at_once == [IN_FLIGHT_MAX]


@on_a_loop
async def test_a_connection_that_ends_ends_the_calls_that_wait_for_a_place() -> None:
    async with FakeBroker() as broker, await connect(broker) as connection:
        calls = [asyncio.create_task(connection.call(beat())) for _ in range(IN_FLIGHT_MAX + 1)]
        await asyncio.sleep(0)
        await connection.close()
        results = await asyncio.gather(*calls, return_exceptions=True)
        assert {type(result) for result in results} == {Disconnected}
        assert len({id(result) for result in results}) == IN_FLIGHT_MAX + 1, "each caller raises an error of its own"


def test_a_large_answer_is_decoded_beside_the_loop_and_small_ones_on_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """While it is decoded, other connections' answers arrive: a large answer silences no seat."""
    begun, may_end = threading.Event(), threading.Event()
    on_the_loop: list[bool] = []

    def slow(request_type: type[schema.Request], raw: bytes) -> schema.Response:
        on_the_loop.append(threading.current_thread() is threading.main_thread())
        if len(raw) > DECODED_AT_ONCE_BYTES_MAX:
            begun.set()
            assert may_end.wait(timeout=20)
        return decode_response(request_type, raw)

    @on_a_loop
    async def scenario() -> None:
        described = kio_messages.FindCoordinatorResponse(throttle_time=NO_THROTTLE, coordinators=(large_coordinator(),))

        def answer(request: Any) -> Any:
            return ok(27) if isinstance(request, HeartbeatRequest) else described

        async with FakeBroker(answer) as broker, await connect(broker) as one, await connect(broker) as other:
            monkeypatch.setattr(connection_module, "decode_response", slow)
            asking = asyncio.create_task(one.call(messages.find_coordinator("g")))
            await until(begun.is_set)
            assert code_of(await other.call(beat())) == 27
            assert not asking.done()
            may_end.set()
            assert await asking == kio_messages.as_tuples(described)
        assert on_the_loop == [False, True]

    scenario()


def test_an_answer_that_is_the_last_one_again_is_not_decoded_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A boundary asks for the metadata of maybe 10,000 partitions.

    While they do not change, they are not decoded again.
    """
    decoded: list[type[schema.Request]] = []
    epochs = iter((3, 3, 4, 3))

    def counted(request_type: type[schema.Request], raw: bytes) -> schema.Response:
        decoded.append(request_type)
        return decode_response(request_type, raw)

    def answer(request: Any) -> Any:
        return ok() if isinstance(request, HeartbeatRequest) else led_in_epoch(next(epochs))

    @on_a_loop
    async def scenario() -> None:
        async with FakeBroker(answer) as broker, await connect(broker) as connection:
            monkeypatch.setattr(connection_module, "decode_response", counted)
            found = [await connection.call(messages.metadata(["t"])) for _ in range(4)]
            assert found == [kio_messages.as_tuples(led_in_epoch(epoch)) for epoch in (3, 3, 4, 3)]
            assert decoded == [schema.MetadataRequest] * 3
            await connection.call(beat())
            await connection.call(beat())
            assert decoded[3:] == [schema.HeartbeatRequest] * 2, "only what is large and asked again is kept"

    scenario()


def led_in_epoch(epoch: int) -> kio_messages.MetadataResponse:
    partition = MetadataResponsePartition(
        error_code=KioErrorCode.none, partition_index=i32(0), leader_id=BrokerId(0), leader_epoch=i32(epoch)
    )
    topic = MetadataResponseTopic(
        error_code=KioErrorCode.none, name=TopicName("t"), topic_id=None, is_internal=False, partitions=(partition,)
    )
    return kio_messages.MetadataResponse(throttle_time=NO_THROTTLE, brokers=(), topics=(topic,))


@on_a_loop
async def test_a_connection_that_ends_while_a_large_answer_is_decoded_tells_its_caller() -> None:
    described = kio_messages.FindCoordinatorResponse(throttle_time=NO_THROTTLE, coordinators=(large_coordinator(),))
    async with FakeBroker(lambda _: described) as broker, await connect(broker) as connection:
        decoding = asyncio.Event()
        loop, submit = asyncio.get_running_loop(), asyncio.get_running_loop().run_in_executor
        loop.run_in_executor = lambda *args: (decoding.set(), submit(*args))[1]  # type: ignore[method-assign]
        asking = asyncio.create_task(connection.call(messages.find_coordinator("g")))
        await decoding.wait()
        await connection.close()
        with pytest.raises(Disconnected):
            await asking


def large_coordinator() -> Coordinator:
    return Coordinator(
        key="g",
        node_id=BrokerId(0),
        host="h" * (DECODED_AT_ONCE_BYTES_MAX + 1),
        port=i32(1),
        error_code=KioErrorCode.none,
        error_message=None,
    )


# --------------------------------------------------------------------------------------------------- how it ends


@on_a_loop
async def test_a_timeout_ends_the_connection_for_all_who_wait() -> None:
    async with FakeBroker() as broker, await connect(broker) as connection:
        patient = asyncio.create_task(connection.call(beat(), timeout_ms=150))
        await asyncio.sleep(0)
        both_over_s = asyncio.get_running_loop().time() + 0.2
        with pytest.raises(RequestTimedOut, match="did not answer Heartbeat within 50 ms"):
            await connection.call(beat(), timeout_ms=50)
        assert connection.closed
        with pytest.raises(Disconnected, match=r"closed here: .* did not answer Heartbeat"):
            await patient
        with pytest.raises(Disconnected):
            await connection.call(beat())
        await until(lambda: asyncio.get_running_loop().time() > both_over_s)  # and no timer is left to complain


@on_a_loop
async def test_an_answered_request_has_no_timeout_left() -> None:
    def answer(request: Any) -> Any:
        return ok() if request.generation_id else None

    async with FakeBroker(answer) as broker, await connect(broker) as connection:
        await connection.call(beat(1), timeout_ms=1_000)
        with pytest.raises(RequestTimedOut, match="within 1500 ms"):
            await connection.call(beat(0), timeout_ms=1_500)


@on_a_loop
async def test_the_timeout_of_a_cancelled_caller_stays() -> None:
    """Else callers that give up earlier would never notice a connection that died in silence."""
    async with FakeBroker() as broker, await connect(broker) as connection:
        call = asyncio.create_task(connection.call(beat(), timeout_ms=50))
        await asyncio.sleep(0)
        call.cancel()
        await asyncio.wait([call])
        assert not connection.closed
        await until(lambda: connection.closed)


@on_a_loop
async def test_the_connections_own_timeout_is_the_default() -> None:
    # It holds for the greeting as well, so it is long enough for one on a busy machine.
    async with FakeBroker() as broker, await connect(broker, request_timeout_ms=1_500) as connection:
        with pytest.raises(RequestTimedOut, match="within 1500 ms"):
            await connection.call(beat())


@on_a_loop
async def test_a_broker_that_hangs_up_ends_all_calls() -> None:
    async with FakeBroker(lambda _: HUNG_UP) as broker, await connect(broker) as connection:
        results = await asyncio.gather(*(connection.call(beat()) for _ in range(3)), return_exceptions=True)
        assert {type(result) for result in results} == {Disconnected}
        assert connection.closed
        with pytest.raises(Disconnected):
            await connection.call(beat())


@on_a_loop
async def test_an_idle_connection_notices_that_the_broker_went_away() -> None:
    async with FakeBroker() as broker, await connect(broker) as connection:
        await broker.stop()
        await until(lambda: connection.closed)


@on_a_loop
async def test_closing_twice_and_calling_afterwards() -> None:
    async with FakeBroker() as broker:
        connection = await connect(broker)
        waiting = asyncio.create_task(connection.call(beat()))
        await asyncio.sleep(0)
        await connection.close()
        await connection.close()
        with pytest.raises(Disconnected, match="was closed here"):
            await waiting
        with pytest.raises(Disconnected, match="was closed here"):
            await connection.call(beat())


@on_a_loop
async def test_closing_does_not_wait_for_a_peer_that_reads_no_more() -> None:
    async def deaf(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await greet(reader, writer)
        assert isinstance(writer.transport, asyncio.Transport)
        writer.transport.pause_reading()
        await asyncio.sleep(60)

    huge = messages.metadata(["t" * 30_000] * 500)
    async with odd_server(deaf) as address:
        connection = await Connection.open(address, client_id="c")
        call = asyncio.create_task(connection.call(huge))
        await asyncio.sleep(0)
        async with asyncio.timeout(2):
            await connection.close()
        with pytest.raises(Disconnected):
            await call


@on_a_loop
async def test_no_request_is_sent_in_the_name_of_a_process_that_has_gone() -> None:
    gone: list[bool] = []
    async with FakeBroker(lambda _: ok()) as broker, await connect(broker, alive=lambda: not gone) as connection:
        await connection.call(beat(1))
        gone.append(True)
        with pytest.raises(Orphaned) as failure:
            await connection.call(beat(2))
        assert not failure.value.retriable
        assert connection.closed
        with pytest.raises(Orphaned):
            await connect(broker, alive=lambda: not gone)
    assert [request.generation_id for request in broker.requests] == [1]


@on_a_loop
async def test_a_request_not_yet_sent_when_its_connection_ends_is_never_sent() -> None:
    # The kernel ends the connections of a process that is killed, and would go on sending: a join of its, for example,
    # when its successor has joined already.
    closed, received = asyncio.Event(), bytearray()

    async def slow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        await greet(reader, writer)
        assert isinstance(writer.transport, asyncio.Transport)
        writer.transport.pause_reading()
        await closed.wait()
        writer.transport.resume_reading()
        with suppress(ConnectionResetError):
            while data := await reader.read(2**16):
                received.extend(data)
        received.extend(b"end")

    large = messages.metadata(["t" * 10_000] * 40)  # fits our side's buffer, and not the peer's
    async with odd_server(slow) as address:
        connection = await Connection.open(address, client_id="c")
        call = asyncio.create_task(connection.call(large))
        await asyncio.sleep(0)
        assert connection._writer.transport.get_write_buffer_size() == 0, "all of it is the kernel's"
        await connection.close()
        with pytest.raises(Disconnected):
            await call
        closed.set()
        await until(lambda: received.endswith(b"end"))
    assert len(received) < 400_000


# ------------------------------------------------------------------------------------------------ strange answers


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (Raw(framed(frame(99))), "answered request 99, which was never sent"),
        (Raw(struct.pack(">i", -1)), "a frame of -1 bytes"),
        (Raw(struct.pack(">i", 2**31 - 1)), "a frame of 2147483647 bytes"),
        (Raw(struct.pack(">i", 3) + b"abc"), "a frame of 3 bytes"),
    ],
    ids=["correlation id", "negative length", "oversized", "too short"],
)
def test_bytes_out_of_step_end_the_connection_for_all(answer: Raw, message: str) -> None:
    @on_a_loop
    async def scenario() -> None:
        async with FakeBroker(lambda _: answer) as broker, await connect(broker) as connection:
            results = await asyncio.gather(*(connection.call(beat()) for _ in range(3)), return_exceptions=True)
            # The peer has spoken Kafka before, so a new connection may lead to a broker again.
            assert {type(result) for result in results} == {Disconnected}
            assert message in str(results[0])
            assert connection.closed

    scenario()


@on_a_loop
async def test_an_answer_that_cannot_be_decoded_ends_its_connection_and_may_be_asked_for_again() -> None:
    """One bad message is no sign against the next connection, but later answers on this one cannot be trusted."""
    async with FakeBroker(lambda _: struct.pack(">ib", 2, 0) + b"\xff") as broker, await connect(broker) as connection:
        results = await asyncio.gather(*(connection.call(beat(n)) for n in (1, 2)), return_exceptions=True)
        assert {type(result) for result in results} == {Disconnected}
        assert "ends after 6 bytes, in the middle of a field" in str(results[0])
        assert connection.closed


@on_a_loop
async def test_a_bug_in_the_reader_leaves_no_caller_waiting(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with FakeBroker(lambda _: ok()) as broker, await connect(broker) as connection:
        monkeypatch.setattr(connection_module, "decode_response", lambda *_: 1 / 0)
        with caplog.at_level(logging.CRITICAL + 1), pytest.raises(Disconnected, match="ZeroDivisionError"):
            await asyncio.gather(*(connection.call(beat()) for _ in range(2)))
        assert connection.closed


# ------------------------------------------------------------------------------------------------------- opening


async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer ApiVersions as a broker does."""
    (size,) = struct.unpack(">i", await reader.readexactly(4))
    await reader.readexactly(size)
    body = struct.pack(">i", 1) + encode_entity(api_versions_response(RANGES, 3))
    writer.write(framed(body))


@asynccontextmanager
async def odd_server(
    serve: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]], **listening: Any
) -> AsyncIterator[Address]:
    """A server that is no Kafka broker: it does `serve` with each connection."""
    tasks: set[asyncio.Task[Any]] = set()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        try:
            await serve(reader, writer)
        except (asyncio.CancelledError, OSError):
            pass
        finally:
            writer.transport.abort()

    server = await asyncio.start_server(accept, "127.0.0.1", 0, **listening)
    try:
        yield Address("127.0.0.1", server.sockets[0].getsockname()[1])
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await server.wait_closed()


@on_a_loop
async def test_an_address_without_a_listener_is_a_retriable_error() -> None:
    async with FakeBroker() as broker:
        address = broker.address
    with pytest.raises(ConnectionFailed, match=f"{address}") as failure:
        await Connection.open(address, client_id="c")
    assert failure.value.retriable


@on_a_loop
async def test_a_host_that_does_not_exist() -> None:
    with pytest.raises(ConnectionFailed, match=r"no-such-host\.invalid:9092"):
        await Connection.open(Address("no-such-host.invalid", 9092), client_id="c")


@on_a_loop
async def test_a_silent_listener_is_not_waited_for_long() -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(-1)

    async with odd_server(silent) as address:
        with pytest.raises(RequestTimedOut, match="did not answer ApiVersions within 50 ms"):
            await Connection.open(address, client_id="c", connect_timeout_ms=50)


@on_a_loop
async def test_an_odd_server_s_large_frame_is_refused_before_it_is_read() -> None:
    """Decoding takes long (`DECODED_AT_ONCE_BYTES_MAX`), and the listening process has not authenticated itself."""
    broker = FakeBroker()
    many = dict.fromkeys(range(20_000), (0, 1))
    broker.api_versions = lambda version: api_versions_response(many, version)  # type: ignore[method-assign]
    async with broker:
        with pytest.raises(ProtocolViolation, match=r"sent a frame of 140\d{3} bytes"):
            await connect(broker)


@on_a_loop
async def test_a_large_frame_is_taken_from_a_broker_that_we_have_authenticated_with() -> None:
    many = messages.metadata([f"topic-{n:010}" for n in range(10)])

    def answer(request: Any) -> Any:
        topics = tuple(
            MetadataResponseTopic(
                error_code=KioErrorCode.unknown_topic_or_partition,
                name=TopicName("t" * 30_000),
                topic_id=None,
                partitions=(),
            )
            for _ in request.topics
        )
        return kio_messages.MetadataResponse(throttle_time=NO_THROTTLE, brokers=(), topics=topics)

    async with FakeBroker(answer) as broker, await connect(broker) as connection:
        response = await connection.call(many)
        assert isinstance(response, schema.MetadataResponse)
        assert len(response.topics) == 10


@on_a_loop
async def test_an_http_server_is_recognized() -> None:
    async def http(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(10)
        writer.write(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n")
        await writer.drain()

    async with odd_server(http) as address:
        with pytest.raises(ProtocolViolation, match="TLS or HTTP port"):
            await Connection.open(address, client_id="c")


@on_a_loop
async def test_a_tls_server_is_recognized() -> None:
    async def alert(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(10)
        writer.write(bytes.fromhex("15030300020246"))  # fatal alert: protocol version
        await writer.drain()

    async with odd_server(alert) as address:
        with pytest.raises(ProtocolViolation, match="TLS or HTTP port"):
            await Connection.open(address, client_id="c")


@on_a_loop
async def test_a_real_tls_listener_is_an_error_at_once() -> None:
    async def never(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        raise AssertionError("no handshake, no connection")

    async with odd_server(never, ssl=ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)) as address:
        with pytest.raises((ProtocolViolation, Disconnected), match="TLS"):
            await Connection.open(address, client_id="c")


@on_a_loop
async def test_a_listener_that_hangs_up_gets_a_hint() -> None:
    async def rude(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(10)
        writer.write_eof()

    async with odd_server(rude) as address:
        with pytest.raises(
            Disconnected, match=r"does this listener expect TLS or SASL.*`max.connections`, `max.connections.per.ip`"
        ):
            await Connection.open(address, client_id="c")


@on_a_loop
async def test_security_wraps_the_socket_and_proves_who_we_are_before_any_request() -> None:
    class Recorded:
        seen: list[Any]

        async def ssl_context(self) -> ssl.SSLContext | None:
            return None

        def on_tls_refused(self, _address: object, refusal: AuthenticationFailed, /) -> AuthenticationFailed:
            """Not called without TLS."""
            return refusal

        async def authenticate(self, address: object, send: Send) -> int:
            self.seen = [address, await send(beat(9))]
            return 0

    security = Recorded()
    async with FakeBroker(lambda _: ok()) as broker, await connect(broker, security=security):
        assert [request.generation_id for request in broker.requests] == [9]
        assert security.seen == [broker.address, kio_messages.as_tuples(ok())]


@on_a_loop
async def test_refused_authentication_closes_the_connection() -> None:
    class Refused:
        async def ssl_context(self) -> ssl.SSLContext | None:
            return None

        def on_tls_refused(self, _address: object, refusal: AuthenticationFailed, /) -> AuthenticationFailed:
            """Not called without TLS."""
            return refusal

        async def authenticate(self, _address: object, _send: Send, /) -> int:
            raise ProtocolViolation("who are you?")

    async with FakeBroker() as broker:
        with pytest.raises(ProtocolViolation, match="who are you"):
            await connect(broker, security=Refused())
        await until(lambda: not broker.open_connections)


# ------------------------------------------------------------------------------------------------------- versions


def test_our_version_is_looked_up_beside_the_package_before_all_of_the_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark puts large archives on `sys.path`, and a look-up there reads their whole index."""
    for place, version in (("elsewhere", "1.0"), ("beside", "2.0")):
        metadata = tmp_path / place / "spark_kgroup-0.dist-info" / "METADATA"
        metadata.parent.mkdir(parents=True)
        metadata.write_text(f"Metadata-Version: 2.1\nName: spark-kgroup\nVersion: {version}\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path / "elsewhere")])
    assert connection_module._software_version(tmp_path / "beside") == "2.0"
    assert connection_module._software_version(tmp_path / "neither") == "1.0"
    monkeypatch.setattr(sys, "path", [])
    assert connection_module._software_version(tmp_path / "nowhere") == "unknown"


@on_a_loop
async def test_a_broker_too_old_for_our_api_versions_is_asked_again_in_version_0() -> None:
    """KIP-511: it answers UNSUPPORTED_VERSION in the form of version 0."""
    asked = []

    def api_versions(version: int) -> Any:
        asked.append(version)
        if version > 0:
            broken = api_versions_response({18: (0, 2)}, 0, error=35)
            return struct.pack(">i", 1) + encode_entity(broken)
        return api_versions_response(RANGES, 0)

    broker = FakeBroker(lambda _: ok())
    broker.api_versions = api_versions  # type: ignore[method-assign]
    async with broker, await connect(broker) as connection:
        assert code_of(await connection.call(beat())) == 0
    assert asked == [3, 0]


@on_a_loop
async def test_a_broker_that_refuses_api_versions() -> None:
    broker = FakeBroker()
    broker.api_versions = lambda version: api_versions_response({}, version, error=58)  # type: ignore[method-assign]
    async with broker:
        with pytest.raises(ProtocolViolation, match="refused ApiVersions with SASL_AUTHENTICATION_FAILED"):
            await connect(broker)


@pytest.mark.parametrize(
    ("spoken", "message"),
    [
        ((0, 3), r"Heartbeat v4 is needed, but the broker at .* speaks v0 to v3: Apache Kafka 3\.2 or newer is needed"),
        ((5, 9), r"speaks v5 to v9: use a newer spark-kgroup"),
        (None, r"does not know this API: Apache Kafka 3\.2 or newer"),
    ],
)
def test_a_version_that_the_broker_does_not_speak_is_not_sent(spoken: tuple[int, int] | None, message: str) -> None:
    ranges = {**RANGES, 12: spoken} if spoken else {key: span for key, span in RANGES.items() if key != 12}

    @on_a_loop
    async def scenario() -> None:
        async with FakeBroker(lambda _: ok(), ranges=ranges) as broker, await connect(broker) as connection:
            with pytest.raises(UnsupportedApi, match=message):
                await connection.call(beat())
            assert broker.requests == []
            assert not connection.closed

    scenario()


@on_a_loop
async def test_a_broker_without_the_consumer_protocol_needs_the_release_that_has_it() -> None:
    ranges = {key: span for key, span in RANGES.items() if key != 69}  # ConsumerGroupDescribe
    async with FakeBroker(lambda _: ok(), ranges=ranges) as broker, await connect(broker) as connection:
        with pytest.raises(UnsupportedApi, match=r"does not know this API: Apache Kafka 4\.0 or newer is needed"):
            await connection.call(messages.consumer_group_describe("g")[0])


def test_an_address_with_colons_is_printed_in_brackets() -> None:
    assert str(Address("::1", 9092)) == "[::1]:9092"
    assert str(Address("broker", 9092)) == "broker:9092"
