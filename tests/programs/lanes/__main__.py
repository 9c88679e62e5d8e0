"""`python -m lanes`: the checks of `make test`, as lanes side by side, for most of a test is waiting.

Each lane is a make target, and can be run by itself. Its output goes to `.build/test/<lane>.log`. A line a minute says
how far all lanes are. The first failed test ends the run, unless it is to keep going. Failures come last: the end of
each, and the command that runs this test again, with its seed.
"""

import random
import shlex
import shutil
import signal
import sys
from pathlib import Path
from typing import Annotated

import typer

from lanes.lane import Failure, Lane
from lanes.run import Run

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / ".build" / "test"

AT_ONCE = 4
"""Two cores, which four test processes keep busy. With five, the load was 20 to 50, and the run took as long."""


def lanes() -> list[Lane]:
    """The longest first."""
    return [
        Lane("test-spark", processes=2),
        Lane("test-kafka", processes=2, seeded=True),
        Lane("lint", background=True),
        Lane("docs", background=True),
        Lane("test-unit", processes=2, seeded=True, background=True),
        Lane("test-wheel", background=True),
    ]


EXAMPLES = """Examples:

    make test

    make test LANES="--keep-going"

    make test LANES="--only test-unit --only lint"
"""

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode="markdown")


@app.command(epilog=EXAMPLES)
def main(
    only: Annotated[list[str] | None, typer.Option(help="Run this lane; may be given several times.")] = None,
    at_once: Annotated[int, typer.Option(help="How many test processes may be busy at once.")] = AT_ONCE,
    keep_going: Annotated[bool, typer.Option("--keep-going", help="Finish all lanes when a test has failed.")] = False,
    seed: Annotated[int | None, typer.Option(help="For Hypothesis; a random one unless given.")] = None,
) -> None:
    """Run lint, types and every test, in lanes side by side."""
    chosen = [lane for lane in lanes() if not only or lane.name in only]
    if unknown := set(only or ()) - {lane.name for lane in lanes()}:
        raise typer.BadParameter(f"no such lane: {', '.join(sorted(unknown))}", param_hint="--only")
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir(parents=True)
    seed = random.randrange(2**32) if seed is None else seed
    run = Run(chosen, at_once=at_once, keep_going=keep_going, folder=FOLDER, root=ROOT, seed=seed, tell=tell)
    tell(f"{len(chosen)} lanes, {at_once} test processes at once; logs are in {FOLDER.relative_to(ROOT)}/; seed {seed}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        run.run()
    except KeyboardInterrupt:
        tell("interrupted; all lanes were ended")
        raise SystemExit(128 + signal.SIGINT) from None
    finally:
        for failure in run.failures:
            tell(described(failure, seed))
        passed, failed = sum(lane.passed for lane in run.lanes), len(run.failures)
        tell(f"in {run.clock().strip()} (minutes:seconds)\n{passed} passed, {failed} failed")
    raise SystemExit(1 if run.failures else 0)


def described(failure: Failure, seed: int) -> str:
    """A failure for its reader, with the command that runs it again."""
    again = f"make {failure.lane}"
    if failure.test:
        again += f' TESTS="{shlex.quote(failure.test)}"'
    if next(lane for lane in lanes() if lane.name == failure.lane).seeded:
        again += f" PYTEST=--hypothesis-seed={seed}"
    name = failure.test or failure.lane
    return f"\n===== {name} failed; its last lines:\n{failure.tail()}\n===== again: {again}"


def tell(line: str) -> None:
    """Print at once, also into a pipe."""
    print(line, flush=True)


if __name__ == "__main__":
    app()
