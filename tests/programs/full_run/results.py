"""The results of a full run, and its table. Pure."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

KINDS = ("passed", "failed", "skipped")

_COUNT = re.compile(r"(\d+) (passed|failed|error|skipped)")
_SUMMARY = re.compile(r"\d+ (?:passed|failed|error|skipped)\b.* in \d+(?:\.\d+)?s\b")
"""The last line of a run of pytest. A target may have several such runs."""

_FAILURE = re.compile(r"(?:FAILED|ERROR) (\S+::.+?)(?: - .*)?$")


@dataclass(frozen=True)
class Result:
    """One target.

    Attributes:
        target: with its variables, as make is given them.
        outcome: "passed", "failed", "interrupted", or "not run".
        counts: tests by kind, as pytest counts them. A fixture's error is a failure.
        failures: the tests that failed.
    """

    target: str
    outcome: str = "not run"
    seconds: float = 0.0
    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(KINDS, 0))
    failures: tuple[str, ...] = ()


def counted(output: Iterable[str]) -> tuple[dict[str, int], tuple[str, ...]]:
    """Tests by kind, and the names of those that failed, from the lines that a target printed."""
    counts = dict.fromkeys(KINDS, 0)
    failures: dict[str, None] = {}
    for line in output:
        if _SUMMARY.search(line):
            for number, kind in _COUNT.findall(line):
                counts["failed" if kind == "error" else kind] += int(number)
        if failure := _FAILURE.search(line.rstrip()):
            failures[failure[1]] = None
    return counts, tuple(failures)


def page(heading: str, results: Sequence[Result]) -> str:
    """The whole page: a heading about the machine, a row for each target, the failed tests."""
    rows = [f"| target | outcome | {' | '.join(KINDS)} | seconds |", f"|---|---|{'--:|' * (len(KINDS) + 1)}"]
    for result in results:
        counts = " | ".join(f"{result.counts[kind]:,}" for kind in KINDS)
        rows.append(f"| `{result.target}` | {result.outcome} | {counts} | {result.seconds:,.0f} |")
    failures = [f"- `{result.target}`: `{name}`" for result in results for name in result.failures]
    parts = [f"# Last full run\n\n{heading}", "\n".join(rows)]
    if failures:
        parts.append("Failed:\n\n" + "\n".join(failures))
    return "\n\n".join(parts) + "\n"
