"""Reads ranges of offsets with a consumer of its own: exactly these, as Arrow batches.

Runs on: executor. Needs neither Spark nor the driver.

Consumers come and go within one read: with renewed certificates, to find a right that was given back, and to ask
another broker for a log that may lack a part of its range. `unread_ranges` keeps what they have read and said, and
decides what that means.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from confluent_kafka import Consumer, KafkaException
from confluent_kafka import TopicPartition as AssignedPartition

from pyspark_kgroup.executor.native.decode import FallbackToLibrdkafka
from pyspark_kgroup.executor.read.consumer_security import usable_here
from pyspark_kgroup.executor.read.records import record_batch
from pyspark_kgroup.executor.read.topic_ids import AnotherCluster, TopicIds, check_cluster
from pyspark_kgroup.executor.read.unread_ranges import LOG_LOOK_S, UNKNOWN, ToBatch, UnreadRanges, partition_of
from pyspark_kgroup.limits import ARROW_BATCH_BYTES_MAX, ARROW_BATCH_ROWS_MAX, CREDENTIALS_SETTLE_MS
from pyspark_kgroup.offsets.data_loss import LogRange
from pyspark_kgroup.shared.arrow import rebatch
from pyspark_kgroup.shared.tickets import OffsetRange, ReadSettings
from spark_kgroup.errors import KgroupError, OptionError
from spark_kgroup.model import TopicPartition
from spark_kgroup.uncollected import uncollected
from spark_kgroup.wire.security.files import read_settled

if TYPE_CHECKING:
    from confluent_kafka.admin import ClusterMetadata

log = logging.getLogger(__name__)

_POLL_S: Final = 0.1
"""How long to wait for the next record before looking at positions, and before a started batch is handed over."""

_QUEUED_RECORDS: Final = 100_000
"""Records of one partition that librdkafka fetches ahead (its queued.min.messages, 100,000). Fewer for a short range:
the records behind it would be fetched in vain."""

_QUEUED_KBYTES: Final = "16384"
"""How much librdkafka fetches ahead in all (its queued.max.messages.kbytes, 64 MiB). Measured at 1 KB: a worker grows
by 79 MB when it reads, not by 145 MB, and reads as fast."""

_RECORDS_AT_ONCE: Final = 4_096
"""Most records that exist as Python objects at a time. Measured at 100 B: as many as fit into a core's own cache cost
a fifth less each than 65,536."""

_RECORDS_FIRST: Final = 256
"""Records taken before their size is known."""


def read_with_librdkafka(
    ranges: Sequence[OffsetRange],
    settings: ReadSettings,
    clock_s: Callable[[], float] = time.monotonic,
    *,
    reasons: Mapping[TopicPartition, FallbackToLibrdkafka] = MappingProxyType({}),
    quiet_since_s: float | None = None,
) -> Iterator[pa.RecordBatch]:
    """Read exactly these ranges, each to its end.

    The records of one partition come in the order of their offsets, those of several partitions mixed. The consumer is
    closed at the end, on an error, and when the iterator is closed early.

    Args:
        ranges: at most one for each partition.
        settings: how to read them.
        clock_s: a monotonic one.
        reasons: why the native reader has left partitions, for errors.
        quiet_since_s: when a record last came to the native reader, or None if that has not tried.

    Yields:
        Batches of at most `ARROW_BATCH_ROWS_MAX` rows and about `ARROW_BATCH_BYTES_MAX` bytes.

    Raises:
        DataLoss: offsets that were still to be read are gone, and `settings.fail_on_data_loss` is set.
        WireError: a broker refused, or no record came for `settings.stall_timeout_ms`.
        OptionError: this executor's librdkafka does not take the configuration, or a file that it names is not here.
    """
    unread = UnreadRanges(ranges, settings, clock_s, reasons, quiet_since_s)
    if not unread.open:
        return
    ids = TopicIds(
        {r.topic: r.topic_id for r in ranges},
        settings.consumer_config,
        settings.stall_timeout_ms / 1000,
        clock_s,
        settings.cluster,
    )
    consumer: Consumer | None = read_settled(unread.files, lambda: _consumer(settings, unread), CREDENTIALS_SETTLE_MS)
    try:
        while consumer is not None:
            next_one = None
            try:
                consumer.assign([AssignedPartition(*partition, at) for partition, at in unread.positions().items()])
                next_one = yield from _batches(consumer, unread, settings, ids)
            finally:
                consumer.close()
            consumer = next_one
    finally:
        unread.tell_rest()


def _consumer(settings: ReadSettings, unread: UnreadRanges) -> Consumer:
    longest = max(r.end_offset - r.start_offset for r in unread.open.values())
    queued = {"queued.min.messages": str(min(_QUEUED_RECORDS, longest)), "queued.max.messages.kbytes": _QUEUED_KBYTES}
    try:
        # The user's settings win: a link with high latency needs more ahead (kafka.queued.max.messages.kbytes).
        return Consumer({**queued, **usable_here(settings.consumer_config), "error_cb": unread.on_error}, logger=log)
    except KafkaException as problem:
        raise OptionError(f"This executor's librdkafka does not take its configuration: {problem}") from None


def _renewed_consumer(settings: ReadSettings, unread: UnreadRanges) -> Consumer | None:
    """A consumer with the certificates and the leaders as they are by now, or None if the former do not fit (yet)."""
    try:
        renewed = _consumer(settings, unread)
    except KgroupError as problem:
        log.warning("Certificates have changed, and the earlier ones stay in use: %s", problem)
        unread.on_not_renewed()
        return None
    unread.begin_anew()
    return renewed


def _batches(
    consumer: Consumer, unread: UnreadRanges, settings: ReadSettings, ids: TopicIds
) -> Generator[pa.RecordBatch, None, Consumer | None]:
    """The batches that `consumer` reads. Returns the consumer that is to go on, or None if all is read."""
    topics = {partition.topic for partition in unread.open}
    topic = topics.pop() if len(topics) == 1 else None
    to_batch = partial(
        record_batch,
        include_headers=settings.include_headers,
        include_timestamps=settings.include_timestamps,
        topic=topic,
    )
    pending: list[pa.RecordBatch] = []
    rows = size = 0
    record_bytes = ARROW_BATCH_BYTES_MAX // _RECORDS_FIRST
    while unread.open:
        # Not with rows pending: positions are past them, so the next consumer would not read them again.
        if not pending and unread.take_renewal() and (renewed := _renewed_consumer(settings, unread)) is not None:
            return renewed
        fitting = max(1, (ARROW_BATCH_BYTES_MAX - size) // record_bytes)
        records_max = min(fitting, _RECORDS_AT_ONCE, ARROW_BATCH_ROWS_MAX - rows)
        with uncollected():  # until the records are freed again; else a third of the time goes into it
            batch = _next_batch(consumer, unread, to_batch, records_max)
        if batch is not None and batch.num_rows:
            pending.append(batch)
            rows += batch.num_rows
            size += batch.nbytes
            record_bytes = 1 + batch.nbytes // batch.num_rows
        full = rows >= ARROW_BATCH_ROWS_MAX or size + record_bytes > ARROW_BATCH_BYTES_MAX
        # A range may be done without a row, in a later topic of the same name, too: its offsets there may be markers.
        done = not unread.open and bool(unread.not_handed_out())
        if done or (pending and (full or batch is None)):
            # AFTER these records came, and before Spark has them: the id of a topic that is gone never comes back.
            for topic, id_ in ids.changed({tp.topic for tp in unread.not_handed_out()}).items():
                pending = unread.give_up(topic, ids.planned[topic], id_, pending)
            if pending:
                yield from rebatch(pending)
            unread.on_handed_out()
            pending, rows, size = [], 0, 0
            unread.resume()  # the time that Spark took for the batch is not ours
    return None


def _next_batch(consumer: Consumer, unread: UnreadRanges, to_batch: ToBatch, records_max: int) -> pa.RecordBatch | None:
    """The records that have come, after a wait of `_POLL_S` for the first. Ranges that are done are unassigned."""
    open_before = len(unread.open)
    first = consumer.poll(_POLL_S)
    if first is None:
        unread.move(consumer.position([AssignedPartition(*partition) for partition in unread.open]))
        batch = None
    else:
        # `consume` would wait until there are `records_max`. With timeout 0 it takes those that are there.
        rest = consumer.consume(records_max - 1, 0) if records_max > 1 else []
        batch = unread.accept([first, *rest], to_batch)
    for partition, position in unread.take_damaged().items():
        _go_on_at(consumer, partition, position)
    _compare_with_logs(consumer, unread)
    idle = unread.take_idle()
    if idle is not None:
        _look_at_log(consumer, unread, idle)
    # Else librdkafka would go on fetching behind the ranges that are done.
    if 0 < len(unread.open) < open_before:
        done = [partition for partition in consumer.assignment() if partition_of(partition) not in unread.open]
        consumer.incremental_unassign(done)
    return batch


def _compare_with_logs(consumer: Consumer, unread: UnreadRanges) -> None:
    """Ask the leaders of the partitions in doubt for the offsets that their logs have, and go on from there."""
    seen: dict[str, ClusterMetadata] = {}
    for partition in unread.doubted.take_due(unread.open):
        try:
            log_range = _log_range(consumer, unread, partition, seen)
        except KafkaException as problem:
            unread.on_look_failed(partition, problem.args[0])
            continue
        position = unread.compare(partition, log_range) if log_range is not None else None
        if position is not None:
            _go_on_at(consumer, partition, position)


def _look_at_log(consumer: Consumer, unread: UnreadRanges, partition: TopicPartition) -> None:
    """Look for the reason why no record of the partition comes, when librdkafka has reported none."""
    try:
        log_range = _log_range(consumer, unread, partition, {})
    except KafkaException as problem:
        unread.on_idle_look_failed(partition, problem.args[0])
        return
    if log_range is not None:
        unread.on_idle_look(partition, log_range)


def _log_range(
    consumer: Consumer, unread: UnreadRanges, partition: TopicPartition, seen: dict[str, ClusterMetadata]
) -> LogRange | None:
    """The offsets that the partition's log has.

    None after `unread` was told that a broker does not know the partition, or belongs to another cluster. `seen` is
    what brokers have said of topics in this round of looks: an answer has all partitions of its topic.

    Raises:
        KafkaException: brokers did not tell it.
    """
    # First whether it is there: librdkafka answers the second question with a timeout where no broker knows it.
    if partition.topic not in seen:
        seen[partition.topic] = _described(consumer, partition.topic)
    described = seen[partition.topic]
    try:
        check_cluster(described, unread.cluster)
    except AnotherCluster as problem:
        unread.on_another_cluster(partition, problem.args[0])
        return None
    topic = described.topics[partition.topic]
    if topic.error is not None and topic.error.code() not in UNKNOWN:
        raise KafkaException(topic.error)
    if topic.error is not None or partition.partition not in topic.partitions:
        unread.on_unknown(partition, described.orig_broker_id, len(described.brokers))
        return None
    return LogRange(*consumer.get_watermark_offsets(AssignedPartition(*partition), LOG_LOOK_S))


def _described(consumer: Consumer, topic: str) -> ClusterMetadata:
    described: ClusterMetadata = consumer.list_topics(topic, LOG_LOOK_S)
    if described.orig_broker_id < 0:  # librdkafka may not know yet which broker is at the other end of a connection
        described = consumer.list_topics(topic, LOG_LOOK_S)
    return described


def _go_on_at(consumer: Consumer, partition: TopicPartition, position: int) -> None:
    """Fetch from `position`. Records of the partition that have come and were not taken yet are forgotten."""
    consumer.incremental_unassign([AssignedPartition(*partition)])
    consumer.incremental_assign([AssignedPartition(*partition, position)])
