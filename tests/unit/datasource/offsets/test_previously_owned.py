"""The partitions that each seat's last process owned, by the batch that was planned last: its successor claims it."""

from pyspark_kgroup.offsets.checkpoint import EMPTY, Checkpoint, Owned, Period, Topic
from pyspark_kgroup.offsets.earlier_runs import owned_by_seat
from spark_kgroup.member.config import PreviouslyOwned
from spark_kgroup.model import TopicPartition

P0, P1, P2 = (TopicPartition("t", index) for index in range(3))


def owned(seat: str, generation: int) -> Owned:
    return Owned(period=Period(topic_id="x", start=0, seat=seat, generation=generation), position=9)


def test_a_seats_previous_partitions_come_with_the_latest_generation_of_any() -> None:
    planned = Checkpoint(
        topics={"t": Topic(topic_id="x", first_sight=3)},
        owned={P0: owned("job-0", 7), P1: owned("job-1", 4), P2: owned("job-0", 3)},
    )
    assert owned_by_seat(planned, "g") == {
        "job-0": PreviouslyOwned(partitions=frozenset({P0, P2}), generation=7),
        "job-1": PreviouslyOwned(partitions=frozenset({P1}), generation=4),
    }


def test_a_seat_is_known_by_the_member_that_owned_its_partitions_where_the_checkpoint_says_so() -> None:
    planned = Checkpoint(
        topics={"t": Topic(topic_id="x", first_sight=3)},
        owned={P0: owned("job-0", 7), P1: owned("job-1", 4)},
        members={"job-1": "s1kWtk0nQWmvXpWSMYSIVA", "job-2": "another"},
    )
    assert {seat: found.member_id for seat, found in owned_by_seat(planned, "g").items()} == {
        "job-0": "",
        "job-1": "s1kWtk0nQWmvXpWSMYSIVA",
    }


def test_seats_owned_no_partition_in_another_group_than_that_of_the_checkpoint() -> None:
    planned = Checkpoint(topics={"t": Topic(topic_id="x", first_sight=3)}, owned={P0: owned("job-0", 7)}, group="g")
    assert list(owned_by_seat(planned, "g")) == ["job-0"]
    assert owned_by_seat(planned, "another") == {}


def test_a_lost_or_released_partition_was_previously_owned_by_no_seat() -> None:
    planned = Checkpoint(topics={"t": Topic(topic_id="x", first_sight=3)}, lost={P0: 5}, given_up={P1: 5})
    assert owned_by_seat(planned, "g") == owned_by_seat(EMPTY, "g") == {}
