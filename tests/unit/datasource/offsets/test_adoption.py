"""Where an adopted partition starts: one row for each rule of `adoption`."""

from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

import pytest

from pyspark_kgroup.offsets.adoption import (
    Committed,
    Start,
    Writer,
    adopted_start,
    known_ids,
    make_period,
    topic_key,
)
from pyspark_kgroup.offsets.checkpoint import EMPTY, Checkpoint, Owned, Period, Topic
from pyspark_kgroup.offsets.offset_spec import OffsetSpec
from spark_kgroup.model import MemberIdentity, TopicDescription, TopicPartition
from spark_kgroup.seat_note import Author, SeatNote

OLD, NEW = UUID(int=1 << 96), UUID(int=2 << 96)
P1 = TopicPartition("t", 1)
PERIOD = Period(topic_id=str(OLD), start=40, seat="job-0", generation=3)


def seen(first_sight: int = 4, **what: Any) -> Checkpoint:
    return Checkpoint(topics={"t": Topic(topic_id=str(OLD), first_sight=first_sight)}, **what)


OWNED = seen(owned={P1: Owned(period=PERIOD, position=100)})
LOST = seen(lost={P1: 100})
OTHER_TOPIC = Checkpoint(topics={"u": Topic(topic_id=str(OLD), first_sight=1)})


EARLIEST = OffsetSpec.EARLIEST
US, SUCCESSOR, NEIGHBOUR, UNKNOWN = Writer.US, Writer.SUCCESSOR, Writer.NEIGHBOUR, Writer.UNKNOWN
GIVEN_UP = seen(given_up={P1: 100})
UNSTARTED = seen(unstarted=frozenset({P1}))
BY_ANOTHER = replace(OWNED, group="payments", app="payments")


def inherited(checkpoint: Checkpoint) -> Checkpoint:
    return replace(checkpoint, inherited=frozenset({P1}))


@dataclass(frozen=True)
class Row:
    rule: str
    checkpoint: Checkpoint
    committed: int | None
    start: Start
    writer: Writer = UNKNOWN
    explicit: bool = False
    topic_id: UUID | None = OLD
    says: UUID | None = None
    """Which topic the commit names."""


def first(place: int | OffsetSpec) -> Start:
    return Start(offset=place, commit_first=True)


def again(offset: int) -> Start:
    return Start(offset=offset, commit_first=True, set_back=True)


