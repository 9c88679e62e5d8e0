"""librdkafka and kafka-python produce and read on the embedded broker, and our own readers see the same records."""

import random
import time
from collections.abc import Iterator
from typing import Any

import kafka
import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, NewPartitions, NewTopic, OffsetSpec
from confluent_kafka.cimpl import OFFSET_BEGINNING
from harness.both_readers import by_both, reading, whole
from harness.decoder import built_decoder
from harness.waiting import wait_for

from spark_kgroup.broker.served import SERVED
from spark_kgroup.testing import EmbeddedBroker

CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker() as running:
        yield running


@pytest.fixture
def topic(broker: EmbeddedBroker, request: pytest.FixtureRequest) -> str:
    name = "".join(one if one.isalnum() else "-" for one in request.node.name)
    broker.create_topic(name, partitions=3)
    return name


def produce(
    broker: EmbeddedBroker, topic: str, codec: str, *, idempotent: bool, count: int = 600
) -> list[tuple[Any, ...]]:
    """Sends records, and returns (partition, offset, key, value, timestamp) of each as acknowledged."""
    rng, acknowledged, failed = random.Random(codec), [], []

    def on_delivery(error: Any, message: Any) -> None:
        if error is not None:
            failed.append(error)
            return
        at = message.partition(), message.offset()
        acknowledged.append((*at, message.key(), message.value(), message.timestamp()[1]))

    settings = {"compression.type": codec, "enable.idempotence": idempotent, "linger.ms": 5, "batch.num.messages": 50}
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, **settings})
    for i in range(count):
        key = rng.choice([None, b"", b"key"])
        value = rng.choice([None, b"", b"text " * rng.randint(1, 60)])
        headers: list[tuple[str, str | bytes | None]] = rng.choice([[], [("h", None), ("h", b"x")]])
        producer.produce(
            topic, key=key, value=value, headers=headers, partition=i % 3, timestamp=1_000 + i, on_delivery=on_delivery
        )
    assert producer.flush(30) == 0
    assert not failed
    return sorted(acknowledged, key=lambda each: each[:2])


def consume(broker: EmbeddedBroker, topic: str, count: int) -> list[tuple[Any, ...]]:
    """The records that librdkafka reads, as `produce` returns them."""
    consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": "g", "check.crcs": True})
    consumer.assign([TopicPartition(topic, index, OFFSET_BEGINNING) for index in range(3)])
    found: list[Any] = []

    def all_came() -> bool:
        messages = consumer.consume(500, timeout=0.2)
        assert not [one.error() for one in messages if one.error() is not None]
        found.extend(messages)
        return len(found) >= count

    try:
        wait_for(all_came, f"{count} records")
    finally:
        consumer.close()
    rows = [(one.partition(), one.offset(), one.key(), one.value(), one.timestamp()[1]) for one in found]
    return sorted(rows, key=lambda each: each[:2])


@pytest.mark.parametrize("idempotent", [False, True])
@pytest.mark.parametrize("codec", CODECS)
def test_librdkafka_reads_its_own_records(broker: EmbeddedBroker, topic: str, codec: str, idempotent: bool) -> None:
    produced = produce(broker, topic, codec, idempotent=idempotent)
    assert len(produced) == 600
    assert [(partition, offset) for partition, offset, *_ in produced] == [(p, o) for p in range(3) for o in range(200)]
    assert consume(broker, topic, 600) == produced
    codecs = {batch.codec for each in broker.cluster.topics[topic].partitions for batch in each.log.batches}
    assert codecs == {CODECS.index(codec)}, "the broker has the batches as they came"


@pytest.mark.parametrize("codec", CODECS)
def test_our_readers_read_librdkafkas_records(broker: EmbeddedBroker, topic: str, codec: str) -> None:
    """The native one and the one of ranges, which agree row by row."""
    built_decoder()
    produced = produce(broker, topic, codec, idempotent=True)
    settings, leaders = reading({"kafka.bootstrap.servers": broker.bootstrap_servers, "includeHeaders": "true"}, topic)
    rows = by_both(whole(broker.bootstrap_servers, topic, leaders), settings).to_pylist()
    times_ms = [round(row["timestamp"].timestamp() * 1000) for row in rows]
    read = [(row["partition"], row["offset"], row["key"], row["value"]) for row in rows]
    assert [(*one, ms) for one, ms in zip(read, times_ms, strict=True)] == produced


