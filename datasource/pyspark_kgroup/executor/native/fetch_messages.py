"""Bytes of the requests that a reader sends to a broker, and of the answers: ApiVersions, SASL, Fetch, Metadata.

Runs on: executor. Pure.

Layouts are those of Apache Kafka's schemas (clients/src/main/resources/common/message: ApiVersionsRequest.json,
SaslHandshakeRequest.json, SaslAuthenticateRequest.json, FetchRequest.json, FetchResponse.json, MetadataRequest.json).
Answers are read in place, and records are views of them. Every length is compared with the bytes that are there. An
answer that makes no sense raises `FallbackToLibrdkafka`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from struct import Struct
from typing import Any, Final, NamedTuple, TypeVar

from pyspark_kgroup.executor.native.decode import FallbackToLibrdkafka
from pyspark_kgroup.limits import ABORTED_TRANSACTIONS_MAX
from spark_kgroup.model import ErrorCode

T = TypeVar("T")

FETCH: Final = 1
METADATA: Final = 3
SASL_HANDSHAKE: Final = 17
API_VERSIONS: Final = 18
SASL_AUTHENTICATE: Final = 36
"""Kafka's API keys."""

FETCH_BY_NAME: Final = 12
"""The first version of Fetch with flexible encodings (KIP-482), and the last one that names topics."""

FETCH_BY_ID: Final = 17
"""The newest version of Fetch that is spoken here. From version 13 on topics have ids (KIP-516)."""

_FIRST_BY_ID: Final = 13
_WITHOUT_REPLICA_ID: Final = 15
"""From this version on `ReplicaState` has the replica id, a tagged field that consumers leave out (KIP-903)."""

API_VERSIONS_VERSION: Final = 3
SASL_HANDSHAKE_VERSION: Final = 1
SASL_AUTHENTICATE_VERSION: Final = 2
METADATA_VERSION: Final = 9
"""The first flexible one: every broker with Fetch 12 has it."""

_NOT_FLEXIBLE: Final = frozenset({SASL_HANDSHAKE})
"""APIs whose requests have the header without tagged fields."""

_HEADER_OF_OLD: Final = frozenset({SASL_HANDSHAKE, API_VERSIONS})
"""APIs whose answers have the header without tagged fields."""

_CONSUMER: Final = -1
"""The replica id of a consumer, which is no replica."""

_NO_SESSION: Final = (0, -1)
"""Session id and epoch of a full fetch without a session (KIP-227)."""

_NO_LOG_START: Final = -1
"""The log start offset that consumers send: they have no log of their own."""

_DIVERGING_EPOCH: Final = 0
"""The tag of `DivergingEpoch`: the log is not the one that was read before (KIP-595)."""

_CURRENT_LEADER: Final = 1
"""The tag of `CurrentLeader`: the broker that leads instead of the one that was asked (KIP-951)."""

_NODE_ENDPOINTS: Final = 0
"""The tag of `NodeEndpoints` in an answer as a whole: where those leaders listen (KIP-951)."""

_INT32: Final = Struct(">i")
_INT16: Final = Struct(">h")
_HEADER: Final = Struct(">hhih")
_FETCH: Final = Struct(">iiibii")
_WANTED: Final = Struct(">iiqiqi")
_FETCHED: Final = Struct(">ihqqq")
_FETCH_ANSWER: Final = Struct(">ihi")
_ABORTED: Final = Struct(">qq")
_LEADER: Final = Struct(">ii")
_EPOCH_END: Final = Struct(">iq")
_API: Final = Struct(">hhh")
_LIFETIME: Final = Struct(">q")
_BATCH: Final = Struct(">qiibIhi")
"""Base offset, length, leader epoch, magic, CRC, attributes, last offset delta (DefaultRecordBatch)."""

_BATCH_HEADER_BYTES: Final = 61
_LENGTH_COUNTS_FROM: Final = 12
"""The bytes that a batch's length leaves out: base offset, and the length itself."""

_MAGIC: Final = 2

_OFFSET_MAX: Final = 2**63 - 1
"""Kafka's offsets are int64, and so is the offset that is asked for after a batch."""


class Wanted(NamedTuple):
    """One partition of a Fetch.

    Attributes:
        topic: its name.
        topic_id: 16 bytes, which versions from 13 on send instead of the name.
        leader_epoch: as metadata had it. A broker that knows another epoch says so (KIP-320).
        offset: the first one that is wanted.
        last_epoch: leader epoch of the batch before `offset` as it was read, -1 if none was.
    """

    topic: str
    partition: int
    topic_id: bytes
    leader_epoch: int
    offset: int
    last_epoch: int


