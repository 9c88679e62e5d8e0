"""`EmbeddedBroker` as a test uses it: topics, recorded requests, hooks, faults, a clock that is turned."""

import asyncio
import time
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from harness.waiting import wait_for

from spark_kgroup.broker.batches import Batch
from spark_kgroup.broker.call import HangUp
from spark_kgroup.errors import BrokerError, Disconnected, OptionError
from spark_kgroup.model import ErrorCode
from spark_kgroup.testing import EmbeddedBroker, VirtualClock
from spark_kgroup.testing import embedded_broker as module
from spark_kgroup.testing.embedded_broker import RecordedRequest
from spark_kgroup.wire import messages, schema
from spark_kgroup.wire.address import Address
from spark_kgroup.wire.broker_schema import MetadataResponse
from spark_kgroup.wire.connection import Connection


def send(broker: EmbeddedBroker, topic: str, *values: bytes, partition: int = 0) -> list[int]:
    """Produces values, and returns their offsets."""
    offsets: list[int] = []

    def on_delivery(error: Any, message: Any) -> None:
        assert error is None
        offsets.append(message.offset())

    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "linger.ms": 0})
    for value in values:
        producer.produce(topic, value, partition=partition, on_delivery=on_delivery)
    assert producer.flush(30) == 0
    return offsets


def batches_of(broker: EmbeddedBroker, topic: str) -> tuple[Batch, ...]:
    return broker.cluster.topics[topic].partitions[0].log.batches


def test_topics_are_made_grown_and_deleted() -> None:
    with EmbeddedBroker() as broker:
        first = broker.create_topic("t", configs={"retention.ms": "5"})
        broker.add_partitions("t", 3)
        assert len(broker.cluster.topics["t"].partitions) == 3
        broker.delete_topic("t")
        assert broker.create_topic("t") != first
        with pytest.raises(BrokerError, match="TOPIC_ALREADY_EXISTS") as raised:
            broker.create_topic("t")
        assert raised.value.code == ErrorCode.TOPIC_ALREADY_EXISTS
        for refused in (broker.delete_topic, lambda name: broker.add_partitions(name, 2)):
            with pytest.raises(BrokerError, match="UNKNOWN_TOPIC_OR_PARTITION"):
                refused("none")


def test_requests_are_recorded_and_the_oldest_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    with EmbeddedBroker() as broker:
        broker.create_topic("t")
        send(broker, "t", b"hello")
        (produce,) = [one for one in broker.requests if one.api == "Produce"]
        assert (produce.version, produce.client_id, produce.node_id) == (10, "rdkafka", 1)
        assert b"hello" in produce.request.topic_data[0].partition_data[0].records
        monkeypatch.setattr(module, "REQUESTS_MAX", 2)
        send(broker, "t", b"again")
        assert len(broker.requests) == 2
        monkeypatch.setattr(module, "REQUEST_BYTES_KEPT_MAX", 1_000)
        send(broker, "t", b"x" * 2_000)
        assert all(len(str(one)) < 2_000 for one in broker.requests)


async def cluster_named_by(broker: EmbeddedBroker) -> str | None:
    """The cluster id in the answer to a Metadata request, over a connection of its own."""
    node = broker.cluster.nodes[1]
    async with await Connection.open(Address(node.host, node.port), client_id="me") as connection:
        answer = await connection.call(messages.metadata([]))
        assert isinstance(answer, schema.MetadataResponse)
        return answer.cluster_id


def test_a_hook_sees_requests_answers_them_or_hangs_up() -> None:
    seen: list[RecordedRequest] = []

    def other_cluster(request: RecordedRequest) -> Any:
        seen.append(request)
        if len(seen) == 1:
            raise HangUp
        return MetadataResponse(0, (), "another cluster", -1, ()) if len(seen) == 2 else None

    with EmbeddedBroker() as broker:
        broker.on("Metadata", other_cluster)
        with pytest.raises(Disconnected):
            asyncio.run(cluster_named_by(broker))
        assert asyncio.run(cluster_named_by(broker)) == "another cluster"
        assert asyncio.run(cluster_named_by(broker)) == broker.cluster.cluster_id
        assert [(one.api, one.client_id) for one in seen] == [("Metadata", "me")] * 3
        broker.on("Metadata", None)
        assert asyncio.run(cluster_named_by(broker)) == broker.cluster.cluster_id
        assert len(seen) == 3
        with pytest.raises(OptionError, match="has no API 'Metedata'"):
            broker.on("Metedata", other_cluster)


