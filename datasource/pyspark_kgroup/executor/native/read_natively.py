"""Reads ranges natively, up to the first records or answers that are not ordinary.

Runs on: executor. Needs neither Spark nor the driver nor librdkafka.

At the first unusual answer it returns the offsets from which librdkafka is to go on, which is where its rows end, and
why (`Left`). It decides two cases itself, since librdkafka would not see them: records that are gone although the log
has other records at their offsets (`LogLost`: an error or a warning, as in `unread_ranges`), and a topic that this user
may not read (`Refused`: final, unless this user could read it before, and it has not lasted long).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from ctypes import CDLL
from functools import partial
from typing import NamedTuple

import pyarrow as pa

from pyspark_kgroup.errors import DataLoss
from pyspark_kgroup.executor.native.connection_security import ConnectionSecurity
from pyspark_kgroup.executor.native.decode import Decoder, FallbackToLibrdkafka
from pyspark_kgroup.executor.native.fetch_settings import FetchSettings
from pyspark_kgroup.executor.native.fetched_log import LogLost, Refused
from pyspark_kgroup.executor.native.fetcher import Chunk, Fetcher
from pyspark_kgroup.executor.native.reader_setup import native_reader_setup
from pyspark_kgroup.limits import FETCH_JOINED_BYTES_MAX, FETCH_LARGE_BYTES
from pyspark_kgroup.offsets.data_loss import WAYS_OUT
from pyspark_kgroup.shared.arrow import rebatch
from pyspark_kgroup.shared.tickets import OffsetRange, ReadSettings
from spark_kgroup.model import TopicPartition
from spark_kgroup.rights import Rights

log = logging.getLogger(__name__)


class Left(NamedTuple):
    """The ranges that librdkafka is to go on with.

    Attributes:
        ranges: none of their records has been in a batch.
        reasons: why partitions are left. One that was still being read when another one's reason ended the read has
            none.
        quiet_since_s: when records last came, or the read began (`time.monotonic`).
    """

    ranges: Sequence[OffsetRange]
    reasons: Mapping[TopicPartition, FallbackToLibrdkafka]
    quiet_since_s: float


def read_natively(ranges: Sequence[OffsetRange], settings: ReadSettings) -> Generator[pa.RecordBatch, None, Left]:
    """Read every range to its end, or to the first unusual answer.

    Args:
        ranges: at most one for each partition.
        settings: how to read them.

    Yields:
        Batches as `range_reader.read_with_librdkafka` does.

    Returns:
        The rest of the ranges.

    Raises:
        BrokerError: this user may not read a topic.
        DataLoss: as `range_reader.read_with_librdkafka`.
    """
    unread = {TopicPartition(r.topic, r.partition): r for r in ranges if r.start_offset < r.end_offset}
    if not unread:
        return Left((), {}, time.monotonic())
    try:
        setup = native_reader_setup(settings)
    except FallbackToLibrdkafka as fallback:
        fallback.tell()
        return Left(tuple(unread.values()), dict.fromkeys(unread, fallback), time.monotonic())
    reading = _Reading(unread, settings, *setup)
    try:
        yield from reading.batches()
    except Refused as refused:
        raise refused.error from None
    except FallbackToLibrdkafka as fallback:
        fallback.tell()
        yield from reading.rest()
        return reading.left(fallback)
    finally:
        reading.close()
    return Left((), {}, time.monotonic())


class _Reading:
    """One read of some ranges.

    Args:
        unread: the rest of each range. It is kept up to date: records that are in a batch are no longer in it.
    """

    def __init__(
        self,
        unread: dict[TopicPartition, OffsetRange],
        settings: ReadSettings,
        decoder: CDLL,
        fetch_settings: FetchSettings,
        security: ConnectionSecurity,
    ) -> None:
        self._unread = unread
        self._library = decoder
        self._wanted = {
            "include_headers": settings.include_headers,
            "include_timestamps": settings.include_timestamps,
        }
        self._decoders: dict[TopicPartition, Decoder] = {}
        self._fail_on_data_loss = settings.fail_on_data_loss
        self._new_fetcher = partial(Fetcher, fetch_settings, security)
        self._fetcher = self._new_fetcher()
        self._patience_s = settings.stall_timeout_ms / 2000  # the other half is librdkafka's
        self._quiet_since_s = time.monotonic()
        self._rights = {p.topic: Rights(granted=settings.may_read) for p in unread}
        self._small: list[pa.RecordBatch] = []
        self._small_bytes = 0

    def batches(self) -> Iterator[pa.RecordBatch]:
        """All of the ranges.

        Raises:
            FallbackToLibrdkafka: librdkafka is to read on, after the caller has taken the batches of `rest`.
            Refused: this user may not read a topic.
            DataLoss: records are gone, and `fail_on_data_loss` is set.
        """
        while self._unread:
            try:
                yield from self._fetched()
            except LogLost as lost:
                if self._fail_on_data_loss:
                    raise DataLoss(f"{lost.loss} {WAYS_OUT}") from None
                self._skip(lost)
            except Refused as refused:
                self._await_right(refused)
        yield from self.rest()

    def _fetched(self) -> Iterator[pa.RecordBatch]:
        left = self._fetcher.left
        for partition, r in self._unread.items():
            if r.leader is None:
                left[partition] = FallbackToLibrdkafka(f"the driver did not know who leads {partition}")
                continue
            self._fetcher.add(partition, r.leader, r.start_offset, r.end_offset)
        while len(self._unread) > len(left):
            self._fetcher.ask()
            for connection in self._fetcher.ready(self._quiet_since_s + self._patience_s - time.monotonic()):
                for chunk in self._fetcher.take(connection):
                    try:
                        yield from self._decoded(chunk)
                    except FallbackToLibrdkafka as fallback:
                        # All ranges end here: the fetcher's positions are ahead of the decoded rows.
                        left[chunk.partition] = fallback
                        raise
                    self._rights[chunk.partition.topic].on_granted()
                    self._quiet_since_s = time.monotonic()  # not before: brokers are not silent while Spark works
                    del chunk  # it keeps the memory of the answer from being used again
            if time.monotonic() >= self._quiet_since_s + self._patience_s:
                raise FallbackToLibrdkafka(f"no record came for {self._patience_s:g} s")
        if left:
            raise next(iter(left.values()))

    def _skip(self, lost: LogLost) -> None:
        """Leave out the lost records. The rest of the answer that told of the loss is fetched again."""
        log.warning("Data loss: %s Skipping to offset %d.", lost.loss, lost.goes_on_at)
        self._move(lost.loss.partition, lost.goes_on_at)
        self._begin_anew()

    def _await_right(self, refused: Refused) -> None:
        """Ask again for a topic that could be read before. The caller has waited for `FETCH_TROUBLE_MS` already.

        Raises:
            Refused: it could not be read before, or has been refused for too long.
        """
        if not self._rights[refused.partition.topic].may_come_back(int(time.monotonic() * 1000)):
            raise refused
        log.warning("%s The topic could be read before: asking again.", refused.error)
        self._begin_anew()

    def _begin_anew(self) -> None:
        self._fetcher.close()
        self._fetcher = self._new_fetcher()

    def left(self, fallback: FallbackToLibrdkafka) -> Left:
        """The ranges without the records that have been in a batch, now that `fallback` has ended the read."""
        reasons = self._fetcher.left
        if fallback not in reasons.values():
            reasons = dict.fromkeys(self._unread, fallback) | reasons
        return Left(tuple(self._unread.values()), reasons, self._quiet_since_s)

    def rest(self) -> Iterator[pa.RecordBatch]:
        """The small batches that wait to be joined, joined."""
        small, self._small, self._small_bytes = self._small, [], 0
        if small:
            yield from rebatch(small)

    def close(self) -> None:
        """End the fetcher's connections."""
        self._fetcher.close()

    def _decoded(self, chunk: Chunk) -> Iterator[pa.RecordBatch]:
        partition, position, complete = chunk.partition, chunk.position, False
        if partition not in self._decoders:
            topic, number = partition
            self._decoders[partition] = Decoder(self._library, topic, number, **self._wanted)
        end = self._unread[partition].end_offset
        while not complete:
            decoded = self._decoders[partition].decode(chunk.records, position, end, chunk.aborted)
            position, complete = decoded.next_offset, decoded.complete
            # These rows count as read from here on: `rest` hands over those that wait.
            self._move(partition, position)
            for batch in decoded.batches:
                yield from self._joined(batch)
        # The next request went out by the headers' word: a difference would leave rows out, or repeat them.
        if position != chunk.next_offset:
            raise FallbackToLibrdkafka(
                f"{partition}: batches end at offset {position}, and their headers say {chunk.next_offset}"
            )

    def _move(self, partition: TopicPartition, position: int) -> None:
        r = self._unread[partition]._replace(start_offset=position)
        self._unread[partition] = r
        if position >= r.end_offset:
            del self._unread[partition]

    def _joined(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """The batches to hand on now that `batch` has come: large ones, and small ones that fill a joined batch."""
        large = batch.nbytes > FETCH_LARGE_BYTES
        if large or self._small_bytes + batch.nbytes > FETCH_JOINED_BYTES_MAX:
            yield from self.rest()
        if large:
            yield batch
            return
        self._small.append(batch)
        self._small_bytes += batch.nbytes
