"""The wire against a real Apache Kafka: every message, both ends of a partition, brokers that come and go."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from typing import Any, TypeVar
from uuid import uuid4

import pytest
from confluent_kafka import Producer
from harness.fake_broker import on_a_loop, until
from harness.kafka import produce
from harness.offsets import offsets_alone

from spark_kgroup.errors import BrokerError, ConnectionFailed, Disconnected, RequestTimedOut, UnknownTopic, WireError
from spark_kgroup.model import ErrorCode, MemberIdentity, Subscription, TopicIdPartition, TopicPartition
from spark_kgroup.testing import ApacheKafka
from spark_kgroup.wire import messages, schema
from spark_kgroup.wire.address import parse_bootstrap
from spark_kgroup.wire.cluster import Cluster
from spark_kgroup.wire.connection import Connection
from spark_kgroup.wire.consumer_protocol import (
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from spark_kgroup.wire.responses import group_error_codes

pytestmark = pytest.mark.filterwarnings("error::ResourceWarning")


T = TypeVar("T")


def unique(what: str) -> str:
    return f"{what}-{uuid4().hex[:8]}"


def client_of(kafka: ApacheKafka) -> Cluster:
    return Cluster(parse_bootstrap(kafka.bootstrap_servers), client_id="wire-test")


async def ask(connection: Connection, request: schema.Request, timeout_ms: int = 15_000) -> schema.Response:
    return await connection.call(request, timeout_ms=timeout_ms)


async def join(
    connection: Connection, group: str, who: MemberIdentity, subscription: Subscription
) -> schema.JoinGroupResponse:
    request = messages.join_group(
        group,
        who,
        [("range", encode_subscription(subscription))],
        session_timeout_ms=10_000,
        rebalance_timeout_ms=10_000,
        reason="a test",
    )

    async def attempt() -> schema.JoinGroupResponse:
        response = await ask(connection, request)
        assert isinstance(response, schema.JoinGroupResponse)
        refuse_if_not_ready([int(response.error_code)])
        return response

    return await patiently(attempt)


def refuse_if_not_ready(codes: Iterable[int]) -> None:
    """A coordinator that has just been found may not have loaded its groups yet, or not know that it is one."""
    for code in codes:
        if code in (ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS):
            raise BrokerError("the coordinator", code)


async def patiently(attempt: Callable[[], Awaitable[T]]) -> T:
    """Try until it works, as a session does: a new cluster has no coordinators yet, a moving one none for a while."""
    for _ in range(150):
        with suppress(ConnectionFailed, RequestTimedOut, BrokerError):
            return await attempt()
        await asyncio.sleep(0.1)
    return await attempt()


async def commit(
    cluster: Cluster, group: str, who: MemberIdentity, positions: dict[TopicPartition, int]
) -> dict[TopicPartition, int]:
    async def attempt() -> dict[TopicPartition, int]:
        response = await cluster.coordinators.call(group, messages.offset_commit(group, who, positions))
        assert isinstance(response, schema.OffsetCommitResponse)
        errors = messages.offset_commit_errors(response)
        refuse_if_not_ready(errors.values())
        return errors

    return await patiently(attempt)


# ------------------------------------------------------------------------------------------------ metadata, offsets


@on_a_loop
async def test_metadata_has_topics_and_names_those_that_do_not_exist(apache_kafka: ApacheKafka) -> None:
    topic, missing = unique("metadata"), unique("missing")
    apache_kafka.create_topic(topic, partitions=3)
    cluster = client_of(apache_kafka)
    found = await cluster.metadata([topic, missing])
    assert [str(address) for address in found.brokers.values()] == [apache_kafka.bootstrap_servers]
    assert found.topics.keys() == {topic}
    assert found.topics[topic].partition_count == 3
    assert found.topics[topic].topic_id is not None
    assert found.errors == {missing: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    assert found.leaders.keys() == set(found.topics[topic].partitions)
    assert found.topics[topic].leader_epochs == dict.fromkeys(range(3), 0)
    apache_kafka.add_partitions(topic, 5)
    again = await cluster.metadata([topic, missing])
    assert again.topics[topic].partition_count == 5
    assert again.topics[topic].topic_id == found.topics[topic].topic_id
    assert again.errors == found.errors, "asking has not created it"
    assert topic in (await cluster.metadata(None)).topics
    await cluster.close()


@on_a_loop
async def test_both_ends_of_every_partition_are_listed(apache_kafka: ApacheKafka) -> None:
    topic = unique("ends")
    apache_kafka.create_topic(topic, partitions=3)
    produce(apache_kafka.bootstrap_servers, topic, 7, partitions=2)
    partitions = [TopicPartition(topic, index) for index in range(3)]
    cluster = client_of(apache_kafka)
    starts = await cluster.logs.list_offsets(dict.fromkeys(partitions, messages.EARLIEST))
    ends = await cluster.logs.list_offsets(dict.fromkeys(partitions, messages.LATEST))
    assert [starts[tp].offset for tp in partitions] == [0, 0, 0]
    assert [ends[tp].offset for tp in partitions] == [4, 3, 0]
    with pytest.raises(UnknownTopic, match=f"{topic}-3"):
        await cluster.logs.list_offsets({TopicPartition(topic, 3): messages.LATEST}, timeout_ms=3_000)
    await cluster.close()


@on_a_loop
async def test_a_read_committed_end_stops_before_an_open_transaction(apache_kafka: ApacheKafka) -> None:
    topic = unique("transaction")
    apache_kafka.create_topic(topic, partitions=1)
    produce(apache_kafka.bootstrap_servers, topic, 2, partitions=1)
    producer = Producer({"bootstrap.servers": apache_kafka.bootstrap_servers, "transactional.id": unique("tx")})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(topic, b"open")
    producer.flush(120)
    cluster = client_of(apache_kafka)
    wanted = {TopicPartition(topic, 0): messages.LATEST}
    committed, uncommitted = [await cluster.logs.list_offsets(wanted, isolation_level=level) for level in (1, 0)]
    assert [listed.offset for listed in (*committed.values(), *uncommitted.values())] == [2, 3]
    producer.commit_transaction(30)
    for _ in range(100):  # the coordinator writes the marker after it has answered
        (after,) = (await cluster.logs.list_offsets(wanted, isolation_level=1)).values()
        if after.offset == 4:  # the record and the marker
            break
        await asyncio.sleep(0.05)
    else:
        raise AssertionError(after)
    await cluster.close()


# ------------------------------------------------------------------------------------------------------- the group


@on_a_loop
async def test_a_static_member_lives_through_every_message_of_its_group(apache_kafka: ApacheKafka) -> None:
    topic, group = unique("life"), unique("group")
    apache_kafka.create_topic(topic, partitions=2)
    mine = frozenset({TopicPartition(topic, 0), TopicPartition(topic, 1)})
    subscription = Subscription(topics=(topic,), owned=frozenset({TopicPartition(topic, 1)}), generation=3, rack="r")
    cluster = client_of(apache_kafka)
    assert (await cluster.groups.describe(group)).state == "Dead"

    async with await patiently(lambda: cluster.coordinators.open(group)) as connection:
        joined = await join(connection, group, MemberIdentity(instance_id="seat-0"), subscription)
        assert joined.error_code == 0
        assert joined.leader == joined.member_id
        assert not joined.skip_assignment
        (member,) = joined.members
        assert member.group_instance_id == "seat-0"
        assert decode_subscription(member.metadata) == subscription
        who = MemberIdentity(instance_id="seat-0", member_id=joined.member_id, generation=joined.generation_id)

        synced = await ask(
            connection, messages.sync_group(group, who, "range", [(who.member_id, encode_assignment(mine))])
        )
        assert isinstance(synced, schema.SyncGroupResponse)
        assert synced.error_code == 0
        assert decode_assignment(synced.assignment) == mine
        beaten = await ask(connection, messages.heartbeat(group, who))
        assert isinstance(beaten, schema.HeartbeatResponse)
        assert beaten.error_code == 0

        positions = {TopicPartition(topic, 0): 41, TopicPartition(topic, 1): 42}
        errors = await commit(cluster, group, who, positions)
        assert errors == dict.fromkeys(positions, 0)
        absent = TopicPartition(topic, 9)
        assert offsets_alone(await cluster.groups.committed_offsets(group, [*positions, absent])) == {
            **positions,
            absent: None,
        }

        described = await cluster.groups.describe(group)
        assert (described.state, described.protocol) == ("Stable", "range")
        (seen,) = described.members
        assert (seen.member_id, seen.instance_id, seen.client_id) == (who.member_id, "seat-0", "wire-test")
        assert seen.assignment == mine

        # Back without a member id: same generation, a new id, and the leader is told to skip (KIP-814).
        again = await join(connection, group, MemberIdentity(instance_id="seat-0"), subscription)
        assert again.generation_id == who.generation
        assert again.member_id != who.member_id
        assert again.skip_assignment
        fenced = await ask(connection, messages.heartbeat(group, who))
        assert isinstance(fenced, schema.HeartbeatResponse)
        assert int(fenced.error_code) == ErrorCode.FENCED_INSTANCE_ID

        who = MemberIdentity(instance_id="seat-0", member_id=again.member_id, generation=again.generation_id)
        left = await ask(connection, messages.leave_group(group, [who], "a test"))
        assert isinstance(left, schema.LeaveGroupResponse)
        assert (left.error_code, [m.error_code for m in left.members]) == (0, [0])
    described = await cluster.groups.describe(group)
    assert (described.state, described.members) == ("Empty", ())
    await cluster.close()


@on_a_loop
async def test_a_dynamic_member_is_given_an_id_first(apache_kafka: ApacheKafka) -> None:
    """KIP-394."""
    group = unique("group")
    cluster = client_of(apache_kafka)
    async with await patiently(lambda: cluster.coordinators.open(group)) as connection:
        joined = await join(connection, group, MemberIdentity(instance_id=None), Subscription(topics=("t",)))
        assert int(joined.error_code) == ErrorCode.MEMBER_ID_REQUIRED
        who = MemberIdentity(instance_id=None, member_id=joined.member_id)
        joined = await join(connection, group, who, Subscription(topics=("t",)))
        assert joined.error_code == 0
        await ask(connection, messages.leave_group(group, [who], "a test"))
    await cluster.close()


@on_a_loop
async def test_a_commit_under_an_unknown_member_id_is_refused_with_that_error(apache_kafka: ApacheKafka) -> None:
    topic, group = unique("no-member"), unique("group")
    apache_kafka.create_topic(topic, partitions=1)
    cluster = client_of(apache_kafka)
    nonmember = MemberIdentity(instance_id=None, member_id="nobody", generation=5)
    tp = TopicPartition(topic, 0)
    errors = await commit(cluster, group, nonmember, {tp: 1})
    assert errors[tp] in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION)
    assert await cluster.groups.committed_offsets(group, [tp]) == {tp: None}
    await cluster.close()


NEWEST, OLDEST = 0, 1


@pytest.mark.since_kafka_4
@pytest.mark.parametrize("version", [NEWEST, OLDEST], ids=["ConsumerGroupHeartbeat v1", "v0"])
def test_a_member_under_the_consumer_protocol_lives_through_every_message(
    apache_kafka: ApacheKafka, version: int
) -> None:
    """KIP-848. The member id is the client's own (KIP-1082)."""

    @on_a_loop
    async def scenario() -> None:
        topic, group = unique("life"), unique("group")
        apache_kafka.create_topic(topic, partitions=2)
        cluster = client_of(apache_kafka)
        topic_id = (await cluster.metadata([topic])).topics[topic].topic_id
        assert topic_id is not None
        all_of_it = [TopicIdPartition(topic_id, 0), TopicIdPartition(topic_id, 1)]
        seat = MemberIdentity(instance_id="seat-0", member_id="mQx5jEYlRZ2_pIhCYsVBFw")

        async def beat(epoch: int, owned: Iterable[TopicIdPartition] | None = None) -> schema.Response:
            full: dict[str, Any] = {"topics": [topic], "assignor": "range", "rebalance_timeout_ms": 60_000, "rack": "r"}
            requests = messages.consumer_group_heartbeat(
                group, replace(seat, generation=epoch), owned=owned, **(full if owned is not None else {})
            )
            response = await cluster.coordinators.call(group, requests[version])
            refuse_if_not_ready(group_error_codes(response))
            return response

        async def assigned(epoch: int) -> tuple[int, list[TopicIdPartition]]:
            """The member's epoch when it has partitions: at first a group gives none."""
            response: Any = await beat(epoch, owned=[])
            found = [
                TopicIdPartition(t.topic_id, p) for t in response.assignment.topic_partitions for p in t.partitions
            ]
            if not found:
                raise BrokerError("no assignment yet", ErrorCode.COORDINATOR_NOT_AVAILABLE)
            return response.member_epoch, found

        assert await cluster.groups.config(group, "consumer.session.timeout.ms") == "45000"
        joined: Any = await patiently(lambda: beat(0, owned=[]))
        assert (joined.error_code, joined.member_id) == (0, seat.member_id)
        assert joined.heartbeat_interval_ms == 1000
        epoch, found = await patiently(lambda: assigned(joined.member_epoch))
        assert sorted(found) == all_of_it
        acknowledged: Any = await beat(epoch, owned=found)
        assert (acknowledged.error_code, acknowledged.member_epoch) == (0, epoch)
        unchanged: Any = await beat(epoch)
        assert unchanged.assignment is None, "the broker says nothing where nothing is new (KIP-893)"

        async def commit_as(generation: int) -> set[int]:
            who, positions = replace(seat, generation=generation), {TopicPartition(topic, 1): 42}
            request = messages.offset_commit(group, who, positions, consumer_protocol=True)
            response = await cluster.coordinators.call(group, request)
            assert isinstance(response, schema.OffsetCommitResponse)
            return set(messages.offset_commit_errors(response).values())

        assert await commit_as(epoch) == {0}
        assert await commit_as(epoch + 1) == {ErrorCode.STALE_MEMBER_EPOCH}
        assert offsets_alone(await cluster.groups.committed_offsets(group, [TopicPartition(topic, 1)])) == {
            TopicPartition(topic, 1): 42
        }

        assert group_error_codes(await beat(epoch + 1)) == {ErrorCode.FENCED_MEMBER_EPOCH}
        newcomer = replace(seat, member_id="6u1bXKlRR2mXQfT0XyHp4w", generation=0)
        taken = messages.consumer_group_heartbeat(group, newcomer, topics=[topic], owned=[], rebalance_timeout_ms=1)
        refused = await cluster.coordinators.call(group, taken[version])
        assert group_error_codes(refused) == {ErrorCode.UNRELEASED_INSTANCE_ID}
        assert group_error_codes(await beat(-1)) == {0}
        assert (await cluster.groups.describe(group)).members == ()
        await cluster.close()

    scenario()


