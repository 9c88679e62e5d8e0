"""Answers to Fetch, whole and mutated, through our own reader: connection, fetcher, decoder.

The rows are compared with the log as it was written. A mutated answer may be refused (`FallbackToLibrdkafka`), or its rows are
right: every batch that gave rows has the bytes that its checksum covers as they were written, and the rows are those of
these bytes. Fields that no checksum covers are believed as the answer has them, and only those:

- of a batch: its first offset, length, leader epoch and format,
- of which partition a batch is, among those that were asked for, which batches are there, and in which order,
- which transactions are aborted.

So a mutated answer may show rows at other offsets, in another partition that was asked for, too few rows, or those of
an aborted transaction, but no row that was never written. Where the mutation gave a changed batch a checksum that fits,
its rows are compared with those of a second, simple reader.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Sequence
from contextlib import suppress
from random import Random
from typing import Any, cast
from unittest.mock import patch

import crc32c
from harness.decoder import built_decoder
from harness.fetch_broker import SCHEMAS, TOPIC_ID

from fuzz.fetch_drafts import TOPICS_HAVE_IDS, AnswerDraft, PartitionDraft, TopicDraft
from fuzz.fetch_logs import CHECKED_FROM, PARTITIONS, Head, Log, Row, Written, rows_of, visible
from fuzz.fetch_mutations import Mutator
from fuzz.frames import varint
from fuzz.targets import Wrong
from pyspark_kgroup.executor.native import fetch_messages as messages
from pyspark_kgroup.executor.native import fetcher as fetcher_module
from pyspark_kgroup.executor.native.broker_connection import Broker, BrokerConnection
from pyspark_kgroup.executor.native.connection_security import ConnectionSecurity
from pyspark_kgroup.executor.native.decode import Decoder, FallbackToLibrdkafka
from pyspark_kgroup.executor.native.fetch_settings import FetchSettings
from pyspark_kgroup.executor.native.fetcher import Chunk, Fetcher
from pyspark_kgroup.shared.tickets import Leader
from spark_kgroup.model import TopicPartition

TOPIC = "t"
LEADER = Leader(1, "broker", 9092, 5, TOPIC_ID.hex)
BROKER = Broker("broker", 9092)
SETTINGS = {committed: FetchSettings.of({"isolation.level": f"read_{committed}"}) for committed in ("committed", "un")}
WHOLE = 0.1
"""How many answers are not mutated: these must be read to their last row."""

TICK_S = 0.001
"""What the clock turns beyond a pause, so that rounding leaves none of the pause over."""

FOREVER = 2**63 - 1


class Fetches:
    """Takes one answer at a time: answer `number` of a seed is always the same."""

    def __init__(self, seed: int) -> None:
        rng = Random(f"logs of {seed}")
        self._seed = seed
        self._library = built_decoder()
        self._logs = [Log(rng, number) for number in range(PARTITIONS)]
        self._written = {batch.checked: batch for log in self._logs for batch in log.batches}

    def take(self, number: int) -> str:
        """The outcome of one answer.

        Raises:
            Wrong: an outcome that no answer may have.
        """
        return _Case(Random(f"{self._seed} {number}"), self._logs, self._written, self._library).run()


class _Clock:
    """The fetcher's `time`, which only a pause turns: a slow machine would group requests otherwise."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def monotonic(self) -> float:
        return self.now_s