TABLE = [
    Row("fresh, committed: committed", EMPTY, 70, Start(offset=70)),
    Row("fresh, committed by us: committed", EMPTY, 70, Start(offset=70), US),
    Row("fresh, committed at 0: 0 is an offset, not its absence", EMPTY, 0, Start(offset=0)),
    Row("fresh, nothing committed: startingOffsets", EMPTY, None, first(OffsetSpec.STARTING)),
    Row("fresh, explicit: wins over committed", EMPTY, 70, first(OffsetSpec.STARTING), explicit=True),
    Row("fresh, explicit: wins over what we committed", EMPTY, 70, first(OffsetSpec.STARTING), US, explicit=True),
    Row("fresh, explicit: not over a later start of us", EMPTY, 70, Start(offset=70), SUCCESSOR, explicit=True),
    Row("fresh, explicit, nothing committed", EMPTY, None, first(OffsetSpec.STARTING), explicit=True),
    Row("2: in the checkpoint, nobody went on", OWNED, 100, Start(offset=100), US),
    Row("2: in the checkpoint, our last commit is missing", OWNED, 60, Start(offset=100), US),
    Row("2: in the checkpoint, nothing committed", OWNED, None, Start(offset=100)),
    Row("2: in the checkpoint, another application went on", OWNED, 130, Start(offset=130), NEIGHBOUR),
    Row("2: in the checkpoint, another client or an administrator went on", OWNED, 130, Start(offset=130)),
    Row("2: in the checkpoint, we went on: it was set back", OWNED, 130, again(100), US),
    Row("2: set back, of a leftover", OWNED, 130, Start(offset=100, set_back=True), SUCCESSOR),
    Row("2: an administrator reset backwards", OWNED, 0, Start(offset=100)),
    Row("not started yet, explicit: as on a fresh one", UNSTARTED, 70, first(OffsetSpec.STARTING), explicit=True),
    Row("not started yet, explicit: not over a later start", UNSTARTED, 70, Start(offset=70), SUCCESSOR, explicit=True),
    Row("not started yet, others in the group", UNSTARTED, 70, Start(offset=70)),
    Row("not started yet, of a topic created again", UNSTARTED, 70, first(OffsetSpec.EARLIEST), US, True, NEW),
    Row("2: explicit counts on a fresh checkpoint only", OWNED, 130, Start(offset=130), explicit=True),
    Row("2: lost and back, nobody went on", LOST, 60, Start(offset=100), US),
    Row("2: lost and back, another member went on", LOST, 130, Start(offset=130)),
    Row("2: lost and back, we went on: it was set back", LOST, 130, again(100), US),
    Row("3: given up, nobody went on", GIVEN_UP, 100, Start(offset=100), US),
    Row("3: given up, another application went on", GIVEN_UP, 130, Start(offset=130), NEIGHBOUR),
    Row("3: given up, an administrator reset backwards", GIVEN_UP, 0, Start(offset=0)),
    Row("3: given up, we went on: it was set back", GIVEN_UP, 130, again(100), US),
    Row("3: given up, and forgotten by the group", GIVEN_UP, None, first(100)),
    Row("2: another query's checkpoint, set back after we went on", BY_ANOTHER, 130, again(100), US),
    Row("2: inherited, and we went on", inherited(LOST), 130, Start(offset=130), US),
    Row("2: inherited, and a later start of us", inherited(LOST), 130, Start(offset=130), SUCCESSOR),
    Row("2: inherited, further than we read", inherited(LOST), 60, Start(offset=100), US),
    Row("2: inherited, and nothing is committed", inherited(LOST), None, Start(offset=100)),
    Row("3: inherited as given up, and we went on", inherited(GIVEN_UP), 130, Start(offset=130), US),
    Row("3: not in the checkpoint, committed", seen(), 70, Start(offset=70)),
    Row("3: not in the checkpoint, committed by us", seen(), 70, Start(offset=70), US),
    Row("3: added later, committed by another member", seen(first_sight=1), 70, Start(offset=70)),
    Row("3: a later topic, committed by another member", OTHER_TOPIC, 70, Start(offset=70)),
    Row("4: below the count at first sight", seen(first_sight=2), None, first(OffsetSpec.STARTING)),
    Row("4: at the count at first sight: added later", seen(first_sight=1), None, first(OffsetSpec.EARLIEST)),
    Row("4: a topic that appeared later", OTHER_TOPIC, None, first(OffsetSpec.EARLIEST)),
    Row("recreated: owned", OWNED, 100, first(OffsetSpec.EARLIEST), topic_id=NEW),
    Row("recreated: lost", LOST, None, first(OffsetSpec.EARLIEST), topic_id=NEW),
    Row("recreated: given up", GIVEN_UP, 100, first(OffsetSpec.EARLIEST), topic_id=NEW),
    Row("recreated: never owned", seen(), 70, first(OffsetSpec.EARLIEST), topic_id=NEW),
    Row("recreated: another application has read the new one", OWNED, 30, Start(offset=30), NEIGHBOUR, False, NEW, NEW),
    Row("recreated: its late commit of the old one", OWNED, 130, first(EARLIEST), NEIGHBOUR, False, NEW, OLD),
    Row("recreated: we have read the new one: it was set back", OWNED, 30, first(EARLIEST), US, False, NEW, NEW),
    Row("fresh: a late commit of the one before", EMPTY, 70, first(OffsetSpec.STARTING), NEIGHBOUR, False, NEW, OLD),
    Row(
        "3: a later topic, a late commit of the one before", OTHER_TOPIC, 70, first(EARLIEST), UNKNOWN, False, NEW, OLD
    ),
    Row("2: a late commit of the one before, further than ours", OWNED, 130, first(100), NEIGHBOUR, False, OLD, NEW),
    Row("2: a commit that names this topic", OWNED, 130, Start(offset=130), NEIGHBOUR, says=OLD),
    Row("a broker that lost its topic ids", OWNED, 100, first(OffsetSpec.EARLIEST), topic_id=None),
]


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row.rule)
def test_where_an_adopted_partition_starts(row: Row) -> None:
    topic = TopicDescription(name="t", topic_id=row.topic_id, partition_count=4)
    text = Author(app="job").encode(str(row.says) if row.says is not None else "")
    committed = Committed(row.committed, row.writer, text) if row.committed is not None else None
    found = adopted_start(P1, checkpoint=row.checkpoint, topic=topic, committed=committed, explicit=row.explicit)
    assert found == row.start


