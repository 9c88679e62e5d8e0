"""Kafka's bytes: requests out, responses in, and for a broker the other way round, by the fields of `schema`. No I/O.

Whatever a broker sends, the reader
- checks each length against the bytes that are left, before it reads or allocates by it,
- skips tagged fields that are not laid out (KIP-482: a newer peer may send them in an old version),
- refuses all else that does not fit as a `ProtocolViolation`.
The writer writes values of this library, and checks none of them: a number too large is an error of `struct`.
The tests compare it with kio, a codec of others, in both directions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cache, lru_cache, partial
from itertools import groupby
from struct import Struct
from types import NoneType, UnionType
from typing import Annotated, Any, Final, NamedTuple, TypeVar, cast, get_args, get_origin
from uuid import UUID

from spark_kgroup.errors import ProtocolViolation
from spark_kgroup.model import ErrorCode
from spark_kgroup.wire.schema import API_OF, ApiVersionsRequest, ApiVersionsRequestV0, On, Request, Response

M = TypeVar("M", bound=tuple[Any, ...])

_INT8, _INT16, _INT32 = (Struct(form) for form in (">b", ">h", ">i"))
_API: Final = Struct(">hhi")
_NO_UUID: Final = bytes(16)

_ELEMENTS_AT_ONCE: Final = 4096
"""A large answer is decoded in a thread, which gives way to the event loop between two calls of `struct` alone."""


# ------------------------------------------------------------------------------------------------------ frames


def encode_request(request: Request, correlation_id: int, client_id: str) -> bytes:
    """A whole request frame, its 4-byte length first."""
    kind: Any = type(request)
    api = API_OF[kind]
    out = bytearray(_INT32.size)
    out += _API.pack(api.key, api.version, correlation_id)
    _write_text(out, client_id, flexible=False)  # its length is no varint in any version of the header
    if api.flexible:
        out.append(0)  # tagged fields of the header
    _writer_of(kind, _Form(api.flexible, api.version))(out, request)
    _INT32.pack_into(out, 0, len(out) - _INT32.size)
    return bytes(out)


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
    # The error code follows the correlation id at once: in no version has the header of this answer tagged fields.
    if request_type is ApiVersionsRequest and frame[4:6] == _INT16.pack(ErrorCode.UNSUPPORTED_VERSION):
        request_type = ApiVersionsRequestV0
    api = API_OF[request_type]
    cursor = _Cursor(frame, f"{api.name}Response")
    cursor.number(_INT32)
    if api.flexible and request_type is not ApiVersionsRequest:
        cursor.skip_tagged_fields()
    response = _reader_of(api.response, _Form(api.flexible, api.version))(cursor)
    if cursor.left:
        raise ProtocolViolation(f"{cursor.left} bytes follow a whole {cursor.what} v{api.version}.")
    return cast("Response", response)


class RequestHeader(NamedTuple):
    """The first fields of every request frame (RequestHeader.json)."""

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None


def decode_request_header(frame: bytes) -> tuple[RequestHeader, int]:
    """The header of a request frame (without its length), and where it ends: before tagged fields, if it has any.

    Raises:
        ProtocolViolation: the frame is too short, or its client id is no text.
    """
    cursor = _Cursor(frame, "A request")
    key, version, correlation_id = cursor.numbers(_API)
    size = cursor.length(False, _INT16)
    client_id = None if size is None else _read_text(cursor, size)
    return RequestHeader(key, version, correlation_id, client_id), cursor.at


def decode_request(kind: type[M], frame: bytes, at: int, *, version: int, flexible: bool) -> M:
    """The request in `frame`, whose header (without tagged fields) ends at `at`.

    Bytes after it are ignored, as by Kafka (AbstractRequest.parseRequest): librdkafka 2.16 asks for all topics with a
    Metadata v12 that has three bytes too many.

    Raises:
        ProtocolViolation: it is not that request.
    """
    cursor = _Cursor(frame, kind.__name__)
    cursor.at = at
    if flexible:
        cursor.skip_tagged_fields()
    return cast(M, _reader_of(kind, _Form(flexible, version))(cursor))


def encode_response(
    response: tuple[Any, ...], correlation_id: int, *, version: int, flexible: bool, flexible_header: bool
) -> bytes:
    """A whole response frame, its 4-byte length first. The header of ApiVersions is never flexible (KIP-511)."""
    out = bytearray(_INT32.size)
    out += _INT32.pack(correlation_id)
    if flexible_header:
        out.append(0)  # tagged fields of the header
    _writer_of(type(response), _Form(flexible, version))(out, response)
    _INT32.pack_into(out, 0, len(out) - _INT32.size)
    return bytes(out)


def encode_struct(value: tuple[Any, ...], *, flexible: bool, version: int = 0) -> bytes:
    """The bytes of one message, or part of one, without any header."""
    out = bytearray()
    _writer_of(type(value), _Form(flexible, version))(out, value)
    return bytes(out)


def decode_struct(kind: type[M], raw: bytes, *, flexible: bool, version: int = 0) -> M:
    """One message, or part of one, from `raw`, which may go on after it (a newer version's fields).

    Raises:
        ProtocolViolation: `raw` does not hold one.
    """
    return cast(M, _reader_of(kind, _Form(flexible, version))(_Cursor(raw, kind.__name__)))


# -------------------------------------------------------------------------------------------------- fields' types


class _Form(NamedTuple):
    """How a message lies in the bytes.

    Attributes:
        flexible: whether lengths are varints, and each struct ends with tagged fields (KIP-482).
        version: of the message. It matters to fields with an `On`.
    """

    flexible: bool
    version: int


class _Field(NamedTuple):
    """A field of a struct, and its place in the named tuple."""

    place: int
    name: str
    type: Any
    on: On


_EVERYWHERE: Final = On()


def _runs(kind: Any, version: int) -> Iterable[tuple[str | None, list[_Field]]]:
    """The fields of a struct that are in their place on the wire.

    Those of numbers in a row come together, with their codes in `struct`.
    """
    there = [each for each in _layout(kind) if each.on.tag is None and _has(each, version)]
    in_a_row = groupby(enumerate(there), key=lambda one: (_code_of(one[1].type) is not None, one[1].place - one[0]))
    for (numbers, _), run in in_a_row:
        fields = [field for _, field in run]
        yield ("".join(str(_code_of(each.type)) for each in fields) if numbers else None), fields


def _tagged(kind: Any, version: int) -> list[_Field]:
    """The tagged fields of a struct, in the order of their tags."""
    tagged = [each for each in _layout(kind) if each.on.tag is not None and _has(each, version)]
    return sorted(tagged, key=lambda each: cast(int, each.on.tag))


def _has(field: _Field, version: int) -> bool:
    return field.on.since <= version <= field.on.until


def _layout(kind: Any) -> list[_Field]:
    return [_Field(place, name, *_on(each)) for place, (name, each) in enumerate(fields_of(kind).items())]


def _on(annotation: Any) -> tuple[Any, On]:
    """A field's type without its `On`, and that."""
    if get_origin(annotation) is not Annotated or not isinstance(on := annotation.__metadata__[-1], On):
        return annotation, _EVERYWHERE
    kind, *others = get_args(annotation)[:-1]
    return (Annotated[kind, *others] if others else kind), on


def fields_of(kind: Any) -> dict[str, Any]:
    """Name -> type of a struct's fields. A class that only names another version of a message has its base's."""
    return next((each for base in kind.__mro__ if (each := getattr(base, "__annotations__", None))), {})


def _code_of(annotation: Any) -> str | None:
    if annotation is bool:
        return "?"
    if get_origin(annotation) is Annotated:
        code: str = annotation.__metadata__[0]
        return code
    return None


def _form_of_numbers(kind: Any, version: int, tagged_fields: str) -> Struct | None:
    """How a struct of nothing but numbers lies in the bytes, and after them the byte that counts its tagged fields."""
    runs = list(_runs(kind, version)) if hasattr(kind, "_fields") else []
    whole = len(runs) == 1 and runs[0][0] is not None and len(runs[0][1]) == len(kind._fields)
    return Struct(f">{runs[0][0]}{tagged_fields}") if whole else None


def _without_none(annotation: Any) -> tuple[Any, bool]:
    if get_origin(annotation) is not UnionType:
        return annotation, False
    (inner,) = (each for each in get_args(annotation) if each is not NoneType)
    return inner, True


# --------------------------------------------------------------------------------------------------------- writing

_Writer = Callable[[bytearray, Any], None]
"""Appends one value."""


@cache
def _writer_of(kind: Any, form: _Form) -> _Writer:
    parts: list[_Writer] = []
    for codes, fields in _runs(kind, form.version):
        if codes is not None:
            at = fields[0].place
            parts.append(_numbers_writer(Struct(">" + codes), slice(at, at + len(fields))))
        else:
            parts += [_field_writer(each.place, _value_writer(each.type, form)) for each in fields]
    if form.flexible:
        parts.append(_tags_writer(kind, form))

    def write(out: bytearray, value: Any) -> None:
        for write_part in parts:
            write_part(out, value)

    return write


def _tags_writer(kind: Any, form: _Form) -> _Writer:
    """Writes the tagged fields that have another value than their default (KIP-482)."""
    tagged = [(each, _value_writer(each.type, form)) for each in _tagged(kind, form.version)]
    if not tagged:
        return lambda out, _: out.append(0)

    def write(out: bytearray, struct: Any) -> None:
        there = [(field, write_value) for field, write_value in tagged if struct[field.place] != field.on.default]
        _write_varint(out, len(there))
        for field, write_value in there:
            content = bytearray()
            write_value(content, struct[field.place])
            _write_varint(out, cast(int, field.on.tag))
            _write_varint(out, len(content))
            out += content

    return write


def _numbers_writer(form: Struct, place: slice) -> _Writer:
    def write(out: bytearray, struct: Any) -> None:
        out += form.pack(*struct[place])

    return write


def _field_writer(place: int, write_value: _Writer) -> _Writer:
    def write(out: bytearray, struct: Any) -> None:
        write_value(out, struct[place])

    return write


def _value_writer(annotation: Any, form: _Form) -> _Writer:
    kind, nullable = _without_none(annotation)
    if get_origin(kind) is tuple:
        return _array_writer(get_args(kind)[0], form)
    if (code := _code_of(kind)) is not None:
        number = Struct(">" + code)
        return lambda out, value: out.extend(number.pack(value))
    if kind is UUID:
        return _write_uuid
    if kind is str:
        return partial(_write_text, flexible=form.flexible)
    if kind is bytes:
        return partial(_write_bytes, flexible=form.flexible)
    write_struct = _writer_of(kind, form)
    return partial(_write_nullable, write_struct) if nullable else write_struct


def _array_writer(element: Any, form: _Form) -> _Writer:
    write_elements = _elements_writer(element, form)

    def write(out: bytearray, values: Sequence[Any] | None) -> None:
        _write_length(out, None if values is None else len(values), form.flexible, _INT32)
        if values:
            write_elements(out, values)

    return write


def _elements_writer(element: Any, form: _Form) -> _Writer:
    if (code := _code_of(element)) is not None:
        return lambda out, values: out.extend(_numbers(code, len(values)).pack(*values))
    if (numbers := _form_of_numbers(element, form.version, "x" if form.flexible else "")) is not None:
        return lambda out, values: out.extend(b"".join([numbers.pack(*each) for each in values]))
    write_one = _value_writer(element, form)

    def write(out: bytearray, values: Sequence[Any]) -> None:
        for each in values:
            write_one(out, each)

    return write


def _write_nullable(write_struct: _Writer, out: bytearray, value: Any) -> None:
    """A byte before the struct says whether it is there (KIP-893)."""
    out += _INT8.pack(-1 if value is None else 1)
    if value is not None:
        write_struct(out, value)


def _write_text(out: bytearray, text: str | None, flexible: bool) -> None:
    out += _text_bytes(text, flexible)


@lru_cache(maxsize=64)
def _text_bytes(text: str | None, flexible: bool) -> bytes:
    """A commit has the same text beside each offset of a topic but one."""
    out = bytearray()
    _write_bytes(out, None if text is None else text.encode(), flexible, _INT16)
    return bytes(out)


def _write_bytes(out: bytearray, raw: bytes | None, flexible: bool, form: Struct = _INT32) -> None:
    _write_length(out, None if raw is None else len(raw), flexible, form)
    out += raw or b""


def _write_uuid(out: bytearray, value: UUID | None) -> None:
    out += _NO_UUID if value is None else value.bytes


def _write_length(out: bytearray, length: int | None, flexible: bool, form: Struct) -> None:
    """How many bytes or elements follow, None for null: as `_Cursor.length` reads it."""
    if not flexible:
        out += form.pack(-1 if length is None else length)
        return
    _write_varint(out, 0 if length is None else length + 1)


def _write_varint(out: bytearray, value: int) -> None:
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)


