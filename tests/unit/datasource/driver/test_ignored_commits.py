"""Committed offsets that a checkpoint disagrees with: which of them counts, and the message to the user."""

import pytest
from harness.boundary import P0, P1, World, messages
from harness.fake_driver import Driver
from harness.fake_group import OTHER, FakeGroup

from pyspark_kgroup.driver.boundary.boundary import Boundary
from pyspark_kgroup.driver.boundary.context import BoundaryContext
from pyspark_kgroup.options.offset_bound import parse_starting_offsets
from spark_kgroup.seat_note import Author


def set_back(group: FakeGroup, driver: Driver, batches: int) -> None:
    """The query is down. Checkpoint and sink are restored to an earlier batch."""
    group.die()
    group.checkpoint_set_back = True
    driver.set_back(batches)


@pytest.mark.parametrize("batches", [1, 2, 3])
def test_a_checkpoint_that_was_set_back_goes_on_from_where_it_stands(
    world: World, batches: int, caplog: pytest.LogCaptureFixture
) -> None:
    group, driver = world(partitions=2, records=150)
    for _ in range(3):
        driver.trigger(limit=100)
    driver.drain()
    set_back(group, driver, batches)
    driver.restart()
    group.commit_fate = lambda: "lost"
    driver.ask()
    group.commit_fate = lambda: "ok"
    driver.ask()
    assert group.committed_now == dict.fromkeys((P0, P1), batches * 50)
    driver.drain()
    assert {tp: (spans[0][0], spans[-1][1], len(spans)) for tp, spans in driver.rows.items()} == dict.fromkeys(
        (P0, P1), (0, 150, min(batches + 1, 3))
    )
    assert group.committed_now == {P0: 150, P1: 150}
    warnings = messages(caplog, "was set back")
    assert len(warnings) == (1 if batches < 3 else 0)
    for warning in warnings:
        assert warning.startswith("This query (instanceIdPrefix=seat) has itself committed further to group 'g' than")
        assert f"t-0: group 150, checkpoint {batches * 50}" in warning


def test_a_checkpoint_that_was_set_back_does_not_read_again_the_records_that_another_application_read(
    world: World,
) -> None:
    group, driver = world(records=100)
    driver.trigger(limit=40)
    driver.trigger(limit=40)
    driver.trigger(limit=0)
    set_back(group, driver, 1)
    group.committed_now[P0] = 90
    driver.restart()
    driver.drain()
    assert driver.rows == {P0: [(0, 40), (90, 100)]}


def test_a_hand_over_after_a_checkpoint_was_set_back_leaves_the_rest_to_the_next_owner(world: World) -> None:
    """Its seat is asked for the partition before it is adopted again."""
    group, driver = world(records=100)
    driver.trigger(limit=40)
    driver.drain()
    set_back(group, driver, 1)
    driver.restart()
    group.move(P0, OTHER)
    driver.drain()
    assert group.other == {P0: 40}


def test_a_partition_given_up_before_its_checkpoint_was_set_back_is_read_again_from_there(world: World) -> None:
    group, driver = world(partitions=2, records=10)
    driver.trigger()
    group.move(P1, OTHER)
    driver.drain()
    assert driver.durable.given_up == {P1: 10}
    before = driver.batches_done
    group.move(P1, "seat-0")
    group.other_gives_up()
    group.produce(P1, 5)
    driver.drain()
    assert driver.durable.given_up == {}
    set_back(group, driver, before)
    driver.restart()
    driver.drain()
    assert driver.rows == {P0: [(0, 10)], P1: [(0, 10), (10, 15)]}


@pytest.mark.parametrize("run", [1, 2])
def test_a_process_of_an_earlier_run_overrules_no_commit_of_a_later_one(
    world: World, caplog: pytest.LogCaptureFixture, run: int
) -> None:
    """1. a run is held up in its first boundary, 2. the query is started again and reads on, with the same number if it
    found the same, 3. the first run goes on, takes the seat, and would start where it was told: at the end."""
    group, driver = world(records=100)
    group.author = Author(app="seat", run=2, process="newest")
    driver.drain()
    group.produce(P0, 1_000)
    leftover = Driver(group, parse_starting_offsets("latest"))
    us = Author(app="seat", run=run, process="leftover")
    leftover.boundary = Boundary(BoundaryContext.of(group, leftover.options, us), bounded=False)
    assert leftover.ask().owned[P0].period.start == 100
    assert group.committed_now == {P0: 100}
    (line,) = messages(caplog, "was started again meanwhile")
    assert line.startswith("startingOffsets=latest is ignored for t-0: this very query (instanceIdPrefix=seat)")
    driver.restart()
    driver.drain()
    assert driver.rows == {P0: [(0, 100), (100, 1_100)]}


def test_a_second_checkpoint_of_the_same_application_makes_the_first_one_skip_no_record(world: World) -> None:
    group, driver = world(records=30)
    driver.drain()
    group.produce(P0, 80)
    second = Driver(group, parse_starting_offsets("latest"))
    second.drain()
    assert group.committed_now == {P0: 110}
    group.checkpoint_set_back = True
    driver.restart()
    driver.drain()
    assert driver.rows == {P0: [(0, 30), (30, 110)]}


def test_a_committed_offset_that_was_moved_back_is_ignored_with_a_warning(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    group, driver = world(records=10)
    driver.drain()
    group.committed_now[P0] = 0
    driver.restart()
    driver.drain()
    assert driver.rows == {P0: [(0, 10)]}
    assert group.committed_now == {P0: 10}
    warnings = [record.message for record in caplog.records if "behind the checkpoint" in record.message]
    assert len(warnings) == 1
    assert warnings[0].startswith("Group 'g' has offsets behind the checkpoint")
    assert "t-0: group 0, checkpoint 10" in warnings[0]
    assert "startingOffsets=committed" in warnings[0]


def test_a_committed_offset_that_plays_no_part_makes_one_warning_though_other_partitions_are_adopted_between(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    group, driver = world(partitions=2, seats=2, records=10)
    driver.drain()
    group.committed_now[P0] = 3
    driver.restart()
    group.commit_fate = lambda: "lost"
    driver.trigger()
    for seat in ("seat-0", "seat-1", "seat-0"):
        group.expel(seat)
        group.notice(seat)
        driver.trigger()
    assert driver.durable.owned[P0].period.generation == group.generation, "it was adopted anew each time"
    assert len(messages(caplog, "t-0: group 3, checkpoint 10")) == 1


def test_an_explicit_start_below_the_committed_offset_makes_no_warning_of_a_checkpoint_that_was_set_back(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    group, driver = world(records=100, starting=parse_starting_offsets("earliest"))
    group.committed_now = {P0: 80}
    group.rewinds = {P0}
    driver.drain()
    assert driver.rows == {P0: [(0, 100)]}
    assert "set back" not in caplog.text


def test_a_restart_before_a_batch_was_committed_makes_no_warning_of_offsets_behind_the_checkpoint(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    group, driver = world(records=100)
    driver.trigger(limit=40)
    driver.restart()
    driver.drain()
    assert group.committed_now == {P0: 100}
    assert "behind the checkpoint" not in caplog.text
