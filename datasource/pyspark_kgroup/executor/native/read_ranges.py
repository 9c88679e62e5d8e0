"""Reads ranges with fetches of its own, as far as everything is ordinary.

Runs on: executor. Needs neither Spark nor the driver, and nothing of librdkafka.

It decides nothing: where anything is out of the ordinary, it says from which offsets another reader is to go on, and
that is where its rows end.
"""

from __future__ import annotations

import logging
from collections.abc import Generator, Iterator, Sequence
from ctypes import CDLL

import pyarrow as pa

from pyspark_kgroup.executor.native import library
from pyspark_kgroup.executor.native.connection_security import ConnectionSecurity, connection_security
from pyspark_kgroup.executor.native.decode import Decoder, Unusual
from pyspark_kgroup.executor.native.fetch_settings import FetchSettings
from pyspark_kgroup.executor.native.fetcher import Chunk, Fetcher
from pyspark_kgroup.limits import FETCH_JOINED_BYTES_MAX
from pyspark_kgroup.shared.arrow import rebatch
from pyspark_kgroup.shared.tickets import Range, ReadSettings
from spark_kgroup.errors import KgroupError
from spark_kgroup.model import TopicPartition

log = logging.getLogger(__name__)

_warned: set[str] = set()
"""Why this process does not read natively: it stays so, and is said once."""


def read_natively(ranges: Sequence[Range], settings: ReadSettings) -> Generator[pa.RecordBatch, None, Sequence[Range]]:
    """Read every range to its end, or to where something unusual begins.

    Args:
        ranges: at most one for each partition.
        settings: how to read them.

    Yields:
        Batches as `range_reader.read_ranges` does.

    Returns:
        What is left of the ranges: nothing of it has been in a batch.
    """
    unread = {TopicPartition(r.topic, r.partition): r for r in ranges if r.start_offset < r.end_offset}
    if not unread:
        return ()
    try:
        means = _means(settings)
    except Unusual as unusual:
        if unusual.reason not in _warned:
            _warned.add(unusual.reason)
            log.warning("Reading with librdkafka, which is slower: %s.", unusual.reason)
        return tuple(unread.values())
    reading = _Reading(unread, settings, *means)
    try:
        yield from reading.batches()
    except Unusual as unusual:
        log.info("Reading on with librdkafka: %s.", unusual.reason)
        yield from reading.rest()
    finally:
        reading.close()
    return tuple(unread.values())


def _means(settings: ReadSettings) -> tuple[CDLL, FetchSettings, ConnectionSecurity]:
    """What reading natively needs whatever the ranges.

    Raises:
        Unusual: this process does not have it.
    """
    loaded = library.load()
    if loaded.library is None:
        raise Unusual(loaded.reason)
    fetch_settings = FetchSettings.of(settings.consumer_config)
    try:
        return loaded.library, fetch_settings, connection_security(settings.consumer_config)
    except KgroupError as problem:
        raise Unusual(str(problem).rstrip(".")) from None


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
        self._fetcher = Fetcher(fetch_settings, security)
        self._small: list[pa.RecordBatch] = []
        self._small_bytes = 0

    def batches(self) -> Iterator[pa.RecordBatch]:
        """All of the ranges.

        Raises:
            Unusual: the rest is another reader's; first of all `rest` is to be taken.
        """
        for partition, r in self._unread.items():
            if r.leader is None:
                raise Unusual(f"the driver did not know who leads {partition}")
            self._fetcher.add(partition, r.leader, r.start_offset, r.end_offset)
        self._fetcher.ask()
        while self._unread:
            for connection in self._fetcher.ready():
                for chunk in self._fetcher.take(connection):
                    yield from self._decoded(chunk)
        yield from self.rest()

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
        large = batch.nbytes > FETCH_JOINED_BYTES_MAX // 2
        if large or self._small_bytes + batch.nbytes > FETCH_JOINED_BYTES_MAX:
            yield from self.rest()
        if large:
            yield batch
            return
        self._small.append(batch)
        self._small_bytes += batch.nbytes
