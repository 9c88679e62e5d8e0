"""The cluster client against brokers that speak real bytes: look-ups, retries, bounds."""

import asyncio
import logging
import socket
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from random import Random
from typing import Any
from uuid import UUID

import pytest
from harness.fake_broker import HUNG_UP, NO_THROTTLE, RANGES, FakeBroker, on_a_loop, until
from kio.schema.describe_groups.v5.response import DescribedGroup as KioDescribedGroup
from kio.schema.describe_groups.v5.response import DescribedGroupMember
from kio.schema.errors import ErrorCode as KioErrorCode
from kio.schema.find_coordinator.v4.response import Coordinator
from kio.schema.list_offsets.v7.response import ListOffsetsPartitionResponse, ListOffsetsTopicResponse
from kio.schema.metadata.v12.response import MetadataResponseBroker, MetadataResponsePartition, MetadataResponseTopic
from kio.schema.offset_commit.v8.response import OffsetCommitResponsePartition, OffsetCommitResponseTopic
from kio.schema.offset_fetch.v8.response import (
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopics,
)
from kio.schema.types import BrokerId, GroupId, TopicName
from kio.static.primitive import i32, i64

from spark_kgroup.errors import (
    BrokerError,
    ConnectionFailed,
    Disconnected,
    ProtocolViolation,
    RequestTimedOut,
    UnknownTopic,
    UnsupportedApi,
)
from spark_kgroup.limits import CONNECT_TIMEOUT_MS, NEXT_BROKER_AFTER_MS, REQUEST_TIMEOUT_MS, STARTUP_TIMEOUT_MS
from spark_kgroup.model import ErrorCode, MemberIdentity, TopicPartition
from spark_kgroup.wire import cluster as cluster_module
from spark_kgroup.wire import messages
from spark_kgroup.wire.cluster import Cluster, ListedOffset
from spark_kgroup.wire.connection import Address
from spark_kgroup.wire.consumer_protocol import encode_assignment

pytestmark = pytest.mark.filterwarnings("error::ResourceWarning")

Ranges = Mapping[int, tuple[int, int]]
A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)
TOPIC_ID = UUID(int=7)
WHO = MemberIdentity(instance_id="seat-0", member_id="m", generation=3)


