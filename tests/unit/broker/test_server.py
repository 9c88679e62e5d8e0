"""The listener: frames, headers, versions, bounds, and hostile frames."""

import asyncio
import logging
import os
import random
import struct
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import wraps
from typing import Any

import pytest
from harness.broker_calls import NOW_MS, cluster_of, fetched, produce, produced
from harness.fake_broker import on_a_loop, until

from spark_kgroup.broker import server as server_module
from spark_kgroup.broker.broker_clock import RealClock, VirtualClock
from spark_kgroup.broker.cluster import Cluster
from spark_kgroup.broker.served import SERVED, VERSIONS
from spark_kgroup.broker.server import Server
from spark_kgroup.coordinator import CoordinatorConfig
from spark_kgroup.errors import Disconnected
from spark_kgroup.model import TopicPartition
from spark_kgroup.wire import broker_group_schema as group_schema
from spark_kgroup.wire import broker_schema, messages, schema
from spark_kgroup.wire.address import Address
from spark_kgroup.wire.broker_group_schema import GROUP_LAYOUTS
from spark_kgroup.wire.broker_schema import LAYOUTS
from spark_kgroup.wire.codec import decode_struct, encode_struct
from spark_kgroup.wire.connection import Connection
from spark_kgroup.wire.responses import parse_metadata

ROUNDS = int(os.environ.get("KGROUP_MUTATED_ROUNDS", "1"))
FRAMES = 3_000
"""Mutated frames of one round, each on a broker of its own. For a longer run: KGROUP_MUTATED_ROUNDS=70."""

AT_ONCE = 50

Scenario = Callable[["Running"], Awaitable[None]]


class Running:
    """A server with topic t of two partitions on this loop, and raw connections to it."""

    def __init__(self, cluster: Cluster, server: Server) -> None:
        self.cluster = cluster
        self.server = server

    @property
    def address(self) -> Address:
        return Address("127.0.0.1", self.cluster.nodes[1].port)

    async def connect(self) -> "Raw":
        return Raw(*await asyncio.open_connection(self.address.host, self.address.port))

    def fetch(self, wait_ms: int, *, min_bytes: int = 1) -> bytes:
        """A Fetch v17 of t-0 from its start."""
        one = broker_schema.FetchPartition(0, -1, 0, -1, -1, 2**20, None)
        topic = broker_schema.FetchTopic("", self.cluster.topics["t"].topic_id, (one,))
        state = broker_schema.ReplicaState()
        request = broker_schema.FetchRequest(None, -1, state, wait_ms, min_bytes, 2**20, 0, 0, -1, (topic,), (), "")
        return framed(request, 17)