# --------------------------------------------------------------------------------------------------------- reading


class _Cursor:
    """A place in unchecked bytes: every read is bounded by the bytes that are left."""

    __slots__ = ("_raw", "at", "what")

    def __init__(self, raw: bytes, what: str) -> None:
        self._raw = raw
        self.at = 0
        self.what = what

    @property
    def left(self) -> int:
        return len(self._raw) - self.at

    def take(self, size: int) -> bytes:
        start = self._advance(size)
        return self._raw[start : self.at]

    def numbers(self, form: Struct) -> tuple[Any, ...]:
        return form.unpack_from(self._raw, self._advance(form.size))

    def _advance(self, size: int) -> int:
        """Move on by `size` bytes, and return the place before that."""
        start = self.at
        if size > len(self._raw) - start:
            raise ProtocolViolation(f"{self.what} ends after {len(self._raw)} bytes, in the middle of a field.")
        self.at = start + size
        return start

    def number(self, form: Struct) -> int:
        value: int = self.numbers(form)[0]
        return value

    def varint(self) -> int:
        """An unsigned varint of at most 5 bytes (ByteUtils.readUnsignedVarint)."""
        if self.at < len(self._raw) and (byte := self._raw[self.at]) < 0x80:
            self.at += 1
            return byte  # the usual case: small lengths and tags
        value = 0
        for shift in range(0, 35, 7):
            byte = self.take(1)[0]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
        raise ProtocolViolation(f"{self.what} holds an endless varint.")

    def length(self, flexible: bool, form: Struct) -> int | None:
        """How many bytes or elements follow, None for null: a varint of one more, or a number of `form`."""
        length = self.varint() - 1 if flexible else self.number(form)
        if not -1 <= length <= self.left:  # an element takes a byte at least
            raise ProtocolViolation(f"{self.what} claims a length of {length} where {self.left} bytes are left.")
        return None if length == -1 else length

    def skip_tagged_fields(self) -> None:
        for _ in range(self.varint()):
            self.varint()
            self.take(self.varint())


