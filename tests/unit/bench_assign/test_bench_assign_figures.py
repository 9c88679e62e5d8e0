"""The measurements and tables of `make bench-assign`."""

from typing import Any

import pytest
from bench_assign.cases import CASES, Case, Measured, Run, Subscriptions
from bench_assign.ours import run
from bench_assign.table import table

SMALL = Case(name="small", topics=4, partitions=5, members=10, leavers=2)


def measured(*seconds: tuple[float, float], moved: int = 0, peak_mib: int = 50) -> Measured:
    return Measured([Run(fresh_s, left_s, (3, 4), moved) for fresh_s, left_s in seconds], peak_mib)


def rows(text: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines()[4:]]


def test_the_table_compares_the_cold_run_and_the_best_warm_one() -> None:
    ours = measured((2, 1), (0.8, 0.9), (0.6, 0.5))
    java = measured((1, 4), (0.2, 3), (0.3, 2), moved=7, peak_mib=900)
    new, left = rows(table({SMALL: (ours, java)}, 60))
    assert new[:7] == ["20 x 10, equal", "new", "2.00", "0.60", "1.00", "0.20", "2.0 / 3.0"]
    assert left == ["", "2 left", "1.00", "0.50", "4.00", "2.00", "0.2 / 0.2", "3-4 / 3-4", "0 / 7", "50 / 900"]


def test_the_table_shows_the_bound_where_java_took_longer() -> None:
    new, left = rows(table({SMALL: (measured((2, 1)), None)}, 60))
    assert new[2:7] == ["2.00", "-", "> 60", "-", "-"]
    assert left[7:] == ["3-4 / -", "0 / -", "50 / -"]


@pytest.mark.parametrize("subscriptions", Subscriptions)
def test_a_run_assigns_everything_before_and_after_members_leave(subscriptions: Subscriptions) -> None:
    case = Case(name="small", topics=4, partitions=5, members=10, leavers=2, subscriptions=subscriptions)
    found: dict[str, Any] = run(case)
    assert sum(map(case.leaves, range(case.members))) == case.leavers
    assert found["least"] * 8 <= 20 <= found["most"] * 8


def test_the_cases_are_those_of_the_goals() -> None:
    sizes = {(case.topics * case.partitions, case.members, case.subscriptions.name) for case in CASES}
    assert sizes == {
        (100_000, 1_000, "EQUAL"),
        (1_000_000, 2_000, "EQUAL"),
        (8_000, 100, "ONE_LACKS_ONE"),
        (100_000, 1_000, "HALVES"),
    }
    assert all(sum(map(case.leaves, range(case.members))) == case.leavers for case in CASES)