# ------------------------------------------------------------------------------------- brokers that come and go


def test_calls_to_a_node_that_dies_hangs_or_comes_back_end_in_time(
    apache_kafka_factory: Callable[..., ApacheKafka],
) -> None:
    kafka = apache_kafka_factory()
    topic, group = unique("restart"), unique("group")
    kafka.create_topic(topic, partitions=1)
    tp = TopicPartition(topic, 0)

    @on_a_loop
    async def scenario() -> None:
        cluster = client_of(kafka)
        first = await patiently(lambda: cluster.coordinators.open(group))
        second = await patiently(lambda: cluster.coordinators.open(group))
        joined = await join(first, group, MemberIdentity(instance_id="seat-0"), Subscription(topics=(topic,)))
        who = MemberIdentity(instance_id="seat-0", member_id=joined.member_id, generation=joined.generation_id)
        await ask(first, messages.sync_group(group, who, "range", [(who.member_id, encode_assignment([tp]))]))
        await commit(cluster, group, who, {tp: 17})

        # 1. A second member's join is parked until the first one joins anew: kill the broker under it.
        parked = asyncio.create_task(
            join(second, group, MemberIdentity(instance_id="seat-1"), Subscription(topics=(topic,)))
        )
        await until_rebalancing(first, group, who)
        kafka.nodes[0].kill()
        with pytest.raises(Disconnected):
            await parked
        await until(lambda: first.closed)
        with pytest.raises(WireError, match=r"No broker could be reached\. Check the bootstrap servers"):
            await cluster.metadata([topic], timeout_ms=1_000)

        # 2. It comes back: the same client finds it, and the committed offset is there.
        waiting = asyncio.create_task(cluster.groups.committed_offsets(group, [tp]))
        await asyncio.to_thread(kafka.nodes[0].restart)
        assert {tp: found.offset for tp, found in (await waiting).items() if found} == {tp: 17}

        # 3. It hangs: no call waits for longer than it was given.
        kafka.nodes[0].pause()
        try:
            with pytest.raises(RequestTimedOut, match="within 300 ms"):
                await cluster.metadata([topic], timeout_ms=300)
            with pytest.raises(WireError):
                await cluster.coordinators.call(group, messages.describe_groups(group), timeout_ms=300)
        finally:
            kafka.nodes[0].resume()
        assert topic in (await cluster.metadata([topic])).topics
        for connection in (first, second):
            await connection.close()
        await cluster.close()

    scenario()


