"""Texts of brokers and other peers, and long lists, made fit for our errors and log lines. Pure.

A peer's words are its own: a line break in them would begin a log line that looks like ours, and a control character
steers the terminal that shows it. On a port without TLS, any process may play the broker, and its text arrives before
any login.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice

from spark_kgroup.limits import NAMES_LISTED_MAX, PEER_WORDS_CHARS_MAX


def printable_words(text: str | None) -> str:
    """A peer's text as a part of a sentence of ours: on one line, printable, of a bounded length, and "" for None."""
    # Cut first, so that a very long text costs no work. The one character more tells that it was longer.
    beginning = (text or "")[: PEER_WORDS_CHARS_MAX + 1]
    words = printable(" ".join(beginning.split()))
    return words if len(beginning) <= PEER_WORDS_CHARS_MAX else words[:PEER_WORDS_CHARS_MAX] + " ..."


def printable(text: str) -> str:
    """On one line, and without characters that steer a terminal."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def listed(names: Sequence[object], text_of: Callable[[object], str] = str, *, between: str = ", ") -> str:
    """The texts of the first `NAMES_LISTED_MAX` of `names`, and how many more there are."""
    text = between.join(map(text_of, islice(names, NAMES_LISTED_MAX)))
    return text if len(names) <= NAMES_LISTED_MAX else f"{text} and {len(names) - NAMES_LISTED_MAX} more"
