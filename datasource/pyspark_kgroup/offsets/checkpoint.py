"""The offset in Spark's checkpoint: what of each partition is read, and under which ownership.

Runs on: driver. Pure: JSON objects in and out, no I/O.

One offset, as JSON (`version` guards the shape)::

    {"version": 1,
     "topics":   {"flights": {"id": "<topic id>", "first_sight": 8}},
     "owned":    {"flights": {"0": {"from": 0, "pos": 120, "seat": "job-0", "generation": 3}}},
     "released": {"flights": {"5": 77}},
     "given_up": {"flights": {"6": 90}},
     "group":    "flights"}

`owned` has an entry for every partition that this query owned at the boundary. `released`, here `Checkpoint.lost`,
remembers how far this query had read a partition whose ownership ended without an acknowledged commit, so that its
return reads no record twice; the key is older than that name, and stays as checkpoints have it.
`given_up` says where a partition was left in good order: the group's committed offset is its memory, unless this query
itself went on from there later: then this checkpoint was set back. Releases up to 0.1.0 did not write it. `group` says
who wrote the offset, is absent from older ones, and is no part of what makes two offsets differ.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from pyspark_kgroup.errors import CheckpointError
from spark_kgroup.model import TopicPartition

VERSION: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Topic:
    """What the checkpoint knows of a topic.

    Attributes:
        topic_id: as text, "" from a broker without topic ids; another id means a new topic.
        first_sight: how many partitions it had when this checkpoint first saw it; 0 for one that appeared later.
        left: it was no longer subscribed (in the JSON only if so).
    """

    topic_id: str
    first_sight: int
    left: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Period:
    """One ownership period of one partition, the same from adoption to giving up.

    Attributes:
        topic_id: of the partition's topic; in the JSON it stands once, under `topics`. A topic that was deleted and
            created again under its old name begins another period, even if all else is equal.
        start: offset where the period began (`from` in the JSON).
        seat: instance id of the seat that adopted it.
        generation: the group's generation at adoption.
        cut: tells it from the period before, if that began at the same offset in the same generation: the log was
            truncated back to there (in the JSON only if it is not 0).
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
    group: str = field(default="", compare=False)

    @property
    def fresh(self) -> bool:
        """Nothing was ever adopted under this checkpoint."""
        return not self.topics

    def position(self, partition: TopicPartition) -> int | None:
        """How far this query has read `partition`, unless it gave it up, or never had it."""
        owned = self.owned.get(partition)
        return owned.position if owned is not None else self.lost.get(partition)

    def to_json(self) -> dict[str, Any]:
        """Canonical JSON object: equal checkpoints give equal bytes (keys are sorted)."""
        return {
            "version": VERSION,
            "topics": {
                name: {"id": topic.topic_id, "first_sight": topic.first_sight, **({"left": True} if topic.left else {})}
                for name, topic in sorted(self.topics.items())
            },
            "owned": _by_topic(
                {
                    tp: {
                        "from": owned.period.start,
                        "pos": owned.position,
                        "seat": owned.period.seat,
                        "generation": owned.period.generation,
                        **({"cut": owned.period.cut} if owned.period.cut else {}),
                    }
                    for tp, owned in self.owned.items()
                }
            ),
            "released": _by_topic(self.lost),
            **({"given_up": _by_topic(self.given_up)} if self.given_up else {}),
            **({"group": self.group} if self.group else {}),
        }

    @staticmethod
    def from_json(raw: Mapping[str, Any]) -> Checkpoint:
        """Read what `to_json` wrote.

        Raises:
            CheckpointError: another version's offset, or one that is not ours.
        """
        if _is_of_kafka_source(raw):
            raise CheckpointError(_OF_KAFKA_SOURCE)
        version = raw.get("version") if isinstance(raw, Mapping) else None
        if version != VERSION:
            version_text = version if isinstance(version, int | str) else type(version).__name__
            raise CheckpointError(
                f"The checkpoint holds an offset of version {version_text!r}; this spark-kgroup reads version "
                f"{VERSION}. Use the release that wrote it, or start with a new checkpointLocation."
            )
        try:
            topics = {
                _text(name): Topic(
                    topic_id=_text(t["id"]), first_sight=_number(t["first_sight"]), left=t.get("left") is True
                )
                for name, t in raw["topics"].items()
            }
            return Checkpoint(
                topics=topics,
                owned={tp: _owned(topics[tp.topic], entry) for tp, entry in _flat(raw["owned"])},
                lost={tp: _number(entry) for tp, entry in _flat(raw["released"])},
                given_up={tp: _number(entry) for tp, entry in _flat(raw.get("given_up", {}))},
                group=_text(raw.get("group", "")),
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise CheckpointError(
                f"The checkpoint holds an offset that is not kgroup's ({error!r}): was it written by another source? "
                "Start with a new checkpointLocation."
            ) from error


def _is_of_kafka_source(raw: object) -> bool:
    """Whether this is an offset of `format("kafka")`: {"topic": {"0": N}} (KafkaSourceOffset)."""
    if not isinstance(raw, Mapping) or not raw:
        return False
    return all(
        isinstance(offsets, Mapping) and all(str(key).isdecimal() and type(n) is int for key, n in offsets.items())
        for offsets in raw.values()
    )


_OF_KAFKA_SOURCE: Final = (
    'This is a checkpoint of format("kafka"), which format("kgroup") cannot continue. Give the query a new '
    "checkpointLocation, and as startingOffsets the JSON in the last line of the old one's file offsets/N, N being the "
    "highest number in its folder commits. Batches count from 0 again: a file sink needs a new output directory too, "
    "since it skips the numbers that it has, with all their rows; Delta and a foreachBatch that remembers numbers need "
    "a new application id (txnAppId)."
)

EMPTY: Final = Checkpoint()
"""What `initialOffset` returns: constant, without I/O (Spark does not persist it and asks again on a replay)."""


def _owned(topic: Topic, entry: Mapping[str, Any]) -> Owned:
    period = Period(
        topic_id=topic.topic_id,
        start=_number(entry["from"]),
        seat=_text(entry["seat"]),
        generation=_number(entry["generation"]),
        cut=_number(entry.get("cut", 0)),
    )
    return Owned(period=period, position=_number(entry["pos"]))


def _number(value: object) -> int:
    """JSON's numbers may be infinite, and longer than Kafka's 64 bits."""
    if type(value) is not int or not -(2**63) <= value < 2**63:
        raise ValueError("a number does not fit into 64 bits")
    return value


def _index(key: str) -> int:
    """A partition's number in ASCII digits; other digits of Unicode are refused."""
    if not (key.isascii() and key.isdigit() and len(key) <= len(str(2**31))):
        raise ValueError("a partition is not a number")
    return int(key)


def _text(value: object) -> str:
    """JSON's texts may hold half a letter (a lone surrogate), which no name can."""
    if not isinstance(value, str):
        raise TypeError("a text is not a string")
    value.encode()
    return value


def _by_topic(values: Mapping[TopicPartition, Any]) -> dict[str, dict[str, Any]]:
    grouped: dict[str, dict[str, Any]] = {}
    for (topic, partition), value in sorted(values.items()):
        grouped.setdefault(topic, {})[str(partition)] = value
    return grouped


def _flat(grouped: Mapping[str, Mapping[str, Any]]) -> list[tuple[TopicPartition, Any]]:
    return [
        (TopicPartition(_text(topic), _index(partition)), value)
        for topic, entries in grouped.items()
        for partition, value in entries.items()
    ]