@pytest.mark.parametrize(
    ("text", "writer"),
    [
        ("", UNKNOWN),
        ("by hand", UNKNOWN),
        (Author(app="job").encode(), US),
        (Author(app="job", run=6_999).encode(), US),
        (Author(app="job", run=7_001).encode(), SUCCESSOR),
        (Author(app="job", run=7_000, process="ours", seat=3).encode(), US),
        (Author(app="job", run=7_000, process="another").encode(), SUCCESSOR),
        (Author(app="job", run=6_999, process="another").encode(), US),
        (Author(app="job-2", run=7_001).encode(), NEIGHBOUR),
        (SeatNote(member=f"job-3-{UUID(int=5)}", at_ms=1).encode(), US),
        (SeatNote(member=f"job-2-3-{UUID(int=5)}", at_ms=1).encode(), NEIGHBOUR),
    ],
)
def test_the_writer_of_a_commit_is_known_by_its_metadata(text: str, writer: Writer) -> None:
    assert Writer.of(text, Author(app="job", run=7_000, process="ours")) is writer


def test_topics_without_ids_are_compared_by_name() -> None:
    """Brokers before 2.8 have none."""
    known = Checkpoint(topics={"t": Topic(topic_id="", first_sight=4)}, lost={P1: 100})
    topic = TopicDescription(name="t", topic_id=None, partition_count=4)
    assert topic_key(topic) == ""
    found = adopted_start(P1, checkpoint=known, topic=topic, committed=Committed(60, US), explicit=False)
    assert found == Start(offset=100)


def begun(offset: int, *, seat: str = "job-0", generation: int = 3, topic_id: UUID = OLD) -> Period:
    topic = TopicDescription(name="t", topic_id=topic_id, partition_count=4)
    owned_since = MemberIdentity(instance_id=seat, member_id="new", generation=generation)
    return make_period(P1, offset, checkpoint=OWNED, topic=topic, seat=seat, owned_since=owned_since)


def test_a_seat_that_adopts_again_at_its_position_keeps_its_period() -> None:
    """A driver restarted within the session timeout: no state has changed, so no new period is written."""
    assert begun(100) == PERIOD


@pytest.mark.parametrize(
    "change",
    [{"offset": 130}, {"seat": "job-1"}, {"generation": 4}, {"topic_id": NEW}],
    ids=str,
)
def test_any_other_adoption_begins_a_new_period(change: dict[str, Any]) -> None:
    arguments: dict[str, Any] = {"offset": 100, "seat": "job-0", "generation": 3, "topic_id": OLD, **change}
    assert begun(**arguments) == Period(
        topic_id=str(arguments["topic_id"]),
        start=arguments["offset"],
        seat=arguments["seat"],
        generation=arguments["generation"],
    )


@pytest.mark.parametrize("cut", [0, 1])
def test_a_period_that_begins_where_the_last_one_did_differs_from_it_by_its_cut(cut: int) -> None:
    """1. a period begins at 40 and is read to 100, 2. the log is truncated to 40, and grows, 3. the same seat adopts
    the partition anew at 40, in the same generation. As the period of 1. it would go on at 100."""
    held = replace(PERIOD, cut=cut)
    checkpoint = seen(owned={P1: Owned(period=held, position=100)})
    topic = TopicDescription(name="t", topic_id=OLD, partition_count=4)
    owned_since = MemberIdentity(instance_id="job-0", member_id="new", generation=3)

    def adopted_at(offset: int) -> Period:
        return make_period(P1, offset, checkpoint=checkpoint, topic=topic, seat="job-0", owned_since=owned_since)

    assert adopted_at(40) == replace(held, cut=cut + 1)
    assert adopted_at(60) == replace(held, start=60, cut=0)
    assert adopted_at(100) == held


def test_a_checkpoint_knows_the_ids_of_its_topics_where_a_cluster_has_ids() -> None:
    topics = {"t": Topic(topic_id=str(OLD), first_sight=1), "u": Topic(topic_id="", first_sight=1)}
    assert known_ids(Checkpoint(topics=topics)) == {"t": OLD}
