"""One run: messages from a seed into every target, and the findings."""

from __future__ import annotations

import resource
import signal
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from types import FrameType
from typing import Any

from fuzz.targets import Answers, Channels, Members

MESSAGE_TIMEOUT_S = 10
"""A message that takes longer is a hang. The slowest seen took 0.05 s."""

MEMORY_RISE_BYTES_MAX = 64 << 20
"""The growth that the process may have after the first twentieth of a run, by when its caches are full."""

WARM_UP = 0.05


@dataclass
class Findings:
    """The findings and figures of one run."""

    seed: int
    messages: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    wrong: Counter[str] = field(default_factory=Counter)
    first: dict[str, int] = field(default_factory=dict)
    slowest_s: float = 0.0
    seconds: float = 0.0
    memory_rise_bytes: int = 0
    states: set[str] = field(default_factory=set)

    def add(self, number: int, target: str, error: BaseException) -> None:
        """Count an error by where it was raised. The first message of each kind is remembered."""
        frames = traceback.extract_tb(error.__traceback__)
        ours = [each for each in frames if "kgroup" in each.filename and "tests" not in each.filename] or frames[-1:]
        where = f" ({Path(ours[-1].filename).name}:{ours[-1].lineno})" if ours else ""  # one that was not raised
        what = f"{target}: {type(error).__name__}: {str(error)[:120]}{where}"
        self.wrong[what] += 1
        self.first.setdefault(what, number)

    def verdict(self) -> list[str]:
        """One line for each kind of finding. No line is good."""
        lines = [f"{count} x {what}, first with message {self.first[what]}" for what, count in self.wrong.most_common()]
        if self.memory_rise_bytes > MEMORY_RISE_BYTES_MAX:
            lines.append(f"memory rose by {self.memory_rise_bytes:,} bytes")
        return lines


class Hang(Exception):
    """A message took too long."""


def run(messages: int, seed: int, progress: Callable[[Findings], None] = lambda _: None) -> Findings:
    """Send `messages` messages. `progress` is called twenty times. The same seed makes the same messages."""
    rng = Random(seed)
    targets: list[Any] = [Answers(rng), Members(rng), Channels(rng)]
    found, began_s, warm_bytes = Findings(seed=seed), time.monotonic(), 0
    with _alarm():
        for number in range(messages):
            _one(rng.choices(targets, weights=(4, 5, 2))[0], number, found)
            if number == int(messages * WARM_UP):
                warm_bytes = resident_bytes()
            if number % max(1, messages // 20) == 0:
                progress(found)
    found.seconds = time.monotonic() - began_s
    found.memory_rise_bytes = resident_bytes() - warm_bytes
    found.states = {state.name for state in targets[1].states}
    return found


def _one(target: Any, number: int, found: Findings) -> None:
    name = type(target).__name__.lower()
    found.messages += 1
    began_s = time.monotonic()
    try:
        try:
            signal.setitimer(signal.ITIMER_REAL, MESSAGE_TIMEOUT_S)
            outcome = target.take()
        finally:  # the alarm may ring here, too: on a busy machine the last line takes as long as any other
            signal.setitimer(signal.ITIMER_REAL, 0)
        found.outcomes[f"{name}: {outcome}"] += 1
    except Exception as error:  # noqa: BLE001 -- every one is a finding
        found.add(number, name, error)
        target.__init__(target._rng)  # its state may be broken in the midst of a change
    found.slowest_s = max(found.slowest_s, time.monotonic() - began_s)


@contextmanager
def _alarm() -> Iterator[None]:
    def ring(_signal: int, _frame: FrameType | None) -> None:
        raise Hang(f"more than {MESSAGE_TIMEOUT_S} s")

    before = signal.signal(signal.SIGALRM, ring)
    try:
        yield
    finally:
        signal.signal(signal.SIGALRM, before)


def resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()