class Bounds(NamedTuple):
    """How long a broker may wait, and how much it may send.

    Attributes:
        wait_ms_max: for `bytes_min` to be there.
        partition_bytes_max: of each partition. A larger batch comes whole if it is the answer's first (KIP-74).
    """

    wait_ms_max: int
    bytes_min: int
    bytes_max: int
    partition_bytes_max: int


@dataclass(frozen=True, slots=True)
class Fetched:
    """One partition of an answer to a Fetch.

    Attributes:
        topic: its name or its id, as bytes, whichever the request had.
        aborted: (producer id, first offset) of the aborted transactions that `records` meets, ascending by offset.
        preferred_replica: the node to ask instead (KIP-392), -1 for none.
        diverges_at: the first offset from which the log is not the one that was read before, None if it is the same.
        leader: (node, epoch) of the leader, where it is another one than the request says. None if it is not named.
        records: record batches as they are in the log. The last one may be incomplete.
    """

    topic: bytes
    partition: int
    error: int
    aborted: tuple[tuple[int, int], ...]
    preferred_replica: int
    diverges_at: int | None
    leader: tuple[int, int] | None
    records: memoryview


class FetchAnswer(NamedTuple):
    """An answer to a Fetch.

    Attributes:
        throttle_ms: for how long the broker will mute the connection (KIP-219).
        endpoints: node -> (host, port) of the leaders that are named.
    """

    throttle_ms: int
    fetched: list[Fetched]
    endpoints: Mapping[int, tuple[str, int]]


class Batches(NamedTuple):
    """A summary of the headers of some record batches.

    Attributes:
        next_offset: one past the last offset of the last complete batch, or -1 if there is none.
        leader_epoch: of that batch.
        size: bytes of the complete batches.
    """

    next_offset: int
    leader_epoch: int
    size: int


# ------------------------------------------------------------------------------------------------------------- requests


def frame(api: int, version: int, correlation_id: int, client_id: str, body: bytes) -> bytes:
    """A request with its header and its length."""
    name = client_id.encode()
    header = _HEADER.pack(api, version, correlation_id, len(name)) + name + (b"" if api in _NOT_FLEXIBLE else b"\0")
    return b"".join((_INT32.pack(len(header) + len(body)), header, body))


def api_versions_request(software: str, version: str) -> bytes:
    """Ask which versions the broker speaks. Our name and version are for its metrics (KIP-511)."""
    return _compact(software.encode()) + _compact(version.encode()) + b"\0"


def sasl_handshake_request(mechanism: str) -> bytes:
    """Name the mechanism that SaslAuthenticate will speak."""
    name = mechanism.encode()
    return _INT16.pack(len(name)) + name


def sasl_authenticate_request(message: bytes) -> bytes:
    """Send a message of the mechanism."""
    return _compact(message) + b"\0"


def brokers_request() -> bytes:
    """Ask which brokers there are: Metadata of no topic, which creates none, without authorized operations."""
    return _varint(1) + b"\0\0\0" + b"\0"


def fetch_request(
    version: int, wanted: Sequence[Wanted], bounds: Bounds, *, read_committed: bool, rack: str = ""
) -> bytes:
    """Ask for records of `wanted`, in the order in which the broker shall look at them."""
    # Only neighbours are grouped, so a topic may occur twice: the broker serves partitions in this order (KIP-74).
    topics = [list(group) for _, group in groupby(wanted, key=lambda one: one.topic)]
    return b"".join(
        (
            _INT32.pack(_CONSUMER) if version < _WITHOUT_REPLICA_ID else b"",
            _FETCH.pack(bounds.wait_ms_max, bounds.bytes_min, bounds.bytes_max, read_committed, *_NO_SESSION),
            _varint(len(topics) + 1),
            *(_topic(version, partitions, bounds.partition_bytes_max) for partitions in topics),
            _varint(1),  # no forgotten topics: there is no session
            _compact(rack.encode()),
            b"\0",
        )
    )


def _topic(version: int, partitions: Sequence[Wanted], bytes_max: int) -> bytes:
    return b"".join(
        (
            partitions[0].topic_id if version >= _FIRST_BY_ID else _compact(partitions[0].topic.encode()),
            _varint(len(partitions) + 1),
            *(
                _WANTED.pack(one.partition, one.leader_epoch, one.offset, one.last_epoch, _NO_LOG_START, bytes_max)
                + b"\0"
                for one in partitions
            ),
            b"\0",
        )
    )


def answer_key(version: int, wanted: Wanted) -> tuple[bytes, int]:
    """(topic, partition) as an answer to this version names them."""
    return (wanted.topic_id if version >= _FIRST_BY_ID else wanted.topic.encode()), wanted.partition


def _compact(content: bytes) -> bytes:
    return _varint(len(content) + 1) + content


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    out.append(number)
    return bytes(out)


