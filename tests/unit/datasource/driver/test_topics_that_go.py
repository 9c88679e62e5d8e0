"""A topic goes while a boundary is being crossed: whichever call to the group or the brokers meets it."""

from collections.abc import Callable, Iterator
from itertools import count

import pytest
from harness.boundary import messages
from harness.fake_driver import Driver, dumps
from harness.fake_group import FakeGroup

from pyspark_kgroup.errors import DataLoss
from pyspark_kgroup.limits import END_OFFSETS_MAX_AGE_MS, PLANNED_TOPICS_MAX_AGE_MS
from spark_kgroup.model import TopicPartition

P0, U0 = TopicPartition("t", 0), TopicPartition("u", 0)

World = Callable[..., tuple[FakeGroup, Driver]]

CIRCUMSTANCE = pytest.mark.parametrize("circumstance", ["a running query", "a restarted query", "AvailableNow"])
ANEW = pytest.mark.parametrize("anew", [False, True], ids=["deleted", "created anew"])


def delete(group: FakeGroup, anew: bool) -> None:
    group.delete_topic("t")
    if anew:
        group.create_topic("t", 1)
        group.produce(P0, 3)
        group.target[P0] = "seat-0"
        group.rewinds = {P0}  # it is read from its beginning, wherever a commit for the old one put it meanwhile


def with_two_topics(world: World, *, fail_on_data_loss: bool) -> tuple[FakeGroup, Driver]:
    """A query of `t` and `u` that has read and committed 10 records of each."""
    group, driver = world(records=10, fail_on_data_loss=fail_on_data_loss)
    group.create_topic("u", 1)
    group.produce(U0, 10)
    group.subscribed = ("t", "u")
    driver.start()
    group.move(U0, "seat-0")
    driver.drain()
    return group, driver


def each_call(
    world: World, circumstance: str, *, fail_on_data_loss: bool, anew: bool
) -> Iterator[tuple[FakeGroup, Driver]]:
    """Worlds where `t` goes in the first, the second, ... of all calls of one boundary.

    The query reads `t` and `u`. It has read 15 records of each, has committed 10, and there are 5 more.
    """
    for number in count():
        group, driver = with_two_topics(world, fail_on_data_loss=fail_on_data_loss)
        for _ in range(2):
            driver.trigger()
            for tp in (P0, U0):
                group.produce(tp, 5)
            group.now_ms += END_OFFSETS_MAX_AGE_MS + 1
        if circumstance != "a running query":
            driver.restart(bounded=circumstance == "AvailableNow")
        seen, calls = group.topics_now["t"], count()

        def meanwhile(
            group: FakeGroup = group, calls: Iterator[int] = calls, number: int = number, seen: object = seen
        ) -> None:
            if next(calls) == number and group.topics_now.get("t") is seen:
                delete(group, anew)

        group.meanwhile = meanwhile
        yield group, driver
        if next(calls) <= number:
            assert number > 5, "a boundary asks more than that"
            return


def run_until_it_went(group: FakeGroup, driver: Driver) -> None:
    seen = group.topics_now["t"]
    driver.drain()
    if group.topics_now.get("t") is seen:  # the boundary needed fewer calls
        delete(group, anew=False)
    driver.drain()


@ANEW
@CIRCUMSTANCE
def test_a_topic_that_goes_in_any_call_of_a_boundary_fails_the_query_with_its_offsets(
    world: World, circumstance: str, anew: bool
) -> None:
    for group, driver in each_call(world, circumstance, fail_on_data_loss=True, anew=anew):
        with pytest.raises(DataLoss, match=r"Offsets (15|20) (on|to \d+) of t-0 .+failOnDataLoss"):
            run_until_it_went(group, driver)
        if circumstance == "a running query":  # else it may end before it has adopted a partition
            assert group.committed_now[U0] == driver.durable.owned[U0].position


@ANEW
@CIRCUMSTANCE
def test_a_topic_that_goes_in_any_call_of_a_boundary_costs_other_topics_no_record(
    world: World, circumstance: str, anew: bool
) -> None:
    for group, driver in each_call(world, circumstance, fail_on_data_loss=False, anew=anew):
        driver.drain()
        group.produce(U0, 5)
        driver.restart()
        driver.drain()
        assert driver.rows[U0] == [(0, 10), (10, 15), (15, 20), (20, 25)]
        assert group.committed_now[U0] == 25


def test_the_log_says_why_a_boundary_begins_anew(world: World, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    for _, driver in each_call(world, "a running query", fail_on_data_loss=False, anew=False):
        driver.drain()
    lines = messages(caplog, "a topic was deleted or created again during the boundary, which starts over")
    assert lines
    assert all("t-0 does not exist" in line for line in lines)


def test_a_topic_without_a_leader_that_goes_between_boundary_and_batch_ends_no_query(world: World) -> None:
    """The look before the batch sees it first. A listing of its end is still under way, and fails from then on."""
    group, driver = with_two_topics(world, fail_on_data_loss=False)
    group.out_of_reach[P0] = lambda: True
    group.produce(U0, 5)
    group.now_ms += END_OFFSETS_MAX_AGE_MS + 1
    driver.planned.append(dumps(driver.ask()))
    group.delete_topic("t")
    group.now_ms += PLANNED_TOPICS_MAX_AGE_MS + 1
    driver.run_batch("")
    group.produce(U0, 5)
    driver.drain()
    assert driver.rows[U0][-2:] == [(10, 15), (15, 20)]
