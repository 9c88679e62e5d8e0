"""Where a query starts, or a batch read ends: `startingOffsets`, `endingOffsets`, and their forms by timestamp.

Runs on: driver. Pure.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from pyspark_kgroup.offsets.offset_spec import AtTimestamp, OffsetSpec
from pyspark_kgroup.options.values import join, shorten
from spark_kgroup.errors import OptionError
from spark_kgroup.model import TopicPartition

EARLIEST: Final = -2
"""`OffsetSpec.EARLIEST`, as Kafka's ListOffsets and Spark's JSON write it."""

LATEST: Final = -1
"""`OffsetSpec.LATEST`, likewise."""

_BY_NUMBER: Final = {EARLIEST: OffsetSpec.EARLIEST, LATEST: OffsetSpec.LATEST}

OFFSET_MAX: Final = 2**63 - 1
"""Offsets are int64 on the wire, and so are timestamps."""

SECONDS_BELOW: Final = 10**11
"""A timestamp below this is likely one in seconds (ours): in milliseconds it would be before 3 March 1973."""

OffsetBoundValue = int | OffsetSpec | AtTimestamp
"""Where a partition starts or ends, as an option gives it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetBound:
    """Start or end of partitions that have no position in the checkpoint and, for `committed`, none in the group.

    Attributes:
        text: the option as given. Messages show the beginning of it.
        option: its name.
        committed: whether the group's committed offsets come first. `offset_of` is the place without such an offset.
        everywhere: the place in all partitions, or None if `by_partition` and `by_topic` give it.
        by_partition: the place in each partition.
        by_topic: the place in all partitions of a topic.
        may_be_latest: whether the end of a partition may be given. Messages then say how.
        later_is_latest: whether a partition without a record at or after its timestamp takes its end. If not, that is
            an error.
    """

    text: str
    option: str = "startingOffsets"
    committed: bool = False
    everywhere: OffsetSpec | AtTimestamp | None
    by_partition: Mapping[TopicPartition, OffsetBoundValue] = field(default_factory=dict)
    by_topic: Mapping[str, OffsetSpec] = field(default_factory=dict)
    may_be_latest: bool = True
    later_is_latest: bool = False

    def __str__(self) -> str:
        return shorten(self.text)

    def check(self, partitions: Iterable[TopicPartition]) -> None:
        """Check that the option's JSON names all partitions that there are, and only these.

        Args:
            partitions: all partitions of the subscribed topics.

        Raises:
            OptionError: it leaves some out or names unknown ones (`format("kafka")` refuses both, too). The message
                lists them.
        """
        if self.everywhere is not None:
            return
        existing = set(partitions)
        counts = Counter(tp.topic for tp in existing)
        if missing := sorted(tp for tp in existing - self.by_partition.keys() if tp.topic not in self.by_topic):
            raise self._missing_error(missing)
        unknown, topics = sorted(self.by_partition.keys() - existing), self.by_topic.keys() - counts.keys()
        if unknown or topics:
            have = ", ".join(
                f"{topic} has 0 to {counts[topic] - 1}" if counts[topic] else f"there is no topic {topic}"
                for topic in sorted({tp.topic for tp in unknown} | topics)
            )
            raise OptionError(
                f"Option {self.option} names partitions that do not exist: {join([*unknown, *sorted(topics)])}. Leave "
                f"them out: {have}."
            )

    def offset_of(self, partition: TopicPartition) -> OffsetBoundValue:
        """The place in `partition`.

        Raises:
            OptionError: the option's JSON leaves this partition out (as in `format("kafka")`, it has to name all).
        """
        if self.everywhere is not None:
            return self.everywhere
        place = self.by_partition.get(partition, self.by_topic.get(partition.topic))
        if place is None:
            raise self._missing_error([partition])
        return place

    @property
    def topics(self) -> set[str]:
        """The topics that the option's JSON names."""
        return {tp.topic for tp in self.by_partition} | self.by_topic.keys()

    def first_at_end(self) -> str:
        """The first entry of the option's JSON that is a partition's end, as errors name it, or "" without one."""
        partitions = [tp for tp, place in self.by_partition.items() if place is OffsetSpec.LATEST]
        topics = [topic for topic, place in self.by_topic.items() if place is OffsetSpec.LATEST]
        if partitions:
            return f"{LATEST} (latest) for {min(partitions)}"
        return f"latest for {min(topics)}" if topics else ""

    def _missing_error(self, partitions: Sequence[TopicPartition]) -> OptionError:
        latest = f"{LATEST} for latest" if self.may_be_latest else ""
        numbers = {"startingOffsets": [f"{EARLIEST} for earliest", latest], "endingOffsets": [latest]}
        special = " and ".join(filter(None, numbers.get(self.option, ())))
        return OptionError(
            f"Option {self.option} does not name {join(partitions)}: name every partition of a subscribed topic"
            f"{', with ' if special else ''}{special}."
        )


def warnings_of_seconds(bounds: Iterable[OffsetBound | None]) -> Iterator[str]:
    """Warnings of timestamps that are so small that they are likely seconds. 0, for all records, is none of them."""
    for bound in bounds:
        places = () if bound is None else (bound.everywhere, *bound.by_partition.values())
        small = [place.ms for place in places if isinstance(place, AtTimestamp) and 0 < place.ms < SECONDS_BELOW]
        if bound is not None and small:
            yield (
                f"Option {bound.option} has the timestamp {small[0]}, which is before March 1973: timestamps are in "
                "milliseconds since 1970, and this one may be in seconds."
            )


