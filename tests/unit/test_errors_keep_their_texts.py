"""An error keeps the text with which it was made: another caller may hold it, or a log line may have shown it."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from pyspark_kgroup.errors import SeatTaken
from spark_kgroup.errors import AuthenticationFailed, BrokerError, FencedInstanceId, KgroupError, OptionError
from spark_kgroup.model import ErrorCode

ROOT = Path(__file__).parents[2]


def rewritten(source: str) -> Iterator[int]:
    """The lines that assign `args` of any object, by which alone the text of an exception changes."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Attribute(attr="args", ctx=ast.Store() | ast.Del()):
                yield node.lineno
            case ast.Call(func=ast.Name(id="setattr") | ast.Attribute(attr="__setattr__"), args=arguments):
                if any(isinstance(each, ast.Constant) and each.value == "args" for each in arguments):
                    yield node.lineno


@pytest.mark.parametrize("folder", ["spark_kgroup", "datasource", "examples"])
def test_no_error_is_rewritten(folder: str) -> None:
    sources = sorted((ROOT / folder).rglob("*.py"))
    assert sources
    found = [f"{path.relative_to(ROOT)}:{line}" for path in sources for line in rewritten(path.read_text())]
    assert found == [], "raise a new error `from` the old one, or make the sentence where the error is raised"


@pytest.mark.parametrize(
    ("source", "lines"),
    [
        ("error.args = (1,)", [1]),
        ("x = 1\nself.error.args, y = (1,), 2", [2]),
        ("error.args += (1,)", [1]),
        ("setattr(error, 'args', (1,))", [1]),
        ("object.__setattr__(error, 'args', (1,))", [1]),
        ("args = error.args[0]", []),
    ],
)
def test_each_way_to_rewrite_an_error_is_seen(source: str, lines: list[int]) -> None:
    assert list(rewritten(source)) == lines


def test_an_error_in_other_words_is_a_new_one_that_carries_the_same() -> None:
    first = BrokerError("Heartbeat", ErrorCode.GROUP_AUTHORIZATION_FAILED, "group 'g'")
    text = str(first)
    other = first.reworded("Member 'a' cannot go on.")
    assert (type(other), str(other), other.code, other.api) == (
        BrokerError,
        "Member 'a' cannot go on.",
        first.code,
        first.api,
    )
    assert other.__cause__ is first
    assert str(first) == text


@pytest.mark.parametrize(
    "error",
    [OptionError("o"), AuthenticationFailed("a", retriable=True), FencedInstanceId("g", "a"), SeatTaken("g", "a")],
)
def test_each_kind_of_error_can_be_put_in_other_words(error: KgroupError) -> None:
    other = error.reworded("other")
    assert (type(other), str(other), other.__dict__) == (type(error), "other", error.__dict__)


def test_a_seat_that_was_taken_is_told_in_the_words_of_its_front() -> None:
    assert "give each process instance ids of its own" in str(FencedInstanceId("g", "a"))
    assert "`instanceIdPrefix`" in str(SeatTaken("g", "a"))
    assert "Another process took the seat 'a' in group 'g' (FENCED_INSTANCE_ID)" in str(SeatTaken("g", "a"))