def test_a_hook_may_change_the_broker() -> None:
    def create(_: RecordedRequest) -> None:
        if "made" not in broker.cluster.topics:
            broker.create_topic("made")

    with EmbeddedBroker() as broker:
        broker.on("Metadata", create)
        asyncio.run(cluster_named_by(broker))
        assert list(broker.cluster.topics) == ["made"]


def test_answers_are_held_back() -> None:
    with EmbeddedBroker() as broker:
        broker.create_topic("t")
        broker.delay(each_ms=60)
        began = time.monotonic()
        send(broker, "t", b"v")
        assert time.monotonic() - began >= 0.12, "ApiVersions and Produce at the least"


def test_a_client_goes_on_after_its_connections_were_dropped() -> None:
    with EmbeddedBroker() as broker:
        broker.create_topic("t")
        producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "enable.idempotence": True})
        for i in range(20):
            producer.produce("t", b"%d" % i)
            if i % 5 == 0:
                broker.drop_connections()
        assert producer.flush(30) == 0
        assert sum(batch.count for batch in batches_of(broker, "t")) == 20, "each record once"


def test_records_are_stamped_by_a_clock_that_the_test_turns() -> None:
    clock = VirtualClock(1_000)
    with EmbeddedBroker(clock=clock) as broker:
        broker.create_topic("t", configs={"message.timestamp.type": "LogAppendTime"})
        send(broker, "t", b"early")
        clock.advance(60_000)
        send(broker, "t", b"late")
        assert [batch.max_timestamp_ms for batch in batches_of(broker, "t")] == [1_000, 61_000]


def test_nodes_have_ports_and_racks_of_their_own_and_lead_in_turn() -> None:
    with EmbeddedBroker(nodes=3, racks=["a", "b", "c"]) as broker:
        broker.create_topic("t", partitions=3)
        assert len(set(broker.bootstrap_servers.split(","))) == 3
        assert [send(broker, "t", b"v", partition=index) for index in range(3)] == [[0], [0], [0]]
        assert {one.node_id for one in broker.requests if one.api == "Produce"} == {1, 2, 3}
        broker.elect_leader("t", 0, node_id=2)
        assert send(broker, "t", b"v") == [1]
        with pytest.raises(BrokerError, match="INVALID_REPLICA_ASSIGNMENT"):
            broker.elect_leader("t", 0, node_id=7)
    with pytest.raises(OptionError, match="`racks` names 1 racks"):
        EmbeddedBroker(nodes=2, racks=["a"])


def test_a_consumer_notices_a_truncation() -> None:
    with EmbeddedBroker() as broker:
        broker.create_topic("t")
        for value in (b"a", b"b", b"c"):
            send(broker, "t", value)
        consumer = Consumer(
            {"bootstrap.servers": broker.bootstrap_servers, "group.id": "g", "auto.offset.reset": "earliest"}
        )
        consumer.assign([TopicPartition("t", 0, 0)])
        values: list[bytes | None] = []

        def read(count: int) -> bool:
            values.extend(one.value() for one in consumer.consume(10, timeout=0.2) if one.error() is None)
            return len(values) >= count

        wait_for(lambda: read(3), "three records")
        broker.truncate("t", 0, 1)
        send(broker, "t", b"other")
        wait_for(lambda: read(4), "the record of the new leader")
        assert values[:3] == [b"a", b"b", b"c"]
        assert values[-1] == b"other"
        consumer.close()


def test_records_before_an_offset_are_deleted() -> None:
    with EmbeddedBroker() as broker:
        broker.create_topic("t")
        send(broker, "t", b"a")
        send(broker, "t", b"b")
        broker.delete_records("t", 0, before=1)
        assert [batch.base_offset for batch in batches_of(broker, "t")] == [1]
        with pytest.raises(BrokerError, match="OFFSET_OUT_OF_RANGE"):
            broker.delete_records("t", 0, before=3)


def test_a_broker_starts_again_with_its_topics_and_stops_twice() -> None:
    broker = EmbeddedBroker()
    broker.start()
    with pytest.raises(OptionError, match="runs already"):
        broker.start()
    broker.create_topic("t")
    send(broker, "t", b"v")
    broker.stop()
    broker.stop()
    with broker:
        assert send(broker, "t", b"v") == [1]


def test_a_broker_that_was_never_started_stops() -> None:
    EmbeddedBroker().stop()
