"""The one seam over the codec library (kio): frames out, responses in.

kio gives the message classes and writes them. It does not read brokers' responses: its reader refuses tagged fields and
error codes it does not know, and a frame that claims a huge array ends the process (0.6.5). The reader here goes by the
same classes' schema, and
- checks each length against the bytes that are left, before it reads or allocates by it,
- skips tagged fields it does not know (KIP-482: a newer broker may send them in an old version),
- keeps error codes it does not know, as the numbers they are.
All else that does not fit is a `ProtocolViolation`. The tests compare with kio's reader.
"""

from __future__ import annotations

import io
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, Field, fields, is_dataclass
from datetime import timedelta
from functools import cache, lru_cache, partial
from itertools import groupby
from struct import Struct
from types import MappingProxyType, NoneType, UnionType
from typing import Any, Final, TypeVar, cast, get_args, get_origin
from uuid import UUID

from kio.schema.errors import ErrorCode as KnownError
from kio.schema.request_header.v1.header import RequestHeader as RequestHeaderV1
from kio.schema.request_header.v2.header import RequestHeader as RequestHeaderV2
from kio.serial import entity_writer
from kio.static.primitive import i32
from kio.static.protocol import Entity

from spark_kgroup.errors import ProtocolViolation
from spark_kgroup.model import ErrorCode
from spark_kgroup.wire.messages import RESPONSE_OF, ApiVersionsResponse, ApiVersionsResponseV0, Request, Response

log = logging.getLogger(__name__)

E = TypeVar("E", bound=Entity)

_INT8, _INT16, _INT32, _INT64 = (Struct(form) for form in (">b", ">h", ">i", ">q"))


# ---------------------------------------------------------------------------------------------------- encoding


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
    return _INT32.pack(len(body)) + body


def encode_entity(entity: Entity) -> bytes:
    """The bytes of one kio entity, without any header."""
    with io.BytesIO() as buffer:
        entity_writer(type(entity))(buffer, entity)
        return buffer.getvalue()


# ---------------------------------------------------------------------------------------------------- decoding


def read_correlation_id(frame: bytes) -> int:
    """The correlation id with which every response frame (without its length) begins.

    Raises:
        ProtocolViolation: the frame is too short to be a response.
    """
    return _Cursor(frame, "A response").number(_INT32)


def decode_response(request_type: type[Request], frame: bytes) -> Response:
    """The response in `frame` (without its length), the answer to a request of `request_type`.

    A broker that does not know our version of ApiVersions answers in version 0 (KIP-511): such an answer is read so.

    Raises:
        ProtocolViolation: it is not that response, or more than it.
    """
    response_type = RESPONSE_OF[request_type]
    # The error code follows the correlation id at once: in no version has the header of this answer tagged fields.
    if response_type is ApiVersionsResponse and frame[4:6] == _INT16.pack(ErrorCode.UNSUPPORTED_VERSION):
        response_type = ApiVersionsResponseV0
    cursor = _Cursor(frame, response_type.__name__)
    _make_reader(cast("type[Entity]", response_type.__header_schema__))(cursor)
    response = cast("Response", _make_reader(cast("type[Entity]", response_type))(cursor))
    if cursor.left:
        raise ProtocolViolation(f"{cursor.left} bytes follow a whole {cursor.what} v{response_type.__version__}.")
    return response


def decode_entity(entity_type: type[E], raw: bytes) -> E:
    """One kio entity from `raw`, which may go on after it (a newer version's fields).

    Raises:
        ProtocolViolation: `raw` does not hold one.
    """
    return cast(E, _make_reader(entity_type)(_Cursor(raw, entity_type.__name__)))


