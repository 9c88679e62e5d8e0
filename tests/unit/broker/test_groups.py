"""Groups on the embedded broker: librdkafka, kafka-python and our own members join, commit and share partitions."""

import asyncio
from collections.abc import Mapping
from functools import partial
from types import MappingProxyType
from typing import Any

import kafka
import pytest
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from harness.broker_calls import cluster_of
from harness.fake_broker import on_a_loop
from harness.waiting import wait_for

from spark_kgroup import Assigned, Group, Revoked
from spark_kgroup import TopicPartition as EnginePartition
from spark_kgroup.broker import group_messages
from spark_kgroup.broker.served import SERVED
from spark_kgroup.coordinator import ANSWERED
from spark_kgroup.model import ErrorCode
from spark_kgroup.testing import EmbeddedBroker, VirtualClock
from spark_kgroup.wire import broker_group_schema as any_version
from spark_kgroup.wire import messages, schema
from spark_kgroup.wire.address import Address
from spark_kgroup.wire.broker_group_schema import GROUP_LAYOUTS
from spark_kgroup.wire.connection import Connection


def fill(broker: EmbeddedBroker, topic: str, *, partitions: int, each: int) -> None:
    broker.create_topic(topic, partitions=partitions)
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
    for index in range(partitions):
        for i in range(each):
            producer.produce(topic, b"%d" % i, partition=index)
    assert producer.flush(30) == 0


def member(broker: EmbeddedBroker, more: Mapping[str, Any] = MappingProxyType({})) -> Consumer:
    settings = {"auto.offset.reset": "earliest", "enable.auto.commit": False, "heartbeat.interval.ms": 200, **more}
    return Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": "g", **settings})


def read(consumer: Consumer, count: int) -> list[Any]:
    found: list[Any] = []
    wait_for(lambda: found.extend(consumer.consume(50, timeout=0.2)) or len(found) >= count, f"{count} records")
    assert not [one.error() for one in found if one.error() is not None]
    return found


@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
def test_librdkafka_consumes_as_a_group_and_goes_on_from_its_commits(strategy: str) -> None:
    with EmbeddedBroker() as broker:
        fill(broker, "t", partitions=4, each=10)
        first = member(broker, {"partition.assignment.strategy": strategy})
        first.subscribe(["t"])
        assert len(read(first, 40)) == 40
        second = member(broker, {"partition.assignment.strategy": strategy})
        second.subscribe(["t"])

        def shared() -> bool:
            for consumer in (first, second):
                consumer.poll(0.05)
            return (len(first.assignment()), len(second.assignment())) == (2, 2)

        wait_for(shared, "two partitions each")
        first.commit(offsets=[TopicPartition("t", index, 10) for index in range(4)], asynchronous=False)
        second.close()
        first.close()
        third = member(broker)
        third.subscribe(["t"])
        wait_for(lambda: third.poll(0.1) or len(third.assignment()) == 4, "all partitions")
        assert [one.offset for one in third.committed([TopicPartition("t", index) for index in range(4)], 30)] == [
            10
        ] * 4
        assert third.consume(10, timeout=0.3) == [], "all were read before"
        third.close()


def test_librdkafkas_admin_sees_the_group() -> None:
    with EmbeddedBroker() as broker:
        fill(broker, "t", partitions=2, each=5)
        consumer = member(broker, {"group.instance.id": "seat-1"})
        consumer.subscribe(["t"])
        read(consumer, 10)
        consumer.commit(asynchronous=False)
        admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
        assert [each.group_id for each in admin.list_consumer_groups().result(30).valid] == ["g"]
        described = admin.describe_consumer_groups(["g"])["g"].result(30)
        assert described.state.name == "STABLE"
        (only,) = described.members
        assert (only.group_instance_id, len(only.assignment.topic_partitions)) == ("seat-1", 2)
        consumer.close()
        offsets = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions("g")])["g"].result(30)
        assert sorted(one.offset for one in offsets.topic_partitions) == [5, 5]
        broker.delete_topic("t")
        gone = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions("g")])["g"].result(30)
        assert gone.topic_partitions == [], "a recreated topic does not find the offsets of the one before"