@dataclass
class World:
    """Some brokers, and what all of them believe; a test changes it as it goes.

    Attributes:
        leaders: partition -> node id.
        ends: partition -> end offset; a partition with none here is answered UNKNOWN_TOPIC_OR_PARTITION.
        first: API name -> answers to give before the true ones: an error code for the whole response, `HUNG_UP`, or
            None for silence on this connection for ever.
    """

    brokers: list[FakeBroker] = field(default_factory=list)
    leaders: dict[TopicPartition, int] = field(default_factory=lambda: {A0: 0, A1: 0})
    ends: dict[TopicPartition, int] = field(default_factory=lambda: {A0: 10, A1: 11, B0: 12})
    coordinator: int = 0
    committed: dict[TopicPartition, int] = field(default_factory=dict)
    first: dict[str, list[Any]] = field(default_factory=dict)
    topic_id: UUID = TOPIC_ID

    async def start(self, nodes: int = 1, ranges: Ranges = RANGES) -> None:
        for node in range(nodes):
            broker = FakeBroker(lambda request, node=node: self.answer(node, request), ranges=dict(ranges))
            await broker.start()
            self.brokers.append(broker)

    async def stop(self) -> None:
        for broker in self.brokers:
            await broker.stop()

    def cluster(self, **settings: Any) -> Cluster:
        bootstrap = settings.pop("bootstrap", [self.brokers[0].address])
        return Cluster(bootstrap, client_id="test", rng=Random(1), **settings)

    def asked(self, kind: type, node: int | None = None) -> int:
        """How many requests of this kind arrived (at one broker)."""
        of = self.brokers if node is None else [self.brokers[node]]
        return sum(isinstance(request, kind) for broker in of for request in broker.requests)

    def answer(self, node: int, request: Any) -> Any:
        name = type(request).__name__.removesuffix("Request")
        error = 0
        if self.first.get(name):
            error = self.first[name].pop(0)
            if error is None:
                return asyncio.Event().wait()
            if error is HUNG_UP:
                return HUNG_UP
        return getattr(self, f"on_{name}")(node, request, KioErrorCode(error))

    def on_Metadata(self, _: int, request: Any, error: KioErrorCode) -> Any:
        brokers = tuple(
            MetadataResponseBroker(node_id=BrokerId(n), host=b.address.host, port=i32(b.address.port))
            for n, b in enumerate(self.brokers)
        )
        names = (
            sorted({tp.topic for tp in self.leaders}) if request.topics is None else [t.name for t in request.topics]
        )
        topics = tuple(self.topic(name, error) for name in names)
        return messages.MetadataResponse(throttle_time=NO_THROTTLE, brokers=brokers, topics=topics)

    def topic(self, name: str, error: KioErrorCode) -> MetadataResponseTopic:
        partitions = tuple(
            MetadataResponsePartition(
                error_code=KioErrorCode.none if leader >= 0 else KioErrorCode.leader_not_available,
                partition_index=i32(tp.partition),
                leader_id=BrokerId(leader),
            )
            for tp, leader in sorted(self.leaders.items())
            if tp.topic == name
        )
        if error == 0 and not partitions:
            error = KioErrorCode.unknown_topic_or_partition
        topic_id = self.topic_id if partitions else None
        return MetadataResponseTopic(
            error_code=error, name=TopicName(name), topic_id=topic_id, partitions=() if error else partitions
        )

    def on_ListOffsets(self, node: int, request: Any, error: KioErrorCode) -> Any:
        def one(topic: str, asked: Any) -> ListOffsetsPartitionResponse:
            tp, code = TopicPartition(topic, asked.partition_index), error
            if tp not in self.ends:
                code = KioErrorCode.unknown_topic_or_partition
            elif self.leaders.get(tp) != node:
                code = KioErrorCode.not_leader_or_follower
            offset = (
                -1 if code else 0 if asked.timestamp == messages.EARLIEST else self.ends[tp] - request.isolation_level
            )
            return ListOffsetsPartitionResponse(
                partition_index=asked.partition_index, error_code=code, offset=i64(offset), leader_epoch=i32(4)
            )

        topics = tuple(
            ListOffsetsTopicResponse(name=t.name, partitions=tuple(one(t.name, p) for p in t.partitions))
            for t in request.topics
        )
        return messages.ListOffsetsResponse(throttle_time=NO_THROTTLE, topics=topics)

    def on_FindCoordinator(self, _: int, request: Any, error: KioErrorCode) -> Any:
        address = self.brokers[self.coordinator].address
        found = Coordinator(
            key=request.coordinator_keys[0],
            node_id=BrokerId(-1 if error else self.coordinator),
            host="" if error else address.host,
            port=i32(-1 if error else address.port),
            error_code=error,
            error_message="why" if error else None,
        )
        return messages.FindCoordinatorResponse(throttle_time=NO_THROTTLE, coordinators=(found,))

    def group_error(self, node: int, error: KioErrorCode) -> KioErrorCode:
        return error or (KioErrorCode.none if node == self.coordinator else KioErrorCode.not_coordinator)

    def on_OffsetCommit(self, node: int, request: Any, error: KioErrorCode) -> Any:
        error = self.group_error(node, error)
        if not error:
            self.committed |= {
                TopicPartition(t.name, p.partition_index): p.committed_offset
                for t in request.topics
                for p in t.partitions
            }
        topics = tuple(
            OffsetCommitResponseTopic(
                name=t.name,
                partitions=tuple(
                    OffsetCommitResponsePartition(partition_index=p.partition_index, error_code=error)
                    for p in t.partitions
                ),
            )
            for t in request.topics
        )
        return messages.OffsetCommitResponse(throttle_time=NO_THROTTLE, topics=topics)

    def on_OffsetFetch(self, node: int, request: Any, error: KioErrorCode) -> Any:
        (asked,) = request.groups
        topics = tuple(
            OffsetFetchResponseTopics(
                name=t.name,
                partitions=tuple(
                    OffsetFetchResponsePartitions(
                        partition_index=i,
                        committed_offset=i64(self.committed.get(TopicPartition(t.name, i), -1)),
                        metadata="",
                        error_code=error if error == ErrorCode.UNSTABLE_OFFSET_COMMIT else KioErrorCode.none,
                    )
                    for i in t.partition_indexes
                ),
            )
            for t in asked.topics
        )
        whole = KioErrorCode.none if error == ErrorCode.UNSTABLE_OFFSET_COMMIT else self.group_error(node, error)
        group = OffsetFetchResponseGroup(group_id=asked.group_id, topics=topics, error_code=whole)
        return messages.OffsetFetchResponse(throttle_time=NO_THROTTLE, groups=(group,))

    def on_DescribeGroups(self, node: int, request: Any, error: KioErrorCode) -> Any:
        error = self.group_error(node, error)
        member = DescribedGroupMember(
            member_id="m",
            group_instance_id="seat-0",
            client_id="client",
            client_host="/127.0.0.1",
            member_metadata=b"",
            member_assignment=encode_assignment([A0, B0]),
        )
        group = KioDescribedGroup(
            error_code=error,
            group_id=GroupId(request.groups[0]),
            group_state="" if error else "Stable",
            protocol_type="" if error else "consumer",
            protocol_data="" if error else "range",
            members=() if error else (member,),
        )
        return messages.DescribeGroupsResponse(throttle_time=NO_THROTTLE, groups=(group,))


