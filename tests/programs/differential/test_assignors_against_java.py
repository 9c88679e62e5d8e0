"""Our assignors beside Java's on the same random groups. Case by case: `make differential`."""

from pathlib import Path

import pytest

from differential.cases import case
from differential.compare import Findings, compare
from differential.java import java_answers

FIRST_SEED = 1
CASES = 7_000
LISTED = Path(__file__).with_name("more_moves.txt")
"""`python -m differential --cases 7000 --seed 1 --write differential/more_moves.txt` in `tests` writes it anew."""


@pytest.fixture(scope="module")
def found() -> Findings:
    print(f"{CASES} cases from seed {FIRST_SEED} on")
    return compare(java_answers(map(case, range(FIRST_SEED, FIRST_SEED + CASES))))


def test_each_assignor_was_compared_in_many_cases_and_java_s_answer_was_nearly_always_one(found: Findings) -> None:
    cases = {name: found.counts[f"{name}: cases"] for name in ("range", "roundrobin", "sticky", "cooperative-sticky")}
    assert sum(cases.values()) == CASES
    assert min(cases.values()) > CASES * 0.075
    failed = {what: count for what, count in found.counts.items() if "Java fails" in what or "Java leaves" in what}
    assert sum(failed.values()) < CASES / 2_000, failed


def test_range_and_roundrobin_are_java_s_and_the_sticky_ones_are_balanced_near_and_sticky_as_java_s(
    found: Findings,
) -> None:
    assert [(at.seed, at.assignor, words) for at, words in found.wrong] == []


def test_the_sticky_assignors_move_no_more_than_java_s_in_all(found: Findings) -> None:
    assert 0 < found.moved_by_ours <= found.moved_by_java
    assert 0 < found.far_in_ours <= found.far_in_java


def test_each_case_with_more_moves_than_java_s_is_listed_with_its_reason(found: Findings) -> None:
    assert found.exceptions() == LISTED.read_text().splitlines()
    assert not [line for line in found.exceptions() if "no reason" in line]
