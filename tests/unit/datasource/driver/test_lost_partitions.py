"""Partitions that were lost: not read while they are gone, and read on where they stood when they are back."""

import pytest
from harness.boundary import P0, World
from harness.fake_driver import Driver
from harness.fake_group import OTHER, FakeGroup

from pyspark_kgroup.limits import END_OFFSETS_MAX_AGE_MS


def test_a_lost_partition_that_comes_back_is_not_read_twice(world: World) -> None:
    group, driver = world(records=10)
    driver.trigger()
    group.target = {}
    group.expel("seat-0")
    group.notice("seat-0")
    driver.trigger()
    assert driver.durable.lost == {P0: 10}
    assert not driver.durable.owned
    group.produce(P0, 5)
    group.move(P0, "seat-0")
    driver.drain()
    assert driver.rows == {P0: [(0, 10), (10, 15)]}
    assert group.committed_now == {P0: 15}


def lost_before_its_commit(group: FakeGroup, driver: Driver) -> None:
    """0..10 is done, the group does not know, and the seat is back in a later generation. 10..15 is there to read."""
    driver.trigger()
    group.target = {}
    group.expel("seat-0")
    group.notice("seat-0")
    group.look_due = False  # a look would find it without an owner, and its position would be committed
    driver.trigger()
    group.produce(P0, 5)
    group.now_ms += END_OFFSETS_MAX_AGE_MS + 1
    group.move(P0, "seat-0")


def test_a_partition_adopted_after_an_unacknowledged_period_is_committed_first_and_read_on_at_once(
    world: World,
) -> None:
    group, driver = world(records=10)
    lost_before_its_commit(group, driver)
    driver.trigger()
    assert group.commits[1:] == [("seat-0", {P0: 10})]
    assert driver.rows == {P0: [(0, 10), (10, 15)]}


def test_a_partition_of_an_unacknowledged_period_is_not_read_on_before_its_commit_is_acknowledged(world: World) -> None:
    group, driver = world(records=10)
    lost_before_its_commit(group, driver)
    group.commit_fate = lambda: "lost"
    driver.trigger()
    assert not driver.trigger()
    assert driver.rows == {P0: [(0, 10)]}
    group.commit_fate = lambda: "ok"
    driver.drain()
    assert driver.rows == {P0: [(0, 10), (10, 15)]}


def test_records_that_another_owner_read_meanwhile_are_not_read_again(world: World) -> None:
    group, driver = world(records=10)
    driver.trigger()
    driver.trigger()
    group.expel("seat-0")
    group.move(P0, OTHER)
    group.notice("seat-0")
    group.produce(P0, 10)
    driver.trigger()
    group.other_reads(P0, 7)
    group.move(P0, "seat-0")
    group.other_gives_up()
    driver.drain()
    assert driver.rows == {P0: [(0, 10), (17, 20)]}


@pytest.mark.parametrize(("old", "new"), [("seat-0", "seat-1"), ("seat-1", "seat-0")])
def test_a_seat_that_does_not_know_it_was_expelled_gives_way_to_the_real_owner(
    world: World, old: str, new: str
) -> None:
    group, driver = world(seats=2, records=10)
    group.move(P0, old)
    driver.drain()
    group.expel(old)
    group.move(P0, new)
    group.produce(P0, 5)
    group.now_ms += END_OFFSETS_MAX_AGE_MS + 1
    driver.trigger()
    assert driver.durable.owned[P0].period.seat == new
    driver.drain()
    assert group.committed_now == {P0: 15}
    assert driver.rows == {P0: [(0, 10), (10, 15)]}


def test_a_partition_whose_commit_shows_that_it_is_lost_is_in_no_further_batch(world: World) -> None:
    group, driver = world(records=100)
    driver.trigger(limit=10)
    group.expel("seat-0")
    group.move(P0, OTHER)
    driver.trigger(limit=10)  # the commit of 0..10 is refused in this very boundary
    assert driver.rows == {P0: [(0, 10)]}


def test_a_partition_that_a_commit_shows_lost_and_that_is_back_at_once_is_adopted_anew_in_the_same_boundary(
    world: World,
) -> None:
    """The seat joins anew when its commit is refused, and is given P again."""
    group, driver = world(records=10)
    driver.trigger()
    group.expel("seat-0")
    driver.trigger()
    assert driver.durable.owned[P0].period.generation == group.generation
    assert driver.rows == {P0: [(0, 10)]}
