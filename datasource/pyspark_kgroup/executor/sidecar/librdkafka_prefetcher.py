"""Fetches ahead for a seat's server with librdkafka: records that are not ordinary, or all if a query wants it so.

Runs on: executor. Threads: librdkafka's own.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Final, cast

from confluent_kafka import Consumer, KafkaError, KafkaException, Message
from confluent_kafka import TopicPartition as AssignedPartition

from pyspark_kgroup.executor.read.consumer_security import credential_files, usable_here
from pyspark_kgroup.executor.read.range_reader import RECORDS_AT_ONCE, RECORDS_FIRST
from pyspark_kgroup.executor.read.records import record_batch
from pyspark_kgroup.executor.sidecar.prefetch_buffer import PrefetchBuffer
from pyspark_kgroup.executor.sidecar.prefetcher import CannotServe, Readable
from pyspark_kgroup.limits import ARROW_BATCH_BYTES_MAX, SEAT_SERVER_LOOK_S, SEAT_SERVER_QUEUE_BYTES_MAX
from pyspark_kgroup.shared.tickets import Leader
from spark_kgroup.errors import KgroupError
from spark_kgroup.model import TopicPartition
from spark_kgroup.uncollected import uncollected

log = logging.getLogger(__name__)

_TICK_S: Final = 0.02
"""How often the consumer is asked for more between reads (a request is heard at once). At 200 ms a batch, a tenth of
it may still be in librdkafka's queue when the batch is asked for. 50 times a second cost 0.5 % of a core."""

_FETCH_BYTES_MIN: Final = "65536"
"""How many bytes a fetch waits for, up to fetch.wait.max.ms. Measured at 1,000 records/s: with librdkafka's 1 byte a
broker answers each time a record is produced, which takes both a third of a core more, and reads end no sooner."""

_FRESH_MAX: Final = 1_024
_FRESH_BYTES_MAX: Final = 256 * 1024
"""Records wait for each other, up to either, until they are converted: a batch costs as much as 500 records (measured),
and at 1,000 records/s a few come at a time."""


