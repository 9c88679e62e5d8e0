"""Fetches ahead for a seat's server, natively.

Runs on: executor.

One request is under way on each connection, always, while there is room: a long poll, which the broker answers when
records are there. Small answers wait undecoded until together they are worth a record batch, or until a read begins:
the bytes of successive answers, one after the other, are those of one larger answer.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from ctypes import CDLL
from dataclasses import dataclass, field
from typing import Final

from pyspark_kgroup.executor.native.broker_connection import BrokerConnection, Connecting
from pyspark_kgroup.executor.native.connection_security import ConnectionSecurity
from pyspark_kgroup.executor.native.decode import Decoder, FallbackToLibrdkafka
from pyspark_kgroup.executor.native.fetch_settings import FetchSettings
from pyspark_kgroup.executor.native.fetcher import Chunk, Fetcher
from pyspark_kgroup.executor.sidecar.prefetch_buffer import PrefetchBuffer
from pyspark_kgroup.limits import (
    ABORTED_TRANSACTION_BYTES,
    DECODED_BYTES_MAX,
    FETCH_BYTES_MIN,
    FETCH_UNDECODED_BYTES_MAX,
    SEAT_SERVER_LOOK_S,
)
from pyspark_kgroup.shared.tickets import Leader
from spark_kgroup.model import TopicPartition

_ALL: Final = sys.maxsize
"""Above any offset."""


@dataclass(slots=True)
class _Undecoded:
    """Record batches of one partition, from where its span ends up to `next_offset`.

    Attributes:
        size: bytes of the batches and of the listed aborted transactions: a broker may list many for few records.
    """

    partition: TopicPartition
    next_offset: int = 0
    size: int = 0
    pieces: list[bytes] = field(default_factory=list)
    aborted: set[tuple[int, int]] = field(default_factory=set)

    def add(self, chunk: Chunk) -> int:
        """Append a chunk that came. Returns by how much `size` has grown."""
        listed = len(self.aborted)
        self.pieces.append(bytes(chunk.records))  # a copy: the next answer overwrites that memory
        self.aborted.update(chunk.aborted)
        self.next_offset = chunk.next_offset
        grown = len(chunk.records) + ABORTED_TRANSACTION_BYTES * (len(self.aborted) - listed)
        self.size += grown
        return grown

    def joined(self, position: int) -> Chunk:
        """The pieces as if they had come in one answer, where the span ends at `position`."""
        records = memoryview(self.pieces[0] if len(self.pieces) == 1 else b"".join(self.pieces))
        return Chunk(self.partition, position, None, self.next_offset, records, sorted(self.aborted))


class Prefetcher:
    """Fetches partitions that have a span in a `PrefetchBuffer`, each from the end of its span on.

    All methods but `end` and `close` raise `FallbackToLibrdkafka` if a partition cannot be fetched natively.

    Args:
        ahead: of the seat.
        quota: how many bytes the seat may hold ahead by now.
        library: the decoder.
        settings: how to fetch.
        security: TLS and SASL.
        include_headers: as `Decoder`.
        include_timestamps: as `Decoder`.
    """

    def __init__(
        self,
        ahead: PrefetchBuffer,
        quota: Callable[[], int],
        library: CDLL,
        settings: FetchSettings,
        security: ConnectionSecurity,
        *,
        include_headers: bool,
        include_timestamps: bool = True,
    ) -> None:
        self._ahead = ahead
        self._quota = quota
        self._library = library
        self._bytes_max = settings.bytes_max
        self._wanted = {"include_headers": include_headers, "include_timestamps": include_timestamps}
        self._fetcher = Fetcher(settings, security)
        self._leaders: dict[TopicPartition, Leader | None] = {}
        self._fetched: set[TopicPartition] = set()
        self._paused: set[TopicPartition] = set()  # wait for room. Neither fetched nor paused: no known leader
        self._brokers = 0
        self._undecoded: dict[TopicPartition, _Undecoded] = {}
        self._undecoded_bytes = 0
        self._growth = 1.0  # by how much `_undecoded` grows when it is decoded: as the last chunk that was kept did
        self._decoders: dict[TopicPartition, Decoder] = {}
        self._last_epochs: dict[TopicPartition, int] = {}  # of the last batch in the span

    def begin(self, leaders: Mapping[TopicPartition, Leader | None]) -> None:
        """Fetch these from now on. Those that are fetched already go on, from another broker if that leads by now."""
        moved = {
            partition: leader
            for partition, leader in leaders.items()
            if partition not in self._leaders or self._leaders[partition] != leader
        }
        # Answers of the former leader that are on their way are given up: the new one is asked from the span's end.
        self._pause(moved)
        for partition, leader in moved.items():
            before = self._leaders.get(partition)
            if before is None or leader is None or before.topic_id != leader.topic_id:
                self._last_epochs.pop(partition, None)  # it may be another log
        self._leaders |= moved
        self._paused.update(partition for partition, leader in moved.items() if leader is not None)
        self._paused.difference_update(partition for partition, leader in moved.items() if leader is None)
        self._brokers = len({leader.node_id for leader in self._leaders.values() if leader is not None})

    def end(self, partitions: Collection[TopicPartition]) -> None:
        """Stop fetching these. Their records that are not in a span yet are forgotten."""
        self._pause(partitions)
        for partition in partitions:
            self._paused.discard(partition)
            self._leaders.pop(partition, None)
            self._decoders.pop(partition, None)
            self._last_epochs.pop(partition, None)

    def flush(self) -> None:
        """Put all records that have come into the spans. Those that find no room are fetched again later."""
        for partition in list(self._undecoded):
            chunk = self._wait_no_more(partition)
            if self._room() > 0:
                self._keep_decoded(chunk)
            else:
                self._pause([partition])

    def prefetch(self) -> float | None:
        """Between reads: fetch ahead, as far as there is room.

        Returns:
            How many seconds to wait for `connections` before `take`, or None to wait until one of them is readable.
        """
        room = self._room()
        if room > 0:
            self._fetch_too(self._paused)
            self._fetcher.ask(bytes_max=self._divide_room(room))
        return self._fetcher.wait_s()

    def connections(self) -> Sequence[BrokerConnection | Connecting]:
        """The connections on which records may come, for `select`."""
        return self._fetcher.readables()

    def take(self) -> None:
        """Between reads: take the records that have come."""
        if self._fetcher.waits():
            for connection in self._fetcher.ready(0):
                self._take(connection)

    def fetch(self, unread: Mapping[TopicPartition, int]) -> None:
        """In a read: put the records of these partitions that have come into their spans. Wait briefly for the first.

        Args:
            unread: partition -> one past the last offset that is wanted now.

        Raises:
            FallbackToLibrdkafka: none of them can be fetched natively. Those that can were read before.
        """
        if self._room() > 0:
            self._fetch_too(self._paused)
        else:
            # Records of partitions that this read does not want would find no room.
            self._pause([partition for partition in self._fetched if partition not in unread])
            self._fetch_too(self._paused.intersection(unread))
        failed = [failure for partition in unread if (failure := self._failure(partition)) is not None]
        if failed and len(failed) == len(unread):
            raise failed[0]  # only now: partitions without a failure were read first
        self._fetcher.ask(at_once=True)  # not bounded by the room: the read takes these rows out at once
        for connection in self._fetcher.ready(SEAT_SERVER_LOOK_S):
            self._take(connection, unread)

    def close(self) -> None:
        """Close its connections. Safe to call twice."""
        self._fetcher.close()

    def _failure(self, partition: TopicPartition) -> FallbackToLibrdkafka | None:
        """Why it cannot be fetched natively, or None if it can."""
        if partition not in self._fetched:
            return FallbackToLibrdkafka(f"the driver did not know who leads {partition}")
        return self._fetcher.left.get(partition)

    def _room(self) -> int:
        """Bytes that may still be held ahead. Undecoded records count as large as they may become."""
        return self._quota() - self._ahead.bytes - int(self._undecoded_bytes * self._growth)

    def _divide_room(self, room: int) -> int:
        """How many bytes each broker may answer, so that all answers fit. One record batch comes whole."""
        return min(max(room // max(1, self._brokers), FETCH_BYTES_MIN), self._bytes_max)

    def _fetch_too(self, partitions: Collection[TopicPartition]) -> None:
        """Fetch these too, each from where its span ends."""
        for partition in list(partitions):
            leader = self._leaders[partition]
            assert leader is not None
            last_epoch = self._last_epochs.get(partition, -1)
            self._fetcher.add(partition, leader, self._ahead.next_offset(partition), last_epoch=last_epoch)
            self._paused.discard(partition)
            self._fetched.add(partition)

    def _pause(self, partitions: Collection[TopicPartition]) -> None:
        """Stop fetching these for now, and forget their records that are not in a span."""
        fetched = self._fetched.intersection(partitions)
        if fetched:
            self._fetched -= fetched
            self._paused |= fetched
            self._fetcher.drop(fetched)
        for partition in partitions:
            if partition in self._undecoded:
                self._wait_no_more(partition)

    def _take(self, connection: BrokerConnection, unread: Mapping[TopicPartition, int] | None = None) -> None:
        """Keep the records that come on `connection`. The broker is asked for more first: it reads while we decode.

        Args:
            connection: one that is readable.
            unread: in a read, the argument of `fetch`. None between reads.
        """
        chunks = self._fetcher.take(connection, go_on=False)  # asked below, as far as there is room
        # `_room` does not count the chunks yet, and the next request must leave room for them.
        room = self._room() - sum(len(chunk.records) for chunk in chunks)
        if unread is not None:
            if room <= 0:
                # The read has all of these partitions' records, and further ones would find no room.
                self._pause([c.partition for c in chunks if c.next_offset >= unread.get(c.partition, _ALL)])
            self._fetcher.ask(at_once=True)
        elif room > 0:
            self._fetcher.ask(bytes_max=self._divide_room(room))
        # One bound for all chunks: each of them may decompress to as much by itself.
        bytes_max = DECODED_BYTES_MAX
        for chunk in chunks:
            if unread is None:
                self._keep(chunk)
            else:
                bytes_max -= self._read(chunk, unread.get(chunk.partition, 0), bytes_max)

    def _read(self, chunk: Chunk, end: int, bytes_max: int) -> int:
        """Decode the records that are wanted now, up to `end`, and keep the rest if there is room.

        Returns:
            How many bytes of it are wanted now.
        """
        held = self._ahead.bytes
        if bytes_max > 0:
            self._decode(chunk, end, bytes_max)
        wanted = self._ahead.bytes - held
        if self._ahead.next_offset(chunk.partition) >= end and self._room() > 0:
            self._keep_decoded(chunk)
        else:
            self._pause_if_cut(chunk)
        return wanted

    def _keep(self, chunk: Chunk) -> None:
        """Keep it undecoded as long as few bytes of its partition wait."""
        partition = chunk.partition
        if partition not in self._undecoded and len(chunk.records) >= FETCH_UNDECODED_BYTES_MAX:
            self._keep_decoded(chunk)
            return
        waiting = self._undecoded.setdefault(partition, _Undecoded(partition))
        self._undecoded_bytes += waiting.add(chunk)
        if waiting.size >= FETCH_UNDECODED_BYTES_MAX:
            self._keep_decoded(self._wait_no_more(partition))

    def _wait_no_more(self, partition: TopicPartition) -> Chunk:
        waiting = self._undecoded.pop(partition)
        self._undecoded_bytes -= waiting.size
        return waiting.joined(self._ahead.next_offset(partition))

    def _keep_decoded(self, chunk: Chunk) -> None:
        """Decode and keep as much as there is room for, and in any case as many bytes as the chunk has.

        Room for the bytes of the chunk was left when it was fetched.
        """
        held, size = self._ahead.bytes, len(chunk.records)
        self._decode(chunk, _ALL, max(0, self._room()) + size)
        self._growth = max(1.0, (self._ahead.bytes - held) / size)
        self._pause_if_cut(chunk)

    def _pause_if_cut(self, chunk: Chunk) -> None:
        if self._ahead.next_offset(chunk.partition) != chunk.next_offset:
            self._pause([chunk.partition])  # it goes on from the end of its span

    def _decode(self, chunk: Chunk, end: int, bytes_max: int) -> None:
        """Put records into the span, from where that ends up to `end`, or until they have become `bytes_max`.

        Raises:
            FallbackToLibrdkafka: they are not ordinary. The records before them are in the span.
        """
        partition = chunk.partition
        position = self._ahead.next_offset(partition)
        if position >= min(end, chunk.next_offset):
            return
        decoded = self._decoder(partition).decode(chunk.records, position, end, chunk.aborted, bytes_max)
        for batch in decoded.batches:
            self._ahead.add(batch, partition)
        self._ahead.advance(partition, decoded.next_offset)
        if decoded.leader_epoch >= 0:
            self._last_epochs[partition] = decoded.leader_epoch
        # The next request went out by the headers' word: a difference would leave rows out, or repeat them.
        if decoded.complete and decoded.next_offset != min(end, chunk.next_offset):
            raise FallbackToLibrdkafka(
                f"{partition}: batches end at offset {decoded.next_offset}, and their headers say {chunk.next_offset}"
            )

    def _decoder(self, partition: TopicPartition) -> Decoder:
        if partition not in self._decoders:
            topic, number = partition
            self._decoders[partition] = Decoder(self._library, topic, number, **self._wanted)
        return self._decoders[partition]
