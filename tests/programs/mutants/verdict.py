"""The verdict on a room: killed, survived, and how far a sample can be believed. Pure."""

import ast
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from math import sqrt

SURVIVED = {"survived", "no tests"}
KILLED = {"killed"}
TIMED_OUT = {"timeout", "segfault"}  # mutmut calls a process that the kernel killed a segfault


@dataclass(frozen=True)
class Mutant:
    """One change. `name`, mutmut's, has a number in it. `where` and `change` stay when other mutants come or go."""

    name: str
    where: str  # "seat_bindings.SeatBindings.plan": the module's own name, without its folders
    change: tuple[str, ...]  # the lines that differ: "- old", "+ new"


@dataclass(frozen=True)
class Verdict:
    """Figures of one room. The mutants that were tried stand for all `mutants`."""

    room: str
    mutants: int
    tried: int
    killed: int
    timeouts: int
    survivors: tuple[Mutant, ...]

    @property
    def killed_percent(self) -> float:
        return 100 * (self.killed + self.timeouts) / self.tried if self.tried else 0.0

    @property
    def interval_percent(self) -> tuple[float, float]:
        """Wilson's 95 % interval for all mutants of the room, or the figure itself where all of them were tried."""
        if self.tried == self.mutants or not self.tried:
            return self.killed_percent, self.killed_percent
        z, n, p = 1.96, self.tried, self.killed_percent / 100
        middle, half = p + z * z / (2 * n), z * sqrt(p * (1 - p) / n + z * z / (4 * n * n))
        return 100 * (middle - half) / (1 + z * z / n), 100 * (middle + half) / (1 + z * z / n)


def is_wording(before: str, after: str) -> bool:
    """Whether two pieces of code differ only in sentences: string literals with a space in them.

    No test should hold an error's or a warning's every letter. The names in it, and that it comes at all, are
    behaviour.
    """
    return _without_sentences(before) == _without_sentences(after)


def _without_sentences(code: str) -> str:
    tree = ast.parse(code)
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
            node.value = "a sentence"
    return ast.dump(tree)


def difference(before: str, after: str) -> tuple[str, ...]:
    """The lines of the one place where the two differ."""
    old, new = before.splitlines(), after.splitlines()
    shorter = min(len(old), len(new))
    start = next((k for k in range(shorter) if old[k] != new[k]), shorter)
    end = next((k for k in range(shorter - start) if old[-1 - k] != new[-1 - k]), shorter - start)
    return (
        *(f"- {line.strip()}" for line in old[start : len(old) - end]),
        *(f"+ {line.strip()}" for line in new[start : len(new) - end]),
    )


def verdict_on(room: str, mutants: Collection[Mutant], outcomes: Mapping[str, str]) -> Verdict:
    """Sum up the outcomes of those that were tried.

    Raises:
        ValueError: an outcome is none that tests can have, so the run itself went wrong.
    """
    tried = [mutant for mutant in mutants if mutant.name in outcomes]
    odd = {outcomes[m.name] for m in tried} - SURVIVED - KILLED - TIMED_OUT
    if odd:
        raise ValueError(f"room {room}: outcomes {', '.join(sorted(odd))}; is a test broken without any mutant?")
    return Verdict(
        room=room,
        mutants=len(mutants),
        tried=len(tried),
        killed=sum(outcomes[m.name] in KILLED for m in tried),
        timeouts=sum(outcomes[m.name] in TIMED_OUT for m in tried),
        survivors=tuple(m for m in tried if outcomes[m.name] in SURVIVED),
    )


def table(verdicts: Sequence[Verdict]) -> str:
    """Figures of all rooms, as text."""
    lines = ["room          mutants  tried  killed  timeouts  survived    ratio"]
    for v in verdicts:
        low, high = v.interval_percent
        sampled = "" if v.tried == v.mutants else f"  (95 %: {low:.1f} to {high:.1f} %)"
        lines.append(
            f"{v.room:12} {v.mutants:>8} {v.tried:>6} {v.killed:>7} {v.timeouts:>9} {len(v.survivors):>9}"
            f" {v.killed_percent:>6.1f} %{sampled}"
        )
    return "\n".join(lines)