def test_a_session_of_five_minutes_ends_when_the_clock_is_turned() -> None:
    clock = VirtualClock()
    with EmbeddedBroker(clock=clock) as broker:
        fill(broker, "t", partitions=2, each=5)
        gone = member(broker, {"session.timeout.ms": 300_000, "group.instance.id": "gone"})
        gone.subscribe(["t"])
        read(gone, 10)
        gone.close()  # a static member does not leave
        heir = member(broker)
        heir.subscribe(["t"])

        def advanced() -> bool:
            clock.advance(60_000)
            heir.poll(0.1)
            return len(heir.assignment()) == 2

        wait_for(advanced, "the partitions of the member that is gone")
        heir.close()


def test_kafka_python_consumes_as_a_group() -> None:
    with EmbeddedBroker() as broker:
        fill(broker, "t", partitions=2, each=5)
        settings: dict[str, Any] = {"bootstrap_servers": broker.bootstrap_servers, "group_id": "g"}
        settings["auto_offset_reset"] = "earliest"
        # A busy machine lets it join before it has metadata, and it assigns nothing until it has newer ones.
        settings["metadata_max_age_ms"] = 1_000
        consumer = kafka.KafkaConsumer("t", **settings)
        found: list[Any] = []

        def all_came() -> bool:
            for records in consumer.poll(200).values():
                found.extend(records)
            return len(found) >= 10

        wait_for(all_came, "10 records")
        consumer.commit()
        consumer.close()
        again = kafka.KafkaConsumer("t", **settings)
        assert again.committed(kafka.TopicPartition("t", 1)) == 5
        again.close()
        taken = {(one.api, one.version) for one in broker.requests if one.client_id.startswith("kafka-python")}
        print(sorted(taken))


@on_a_loop
async def test_our_own_members_share_a_topic_and_hand_partitions_over() -> None:
    broker = await asyncio.to_thread(_started)
    try:
        four = frozenset(EnginePartition("t", index) for index in range(4))
        connect = partial(Group.connect, broker.bootstrap_servers, group="g", topics=["t"])
        async with connect(instance_ids=["a"]) as first:
            firsts = first.events()
            assert await anext(firsts) == Assigned(instance_id="a", partitions=four)
            async with connect(instance_ids=["b"]) as second:
                asked = await anext(firsts)
                assert isinstance(asked, Revoked)
                assert await first.commit(dict.fromkeys(four, 7)) == four
                first.release(asked.partitions)
                assert await anext(second.events()) == Assigned(instance_id="b", partitions=asked.partitions)
                assert await second.committed(four) == dict.fromkeys(four, 7)
        async with connect(instance_ids=["a"]) as again:
            assert await anext(again.events()) == Assigned(instance_id="a", partitions=four - asked.partitions)
    finally:
        await asyncio.to_thread(broker.stop)


def _started(nodes: int = 1) -> EmbeddedBroker:
    broker = EmbeddedBroker(nodes=nodes)
    broker.start()
    broker.create_topic("t", partitions=4)
    return broker


# ----------------------------------------------------------------------------------------------------- messages


def test_each_api_of_groups_is_served_in_the_versions_of_the_coordinator() -> None:
    names = {kind.__name__.removesuffix("Request"): versions for kind, versions in ANSWERED.items()}
    layouts = {each.name: (each.first, each.last) for each in GROUP_LAYOUTS.values()}
    assert layouts == {name: tuple(names[name]) for name in layouts}
    assert all(SERVED[key].answer is None for key in GROUP_LAYOUTS)


def test_older_versions_are_widened_and_narrowed() -> None:
    left = group_messages.widened(any_version.LeaveGroupRequest("g", "m", ()), 1)
    assert left == schema.LeaveGroupRequest("g", (schema.LeavingMember("m", None, None),))
    answer = schema.LeaveGroupResponse(0, 0, (schema.LeftMember("m", None, ErrorCode.UNKNOWN_MEMBER_ID),))
    assert group_messages.narrowed(answer, 1)[1] == ErrorCode.UNKNOWN_MEMBER_ID
    assert group_messages.narrowed(answer, 3)[1] == ErrorCode.NONE
    fetch = any_version.OffsetFetchRequest("g", None, (), False)
    assert group_messages.widened(fetch, 7) == ((("g", None, -1, None),), False)
    joined = schema.JoinGroupResponse(0, 27, -1, None, None, "", False, "m", ())
    names = [group_messages.narrowed(joined, version)[4] for version in (5, 7)]
    assert names == ["", None]


