"""The option `startingOffsets`: its value, and how it is read.

Runs on: driver. Pure.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from pyspark_kgroup.offsets.offset_spec import OffsetSpec
from pyspark_kgroup.options.values import join, shorten
from spark_kgroup.errors import OptionError
from spark_kgroup.model import TopicPartition

EARLIEST: Final = -2
"""`OffsetSpec.EARLIEST`, as Kafka's ListOffsets and Spark's JSON write it."""

LATEST: Final = -1
"""`OffsetSpec.LATEST`, likewise."""

_BY_NUMBER: Final = {EARLIEST: OffsetSpec.EARLIEST, LATEST: OffsetSpec.LATEST}

OFFSET_MAX: Final = 2**63 - 1
"""Offsets are int64 on the wire."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StartingOffsets:
    """Where a partition starts that has neither a position in the checkpoint nor, for `committed`, in the group.

    Attributes:
        text: the option as given; messages have the beginning of it.
        committed: the group's committed offsets come first; `offset_of` says what holds where there is none.
        everywhere: where all partitions start; None if `by_partition` says it.
        by_partition: where each partition starts.
    """

    text: str
    committed: bool
    everywhere: OffsetSpec | None
    by_partition: Mapping[TopicPartition, int | OffsetSpec] = field(default_factory=dict)

    def __str__(self) -> str:
        return shorten(self.text)

    def check(self, partitions: Iterable[TopicPartition]) -> None:
        """Check that the option's JSON names the partitions that there are, all of them and no others.

        Args:
            partitions: all partitions of the subscribed topics.

        Raises:
            OptionError: it does not (`format("kafka")` refuses both, too); names all of them.
        """
        if self.everywhere is not None:
            return
        existing = set(partitions)
        if missing := sorted(existing - self.by_partition.keys()):
            raise _says_nothing_of(missing)
        if unknown := sorted(self.by_partition.keys() - existing):
            counts = Counter(tp.topic for tp in existing)
            have = ", ".join(f"{topic} has 0 to {counts[topic] - 1}" for topic in sorted({tp.topic for tp in unknown}))
            raise OptionError(
                f"Option startingOffsets names partitions that do not exist: {join(unknown)}. Leave them out: {have}."
            )

    def offset_of(self, partition: TopicPartition) -> int | OffsetSpec:
        """Where `partition` starts: an offset, or the earliest or latest one.

        Raises:
            OptionError: the option's JSON leaves this partition out (as in `format("kafka")`, it has to name all).
        """
        if self.everywhere is not None:
            return self.everywhere
        try:
            return self.by_partition[partition]
        except KeyError:
            raise _says_nothing_of([partition]) from None


def _says_nothing_of(partitions: Sequence[TopicPartition]) -> OptionError:
    return OptionError(
        f"Option startingOffsets does not name {join(partitions)}: name every partition of a subscribed topic, "
        f"with {EARLIEST} for earliest and {LATEST} for latest."
    )


def parse_starting_offsets(text: str) -> StartingOffsets:
    """The option without what other options say: the fallback of `committed`, the subscribed topics.

    Raises:
        ValueError: it is none of the words, nor JSON of that shape.
    """
    words = {"committed": OffsetSpec.LATEST, "latest": OffsetSpec.LATEST, "earliest": OffsetSpec.EARLIEST}
    if (everywhere := words.get(text.lower())) is not None:
        return StartingOffsets(text=text.lower(), committed=text.lower() == "committed", everywhere=everywhere)
    if not text.startswith("{"):
        raise ValueError
    return StartingOffsets(text=text, committed=False, everywhere=None, by_partition=_offsets_by_partition(text))


def _offsets_by_partition(text: str) -> dict[TopicPartition, int | OffsetSpec]:
    try:
        topics: Any = json.loads(text, object_pairs_hook=_without_twins, parse_int=_integer)
    except json.JSONDecodeError as problem:
        raise ValueError(f"not JSON: {problem}") from None
    except RecursionError:
        raise ValueError("objects within objects: it needs partitions within topics") from None
    offsets: dict[TopicPartition, int | OffsetSpec] = {}
    for topic, partitions in topics.items():
        if not isinstance(partitions, dict):
            raise ValueError(f"{topic!r} needs an object of partitions")
        for index, offset in partitions.items():
            if re.fullmatch("0|[1-9][0-9]{0,9}", index) is None:
                raise ValueError(f"{topic!r} has a partition {index!r}")
            if type(offset) is not int or not EARLIEST <= offset <= OFFSET_MAX:
                raise ValueError(f"{topic}-{index} has the offset {json.dumps(offset)}")
            offsets[TopicPartition(topic, int(index))] = _BY_NUMBER.get(offset, offset)
    return offsets


def _integer(digits: str) -> int:
    if len(digits) > len(str(-OFFSET_MAX)):
        raise ValueError(f"an offset of {len(digits)} digits")
    return int(digits)


def _without_twins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    names = [name for name, _ in pairs]
    if len(set(names)) < len(names):
        raise ValueError(f"a name appears twice: {', '.join(names)}")
    return dict(pairs)