def check_order(start: OffsetBound, end: OffsetBound, partitions: Iterable[TopicPartition]) -> None:
    """See that the options give no range that ends before it starts, be it in offsets or in timestamps.

    Raises:
        OptionError: they do. The message names all such partitions.
    """
    if start.committed:
        return
    wrong = []
    for tp in sorted(partitions):
        first, last = (bound.by_partition.get(tp, bound.everywhere) for bound in (start, end))
        offsets = isinstance(first, int) and isinstance(last, int) and first > last
        if offsets or (isinstance(first, AtTimestamp) and isinstance(last, AtTimestamp) and first.ms > last.ms):
            wrong.append(f"{tp}: {_format_value(first)} to {_format_value(last)}")
    if wrong:
        raise OptionError(
            f"Option {end.option} lies before {start.option} in {join(wrong)}: a read ends behind its start."
        )


def _format_value(place: OffsetBoundValue | None) -> str:
    return f"{place.ms} ms" if isinstance(place, AtTimestamp) else str(place)


def parse_starting_offsets(text: str) -> OffsetBound:
    """The option without the parts that other options give: the fallback of `committed`, the subscribed topics.

    Raises:
        ValueError: it is none of the words, nor JSON of that shape.
    """
    words = {"committed": OffsetSpec.LATEST, "latest": OffsetSpec.LATEST, "earliest": OffsetSpec.EARLIEST}
    if (everywhere := words.get(text.lower())) is not None:
        return OffsetBound(text=text.lower(), committed=text.lower() == "committed", everywhere=everywhere)
    if not text.startswith("{"):
        raise ValueError
    by_partition, by_topic = _places(text, _offset, words=("earliest", "latest"))
    return OffsetBound(text=text, everywhere=None, by_partition=by_partition, by_topic=by_topic)


def parse_ending_offsets(text: str) -> OffsetBound:
    """The option `endingOffsets`: raises ValueError as `parse_starting_offsets`."""
    if text.lower() == "latest":
        return OffsetBound(text="latest", option="endingOffsets", everywhere=OffsetSpec.LATEST)
    if not text.startswith("{"):
        raise ValueError
    by_partition, by_topic = _places(text, _end_offset, words=("latest",))
    return OffsetBound(text=text, option="endingOffsets", everywhere=None, by_partition=by_partition, by_topic=by_topic)


def by_timestamp(option: str) -> Callable[[str], OffsetBound]:
    """A reader of an option whose text is one timestamp. It raises ValueError on any other text."""

    def read(text: str) -> OffsetBound:
        if re.fullmatch("[0-9]{1,19}", text) is None or int(text) > OFFSET_MAX:
            raise ValueError
        return OffsetBound(text=text, option=option, everywhere=AtTimestamp(int(text)))

    return read


def by_timestamps(option: str) -> Callable[[str], OffsetBound]:
    """A reader of JSON with a timestamp for each partition. It raises ValueError on any other text."""

    def read(text: str) -> OffsetBound:
        if not text.startswith("{"):
            raise ValueError
        return OffsetBound(text=text, option=option, everywhere=None, by_partition=_places(text, _timestamp)[0])

    return read


def _places(
    text: str, read: Callable[[TopicPartition, object], OffsetBoundValue], *, words: Sequence[str] = ()
) -> tuple[dict[TopicPartition, OffsetBoundValue], dict[str, OffsetSpec]]:
    """The places in JSON, by partition, and by topic where the topic's value is one of `words`."""
    try:
        topics: Any = json.loads(text, object_pairs_hook=_without_twins, parse_int=_integer)
    except json.JSONDecodeError as problem:
        raise ValueError(f"not JSON: {problem}") from None
    except RecursionError:
        raise ValueError("objects within objects: it needs partitions within topics") from None
    places: dict[TopicPartition, OffsetBoundValue] = {}
    by_topic: dict[str, OffsetSpec] = {}
    for topic, partitions in topics.items():
        if isinstance(partitions, str) and partitions.lower() in words:
            by_topic[topic] = OffsetSpec(partitions.lower())
            continue
        if not isinstance(partitions, dict):
            raise ValueError(f"{topic!r} needs {' or '.join(['an object of partitions', *words])}")
        for index, value in partitions.items():
            if re.fullmatch("0|[1-9][0-9]{0,9}", index) is None:
                raise ValueError(f"{topic!r} has a partition {index!r}")
            partition = TopicPartition(topic, int(index))
            places[partition] = read(partition, value)
    return places, by_topic


def _offset(partition: TopicPartition, value: object) -> int | OffsetSpec:
    if type(value) is not int or not EARLIEST <= value <= OFFSET_MAX:
        raise ValueError(f"{partition} has the offset {json.dumps(value)}")
    return _BY_NUMBER.get(value, value)


def _end_offset(partition: TopicPartition, value: object) -> int | OffsetSpec:
    offset = _offset(partition, value)
    if offset is OffsetSpec.EARLIEST:
        raise ValueError(f"{partition} has {EARLIEST}, which is for the beginning")
    return offset


def _timestamp(partition: TopicPartition, value: object) -> AtTimestamp:
    if type(value) is not int or not 0 <= value <= OFFSET_MAX:
        raise ValueError(f"{partition} has the timestamp {json.dumps(value)}")
    return AtTimestamp(value)


def _integer(digits: str) -> int:
    if len(digits) > len(str(-OFFSET_MAX)):
        raise ValueError(f"a number of {len(digits)} digits")
    return int(digits)


def _without_twins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    names = [name for name, _ in pairs]
    if len(set(names)) < len(names):
        raise ValueError(f"a name appears twice: {', '.join(names)}")
    return dict(pairs)
