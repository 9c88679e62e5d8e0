"""`python -m chaos --minutes 10 --seed 7`: random faults, then a verdict; exit code 1 if a promise was broken."""

import argparse
import random
import shutil
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path

from history.__main__ import print_counts, print_verdict
from history.facts import load, write
from history.promises import verdict as history_verdict
from rich.console import Console

from chaos.checks import busiest_minute, verdict
from chaos.evidence import Evidence
from chaos.history_of import facts_of
from chaos.schedule import LANES, schedule
from chaos.world import ChaosWorld
from spark_kgroup.model import BROKER, CLASSIC, CLIENT, CONSUMER


class Diary:
    """Prints one line per event, with the time since the beginning."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._began = time.monotonic()
        self._lock = threading.Lock()

    def __call__(self, who: str, line: str) -> None:
        with self._lock:
            at = time.monotonic() - self._began
            self._console.print(f"[dim]{time.strftime('%H:%M:%S')} {at:7.1f} s[/]  [cyan]{who:8}[/] {line}")


def main() -> int:
    parser = argparse.ArgumentParser(prog="chaos", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=None, help="of all that is random; a new one if it is not given")
    parser.add_argument("--small", action="store_true", help="queries without Spark: more faults in the same time")
    parser.add_argument("--protocol", choices=(CLASSIC, CONSUMER), default=CLASSIC, help="the main query's")
    parser.add_argument(
        "--member-ids", choices=(BROKER, CLIENT), default=BROKER, help="who makes those of classic queries"
    )
    parser.add_argument("--min-partitions", type=int, default=None, help="tasks of a batch, which divide seats' shares")
    asked = parser.parse_args()
    seed = asked.seed if asked.seed is not None else random.SystemRandom().randrange(1_000_000)
    console = Console(width=None if sys.stdout.isatty() else 200)
    folder = Path(tempfile.mkdtemp(prefix="kgroup-chaos-"))
    console.print(f"[bold]seed {seed}[/], {asked.minutes:g} minutes; everything lies in {folder}")
    _print_schedule(console, seed, asked.minutes)
    kept = True
    try:
        kept = _run(console, folder, seed, asked)
    except KeyboardInterrupt:
        console.print("interrupted: everything is ended")
        kept = False
        return 130
    finally:
        if kept:
            console.print(f"[red]kept for you to look at: {folder} (seed {seed})")
        else:
            shutil.rmtree(folder, ignore_errors=True)
    return 1 if kept else 0


def _run(console: Console, folder: Path, seed: int, asked: argparse.Namespace) -> bool:
    """Whether the run's folder is worth keeping."""
    say = Diary(console)
    how = {"small": asked.small, "protocol": asked.protocol, "member_ids": asked.member_ids}
    with ChaosWorld(folder, seed, asked.minutes, say, **how, min_partitions=asked.min_partitions) as world:
        say("world", "three brokers are up; queries and producers start")
        world.run(lambda: say("world", _progress(world)))
        world.drain()
        evidence = world.evidence()
    write(folder / "history.jsonl", facts_of(evidence))
    history = load(folder / "history.jsonl")
    found = verdict(evidence)
    _print_evidence(console, evidence)
    print_counts(console, history)
    for judged in (found, promised := history_verdict(history)):
        print_verdict(console, judged)
    found |= promised
    for failure in world.failures:
        console.print(f"[red]the world itself failed: {failure}")
    (folder / "violations.txt").write_text("\n".join(f"{name}: {v}" for name, all_ in found.items() for v in all_))
    return any(found.values()) or bool(world.failures)


def _progress(world: ChaosWorld) -> str:
    batches = ", ".join(f"{query.name} {query.batches_done}" for query in (world.main, world.second))
    return f"{world.sent:,} records sent; batches done: {batches}"


def _print_schedule(console: Console, seed: int, minutes: float) -> None:
    for lane in LANES:
        events = schedule(lane, seed, minutes)
        planned = "; ".join(f"+{e.gap_s:g} {e.fault.name}" + (f" {e.lasts_s:g}" if e.lasts_s else "") for e in events)
        console.print(f"  [cyan]{lane:8}[/] {planned}", highlight=False)


def _print_evidence(console: Console, evidence: Evidence) -> None:
    read = Counter((row.partition, row.offset) for reader in evidence.readers for row in reader.rows)
    console.print(
        "\n"
        + "; ".join(f"{reader.name} read {len(reader.rows):,}" for reader in evidence.readers)
        + f"; {sum(count > 1 for count in read.values()):,} were read by more than one"
    )
    for application in evidence.applications:
        exposed = sum(span.end - span.first for span in application.exposed(evidence.commits))
        busiest = max((busiest_minute(joins)[1] for joins in application.joins_by_seat().values()), default=0)
        console.print(
            f"{application.name}: {len(application.batches)} batches, {exposed:,} offsets exposed by losses; "
            f"{len(application.joins)} joins, at most {busiest} of a seat in one minute"
        )


if __name__ == "__main__":
    sys.exit(main())
