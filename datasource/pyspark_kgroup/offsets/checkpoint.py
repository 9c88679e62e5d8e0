"""The offset in Spark's checkpoint: how far each partition is read, and under which ownership.

Runs on: driver. Pure: JSON objects in and out, no I/O.

One offset, as JSON (`version` guards the shape)::

    {"version": 2,
     "topics":   {"flights": {"id": "<topic id>", "first_sight": 8}},
     "periods":  [["job-0", 3], ["job-1", 3]],
     "owned":    {"flights": {"partitions": "0-2 4", "period": "0 1 0 1", "from": "0", "pos": "120 7 0 95"}},
     "released": {"flights": {"partitions": "5", "pos": "77"}},
     "given_up": {"flights": {"partitions": "6", "pos": "90"}},
     "unstarted": {"flights": {"partitions": "7", "pos": "0"}},
     "inherited": {"flights": "6"},
     "group":    "flights",
     "app":      "job",
     "run":      7,
     "members":  {"job-0": "<member id>", "job-1": "<member id>"},
     "cluster":  "<cluster id>",
     "record_bytes": {"flights": 449}}

`owned` has every partition that this query owned at the boundary, as columns: the n-th number of `period`, `from` and
`pos` is about the n-th partition, and one number alone about all of them. A period is a line of `periods`: seat,
generation, and the cut if there was one. `from` is where it began in the partition. Spark writes three offsets with
each batch and keeps hundreds of them: so a partition takes some 14 bytes, and not 90.

`released`, here `Checkpoint.lost`, remembers how far this query had read a partition whose ownership ended without an
acknowledged commit, so that its return reads no record twice. The key is older than that name.
`given_up` is the position at which a partition was given up, after its commit. If the partition returns, the group's
committed offset counts. If that offset is beyond the position and this query committed it, this checkpoint was set
back. Releases up to 0.1.0 did not write `given_up`.
`inherited` has those partitions of both that the writer never owned: they are of another query, whose checkpoint it
continued.
`unstarted` are partitions that start where an explicit `startingOffsets` says, when a leader answers for them (their
`pos` has no meaning: it lets a reader see how many there are).

`group`, `app`, the prefix of the instance ids, and `run`, the number of the run (`seat_note.Author`), say who wrote the
offset. Older offsets do not have them, and two offsets that differ in them alone are equal. The same is true of
`members`, the ids of the members that own these partitions, under the consumer protocol alone (`earlier_runs`), of
`cluster`, the id of the cluster whose offsets these are, if its brokers say it: a restart believes no other one's, and
of `record_bytes`, how large a topic's records were when the batch was planned, by which a restart plans
(`maxBytesPerTrigger`). A release that does not know one of these keys passes over it.

Version 1 is read for ever. It had an object for each partition, and no `periods`::

    "owned":    {"flights": {"0": {"from": 0, "pos": 120, "seat": "job-0", "generation": 3}}},
    "released": {"flights": {"5": 77}}
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from itertools import pairwise
from typing import Any, Final, TypeVar

from pyspark_kgroup.errors import CheckpointError
from spark_kgroup.model import TopicPartition

T = TypeVar("T")

VERSION: Final = 2
"""The version that is written. An earlier release does not read it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Topic:
    """One topic of the checkpoint.

    Attributes:
        topic_id: as text, "" from a broker without topic ids. Another id means a new topic.
        first_sight: how many partitions it had when this checkpoint first saw it, or 0 if it appeared later.
        left: it was no longer subscribed (in the JSON only if so).
    """

    topic_id: str
    first_sight: int
    left: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Period:
    """One ownership period of one partition, the same from adoption to giving up.

    Attributes:
        topic_id: of the partition's topic. In the JSON it stands once, under `topics`. A topic that was deleted and
            created again under its old name begins another period, even if all else is equal.
        start: offset where the period began (`from` in the JSON).
        seat: instance id of the seat that adopted it.
        generation: the group's generation at adoption.
        cut: tells it from the period before, if that began at the same offset in the same generation: the log was
            truncated back to there (in the JSON only if it is not 0).

    In the JSON seat, generation and cut are a line of `periods`, for all partitions that share them.
    """

    topic_id: str
    start: int
    seat: str
    generation: int
    cut: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Owned:
    """A partition owned at the boundary: its period, and the offset up to which it is read."""

    period: Period
    position: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """One offset of the stream."""

    topics: Mapping[str, Topic] = field(default_factory=dict)
    owned: Mapping[TopicPartition, Owned] = field(default_factory=dict)
    lost: Mapping[TopicPartition, int] = field(default_factory=dict)
    given_up: Mapping[TopicPartition, int] = field(default_factory=dict)
    unstarted: frozenset[TopicPartition] = frozenset()
    inherited: frozenset[TopicPartition] = frozenset()
    group: str = field(default="", compare=False)
    app: str = field(default="", compare=False)
    run: int = field(default=0, compare=False)
    members: Mapping[str, str] = field(default_factory=dict, compare=False)
    cluster: str = field(default="", compare=False)
    record_bytes: Mapping[str, int] = field(default_factory=dict, compare=False)

    @property
    def fresh(self) -> bool:
        """No topic was seen under this checkpoint yet, so no partition was adopted."""
        return not self.topics

    def position(self, partition: TopicPartition) -> int | None:
        """How far this query has read `partition`, or None if it gave the partition up or never had it."""
        owned = self.owned.get(partition)
        return owned.position if owned is not None else self.lost.get(partition)

    def is_written_by(self, group: str, app: str) -> bool:
        """Whether a query of that group, with that prefix of instance ids, wrote this. True if it does not tell."""
        if self.group not in ("", group):
            return False
        if self.app:
            return self.app == app
        seats = {owned.period.seat for owned in self.owned.values()}
        return not seats or any(seat.rpartition("-")[0] == app for seat in seats)

    def continued_by(self, group: str, app: str) -> Checkpoint:
        """This offset as that query continues it. If another query wrote it, all of its partitions are inherited."""
        if self.is_written_by(group, app):
            return self
        return replace(self, inherited=frozenset({*self.owned, *self.lost, *self.given_up}))

    @property
    def digest(self) -> str:
        """A hash, the same for equal checkpoints and for no other ones."""
        compared = replace(self, group="", app="", run=0, members={}, cluster="", record_bytes={})
        return sha256(json.dumps(compared.to_json()).encode()).hexdigest()

    def to_json(self) -> dict[str, Any]:
        """Canonical JSON object: equal checkpoints give equal bytes (keys and partitions are sorted)."""
        periods = sorted({_line_key(owned.period) for owned in self.owned.values()})
        numbers = {line: number for number, line in enumerate(periods)}
        return {
            "version": VERSION,
            "topics": {
                name: {"id": topic.topic_id, "first_sight": topic.first_sight, **({"left": True} if topic.left else {})}
                for name, topic in sorted(self.topics.items())
            },
            "periods": [[seat, generation, *([cut] if cut else [])] for seat, generation, cut in periods],
            "owned": {
                topic: {
                    "partitions": _ranges(index for index, _ in found),
                    "period": _column([numbers[_line_key(owned.period)] for _, owned in found]),
                    "from": _column([owned.period.start for _, owned in found]),
                    "pos": _numbers(owned.position for _, owned in found),
                }
                for topic, found in _by_topic(self.owned).items()
            },
            "released": _positions(self.lost),
            **({"given_up": _positions(self.given_up)} if self.given_up else {}),
            **({"unstarted": _positions(dict.fromkeys(self.unstarted, 0))} if self.unstarted else {}),
            **({"inherited": _sets(self.inherited)} if self.inherited else {}),
            **({"group": self.group} if self.group else {}),
            **({"app": self.app} if self.app else {}),
            **({"run": self.run} if self.run else {}),
            **({"members": dict(sorted(self.members.items()))} if self.members else {}),
            **({"cluster": self.cluster} if self.cluster else {}),
            **({"record_bytes": dict(sorted(self.record_bytes.items()))} if self.record_bytes else {}),
        }

    @staticmethod
    def from_json(raw: Mapping[str, Any]) -> Checkpoint:
        """Read the JSON of `to_json`, or that of an earlier release.

        Raises:
            CheckpointError: a later version's offset, or one that is not ours.
        """
        version = raw.get("version") if isinstance(raw, Mapping) else None
        # Not `isinstance`: JSON's true is an int as well, and equals 1.
        if type(version) is not int or version not in _READERS:
            version_text = version if isinstance(version, int | str) else type(version).__name__
            raise CheckpointError(
                f"The checkpoint holds an offset of version {version_text!r}; this spark-kgroup reads versions 1 to "
                f"{VERSION}. Use the release that wrote it, or start with a new checkpointLocation."
            )
        try:
            topics = {
                _text(name): Topic(
                    topic_id=_text(t["id"]), first_sight=_number(t["first_sight"]), left=t.get("left") is True
                )
                for name, t in raw["topics"].items()
            }
            owned_in, positions = _READERS[version]
            owned, lost = owned_in(topics, raw), positions(raw["released"])
            given_up = positions(raw.get("given_up", {}))
            return Checkpoint(
                topics=topics,
                owned=owned,
                lost=lost,
                given_up=given_up,
                inherited=_sets_in(raw.get("inherited", {}), {*owned, *lost, *given_up}),
                unstarted=frozenset(positions(raw.get("unstarted", {}))),
                group=_text(raw.get("group", "")),
                app=_text(raw.get("app", "")),
                run=_number(raw.get("run", 0)),
                members={_text(seat): _text(member) for seat, member in raw.get("members", {}).items()},
                cluster=_text(raw.get("cluster", "")),
                record_bytes={_text(name): _number(size) for name, size in raw.get("record_bytes", {}).items()},
            )
        except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
            raise CheckpointError(
                f"The checkpoint holds an offset that is not kgroup's ({error!r}): was it written by another source? "
                "Start with a new checkpointLocation."
            ) from error