_Reader = Callable[[_Cursor], Any]
_Part = Callable[[_Cursor, list[Any]], None]
"""Reads one field, or several numbers in a row, and appends them to a struct's values."""


@cache
def _reader_of(kind: Any, form: _Form) -> _Reader:
    parts: list[_Part] = []
    places: list[int] = []
    for codes, fields in _runs(kind, form.version):
        places += [each.place for each in fields]
        if codes is not None:
            parts.append(_numbers_reader(Struct(">" + codes)))
        else:
            parts += [_field_reader(_value_reader(each.name, each.type, form)) for each in fields]
    if len(places) < len(fields_of(kind)):
        return _partial_reader(kind, form, parts, places)

    def read(cursor: _Cursor) -> Any:
        values: list[Any] = []
        for read_part in parts:
            read_part(cursor, values)
        if form.flexible:
            cursor.skip_tagged_fields()
        return tuple.__new__(kind, values)

    return read


def _partial_reader(kind: Any, form: _Form, parts: list[_Part], places: list[int]) -> _Reader:
    """Reads a struct of which some fields are absent in this version, or tagged: those begin with their defaults."""
    defaults = [each.on.default for each in _layout(kind)]
    tagged = {
        each.on.tag: (each.place, _value_reader(each.name, each.type, form)) for each in _tagged(kind, form.version)
    }

    def read(cursor: _Cursor) -> Any:
        found: list[Any] = []
        for read_part in parts:
            read_part(cursor, found)
        values = list(defaults)
        for place, value in zip(places, found, strict=True):
            values[place] = value
        if form.flexible:
            _read_tagged_fields(cursor, tagged, values)
        return tuple.__new__(kind, values)

    return read