@contextmanager
def logged() -> Iterator[list[str]]:
    """The warnings of the cluster client."""
    told: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: told.append(record.getMessage())
    logger = logging.getLogger("spark_kgroup.wire.cluster")
    logger.addHandler(handler)
    try:
        yield told
    finally:
        logger.removeHandler(handler)


def talk_garbage(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"\xff" * 100)
    writer.close()


Scenario = Callable[[World], Awaitable[None]]


def in_a_world(nodes: int = 1, ranges: Ranges = RANGES) -> Callable[[Scenario], Callable[[], None]]:
    """Run a scenario with `nodes` brokers."""

    def wrap(scenario: Scenario) -> Callable[[], None]:
        async def run() -> None:
            world = World()
            await world.start(nodes, ranges)
            try:
                await scenario(world)
            finally:
                await world.stop()

        run.__name__, run.__doc__ = scenario.__name__, scenario.__doc__
        return on_a_loop(run)

    return wrap


# ------------------------------------------------------------------------------------------------------- metadata


@in_a_world(nodes=2)
async def test_metadata_tells_brokers_topics_leaders_and_errors(world: World) -> None:
    world.leaders = {A0: 0, A1: 1, B0: -1}
    cluster = world.cluster()
    found = await cluster.metadata(["a", "b", "c"])
    assert found.brokers == {0: world.brokers[0].address, 1: world.brokers[1].address}
    assert {name: (t.topic_id, t.partition_count) for name, t in found.topics.items()} == {
        "a": (TOPIC_ID, 2),
        "b": (TOPIC_ID, 1),
    }
    assert found.errors == {"c": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    assert found.leaders == {A0: 0, A1: 1}
    assert sorted((await cluster.metadata(None)).topics) == ["a", "b"]
    assert (await cluster.metadata([])).topics == {}
    await cluster.close()


@in_a_world()
async def test_metadata_waits_for_a_topic_that_is_being_created(world: World) -> None:
    world.first["Metadata"] = [ErrorCode.LEADER_NOT_AVAILABLE]
    cluster = world.cluster()
    assert sorted((await cluster.metadata(["a"])).topics) == ["a"]
    assert world.asked(messages.MetadataRequest) == 2
    await cluster.close()


@in_a_world()
async def test_metadata_that_lost_partitions_is_not_believed(world: World) -> None:
    """A broker that has not heard of new partitions yet must not make a leader rebalance back and forth."""
    cluster = world.cluster()
    assert (await cluster.metadata(["a"])).topics["a"].partition_count == 2
    del world.leaders[A1]
    with pytest.raises(BrokerError, match="knows less than another did: a"):
        await cluster.metadata(["a"], timeout_ms=300)
    asking = asyncio.create_task(cluster.metadata(["a"]))
    before = world.asked(messages.MetadataRequest)
    await until(lambda: world.asked(messages.MetadataRequest) > before)
    world.leaders[A1] = 0
    assert (await asking).topics["a"].partition_count == 2
    await cluster.close()


@in_a_world()
async def test_a_topic_id_that_was_replaced_is_not_believed(world: World) -> None:
    """A broker that has not heard of a recreated topic yet must not make it look deleted and created once more."""
    cluster = world.cluster()
    assert (await cluster.metadata(["a"])).topics["a"].topic_id == TOPIC_ID
    world.topic_id = UUID(int=8)
    assert (await cluster.metadata(["a"])).topics["a"].topic_id == UUID(int=8)
    world.topic_id = TOPIC_ID
    with pytest.raises(BrokerError, match="knows less than another did: a"):
        await cluster.metadata(["a"], timeout_ms=300)
    await cluster.close()


def test_a_partition_that_is_denied_for_long_is_unknown_before_the_time_is_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_module, "TOPIC_GONE_AFTER_MS", 100)

    @in_a_world()
    async def scenario(world: World) -> None:
        cluster = world.cluster()
        with pytest.raises(UnknownTopic, match="nowhere"):
            await cluster.list_offsets({TopicPartition("nowhere", 0): messages.LATEST}, timeout_ms=60_000)
        await cluster.close()

    scenario()


