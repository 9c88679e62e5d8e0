"""`python -m history FILE`: a verdict on each promise. Exit code 1 if one was broken."""

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from history.facts import History, load
from history.promises import Violation, verdict

_SHOWN_MAX = 12
"""Violations of one promise that are printed, unless all are asked for."""


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="history",
        description="Judge what a run of `make chaos` left behind.",
        epilog="examples:\n  python -m history /tmp/kgroup-chaos-x/history.jsonl\n  python -m history --all run.jsonl",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("file", type=Path, help="a line of JSON for each fact (tests/programs/history/facts.py)")
    parser.add_argument("--all", action="store_true", help="print every violation, not the first of each promise")
    asked = parser.parse_args()
    try:
        history = load(asked.file)
    except (OSError, ValueError) as problem:
        parser.error(str(problem))
    found = verdict(history)
    print_counts(Console(), history)
    print_verdict(Console(), found, shown_max=None if asked.all else _SHOWN_MAX)
    return int(any(found.values()))


def print_counts(console: Console, history: History) -> None:
    """How much the verdict rests on."""
    console.print(
        f"{len(history.produced):,} records produced, {len(history.stored):,} stored, {len(history.sunk):,} sunk, "
        f"{len(history.read):,} read by other members; {len(history.committed):,} commits of the group"
    )


def print_verdict(
    console: Console,
    found: Mapping[str, Sequence[Violation]],
    kind: str = "promise",
    shown_max: int | None = _SHOWN_MAX,
) -> None:
    """A table of all promises, or of the checks named by `kind`, and below it their violations."""
    table = Table(kind, "verdict")
    for name, violations in found.items():
        table.add_row(name, f"[red]{len(violations)} violations" if violations else "[green]kept")
    console.print(table)
    for name, violations in found.items():
        for violation in violations[:shown_max]:
            console.print(f"[red]{name}[/]: {violation.where}: {violation.what}", highlight=False)


if __name__ == "__main__":
    sys.exit(main())
