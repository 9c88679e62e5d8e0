"""Brokers that speak real bytes, as one cluster with one coordinator, and a cluster client in front of them."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from random import Random
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import kio.schema.consumer_group_describe.v0.response as consumer_group_v0
import kio.schema.consumer_group_describe.v1.request as consumer_group_v1_request
import kio.schema.consumer_group_describe.v1.response as consumer_group_v1
import pytest
from kio.schema.describe_configs.v4.response import DescribeConfigsResourceResult, DescribeConfigsResult
from kio.schema.describe_groups.v5.response import DescribedGroup as KioDescribedGroup
from kio.schema.describe_groups.v5.response import DescribedGroupMember
from kio.schema.errors import ErrorCode as KioErrorCode
from kio.schema.find_coordinator.v4.response import Coordinator
from kio.schema.list_groups.v5.response import ListedGroup
from kio.schema.list_offsets.v7.response import ListOffsetsPartitionResponse, ListOffsetsTopicResponse
from kio.schema.metadata.v12.response import MetadataResponseBroker, MetadataResponsePartition, MetadataResponseTopic
from kio.schema.offset_commit.v8.response import OffsetCommitResponsePartition, OffsetCommitResponseTopic
from kio.schema.offset_fetch.v8.response import (
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopics,
)
from kio.schema.types import BrokerId, GroupId, TopicName
from kio.static.primitive import i8, i32, i64

from harness import kio_messages
from harness.fake_broker import HUNG_UP, NO_THROTTLE, RANGES, FakeBroker, on_a_loop, until
from harness.kio_messages import error_code
from spark_kgroup.errors import ConnectionFailed, RequestTimedOut, WireError
from spark_kgroup.limits import STARTUP_TIMEOUT_MS
from spark_kgroup.model import ErrorCode, MemberIdentity, TopicPartition
from spark_kgroup.wire import brokers, messages
from spark_kgroup.wire.address import Address
from spark_kgroup.wire.cluster import Cluster
from spark_kgroup.wire.consumer_protocol import encode_assignment

Ranges = Mapping[int, tuple[int, int]]
A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)
TOPIC_ID = UUID(int=7)
WHO = MemberIdentity(instance_id="seat-0", member_id="m", generation=3)


@dataclass
class BrokerWorld:
    """Some brokers and the state that they share unless they are cut off. A test changes it as it goes.

    Attributes:
        leaders: partition -> node id.
        epochs: partition -> its leader's epoch, -1 for a partition with none here.
        ends: partition -> end offset. A partition with none here is answered UNKNOWN_TOPIC_OR_PARTITION.
        texts: partition -> the text beside its committed offset, "" for a partition with none here.
        unstable: partitions whose committed offset is in a transaction that is not ended.
        session_timeout: the group's own, under the consumer protocol.
        group_type: of the only group. DescribeGroups calls the group "Dead" unless it is classic.
        described: member id -> (instance id, subscription, assignment), as DescribeGroups has them.
        first: API name -> answers to give before the true ones: an error code for the whole response, `HUNG_UP`, or
            None for silence on this connection for ever.
        hosts: node id -> its host as the cluster says it, or the true one if the node is not here.
        cluster_id: None if brokers do not say.
        words: the message beside an error code, in answers that have a field for it.
        state: of the group. "Stable" is "Reconciling" under the consumer protocol.
        cut_off: node id -> the outdated state of a broker that is cut off (`cut_off_from_now_on`).
    """

    brokers: list[FakeBroker] = field(default_factory=list)
    leaders: dict[TopicPartition, int] = field(default_factory=lambda: {A0: 0, A1: 0})
    epochs: dict[TopicPartition, int] = field(default_factory=dict)
    ends: dict[TopicPartition, int] = field(default_factory=lambda: {A0: 10, A1: 11, B0: 12})
    coordinator: int = 0
    committed: dict[TopicPartition, int] = field(default_factory=dict)
    texts: dict[TopicPartition, str] = field(default_factory=dict)
    unstable: set[TopicPartition] = field(default_factory=set)
    first: dict[str, list[Any]] = field(default_factory=dict)
    topic_id: UUID = TOPIC_ID
    hosts: dict[int, str] = field(default_factory=dict)
    group_type: str = "classic"
    described: Mapping[str, tuple[str | None, bytes, Sequence[TopicPartition]]] = field(
        default_factory=lambda: {"m": ("seat-0", b"", [A0, B0])}
    )
    protocol: str = "range"
    session_timeout: str = "50000"
    cluster_id: str | None = None
    words: str = "why"
    state: str = "Stable"
    cut_off: dict[int, "BrokerWorld"] = field(default_factory=dict)

    async def start(self, nodes: int = 1, ranges: Ranges = RANGES) -> None:
        for node in range(nodes):
            broker = FakeBroker(partial(self.answer, node), ranges=dict(ranges))
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

    def cut_off_from_now_on(self, node: int) -> None:
        """From now on this broker answers as the world is at this moment, even when the world changes."""
        self.cut_off[node] = replace(
            self,
            leaders=dict(self.leaders),
            epochs=dict(self.epochs),
            ends=dict(self.ends),
            committed=dict(self.committed),
        )

    def answer(self, node: int, request: Any) -> Any:
        name = type(request).__name__.removesuffix("Request")
        error = 0
        if self.first.get(name):
            error = self.first[name].pop(0)
            if error is None:
                return asyncio.Event().wait()
            if error is HUNG_UP:
                return HUNG_UP
        return getattr(self.cut_off.get(node, self), f"on_{name}")(node, request, error_code(error))

    def on_Metadata(self, _: int, request: Any, error: KioErrorCode) -> Any:
        brokers = tuple(
            MetadataResponseBroker(
                node_id=BrokerId(n), host=self.hosts.get(n, b.address.host), port=i32(b.address.port)
            )
            for n, b in enumerate(self.brokers)
        )
        names = (
            sorted({tp.topic for tp in self.leaders}) if request.topics is None else [t.name for t in request.topics]
        )
        topics = tuple(self.topic(name, error) for name in names)
        return kio_messages.MetadataResponse(
            throttle_time=NO_THROTTLE, brokers=brokers, topics=topics, cluster_id=self.cluster_id
        )

    def topic(self, name: str, error: KioErrorCode) -> MetadataResponseTopic:
        partitions = tuple(
            MetadataResponsePartition(
                error_code=KioErrorCode.none if leader >= 0 else KioErrorCode.leader_not_available,
                partition_index=i32(tp.partition),
                leader_id=BrokerId(leader),
                leader_epoch=i32(self.epochs.get(tp, -1)),
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
            elif asked.current_leader_epoch > (epoch := self.epochs.get(tp, asked.current_leader_epoch)):
                code = KioErrorCode.unknown_leader_epoch
            elif asked.current_leader_epoch not in (-1, epoch):
                code = KioErrorCode.fenced_leader_epoch
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
        return kio_messages.ListOffsetsResponse(throttle_time=NO_THROTTLE, topics=topics)

    def on_FindCoordinator(self, _: int, request: Any, error: KioErrorCode) -> Any:
        address = self.brokers[self.coordinator].address
        found = Coordinator(
            key=request.coordinator_keys[0],
            node_id=BrokerId(-1 if error else self.coordinator),
            host="" if error else self.hosts.get(self.coordinator, address.host),
            port=i32(-1 if error else address.port),
            error_code=error,
            error_message=self.words if error else None,
        )
        return kio_messages.FindCoordinatorResponse(throttle_time=NO_THROTTLE, coordinators=(found,))

    def group_error(self, node: int, error: KioErrorCode) -> KioErrorCode:
        return error or (KioErrorCode.none if node == self.coordinator else KioErrorCode.not_coordinator)

    def on_OffsetCommit(self, node: int, request: Any, error: KioErrorCode) -> Any:
        error = self.group_error(node, error)
        if not error:
            commits = {TopicPartition(t.name, p.partition_index): p for t in request.topics for p in t.partitions}
            self.committed |= {tp: p.committed_offset for tp, p in commits.items()}
            self.texts |= {tp: p.committed_metadata or "" for tp, p in commits.items()}
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
        return kio_messages.OffsetCommitResponse(throttle_time=NO_THROTTLE, topics=topics)

    def on_DescribeConfigs(self, _: int, request: Any, error: KioErrorCode) -> Any:
        (asked,) = request.resources
        config = DescribeConfigsResourceResult(
            name=asked.configuration_keys[0],
            value=self.session_timeout,
            read_only=False,
            is_sensitive=False,
            synonyms=(),
            documentation=None,
        )
        result = DescribeConfigsResult(
            error_code=error,
            error_message=self.words if error else None,
            resource_type=asked.resource_type,
            resource_name=asked.resource_name,
            configs=() if error else (config,),
        )
        return kio_messages.DescribeConfigsResponse(throttle_time=NO_THROTTLE, results=(result,))

    def on_OffsetFetch(self, node: int, request: Any, error: KioErrorCode) -> Any:
        (asked,) = request.groups
        no_error = KioErrorCode.none
        of_each = int(error) == ErrorCode.UNSTABLE_OFFSET_COMMIT
        unstable = KioErrorCode.unstable_offset_commit
        partitions: dict[str, list[int]] = {}
        if asked.topics is None:  # all committed offsets
            for tp in sorted(self.committed):
                partitions.setdefault(tp.topic, []).append(tp.partition)
        else:
            partitions = {t.name: list(t.partition_indexes) for t in asked.topics}
        topics = tuple(
            OffsetFetchResponseTopics(
                name=TopicName(name),
                partitions=tuple(
                    OffsetFetchResponsePartitions(
                        partition_index=i32(i),
                        committed_offset=i64(self.committed.get(TopicPartition(name, i), -1)),
                        metadata=self.texts.get(TopicPartition(name, i), ""),
                        error_code=unstable if of_each or TopicPartition(name, i) in self.unstable else no_error,
                    )
                    for i in indexes
                ),
            )
            for name, indexes in partitions.items()
        )
        whole = no_error if of_each else self.group_error(node, error)
        group = OffsetFetchResponseGroup(group_id=asked.group_id, topics=topics, error_code=whole)
        return kio_messages.OffsetFetchResponse(throttle_time=NO_THROTTLE, groups=(group,))

    def on_DescribeGroups(self, node: int, request: Any, error: KioErrorCode) -> Any:
        error = self.group_error(node, error)
        members = tuple(
            DescribedGroupMember(
                member_id=member_id,
                group_instance_id=instance_id,
                client_id="client",
                client_host="/127.0.0.1",
                member_metadata=subscription,
                member_assignment=encode_assignment(assignment),
            )
            for member_id, (instance_id, subscription, assignment) in self.described.items()
        )
        there = not error and self.group_type == "classic"
        group = KioDescribedGroup(
            error_code=error,
            group_id=GroupId(request.groups[0]),
            group_state=self.state if there else "" if error else "Dead",
            protocol_type="consumer" if there else "",
            protocol_data=self.protocol if there else "",
            members=members if there else (),
        )
        return kio_messages.DescribeGroupsResponse(throttle_time=NO_THROTTLE, groups=(group,))

    def on_ConsumerGroupDescribe(self, node: int, request: Any, error: KioErrorCode) -> Any:
        """A classic seat that has `A0` and must leave `A1` to a member of the consumer protocol."""
        v1 = isinstance(request, consumer_group_v1_request.ConsumerGroupDescribeRequest)
        kinds: Any = consumer_group_v1 if v1 else consumer_group_v0

        def assigned(*partitions: int) -> Any:
            tps = kinds.TopicPartitions(topic_id=TOPIC_ID, topic_name=TopicName("a"), partitions=tuple(partitions))
            return kinds.Assignment(topic_partitions=(tps,) if partitions else ())

        def member(name: str, instance: str | None, has: Any, shall_have: Any, kind: int) -> Any:
            return kinds.Member(
                member_id=name,
                instance_id=instance,
                member_epoch=i32(4 + kind),
                client_id="client",
                client_host="/127.0.0.1",
                subscribed_topic_names=(TopicName("a"),),
                assignment=has,
                target_assignment=shall_have,
                **({"member_type": i8(kind)} if v1 else {}),
            )

        error = self.group_error(node, error)
        if not error and self.group_type != "consumer":
            error = KioErrorCode.group_id_not_found
        group = kinds.DescribedGroup(
            error_code=error,
            error_message=self.words if error else None,
            group_id=request.group_ids[0],
            group_state="" if error else (self.state if self.state != "Stable" else "Reconciling"),
            group_epoch=i32(5),
            assignment_epoch=i32(5),
            assignor_name="" if error else "uniform",
            members=()
            if error
            else (
                member("m", "seat-0", assigned(0), assigned(0), 0),
                member("n", None, assigned(), assigned(1), 1),
            ),
        )
        response = kinds.ConsumerGroupDescribeResponse
        return response(throttle_time=NO_THROTTLE, groups=(group,))

    def on_ListGroups(self, _: int, __: Any, error: KioErrorCode) -> Any:
        listed = ListedGroup(
            group_id=GroupId("g"), protocol_type="", group_state="Stable", group_type=self.group_type.capitalize()
        )
        other = replace(listed, group_id=GroupId("other"), group_type="Classic")
        return kio_messages.ListGroupsResponse(throttle_time=NO_THROTTLE, error_code=error, groups=(other, listed))


async def connect_where_advertised(
    connecting: Callable[[Address], Coroutine[Any, Any, object]],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Have a client connect to a broker that advertises a host without an address (Docker, NAT, DNS).

    Asserts that `connecting`, called with the broker's true address, ends in an error that names both addresses. The
    clock of the retries is turned when the first attempt has failed, however long that took.
    """
    caplog.set_level(logging.WARNING)
    ahead_s = 0.0
    monkeypatch.setattr(brokers, "time", SimpleNamespace(monotonic=lambda: time.monotonic() + ahead_s))
    world = BrokerWorld()
    await world.start()
    at = world.brokers[0].address
    world.hosts[0] = "kafka.internal.invalid"
    trying = asyncio.create_task(connecting(at))
    try:
        await until(lambda: "Trying again" in caplog.text)
        ahead_s = STARTUP_TIMEOUT_MS / 1000
        with pytest.raises(ConnectionFailed) as problem:
            await trying
    finally:
        trying.cancel()
        await world.stop()
    for named in (str(at), str(Address("kafka.internal.invalid", at.port)), "advertised.listeners"):
        assert named in str(problem.value)