@in_a_world(nodes=2)
async def test_bootstrap_addresses_are_tried_in_turn(world: World) -> None:
    gone = world.brokers[0].address
    await world.brokers[0].stop()
    cluster = world.cluster(bootstrap=[gone, world.brokers[1].address])
    assert "a" in (await cluster.metadata(["a"])).topics
    assert world.brokers[1].connections == 1
    await cluster.metadata(["a"])
    assert world.brokers[1].connections == 1, "who answered once is asked first, on the same connection"
    await cluster.close()
    await world.brokers[0].start()


@in_a_world()
async def test_silent_bootstrap_hosts_do_not_use_up_the_time_for_the_start(world: World) -> None:
    with ExitStack() as silent:
        hosts = [silent.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(3)]  # nobody accepts
        dead = [Address("127.0.0.1", host.getsockname()[1]) for host in hosts]
        cluster = world.cluster(bootstrap=[*dead, world.brokers[0].address])
        began = time.monotonic()
        assert "a" in (await cluster.metadata(["a"], timeout_ms=STARTUP_TIMEOUT_MS)).topics
        assert 3 * NEXT_BROKER_AFTER_MS / 1000 <= time.monotonic() - began < CONNECT_TIMEOUT_MS / 1000
        await cluster.close()


@in_a_world(nodes=2)
async def test_a_known_broker_that_falls_silent_holds_up_no_look_up(world: World) -> None:
    cluster = world.cluster()
    await cluster.metadata(["a"])
    world.first["Metadata"] = [None]  # the request on the open connection is never answered
    began = time.monotonic()
    await cluster.metadata(["a"])
    assert world.asked(messages.MetadataRequest, node=1) == 1
    assert time.monotonic() - began < REQUEST_TIMEOUT_MS / 1000 / 2
    await cluster.close()


@in_a_world()
async def test_garbage_where_a_broker_stood_is_waited_out(world: World) -> None:
    cluster = world.cluster()
    await cluster.metadata(["a"])
    port = world.brokers[0].address.port
    await world.brokers[0].stop()
    garbage = await asyncio.start_server(talk_garbage, "127.0.0.1", port)
    with logged() as told:
        asking = asyncio.create_task(cluster.metadata(["a"]))
        await until(lambda: told)
        assert "TLS or HTTP port" in told[0]
        garbage.close()
        await garbage.wait_closed()
        await world.brokers[0].start()
        assert "a" in (await asking).topics
        assert len(told) == 1, "one warning, however often it is tried again"
    await cluster.close()


@in_a_world()
async def test_garbage_at_a_first_contact_is_an_error_at_once(world: World) -> None:
    garbage = await asyncio.start_server(talk_garbage, "127.0.0.1", 0)
    cluster = world.cluster(bootstrap=[Address(*garbage.sockets[0].getsockname())])
    with pytest.raises(ProtocolViolation, match="TLS or HTTP port"):
        await cluster.metadata(["a"])
    garbage.close()
    await garbage.wait_closed()
    await cluster.close()


@in_a_world()
async def test_every_look_up_has_the_clusters_own_bound(world: World) -> None:
    cluster = world.cluster(api_timeout_ms=200)
    await world.brokers[0].stop()
    look_ups = (
        cluster.metadata(["a"]),
        cluster.list_offsets({A0: messages.LATEST}),
        cluster.committed_offsets("g", [A0]),
        cluster.describe_group("g"),
    )
    for asking in look_ups:
        async with asyncio.timeout(5):
            with pytest.raises((ConnectionFailed, RequestTimedOut)):
                await asking
    await cluster.close()
    await world.brokers[0].start()


@in_a_world(nodes=2)
async def test_brokers_that_metadata_told_of_are_asked_when_the_bootstrap_list_is_gone(world: World) -> None:
    cluster = world.cluster()
    await cluster.metadata(["a"])
    await world.brokers[0].stop()
    assert "a" in (await cluster.metadata(["a"])).topics
    assert world.brokers[1].connections == 1
    await cluster.close()
    await world.brokers[0].start()


