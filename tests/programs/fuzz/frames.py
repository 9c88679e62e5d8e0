"""Makes messages: right by their schema, with odd values in them, and then broken."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from dataclasses import Field, fields, is_dataclass
from random import Random
from types import NoneType, UnionType
from typing import Any, get_args, get_origin

import kio.schema.consumer_protocol_assignment.v3 as assignment_v3
import kio.schema.consumer_protocol_subscription.v3 as subscription_v3
from harness.kio_messages import response_of

from spark_kgroup.model import Subscription, TopicPartition
from spark_kgroup.wire.consumer_protocol import encode_assignment, encode_subscription

TEXTS = (
    *("", "a", "t", "t-0", "g", "x" * 249, "\x1b[31m", "[red]", "ä\u2028", "consumer", "Stable", "Dead", "range"),
    *("cooperative-sticky", "localhost", "127.0.0.1", "a..b", "\0", "1" * 400, "seat-" + "9" * 4500),
)
TOPICS = ("t", "t0", "other", "")
CODES = (
    *(1, 3, 5, 6, 7, 14, 15, 16, 22, 23, 24, 25, 26, 27, 29, 30, 41, 47, 69, 79, 82, 90, 100, 110, 113, 127, 9999),
    *(-1, -2, -32768, 32767),
)
COUNTS = (2**31 - 1, 2**31 - 2, 2**28, 2**20, 65536, 1000, 127, 0, -2, -5)
NUMBERS = {"bool": ">b", "int8": ">b", "int16": ">h", "int32": ">i", "int64": ">q"}
NUMBERS |= {"timedelta_i32": ">i", "timedelta_i64": ">q", "error_code": ">h"}

Values = Mapping[str, Any]
"""Field -> the value to put there, mostly."""


def varint(number: int) -> bytes:
    """An unsigned varint of Kafka's."""
    number &= 0xFFFFFFFF
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


class Draft:
    """Bytes so far, and where the lengths stand in them: (place, whether a varint, struct format)."""

    def __init__(self) -> None:
        self.raw = bytearray()
        self.lengths: list[tuple[int, bool, str]] = []

    def length(self, number: int, flexible: bool, form: str) -> None:
        self.lengths.append((len(self.raw), flexible, form))
        self.raw += varint(number + 1) if flexible else struct.pack(form, number)


