"""`tests/spec/COORDINATOR_PARITY.md` names tests that exist, and has a line for each test of ClassicGroupTest."""

from __future__ import annotations

import ast
import re
from pathlib import Path

TESTS = Path(__file__).parents[2]
ROWS = re.findall(r"^\| (test\w+) \| (.+) \|$", (TESTS / "spec" / "COORDINATOR_PARITY.md").read_text(), re.MULTILINE)
TESTS_OF_KAFKA = 56
"""In ClassicGroupTest of 4.0."""


def names_in(file: str) -> set[str]:
    """The functions and classes of one of our files."""
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    return {node.name for node in ast.walk(ast.parse((TESTS / file).read_text())) if isinstance(node, kinds)}


def test_each_test_of_kafka_s_has_one_line() -> None:
    assert len({kafkas for kafkas, _ in ROWS}) == len(ROWS) == TESTS_OF_KAFKA


def test_each_line_names_a_test_that_exists_or_says_why_none_can() -> None:
    for kafkas, ours in ROWS:
        named = re.fullmatch(r"`([\w/]+\.py)::(\w+)`", ours)
        assert named or ours.startswith("Does not apply: "), kafkas
        assert named is None or named[2] in names_in(named[1]), f"{kafkas}: {ours}"
