"""A peer's words, or a list, stand in one sentence of ours: on its line, no control of a terminal, no endless text."""

import pytest

from spark_kgroup.limits import NAMES_LISTED_MAX, PEER_WORDS_CHARS_MAX
from spark_kgroup.peer_words import listed, printable_words

FORGED = "no.\n2026-11-25 03:00:00 ERROR spark: all is lost \x1b[31m\u202e\x9b\x07" + "A" * 100_000
"""A log line of its own, in red, from right to left, with a bell, and long."""


def test_words_that_would_be_a_line_of_their_own_are_a_part_of_ours() -> None:
    words = printable_words(FORGED)
    assert words.startswith("no. 2026-11-25 03:00:00 ERROR spark: all is lost ?[31m???AAA")
    assert words.isprintable()
    assert PEER_WORDS_CHARS_MAX - 10 < len(words) <= PEER_WORDS_CHARS_MAX + len(" ...")


@pytest.mark.parametrize("words", ["", "Authentication failed.", "größer als 3", "x" * PEER_WORDS_CHARS_MAX])
def test_ordinary_words_are_left_as_they_are(words: str) -> None:
    assert printable_words(words) == words


def test_a_missing_text_has_no_words() -> None:
    assert printable_words(None) == ""


def test_a_long_list_is_its_beginning_and_how_many_more_there_are() -> None:
    names = range(NAMES_LISTED_MAX)
    assert listed(names) == ", ".join(map(str, names))
    assert listed(range(10_000)) == f"{listed(names)} and {10_000 - NAMES_LISTED_MAX} more"
    assert listed(["a", "b"], repr, between="; ") == "'a'; 'b'"
    assert listed([]) == ""
