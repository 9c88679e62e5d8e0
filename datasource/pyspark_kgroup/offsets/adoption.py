"""Where an adopted partition starts: four rules, and `adopted_start` that applies them.

Runs on: driver. Pure.

1. Owned without a break since the checkpoint was written: where the checkpoint stands. The committed offset plays no
   part. Such a partition is not adopted anew, and `adopted_start` is not asked.
2. Else, if the checkpoint has a position for it, the group's committed offset decides:
   - It is not beyond that position: start at the position.
   - It is beyond, and *another writer* committed it (another application or an administrator, see `Writer`), or the
     position is inherited (`Checkpoint.inherited`: another query's, as where two sources of a query change places and
     change back): start at the group's offset.
   - It is beyond, and this application committed it: the checkpoint was set back (restored, its newest batches
     deleted). The checkpoint decides which offsets a batch has, so reading starts at its position, with a warning, and
     the group's offset is set back, too, unless a later run committed it (`Writer.SUCCESSOR`).
3. Else, if the group has a committed offset: there. For a partition that was given up the third case of 2 holds, too:
   it was given up at a position, and this application committed an offset beyond it.
4. Else: a partition that existed when this checkpoint first saw its topic starts where `startingOffsets` says
   (`committed`: where `kafka.auto.offset.reset` says). A later partition, or one of a later topic, starts at its
   earliest offset. One that was given up starts where it was given up.

The rules hold within one topic id. A topic with another id was deleted and created again: no old position applies, and
it starts at its earliest offset, or where another application has gone on from there. Each commit of kgroup names its
topic id (`seat_note`), and a commit for another topic id does not count. On a fresh checkpoint an explicit
`startingOffsets` wins over 3, unless members of other applications are in the group, or a later run of this query has
committed. A start that the group does not have is committed BEFORE a batch relies on it (`Start.commit_first`). A
partition that could not be adopted while the checkpoint was fresh, since no leader answered for it, still starts as on
a fresh one (`Checkpoint.unstarted`).
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from enum import Enum
from typing import NamedTuple
from uuid import UUID

from pyspark_kgroup.offsets.checkpoint import Checkpoint, Period
from pyspark_kgroup.offsets.offset_spec import OffsetSpec
from spark_kgroup.model import MemberIdentity, TopicDescription, TopicPartition
from spark_kgroup.seat_note import Author, is_of_topic


class Writer(Enum):
    """Who committed an offset, by the text beside it."""

    US = "us"
    """This application: a seat with our prefix, in any run but a later one (`SUCCESSOR`)."""

    SUCCESSOR = "successor"
    """This application, in a run that this one did not know of when it started: this process is a leftover, and
    overrules no commit of that run."""

    NEIGHBOUR = "neighbour"
    """Another application that reads with kgroup."""

    UNKNOWN = "unknown"
    """An administrator, or another client."""

    @staticmethod
    def of(text: str, us: Author) -> Writer:
        """Who wrote `text` beside an offset, for the run `us`."""
        author = Author.of(text)
        if author is None:
            return Writer.UNKNOWN
        if author.app != us.app:
            return Writer.NEIGHBOUR
        if author.run is None or us.run is None:
            return Writer.US
        later = author.run > us.run or (author.run == us.run and author.process != us.process)
        return Writer.SUCCESSOR if later else Writer.US


class Committed(NamedTuple):
    """The committed offset of a partition, and who committed it.

    Attributes:
        text: the metadata of the commit.
    """

    offset: int
    writer: Writer
    text: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """Where an adopted partition starts, and by which rule.

    Attributes:
        offset: the offset itself, or its meaning, by which it is to be looked up.
        commit_first: the group has no such offset, or another one: commit this start BEFORE a batch relies on it.
        set_back: this application had committed further: the checkpoint was set back since.
    """

    offset: int | OffsetSpec
    commit_first: bool = False
    set_back: bool = False


def topic_key(topic: TopicDescription) -> str:
    """The topic's id as the checkpoint writes it."""
    return str(topic.topic_id) if topic.topic_id is not None else ""


def known_ids(checkpoint: Checkpoint) -> dict[str, UUID]:
    """Topic -> its id as the checkpoint knows it. A topic whose text is no id (`topic_key`) is left out."""
    found = {}
    for name, topic in checkpoint.topics.items():
        with suppress(ValueError):
            found[name] = UUID(topic.topic_id)
    return found


