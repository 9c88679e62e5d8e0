"""Where an adopted partition starts: one row for each rule of design section 7."""

from dataclasses import dataclass
from uuid import UUID

import pytest

from pyspark_kgroup.adoption import Place, Start, adopted_start, period_of, topic_key
from pyspark_kgroup.checkpoint import EMPTY, Checkpoint, Owned, Period, Topic
from spark_kgroup.model import MemberIdentity, TopicDescription, TopicPartition

OLD, NEW = UUID(int=1), UUID(int=2)
P1 = TopicPartition("t", 1)
PERIOD = Period(topic_id=str(OLD), start=40, seat="job-0", generation=3)


def seen(first_sight: int = 4, **what: object) -> Checkpoint:
    return Checkpoint(topics={"t": Topic(topic_id=str(OLD), first_sight=first_sight)}, **what)


OWNED = seen(owned={P1: Owned(period=PERIOD, position=100)})
RELEASED = seen(released={P1: 100})
OTHER_TOPIC = Checkpoint(topics={"u": Topic(topic_id=str(OLD), first_sight=1)})


@dataclass(frozen=True)
class Row:
    rule: str
    checkpoint: Checkpoint
    committed: int | None
    start: Start
    explicit: bool = False
    topic_id: UUID | None = OLD


TABLE = [
    Row("fresh, committed: committed", EMPTY, 70, Start(offset=70)),
    Row("fresh, committed at 0: 0 is an offset, not its absence", EMPTY, 0, Start(offset=0)),
    Row("fresh, nothing committed: startingOffsets", EMPTY, None, Start(offset=Place.STARTING)),
    Row("fresh, explicit: wins over committed", EMPTY, 70, Start(offset=Place.STARTING, rewinds=True), explicit=True),
    Row(
        "fresh, explicit, nothing committed",
        EMPTY,
        None,
        Start(offset=Place.STARTING, rewinds=True),
        explicit=True,
    ),
    Row("2: in the checkpoint, nobody went on", OWNED, 100, Start(offset=100)),
    Row("2: in the checkpoint, our last commit is missing", OWNED, 60, Start(offset=100)),
    Row("2: in the checkpoint, nothing committed", OWNED, None, Start(offset=100)),
    Row("2: in the checkpoint, another member went on", OWNED, 130, Start(offset=130)),
    Row("2: an administrator reset backwards", OWNED, 0, Start(offset=100)),
    Row("2: explicit counts on a fresh checkpoint only", OWNED, 130, Start(offset=130), explicit=True),
    Row("2: lost and back, nobody went on", RELEASED, 60, Start(offset=100)),
    Row("2: lost and back, another member went on", RELEASED, 130, Start(offset=130)),
    Row("3: not in the checkpoint, committed", seen(), 70, Start(offset=70)),
    Row("3: added later, committed by another member", seen(first_sight=1), 70, Start(offset=70)),
    Row("3: a later topic, committed by another member", OTHER_TOPIC, 70, Start(offset=70)),
    Row("4: below the count at first sight", seen(first_sight=2), None, Start(offset=Place.STARTING)),
    Row("4: at the count at first sight: added later", seen(first_sight=1), None, Start(offset=Place.EARLIEST)),
    Row("4: a topic that appeared later", OTHER_TOPIC, None, Start(offset=Place.EARLIEST)),
    Row("recreated: owned", OWNED, 100, Start(offset=Place.EARLIEST, rewinds=True), topic_id=NEW),
    Row("recreated: lost", RELEASED, None, Start(offset=Place.EARLIEST, rewinds=True), topic_id=NEW),
    Row("recreated: never owned", seen(), 70, Start(offset=Place.EARLIEST, rewinds=True), topic_id=NEW),
    Row("a broker that lost its topic ids", OWNED, 100, Start(offset=Place.EARLIEST, rewinds=True), topic_id=None),
]


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row.rule)
def test_where_an_adopted_partition_starts(row: Row) -> None:
    topic = TopicDescription(name="t", topic_id=row.topic_id, partition_count=4)
    found = adopted_start(P1, checkpoint=row.checkpoint, topic=topic, committed=row.committed, explicit=row.explicit)
    assert found == row.start


def test_topics_without_ids_are_compared_by_name() -> None:
    """Brokers before 2.8 have none."""
    known = Checkpoint(topics={"t": Topic(topic_id="", first_sight=4)}, released={P1: 100})
    topic = TopicDescription(name="t", topic_id=None, partition_count=4)
    assert topic_key(topic) == ""
    found = adopted_start(P1, checkpoint=known, topic=topic, committed=60, explicit=False)
    assert found == Start(offset=100)


def begun(offset: int, *, seat: str = "job-0", generation: int = 3, topic_id: UUID = OLD) -> Period:
    topic = TopicDescription(name="t", topic_id=topic_id, partition_count=4)
    tenure = MemberIdentity(instance_id=seat, member_id="new", generation=generation)
    return period_of(P1, offset, checkpoint=OWNED, topic=topic, seat=seat, tenure=tenure)


def test_a_seat_that_comes_back_to_where_it_stood_goes_on_with_its_period() -> None:
    """A driver restarted within the session timeout: nothing has changed, nothing is written."""
    assert begun(100) == PERIOD


@pytest.mark.parametrize(
    "change",
    [{"offset": 130}, {"seat": "job-1"}, {"generation": 4}, {"topic_id": NEW}],
    ids=str,
)
def test_any_change_begins_a_period(change: dict[str, object]) -> None:
    arguments = {"offset": 100, "seat": "job-0", "generation": 3, "topic_id": OLD, **change}
    assert begun(**arguments) == Period(
        topic_id=str(arguments["topic_id"]),
        start=arguments["offset"],
        seat=arguments["seat"],
        generation=arguments["generation"],
    )
