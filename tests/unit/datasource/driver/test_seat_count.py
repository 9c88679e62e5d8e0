"""How many seats there should be, as executors come and go, where no option says it."""

import pytest

from pyspark_kgroup.driver.startup.seat_count import SeatCount
from pyspark_kgroup.limits import SEATS_GROW_AFTER_MS, SEATS_SHRINK_AFTER_MS
from pyspark_kgroup.options.rows import MEMBERS_MAX

LEAST = 4


def test_seats_are_added_for_executors_when_no_further_one_has_come_for_a_while() -> None:
    count = SeatCount(LEAST)
    assert count.wanted(4, 16, 100, 0, busy=True) == 4
    assert count.wanted(4, 24, 100, SEATS_GROW_AFTER_MS - 1, busy=True) == 4
    assert count.wanted(4, 24, 100, 2 * SEATS_GROW_AFTER_MS - 2, busy=True) == 4, "the second one has come a moment ago"
    assert count.wanted(4, 24, 100, 2 * SEATS_GROW_AFTER_MS - 1, busy=True) == 24
    assert count.wanted(24, 24, 100, 10**9, busy=True) == 24


def test_seats_leave_when_there_were_fewer_task_slots_for_long() -> None:
    count = SeatCount(LEAST)
    assert count.wanted(24, 8, 100, 0, busy=True) == 24
    assert count.wanted(24, 12, 100, SEATS_SHRINK_AFTER_MS // 2, busy=True) == 24
    assert count.wanted(24, 8, 100, SEATS_SHRINK_AFTER_MS - 1, busy=True) == 24
    assert count.wanted(24, 8, 100, SEATS_SHRINK_AFTER_MS, busy=True) == 12, "the most that were wanted meanwhile"


def test_executors_that_are_soon_replaced_do_not_change_the_seats() -> None:
    count = SeatCount(LEAST)
    for cycle in range(100):
        at_ms = cycle * SEATS_SHRINK_AFTER_MS
        assert count.wanted(24, 8, 100, at_ms, busy=True) == 24
        assert count.wanted(24, 24, 100, at_ms + SEATS_SHRINK_AFTER_MS - 1, busy=True) == 24


@pytest.mark.parametrize(
    ("slots", "partitions", "seats"),
    [(1, 100, LEAST), (2, 100, LEAST), (50, 10, 10), (10**6, 10**6, MEMBERS_MAX), (8, 1, 1), (8, 0, 1)],
)
@pytest.mark.parametrize("before", [1, 4, 30, MEMBERS_MAX + 1])
def test_there_are_never_more_seats_than_partitions_nor_fewer_than_at_first(
    before: int, slots: int, partitions: int, seats: int
) -> None:
    count = SeatCount(LEAST)
    count.wanted(before, slots, partitions, 0, busy=True)
    assert count.wanted(before, slots, partitions, SEATS_SHRINK_AFTER_MS, busy=True) == seats


@pytest.mark.parametrize(("slots", "busy"), [(8, False), (0, True)])
def test_seats_stay_where_the_number_of_executors_is_unknown(slots: int, busy: bool) -> None:
    """In a quiet stream executors get no tasks, and their sidecars end."""
    count = SeatCount(LEAST)
    for at_ms in range(0, 10 * SEATS_SHRINK_AFTER_MS, SEATS_SHRINK_AFTER_MS // 2):
        assert count.wanted(24, slots, 100, at_ms, busy=busy) == 24


def test_a_quiet_time_begins_the_wait_for_fewer_executors_anew() -> None:
    count = SeatCount(LEAST)
    assert count.wanted(24, 8, 100, 0, busy=True) == 24
    assert count.wanted(24, 4, 100, SEATS_SHRINK_AFTER_MS // 2, busy=False) == 24
    assert count.wanted(24, 8, 100, SEATS_SHRINK_AFTER_MS, busy=True) == 24
    assert count.wanted(24, 8, 100, 2 * SEATS_SHRINK_AFTER_MS, busy=True) == 8