class Raw:
    """A connection of bytes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def __aenter__(self) -> "Raw":
        return self

    async def __aexit__(self, *_: object) -> None:
        self.writer.close()
        with suppress(OSError):  # reset by the broker
            await self.writer.wait_closed()

    def send(self, frame: bytes) -> None:
        self.writer.write(struct.pack(">i", len(frame)) + frame)

    async def frame(self) -> bytes:
        (size,) = struct.unpack(">i", await self.reader.readexactly(4))
        return await self.reader.readexactly(size)

    async def is_ended(self) -> bool:
        """Whether the broker ends the connection, and sends no byte before that."""
        try:
            return await self.reader.read(1) == b""
        except ConnectionResetError:
            return True


def framed(request: Any, version: int, correlation_id: int = 7) -> bytes:
    """A request without its length."""
    layout = next(each for each in (*LAYOUTS.values(), *GROUP_LAYOUTS.values()) if each.request is type(request))
    flexible = version >= layout.flexible_since
    head = struct.pack(">hhih", layout.key, version, correlation_id, 6) + b"client" + (b"\0" if flexible else b"")
    return head + encode_struct(request, flexible=flexible, version=version)


def answered(frame: bytes, response: Any, version: int) -> Any:
    """The response in a frame."""
    layout = next(each for each in LAYOUTS.values() if each.response is response)
    flexible = version >= layout.flexible_since
    at = 5 if flexible and response is not broker_schema.ApiVersionsResponse else 4
    return decode_struct(response, frame[at:], flexible=flexible, version=version)


def served(scenario: Scenario) -> Callable[[], None]:
    """Run a test beside a server, whose tasks and sockets are gone after it."""

    @wraps(scenario)
    async def run() -> None:
        cluster = cluster_of()
        server = Server(cluster, clock=VirtualClock(NOW_MS), group_config=CoordinatorConfig())
        await server.start([None])
        cluster.create_topic("t", [[1], [1]])
        try:
            await scenario(Running(cluster, server))
        finally:
            await server.stop()

    del run.__wrapped__  # pytest would look for a fixture
    return on_a_loop(run)


# ----------------------------------------------------------------------------------------------------- versions


@served
async def test_api_versions_names_each_served_api_and_produce_from_0(running: Running) -> None:
    async with await running.connect() as raw:
        for version in range(5):
            raw.send(framed(broker_schema.ApiVersionsRequest("x", "1"), version))
            frame = await raw.frame()
            said = answered(frame, broker_schema.ApiVersionsResponse, version)
            assert frame[:4] == struct.pack(">i", 7)
            assert (said.error_code, said.api_keys) == (0, VERSIONS)
        ranges = {each.api_key: (each.min_version, each.max_version) for each in said.api_keys}
        assert ranges[0] == (0, 13), "KAFKA-18659"
        assert all(ranges[key] == (one.layout.first, one.layout.last) for key, one in SERVED.items() if key)


@served
async def test_an_unknown_version_of_api_versions_is_answered_in_version_0(running: Running) -> None:
    async with await running.connect() as raw:
        raw.send(struct.pack(">hhih", 18, 99, 7, -1) + b"anything")
        said = answered(await raw.frame(), broker_schema.ApiVersionsResponse, 0)
        assert (said.error_code, said.api_keys) == (35, (schema.ApiVersion(18, 0, 4),))
        raw.send(framed(broker_schema.ApiVersionsRequest("x", "1"), 3))
        assert answered(await raw.frame(), broker_schema.ApiVersionsResponse, 3).error_code == 0


@served
async def test_our_own_client_negotiates_and_looks_topics_up(running: Running) -> None:
    async with await Connection.open(running.address, client_id="me") as connection:
        found = await connection.call(messages.metadata(["t"]))
        assert isinstance(found, schema.MetadataResponse)
        (topic,) = parse_metadata(found).topics.values()
        assert topic.topic_id == running.cluster.topics["t"].topic_id
        assert sorted(topic.leaders) == [0, 1]


# ------------------------------------------------------------------------------------------------- waiting fetches


@served
async def test_a_fetch_waits_for_a_record_and_is_woken_by_it(running: Running) -> None:
    async with await running.connect() as consumer, await running.connect() as producer:
        consumer.send(running.fetch(wait_ms=60_000))
        await until(lambda: running.server._waiting._waiting)
        data = (broker_schema.PartitionProduceData(0, produced([b"hello"])),)
        topics = (broker_schema.TopicProduceData("t", None, data),)
        producer.send(framed(broker_schema.ProduceRequest(None, -1, 1000, topics), 9))
        said = answered(await consumer.frame(), broker_schema.FetchResponse, 17)
        assert b"hello" in said.responses[0].partitions[0].records
        await until(lambda: not running.server._waiting._waiting)


@served
async def test_a_fetch_without_records_is_answered_when_its_wait_is_over(running: Running) -> None:
    """Though the broker's own clock stands still."""
    async with await running.connect() as raw:
        began = time.monotonic()
        raw.send(running.fetch(wait_ms=50))
        said = answered(await raw.frame(), broker_schema.FetchResponse, 17)
        assert said.responses[0].partitions[0].records == b""
        assert time.monotonic() - began >= 0.05


@served
async def test_a_waiting_fetch_ends_with_its_topic(running: Running) -> None:
    async with await running.connect() as raw:
        raw.send(running.fetch(wait_ms=60_000))
        await until(lambda: running.server._waiting._waiting)
        running.cluster.delete_topic(running.cluster.topics["t"])
        running.server.wake()
        said = answered(await raw.frame(), broker_schema.FetchResponse, 17)
        assert said.responses[0].partitions[0].error_code == 100


@served
async def test_a_client_that_leaves_while_it_waits_leaves_no_task_behind(running: Running) -> None:
    async with await running.connect() as raw:
        raw.send(running.fetch(wait_ms=2**31 - 1))
        await until(lambda: running.server._waiting._waiting)
    await until(lambda: not running.server._waiting._waiting and not running.server.connections)