@pytest.mark.parametrize("codec", ["none", "gzip"])  # kafka-python needs further packages for the others
def test_kafka_python_produces_reads_and_looks_offsets_up(broker: EmbeddedBroker, topic: str, codec: str) -> None:
    compression = None if codec == "none" else codec
    producer = kafka.KafkaProducer(bootstrap_servers=broker.bootstrap_servers, compression_type=compression)
    sent = [producer.send(topic, value=b"%d" % i, partition=0, timestamp_ms=1_000 + 10 * i) for i in range(100)]
    assert [each.get(30).offset for each in sent] == list(range(100))
    producer.close()
    consumer = kafka.KafkaConsumer(bootstrap_servers=broker.bootstrap_servers, auto_offset_reset="earliest")
    at = kafka.TopicPartition(topic, 0)
    consumer.assign([at])
    found: list[Any] = []
    wait_for(lambda: found.extend(consumer.poll(200).get(at, ())) or len(found) >= 100, "100 records")
    assert [one.value for one in found] == [b"%d" % i for i in range(100)]
    assert (consumer.beginning_offsets([at]), consumer.end_offsets([at])) == ({at: 0}, {at: 100})
    assert consumer.offsets_for_times({at: 1_105})[at].offset == 11
    consumer.close()


def test_librdkafka_looks_offsets_up(broker: EmbeddedBroker, topic: str) -> None:
    produce(broker, topic, "zstd", idempotent=False)
    consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": "g"})
    at = TopicPartition(topic, 0)
    assert consumer.get_watermark_offsets(at, 30) == (0, 200)
    (found,) = consumer.offsets_for_times([TopicPartition(topic, 0, 1_301)], 30)
    assert found.offset == 101, "records 0, 3, 6 and so on are in partition 0"
    (end,) = consumer.offsets_for_times([TopicPartition(topic, 0, 9_999)], 30)
    assert end.offset == -1
    consumer.close()
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    largest = admin.list_offsets({at: OffsetSpec.max_timestamp()})[at].result(30)  # type: ignore[no-untyped-call]
    assert (largest.offset, largest.timestamp) == (199, 1_597)


def test_librdkafka_administers_topics(broker: EmbeddedBroker) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    admin.create_topics([NewTopic("managed", 2, 1, config={"retention.ms": "5"})])["managed"].result(30)
    admin.create_partitions([NewPartitions("managed", 4)])["managed"].result(30)
    assert len(admin.list_topics("managed", timeout=30).topics["managed"].partitions) == 4
    resource = ConfigResource(ConfigResource.Type.TOPIC, "managed")
    configs = admin.describe_configs([resource])[resource].result(30)
    assert (configs["retention.ms"].value, configs["retention.ms"].is_default) == ("5", False)
    produce(broker, "managed", "none", idempotent=False, count=30)
    deleted = admin.delete_records([TopicPartition("managed", 0, 4)])
    assert [one.result(30).low_watermark for one in deleted.values()] == [4]
    assert len(admin.describe_cluster().result(30).nodes) == 1
    admin.delete_topics(["managed"])["managed"].result(30)
    assert "managed" not in admin.list_topics(timeout=30).topics


def test_a_deleted_record_resets_a_consumer_that_asks_for_it(broker: EmbeddedBroker, topic: str) -> None:
    produce(broker, topic, "none", idempotent=False)
    broker.delete_records(topic, 0, before=150)
    consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": "g", "auto.offset.reset": "error"})
    consumer.assign([TopicPartition(topic, 0, 3)])
    message = wait_for(lambda: consumer.poll(0.2), "an answer")
    error = message.error()
    assert error is not None
    assert error.code() == KafkaError._AUTO_OFFSET_RESET
    consumer.close()


def test_a_start_and_a_topic_take_little_time() -> None:
    """The figure is printed: 200 ms at the most are wanted on an idle machine."""
    took = []
    for _ in range(5):
        began = time.perf_counter()
        with EmbeddedBroker() as broker:
            broker.create_topic("t", partitions=8)
            took.append(time.perf_counter() - began)
    print(f"start and a topic: {min(took) * 1000:.1f} ms at the least, {max(took) * 1000:.1f} ms at the most")


def test_each_version_that_a_client_took_is_served(broker: EmbeddedBroker) -> None:
    """After the tests above: prints the versions that clients took, which are in the table of `served`."""
    taken = {(one.api, one.version, one.client_id.split("-")[0]) for one in broker.requests}
    by_name = {each.layout.name: each.layout for each in SERVED.values()}
    assert all(by_name[api].first <= version <= by_name[api].last for api, version, _ in taken)
    for api in sorted({api for api, *_ in taken}):
        print(api, sorted((client, version) for name, version, client in taken if name == api))