@in_a_world()
async def test_no_broker_at_all_is_one_error_that_names_every_address(world: World) -> None:
    async with FakeBroker() as other:
        second = other.address
    first = world.brokers[0].address
    await world.brokers[0].stop()
    cluster = world.cluster(bootstrap=[first, second])
    with pytest.raises(ConnectionFailed) as failure:
        await cluster.metadata(["a"], timeout_ms=250)
    told = str(failure.value)
    assert "kafka.bootstrap.servers" in told
    assert str(first) in told
    assert str(second) in told
    assert told.count("refused") == 2 or told.count("Connect call failed") == 2
    await cluster.close()
    await world.brokers[0].start()


@in_a_world()
async def test_a_broker_that_comes_back_is_found_again(world: World) -> None:
    cluster = world.cluster()
    await cluster.metadata(["a"])
    await world.brokers[0].stop()
    with logged() as told:
        asking = asyncio.create_task(cluster.metadata(["a"]))
        await until(lambda: told)
        await world.brokers[0].start()
        assert "a" in (await asking).topics
    await cluster.close()


@in_a_world()
async def test_the_first_failure_is_told_while_it_is_tried_again(world: World) -> None:
    world.first["Metadata"] = [HUNG_UP, HUNG_UP]
    cluster = world.cluster()
    with logged() as told:
        await cluster.metadata(["a"])
    await cluster.close()
    assert len(told) == 1
    assert "closed the connection at the first request" in told[0]
    assert told[0].endswith("Trying again.")


@in_a_world()
async def test_a_broker_that_says_nothing_is_given_up_in_time(world: World) -> None:
    world.first["Metadata"] = [None] * 99
    cluster = world.cluster()
    with pytest.raises(RequestTimedOut, match="did not answer within 200 ms"):
        await cluster.metadata(["a"], timeout_ms=200)
    await cluster.close()


@in_a_world()
async def test_a_silent_connection_is_replaced_although_its_caller_gave_up_earlier(world: World) -> None:
    """Else every later call would wait on it in vain, each giving up before the request timeout can tell."""
    world.first["Metadata"] = [None]
    cluster = world.cluster(request_timeout_ms=250)
    with pytest.raises(RequestTimedOut):
        await cluster.metadata(["a"], timeout_ms=100)
    assert "a" in (await cluster.metadata(["a"])).topics
    assert world.brokers[0].connections == 2
    await cluster.close()


@in_a_world()
async def test_what_failed_before_the_time_was_up_is_told(world: World) -> None:
    world.first["Metadata"] = [HUNG_UP, None]
    cluster = world.cluster()
    with pytest.raises(RequestTimedOut, match=r"within 400 ms\. Before that: No broker could be reached"):
        await cluster.metadata(["a"], timeout_ms=400)
    await cluster.close()


@in_a_world(nodes=2, ranges={**RANGES, 3: (0, 9)})
async def test_brokers_that_are_too_old_are_not_asked_again(world: World) -> None:
    cluster = world.cluster(bootstrap=[broker.address for broker in world.brokers])
    with pytest.raises(UnsupportedApi, match="Metadata v12 is needed"):
        await cluster.metadata(["a"])
    await cluster.close()


@in_a_world()
async def test_callers_share_one_connection_and_one_attempt_to_open_it(world: World) -> None:
    cluster = world.cluster()
    await asyncio.gather(*(cluster.metadata(["a"]) for _ in range(20)))
    assert world.brokers[0].connections == 1
    await cluster.close()


@in_a_world()
async def test_a_cancelled_caller_does_not_take_the_connection_of_the_others(world: World) -> None:
    cluster = world.cluster()
    with logged() as told:
        first, second = (asyncio.create_task(cluster.metadata(["a"])) for _ in range(2))
        await until(lambda: world.brokers[0].connections)
        first.cancel()
        await asyncio.wait([first])
        assert "a" in (await second).topics
    assert not told
    assert world.brokers[0].connections == 1
    await cluster.close()


@in_a_world()
async def test_closing_ends_every_call(world: World) -> None:
    world.first["Metadata"] = [None]
    cluster = world.cluster()
    waiting = asyncio.create_task(cluster.metadata(["a"], timeout_ms=300))
    await until(lambda: world.asked(messages.MetadataRequest))
    opening = asyncio.create_task(world.cluster(bootstrap=[Address("127.0.0.1", 1)]).metadata(["a"], timeout_ms=100))
    await cluster.close()
    await cluster.close()
    for call in (waiting, opening):
        with pytest.raises((Disconnected, ConnectionFailed)):
            await call