class Maker:
    """Makes messages out of one source of chance."""

    def __init__(self, rng: Random) -> None:
        self.rng = rng

    def response(self, request_type: Any, values: Values, *, whole: float = 0.5) -> bytes:
        """A frame that answers a request of this type: random bytes, a whole response, or a broken one.

        Args:
            request_type: of the request that is answered.
            values: most of the response's values.
            whole: how many of all are whole.
        """
        kind: Any = response_of(request_type)
        chance = self.rng.random()
        if chance > 0.97:
            return self.rng.randbytes(self.rng.choice((0, 1, 3, 4, 5, 8, 20, 60, 300)))
        draft = Draft()
        self._entity(kind.__header_schema__, draft, {})
        self._entity(kind, draft, values)
        return bytes(draft.raw) if chance < whole else self.broken(draft)

    def message(self, values: Values) -> bytes:
        """A frame of a channel: JSON with odd values, or broken."""
        fields_ = {name: self._odd_json(value) for name, value in values.items() if self.rng.random() < 0.98}
        whole: Any = fields_ if self.rng.random() < 0.97 else self._odd_json(None)
        body = json.dumps(whole).encode() if self.rng.random() < 0.98 else b"[" * self.rng.choice((1, 2000))
        draft = Draft()
        draft.lengths.append((0, False, ">i"))
        draft.raw += struct.pack(">I", len(body)) + body
        return bytes(draft.raw) if self.rng.random() < 0.6 else self.broken(draft)

    def broken(self, draft: Draft) -> bytes:
        """The bytes of `draft` after some were changed, lost or repeated, its lengths first of all."""
        raw = bytearray(draft.raw)
        for _ in range(self.rng.choice((1, 1, 1, 2, 3, 8))):
            if self.rng.random() < 0.3 and draft.lengths:
                self._break_length(raw, *self.rng.choice(draft.lengths))
            elif raw:
                self._break_bytes(raw, self.rng.randrange(len(raw)))
        return bytes(raw)

    def _break_length(self, raw: bytearray, at: int, flexible: bool, form: str) -> None:
        count = self.rng.choice(COUNTS)
        if flexible:
            raw[at : at + 1] = self.rng.choice((varint(count + 1), b"\xff" * 5, b"\xff\xff\xff\xff\x0f", b"\x80" * 6))
        else:
            limit = 1 << (8 * struct.calcsize(form) - 1)
            raw[at : at + struct.calcsize(form)] = struct.pack(form, max(-limit, min(limit - 1, count)))

    def _break_bytes(self, raw: bytearray, at: int) -> None:
        rng = self.rng
        match rng.randrange(6):
            case 0:
                raw[at] ^= 1 << rng.randrange(8)
            case 1:
                del raw[at:]
            case 2:
                raw[at:at] = rng.randbytes(rng.randrange(1, 30))
            case 3:
                del raw[at : at + rng.randrange(1, 20)]
            case 4:
                raw[at : at + 4] = rng.choice((b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff", b"\x80\0\0\0", b"\0\0\0\0"))
            case 5:
                raw[at:at] = raw[at : at + rng.randrange(64)] * rng.choice((1, 2, 50))

    def _entity(self, kind: Any, draft: Draft, values: Values) -> None:
        tagged = []
        for field in fields(kind):
            if "tag" in field.metadata:
                tagged.append(field)
            else:
                self._field(field, draft, kind.__flexible__, values)
        if kind.__flexible__:
            self._tags(tagged, draft)

    def _tags(self, tagged: list[Field[Any]], draft: Draft) -> None:
        items = []
        for field in tagged:
            if self.rng.random() < 0.3:
                inner = Draft()
                self._field(field, inner, True, {})
                items.append((field.metadata["tag"], bytes(inner.raw)))
        if self.rng.random() < 0.05:
            items += [(self.rng.choice((0, 1, 5, 77, 2**31)), self.rng.randbytes(self.rng.randrange(20)))]
        draft.raw += varint(len(items))
        for tag, content in items:
            draft.raw += varint(tag) + varint(len(content)) + content

    def _field(self, field: Field[Any], draft: Draft, flexible: bool, values: Values) -> None:
        kind, nullable = without_none(field.type)
        if get_origin(kind) is not tuple:
            self._value(kind, field, draft, flexible, nullable, values)
            return
        inner, inner_nullable = without_none(get_args(kind)[0])
        if self.rng.random() < 0.02:
            draft.length(-1, flexible, ">i")
            return
        count = self.rng.choice((0, 1, 1, 1, 1, 2, 3, 5)) if self.rng.random() < 0.995 else self.rng.randrange(200)
        draft.length(count, flexible, ">i")
        for _ in range(count):
            self._value(inner, field, draft, flexible, inner_nullable, values)

    def _value(
        self, kind: Any, field: Field[Any], draft: Draft, flexible: bool, nullable: bool, values: Values
    ) -> None:
        if is_dataclass(kind):
            if nullable:
                absent = self.rng.random() < 0.2
                draft.raw += b"\xff" if absent else b"\x01"
                if absent:
                    return
            self._entity(kind, draft, values)
            return
        name = field.metadata["kafka_type"]
        if name in ("string", "bytes"):
            self._text(field, name, draft, flexible, nullable, values)
        elif name == "uuid":
            draft.raw += self.rng.choice((bytes(16), self.rng.randbytes(16)))
        else:
            draft.raw += struct.pack(NUMBERS[name], self._number(field.name, name, values))

    def _number(self, field: str, name: str, values: Values) -> int:
        bits = 8 * struct.calcsize(NUMBERS[name])
        if name == "error_code" and field not in values:
            return 0 if self.rng.random() < 0.6 else self.rng.choice(CODES)
        odd = self.rng.choice((0, 1, 2, 3, 7, 100, -1, 9092, 2**63 - 1, -(2**63), self.rng.randrange(2**31)))
        number = int(values[field]) if field in values and self.rng.random() < 0.9 else odd
        return max(-(1 << (bits - 1)), min((1 << (bits - 1)) - 1, number))

    def _text(self, field: Field[Any], name: str, draft: Draft, flexible: bool, nullable: bool, values: Values) -> None:
        form = ">h" if name == "string" else ">i"
        if self.rng.random() < (0.1 if nullable else 0.01):
            draft.length(-1, flexible, form)
            return
        if field.name in values and self.rng.random() < 0.9:
            content = str(values[field.name]).encode()
        elif name == "bytes":
            content = self._blob()
        else:
            content = (self._note() if field.name == "metadata" else self.rng.choice(TEXTS)).encode()
            content = self.rng.randbytes(5) if self.rng.random() < 0.01 else content[:32000]
        draft.length(len(content), flexible, form)
        draft.raw += content

    def _blob(self) -> bytes:
        """Bytes that members of other applications put into a group: a subscription, an assignment, or random ones."""
        chance = self.rng.random()
        owned = [TopicPartition(self.rng.choice(TOPICS), self.rng.randrange(9)) for _ in range(self.rng.randrange(4))]
        if chance < 0.4:
            return encode_assignment(owned)
        if chance < 0.8:
            topics = tuple(self.rng.choices(TOPICS, k=self.rng.randrange(3)))
            generation = self.rng.randrange(-1, 9)
            return encode_subscription(Subscription(topics=topics, owned=frozenset(owned), generation=generation))
        if chance < 0.95:
            draft = Draft()
            schemas = (subscription_v3.ConsumerProtocolSubscription, assignment_v3.ConsumerProtocolAssignment)
            self._entity(self.rng.choice(schemas), draft, {})
            return struct.pack(">h", self.rng.choice((0, 1, 2, 3, 4, 99, -1))) + self.broken(draft)
        return self.rng.randbytes(self.rng.randrange(40))

    def _note(self) -> str:
        """The metadata that another client left beside a committed offset."""
        note = {"v": 1, "app": "a", "member": "m", "at": 1, "executor": "driver", "host": "h", "warm": True, "since": 1}
        text = json.dumps({name: self._odd_json(value) for name, value in note.items()})
        return self.rng.choice((text, text, text[: self.rng.randrange(1 + len(text))], "[" * 5000, "9" * 5000))

    def _odd_json(self, value: Any) -> Any:
        """Mostly `value`."""
        if self.rng.random() < 0.9 and value is not None:
            return value
        numbers = (0, 1, -1, True, 1.5, 10**12, 10**30, -(10**30), 2**63, float("nan"), float("inf"))
        return self.rng.choice((*numbers, None, [], {}, [[]], {"a": {}}, *TEXTS))


def without_none(annotation: Any) -> tuple[Any, bool]:
    """A type, and whether None was allowed beside it."""
    if get_origin(annotation) is not UnionType:
        return annotation, False
    (inner,) = (kind for kind in get_args(annotation) if kind is not NoneType)
    return inner, True