# -------------------------------------------------------------------------------------------------------------- answers


def answer_body(api: int, correlation_id: int, answer: memoryview) -> memoryview:
    """An answer without its header.

    Raises:
        FallbackToLibrdkafka: it answers another request.
    """

    def read(cursor: _Cursor) -> memoryview:
        (answered,) = cursor.take(_INT32)
        if answered != correlation_id:
            raise FallbackToLibrdkafka(f"the broker answered request {answered} where {correlation_id} was due")
        if api not in _HEADER_OF_OLD:
            cursor.tags()
        return cursor.rest()

    return _read(answer, read)


def fetch_versions(body: memoryview) -> tuple[int, int]:
    """The first and the last version of Fetch that the broker speaks, out of its answer to ApiVersions.

    Raises:
        FallbackToLibrdkafka: it speaks no Fetch, or not this version of ApiVersions.
    """

    def read(cursor: _Cursor) -> tuple[int, int]:
        (error,) = cursor.take(_INT16)
        if error:  # in an answer of version 0, whose array has another layout
            raise FallbackToLibrdkafka(f"ApiVersions failed with {ErrorCode.name_of(error)}")
        found = None
        for _ in range(cursor.count()):
            api, first, last = cursor.take(_API)
            cursor.tags()
            if api == FETCH:
                found = (first, last)
        cursor.take(_INT32)  # the throttle time
        cursor.tags()
        if found is None:
            raise FallbackToLibrdkafka("the broker has no Fetch")
        return found

    return _read(body, read)


def check_handshake(body: memoryview) -> None:
    """Check that the broker takes the mechanism.

    Raises:
        FallbackToLibrdkafka: it does not.
    """

    def read(cursor: _Cursor) -> None:
        (error,) = cursor.take(_INT16)
        if error:
            raise FallbackToLibrdkafka(f"SaslHandshake failed with {ErrorCode.name_of(error)}")

    _read(body, read)


def sasl_answer(body: memoryview) -> tuple[bytes, int]:
    """The broker's message to the mechanism, and for how many ms the session lives (0: as long as the connection).

    Raises:
        FallbackToLibrdkafka: the broker refused us.
    """

    def read(cursor: _Cursor) -> tuple[bytes, int]:
        (error,) = cursor.take(_INT16)
        cursor.bytes_or_null()  # its message
        challenge = cursor.bytes_or_null()
        (lifetime_ms,) = cursor.take(_LIFETIME)
        if error:
            raise FallbackToLibrdkafka(f"SaslAuthenticate failed with {ErrorCode.name_of(error)}")
        return bytes(challenge), lifetime_ms

    return _read(body, read)


def fetch_answer(version: int, body: memoryview) -> FetchAnswer:
    """The partitions in a broker's answer to a Fetch.

    Raises:
        FallbackToLibrdkafka: the broker refused the whole request, or this is no answer to a Fetch.
    """

    def read(cursor: _Cursor) -> FetchAnswer:
        throttle_ms, error, _ = cursor.take(_FETCH_ANSWER)
        if error:
            raise FallbackToLibrdkafka(f"Fetch failed with {ErrorCode.name_of(error)}")
        found: list[Fetched] = []
        listed_max = ABORTED_TRANSACTIONS_MAX
        for _ in range(cursor.count()):
            topic = cursor.bytes(16) if version >= _FIRST_BY_ID else bytes(cursor.bytes_or_null())
            for _ in range(cursor.count()):
                found.append(_fetched(cursor, topic, listed_max))
                listed_max -= len(found[-1].aborted)  # one bound for the whole answer
            cursor.tags()
        endpoints = cursor.tags().get(_NODE_ENDPOINTS)
        if cursor.rest():
            raise FallbackToLibrdkafka("a Fetch answer goes on behind its last field")
        return FetchAnswer(throttle_ms, found, {} if endpoints is None else _endpoints(_Cursor(endpoints)))

    return _read(body, read)


def _fetched(cursor: _Cursor, topic: bytes, listed_max: int) -> Fetched:
    partition, error, _, _, _ = cursor.take(_FETCHED)  # high watermark, last stable offset, the log's start
    if (listed := cursor.count()) > listed_max:
        raise FallbackToLibrdkafka(
            f"an answer to a Fetch lists more than {ABORTED_TRANSACTIONS_MAX} aborted transactions"
        )
    aborted = tuple(_aborted(cursor) for _ in range(listed))
    (preferred_replica,) = cursor.take(_INT32)
    records = cursor.bytes_or_null()
    tags = cursor.tags()
    leader = _LEADER.unpack_from(tags[_CURRENT_LEADER]) if _CURRENT_LEADER in tags else None
    diverges_at = _EPOCH_END.unpack_from(tags[_DIVERGING_EPOCH])[1] if _DIVERGING_EPOCH in tags else None
    return Fetched(topic, partition, error, aborted, preferred_replica, diverges_at, leader, records)


