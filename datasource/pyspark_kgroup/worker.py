"""Reads what one seat owns in one micro-batch: exactly the offsets it was told, as Arrow batches.

Runs on: executor. Needs neither Spark nor the driver: everything is in `SeatRanges`.

A range is done as soon as nothing below its end is left to come. Its last offsets need not be records (transaction
markers, aborted or compacted data), so three things say so: a record at or past the end, the end of the log at or past
it, or the consumer's position, which librdkafka also moves past what is never shown.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, cast

import pyarrow as pa
from confluent_kafka import Consumer, KafkaError, KafkaException, Message
from confluent_kafka import TopicPartition as AssignedPartition

from pyspark_kgroup.arrow import payload_bytes, record_batches
from spark_kgroup.errors import BrokerError, DataLoss, KgroupError, OptionError, UnknownTopic, WireError
from spark_kgroup.limits import API_TIMEOUT_MS, ARROW_BATCH_BYTES_MAX, ARROW_BATCH_ROWS_MAX
from spark_kgroup.model import ErrorCode, TopicPartition

log = logging.getLogger(__name__)

_POLL_S: Final = 0.1
"""How long to wait for the next record before looking at positions, and before a started batch is handed over."""

_QUEUED_RECORDS: Final = 100_000
"""Records of one partition that librdkafka fetches ahead (its queued.min.messages, 100,000); fewer for a short range,
whose rest would be fetched in vain."""

_GONE: Final = frozenset({KafkaError.OFFSET_OUT_OF_RANGE, KafkaError._AUTO_OFFSET_RESET})

_UNKNOWN: Final = frozenset(
    {
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError._UNKNOWN_TOPIC,
        KafkaError._UNKNOWN_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID.value,
    }
)


class Range(NamedTuple):
    """Offsets of one partition: `start_offset` <= offset < `end_offset`."""

    topic: str
    partition: int
    start_offset: int
    end_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SeatRanges:
    """All that one seat reads in one micro-batch. Travels from the driver to an executor.

    Attributes:
        seat: the seat's instance id.
        ranges: at most one for each partition.
        consumer_config: librdkafka's configuration (`SourceOptions.consumer_config`); may hold secrets.
        include_headers: whether batches have the column `headers`.
    """

    seat: str
    ranges: tuple[Range, ...]
    consumer_config: Mapping[str, str] = field(repr=False)
    include_headers: bool = False


def read_range(reads: SeatRanges, *, stall_timeout_ms: int = API_TIMEOUT_MS) -> Iterator[pa.RecordBatch]:
    """Read every range to its end, and nothing else.

    The records of one partition come in the order of their offsets, those of several partitions mixed. The consumer is
    closed at the end, on an error, and when the iterator is closed early.

    Args:
        reads: what to read.
        stall_timeout_ms: how long may pass without a record; the time the caller takes for a batch does not count.

    Yields:
        Batches of at most `ARROW_BATCH_ROWS_MAX` rows and about `ARROW_BATCH_BYTES_MAX` bytes.

    Raises:
        DataLoss: offsets that were still to be read are gone.
        UnknownTopic: a topic or partition is gone, or this user may not see it.
        WireError: a broker refused, or nothing came for `stall_timeout_ms`.
        OptionError: this executor's librdkafka does not take the configuration.
    """
    unread = _Unread(reads.ranges, stall_timeout_ms)
    if not unread.open:
        return
    consumer = _consumer(reads, unread)
    try:
        consumer.assign([AssignedPartition(r.topic, r.partition, r.start_offset) for r in unread.open.values()])
        yield from _batches(consumer, unread, reads.include_headers)
    finally:
        consumer.close()


def _consumer(reads: SeatRanges, unread: _Unread) -> Consumer:
    longest = max(r.end_offset - r.start_offset for r in reads.ranges)
    defaults = {"queued.min.messages": str(min(_QUEUED_RECORDS, longest))}
    try:
        return Consumer({**defaults, **reads.consumer_config, "error_cb": unread.note}, logger=log)
    except KafkaException as problem:
        raise OptionError(f"This executor's librdkafka does not take its configuration: {problem}") from None


def _batches(consumer: Consumer, unread: _Unread, include_headers: bool) -> Iterator[pa.RecordBatch]:
    pending: list[Message] = []
    pending_bytes = 0
    while unread.open:
        records = _next_records(consumer, unread, ARROW_BATCH_ROWS_MAX - len(pending))
        pending += records
        pending_bytes += payload_bytes(records)
        full = len(pending) >= ARROW_BATCH_ROWS_MAX or pending_bytes >= ARROW_BATCH_BYTES_MAX
        if pending and (full or not records or not unread.open):
            yield from record_batches(pending, include_headers)
            pending, pending_bytes = [], 0
            unread.resume()  # the time that Spark took for the batch is not ours


def _next_records(consumer: Consumer, unread: _Unread, records_max: int) -> list[Message]:
    """What has arrived by now, after waiting `_POLL_S` for the first; ranges that are done are no longer fetched."""
    before = len(unread.open)
    first = consumer.poll(_POLL_S)
    if first is None:
        unread.move(consumer.position([AssignedPartition(*partition) for partition in unread.open]))
        records = []
    else:
        # A batch of its own would wait for the last of `records_max`; with timeout 0 it takes what is there.
        rest = consumer.consume(records_max - 1, 0) if records_max > 1 else []
        records = unread.accept([first, *rest])
    if 0 < len(unread.open) < before:
        done = [partition for partition in consumer.assignment() if _key(partition) not in unread.open]
        consumer.incremental_unassign(done)
    return records


def _key(partition: AssignedPartition) -> TopicPartition:
    return TopicPartition(partition.topic, partition.partition)


def _partition(message: Message) -> TopicPartition:
    return TopicPartition(cast("str", message.topic()), cast("int", message.partition()))


def _offset(message: Message) -> int:
    return cast("int", message.offset())


def _last_offsets(records: Sequence[Message]) -> dict[TopicPartition, int]:
    """The last offset of each partition: within a partition they only rise."""
    partitions = zip(map(Message.topic, records), map(Message.partition, records), strict=True)
    last = cast("dict[tuple[str, int], int]", dict(zip(partitions, map(Message.offset, records), strict=True)))
    return {TopicPartition(*partition): offset for partition, offset in last.items()}


def _verdict(error: KafkaError) -> KgroupError | None:
    """What an error is that no further try can mend; None if one may."""
    if error.code() in _UNKNOWN:
        return UnknownTopic(
            f"A topic or partition does not exist any more, or this user may not see it: {error.str()}."
        )
    if error.code() == ErrorCode.TOPIC_AUTHORIZATION_FAILED:
        return BrokerError("Fetch", error.code(), error.str())
    return None


class _Unread:
    """The ranges that are not done, and since when nothing has come.

    Attributes:
        open: what is left, by partition.
    """

    def __init__(self, ranges: Sequence[Range], stall_timeout_ms: int) -> None:
        self.open = {TopicPartition(r.topic, r.partition): r for r in ranges if r.start_offset < r.end_offset}
        self._ends = {partition: r.end_offset for partition, r in self.open.items()}
        self._positions = {partition: r.start_offset for partition, r in self.open.items()}
        self._stall_timeout_s = stall_timeout_ms / 1000
        self._last_error = ""
        self._verdict: KgroupError | None = None
        self.resume()

    def resume(self) -> None:
        """Something came, or we were not waiting: the bound starts again."""
        self._deadline = time.monotonic() + self._stall_timeout_s

    def note(self, error: KafkaError) -> None:
        """Remember what librdkafka struggles with: it tries again by itself, but some things will not change.

        Raises nothing: librdkafka calls it in the midst of `poll`.
        """
        self._last_error = error.str()
        self._verdict = self._verdict or _verdict(error)

    def accept(self, messages: list[Message]) -> list[Message]:
        """The records among `messages` that lie within the ranges; closes the ranges that they end.

        Raises:
            KgroupError: one of the messages says that a range cannot be read.
        """
        records = messages
        errors = list(map(Message.error, messages))
        if any(errors):  # a KafkaError must not be compared with None: its == leaves an exception behind
            records = [message for message, error in zip(messages, errors, strict=True) if error is None]
        last = _last_offsets(records)
        if any(offset >= self._ends[partition] for partition, offset in last.items()):
            records = [record for record in records if _offset(record) < self._ends[_partition(record)]]
        self._reached({partition: offset + 1 for partition, offset in last.items()})
        for message, error in zip(messages, errors, strict=True):
            if error is not None:
                self._heed(message, error)
        self._check(waiting=not records)
        return records

    def move(self, positions: Sequence[AssignedPartition]) -> None:
        """Take over the consumer's positions; those it does not know are negative.

        Raises:
            KgroupError: a range cannot be read, or no position has moved for too long.
        """
        self._reached({_key(position): position.offset for position in positions})
        self._check(waiting=True)

    def _reached(self, positions: Mapping[TopicPartition, int]) -> None:
        for partition, position in positions.items():
            if position > self._positions[partition]:
                self._positions[partition] = position
                self.resume()
            if position >= self._ends[partition]:
                self.open.pop(partition, None)

    def _heed(self, message: Message, error: KafkaError) -> None:
        """What an event of the consumer means for its partition."""
        partition = _partition(message)
        code = error.code()
        if code == KafkaError._PARTITION_EOF:
            self._reached({partition: _offset(message)})
        elif code in _GONE and partition in self.open:
            raise DataLoss(
                f"Offsets {self._positions[partition]} to {self._ends[partition] - 1} of {partition} were still to be "
                f"read and are not all there: retention removed them, or the topic was created anew ({error.str()}). "
                "Raise the topic's retention. To go on with what is left, use a fresh checkpoint with "
                "startingOffsets=earliest."
            )
        elif partition in self.open:
            self.note(error)

    def _check(self, waiting: bool) -> None:
        if self._verdict is not None:
            raise self._verdict
        if not waiting or not self.open or time.monotonic() < self._deadline:
            return
        left = ", ".join(
            f"{partition} (at {self._positions[partition]} of {r.end_offset})" for partition, r in self.open.items()
        )
        said = f" librdkafka said last: {self._last_error}." if self._last_error else ""
        raise WireError(
            f"Nothing came for {self._stall_timeout_s:.0f} s from {left}.{said} Executors must reach every broker "
            "under the address that it advertises (the broker's advertised.listeners)."
        )
