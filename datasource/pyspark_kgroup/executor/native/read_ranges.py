"""Reads ranges with fetches of its own, as far as everything is ordinary.

Runs on: executor. Needs neither Spark nor the driver, and nothing of librdkafka.

Where anything is out of the ordinary, it says from which offsets another reader is to go on, and that is where its rows
end. One thing it decides itself, since librdkafka would not see it: records that are gone while others have their
offsets (`LogLost`). That is an error, or a warning, as `range_reader` has it.
"""

from __future__ import annotations

import logging
from collections.abc import Generator, Iterator, Sequence
from ctypes import CDLL
from functools import partial

import pyarrow as pa

from pyspark_kgroup.errors import DataLoss
from pyspark_kgroup.executor.native.connection_security import ConnectionSecurity
from pyspark_kgroup.executor.native.decode import Decoder, Unusual
from pyspark_kgroup.executor.native.fetch_settings import FetchSettings
from pyspark_kgroup.executor.native.fetched_log import LogLost
from pyspark_kgroup.executor.native.fetcher import Chunk, Fetcher
from pyspark_kgroup.executor.native.means import native_means
from pyspark_kgroup.limits import FETCH_JOINED_BYTES_MAX, FETCH_LARGE_BYTES
from pyspark_kgroup.offsets.data_loss import WAYS_OUT
from pyspark_kgroup.shared.arrow import rebatch
from pyspark_kgroup.shared.tickets import Range, ReadSettings
from spark_kgroup.model import TopicPartition

log = logging.getLogger(__name__)


def read_natively(ranges: Sequence[Range], settings: ReadSettings) -> Generator[pa.RecordBatch, None, Sequence[Range]]:
    """Read every range to its end, or to where something unusual begins.

    Args:
        ranges: at most one for each partition.
        settings: how to read them.

    Yields:
        Batches as `range_reader.read_ranges` does.

    Returns:
        What is left of the ranges: nothing of it has been in a batch.

    Raises:
        DataLoss: as `range_reader.read_ranges`.
    """
    unread = {TopicPartition(r.topic, r.partition): r for r in ranges if r.start_offset < r.end_offset}
    if not unread:
        return ()
    means = native_means(settings)
    if means is None:
        return tuple(unread.values())
    reading = _Reading(unread, settings, *means)
    try:
        yield from reading.batches()
    except Unusual as unusual:
        unusual.tell()
        yield from reading.rest()
    finally:
        reading.close()
    return tuple(unread.values())


class _Reading:
    """One read of some ranges.

    Args:
        unread: what is left of them: kept up to what has been made a batch.
    """

    def __init__(
        self,
        unread: dict[TopicPartition, Range],
        settings: ReadSettings,
        decoder: CDLL,
        fetch_settings: FetchSettings,
        security: ConnectionSecurity,
    ) -> None:
        self._unread = unread
        self._library = decoder
        self._include_headers = settings.include_headers
        self._decoders: dict[TopicPartition, Decoder] = {}
        self._fail_on_data_loss = settings.fail_on_data_loss
        self._new_fetcher = partial(Fetcher, fetch_settings, security)
        self._fetcher = self._new_fetcher()
        self._small: list[pa.RecordBatch] = []
        self._small_bytes = 0

    def batches(self) -> Iterator[pa.RecordBatch]:
        """All of the ranges.

        Raises:
            Unusual: the rest is another reader's; first of all `rest` is to be taken.
            DataLoss: some of it is gone, and that is an error.
        """
        while self._unread:
            try:
                yield from self._fetched()
            except LogLost as lost:
                if self._fail_on_data_loss:
                    raise DataLoss(f"{lost.loss} {WAYS_OUT}") from None
                self._skip(lost)
        yield from self.rest()

    def _fetched(self) -> Iterator[pa.RecordBatch]:
        left = self._fetcher.left
        for partition, r in self._unread.items():
            if r.leader is None:
                left[partition] = Unusual(f"the driver did not know who leads {partition}")
                continue
            self._fetcher.add(partition, r.leader, r.start_offset, r.end_offset)
        while len(self._unread) > len(left):
            self._fetcher.ask()
            for connection in self._fetcher.ready():
                for chunk in self._fetcher.take(connection):
                    yield from self._decoded(chunk)
                    del chunk  # it keeps the memory of the answer from being used again
        if left:
            raise next(iter(left.values()))

    def _skip(self, lost: LogLost) -> None:
        """Leave out what is gone; what else was in the answer that told so is fetched again."""
        log.warning("Data loss: %s Skipping to offset %d.", lost.loss, lost.goes_on_at)
        self._move(lost.loss.partition, lost.goes_on_at)
        self._fetcher.close()
        self._fetcher = self._new_fetcher()

    def rest(self) -> Iterator[pa.RecordBatch]:
        """What waits to be joined."""
        small, self._small, self._small_bytes = self._small, [], 0
        if small:
            yield from rebatch(small)

    def close(self) -> None:
        """End what is under way."""
        self._fetcher.close()

    def _decoded(self, chunk: Chunk) -> Iterator[pa.RecordBatch]:
        partition, position, complete = chunk.partition, chunk.position, False
        if partition not in self._decoders:
            topic, number = partition
            self._decoders[partition] = Decoder(self._library, topic, number, include_headers=self._include_headers)
        end = self._unread[partition].end_offset
        while not complete:
            decoded = self._decoders[partition].decode(chunk.records, position, end, chunk.aborted)
            position, complete = decoded.next_offset, decoded.complete
            self._move(partition, position)
            for batch in decoded.batches:
                yield from self._joined(batch)
        if position != chunk.next_offset:
            raise Unusual(f"{partition}: batches end at offset {position}, and their headers say {chunk.next_offset}")

    def _move(self, partition: TopicPartition, position: int) -> None:
        r = self._unread[partition]._replace(start_offset=position)
        self._unread[partition] = r
        if position >= r.end_offset:
            del self._unread[partition]

    def _joined(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """`batch`, or what was waiting to be joined with it."""
        large = batch.nbytes > FETCH_LARGE_BYTES
        if large or self._small_bytes + batch.nbytes > FETCH_JOINED_BYTES_MAX:
            yield from self.rest()
        if large:
            yield batch
            return
        self._small.append(batch)
        self._small_bytes += batch.nbytes
