"""A query of a thousand partitions says a few lines, and short ones, when all of them meet the same misfortune."""

import logging
from collections.abc import Callable

import pytest
from harness.fake_driver import Driver
from harness.fake_group import FakeGroup

from pyspark_kgroup.driver.boundary.boundary import Boundary
from pyspark_kgroup.driver.boundary.context import BoundaryContext
from pyspark_kgroup.limits import END_OFFSETS_MAX_AGE_MS, LEADER_PATIENCE_MS
from pyspark_kgroup.options.offset_bound import parse_starting_offsets
from spark_kgroup.errors import KgroupError
from spark_kgroup.limits import NAMES_LISTED_MAX
from spark_kgroup.seat_note import Author

World = Callable[..., tuple[FakeGroup, Driver]]

PARTITIONS = 1_000
LINE_CHARS_MAX = 2_000
LINES_MAX = NAMES_LISTED_MAX + 10


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Callable[[str], list[str]]:
    """The lines of a query's log, at INFO, that have this in them. All of them are few and short."""
    caplog.set_level(logging.INFO, "pyspark_kgroup")

    def found(part: str) -> list[str]:
        assert len(caplog.messages) <= LINES_MAX
        assert max(map(len, caplog.messages)) <= LINE_CHARS_MAX
        return [message for message in caplog.messages if part in message]

    return found


def later(group: FakeGroup) -> None:
    group.now_ms += END_OFFSETS_MAX_AGE_MS + 1


def error_of(call: Callable[[], object]) -> str:
    with pytest.raises(KgroupError) as problem:
        call()
    assert len(str(problem.value)) <= LINE_CHARS_MAX
    return str(problem.value)


def test_all_logs_lose_their_beginning(world: World, lines: Callable[[str], list[str]]) -> None:
    group, driver = world(PARTITIONS, seats=4, records=10, fail_on_data_loss=False)
    driver.drain()
    for tp in group.log:
        group.log[tp] = [50, 90]
    later(group)
    driver.drain()
    *named, rest = lines("Data loss: ")
    assert len(named) == NAMES_LISTED_MAX
    assert rest.startswith(f"Data loss: {PARTITIONS - NAMES_LISTED_MAX} more partitions are concerned")
    logs = driver.boundary.logs
    assert (logs.losses, logs.offsets_skipped) == (PARTITIONS, 40 * PARTITIONS)
    later(group)
    driver.trigger()
    assert len(lines("Data loss: ")) == NAMES_LISTED_MAX + 1, "told once"


def test_no_commit_is_acknowledged(world: World, lines: Callable[[str], list[str]]) -> None:
    group, driver = world(PARTITIONS, seats=4, records=100)
    driver.trigger(limit=2 * PARTITIONS)
    group.commit_fate = lambda: "lost"
    driver.trigger()
    (warning,) = lines("did not acknowledge the offsets read of t-0, t-1, ")
    assert f" and {PARTITIONS - NAMES_LISTED_MAX} more (" in warning
    group.now_ms += driver.options.api_timeout_ms + 1
    assert f" and {PARTITIONS - NAMES_LISTED_MAX} more (" in error_of(driver.trigger)


def test_no_leader_answers(world: World, lines: Callable[[str], list[str]]) -> None:
    group, driver = world(PARTITIONS, seats=4, records=10)
    driver.drain()
    group.out_of_reach = dict.fromkeys(group.log, lambda: True)
    for _ in range(5):
        later(group)
        began_ms = group.now_ms
        driver.trigger()
        assert group.now_ms - began_ms <= 2 * LEADER_PATIENCE_MS
    assert len(lines("No answer for t-0, t-1, ")) == 1
    group.now_ms += driver.options.api_timeout_ms
    assert f" and {PARTITIONS - NAMES_LISTED_MAX} more" in error_of(driver.trigger)


def test_a_later_run_has_committed(world: World, lines: Callable[[str], list[str]]) -> None:
    group, driver = world(PARTITIONS, seats=4, records=10)
    group.author = Author(app="seat", run=2, process="newest")
    driver.drain()
    leftover = Driver(group, parse_starting_offsets("latest"))
    us = Author(app="seat", run=1, process="leftover")
    leftover.boundary = Boundary(BoundaryContext.of(group, leftover.options, us), bounded=False)
    leftover.ask()
    (warning,) = lines("startingOffsets=latest is ignored for t-0, t-1, ")
    assert f" and {PARTITIONS - NAMES_LISTED_MAX} more: " in warning
