"""Progress of a download, on standard error: a live line in a terminal, a few plain lines elsewhere."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from spark_kgroup.errors import EnvironmentProblem

_JAR_FETCHED = re.compile(r"\[SUCCESSFUL \] .*!(?P<jar>\S+)")
_MODULE_FOUND = re.compile(r"found (?P<module>\S+) in ")

_PLAIN_LINE_EVERY: Final = 10
"""Jars between two plain lines: five lines for Kafka's 47 jars."""


class FetchProgress:
    """Counts what Ivy's lines tell: modules found, then jars fetched."""

    def __init__(self, show: Callable[[int, int], None]) -> None:
        self._show = show
        self.found_count = 0
        self.fetched_count = 0

    def saw(self, line: str) -> None:
        """Take in one line of Ivy's output."""
        if _MODULE_FOUND.search(line):
            self.found_count += 1
        elif _JAR_FETCHED.search(line):
            self.fetched_count += 1
        else:
            return
        self._show(self.found_count, self.fetched_count)


@contextmanager
def fetch_progress(name: str) -> Iterator[FetchProgress]:
    """Announce the download of `name`, show how far it is, and say when it has ended.

    Raises:
        EnvironmentProblem: rich is not installed.
    """
    try:
        from rich.console import Console
    except ModuleNotFoundError:
        raise EnvironmentProblem(
            "Fetching jars shows its progress with rich, which is not installed: pip install 'spark-kgroup[testing]'."
        ) from None
    console = Console(stderr=True)
    if not console.is_terminal:
        yield FetchProgress(_plain_lines(name))
        return
    with console.status(f"Fetching {name} (once)") as status:
        yield FetchProgress(lambda found, fetched: status.update(_words(name, found, fetched)))


def _plain_lines(name: str) -> Callable[[int, int], None]:
    sys.stderr.write(f"Fetching {name} (once)\n")

    def show(found: int, fetched: int) -> None:
        if fetched and fetched % _PLAIN_LINE_EVERY == 0:
            sys.stderr.write(_words(name, found, fetched) + "\n")

    return show


def _words(name: str, found: int, fetched: int) -> str:
    return f"Fetching {name} (once): {found} modules found, {fetched} jars fetched"