@in_a_world()
async def test_closing_does_not_wait_for_a_connection_that_is_being_opened(world: World) -> None:
    world.brokers[0].api_versions = lambda _: asyncio.Event().wait()
    cluster = world.cluster()
    opening = asyncio.create_task(cluster.coordinator_call("g", messages.describe_groups("g")))
    await until(lambda: world.brokers[0].connections)
    async with asyncio.timeout(2):
        await cluster.close()
    with pytest.raises((Disconnected, ConnectionFailed)):
        await opening


# -------------------------------------------------------------------------------------------------------- offsets


@in_a_world(nodes=2)
async def test_offsets_come_from_each_partitions_leader(world: World) -> None:
    world.leaders = {A0: 0, A1: 1, B0: 1}
    cluster = world.cluster()
    ends = await cluster.list_offsets(dict.fromkeys([A0, A1, B0], messages.LATEST))
    assert ends == {tp: ListedOffset(offset=world.ends[tp], leader_epoch=4) for tp in (A0, A1, B0)}
    mixed = await cluster.list_offsets({A0: messages.EARLIEST, B0: messages.LATEST}, isolation_level=1)
    assert {tp: found.offset for tp, found in mixed.items()} == {A0: 0, B0: 11}
    assert [world.asked(messages.ListOffsetsRequest, node) for node in (0, 1)] == [2, 2]
    assert world.asked(messages.MetadataRequest) == 1, "leaders are remembered"
    await cluster.close()


@in_a_world()
async def test_no_partitions_need_no_broker(world: World) -> None:
    cluster = world.cluster()
    assert await cluster.list_offsets({}) == {}
    assert world.brokers[0].connections == 0
    await cluster.close()


@in_a_world(nodes=2)
async def test_a_moved_leader_is_looked_up_again(world: World) -> None:
    cluster = world.cluster()
    await cluster.list_offsets({A0: messages.LATEST, A1: messages.LATEST})
    world.leaders[A1] = 1
    found = await cluster.list_offsets({A0: messages.LATEST, A1: messages.LATEST})
    assert found.keys() == {A0, A1}
    assert world.asked(messages.MetadataRequest) == 2
    last = [r for r in world.brokers[1].requests if isinstance(r, messages.ListOffsetsRequest)]
    assert [[p.partition_index for p in t.partitions] for r in last for t in r.topics] == [[1]], "only what was missing"
    await cluster.close()


@in_a_world(nodes=2)
async def test_the_other_leaders_answers_are_kept_when_one_is_gone(world: World) -> None:
    world.leaders = {A0: 0, A1: 1}
    cluster = world.cluster()
    await cluster.metadata(["a"])
    await world.brokers[1].stop()
    asking = asyncio.create_task(cluster.list_offsets({A0: messages.LATEST, A1: messages.LATEST}))
    await until(lambda: world.asked(messages.MetadataRequest) > 1)
    world.leaders[A1] = 0
    assert (await asking).keys() == {A0, A1}
    asked = [
        [p.partition_index for t in r.topics for p in t.partitions]
        for r in world.brokers[0].requests
        if isinstance(r, messages.ListOffsetsRequest)
    ]
    assert asked == [[0], [1]]
    await cluster.close()
    await world.brokers[1].start()


@in_a_world()
async def test_a_partition_without_a_leader_is_waited_for(world: World) -> None:
    world.leaders[A0] = -1
    cluster = world.cluster()
    asking = asyncio.create_task(cluster.list_offsets({A0: messages.LATEST}))
    await until(lambda: world.asked(messages.MetadataRequest) > 1)
    world.leaders[A0] = 0
    assert (await asking)[A0].offset == 10
    await cluster.close()


@in_a_world()
async def test_a_partition_without_a_leader_is_not_waited_for_forever(world: World) -> None:
    world.leaders[A0] = -1
    cluster = world.cluster()
    with pytest.raises(BrokerError, match="LEADER_NOT_AVAILABLE: a-0") as failure:
        await cluster.list_offsets({A0: messages.LATEST}, timeout_ms=250)
    assert failure.value.retriable
    await cluster.close()


@pytest.mark.parametrize("missing", [TopicPartition("nowhere", 0), TopicPartition("a", 9), TopicPartition("gone", 0)])
def test_a_partition_that_does_not_exist_is_unknown_when_the_time_is_up(missing: TopicPartition) -> None:
    @in_a_world()
    async def scenario(world: World) -> None:
        world.leaders[TopicPartition("gone", 0)] = 0  # in the metadata, but its leader denies it
        cluster = world.cluster()
        with pytest.raises(UnknownTopic, match=missing.topic):
            await cluster.list_offsets({A0: messages.LATEST, missing: messages.LATEST}, timeout_ms=250)
        assert world.asked(messages.MetadataRequest) > 1, "it was looked for again"
        await cluster.close()

    scenario()