def _read_tagged_fields(cursor: _Cursor, known: dict[int | None, tuple[int, _Reader]], values: list[Any]) -> None:
    for _ in range(cursor.varint()):
        tag, size = cursor.varint(), cursor.varint()
        if tag not in known:
            cursor.take(size)
            continue
        place, read_value = known[tag]
        end = cursor.at + size
        values[place] = read_value(cursor)
        if cursor.at != end:
            raise ProtocolViolation(f"{cursor.what} has a tagged field {tag} that is not as long as it claims.")


def _numbers_reader(form: Struct) -> _Part:
    def read(cursor: _Cursor, values: list[Any]) -> None:
        values += cursor.numbers(form)

    return read


def _field_reader(read_value: _Reader) -> _Part:
    def read(cursor: _Cursor, values: list[Any]) -> None:
        values.append(read_value(cursor))

    return read


def _value_reader(name: str, annotation: Any, form: _Form) -> _Reader:
    kind, nullable = _without_none(annotation)
    read_content: Callable[[_Cursor, int], Any]
    if kind is UUID:
        return _read_uuid
    if (code := _code_of(kind)) is not None:
        number = Struct(">" + code)
        return lambda cursor: cursor.number(number)
    if get_origin(kind) is tuple:
        size, read_content = _INT32, _elements_reader(name, get_args(kind)[0], form)
    elif kind is str:
        size, read_content = _INT16, _read_text
    elif kind is bytes:
        size, read_content = _INT32, _Cursor.take
    else:
        read_struct = _reader_of(kind, form)
        return partial(_read_nullable, read_struct) if nullable else read_struct

    def read(cursor: _Cursor) -> Any:
        length = cursor.length(form.flexible, size)
        if length is not None:
            return read_content(cursor, length)
        if not nullable:
            raise ProtocolViolation(f"{cursor.what} has no {name}: it is null.")
        return None

    return read


