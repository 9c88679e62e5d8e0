"""`tests/spark/PARITY.md` names tests that exist, and has as many lines for each of Spark's suites as it says."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
PARITY = (TESTS / "spark" / "PARITY.md").read_text()
HEAD, *SECTIONS = re.split(r"^## ", PARITY, flags=re.MULTILINE)
SUITES = {
    name: (int(tests), int(not_applying))
    for name, tests, not_applying in re.findall(r"^\| (\w+Suite) \| (\d+) \| (\d+) \|$", HEAD, re.MULTILINE)
}
"""Suite -> its tests, and how many of them do not apply."""

A_TEST = re.compile(r"`([\w/]+\.py)::(test_\w+)`")
NOT_APPLYING = "Does not apply: "


def lines_of(section: str) -> list[tuple[str, str]]:
    """Spark's test, and our tests of the same property."""
    rows = re.findall(r"^\| (.+) \| (.+) \|$", section, re.MULTILINE)
    return [row for row in rows if row[0] != "Spark's test"]


LINES = {section.split("\n", 1)[0]: lines_of(section) for section in SECTIONS}


@cache
def functions_of(file: str) -> frozenset[str]:
    path = TESTS / file
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    found = ast.walk(ast.parse(path.read_text())) if path.is_file() else ()
    return frozenset(each.name for each in found if isinstance(each, functions))


def test_the_four_suites_are_there_and_the_release_that_they_are_of() -> None:
    suites = [f"Kafka{each}Suite" for each in ("MicroBatchSource", "Relation", "OffsetReader", "DontFailOnDataLoss")]
    assert list(SUITES) == [name for name in LINES if name in SUITES] == suites
    assert re.search(r"Spark 4\.\d+\.\d+ has", HEAD)


@pytest.mark.parametrize("suite", SUITES)
def test_each_test_of_a_suite_has_a_line_of_its_own(suite: str) -> None:
    names = [name for name, _ in LINES[suite]]
    not_applying = [ours for _, ours in LINES[suite] if ours.startswith(NOT_APPLYING)]
    assert (len(set(names)), len(not_applying)) == SUITES[suite]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("suite", SUITES)
def test_a_line_names_tests_of_ours_or_says_why_it_cannot_apply(suite: str) -> None:
    assert [name for name, ours in LINES[suite] if not ours.startswith(("`", NOT_APPLYING))] == []
    assert [name for name, ours in LINES[suite] if ours.startswith("`") and not A_TEST.match(ours)] == []


def test_each_test_that_is_named_exists() -> None:
    named = A_TEST.findall(PARITY)
    assert PARITY.count("::") == len(named)
    assert [f"{file}::{test}" for file, test in named if test not in functions_of(file)] == []