async def until_rebalancing(connection: Connection, group: str, who: MemberIdentity) -> None:
    for _ in range(200):
        beat = await ask(connection, messages.heartbeat(group, who))
        assert isinstance(beat, schema.HeartbeatResponse)
        if int(beat.error_code) == ErrorCode.REBALANCE_IN_PROGRESS:
            return
        await asyncio.sleep(0.02)
    raise AssertionError("no rebalance began")


@pytest.mark.xdist_group("together-reads_from_three_nodes")
def test_leaders_and_coordinators_that_move_are_found(three_nodes: ApacheKafka) -> None:
    kafka = three_nodes
    topic, group = unique("moves"), unique("group")
    kafka.create_topic(topic, partitions=3, replication_factor=3)
    produce(kafka.bootstrap_servers, topic, 6, partitions=3)
    partitions = [TopicPartition(topic, index) for index in range(3)]
    nobody = MemberIdentity(instance_id=None)

    @on_a_loop
    async def scenario() -> None:
        cluster = client_of(kafka)
        wanted = dict.fromkeys(partitions, messages.LATEST)
        before = await cluster.metadata([topic])
        assert len(before.brokers) == 3
        # An empty group takes commits from outside (as an administrator's tool makes them).
        errors = await commit(cluster, group, nobody, {partitions[0]: 2})
        assert errors == {partitions[0]: 0}
        connection = await patiently(lambda: cluster.coordinators.open(group))
        coordinator = next(i for i, node in enumerate(kafka.nodes) if node.port == connection.address.port)
        assert {listed.offset for listed in (await cluster.logs.list_offsets(wanted)).values()} == {2}

        kafka.nodes[coordinator].kill()
        await until(lambda: connection.closed)
        assert {listed.offset for listed in (await cluster.logs.list_offsets(wanted)).values()} == {2}
        assert offsets_alone(await cluster.groups.committed_offsets(group, [partitions[0]])) == {partitions[0]: 2}
        moved = await patiently(lambda: cluster.coordinators.open(group))
        assert moved.address != connection.address
        after = await cluster.metadata([topic])
        assert connection.address not in {after.brokers[node] for node in after.leaders.values()}
        for each in (connection, moved):
            await each.close()
        await cluster.close()

    scenario()
