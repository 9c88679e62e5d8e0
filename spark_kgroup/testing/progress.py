"""Progress of slow steps, on standard error: a live line in a terminal, a few plain lines elsewhere.

Without rich, which the extra `testing` brings, lines are plain in a terminal, too.
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from rich.console import Console

_JAR_FETCHED = re.compile(r"\[SUCCESSFUL \] .*!(?P<jar>\S+)")
_MODULE_FOUND = re.compile(r"found (?P<module>\S+) in ")

_JARS_A_LINE: Final = 10
"""Jars between two plain lines: five lines for Kafka's 47 jars."""

_LINES_MAX: Final = 5
"""Plain lines about a download whose size is known."""

_MB: Final = 1_000_000


@contextmanager
def announced(title: str) -> Iterator[None]:
    """Show the title of a slow step before it begins, and afterwards how long it took."""
    terminal = _terminal()
    began_at_s = time.monotonic()
    outcome = "not done"
    if terminal is None:
        _say(title)
    try:
        with terminal.status(title) if terminal else nullcontext():
            yield
        outcome = "done"
    finally:
        _say(f"{title}: {outcome} after {time.monotonic() - began_at_s:.1f} s")


@contextmanager
def download_progress(name: str, size_bytes: int) -> Iterator[Callable[[int], None]]:
    """Yields a function to be called again and again with the number of bytes of `name` that are there."""
    title = f"Fetching {name} (once)"
    terminal = _terminal()
    began_at_s = time.monotonic()
    if terminal is None:
        yield _plain_lines(title, size_bytes)
    else:
        from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (TextColumn("{task.description}"), BarColumn(24), DownloadColumn(), TimeRemainingColumn())
        with Progress(*columns, console=terminal, transient=True) as bar:
            task = bar.add_task(title, total=size_bytes)
            yield lambda has_bytes: bar.update(task, completed=has_bytes)
    _say(f"{title}: {size_bytes / _MB:.1f} MB in {time.monotonic() - began_at_s:.1f} s")


def _plain_lines(title: str, size_bytes: int) -> Callable[[int], None]:
    _say(f"{title}: {size_bytes / _MB:.1f} MB")
    shown = 0

    def show(has_bytes: int) -> None:
        nonlocal shown
        part = _LINES_MAX * has_bytes // size_bytes
        if shown < part < _LINES_MAX:
            shown = part
            _say(f"{title}: {has_bytes / _MB:.1f} of {size_bytes / _MB:.1f} MB")

    return show


class IvyProgress:
    """Counts by Ivy's lines: modules found, then jars fetched."""

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
def ivy_progress(name: str) -> Iterator[IvyProgress]:
    """Announce that Ivy fetches `name`, and show how far it is."""
    title = f"Fetching {name} (once)"
    terminal = _terminal()

    def words(found: int, fetched: int) -> str:
        return f"{title}: {found} modules found, {fetched} jars fetched"

    def show_plain(found: int, fetched: int) -> None:
        if fetched and fetched % _JARS_A_LINE == 0:
            _say(words(found, fetched))

    if terminal is None:
        _say(title)
        yield IvyProgress(show_plain)
        return
    with terminal.status(title) as status:
        yield IvyProgress(lambda found, fetched: status.update(words(found, fetched)))


def _terminal() -> Console | None:
    """Where a live line can be shown."""
    try:
        from rich.console import Console
    except ModuleNotFoundError:
        return None
    console = Console(stderr=True)
    return console if console.is_terminal else None


def _say(line: str) -> None:
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()
