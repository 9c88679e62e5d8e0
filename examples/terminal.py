"""The examples' output in a terminal, and how they end: progress, errors in words, Ctrl-C."""

from __future__ import annotations

import logging
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Self

import typer
from confluent_kafka import KafkaException
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from spark_kgroup.admin.stop_signals import STOP_SIGNALS, stop_signals, stop_signals_raise
from spark_kgroup.errors import KgroupError

console = Console(highlight=False)


class Problem(Exception):
    """The example cannot go on. The message says why, and how to mend it."""


class Meter:
    """A progress bar in a terminal, and elsewhere a line every two seconds at most."""

    def __init__(self, title: str, total: int) -> None:
        self._title = title
        self._total = total
        self._rows = 0
        self._began_at_s = self._printed_at_s = time.monotonic()
        columns = (TextColumn("{task.description}"), BarColumn(24), TextColumn("{task.completed:,.0f} rows"))
        self._bar = Progress(*columns, TextColumn("{task.fields[words]}"), console=console, transient=True)
        self._task = self._bar.add_task(title, total=total, words="")

    def __enter__(self) -> Self:
        if console.is_terminal:
            self._bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if console.is_terminal:
            self._bar.stop()
        if kind is None:
            console.print(f"{self._title}: {self._rows:,} rows in {time.monotonic() - self._began_at_s:.1f} s")

    def show(self, rows: int, words: str = "") -> None:
        """Show how many rows are done: cheap enough to call for every row."""
        self._rows = rows
        if console.is_terminal:
            self._bar.update(self._task, completed=rows, words=words)
        elif words or time.monotonic() > self._printed_at_s + 2:
            self._printed_at_s = time.monotonic()
            console.print(f"{self._title}: {rows:,} of {self._total:,} rows{', ' if words else ''}{words}")


@contextmanager
def step(title: str) -> Iterator[None]:
    """Show the title of a step that takes a while, and at its end how long it took."""
    began = time.monotonic()
    if console.is_terminal:
        with console.status(title):
            yield
    else:
        console.print(title, soft_wrap=True)
        yield
    console.print(f"{title}: done in {time.monotonic() - began:.1f} s", soft_wrap=True)


@contextmanager
def as_program() -> Iterator[None]:
    """Run to the end, or until Ctrl-C (exit code 130). An error is shown as one sentence (exit code 1)."""
    logging.getLogger().addFilter(_is_no_interrupt)
    try:
        with stop_signals_raise(KeyboardInterrupt):
            yield
    except KeyboardInterrupt:
        console.print("Stopped.")
        raise typer.Exit(130) from None
    except (Problem, KgroupError, KafkaException) as problem:
        Console(stderr=True, highlight=False).print(
            f"{Path(sys.argv[0]).name}: {problem}", markup=False, soft_wrap=True
        )
        raise typer.Exit(1) from None
    finally:
        logging.getLogger().removeFilter(_is_no_interrupt)


def _is_no_interrupt(record: logging.LogRecord) -> bool:
    """False for the traceback that py4j logs, with the root logger, of a Ctrl-C that comes while it awaits the JVM."""
    return not (record.exc_info and isinstance(record.exc_info[1], KeyboardInterrupt))


@contextmanager
def ctrl_c_waits() -> Iterator[Callable[[], None]]:
    """Hold a stop signal back until the block's end: a JVM that is being launched would outlive it, with no owner.

    Yields:
        A function that restores the handlers of before this block.
    """
    held: list[int] = []
    before = {each: signal.getsignal(each) for each in STOP_SIGNALS}

    def restore() -> None:
        for each, handler in before.items():
            signal.signal(each, handler)

    for each in stop_signals():
        signal.signal(each, lambda number, _: held.append(number))
    try:
        yield restore
    finally:
        restore()
        if held:
            signal.raise_signal(held[0])
