"""An option as one row, and how its text is read.

Runs on: driver. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Final, Generic, TypeVar, cast

from pyspark_kgroup.offsets.offset_spec import Ago, OffsetSpec
from pyspark_kgroup.shared.columns import COLUMNS, HEADERS
from spark_kgroup.assignors import NAMES as ASSIGNORS
from spark_kgroup.assignors.custom import SPELLING as CUSTOM_ASSIGNOR
from spark_kgroup.errors import OptionError
from spark_kgroup.model import INT_MAX, is_kafka_name
from spark_kgroup.peer_words import listed
from spark_kgroup.topic_pattern import PatternError, TopicPattern
from spark_kgroup.wire.address import read_address

T = TypeVar("T")

PREFIX_CHARACTERS_MAX: Final = 240
"""Kafka's rule for instance ids is that for topic names, up to 249 characters
(JoinGroupRequest.validateGroupInstanceId). This leaves room for the seat's number."""

LONG_MAX: Final = 2**63 - 1

_REPEATED_CHARACTERS_MAX: Final = 300
"""How much of a user's text an error repeats: a longest name of Kafka's (249), not a PEM file or JSON for 10,000
partitions."""

_JAVA_ASSIGNORS: Final = "org.apache.kafka.clients.consumer."
_JAVA_ASSIGNOR_NAMES: Final[Mapping[str, str]] = {
    "RangeAssignor": "range",
    "RoundRobinAssignor": "roundrobin",
    "StickyAssignor": "sticky",
    "CooperativeStickyAssignor": "cooperative-sticky",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Option(Generic[T]):
    """One row.

    Attributes:
        default: the value if the option is absent. Ignored for a required one.
        shown: the default as people read it, with its unit, or None for a required option.
        range: which values there are.
        origin: Kafka's or Spark's name and default, or that it is ours.
        read: turns the text into the value. Raises ValueError if it is not in range.
        acts: where it acts: driver, executor or both.
        secret: its text is never shown, and blanks around it belong to it.
    """

    name: str
    type: str
    default: T | None
    shown: str | None
    range: str
    effect: str
    origin: str
    read: Callable[[str], T]
    acts: str = "driver"
    secret: bool = False

    def value(self, given: Mapping[str, str]) -> T:
        """The value in `given` (names in lower case), or the default.

        Raises:
            OptionError: it is required and absent, or not in range.
        """
        text = given.get(self.name.lower())
        if text is None:
            if self.shown is None:
                raise OptionError(f"Option {self.name} is missing: {self.effect} It needs {self.range}.")
            return cast("T", self.default)
        try:
            return self.read(text if self.secret else text.strip())
        except ValueError as problem:
            shown = "not valid" if self.secret else shorten(repr(text))
            why = f" ({shorten(str(problem))})" if str(problem) else ""
            hint = "" if self.secret else _hint_for_python(text.strip())
            raise OptionError(f"Option {self.name} is {shown}: it needs {self.range}{why}.{hint}") from None


def _hint_for_python(text: str) -> str:
    """The advice for an option that was given as a Python object, of which Spark has made text with `str()`."""
    if text.startswith("['"):
        return ' Of a Python list, ",".join(...) makes such a text.'
    if text.startswith("{") and "'" in text:
        return " Of a Python dict, json.dumps(...) makes such a text."
    return ""


def duration(
    name: str, default_ms: int, effect: str, *, origin: str, low_ms: int = 1, acts: str = "driver"
) -> Option[int]:
    """A row for a time in ms."""
    return Option(
        name=name,
        type="int",
        default=default_ms,
        shown=f"{default_ms} ms",
        range=f"{low_ms} to {INT_MAX} ms",
        effect=effect,
        origin=origin,
        read=number(low_ms, INT_MAX),
        acts=acts,
    )


_UNITS_MS: Final = {"ms": 1, "s": 1_000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}
"""Those of Spark's durations (JavaUtils.timeStringAs) that are not below 1 ms."""


def time_span(text: str) -> int:
    """Reads a duration in ms from the text that Spark uses, "90s" or "15m"."""
    found = re.fullmatch(r"([0-9]{1,12})([a-z]*)", text.strip().lower())
    if found is None or (found[2] or "ms") not in _UNITS_MS:
        raise ValueError
    return int(found[1]) * _UNITS_MS[found[2] or "ms"]


_ISO_DURATION: Final = re.compile(
    r"P(?=.)(?:(\d{1,9})D)?(?:T(?=.)(?:(\d{1,9})H)?(?:(\d{1,9})M)?(?:(\d{1,9})(?:\.(\d{1,9}))?S)?)?", re.I | re.ASCII
)


def offset_reset(text: str) -> OffsetSpec | Ago:
    """Reads Kafka's `auto.offset.reset` (AutoOffsetResetStrategy), whose durations are those of ISO 8601, "PT1H"."""
    if text in ("earliest", "latest"):
        return OffsetSpec(text)
    word, _, duration = text.partition(":")
    found = _ISO_DURATION.fullmatch(duration)
    if word != "by_duration" or found is None:
        raise ValueError
    days, hours, minutes, seconds = (int(number or 0) for number in found.groups()[:4])
    fraction_ms = int((found[5] or "").ljust(9, "0")) // 1_000_000
    return Ago((((days * 24 + hours) * 60 + minutes) * 60 + seconds) * 1_000 + fraction_ms)


def number(low: int, high: int) -> Callable[[str], int]:
    """Reads an integer, `low` and `high` included."""

    def read(text: str) -> int:
        if re.fullmatch(r"-?[0-9]{1,19}", text) is None or not low <= int(text) <= high:
            raise ValueError
        return int(text)

    return read


def zero_or_number(low: int, high: int) -> Callable[[str], int]:
    """Reads 0, which stands for "not at all", or an integer, `low` and `high` included."""
    otherwise = number(low, high)
    return lambda text: 0 if text == "0" else otherwise(text)


def one_of(*values: str) -> Callable[[str], str]:
    """Reads one of `values`, spelled as here."""

    def read(text: str) -> str:
        if text not in values:
            raise ValueError(nearest(text, values))
        return text

    return read


def non_empty(text: str) -> str:
    """Reads any text that is not empty."""
    if not text:
        raise ValueError
    return text


def names_in(text: str) -> tuple[str, ...]:
    """Names between commas, in order, each once."""
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    if not names:
        raise ValueError
    return names


def servers(text: str) -> str:
    """HOST:PORT between commas, with an IPv6 address in brackets."""
    for server in names_in(text):
        read_address(server)
    return ",".join(names_in(text))


def topics(text: str) -> tuple[str, ...]:
    """Names of topics between commas."""
    for topic in names_in(text):
        if not is_kafka_name(topic):
            like_a_pattern = ": a pattern belongs into subscribePattern" if "*" in topic else ""
            raise ValueError(f"{topic!r} is not a topic's name{like_a_pattern}")
    return names_in(text)


def topic_pattern(text: str) -> TopicPattern:
    """A pattern of topics' names."""
    if not text:
        raise ValueError
    try:
        return TopicPattern(text)
    except PatternError as wrong:
        raise ValueError(str(wrong).removesuffix(".")) from None


def column_names(text: str) -> tuple[str, ...]:
    """Names of our columns between commas, in any case."""
    known = {name.lower(): name for name in (*COLUMNS, HEADERS)}
    for name in names_in(text.lower()):
        if name not in known:
            raise ValueError(nearest(name, known) or f"{name!r} is unknown")
    return tuple(known[name] for name in names_in(text.lower()))


def instance_id_prefix(text: str) -> str:
    """A text that Kafka takes as an instance id, with room for a seat's number."""
    if not is_kafka_name(text) or len(text) > PREFIX_CHARACTERS_MAX:
        raise ValueError
    return text


def assignor_names(text: str) -> tuple[str, ...]:
    """Names of assignors that we have, of Java's classes of them, or module:Class, the preferred one first."""
    return tuple(dict.fromkeys(map(_assignor_name, names_in(text))))


def _assignor_name(name: str) -> str:
    if CUSTOM_ASSIGNOR.fullmatch(name):
        return name  # whether it can be imported shows when the query starts
    of_java = without_shading(name).removeprefix(_JAVA_ASSIGNORS)
    if of_java == without_shading(name):
        if name not in ASSIGNORS:
            raise ValueError(nearest(name, ASSIGNORS) or f"{name!r} is unknown")
        return name
    if of_java not in _JAVA_ASSIGNOR_NAMES:
        raise ValueError(f"{of_java} is not among them")
    return _JAVA_ASSIGNOR_NAMES[of_java]


def without_shading(class_name: str) -> str:
    """A class of Kafka's under its own name: distributions of Spark move Kafka's client into a package of theirs."""
    return class_name.removeprefix("kafkashaded.")


def shorten(text: str) -> str:
    """As much of `text` as an error should repeat."""
    if len(text) <= _REPEATED_CHARACTERS_MAX:
        return text
    return f"{text[:_REPEATED_CHARACTERS_MAX]}... ({len(text)} characters)"


def join(names: Sequence[object]) -> str:
    """`names` between commas, as many as an error should repeat."""
    return listed(names, lambda name: shorten(str(name)))


def nearest(name: str, known: Iterable[str]) -> str:
    """A question that suggests the known name most like `name`, or "" if none is."""
    found = get_close_matches(name, list(known), n=1)
    return f"did you mean {found[0]!r}?" if found else ""
