"""Producing records and reading whole topics, with confluent-kafka."""

import asyncio
import base64
import math
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from uuid import uuid4

from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient

from spark_kgroup.testing.kafka_release import KafkaRelease
from spark_kgroup.wire import messages as wire_messages
from spark_kgroup.wire import schema
from spark_kgroup.wire.address import parse_bootstrap
from spark_kgroup.wire.connection import Connection
from spark_kgroup.wire.responses import ClusterMetadata, parse_metadata

Contents = dict[tuple[int, int], bytes | None]
"""(partition, offset) -> value, of each record of a topic."""

MakeTopic = Callable[..., str]
"""Number of partitions, and configurations -> the name of a new topic."""


def console_consumer(release: KafkaRelease) -> str:
    """The class behind kafka-console-consumer.sh."""
    package = "org.apache.kafka.tools.consumer" if release.number >= (3, 8) else "kafka.tools"
    return f"{package}.ConsoleConsumer"


def produce(bootstrap: str, topic: str, count: int, *, partitions: int, first: int = 0, size: int = 20) -> None:
    """Send `count` records round robin over `partitions`, values unique within the topic, and wait for all acks.

    Idempotent, as all producers of the tests are: a record that is sent again on a busy machine is not there twice.
    """
    _send(_idempotent_producer(bootstrap), topic, range(first, first + count), partitions, size)


def _idempotent_producer(bootstrap: str) -> Producer:
    return Producer({"bootstrap.servers": bootstrap, "linger.ms": 5, "enable.idempotence": True})


def _send(producer: Producer, topic: str, numbers: range, partitions: int, size: int = 20) -> None:
    for index in numbers:
        value = f"{index:0{size}d}".encode()
        producer.produce(topic, value=value, key=str(index).encode(), partition=index % partitions)
        producer.poll(0)
    assert producer.flush(120) == 0


def hex_id(admin: AdminClient, topic: str) -> str:
    """The topic's id, as `Leader.topic_id`."""
    described = admin.describe_topics(TopicCollection([topic]))[topic].result(30)
    return base64.urlsafe_b64decode(f"{described.topic_id}==").hex()


def leaders_by(address: str) -> dict[str, set[int]]:
    """Topic -> leaders of its partitions, as this very broker says to a client (librdkafka may ask another one).

    A partition without a leader has -1.
    """

    async def ask() -> ClusterMetadata:
        (broker,) = parse_bootstrap(address)
        async with await Connection.open(broker, client_id="test", request_timeout_ms=30_000) as connection:
            answer = await connection.call(wire_messages.metadata(None))
        assert isinstance(answer, schema.MetadataResponse)
        return parse_metadata(answer)

    word = asyncio.run(ask())
    return {name: {word.leaders.get(tp, -1) for tp in topic.partitions} for name, topic in word.topics.items()}


def fill(producer: Producer, topic: str, values: Sequence[bytes], partition: int = 0) -> None:
    """Send `values` to one partition, the first byte of each as its key, and wait for all acks."""
    for value in values:
        producer.produce(topic, value, value[:1], partition)
        producer.poll(0)
    assert producer.flush(120) == 0


def run_transaction(
    producer: Producer, topic: str, values: Sequence[bytes], partition: int = 0, *, commit: bool
) -> None:
    """One transaction, ended. Its end is acknowledged before its markers are in every log (`offsets.await_end`)."""
    producer.begin_transaction()
    fill(producer, topic, values, partition)
    producer.commit_transaction(30) if commit else producer.abort_transaction(30)


class Producing:
    """A producer that runs until told to stop, or has sent `most` records, in a thread. A context manager."""

    def __init__(
        self, bootstrap: str, topic: str, *, partitions: int, per_round: int, pause_s: float, most: float = math.inf
    ) -> None:
        self.sent = 0
        self._most = most
        self._stop = threading.Event()
        self._args = (bootstrap, topic, partitions, per_round, pause_s)
        self._thread = threading.Thread(target=self._run, name="producing")

    def _run(self) -> None:
        bootstrap, topic, partitions, per_round, pause_s = self._args
        producer = _idempotent_producer(bootstrap)
        while self.sent < self._most and not self._stop.wait(pause_s):
            _send(producer, topic, range(self.sent, self.sent + per_round), partitions)
            self.sent += per_round

    def __enter__(self) -> "Producing":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(60)
        assert not self._thread.is_alive()


def messages(bootstrap: str, topic: str) -> Iterator[Message]:
    """All records that the topic holds now, each partition in order and to its end."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": f"contents-{uuid4().hex}",
            "enable.partition.eof": True,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
        }
    )
    try:
        partitions = sorted(consumer.list_topics(topic, 10).topics[topic].partitions)
        consumer.assign([TopicPartition(topic, p, 0) for p in partitions])
        unfinished = set(partitions)
        deadline = time.monotonic() + 60
        while unfinished:
            assert time.monotonic() < deadline, f"partitions {unfinished} of {topic} could not be read to their end"
            for message in consumer.consume(1000, 0.2):
                error = message.error()
                if error is None:
                    yield message
                elif error.code() == KafkaError._PARTITION_EOF:
                    unfinished.discard(message.partition())
                else:
                    raise AssertionError(str(error))
    finally:
        consumer.close()


def contents(bootstrap: str, topic: str) -> Contents:
    """Everything the topic holds now, read to the end of every partition."""
    return {place_of(m): m.value() for m in messages(bootstrap, topic)}


def place_of(message: Message) -> tuple[int, int]:
    """(partition, offset) of a message that was consumed."""
    partition, offset = message.partition(), message.offset()
    assert partition is not None
    assert offset is not None
    return partition, offset


def by_partition(found: Contents) -> dict[int, list[int]]:
    """Partition -> its offsets, ascending."""
    result: dict[int, list[int]] = defaultdict(list)
    for partition, offset in sorted(found):
        result[partition].append(offset)
    return dict(result)