@served
async def test_a_connection_is_served_in_order(running: Running) -> None:
    async with await running.connect() as raw:
        raw.send(running.fetch(wait_ms=30))
        raw.send(framed(broker_schema.DescribeClusterRequest(False, 1), 1, correlation_id=8))
        assert [(await raw.frame())[:4] for _ in range(2)] == [struct.pack(">i", 7), struct.pack(">i", 8)]


# -------------------------------------------------------------------------------------------------- hostile peers


@pytest.mark.parametrize(
    "raw_bytes",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        struct.pack(">i", -1),
        struct.pack(">i", 2**31 - 1),
        struct.pack(">i", 0),
        struct.pack(">i", 3) + b"abc",
        struct.pack(">ihhih", 10, 3, 99, 1, -1),  # Metadata v99
        struct.pack(">ihhih", 10, 999, 0, 1, -1),  # no such API
        struct.pack(">ihhih", 10, 0, 2, 1, -1),  # Produce v2, which ApiVersions names
        struct.pack(">ihhih", 10, 3, 12, 1, 500),  # a client id that is not there
        struct.pack(">ihhihi", 14, 3, 4, 1, -1, 2**31 - 1),  # two thousand million topics
    ],
)
def test_a_frame_that_is_no_request_ends_its_connection_alone(raw_bytes: bytes) -> None:
    @served
    async def scenario(running: Running) -> None:
        async with await running.connect() as other, await running.connect() as hostile:
            hostile.writer.write(raw_bytes)
            assert await hostile.is_ended()
            other.send(framed(broker_schema.DescribeClusterRequest(False, 1), 1))
            assert answered(await other.frame(), broker_schema.DescribeClusterResponse, 1).error_code == 0

    scenario()


@served
async def test_a_producer_without_acks_learns_of_a_refusal_by_the_end_of_its_connection(running: Running) -> None:
    async with await running.connect() as raw:
        for index, ended in ((0, False), (5, True)):
            data = (broker_schema.PartitionProduceData(index, produced()),)
            topics = (broker_schema.TopicProduceData("t", None, data),)
            raw.send(framed(broker_schema.ProduceRequest(None, 0, 1000, topics), 9))
            if not ended:
                raw.send(framed(broker_schema.DescribeClusterRequest(False, 1), 1, correlation_id=8))
                assert (await raw.frame())[:4] == struct.pack(">i", 8), "the first answer is to the second request"
        assert await raw.is_ended()
    assert running.cluster.topics["t"].partitions[0].log.end_offset == 1


@served
async def test_connections_are_bounded(running: Running) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(server_module, "CONNECTIONS_MAX", 1)
        async with await running.connect() as first:
            await until(lambda: running.server.connections)
            async with await running.connect() as second:
                assert await second.is_ended()
            first.send(framed(broker_schema.DescribeClusterRequest(False, 1), 1))
            assert await first.frame()


@served
async def test_frames_of_all_connections_are_bounded_together(running: Running) -> None:
    running.server._frames = server_module._Frames(1000)
    async with await running.connect() as first, await running.connect() as second:
        first.writer.write(struct.pack(">i", 900))
        await until(lambda: running.server._frames._left == 100)
        second.writer.write(struct.pack(">i", 101))
        assert await second.is_ended()
    await until(lambda: running.server._frames._left == 1000)


@served
async def test_a_bug_in_a_handler_ends_one_connection(running: Running) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(server_module, "SERVED", {60: SERVED[60]._replace(answer=broken), 3: SERVED[3]})
        async with await running.connect() as first, await running.connect() as second:
            first.send(framed(broker_schema.DescribeClusterRequest(False, 1), 1))
            assert await first.is_ended()
            second.send(framed(broker_schema.MetadataRequest(None, False, False, False), 12))
            assert await second.frame()


@served
async def test_dropped_connections_end_and_new_ones_are_accepted(running: Running) -> None:
    connection = await Connection.open(running.address, client_id="me")
    running.server.drop_connections()
    with pytest.raises(Disconnected):
        await connection.call(messages.metadata(["t"]))
    await connection.close()
    async with await Connection.open(running.address, client_id="me") as another:
        assert await another.call(messages.metadata(["t"]))