class LibrdkafkaPrefetcher:
    """A `Prefetcher` with a consumer that stays warm, until certificates on this machine change.

    librdkafka reads those when a consumer is made, so the next read then begins with a new one. Its own `set_ssl_cert`
    is not in its Python client.

    Args:
        ahead: of the seat.
        share: how many bytes the seat may hold ahead by now.
        consumer_config: librdkafka's configuration (`SourceOptions.consumer_config`).
        include_headers: as `record_batch`.
        include_timestamps: as `record_batch`.
    """

    def __init__(
        self,
        ahead: PrefetchBuffer,
        share: Callable[[], int],
        consumer_config: Mapping[str, str],
        *,
        include_headers: bool,
        include_timestamps: bool = True,
    ) -> None:
        self._ahead = ahead
        self._share = share
        self._to_batch = partial(record_batch, include_headers=include_headers, include_timestamps=include_timestamps)
        self._fresh: list[Message] = []  # fetched, not yet converted. Empty while a read is served
        self._fresh_bytes = 0
        self._assigned: set[TopicPartition] = set()
        self._parked: set[TopicPartition] = set()  # those that are not fetched for now
        self._record_bytes = ARROW_BATCH_BYTES_MAX // RECORDS_FIRST
        self._queue_bytes = min(SEAT_SERVER_QUEUE_BYTES_MAX, share() // 2)
        self._own = {
            "queued.max.messages.kbytes": str(max(1, self._queue_bytes // 1024)),
            "fetch.min.bytes": _FETCH_BYTES_MIN,
            "error_cb": _log_error,
        }
        self._config = consumer_config
        self._files = credential_files(consumer_config)
        self._consumer = self._new_consumer()

    def _new_consumer(self) -> Consumer:
        return Consumer({**self._own, **usable_here(self._config)}, logger=log)

    def begin(self, leaders: Mapping[TopicPartition, Leader | None]) -> None:
        """As a `Prefetcher`. librdkafka finds leaders by itself. Each read begins with this call."""
        if self._files.take_change():
            self._follow_files()
        self._assign([partition for partition in leaders if partition not in self._assigned | self._parked])

    def _follow_files(self) -> None:
        """Go on with a consumer that has read the files as they are now, or with the earlier one if they do not fit."""
        try:
            renewed = self._new_consumer()
        except (KgroupError, KafkaException) as problem:  # a certificate may be renewed a moment before its key
            log.warning("Certificates have changed, and the earlier ones stay in use: %s", problem)
            return
        self.settle()
        self._consumer.close()
        self._consumer = renewed
        assigned, self._assigned = self._assigned, set()
        self._assign(assigned)

    def end(self, partitions: Collection[TopicPartition]) -> None:
        """As a `Prefetcher`."""
        self._unassign(partitions)
        self._parked.difference_update(partitions)

    def connections(self) -> tuple[Readable, ...]:
        """As a `Prefetcher`: librdkafka waits for its connections in its own threads."""
        return ()

    def take(self) -> None:
        """As a `Prefetcher`: `go_on` does it."""

    def close(self) -> None:
        """As a `Prefetcher`."""
        self._consumer.close()

    def go_on(self) -> float:
        """As a `Prefetcher`."""
        self._let_flow(())
        room = self._room()
        return 0.0 if room > 0 and self._poll(0, room, at_once=False) else _TICK_S

    def fetch(self, unread: Mapping[TopicPartition, int]) -> None:
        """As a `Prefetcher`."""
        self._let_flow(unread)
        if self._poll(0, ARROW_BATCH_BYTES_MAX, at_once=True):
            return
        moved = False
        for at in self._consumer.position(_as_assigned(unread)):  # negative where it is not known
            partition = TopicPartition(at.topic, at.partition)
            moved = moved or at.offset > self._ahead.next_offset(partition)
            self._ahead.advance(partition, at.offset)
        if not moved:
            self._poll(SEAT_SERVER_LOOK_S, ARROW_BATCH_BYTES_MAX, at_once=True)

    def settle(self) -> None:
        """As a `Prefetcher`: one batch, in which each partition's records are together."""
        messages, self._fresh, self._fresh_bytes = self._fresh, [], 0
        records = [message for message in messages if message.error() is None]
        if records:
            topics = set(map(Message.topic, records))
            records.sort(key=cast("Callable[[Message], int]", Message.partition))
            if len(topics) > 1:
                records.sort(key=cast("Callable[[Message], str]", Message.topic))
            batch = self._to_batch(records, topic=topics.pop() if len(topics) == 1 else None)
            self._record_bytes = 1 + batch.nbytes // batch.num_rows
            self._ahead.add(batch)
        for message in messages if len(records) < len(messages) else ():
            error = message.error()
            if error is not None:
                self._heed(message, error)

    def _poll(self, wait_s: float, bytes_max: int, *, at_once: bool) -> bool:
        """Take the records that have come by now. Returns whether there were any.

        Args:
            wait_s: for the first.
            bytes_max: of the records taken, by the size of those converted before.
            at_once: convert the records that came, however few they are.

        Raises:
            CannotServe: a partition cannot be read.
        """
        records_max = min(RECORDS_AT_ONCE, min(ARROW_BATCH_BYTES_MAX, bytes_max) // self._record_bytes)
        with uncollected():  # until the records are freed again, at the end of the call
            first = self._consumer.poll(wait_s)
            if first is None:
                return False
            polled = [first, *(self._consumer.consume(records_max - 1, 0) if records_max > 1 else ())]
            self._fresh += polled
            self._fresh_bytes += sum(map(len, polled))
            if at_once or len(self._fresh) >= _FRESH_MAX or self._fresh_bytes >= _FRESH_BYTES_MAX:
                del first, polled
                self.settle()
        return True

    def _heed(self, message: Message, error: KafkaError) -> None:
        partition = TopicPartition(message.topic() or "", cast("int", message.partition()))
        if error.code() == KafkaError._PARTITION_EOF:
            self._ahead.advance(partition, cast("int", message.offset()))
        elif partition in self._ahead.partitions:
            raise CannotServe(error.str())
        else:  # of the group, for instance, which we do not need
            _log_error(error)

    def _room(self) -> int:
        """Bytes that may still be fetched ahead, with librdkafka's queue counted as full.

        The queue got its size when the consumer was made: if other seats have come since and the share is smaller now,
        half of the share is left for converted records.
        """
        share = self._share()
        return max(share - self._queue_bytes, share // 2) - self._ahead.bytes - self._fresh_bytes

    def _let_flow(self, unread: Collection[TopicPartition]) -> None:
        """Fetch these partitions in any case, and the rest while there is room.

        Between reads, librdkafka's queue fills up, and it stops by itself. In a read it must go on with `unread`.
        Partitions without room are unassigned and not paused: after pause and resume, librdkafka was seen to fetch no
        records for seconds.
        """
        if self._room() <= 0:
            if unread:
                waiting = [partition for partition in self._assigned if partition not in unread]
                self._unassign(waiting)
                self._parked.update(waiting)
            self._assign(self._parked.intersection(unread))
        else:
            self._assign(self._parked)

    def _assign(self, partitions: Collection[TopicPartition]) -> None:
        """Fetch these from where their spans end."""
        if partitions:
            at = [AssignedPartition(*partition, self._ahead.next_offset(partition)) for partition in partitions]
            self._assigned.update(partitions)
            self._parked = self._parked.difference(partitions)
            self._consumer.incremental_assign(at)

    def _unassign(self, partitions: Collection[TopicPartition]) -> None:
        assigned = self._assigned.intersection(partitions)
        self._assigned -= assigned
        if assigned:
            self._consumer.incremental_unassign(_as_assigned(assigned))


def _log_error(error: KafkaError) -> None:
    """Log an error of the consumer or of a broker: librdkafka recovers, or the read stalls and its worker decides."""
    log.debug("%s", error.str())


def _as_assigned(partitions: Collection[TopicPartition]) -> list[AssignedPartition]:
    return [AssignedPartition(*partition) for partition in partitions]
