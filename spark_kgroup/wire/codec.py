"""The one seam over the codec library (kio): frames out, responses in.

kio decodes what its schema knows, and only that: an unknown tagged field is a KeyError, an unknown error code a
ValueError, and a frame that claims a huge array ends the process. A newer broker may send the first two and a stranger
the third, so each response is walked by its schema first (`_Walk`): lengths are checked against what is there, unknown
tagged fields are dropped as the protocol asks (KIP-482), unknown error codes become UNKNOWN_SERVER_ERROR and are
logged.
"""

from __future__ import annotations

import io
import logging
import struct
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Any, Final, TypeVar, Union, get_args, get_origin

from kio.schema.errors import ErrorCode as KnownError
from kio.schema.request_header.v1.header import RequestHeader as RequestHeaderV1
from kio.schema.request_header.v2.header import RequestHeader as RequestHeaderV2
from kio.serial import entity_reader, entity_writer
from kio.serial.errors import SerialError
from kio.static.primitive import i32

from spark_kgroup.errors import ProtocolViolation
from spark_kgroup.model import ErrorCode
from spark_kgroup.wire.messages import RESPONSE_OF, Request, Response

log = logging.getLogger(__name__)

E = TypeVar("E")

_WIDTHS: Final = {
    "bool": 1,
    "int8": 1,
    "uint8": 1,
    "int16": 2,
    "uint16": 2,
    "error_code": 2,
    "int32": 4,
    "uint32": 4,
    "timedelta_i32": 4,
    "int64": 8,
    "uint64": 8,
    "timedelta_i64": 8,
    "datetime_i64": 8,
    "float64": 8,
    "uuid": 16,
}
_KNOWN_ERRORS: Final = frozenset(int(code) for code in KnownError)


def encode_request(request: Request, correlation_id: int, client_id: str) -> bytes:
    """A whole request frame, its 4-byte length first."""
    header_type = request.__header_schema__
    assert header_type in (RequestHeaderV1, RequestHeaderV2)
    header = header_type(
        request_api_key=request.__api_key__,
        request_api_version=request.__version__,
        correlation_id=i32(correlation_id),
        client_id=client_id,
    )
    body = encode_entity(header) + encode_entity(request)
    return struct.pack(">i", len(body)) + body


def encode_entity(entity: Any) -> bytes:
    """The bytes of one kio entity, without any header."""
    with io.BytesIO() as buffer:
        entity_writer(type(entity))(buffer, entity)
        return buffer.getvalue()


def correlation_id_of(frame: bytes) -> int:
    """The correlation id with which every response frame begins.

    Raises:
        ProtocolViolation: the frame is too short to be a response.
    """
    if len(frame) < 4:
        raise ProtocolViolation(f"A response frame of {len(frame)} bytes is too short to be Kafka's.")
    return int(struct.unpack_from(">i", frame)[0])


def decode_response(request_type: type[Request], frame: bytes) -> Response:
    """The response in `frame` (without its length), the answer to a request of `request_type`.

    Raises:
        ProtocolViolation: it is not that response.
    """
    response_type = RESPONSE_OF[request_type]
    header_type = response_type.__header_schema__
    walk = _Walk(frame, response_type.__name__)
    walk.entity(header_type)
    header_bytes = len(walk.out)
    walk.entity(response_type)
    return decode_checked(response_type, bytes(walk.out[header_bytes:]))


def decode_entity(entity_type: type[E], raw: bytes) -> E:
    """One kio entity from `raw`, which may go on after it (a newer version's fields).

    Raises:
        ProtocolViolation: `raw` does not hold one.
    """
    walk = _Walk(raw, entity_type.__name__)
    walk.entity(entity_type)
    return decode_checked(entity_type, bytes(walk.out))


def decode_checked(entity_type: type[E], raw: bytes) -> E:
    """Let kio decode what was walked."""
    reader: Callable[..., tuple[Any, int]] = entity_reader(entity_type)
    try:
        entity, _ = reader(raw, 0)
    except (SerialError, ValueError, KeyError, OverflowError) as error:
        raise ProtocolViolation(f"Cannot decode {entity_type.__name__}: {error!r}.") from error
    assert isinstance(entity, entity_type)
    return entity


# ------------------------------------------------------------------------------------------- the schema walk


@dataclass(frozen=True, slots=True)
class _Field:
    """One field of a kio entity, as far as the walk needs it.

    Attributes:
        kafka_type: a name from the protocol guide, "" for a nested entity.
        entity: the nested entity's class, None for a primitive.
        nullable: for a nested entity that is no array: whether a marker byte comes first (KIP-893).
    """

    kafka_type: str
    entity: type | None
    array: bool
    nullable: bool


