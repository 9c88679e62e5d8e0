"""A query with `subscribePattern`: topics appear and vanish while it runs, and while it is away."""

import pytest
from harness.fake_driver import COMMITTED_OR_EARLIEST, Driver
from harness.fake_group import FakeGroup

from pyspark_kgroup.errors import DataLoss
from pyspark_kgroup.limits import IDLE_TOPICS_MAX_AGE_MS
from pyspark_kgroup.offsets.checkpoint import EMPTY, Topic
from pyspark_kgroup.options.offset_bound import OffsetBound, parse_starting_offsets
from spark_kgroup.model import TopicPartition
from spark_kgroup.topic_pattern import TopicPattern

T0, U0 = TopicPartition("t", 0), TopicPartition("u", 0)
LATEST = parse_starting_offsets("latest")
AT_5 = parse_starting_offsets('{"t": {"0": 5}}')


def running(
    *topics: str, starting: OffsetBound = COMMITTED_OR_EARLIEST, fail_on_data_loss: bool = True
) -> tuple[FakeGroup, Driver]:
    """A query that reads `[tu]`. Each topic has one partition with ten records."""
    group = FakeGroup({"t": 1})
    del group.topics_now["t"]
    group.subscribed = ()
    for topic in topics:
        appear(group, topic)
    driver = Driver(group, starting=starting, fail_on_data_loss=fail_on_data_loss, pattern=TopicPattern("[tu]"))
    driver.drain()
    return group, driver


def appear(group: FakeGroup, topic: str) -> None:
    group.create_topic(topic, 1)
    group.produce(TopicPartition(topic, 0), 10)
    group.subscribed = (*group.subscribed, topic)
    group.spread(list(group.seats))


def vanish(group: FakeGroup, topic: str) -> None:
    group.delete_topic(topic)
    group.subscribed = tuple(name for name in group.subscribed if name != topic)
    group.spread(list(group.seats))


@pytest.mark.parametrize("starting", [COMMITTED_OR_EARLIEST, LATEST, AT_5])
def test_a_topic_that_appears_is_read_from_its_earliest_offset_with_any_starting_offsets(
    starting: OffsetBound,
) -> None:
    group, driver = running("t", starting=starting)
    appear(group, "u")
    driver.drain()
    assert driver.rows[U0] == [(0, 10)]
    assert driver.durable.topics["u"].first_sight == 0


@pytest.mark.parametrize("starting", [COMMITTED_OR_EARLIEST, LATEST])
def test_the_first_topic_to_appear_is_read_from_its_earliest_offset_though_no_offset_is_durable_yet(
    starting: OffsetBound,
) -> None:
    group, driver = running(starting=starting)
    assert driver.planned == []
    appear(group, "t")
    driver.drain()
    assert driver.rows == {T0: [(0, 10)]}
    assert driver.durable.topics == {"t": Topic(topic_id=driver.durable.topics["t"].topic_id, first_sight=0)}


def test_topics_that_are_there_at_the_start_begin_where_starting_offsets_says() -> None:
    group, driver = running("t", starting=LATEST)
    group.produce(T0, 5)
    driver.drain()
    assert driver.rows == {T0: [(10, 15)]}


def test_a_topic_that_vanishes_when_all_of_it_was_read_is_a_loss_as_with_subscribe() -> None:
    group, driver = running("t", "u")
    vanish(group, "u")
    with pytest.raises(DataLoss, match="u-0"):
        driver.drain()


def test_a_topic_that_vanishes_is_skipped_without_fail_on_data_loss_and_other_topics_go_on() -> None:
    group, driver = running("t", "u", fail_on_data_loss=False)
    vanish(group, "u")
    group.produce(T0, 5)
    driver.drain()
    assert driver.rows[T0] == [(0, 10), (10, 15)]


def test_a_query_whose_topics_have_all_vanished_does_not_begin_anew() -> None:
    """The checkpoint written then says that the query has begun, so `latest` is not looked up a second time."""
    group, driver = running("t", starting=LATEST, fail_on_data_loss=False)
    vanish(group, "t")
    driver.drain()
    assert not driver.durable.owned
    assert driver.durable != EMPTY
    driver.restart()
    appear(group, "t")
    driver.drain()
    assert driver.rows == {T0: [(0, 10)]}


@pytest.mark.parametrize("count", [1, 10, 20], ids=["fewer", "as many", "more"])
def test_a_topic_that_is_recreated_under_a_pattern_is_a_loss_at_any_offsets(count: int) -> None:
    group, driver = running("t", "u")
    group.delete_topic("u")
    group.create_topic("u", 1)
    group.produce(U0, count)
    group.now_ms += IDLE_TOPICS_MAX_AGE_MS
    with pytest.raises(DataLoss, match=r"Offsets 10 on of u-0 .+ its topic is another one now"):
        driver.drain()


def test_topics_that_appear_and_vanish_while_the_driver_is_away_are_met_as_if_it_had_been_there() -> None:
    group, driver = running("t", starting=LATEST, fail_on_data_loss=False)
    group.produce(T0, 5)
    driver.drain()
    group.die()
    group.delete_topic("t")
    group.create_topic("u", 1)
    group.produce(U0, 10)
    group.subscribed = ("u",)
    driver.restart()
    group.spread(list(group.seats))
    driver.drain()
    assert driver.rows[U0] == [(0, 10)]


def test_a_topic_that_the_pattern_of_a_restart_does_not_match_is_handed_over() -> None:
    group, driver = running("t", "u")
    group.die()
    driver.pattern = TopicPattern("t")
    group.subscribed = ("t",)
    driver.restart()
    driver.drain()
    assert group.other == {U0: 10}
    assert driver.durable.topics["u"].left