@contextmanager
def logged() -> Iterator[list[str]]:
    """The warnings of the cluster client."""
    warnings: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: warnings.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("spark_kgroup.wire.brokers")
    logger.addHandler(handler)
    try:
        yield warnings
    finally:
        logger.removeHandler(handler)


@contextmanager
def ends_with(kind: type[WireError], match: str = "") -> Iterator[pytest.ExceptionInfo[WireError]]:
    """Within it a look-up must end with an error of `kind`, whose message has `match` (a regular expression).

    A look-up whose last attempt is under way when its time is up says that, and names the error before it.
    """
    with pytest.raises(WireError, match=match) as problem:
        yield problem
    error = problem.value
    assert isinstance(error, kind) or (isinstance(error, RequestTimedOut) and "Before that: " in str(error)), error


def talk_garbage(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"\xff" * 100)
    writer.close()


Scenario = Callable[[BrokerWorld], Awaitable[None]]


def in_a_world(nodes: int = 1, ranges: Ranges = RANGES) -> Callable[[Scenario], Callable[[], None]]:
    """Run a scenario with `nodes` brokers."""

    def wrap(scenario: Scenario) -> Callable[[], None]:
        async def run() -> None:
            world = BrokerWorld()
            await world.start(nodes, ranges)
            try:
                await scenario(world)
            finally:
                await world.stop()

        run.__name__, run.__doc__ = scenario.__name__, scenario.__doc__
        return on_a_loop(run)

    return wrap
