"""What brokers and other peers say, as it may stand in an error or a log line of ours. Pure.

A peer's words are its own: a line break in them would begin a log line that looks like ours, and a control character
steers the terminal that shows it. Whoever plays the broker on a port without TLS says what he likes, before any login.
"""

from __future__ import annotations

from spark_kgroup.limits import PEER_WORDS_CHARS_MAX


def words_of(text: str | None) -> str:
    """A peer's text as a part of a sentence of ours: on one line, printable, and of a bounded length; "" for None."""
    beginning = (text or "")[: PEER_WORDS_CHARS_MAX + 1]
    words = printable(" ".join(beginning.split()))
    return words if len(beginning) <= PEER_WORDS_CHARS_MAX else words[:PEER_WORDS_CHARS_MAX] + " ..."


def printable(text: str) -> str:
    """Without what would steer a terminal, and on one line."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)
