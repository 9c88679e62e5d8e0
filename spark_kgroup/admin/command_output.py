"""Messages of the commands to a person, with names that steer no terminal."""

from __future__ import annotations

import sys

from spark_kgroup.errors import KgroupError
from spark_kgroup.peer_words import printable


def complain(problem: KgroupError) -> None:
    """Tell a person of an error that ends the command."""
    say("\n".join(map(printable, f"kgroup: {problem}".splitlines())))


def say(line: str) -> None:
    """Write a line that is no result of the command, so to standard error."""
    sys.stderr.write(line + "\n")
