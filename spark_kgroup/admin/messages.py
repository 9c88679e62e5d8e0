"""Messages of the commands to a person: errors in the commands' own words, and names that steer no terminal."""

from __future__ import annotations

import sys

from spark_kgroup.admin.command_terms import put_in_command_terms
from spark_kgroup.errors import KgroupError
from spark_kgroup.peer_words import printable


def text_of(problem: KgroupError) -> str:
    """The error's message in the words of the commands."""
    put_in_command_terms(problem)
    return str(problem)


def complain(problem: KgroupError) -> None:
    """Tell a person of an error that ends the command."""
    say("\n".join(map(printable, f"kgroup: {text_of(problem)}".splitlines())))


def say(line: str) -> None:
    """Write a line that is no result of the command, so to standard error."""
    sys.stderr.write(line + "\n")
