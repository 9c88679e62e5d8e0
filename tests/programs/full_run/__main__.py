"""`make test-all`: the named targets one after the other, and tests/LAST_FULL_RUN.md about them.

A target that fails does not end the run. Each streams its output to .build/full/<target>.log. The page is written after
each target, so that it has the results so far however the run ends. The exit code is 1 unless all passed.
"""

import argparse
import os
import platform
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from full_run.results import Result, counted, page
from spark_kgroup.testing.java import find_java

ROOT = Path(__file__).parents[3]
LOGS = ROOT / ".build" / "full"
PAGE = ROOT / "tests" / "LAST_FULL_RUN.md"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, prog="make test-all")
    parser.add_argument("targets", nargs="+", metavar="TARGET", help='such as "simulate SEEDS=100000"')
    targets: list[str] = parser.parse_args().targets
    LOGS.mkdir(parents=True, exist_ok=True)
    results = [Result(target) for target in targets]
    heading = f"`make test-all`, begun on {datetime.now(UTC):%Y-%m-%d at %H:%M} UTC at commit {_commit()}. {_machine()}"
    with _sigterm_interrupts():
        try:
            for at, target in enumerate(targets):
                results[at] = _run(target)
                PAGE.write_text(page(heading, results))
                if results[at].outcome == "interrupted":
                    return 128 + signal.SIGINT
        finally:
            print(page(heading, results))
    return 0 if all(result.outcome == "passed" for result in results) else 1


def _run(target: str) -> Result:
    log = LOGS / f"{target.replace(' ', '-').replace('/', '-')}.log"
    print(f"{target}: {log.relative_to(ROOT)}", flush=True)
    began = time.monotonic()
    with log.open("w") as output:
        command = ["make", "--no-print-directory", *target.split()]
        process = subprocess.Popen(command, cwd=ROOT, stdout=output, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)
        try:
            outcome = "passed" if process.wait() == 0 else "failed"
        except KeyboardInterrupt:
            process.terminate()  # make ends its commands
            process.wait()
            outcome = "interrupted"
    seconds = time.monotonic() - began
    with log.open(errors="replace") as lines:
        counts, failures = counted(lines)
    print(f"  {outcome} after {seconds:.0f} s: {', '.join(f'{number} {kind}' for kind, number in counts.items())}")
    return Result(target, outcome, seconds, counts, failures)


def _commit() -> str:
    described = subprocess.run(
        ["git", "describe", "--always", "--dirty=, with changes"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return described.stdout.strip() or "unknown"


def _machine() -> str:
    """The machine and the versions, on which the run depends beside those in the targets' names."""
    return (
        f"{os.cpu_count()} cores, {platform.system()} {platform.release()}; Python {platform.python_version()}, "
        f"Java {find_java().version}, librdkafka {_librdkafka()}, PyArrow {version('pyarrow')}."
    )


def _librdkafka() -> str:
    import confluent_kafka

    return confluent_kafka.libversion()[0]


@contextmanager
def _sigterm_interrupts() -> Iterator[None]:
    """Let SIGTERM end the run as Ctrl-C does, with a page."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


if __name__ == "__main__":
    sys.exit(main())