@in_a_world()
async def test_a_topic_that_was_created_just_now_is_found(world: World) -> None:
    new = TopicPartition("new", 0)
    cluster = world.cluster()
    asking = asyncio.create_task(cluster.list_offsets({new: messages.LATEST}))
    await until(lambda: world.asked(messages.MetadataRequest))
    world.leaders[new], world.ends[new] = 0, 5
    assert (await asking)[new].offset == 5
    await cluster.close()


@in_a_world()
async def test_an_error_that_no_retry_mends_is_raised_at_once(world: World) -> None:
    world.first["ListOffsets"] = [ErrorCode.TOPIC_AUTHORIZATION_FAILED]
    cluster = world.cluster()
    with pytest.raises(BrokerError, match="ListOffsets failed with TOPIC_AUTHORIZATION_FAILED: a-0"):
        await cluster.list_offsets({A0: messages.LATEST})
    assert world.asked(messages.ListOffsetsRequest) == 1
    await cluster.close()


@in_a_world(nodes=2)
async def test_an_error_that_no_retry_mends_counts_more_than_one_that_might_pass(world: World) -> None:
    world.leaders = {A0: 0, A1: 1}
    cluster = world.cluster()
    await cluster.metadata(["a"])
    world.leaders[A0] = 1  # a stale leader for one, no permission for the other
    world.brokers[1].answer = lambda request: world.on_ListOffsets(1, request, KioErrorCode(29))
    with pytest.raises(BrokerError, match="TOPIC_AUTHORIZATION_FAILED: a-1"):
        await cluster.list_offsets({A0: messages.LATEST, A1: messages.LATEST})
    assert world.asked(messages.ListOffsetsRequest) == 2
    await cluster.close()


@in_a_world()
async def test_an_offset_that_the_leader_forgot_to_tell_is_an_error(world: World) -> None:
    world.on_ListOffsets = lambda *_: messages.ListOffsetsResponse(throttle_time=NO_THROTTLE, topics=())
    cluster = world.cluster()
    with pytest.raises(ProtocolViolation, match="says nothing of a-0"):
        await cluster.list_offsets({A0: messages.LATEST})
    await cluster.close()


# ---------------------------------------------------------------------------------------------------- coordinator


@in_a_world(nodes=2)
async def test_each_session_gets_a_coordinator_connection_of_its_own(world: World) -> None:
    world.coordinator = 1
    cluster = world.cluster()
    one = await cluster.open_coordinator("g")
    other = await cluster.open_coordinator("g")
    assert {one.address, other.address} == {world.brokers[1].address}
    assert one is not other
    assert world.asked(messages.FindCoordinatorRequest, 0) == 2, "each time anew: who asks has lost the old one"
    await cluster.close()
    assert not one.closed, "it is the session's"
    await one.close()
    await other.close()


@pytest.mark.parametrize("code", [ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.GROUP_AUTHORIZATION_FAILED])
def test_a_coordinator_that_cannot_be_found_is_told_to_the_caller(code: ErrorCode) -> None:
    @in_a_world()
    async def scenario(world: World) -> None:
        world.first["FindCoordinator"] = [code]
        cluster = world.cluster()
        with pytest.raises(BrokerError, match=f"FindCoordinator failed with {code.name}: why") as failure:
            await cluster.open_coordinator("g")
        assert failure.value.retriable == (code == ErrorCode.COORDINATOR_NOT_AVAILABLE)
        connection = await cluster.open_coordinator("g")
        await connection.close()
        await cluster.close()

    scenario()


@in_a_world()
async def test_opening_a_coordinator_has_a_bound(world: World) -> None:
    world.first["FindCoordinator"] = [None]
    cluster = world.cluster()
    with pytest.raises(RequestTimedOut, match="within 100 ms"):
        await cluster.open_coordinator("g", timeout_ms=100)
    await cluster.close()


