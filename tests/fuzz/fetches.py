"""Answers to Fetch, whole and broken, through our own reader's fetcher and decoder."""

from __future__ import annotations

from random import Random
from typing import Any, cast

from harness.decoder import built_decoder
from harness.fetch_broker import SCHEMAS, TOPIC_ID, partition, response
from harness.record_batches import CODECS, TRANSACTIONAL, Batch, Record

from fuzz.targets import Wrong
from pyspark_kgroup.executor.native.broker_connection import AnswerMemory, BrokerConnection
from pyspark_kgroup.executor.native.connection_security import ConnectionSecurity
from pyspark_kgroup.executor.native.decode import Decoder, Unusual
from pyspark_kgroup.executor.native.fetch_settings import FetchSettings
from pyspark_kgroup.executor.native.fetcher import Chunk, Fetcher
from pyspark_kgroup.shared.tickets import Leader
from spark_kgroup.model import TopicPartition
from spark_kgroup.wire.codec import encode_entity

PARTITIONS = [TopicPartition("t", number) for number in range(3)]
LEADER = Leader(1, "broker", 9092, 5, TOPIC_ID.hex)
ANSWERS = 200
"""Whole answers that are made at the start, and broken one by one: to make one takes as long as to read 20."""


class Fetches:
    """One answer at a time, each for a fetcher that has just asked for three partitions.

    Whatever comes of it, a row that is read has a value that was produced, in its partition: a checksum stands before
    it.
    """

    def __init__(self, rng: Random) -> None:
        self._rng = rng
        self._library = built_decoder()
        self._whole = [self._answer() for _ in range(ANSWERS)]

    def take(self) -> str:
        version, body = self._rng.choice(self._whole)
        broken = self._broken(body) if self._rng.random() < 0.9 else body
        end = self._rng.choice((None, 5, 25, 1_000))
        fetcher = _Unconnected(cast("BrokerConnection", _Connection(version, broken)))
        for one in PARTITIONS:
            fetcher.add(one, LEADER, self._rng.choice((0, 0, 3)), end)
        try:
            fetcher.ask()
            (connection,) = fetcher.connections()
            rows = sum(self._rows(chunk) for chunk in fetcher.take(connection, go_on=False))
        except Unusual:
            return "unusual"
        return "rows" if rows else "no rows"

    def _rows(self, chunk: Chunk) -> int:
        decoder = Decoder(self._library, *chunk.partition, include_headers=self._rng.random() < 0.5)
        end = chunk.end if chunk.end is not None else 2**63 - 1
        decoded = decoder.decode(chunk.records, chunk.position, end, chunk.aborted)
        if decoded.complete and decoded.next_offset != chunk.next_offset:
            raise Wrong(f"read up to {decoded.next_offset}, and {chunk.next_offset} is asked for next")
        rows = 0
        for batch in decoded.batches:
            batch.validate(full=True)
            rows += batch.num_rows
            for offset, value in zip(batch["offset"].to_pylist(), batch["value"].to_pylist(), strict=True):
                if not chunk.position <= offset < end:
                    raise Wrong(f"offset {offset} beyond the range")
                if not value.startswith(b"value %d " % chunk.partition.partition):
                    raise Wrong(f"a value that nobody produced: {value[:20]!r}")
        return rows

    def _answer(self) -> tuple[int, bytes]:
        version = self._rng.choice(sorted(SCHEMAS))
        answers: list[Any] = []
        for _, number in PARTITIONS:
            log = b"".join(self._batch(number, first) for first in range(0, self._rng.choice((0, 20, 40)), 10))
            aborted = ((9, 0), (9, 30)) if self._rng.random() < 0.3 else None
            answers.append(partition(number, log, version=version, aborted=aborted))
        topic = TOPIC_ID if version > 12 else "t"
        return version, encode_entity(response({topic: answers}, version=version))

    def _batch(self, number: int, first: int) -> bytes:
        headers = ((b"h", b"1"),) if self._rng.random() < 0.2 else ()
        records = [Record(first + n, b"key", b"value %d %d" % (number, first + n), headers) for n in range(10)]
        more: dict[str, Any] = {"codec": self._rng.choice(sorted(CODECS))}
        if self._rng.random() < 0.2:
            more |= {"producer_id": 9, "attributes": TRANSACTIONAL}
        return Batch(records, **more).encoded()

    def _broken(self, body: bytes) -> bytearray:
        """With some bytes changed, cut, or put in."""
        rng, broken = self._rng, bytearray(body)
        for _ in range(rng.choice((1, 1, 2, 5))):
            at = rng.randrange(len(broken))
            match rng.randrange(4):
                case 0 | 1:
                    broken[at] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)))
                case 2:
                    del broken[at : at + rng.choice((1, 4, 8, len(broken)))]
                case 3:
                    broken[at:at] = rng.randbytes(rng.choice((1, 4, 8)))
            if not broken:
                break
        return broken


class _Connection:
    """What a fetcher needs of a connection: its answer is there already."""

    session_ends = False

    def __init__(self, version: int, body: bytes | bytearray) -> None:
        self.fetch_version = version
        self._body = body

    def ask_to_fetch(self, _: bytes) -> None:
        pass

    def take_fetched(self, memory: AnswerMemory) -> memoryview:
        view = memory.room(len(self._body))
        view[:] = self._body
        return view


class _Unconnected(Fetcher):
    """Asks a connection that is given."""

    def __init__(self, connection: BrokerConnection) -> None:
        super().__init__(FetchSettings.of({}), ConnectionSecurity())
        self._given = connection

    def _connection(self, asked: Any) -> BrokerConnection:
        asked.connection = self._given
        return self._given
