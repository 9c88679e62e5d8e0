"""A sentence names its subject, in documents and in the docstrings and comments of each room."""

import re
from collections.abc import Iterable
from pathlib import Path

import pytest
from harness.prose import PERSONS, VAGUE, Prose, prose_of
from harness.reference_pages import PAGES

ROOT = Path(__file__).parents[2]
GENERATED = {ROOT / "docs" / name for name in PAGES}
SEMICOLON = re.compile(";")
GOAL = {VAGUE: 8.0, PERSONS: 0.0, SEMICOLON: 6.0}
"""The most occurrences in 1,000 words."""

ROOMS = (
    "spark_kgroup",
    "spark_kgroup/assignors",
    "spark_kgroup/member",
    "spark_kgroup/wire",
    "spark_kgroup/runtime",
    "spark_kgroup/admin",
    "spark_kgroup/testing",
    "datasource/pyspark_kgroup",
    "datasource/pyspark_kgroup/driver",
    "datasource/pyspark_kgroup/executor",
    "datasource/pyspark_kgroup/offsets",
    "datasource/pyspark_kgroup/options",
    "datasource/pyspark_kgroup/shared",
    "examples",
    "tests",
    "tests/harness",
)


def python_of(room: str) -> list[Path]:
    """The modules of a room, without those of the rooms within it."""
    inner = [ROOT / other for other in ROOMS if other.startswith(f"{room}/")]
    return [p for p in sorted((ROOT / room).rglob("*.py")) if not any(p.is_relative_to(folder) for folder in inner)]


def described(prose: Prose) -> str:
    return "the vaguest sentences:\n" + "\n".join(f"  {sentence[:200]}" for sentence in prose.worst())


def exceeded(prose: Prose) -> list[str]:
    """The patterns found more often than `GOAL` allows."""
    return [measured.pattern for measured, most in GOAL.items() if round(prose.per_thousand(measured), 1) > most]


def documents() -> Iterable[Path]:
    found = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
    return [path for path in found if path not in GENERATED]


@pytest.mark.parametrize("measured", GOAL, ids=["vague nouns", "persons", "semicolons"])
def test_documents_are_read_once(measured: re.Pattern[str]) -> None:
    prose = prose_of(path for path in documents() if "decisions" not in path.parts)
    assert prose.per_thousand(measured) <= GOAL[measured], described(prose)


@pytest.mark.parametrize("name", ["ARCHITECTURE.md", "CONTRIBUTING.md"])
def test_a_document_that_newcomers_see_first_is_read_once(name: str) -> None:
    """By itself: among all documents a vague one would not show."""
    prose = prose_of([ROOT / name])
    assert exceeded(prose) == [], described(prose)


@pytest.mark.parametrize("room", ROOMS)
def test_the_prose_of_a_room_is_read_once(room: str) -> None:
    prose = prose_of(python_of(room))
    assert exceeded(prose) == [], described(prose)


def test_a_vague_sentence_is_found() -> None:
    prose = Prose(("Whoever asks for what nobody has is told nothing.", "The coordinator answers the member."))
    assert prose.worst()[0].startswith("Whoever")
    assert prose.per_thousand(PERSONS) == pytest.approx(1000 * 2 / 14)