class _Case:
    """A fetcher that gets up to two whole answers, and then one that is mutated, mostly."""

    def __init__(self, rng: Random, logs: Sequence[Log], written: dict[bytes, Written], library: Any) -> None:
        self._rng = rng
        self._logs = logs
        self._written = written
        self._library = library
        self._committed = rng.random() < 0.5
        self._headers = rng.random() < 0.5
        self._version = rng.choice(sorted(SCHEMAS))
        self._mutator = Mutator(rng)
        self._positions: dict[TopicPartition, int] = {}
        self._ends: dict[TopicPartition, int | None] = {}
        self._mutates = False
        self._draft = AnswerDraft(self._version, 0, [])
        self._moved = False
        self._clock = _Clock()

    def run(self) -> str:
        """The outcome, which is the same on any machine. Raises as `Fetches.take`."""
        with patch.object(fetcher_module, "time", self._clock):
            return self._outcome()

    def _outcome(self) -> str:
        rng = self._rng
        settings = SETTINGS["committed" if self._committed else "un"]
        fetcher = _Unconnected(settings, self._connection)
        try:
            for number in range(PARTITIONS):
                self._add(fetcher, TopicPartition(TOPIC, number))
            fetcher.ask()
            for _ in range(rng.choice((0, 0, 1, 2))):
                self._read(fetcher)
            mutated = rng.random() >= WHOLE
            self._mutates = mutated
            try:
                rows = self._read(fetcher)
                if fetcher.left:
                    raise next(iter(fetcher.left.values()))
            except FallbackToLibrdkafka as fallback:
                if not mutated:
                    raise Wrong(f"a whole answer is refused: {fallback.reason}") from None
                return f"refused: {_kind(fallback.reason)}"
            self._mutates = False
            with suppress(FallbackToLibrdkafka):
                self._read(fetcher)
        finally:
            fetcher.close()
        if not mutated:
            return "whole: read"
        if not rows:
            return "mutated: no rows"
        return "mutated: rows that were moved" if self._moved else "mutated: rows as written"

    def _add(self, fetcher: Fetcher, partition: TopicPartition) -> None:
        log, rng = self._logs[partition.partition], self._rng
        position = rng.choice((0, 0, 3, rng.randrange(log.end)))
        end = rng.choice((None, log.end, rng.randrange(position + 1, log.end + 1)))
        if partition.partition == self._version % PARTITIONS:
            end = None  # so that there is always an offset left to ask for
        self._positions[partition], self._ends[partition] = position, end
        fetcher.add(partition, LEADER, position, end)

    # --------------------------------------------------------------------------------------------------- the broker

    def _connection(self) -> BrokerConnection:
        connection = BrokerConnection(BROKER, "fuzz", cast("Any", _Socket(self._rng, self._answer)))
        connection.fetch_version = self._version
        return connection

    def _answer(self, request: bytes) -> bytes:
        """A broker's answer, mutated when it is time for that."""
        if request[5] == messages.METADATA:
            return self._brokers(request)
        correlation_id, topics = _wanted(request, self._version)
        draft = AnswerDraft(self._version, correlation_id, [])
        for name, partitions in topics:
            draft.topics.append(TopicDraft(name, [self._fetched(*one) for one in partitions]))
        draft.throttle_ms = self._rng.choice((0, 0, 1))
        self._draft = draft
        return bytes(self._mutator.mutated(draft) if self._mutates else draft.frame())

    def _brokers(self, request: bytes) -> bytes:
        """Where brokers are, which a reader asks for that is sent to another one (KIP-392)."""
        nodes = [struct.pack(">i", node) + b"\x07broker" + struct.pack(">i", 9092) + b"\0\0" for node in (0, 1, 2)]
        rest = bytearray(request[8:12] + b"\0" + bytes(4) + varint(len(nodes) + 1) + b"".join(nodes) + bytes(12))
        if self._rng.random() < 0.3:
            self._mutator.change_bytes(rest)
        return struct.pack(">i", len(rest)) + rest

    def _fetched(self, number: int, offset: int) -> PartitionDraft:
        log, rng = self._logs[number], self._rng
        count = rng.choice((1, 1, 2, 4)) if self._mutates or number == 0 else rng.choice((1, 2, 8))
        batches = log.from_offset(offset, count)
        draft = PartitionDraft(number, [bytearray(batch.raw) for batch in batches], high_watermark=log.end)
        if self._committed:
            draft.aborted = log.aborted_among(batches)
        if rng.random() < 0.3 and (more := log.from_offset(offset, count + 1)[count:]):
            cut = more[0].raw[: rng.randrange(len(more[0].raw))]
            assert draft.records is not None
            draft.records.append(bytearray(cut))
        return draft

    # ---------------------------------------------------------------------------------------------------- the reader

    def _read(self, fetcher: Fetcher) -> int:
        """Take one answer, and judge it: the number of its rows."""
        while not fetcher.connections():  # all has to pause
            wait_s = fetcher.wait_s()
            assert wait_s is not None, "something is left to ask for, always"
            self._clock.now_s += wait_s + TICK_S
            fetcher.ask()
        connection = self._rng.choice(fetcher.connections())
        goes_on = self._rng.random() < 0.5
        chunks: list[Chunk] = []
        while connection in fetcher.connections():  # until the answer is whole
            chunks = fetcher.take(connection, go_on=False)
        if goes_on:
            fetcher.ask()
        self._compare_with_draft(chunks)
        rows = sum(self._judge(chunk) for chunk in chunks)
        fetcher.ask()
        return rows

    def _judge(self, chunk: Chunk) -> int:
        if chunk.position != self._positions[chunk.partition] or chunk.end != self._ends[chunk.partition]:
            raise Wrong(f"records from {chunk.position} where {self._positions[chunk.partition]} was asked for")
        found = self._decoded(chunk)
        expected = list(self._expected(chunk))
        if found != expected:
            raise Wrong(_difference(found, expected))
        self._positions[chunk.partition] = chunk.next_offset
        return len(found)

    def _decoded(self, chunk: Chunk) -> list[Row]:
        decoder = Decoder(self._library, *chunk.partition, include_headers=self._headers)
        rows: list[Row] = []
        decoded = decoder.decode(chunk.records, chunk.position, chunk.end or FOREVER, chunk.aborted)
        if not decoded.complete or decoded.next_offset != chunk.next_offset:
            raise Wrong(f"read up to {decoded.next_offset}, and {chunk.next_offset} is asked for next")
        for batch in decoded.batches:
            batch.validate(full=True)
            columns = {name: batch[name].to_pylist() for name in ("offset", "key", "value", "timestampType")}
            columns["timestamp"] = batch["timestamp"].cast("int64").to_pylist()
            headers = batch["headers"].to_pylist() if self._headers else [None] * batch.num_rows
            columns["headers"] = [tuple((h["key"], h["value"]) for h in each or ()) for each in headers]
            names = ("offset", "key", "value", "timestamp", "timestampType", "headers")
            rows += map(Row, *(columns[name] for name in names))
            if set(batch["partition"].to_pylist()) != {chunk.partition.partition}:
                raise Wrong("rows of another partition")
        return rows

    def _expected(self, chunk: Chunk) -> Iterator[Row]:
        """The rows of these bytes, by the log as written, and for the rest by a second reader."""
        end = chunk.end or FOREVER
        for head, checked in visible(_batches(bytes(chunk.records), end), chunk.aborted):
            written = self._written.get(checked)
            if head.last < chunk.position or not head.records:
                continue
            if written is not None:
                rows: Sequence[Row] = written.rows
                by = head.base - written.head.base
                self._moved |= by != 0 or written.partition != chunk.partition.partition
                rows = [row._replace(offset=row.offset + by) for row in rows] if by else rows
            elif checked in self._mutator.resealed:
                rows = list(rows_of(head, checked, chunk.position, end, headers=self._headers))
                self._moved = True
            else:
                raise Wrong("a batch passed that nobody wrote")
            for row in rows:
                if chunk.position <= row.offset < end:
                    yield row if self._headers else row._replace(headers=())

    def _compare_with_draft(self, chunks: Sequence[Chunk]) -> None:
        """Check that the answer was read as it was drafted, where its bytes are unchanged since."""
        if self._mutator.changed_bytes:
            return
        for chunk in chunks:
            drafts = [one for topic in self._draft.topics for one in topic.partitions]
            (draft,) = [one for one in drafts if one.number == chunk.partition.partition]
            if draft.error or not b"".join(draft.records or ()).startswith(chunk.records):
                raise Wrong(f"{chunk.partition} is not what the answer says of it")
            if (draft.aborted or []) != list(chunk.aborted):
                raise Wrong(f"aborted transactions {chunk.aborted} where the answer says {draft.aborted}")