def adopted_start(
    partition: TopicPartition,
    *,
    checkpoint: Checkpoint,
    topic: TopicDescription,
    committed: Committed | None,
    explicit: bool,
    later: bool = False,
) -> Start:
    """Where a partition starts that was not held without a break since `checkpoint`.

    Args:
        partition: the one that is adopted.
        checkpoint: the durable offset (Spark's `start`).
        topic: the partition's topic as cluster metadata shows it now.
        committed: the group's committed offset, or None if it has none.
        explicit: `startingOffsets` was given and no other application is in the group: on a fresh checkpoint, and for
            partitions that still start as on one, it wins over committed offsets.
        later: its topic appeared after the query began, though the checkpoint is fresh.
    """
    known = checkpoint.topics.get(partition.topic)
    of_this_topic = is_of_topic(committed.text, topic_key(topic)) if committed is not None else None
    if of_this_topic is False:  # a late commit, for the topic that had this name before
        start = adopted_start(
            partition, checkpoint=checkpoint, topic=topic, committed=None, explicit=explicit, later=later
        )
        # Else the group would keep the old topic's offset, at which another application would start.
        return replace(start, commit_first=True)
    if known is not None and known.topic_id != topic_key(topic):  # deleted and created again: no position applies
        if committed is not None and of_this_topic and committed.writer is Writer.NEIGHBOUR:
            return Start(offset=committed.offset)
        return Start(offset=OffsetSpec.EARLIEST, commit_first=True)
    if partition in checkpoint.unstarted or (checkpoint.fresh and not later):
        if explicit and (committed is None or committed.writer is not Writer.SUCCESSOR):
            return Start(offset=OffsetSpec.STARTING, commit_first=True)
        return _committed_or(OffsetSpec.STARTING, committed)
    inherited = partition in checkpoint.inherited
    remembered = checkpoint.position(partition)
    if remembered is not None:
        return _remembered(remembered, committed, inherited=inherited)
    given_up = checkpoint.given_up.get(partition)
    if given_up is not None:
        # The group's offset is the memory of such a partition, so one that was moved back counts as well.
        further = committed is not None and committed.offset > given_up
        return _remembered(given_up, committed, inherited=inherited) if further else _committed_or(given_up, committed)
    if known is not None and partition.partition < known.first_sight:
        return _committed_or(OffsetSpec.STARTING, committed)
    return _committed_or(OffsetSpec.EARLIEST, committed)


def _committed_or(place: int | OffsetSpec, committed: Committed | None) -> Start:
    """The committed offset, or `place` if there is none, which is committed first.

    Without that commit: 1. A query starts at the end, 50. 2. It dies before it commits. 3. Another member starts at the
    end, now 90, and commits. 4. The query comes back and takes the further of both, so 50..90 is never read.
    """
    if committed is None:
        return Start(offset=place, commit_first=True)
    return Start(offset=committed.offset)


def _remembered(position: int, committed: Committed | None, *, inherited: bool) -> Start:
    """The position of this query, or the offset to which another writer has gone on from there.

    We commit only positions that a checkpoint holds already. So if we committed further ourselves, the checkpoint was
    set back since (restored, its newest batches deleted, its last files lost in a crash). It decides which offsets a
    batch has, so records beyond its position are read again.

    Of an inherited partition, another checkpoint has the rest: 1. This query reads to 20. 2. It changes places with
    another one, reads to 30 from there, and commits that. 3. They change back, and the checkpoint of its place has 20.
    """
    if committed is None or committed.offset <= position:
        return Start(offset=position)
    if committed.writer in (Writer.US, Writer.SUCCESSOR) and not inherited:
        return Start(offset=position, commit_first=committed.writer is Writer.US, set_back=True)
    return Start(offset=committed.offset)


def make_period(
    partition: TopicPartition,
    offset: int,
    *,
    checkpoint: Checkpoint,
    topic: TopicDescription,
    seat: str,
    owned_since: MemberIdentity,
) -> Period:
    """The ownership period that begins with this adoption.

    It is the checkpoint's own period if the same seat comes back in the same generation to its position: then the
    checkpoint is still right, and need not be written.

    `cut` tells two periods apart that begin at the same offset, seat and generation: 1. A period begins at 60 and is
    read to 100. 2. The log is truncated to 60, and grows. 3. The partition is adopted anew at 60. With the period of 1,
    the next batch would go on at 100, and skip the new records from 60 to 100.
    """
    fresh = Period(topic_id=topic_key(topic), start=offset, seat=seat, generation=owned_since.generation)
    before = checkpoint.owned.get(partition)
    if before is None or replace(before.period, start=offset, cut=0) != fresh:
        return fresh
    if before.position == offset:
        return before.period
    return replace(fresh, cut=before.period.cut + 1) if before.period.start == offset else fresh