@in_a_world(nodes=2)
async def test_a_coordinator_call_is_made_once_and_the_coordinator_looked_up_again_after_it_moved(world: World) -> None:
    cluster = world.cluster()
    commit = messages.offset_commit("g", WHO, {A0: 5})
    for moved_to, expected in [(0, 0), (1, ErrorCode.NOT_COORDINATOR), (1, 0)]:
        world.coordinator = moved_to
        response = await cluster.coordinator_call("g", commit)
        assert isinstance(response, messages.OffsetCommitResponse)
        assert messages.offset_commit_errors(response) == {A0: expected}
    assert world.committed == {A0: 5}
    assert [world.asked(messages.OffsetCommitRequest, node) for node in (0, 1)] == [2, 1]
    assert world.asked(messages.FindCoordinatorRequest) == 2
    await cluster.close()


@in_a_world(nodes=2)
async def test_a_coordinator_that_died_is_looked_up_again(world: World) -> None:
    world.coordinator = 1
    cluster = world.cluster()
    commit = messages.offset_commit("g", WHO, {A0: 5})
    await cluster.coordinator_call("g", commit)
    await world.brokers[1].stop()
    world.coordinator = 0
    with pytest.raises((Disconnected, ConnectionFailed)):
        await cluster.coordinator_call("g", commit)
    await cluster.coordinator_call("g", commit)
    assert world.asked(messages.OffsetCommitRequest, 0) == 1
    await cluster.close()
    await world.brokers[1].start()


@in_a_world()
async def test_a_coordinator_call_has_a_bound(world: World) -> None:
    world.first["OffsetCommit"] = [None]
    cluster = world.cluster()
    with pytest.raises(RequestTimedOut, match="within 100 ms"):
        await cluster.coordinator_call("g", messages.offset_commit("g", WHO, {A0: 5}), timeout_ms=100)
    await cluster.close()


@pytest.mark.parametrize(
    "trouble",
    [
        [ErrorCode.COORDINATOR_LOAD_IN_PROGRESS],
        [ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE],
        [ErrorCode.UNSTABLE_OFFSET_COMMIT],
        [HUNG_UP],
    ],
    ids=["loading", "moving", "a transaction is pending", "disconnect"],
)
def test_committed_offsets_are_asked_for_until_they_are_known(trouble: list[Any]) -> None:
    @in_a_world()
    async def scenario(world: World) -> None:
        world.committed = {A0: 5}
        world.first["OffsetFetch"] = list(trouble)
        cluster = world.cluster()
        assert await cluster.committed_offsets("g", [A0, A1, A0]) == {A0: 5, A1: None}
        assert world.asked(messages.OffsetFetchRequest) == len(trouble) + 1
        await cluster.close()

    scenario()


@in_a_world()
async def test_a_committed_offset_that_the_coordinator_forgot_to_tell_is_not_none(world: World) -> None:
    """None would mean to start where `startingOffsets` says."""
    group = OffsetFetchResponseGroup(group_id=GroupId("g"), topics=())
    world.on_OffsetFetch = lambda *_: messages.OffsetFetchResponse(throttle_time=NO_THROTTLE, groups=(group,))
    cluster = world.cluster()
    with pytest.raises(ProtocolViolation, match="says nothing of a-0"):
        await cluster.committed_offsets("g", [A0])
    world.on_OffsetFetch = lambda *_: messages.OffsetFetchResponse(throttle_time=NO_THROTTLE, groups=())
    with pytest.raises(ProtocolViolation, match="about one group and answered about 0"):
        await cluster.committed_offsets("g", [A0])
    await cluster.close()


@in_a_world()
async def test_a_group_is_described_with_its_members_shares(world: World) -> None:
    world.first["DescribeGroups"] = [ErrorCode.COORDINATOR_NOT_AVAILABLE]
    cluster = world.cluster()
    group = await cluster.describe_group("g")
    assert (group.group, group.state, group.protocol) == ("g", "Stable", "range")
    (member,) = group.members
    assert (member.member_id, member.instance_id, member.client_host) == ("m", "seat-0", "/127.0.0.1")
    assert member.assignment == {A0, B0}
    await cluster.close()


@in_a_world()
async def test_a_group_that_does_not_exist_is_dead(world: World) -> None:
    world.first["DescribeGroups"] = [ErrorCode.GROUP_ID_NOT_FOUND]
    cluster = world.cluster()
    group = await cluster.describe_group("g")
    assert (group.state, group.members) == ("Dead", ())
    await cluster.close()


@in_a_world()
async def test_a_group_that_this_user_may_not_see_is_an_error(world: World) -> None:
    world.first["DescribeGroups"] = [ErrorCode.GROUP_AUTHORIZATION_FAILED]
    cluster = world.cluster()
    with pytest.raises(BrokerError, match="GROUP_AUTHORIZATION_FAILED"):
        await cluster.describe_group("g")
    await cluster.close()