EMPTY: Final = Checkpoint()
"""The offset that `initialOffset` returns: constant, without I/O (Spark does not persist it, and asks on a replay)."""


def _number(value: object) -> int:
    """JSON's numbers may be infinite, and longer than Kafka's 64 bits."""
    if type(value) is not int or not -(2**63) <= value < 2**63:
        raise ValueError("a number does not fit into 64 bits")
    return value


def _text(value: object) -> str:
    """JSON's texts may hold half a letter (a lone surrogate), which no name can."""
    if not isinstance(value, str):
        raise TypeError("a text is not a string")
    value.encode()  # a UnicodeEncodeError is a ValueError
    return value


def _by_topic(values: Mapping[TopicPartition, T]) -> dict[str, list[tuple[int, T]]]:
    """Topic -> its partitions' numbers, sorted, each with its value."""
    grouped: dict[str, list[tuple[int, T]]] = {}
    for (topic, partition), value in sorted(values.items(), key=lambda item: item[0]):
        grouped.setdefault(topic, []).append((partition, value))
    return grouped


# ------------------------------------------------------------------------------------------------------- version 2


def _line_key(period: Period) -> tuple[str, int, int]:
    return period.seat, period.generation, period.cut


def _numbers(values: Iterable[int]) -> str:
    return " ".join(map(str, values))