class _Cursor:
    """A place in unchecked bytes: every read is bounded by the bytes that are left."""

    __slots__ = ("_at", "_raw", "what")

    def __init__(self, raw: bytes, what: str) -> None:
        self._raw = raw
        self._at = 0
        self.what = what

    @property
    def left(self) -> int:
        return len(self._raw) - self._at

    def take(self, size: int) -> bytes:
        start = self._advance(size)
        return self._raw[start : self._at]

    def numbers(self, form: Struct) -> tuple[int, ...]:
        return form.unpack_from(self._raw, self._advance(form.size))

    def _advance(self, size: int) -> int:
        """Move on by `size` bytes, and return the place before that."""
        start = self._at
        if size > len(self._raw) - start:
            raise ProtocolViolation(f"{self.what} ends after {len(self._raw)} bytes, in the middle of a field.")
        self._at = start + size
        return start

    def number(self, form: Struct) -> int:
        return self.numbers(form)[0]

    def varint(self) -> int:
        """An unsigned varint of at most 5 bytes (ByteUtils.readUnsignedVarint)."""
        if self._at < len(self._raw) and (byte := self._raw[self._at]) < 0x80:
            self._at += 1
            return byte  # the usual case: small lengths and tags
        value = 0
        for shift in range(0, 35, 7):
            byte = self.take(1)[0]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
        raise ProtocolViolation(f"{self.what} holds an endless varint.")

    def length(self, *, flexible: bool, form: Struct) -> int | None:
        """How many bytes or elements follow, None for null: a varint of one more, or a number of `form`."""
        length = self.varint() - 1 if flexible else self.number(form)
        if not -1 <= length <= self.left:  # an element takes a byte at least
            raise ProtocolViolation(f"{self.what} claims a length of {length} where {self.left} bytes are left.")
        return None if length == -1 else length


_Reader = Callable[[_Cursor], Any]


_Part = Callable[[_Cursor, dict[str, Any]], None]
"""Reads one field, or several integers in a row, into the values of an entity."""


@cache
def _make_reader(entity_type: type[Entity]) -> _Reader:
    """Reads an entity: its fields in order, and after them its tagged fields if the version is flexible."""
    flexible = entity_type.__flexible__
    plain = [field for field in fields(entity_type) if "tag" not in field.metadata]
    parts: list[_Part] = []
    for integers, run in groupby(plain, key=_is_integer):
        in_a_row = list(run)
        parts += [_integers_reader(in_a_row)] if integers else [_one_reader(field, flexible) for field in in_a_row]
    tagged: dict[int, _Part] = {}
    for field in fields(entity_type):
        if "tag" in field.metadata:
            assert field.default is not MISSING, f"{entity_type.__name__}.{field.name} may be absent and has no default"
            tagged[field.metadata["tag"]] = _one_reader(field, flexible)

    def read(cursor: _Cursor) -> Any:
        values: dict[str, Any] = {}
        for read_part in parts:
            read_part(cursor, values)
        if flexible:
            _read_tagged(cursor, tagged, values)
        return entity_type(**values)

    return read


def _is_integer(field: Field[Any]) -> bool:
    return field.metadata.get("kafka_type") in _INTEGERS and get_origin(_without_none(field.type)[0]) is not tuple


def _integers_reader(run: Sequence[Field[Any]]) -> _Part:
    """Integers in a row, with one look at the bytes: the partitions of a large topic are made of them."""
    names = [field.name for field in run]
    form = Struct(">" + "".join(_INTEGERS[field.metadata["kafka_type"]] for field in run))
    codes = [field.name for field in run if field.metadata["kafka_type"] == "error_code"]

    def read(cursor: _Cursor, values: dict[str, Any]) -> None:
        values.update(zip(names, cursor.numbers(form), strict=True))
        for name in codes:
            values[name] = error_code(values[name])

    return read


def _one_reader(field: Field[Any], flexible: bool) -> _Part:
    name, read_one = field.name, _field_reader(field, flexible)

    def read(cursor: _Cursor, values: dict[str, Any]) -> None:
        values[name] = read_one(cursor)

    return read


def _read_tagged(cursor: _Cursor, known: Mapping[int, _Part], values: dict[str, Any]) -> None:
    for _ in range(cursor.varint()):
        tag = cursor.varint()
        content = cursor.take(cursor.varint())
        if tag in known:
            known[tag](_Cursor(content, cursor.what), values)