def _aborted(cursor: _Cursor) -> tuple[int, int]:
    producer_id, first_offset = cursor.take(_ABORTED)
    cursor.tags()
    return producer_id, first_offset


def brokers(body: memoryview) -> Mapping[int, tuple[str, int]]:
    """Node -> (host, port) of every broker, out of an answer to `brokers_request`.

    Raises:
        FallbackToLibrdkafka: this is no such answer.
    """

    def read(cursor: _Cursor) -> Mapping[int, tuple[str, int]]:
        cursor.take(_INT32)  # the throttle time
        return _endpoints(cursor)  # the rest is of no interest

    return _read(body, read)


def _endpoints(cursor: _Cursor) -> dict[int, tuple[str, int]]:
    """Node -> (host, port), from an array of nodes with their racks as Fetch and Metadata have it."""
    found = {}
    for _ in range(cursor.count()):
        (node_id,) = cursor.take(_INT32)
        host = str(cursor.bytes_or_null(), "utf-8")
        (port,) = cursor.take(_INT32)
        cursor.bytes_or_null()  # its rack
        cursor.tags()
        found[node_id] = (host, port)
    return found


def read_batch_headers(records: memoryview, position: int, end: int | None) -> Batches:
    """Read the headers of the batches in `records`, up to the first batch that reaches `end`.

    Raises:
        FallbackToLibrdkafka: a batch of an old format (before Kafka 0.11), or offsets that do not ascend from
            `position`.
    """
    at, next_offset, epoch = 0, -1, -1
    while len(records) - at >= _BATCH_HEADER_BYTES:
        base, length, batch_epoch, magic, _, _, last_delta = _BATCH.unpack_from(records, at)
        if magic != _MAGIC:
            raise FallbackToLibrdkafka(f"record format {magic}", lasting=True)
        batch_end = at + _LENGTH_COUNTS_FROM + length
        possible = length >= _BATCH_HEADER_BYTES - _LENGTH_COUNTS_FROM and last_delta >= 0
        if not possible or not max(next_offset, 0) <= base < _OFFSET_MAX - last_delta:
            raise FallbackToLibrdkafka("the header of a record batch makes no sense")
        if batch_end > len(records):
            break
        at, next_offset, epoch = batch_end, base + last_delta + 1, batch_epoch
        if end is not None and next_offset >= end:
            break
    if at and next_offset <= position:
        raise FallbackToLibrdkafka(f"records before offset {position} in answer to a Fetch from there")
    return Batches(next_offset, epoch, at)


class _Cursor:
    """Reads an answer from front to back. Raises IndexError or struct.error at its end."""

    __slots__ = ("_at", "_view")

    def __init__(self, view: memoryview) -> None:
        self._view = view
        self._at = 0

    def take(self, layout: Struct) -> tuple[Any, ...]:
        """The next values, by `layout`."""
        values = layout.unpack_from(self._view, self._at)
        self._at += layout.size
        return values

    def varint(self) -> int:
        """An unsigned varint of 32 bits."""
        value = 0
        for shift in range(0, 35, 7):
            byte = self._view[self._at]
            self._at += 1
            value |= (byte & 127) << shift
            if byte < 128:
                return value
        raise IndexError("a number without an end")

    def count(self) -> int:
        """The number of elements of a compact array, 0 for null."""
        return max(0, self.varint() - 1)

    def view(self, size: int) -> memoryview:
        """The next `size` bytes, in place."""
        end = self._at + size
        if end > len(self._view):
            raise IndexError("the answer ends inside a field")
        found = self._view[self._at : end]
        self._at = end
        return found

    def bytes(self, size: int) -> bytes:
        """The next `size` bytes."""
        return bytes(self.view(size))

    def bytes_or_null(self) -> memoryview:
        """Compact bytes or text, in place, empty for null."""
        return self.view(self.count())

    def tags(self) -> Mapping[int, memoryview]:
        """Tagged fields (KIP-482)."""
        count = self.varint()
        return dict(self._tag() for _ in range(count)) if count else {}

    def _tag(self) -> tuple[int, memoryview]:
        tag = self.varint()
        return tag, self.view(self.varint())

    def rest(self) -> memoryview:
        """The bytes that have not been read."""
        return self._view[self._at :]


def _read(view: memoryview, read: Callable[[_Cursor], T]) -> T:
    try:
        return read(_Cursor(view))
    except (IndexError, struct.error):
        raise FallbackToLibrdkafka("an answer that ends in the middle of a field") from None
    except UnicodeDecodeError:
        raise FallbackToLibrdkafka("an answer with a host that is no text") from None