def _elements_reader(name: str, element: Any, form: _Form) -> Callable[[_Cursor, int], tuple[Any, ...]]:
    """Reads so many elements of the array `name`."""
    if (code := _code_of(element)) is not None:
        return lambda cursor, count: cursor.numbers(_numbers(code, count))
    read_one = _value_reader(name, element, form)

    def read(cursor: _Cursor, count: int) -> tuple[Any, ...]:
        return tuple([read_one(cursor) for _ in range(count)])

    numbers = _form_of_numbers(element, form.version, "B" if form.flexible else "")
    if numbers is None:
        return read

    end = -1 if form.flexible else None

    def read_numbers(cursor: _Cursor, count: int) -> tuple[Any, ...]:
        """Many at once: the partitions of a large topic are structs of numbers, mostly without tagged fields."""
        found: list[Any] = []
        while (some := min(count - len(found), _ELEMENTS_AT_ONCE)) > 0:
            start = cursor.at
            size = some * numbers.size
            rows = list(numbers.iter_unpack(cursor.take(size))) if size <= cursor.left else []
            if rows and not (form.flexible and any(row[-1] for row in rows)):
                found += [tuple.__new__(element, row[:end]) for row in rows]
            else:
                cursor.at = start
                found += read(cursor, some)
        return tuple(found)

    return read_numbers


@lru_cache(maxsize=64)
def _numbers(code: str | None, count: int) -> Struct:
    """Arrays of numbers are mostly of the replicas of a partition: short, and many."""
    return Struct(f">{count}{code}")


def _read_nullable(read_struct: _Reader, cursor: _Cursor) -> Any:
    """A struct, or None if the byte before it is negative (KIP-893)."""
    return None if cursor.number(_INT8) < 0 else read_struct(cursor)


def _read_text(cursor: _Cursor, size: int) -> str:
    try:
        return cursor.take(size).decode()
    except UnicodeDecodeError as error:
        raise ProtocolViolation(f"A string is not UTF-8: {error}.") from None


def _read_uuid(cursor: _Cursor) -> UUID | None:
    return UUID(bytes=content) if any(content := cursor.take(16)) else None