@cache
def _schema(entity_type: type) -> tuple[tuple[_Field, ...], dict[int, _Field]]:
    plain: list[_Field] = []
    tagged: dict[int, _Field] = {}
    for item in fields(entity_type):
        inner, optional = _without_none(item.type)
        array = get_origin(inner) is tuple
        if array:
            inner, _ = _without_none(get_args(inner)[0])
        entity = inner if is_dataclass(inner) and isinstance(inner, type) else None
        tag = item.metadata.get("tag")
        nullable = optional and entity is not None and not array and tag is None
        found = _Field(item.metadata.get("kafka_type", ""), entity, array, nullable)
        if tag is None:
            plain.append(found)
        else:
            tagged[int(tag)] = found
    return tuple(plain), tagged


def _without_none(annotation: Any) -> tuple[Any, bool]:
    if get_origin(annotation) in (Union, UnionType):
        inner = [a for a in get_args(annotation) if a is not NoneType]
        return inner[0], True
    return annotation, False


class _Walk:
    """Copies an entity's bytes from `raw` to `out`, checked and cleaned."""

    def __init__(self, raw: bytes, what: str) -> None:
        self.raw = raw
        self.at = 0
        self.out = bytearray()
        self.what = what

    def entity(self, entity_type: type) -> None:
        plain, tagged = _schema(entity_type)
        flexible: bool = entity_type.__flexible__  # type: ignore[attr-defined]
        for item in plain:
            self._field(item, flexible=flexible)
        if flexible:
            self._tagged_fields(tagged)

    def _field(self, item: _Field, *, flexible: bool) -> None:
        if not item.array:
            self._value(item, flexible=flexible)
            return
        count = self._length(flexible=flexible, width=4)
        for _ in range(max(count, 0)):
            self._value(item, flexible=flexible)

    def _value(self, item: _Field, *, flexible: bool) -> None:
        if item.entity is not None:
            if item.nullable and self._copy(1) == b"\xff":
                return
            self.entity(item.entity)
        elif item.kafka_type == "error_code":
            self._error_code()
        elif item.kafka_type in _WIDTHS:
            self._copy(_WIDTHS[item.kafka_type])
        else:
            width = 2 if item.kafka_type == "string" else 4
            self._copy(max(self._length(flexible=flexible, width=width), 0))

    def _error_code(self) -> None:
        code = int(struct.unpack(">h", self._take(2))[0])
        if code not in _KNOWN_ERRORS:
            log.warning("%s holds error code %d, which is newer than this release", self.what, code)
            code = ErrorCode.UNKNOWN_SERVER_ERROR
        self.out += struct.pack(">h", code)

    def _length(self, *, flexible: bool, width: int) -> int:
        """A length or count; -1 for null. Each thing counted takes a byte at least."""
        if flexible:
            start = self.at
            length = self._varint() - 1
            self.out += self.raw[start : self.at]
        else:
            length = int.from_bytes(self._copy(width), "big", signed=True)
        if not -1 <= length <= len(self.raw) - self.at:
            raise ProtocolViolation(
                f"{self.what} claims a length of {length} where {len(self.raw) - self.at} bytes are left."
            )
        return length

    def _tagged_fields(self, known: dict[int, _Field]) -> None:
        kept: list[bytes] = []
        for _ in range(self._varint()):
            tag, size = self._varint(), self._varint()
            inner = _Walk(self._take(size), self.what)
            if tag in known:
                inner._field(known[tag], flexible=True)
                kept.append(_varint_bytes(tag) + _varint_bytes(len(inner.out)) + bytes(inner.out))
        self.out += _varint_bytes(len(kept)) + b"".join(kept)

    def _varint(self) -> int:
        value = 0
        for shift in range(0, 35, 7):
            byte = self._take(1)[0]
            value |= (byte & 0x7F) << shift
            if not byte & 0x80:
                return value
        raise ProtocolViolation(f"{self.what} holds an endless varint.")

    def _copy(self, size: int) -> bytes:
        taken = self._take(size)
        self.out += taken
        return taken

    def _take(self, size: int) -> bytes:
        if size > len(self.raw) - self.at:
            raise ProtocolViolation(f"{self.what} ends after {len(self.raw)} bytes, in the middle of a field.")
        taken = self.raw[self.at : self.at + size]
        self.at += size
        return taken


def _varint_bytes(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)