def _batches(raw: bytes, end: int) -> Iterator[tuple[Head, bytes]]:
    """The whole batches that begin before `end`.

    Raises:
        Wrong: one does not have the checksum that it names, or overlaps the one before.
    """
    at, next_offset = 0, 0
    while (head := Head.of(raw, at)) is not None and head.base < end:
        checked = raw[at + CHECKED_FROM : at + head.size]
        if head.magic != 2 or crc32c.crc32c(checked) != head.checksum:
            raise Wrong("a batch passed whose checksum is another one")
        if head.base < next_offset:
            raise Wrong("a batch passed that overlaps the one before")
        yield head, checked
        at, next_offset = at + head.size, head.last + 1


def _difference(found: Sequence[Row], expected: Sequence[Row]) -> str:
    if len(found) != len(expected):
        return f"{len(found)} rows where {len(expected)} are right"
    return next(f"{one} where {other} is right" for one, other in zip(found, expected, strict=True) if one != other)


def _kind(reason: str) -> str:
    """The reason without the parts that differ each time."""
    return re.sub(r"[A-Z_]{6,}", "ERROR", re.sub(r"-?\d+", "#", re.sub(r"\(.*\)|broker:9092: |^t-\d: ", "", reason)))


def _wanted(request: bytes, version: int) -> tuple[int, list[tuple[bytes, list[tuple[int, int]]]]]:
    """Correlation id, and for each topic the partitions with their offsets, of a Fetch request."""
    (correlation_id,) = struct.unpack_from(">i", request, 8)
    (client_id_size,) = struct.unpack_from(">h", request, 12)
    at = 15 + client_id_size + (4 if version < 15 else 0) + 21
    topics = []
    for _ in range(request[at] - 1):
        size = 16 if version >= TOPICS_HAVE_IDS else request[at + 1] - 1
        at += 1 if version >= TOPICS_HAVE_IDS else 2
        name, count = request[at : at + size], request[at + size] - 1
        at += size + 1
        partitions = [struct.unpack_from(">iiq", request, at + 33 * n)[::2] for n in range(count)]
        topics.append((name, partitions))
    return correlation_id, cast("Any", topics)


class _Socket:
    """A broker's end of a connection: each request is answered, in pieces, and then it closes."""

    def __init__(self, rng: Random, answer: Any) -> None:
        self._rng = rng
        self._answer = answer
        self._request = b""
        self._pending = b""

    def settimeout(self, _: float) -> None:
        pass

    def sendall(self, request: bytes) -> None:
        self._request = request

    def recv_into(self, room: memoryview) -> int:
        if self._request:
            self._pending, self._request = self._answer(self._request), b""
        size = min(len(room), len(self._pending), self._rng.choice((1 << 20, 1 << 20, 7)))
        room[:size] = self._pending[:size]
        self._pending = self._pending[size:]
        return size

    def close(self) -> None:
        pass


class _Unconnected(Fetcher):
    """Has connections as they are given."""

    def __init__(self, settings: FetchSettings, connect: Any) -> None:
        super().__init__(settings, ConnectionSecurity())
        self._connect = connect

    def _connection(self, asked: Any) -> BrokerConnection:
        asked.connection = asked.connection or self._connect()
        return cast("BrokerConnection", asked.connection)
