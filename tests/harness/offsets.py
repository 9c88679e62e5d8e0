"""A group's committed offsets, read and set from outside of the group."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import OffsetSpec

from harness.waiting import wait_for
from spark_kgroup import model
from spark_kgroup.testing import ApacheKafka
from spark_kgroup.wire.responses import CommittedOffset

COORDINATOR_ON_ITS_WAY = (
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.NOT_COORDINATOR,
    KafkaError._TIMED_OUT,
)
"""What librdkafka says while brokers start, make their offsets topic, or move a coordinator."""

COORDINATOR_WITHIN_S = 90
"""The first question of three brokers makes 50 partitions at each: on a busy machine that took longer than 30 s."""


def offsets_alone(
    found: Mapping[model.TopicPartition, CommittedOffset | None],
) -> dict[model.TopicPartition, int | None]:
    """The offsets that a look-up found, without the metadata beside them."""
    return {tp: there.offset if there is not None else None for tp, there in found.items()}


def set_committed(bootstrap: str, group: str, topic: str, offsets: dict[int, int]) -> None:
    """Commit for a group that has no members."""
    wanted = [TopicPartition(topic, p, o) for p, o in offsets.items()]
    with _consumer(bootstrap, group) as consumer:
        _answered(lambda: consumer.commit(offsets=wanted, asynchronous=False), f"a commit for group {group!r}")


def committed(bootstrap: str, group: str, topic: str, partitions: int) -> dict[int, int]:
    """Partition -> committed offset, negative where there is none."""
    with _consumer(bootstrap, group) as consumer:
        found = _committed(consumer, group, [TopicPartition(topic, p) for p in range(partitions)])
        return {tp.partition: tp.offset for tp in found}


def lag(bootstrap: str, group: str, topic: str) -> int:
    """How many records of `topic` the group has not committed yet."""
    with _consumer(bootstrap, group) as consumer:
        partitions = [TopicPartition(topic, p) for p in consumer.list_topics(topic, 30).topics[topic].partitions]
        ends = [consumer.get_watermark_offsets(tp, timeout=30)[1] for tp in partitions]
        found = _committed(consumer, group, partitions)
        return sum(end - max(0, tp.offset) for end, tp in zip(ends, found, strict=True))


@contextmanager
def _consumer(bootstrap: str, group: str) -> Iterator[Consumer]:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group, "enable.auto.commit": False})
    try:
        yield consumer
    finally:
        consumer.close()


def _committed(consumer: Consumer, group: str, partitions: list[TopicPartition]) -> list[TopicPartition]:
    return _answered(lambda: consumer.committed(partitions, timeout=30), f"the committed offsets of group {group!r}")


def _answered(call: Callable[[], list[TopicPartition]], what: str) -> list[TopicPartition]:
    """The result of `call`, once the group's coordinator is there."""

    def attempt() -> list[list[TopicPartition]]:
        try:
            return [call()]
        except KafkaException as refusal:
            if refusal.args[0].code() not in COORDINATOR_ON_ITS_WAY:
                raise
            return []

    return wait_for(attempt, what, COORDINATOR_WITHIN_S)[0]


def offset_of(kafka: ApacheKafka, topic: str, partition: int, place: OffsetSpec) -> int:
    """An end of one log."""
    where = TopicPartition(topic, partition)
    offset: int = kafka.admin.list_offsets({where: place})[where].result(30).offset
    return offset


def await_end(kafka: ApacheKafka, topic: str, partition: int, end: int) -> None:
    """Wait for a log to end at an offset."""
    latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]
    wait_for(lambda: offset_of(kafka, topic, partition, latest) == end, f"{topic}-{partition} to end at {end}")
