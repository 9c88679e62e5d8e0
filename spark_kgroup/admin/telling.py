"""What the commands say to a person: errors in the commands' own words, and names that steer no terminal."""

from __future__ import annotations

import sys

from spark_kgroup.admin.command_terms import put_in_command_terms
from spark_kgroup.errors import KgroupError


def text_of(problem: KgroupError) -> str:
    """What went wrong, in the words of the commands."""
    put_in_command_terms(problem)
    return str(problem)


def printable(text: str) -> str:
    """Without what would steer a terminal, and on one line: names are other people's."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def complain(problem: KgroupError) -> None:
    """Tell a person of an error that ends the command."""
    say("\n".join(map(printable, f"kgroup: {text_of(problem)}".splitlines())))


def say(line: str) -> None:
    """Tell a person something that is no result: on standard error."""
    sys.stderr.write(line + "\n")