def _field_reader(field: Field[Any], flexible: bool) -> _Reader:
    kind, nullable = _without_none(field.type)
    if get_origin(kind) is not tuple:
        return _value_reader(kind, field, flexible, nullable)
    element, element_nullable = _without_none(get_args(kind)[0])
    read_one = _value_reader(element, field, flexible, element_nullable)
    of_int32 = field.metadata.get("kafka_type") == "int32"

    def read(cursor: _Cursor) -> tuple[Any, ...] | None:
        count = cursor.length(flexible=flexible, form=_INT32)
        if count is None:
            _check_null(cursor, field, nullable)
            return None
        if of_int32:
            return cursor.numbers(_int32s(count))
        return tuple([read_one(cursor) for _ in range(count)])

    return read


@lru_cache(maxsize=64)
def _int32s(count: int) -> Struct:
    """Arrays of integers are mostly of the replicas of a partition: short, and many."""
    return Struct(f">{count}i")


def _without_none(annotation: Any) -> tuple[Any, bool]:
    if get_origin(annotation) is not UnionType:
        return annotation, False
    (inner,) = (arg for arg in get_args(annotation) if arg is not NoneType)
    return inner, True


def _value_reader(kind: Any, field: Field[Any], flexible: bool, nullable: bool) -> _Reader:
    if is_dataclass(kind):
        read_struct = _make_reader(cast("type[Entity]", kind))
        return partial(_read_nullable, read_struct) if nullable else read_struct
    kafka_type = field.metadata["kafka_type"]
    if kafka_type in _FIXED:
        return _FIXED[kafka_type]
    assert kafka_type in ("string", "bytes"), f"{field.name}: no reader for {kafka_type}"
    text = kafka_type == "string"

    def read(cursor: _Cursor) -> str | bytes | None:
        size = cursor.length(flexible=flexible, form=_INT16 if text else _INT32)
        if size is None:
            _check_null(cursor, field, nullable)
            return None
        content = cursor.take(size)
        return _text(content) if text else content

    return read


def _read_nullable(read_struct: _Reader, cursor: _Cursor) -> Any:
    """A struct, or None if the byte before it is negative (KIP-893)."""
    return None if cursor.number(_INT8) < 0 else read_struct(cursor)


def _check_null(cursor: _Cursor, field: Field[Any], nullable: bool) -> None:
    if not nullable:
        raise ProtocolViolation(f"{cursor.what} has no {field.name}: it is null.")


def _text(content: bytes) -> str:
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise ProtocolViolation(f"A string is not UTF-8: {error}.") from None


def _long_time(cursor: _Cursor) -> timedelta:
    try:
        return timedelta(milliseconds=cursor.number(_INT64))
    except OverflowError:
        raise ProtocolViolation(f"{cursor.what} holds a time of more than a million years.") from None


@cache
def error_code(number: int) -> KnownError:
    """The error code as kio's enum. A number that is not in it becomes a member of its own, outside the list."""
    try:
        return KnownError(number)
    except ValueError:
        log.warning("a broker sent error code %d, which is newer than this release", number)
    unknown = int.__new__(KnownError, number)
    unknown._name_, unknown._value_ = f"error_{number}", number
    unknown.retriable = False
    return unknown


_FIXED: Final[Mapping[str, _Reader]] = MappingProxyType(
    {
        "bool": lambda cursor: cursor.take(1) != b"\0",
        "int8": lambda cursor: cursor.number(_INT8),
        "int16": lambda cursor: cursor.number(_INT16),
        "int32": lambda cursor: cursor.number(_INT32),
        "int64": lambda cursor: cursor.number(_INT64),
        "timedelta_i32": lambda cursor: timedelta(milliseconds=cursor.number(_INT32)),
        "timedelta_i64": _long_time,
        "error_code": lambda cursor: error_code(cursor.number(_INT16)),
        "uuid": lambda cursor: UUID(bytes=content) if any(content := cursor.take(16)) else None,
    }
)
"""Kafka's types of fixed size. A zero UUID means none (kio's convention)."""

_INTEGERS: Final[Mapping[str, str]] = MappingProxyType(
    {"int8": "b", "int16": "h", "int32": "i", "int64": "q", "error_code": "h"}
)
"""Kafka's types of fixed size that are integers -> their codes in `struct`."""
