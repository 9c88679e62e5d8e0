"""`python -m chaos --minutes 10 --seed 7`: random faults, then a verdict. Exit code 1 if a promise was broken."""

import argparse
import random
import shutil
import signal
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

from chaos import lasting
from chaos.checks import busiest_minute, verdict
from chaos.evidence import Evidence
from chaos.history_of import facts_of
from chaos.schedule import LANES, schedule
from chaos.world import ChaosWorld, Run
from spark_kgroup.model import AUTO, BROKER, CLASSIC, CLIENT, CONSUMER

_LASTING = {fault.name.lower().replace("_", "-"): fault for fault in (*lasting.FAULTS, *lasting.OPERATORS)}
_VIOLATIONS = "violations.txt"
_EXAMPLES = """examples:
  python -m chaos --minutes 10 --seed 7             all lanes; the same seed gives the same faults again
  python -m chaos --lanes network operator          these alone
  python -m chaos --lanes network --lasting none --small --minutes 2
  python -m history FOLDER/history.jsonl            judge a run again; FOLDER is kept if it failed, or with --keep
"""


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
    asked = _parser().parse_args()
    seed = asked.seed if asked.seed is not None else random.SystemRandom().randrange(1_000_000)
    lanes = asked.lanes or list(LANES)
    left_on = lasting.chosen(seed, lanes) if asked.lasting == "by seed" else _LASTING.get(asked.lasting)
    if left_on in lasting.OPERATORS and "operator" not in lanes:
        _parser().error(f"--lasting {asked.lasting} needs the lane `operator`: add it to --lanes")
    run = Run(
        seed=seed,
        minutes=asked.minutes,
        small=asked.small,
        protocol=asked.protocol,
        member_ids=asked.member_ids,
        min_partitions=asked.min_partitions,
        reader=asked.reader,
        lanes=lanes,
        lasting=left_on,
    )
    console = Console(width=None if sys.stdout.isatty() else 200)
    folder = Path(tempfile.mkdtemp(prefix="kgroup-chaos-"))
    console.print(f"[bold]seed {seed}[/], {run.minutes:g} minutes; everything lies in {folder}")
    _print_schedule(console, run)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _interrupt)
    kept = True
    try:
        kept = _play(console, folder, run) or asked.keep
    except KeyboardInterrupt:
        console.print("interrupted: everything is ended")
        kept = False
        return 130
    finally:
        if kept:
            console.print(f"kept for you to look at: {folder} (seed {seed})")
        else:
            shutil.rmtree(folder, ignore_errors=True)
    return int((folder / _VIOLATIONS).exists())


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="chaos", description=__doc__, epilog=_EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=10.0, help="how long faults come (default: 10)")
    parser.add_argument("--seed", type=int, default=None, help="of all that is random; a new one if it is not given")
    parser.add_argument("--lanes", nargs="+", choices=LANES, metavar="LANE", help=f"which play: {', '.join(LANES)}")
    parser.add_argument(
        "--lasting",
        choices=["by seed", "none", *_LASTING],
        default="by seed",
        metavar="FAULT",
        help=f"left on at the end: {', '.join(_LASTING)}, or none (default: the seed decides)",
    )
    parser.add_argument("--small", action="store_true", help="queries without Spark: more faults in the same time")
    parser.add_argument("--protocol", choices=(CLASSIC, CONSUMER), default=CLASSIC, help="the main query's")
    parser.add_argument(
        "--member-ids", choices=(BROKER, CLIENT, AUTO), default=BROKER, help="who makes those of classic queries"
    )
    parser.add_argument("--min-partitions", type=int, default=None, help="tasks of a batch, which divide seats' shares")
    parser.add_argument("--reader", choices=("native", "librdkafka"), default="native", help="of the queries' tasks")
    parser.add_argument("--keep", action="store_true", help="keep the folder, also if every promise was kept")
    return parser


def _interrupt(*_: object) -> None:
    """End everything, once: a second Ctrl-C must not break off the first."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    print("interrupted: everything is being ended, which takes up to a minute", flush=True)
    raise KeyboardInterrupt


def _play(console: Console, folder: Path, run: Run) -> bool:
    """Whether a promise was broken, or the world itself. The folder then has the history and the violations."""
    say = Diary(console)
    with ChaosWorld(folder, run, say) as world:
        say("world", "three brokers are up; queries and producers start")
        world.run(lambda: say("world", _progress(world)))
        world.leave_one_fault_on(lambda: say("world", _progress(world)))
        world.drain()
        evidence = world.evidence()
    write(folder / "history.jsonl", facts_of(evidence))
    history = load(folder / "history.jsonl")
    _print_evidence(console, evidence)
    print_counts(console, history)
    found = {"check": verdict(evidence), "promise": history_verdict(history)}
    for kind, judged in found.items():
        print_verdict(console, judged, kind)
    lines = [f"{name}: {v}" for judged in found.values() for name, all_ in judged.items() for v in all_]
    lines += [f"the world itself failed: {failure}" for failure in world.failures]
    for failure in world.failures:
        console.print(f"[red]the world itself failed: {failure}", highlight=False)
    if lines:
        (folder / _VIOLATIONS).write_text("\n".join(lines))
    return bool(lines)


def _progress(world: ChaosWorld) -> str:
    batches = ", ".join(f"{query.name} {query.batches_done}" for query in (world.main, world.second))
    return f"{world.sent:,} records sent; batches done: {batches}"


def _print_schedule(console: Console, run: Run) -> None:
    for lane in run.lanes:
        events = schedule(lane, run.seed, run.minutes)
        planned = "; ".join(f"+{e.gap_s:g} {e.fault.name}" + (f" {e.lasts_s:g}" if e.lasts_s else "") for e in events)
        console.print(f"  [cyan]{lane:8}[/] {planned}", highlight=False)
    if run.lasting is not None:
        console.print(
            f"  [cyan]lasting [/] {run.lasting.name} at the end, for {lasting.lasts_s(run.lasting):g} s",
            highlight=False,
        )


def _print_evidence(console: Console, evidence: Evidence) -> None:
    read = Counter((row.partition, row.offset) for reader in evidence.readers for row in reader.rows)
    console.print(
        "\n"
        + "; ".join(f"{reader.name} read {len(reader.rows):,}" for reader in evidence.readers)
        + f"; {sum(count > 1 for count in read.values()):,} were read by more than one"
    )
    for application in evidence.applications:
        exposed = sum(span.end - span.first for span in application.exposed(evidence.commits, evidence.recreated))
        busiest = max((busiest_minute(joins)[1] for joins in application.joins_by_seat().values()), default=0)
        console.print(
            f"{application.name}: {len(application.batches)} batches, {exposed:,} offsets exposed by losses; "
            f"{len(application.joins)} joins, at most {busiest} of a seat in one minute"
        )


if __name__ == "__main__":
    sys.exit(main())
