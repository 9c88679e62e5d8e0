"""A sentence names its subject: in documents, docstrings and comments, in texts for users, and in names of tests."""

import re
from collections.abc import Mapping
from pathlib import Path

import pytest
from harness.prose import PERSONS, SEMICOLON, VAGUE, Prose, names_of_tests, prose_of, shown_by
from harness.reference_pages import PAGES

from pyspark_kgroup.options.rows import OPTIONS

ROOT = Path(__file__).parents[2]
Bounds = Mapping[re.Pattern[str], float]
"""The most occurrences in 1,000 words."""

GOAL: Bounds = {VAGUE: 8, PERSONS: 0, SEMICOLON: 6}
GOAL_OF_DECISIONS: Bounds = {VAGUE: 16, PERSONS: 0, SEMICOLON: 11}
"""As measured, rounded up. They may only be lowered."""

WORDS_OF_A_PAGE = 300
"""On a shorter page a single word exceeds a goal. Such pages are measured together."""

DECISIONS = ROOT / "docs" / "develop" / "decisions"
GENERATED = {ROOT / "docs" / name for name in PAGES}
"""Their texts are measured where they are written: in option rows, help texts and docstrings."""

DOCUMENTS = [
    path
    for path in (*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md")))
    if path not in GENERATED and not path.is_relative_to(DECISIONS)
]
LONG_PAGES = [path for path in DOCUMENTS if prose_of([path]).words >= WORDS_OF_A_PAGE]
ROWS = {ROOT / "datasource" / "pyspark_kgroup" / "options" / name for name in ("rows.py", "security_rows.py")}


def folders(*roots: str) -> list[str]:
    found = {path.parent for root in roots for path in (ROOT / root).rglob("*.py")}
    return sorted(str(folder.relative_to(ROOT)) for folder in found)


def modules(folder: str) -> list[Path]:
    """Without those of the folders within it."""
    return sorted((ROOT / folder).glob("*.py"))


def assert_read_once(prose: Prose, bounds: Bounds = GOAL) -> None:
    for measured, most in bounds.items():
        found = prose.per_thousand(measured)
        assert found <= most, f"{found:.2f} in 1,000 words, at most {most}. " + worst_of(prose, measured)


def worst_of(prose: Prose, measured: re.Pattern[str]) -> str:
    return "The worst sentences:" + "".join(f"\n  {sentence[:200]}" for sentence in prose.worst(measured))


def test_documents_are_read_once() -> None:
    assert_read_once(prose_of(DOCUMENTS))


@pytest.mark.parametrize("path", LONG_PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_page_is_read_once(path: Path) -> None:
    """By itself: among all documents a vague one would not show."""
    assert_read_once(prose_of([path]))


def test_decisions_become_no_vaguer() -> None:
    assert_read_once(prose_of(sorted(DECISIONS.glob("*.md"))), GOAL_OF_DECISIONS)


@pytest.mark.parametrize("folder", folders("spark_kgroup", "datasource", "examples", "tests"))
def test_the_docstrings_and_comments_of_a_room_are_read_once(folder: str) -> None:
    assert_read_once(prose_of(modules(folder)))


@pytest.mark.parametrize("folder", folders("spark_kgroup", "datasource", "examples"))
def test_the_errors_log_lines_and_help_texts_of_a_room_are_read_once(folder: str) -> None:
    assert_read_once(shown_by(path for path in modules(folder) if path not in ROWS))


def test_the_effects_of_options_are_read_once() -> None:
    assert_read_once(Prose(tuple(option.effect for option in OPTIONS)))


@pytest.mark.parametrize("folder", folders("tests"))
def test_the_names_of_a_folder_of_tests_are_read_once(folder: str) -> None:
    assert_read_once(names_of_tests(modules(folder)))


def test_a_vague_sentence_is_found() -> None:
    prose = Prose(("Whoever asks for what nobody has is told nothing.", "The coordinator answers the member."))
    assert prose.worst() == ["Whoever asks for what nobody has is told nothing."]
    assert prose.per_thousand(PERSONS) == pytest.approx(1000 * 2 / 14)


def test_strings_of_a_module_are_its_raised_and_logged_texts_but_not_its_docstrings(tmp_path: Path) -> None:
    module = tmp_path / "module.py"
    module.write_text(
        '"""A docstring of a module."""\n'
        "log.info('no answer of %s', name)\n"
        "words = f'somebody {who} ' f'has {count if count else \"more than one\"} ' 'of them' + ': try again then'\n"
        "raise ValueError(words)\n"
        "key = {'two words': 1}\n"
    )
    assert set(shown_by([module]).texts) == {
        "no answer of %s",
        "somebody … has … of them",
        "more than one",
        ": try again then",
    }


def test_one_person_in_many_words_is_one_too_many() -> None:
    with pytest.raises(AssertionError, match="nobody"):
        assert_read_once(Prose(("The coordinator answers the member. " * 10_000, "It lets nobody in.")))
