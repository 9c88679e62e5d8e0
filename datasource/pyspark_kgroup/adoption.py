"""Where an adopted partition starts: the rules of design section 7, as one function.

Runs on: driver. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

from pyspark_kgroup.checkpoint import Checkpoint, Period
from spark_kgroup.model import MemberIdentity, TopicDescription, TopicPartition


class Place(Enum):
    """A start that is not a number yet."""

    EARLIEST = "earliest"
    """The first offset that the partition still has."""

    STARTING = "starting"
    """Where the option `startingOffsets` says; for `committed`, where `kafka.auto.offset.reset` says."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """Where an adopted partition starts, and by which rule.

    Attributes:
        offset: the offset itself, or the `Place` it is to be looked up at.
        rewinds: the group's committed offset plays no part, and adoption overrules it.
    """

    offset: int | Place
    rewinds: bool = False


def topic_key(topic: TopicDescription) -> str:
    """The topic's id as the checkpoint writes it."""
    return str(topic.topic_id) if topic.topic_id is not None else ""


def adopted_start(
    partition: TopicPartition,
    *,
    checkpoint: Checkpoint,
    topic: TopicDescription,
    committed: int | None,
    explicit: bool,
) -> Start:
    """Where a partition starts that was not held without a break since `checkpoint`.

    Args:
        partition: what is adopted.
        checkpoint: the durable offset (Spark's `start`).
        topic: the partition's topic as cluster metadata shows it now.
        committed: the group's committed offset, None if there is none.
        explicit: `startingOffsets` was given and no other application is in the group: on a fresh checkpoint it wins
            over committed offsets.
    """
    if checkpoint.fresh:
        if explicit:
            return Start(offset=Place.STARTING, rewinds=True)
        return Start(offset=committed if committed is not None else Place.STARTING)
    known = checkpoint.topics.get(partition.topic)
    if known is not None and known.topic_id != topic_key(topic):
        return Start(offset=Place.EARLIEST, rewinds=True)  # deleted and created again: nothing old applies
    remembered = checkpoint.position(partition)
    if remembered is not None:
        # Another member may have gone on; after a loss nobody knows who owned it meanwhile.
        return Start(offset=max(remembered, committed if committed is not None else 0))
    if committed is not None:
        return Start(offset=committed)
    if known is not None and partition.partition < known.first_sight:
        return Start(offset=Place.STARTING)
    return Start(offset=Place.EARLIEST)


def period_of(
    partition: TopicPartition,
    offset: int,
    *,
    checkpoint: Checkpoint,
    topic: TopicDescription,
    seat: str,
    tenure: MemberIdentity,
) -> Period:
    """The ownership period that begins with this adoption.

    It is the checkpoint's own period if the same seat comes back in the same generation to where it stood: then nothing
    has changed, and nothing needs to be written.
    """
    fresh = Period(topic_id=topic_key(topic), start=offset, seat=seat, generation=tenure.generation)
    before = checkpoint.owned.get(partition)
    if before is None or replace(before.period, start=offset, cut=0) != fresh:
        return fresh
    if before.position == offset:
        return before.period
    return replace(fresh, cut=before.period.cut + 1) if before.period.start == offset else fresh