def _column(values: Sequence[int]) -> str:
    """A number for each partition, or the one that they all have."""
    return str(values[0]) if len(set(values)) == 1 else _numbers(values)


def _ranges(indexes: Iterable[int]) -> str:
    """Sorted numbers with neighbours joined: 0-2 4."""
    found: list[list[int]] = []
    for index in indexes:
        if found and found[-1][1] == index - 1:
            found[-1][1] = index
        else:
            found.append([index, index])
    return " ".join(str(first) if first == last else f"{first}-{last}" for first, last in found)


def _sets(partitions: Iterable[TopicPartition]) -> dict[str, str]:
    grouped = _by_topic(dict.fromkeys(partitions))
    return {topic: _ranges(index for index, _ in found) for topic, found in grouped.items()}


def _positions(values: Mapping[TopicPartition, int]) -> dict[str, dict[str, str]]:
    return {
        topic: {"partitions": _ranges(index for index, _ in found), "pos": _numbers(value for _, value in found)}
        for topic, found in _by_topic(values).items()
    }


def _owned_in(topics: Mapping[str, Topic], raw: Mapping[str, Any]) -> dict[TopicPartition, Owned]:
    periods = [(_text(seat), _number(generation), _number(cut)) for seat, generation, cut in map(_line, raw["periods"])]
    found: dict[TopicPartition, Owned] = {}
    for topic, columns in raw["owned"].items():
        topic_id, pos = topics[_text(topic)].topic_id, _numbers_in(columns["pos"])
        period, start = _column_in(columns["period"], len(pos)), _column_in(columns["from"], len(pos))
        if min(period) < 0:  # as an index it would count from the end
            raise ValueError("a partition refers to a period that `periods` does not list")
        made: dict[tuple[int, int], Period] = {}  # one for all partitions that share it
        for index, which, began, position in zip(_ranges_in(columns, len(pos)), period, start, pos, strict=True):
            if (which, began) not in made:
                seat, generation, cut = periods[which]
                made[which, began] = Period(topic_id=topic_id, start=began, seat=seat, generation=generation, cut=cut)
            found[TopicPartition(topic, index)] = Owned(period=made[which, began], position=position)
    return found