class Bugs(logging.Handler):
    """Collects the errors in the log: each is a bug."""

    def __init__(self, records: list[logging.LogRecord]) -> None:
        super().__init__(logging.ERROR)
        self._records = records

    def emit(self, record: logging.LogRecord) -> None:
        self._records.append(record)


def _samples(running: Running) -> list[bytes]:
    """A valid frame of each API, in its oldest and its newest version."""
    topic_id = running.cluster.topics["t"].topic_id
    data = (broker_schema.PartitionProduceData(0, produced([b"v" * 50])),)
    listed = (broker_schema.ListOffsetsTopic("t", (broker_schema.ListOffsetsPartition(0, -1, 5),)),)
    ends = (broker_schema.OffsetForLeaderTopic("t", (broker_schema.OffsetForLeaderPartition(0, 0, 0),)),)
    altered = (broker_schema.AlterConfigsResource(2, "t", (broker_schema.AlterableConfig("retention.ms", 0, "5"),)),)
    created = (
        broker_schema.CreatableTopic("new", 1, 1, (), (broker_schema.CreatableTopicConfig("retention.ms", "5"),)),
    )
    requests = [
        broker_schema.ProduceRequest(None, 1, 10, (broker_schema.TopicProduceData("t", topic_id, data),)),
        broker_schema.ListOffsetsRequest(-1, 0, listed, 10),
        broker_schema.MetadataRequest((broker_schema.MetadataRequestTopic(None, "t"),), True, False, False),
        broker_schema.FindCoordinatorRequest("g", 0, ("g",)),
        broker_schema.ApiVersionsRequest("name", "1"),
        broker_schema.CreateTopicsRequest(created, 10, False),
        broker_schema.DeleteTopicsRequest((broker_schema.DeleteTopicState("x", None),), ("x",), 10),
        broker_schema.DeleteRecordsRequest(
            (broker_schema.DeleteRecordsTopic("t", (broker_schema.DeleteRecordsPartition(0, 0),)),), 10
        ),
        broker_schema.InitProducerIdRequest(None, 10, -1, -1),
        broker_schema.OffsetForLeaderEpochRequest(-1, ends),
        broker_schema.DescribeConfigsRequest((broker_schema.DescribeConfigsResource(2, "t", None),), True, True),
        broker_schema.CreatePartitionsRequest((broker_schema.CreatePartitionsTopic("t", 3, None),), 10, True),
        broker_schema.IncrementalAlterConfigsRequest(altered, False),
        broker_schema.DescribeClusterRequest(False, 1),
        *_group_samples(),
    ]
    layouts = {layout.request: layout for layout in (*LAYOUTS.values(), *GROUP_LAYOUTS.values())}
    frames = [framed(one, v) for one in requests for v in (layouts[type(one)].first, layouts[type(one)].last)]
    return [*frames, running.fetch(wait_ms=1)]


def _group_samples() -> list[Any]:
    commit = group_schema.OffsetCommitRequestPartition(0, 5, -1, "text")
    deletion = schema.OffsetDeleteRequestTopic("t", (schema.OffsetDeleteRequestPartition(0),))
    protocol = schema.JoinGroupRequestProtocol("range", b"\0\0\0\0\0\1\0\1t\xff\xff\xff\xff")
    return [
        group_schema.JoinGroupRequest("g", 6_000, 6_000, "", "seat", "consumer", (protocol,), None),
        group_schema.SyncGroupRequest("g", 1, "m", None, "consumer", "range", ()),
        group_schema.HeartbeatRequest("g", 1, "m", None),
        group_schema.LeaveGroupRequest("g", "m", (group_schema.LeavingMember("m", None, None),)),
        group_schema.OffsetCommitRequest(
            "g", -1, "", None, -1, (group_schema.OffsetCommitRequestTopic("t", (commit,)),)
        ),
        group_schema.OffsetFetchRequest("g", None, (group_schema.OffsetFetchRequestGroup("g", None, -1, None),), False),
        group_schema.DescribeGroupsRequest(("g",), False),
        group_schema.ListGroupsRequest((), ()),
        schema.DeleteGroupsRequest(("g",)),
        schema.OffsetDeleteRequest("g", (deletion,)),
    ]


