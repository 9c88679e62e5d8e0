"""Reads some records of each topic only to see how large they are.

Runs on: driver, before the first batch (`driver/boundary/first_sample`).
"""

from __future__ import annotations

import logging
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence

import pyarrow as pa
from confluent_kafka import Consumer, KafkaError, KafkaException, Message
from confluent_kafka import TopicPartition as AssignedPartition

from pyspark_kgroup.executor.read.consumer_security import usable_here
from pyspark_kgroup.executor.read.read_sizes import ReadSizes
from pyspark_kgroup.executor.read.records import record_batch
from pyspark_kgroup.limits import SAMPLE_MS, SAMPLED_BYTES, SAMPLED_RECORDS
from pyspark_kgroup.shared.tickets import OffsetRange, ReadSettings, TopicSize
from spark_kgroup.errors import KgroupError
from spark_kgroup.model import TopicPartition

log = logging.getLogger(__name__)

_AT_ONCE = 100
"""Most messages that are taken at a time. Of a topic come as many more than are needed."""

_QUEUED = {"queued.min.messages": str(SAMPLED_RECORDS), "queued.max.messages.kbytes": "16384", "log_level": "0"}


def sample_sizes(
    ranges: Sequence[OffsetRange], settings: ReadSettings, clock_s: Callable[[], float] = time.monotonic
) -> tuple[TopicSize, ...]:
    """The sizes of records in these ranges, as far as they come within `SAMPLE_MS`. librdkafka reads them.

    Of each topic `SAMPLED_RECORDS` or `SAMPLED_BYTES` are enough. A failure is logged at level info, and is no error:
    the read of the batch meets it as well, and judges it. A topic whose records cannot be shown has no size.

    Args:
        ranges: at most one for each partition.
        settings: how the query's executors read.
        clock_s: a monotonic one.
    """
    sample = _Sample(ranges, settings)
    until_s = clock_s() + SAMPLE_MS / 1000
    try:
        consumer = Consumer({**usable_here(settings.consumer_config), **_QUEUED, "error_cb": _log_error})
        try:
            consumer.assign([AssignedPartition(r.topic, r.partition, r.start_offset) for r in ranges])
            while sample.open and (left_s := until_s - clock_s()) > 0:
                sample.add(consumer.consume(_AT_ONCE, min(0.1, left_s)))
                consumer.incremental_unassign([AssignedPartition(*partition) for partition in sample.take_done()])
        finally:
            consumer.close()
    except (KgroupError, KafkaException) as error:
        log.info("the sizes of records are not known before the first batch: %s", error)
    return sample.sizes.by_topic()


def _log_error(error: KafkaError) -> None:
    log.info("a sample of records is read: %s", error.str())


class _Sample:
    """The records that have come, and the ranges of topics of which more are to come.

    Attributes:
        sizes: of the records.
        open: partition -> the end of its range.
    """

    def __init__(self, ranges: Sequence[OffsetRange], settings: ReadSettings) -> None:
        self.sizes = ReadSizes({r.topic for r in ranges})
        self.open = {TopicPartition(r.topic, r.partition): r.end_offset for r in ranges}
        self._settings = settings
        self._done: set[TopicPartition] = set()
        self._records, self._bytes = Counter[str](), Counter[str]()

    def add(self, messages: Sequence[Message]) -> None:
        """Count these messages, and find the ranges that they end. A message with an error ends its partition's."""
        by_topic: dict[str, list[Message]] = defaultdict(list)
        for message in messages:
            topic, partition, offset = message.topic(), message.partition(), message.offset()
            if topic is None or partition is None or offset is None:
                continue
            at = TopicPartition(topic, partition)
            end = self.open.get(at, 0)
            if message.error() is not None or offset >= end - 1:
                self._done.add(at)
            if message.error() is None and offset < end:
                by_topic[topic].append(message)
        for topic, records in by_topic.items():
            self._count(topic, records)

    def _count(self, topic: str, records: Sequence[Message]) -> None:
        try:
            batch = record_batch(
                records,
                self._settings.include_headers,
                topic,
                include_timestamps=self._settings.include_timestamps,
            )
        except (KgroupError, pa.ArrowException) as error:  # the native reader may show it to executors
            log.info("the size of a record of %s is not known before the first batch: %s", topic, error)
            return
        self.sizes.add(batch)
        self._records[topic] += batch.num_rows
        self._bytes[topic] += batch.nbytes
        if self._records[topic] >= SAMPLED_RECORDS or self._bytes[topic] >= SAMPLED_BYTES:
            self._done |= {partition for partition in self.open if partition.topic == topic}

    def take_done(self) -> list[TopicPartition]:
        """The partitions of which nothing more is to come."""
        done, self._done = self._done & self.open.keys(), set()
        self.open = {partition: end for partition, end in self.open.items() if partition not in done}
        return sorted(done)
