"""A topic as kafka-python reads it: a client that shares no code with ours."""

from typing import NamedTuple

import kafka

from harness.waiting import wait_for


class Row(NamedTuple):
    """A record in all its columns, the timestamp in ms since the epoch."""

    offset: int
    key: bytes | None
    value: bytes | None
    timestamp: int
    timestamp_type: int
    headers: tuple[tuple[str, bytes | None], ...]


Rows = dict[int, list[Row]]
"""Partition -> its rows, in order. Partitions without any are absent."""


def reference(server: str, topic: str, isolation: str) -> Rows:
    """All that the topic holds now, each partition to its end."""
    consumer = kafka.KafkaConsumer(
        bootstrap_servers=server, isolation_level=isolation, enable_auto_commit=False, max_partition_fetch_bytes=2**24
    )
    try:
        every = [kafka.TopicPartition(topic, p) for p in consumer.partitions_for_topic(topic)]
        consumer.assign(every)
        consumer.seek_to_beginning()
        ends = consumer.end_offsets(every)
        found: Rows = {}

        def finished() -> bool:
            for partition, records in consumer.poll(timeout_ms=100).items():
                found.setdefault(partition.partition, []).extend(map(row_of, records))
            return all(consumer.position(tp) >= end for tp, end in ends.items())

        wait_for(finished, f"the end of {topic}", 60, every_s=0)
        return found
    finally:
        consumer.close()


def row_of(record: "kafka.consumer.fetcher.ConsumerRecord") -> Row:
    return Row(record.offset, record.key, record.value, record.timestamp, record.timestamp_type, tuple(record.headers))