def test_commits_and_deletions_of_partitions_that_do_not_exist_do_not_reach_the_coordinator() -> None:
    cluster = cluster_of()
    cluster.create_topic("t", [[1]])

    def topic(name: str, *indexes: int) -> schema.OffsetCommitRequestTopic:
        return schema.OffsetCommitRequestTopic(
            name, tuple(schema.OffsetCommitRequestPartition(index, 1, -1, None) for index in indexes)
        )

    request = schema.OffsetCommitRequest("g", -1, "", None, (topic("none", 0), topic("t", 0, 1)))
    known = group_messages.known_part(cluster, request)
    assert known.topics == (topic("t", 0),)
    said = schema.OffsetCommitResponse(
        0, (schema.OffsetCommitResponseTopic("t", (schema.OffsetCommitResponsePartition(0, 0),)),)
    )
    whole = group_messages.with_unknown(request, said)
    assert whole.topics == (("none", ((0, 3),)), ("t", ((0, 0), (1, 3))))
    delete = schema.OffsetDeleteRequest(
        "g", (schema.OffsetDeleteRequestTopic("none", (schema.OffsetDeleteRequestPartition(0),)),)
    )
    nothing = schema.OffsetDeleteResponse(0, 0, ())
    assert group_messages.with_unknown(delete, nothing).topics == (("none", ((0, 3),)),)
    refused = schema.OffsetDeleteResponse(ErrorCode.GROUP_ID_NOT_FOUND, 0, ())
    assert group_messages.with_unknown(delete, refused) == refused


@on_a_loop
async def test_the_first_node_coordinates_and_another_one_has_no_groups() -> None:
    broker = await asyncio.to_thread(_started, 2)
    try:
        async with Group.connect(broker.bootstrap_servers, group="g", topics=["t"], instance_ids=["a"]) as group:
            await anext(group.events())
            listed = []
            for node in broker.cluster.nodes.values():
                async with await Connection.open(Address(node.host, node.port), client_id="me") as connection:
                    answer = await connection.call(messages.list_groups())
                    assert isinstance(answer, schema.ListGroupsResponse)
                    listed.append([one.group_id for one in answer.groups])
            assert listed == [["g"], []]
    finally:
        await asyncio.to_thread(broker.stop)


COMMITTED = any_version.OffsetCommitRequestTopic("t", (any_version.OffsetCommitRequestPartition(0, 1, -1, None),))


@pytest.mark.parametrize(
    "asked",
    [
        any_version.JoinGroupRequest("g", 1, 1, "m", None, "consumer", (), None),
        any_version.SyncGroupRequest("g", 1, "m", None, None, None, ()),
        any_version.HeartbeatRequest("g", 1, "m", None),
        any_version.LeaveGroupRequest("g", "", ()),
        any_version.OffsetCommitRequest("g", 1, "m", None, -1, (COMMITTED,)),
        any_version.OffsetFetchRequest("", None, (any_version.OffsetFetchRequestGroup("g", None, -1, None),), False),
        any_version.DescribeGroupsRequest(("g",), False),
        schema.DeleteGroupsRequest(("g",)),
        schema.OffsetDeleteRequest("g", ()),
    ],
)
def test_a_node_that_does_not_coordinate_says_so(asked: Any) -> None:
    newest = next(each.last for each in GROUP_LAYOUTS.values() if each.request is type(asked))
    refused = group_messages.not_coordinator(group_messages.widened(asked, newest))
    assert "NOT_COORDINATOR" in repr(group_messages.narrowed(refused, newest))


def test_a_node_that_does_not_coordinate_lists_no_group() -> None:
    assert group_messages.not_coordinator(schema.ListGroupsRequest((), ())) == (0, 0, ())