def _positions_in(grouped: Mapping[str, Any]) -> dict[TopicPartition, int]:
    found: dict[TopicPartition, int] = {}
    for topic, columns in grouped.items():
        pos = _numbers_in(columns["pos"])
        where = (TopicPartition(_text(topic), index) for index in _ranges_in(columns, len(pos)))
        found.update(zip(where, pos, strict=True))
    return found


def _sets_in(grouped: Mapping[str, Any], known: Collection[TopicPartition]) -> frozenset[TopicPartition]:
    """Partitions by topic, each of which is in `known`."""
    pairs = {_text(topic): _pairs_in(text) for topic, text in grouped.items()}
    found = frozenset(tp for tp in known if any(a <= tp.partition <= b for a, b in pairs.get(tp.topic, ())))
    if len(found) != sum(last - first + 1 for each in pairs.values() for first, last in each):
        raise ValueError("a partition is inherited that has no position")
    return found


def _line(period: Sequence[Any]) -> tuple[Any, Any, Any]:
    seat, generation, *cut = period
    if len(cut) > 1:
        raise ValueError("a period is a seat, a generation and a cut")
    return seat, generation, cut[0] if cut else 0


def _numbers_in(column: object) -> list[int]:
    if not isinstance(column, str) or not _NUMBERS.fullmatch(column):
        raise ValueError("a column is not numbers with a space between them")
    return list(map(_number, map(int, column.split(" "))))


def _column_in(column: object, count: int) -> list[int]:
    found = _numbers_in(column)
    return found * count if len(found) == 1 else found


def _ranges_in(columns: Mapping[str, Any], count: int) -> list[int]:
    """The partitions of a column with `count` numbers. Counted first: a damaged range must not fill the memory."""
    pairs = _pairs_in(columns["partitions"])
    if sum(last - first + 1 for first, last in pairs) != count:
        raise ValueError("there are not as many partitions as positions")
    return [index for first, last in pairs for index in range(first, last + 1)]


def _pairs_in(text: object) -> list[tuple[int, int]]:
    """The first and the last partition of each range."""
    if not isinstance(text, str) or not _RANGES.fullmatch(text):
        raise ValueError("the partitions are not numbers and ranges with a space between them")
    pairs = [(int(first), int(last or first)) for first, _, last in (each.partition("-") for each in text.split(" "))]
    if any(last < first for first, last in pairs) or any(before[1] >= after[0] for before, after in pairwise(pairs)):
        raise ValueError("the partitions are not in order")
    return pairs


_NUMBERS: Final = re.compile("-?[0-9]{1,19}(?: -?[0-9]{1,19})*")
_RANGES: Final = re.compile("[0-9]{1,10}(?:-[0-9]{1,10})?(?: [0-9]{1,10}(?:-[0-9]{1,10})?)*")

# ------------------------------------------------------------------------------------------------------- version 1


def _owned_in_v1(topics: Mapping[str, Topic], raw: Mapping[str, Any]) -> dict[TopicPartition, Owned]:
    return {
        tp: Owned(
            period=Period(
                topic_id=topics[tp.topic].topic_id,
                start=_number(entry["from"]),
                seat=_text(entry["seat"]),
                generation=_number(entry["generation"]),
                cut=_number(entry.get("cut", 0)),
            ),
            position=_number(entry["pos"]),
        )
        for tp, entry in _flat(raw["owned"])
    }


def _positions_in_v1(grouped: Mapping[str, Any]) -> dict[TopicPartition, int]:
    return {tp: _number(entry) for tp, entry in _flat(grouped)}


def _flat(grouped: Mapping[str, Mapping[str, Any]]) -> list[tuple[TopicPartition, Any]]:
    return [
        (TopicPartition(_text(topic), _index(partition)), value)
        for topic, entries in grouped.items()
        for partition, value in entries.items()
    ]


def _index(key: str) -> int:
    """A partition's number in ASCII digits. Other digits of Unicode are refused."""
    if not (key.isascii() and key.isdigit() and len(key) <= len(str(2**31))):
        raise ValueError("a partition is not a number")
    return int(key)


_Readers = tuple[
    Callable[[Mapping[str, Topic], Mapping[str, Any]], dict[TopicPartition, Owned]],
    Callable[[Mapping[str, Any]], dict[TopicPartition, int]],
]
_READERS: Final[Mapping[int, _Readers]] = {1: (_owned_in_v1, _positions_in_v1), 2: (_owned_in, _positions_in)}