def mutated(frame: bytes, rng: random.Random) -> bytes:
    """Some bytes changed, left out or put in."""
    content = bytearray(frame)
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        at = rng.randrange(len(content))
        match rng.randrange(4):
            case 0:
                content[at] = rng.choice((0x00, 0x01, 0x7F, 0x80, 0xFF, rng.randrange(256)))
            case 1:
                del content[at : at + rng.randint(1, 9)]
            case 2:
                content[at:at] = rng.randbytes(rng.randint(1, 9))
            case _:
                content[at : at + 4] = struct.pack(">i", rng.choice((-1, 0, 2**31 - 1, -(2**31), rng.randrange(2**31))))
        content = content or bytearray(b"\0")
    return bytes(content)


@pytest.mark.parametrize("seed", [random.SystemRandom().randrange(2**32) for _ in range(ROUNDS)], ids=range(ROUNDS))
def test_mutated_frames_never_crash_the_broker(seed: int) -> None:
    """Each gets an answer, or the end of its connection. An acknowledged record is still there after all of them."""
    seed = int(os.environ.get("KGROUP_SEED", seed))

    @served
    async def scenario(running: Running) -> None:
        running.cluster.create_topic("kept", [[1]])
        kept = produced([b"kept"])
        assert produce(running.cluster, "kept", kept)[0].error_code == 0
        answers = await _answers_to_mutated(running, seed)
        print(f"seed {seed}: {FRAMES} frames, {answers} answered, {len(running.cluster.topics)} topics")
        assert 0 < answers < FRAMES
        assert fetched(running.cluster, "kept").records == kept
        async with await Connection.open(running.address, client_id="me") as connection:
            assert await connection.call(messages.metadata(["kept"]))

    scenario()


async def _answers_to_mutated(running: Running, seed: int) -> int:
    """How many of a round's frames were answered. Fails if one of them is a bug, or hangs."""
    rng, samples = random.Random(seed), _samples(running)
    records: list[logging.LogRecord] = []
    handler = Bugs(records)
    server_module.log.addHandler(handler)

    async def is_answered(frame: bytes) -> bool:
        async with await running.connect() as raw:
            raw.send(frame)
            raw.writer.write_eof()
            async with asyncio.timeout(60):
                return not await raw.is_ended()

    answers = 0
    try:
        for _ in range(0, FRAMES, AT_ONCE):
            frames = [mutated(rng.choice(samples), rng) for _ in range(AT_ONCE)]
            answers += sum(await asyncio.gather(*map(is_answered, frames)))
            assert not records, f"seed {seed}, one of {frames}: {records[0].exc_info}"
    finally:
        server_module.log.removeHandler(handler)
    return answers


# --------------------------------------------------------------------------------------------------------- clocks


@on_a_loop
async def test_a_virtual_clock_stands_still_until_it_is_turned() -> None:
    clock, rung = VirtualClock(1000), []
    clock.alarm(1500, lambda: rung.append("late"))
    clock.alarm(1200, lambda: rung.append("early"))
    cancelled = clock.alarm(1300, lambda: rung.append("cancelled"))
    clock.alarm(900, lambda: rung.append("due"))
    cancelled.cancel()
    clock.advance(400)
    await asyncio.sleep(0)
    assert (clock.now_ms(), rung) == (1400, ["due", "early"])
    clock.advance(100)
    await asyncio.sleep(0)
    assert rung == ["due", "early", "late"]
    with pytest.raises(ValueError, match="does not go back"):
        clock.advance(-1)


@on_a_loop
async def test_the_real_clock_is_the_time_of_day_and_rings() -> None:
    clock, rung = RealClock(), []
    assert abs(clock.now_ms() - time.time() * 1000) < 5_000
    clock.alarm(clock.now_ms() + 5, lambda: rung.append(clock.now_ms()))
    clock.alarm(0, lambda: rung.append(0)).cancel()
    await until(lambda: rung)
    assert rung[0]


@served
async def test_append_time_is_the_clocks(running: Running) -> None:
    running.cluster.create_topic("l", [[1]], {"message.timestamp.type": "LogAppendTime"})
    async with await running.connect() as raw:
        data = (broker_schema.PartitionProduceData(0, produced()),)
        topics = (broker_schema.TopicProduceData("l", None, data),)
        raw.send(framed(broker_schema.ProduceRequest(None, 1, 1000, topics), 9))
        said = answered(await raw.frame(), broker_schema.ProduceResponse, 9)
        assert said.responses[0].partition_responses[0].log_append_time_ms == NOW_MS
    assert TopicPartition("l", 0) not in running.cluster.changed
