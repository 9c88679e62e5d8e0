"""`make fuzz`: mutated answers to Fetch by the million, in several processes.

A process that crashes, or that takes too long for one answer, is a finding with the number of that answer: it keeps
the number in a file that both map. The same seed makes the same answers for any number of processes.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from random import SystemRandom
from tempfile import TemporaryDirectory
from typing import Self

from fuzz.mark import Mark
from fuzz.run import Findings

ANSWER_TIMEOUT_S = 20.0
"""An answer that takes longer is a hang. The slowest seen on a busy machine took 0.5 s."""

POLL_S = 0.2
SHOWN = 20
"""How many times progress is shown."""

READER = (sys.executable, "-P", "-m", "fuzz.fetch_process")

_PATH = os.pathsep.join([*map(str, Path(__file__).parents[1:3]), os.environ.get("PYTHONPATH", "")])


class _Process:
    """Reads every nth answer. A context manager, behind which it has ended."""

    def __init__(self, command: Sequence[str], seed: int, numbers: range, folder: Path) -> None:
        self._numbers = numbers
        mark = folder / str(numbers.start)
        self._mark = Mark(mark)
        self._report = mark.with_suffix(".report")
        with self._report.open("wb") as report:
            command = [*command, str(seed), str(numbers.start), str(numbers.stop), str(numbers.step), str(mark)]
            self._process = subprocess.Popen(command, stdout=report, env=os.environ | {"PYTHONPATH": _PATH})
        self._seen, self._seen_at_s = 0, time.monotonic()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()

    @property
    def begun(self) -> int:
        return self._mark.begun

    def has_ended(self, found: Findings) -> bool:
        """Whether it has ended. Its findings are in `found` then."""
        code = self._process.poll()
        if code is None:
            return self._hangs(found)
        if code:
            self._note(found, f"the process ended with {signal.Signals(-code).name if code < 0 else code}")
        else:
            report = json.loads(self._report.read_text())
            found.messages += report["messages"]
            found.outcomes.update(report["outcomes"])
            found.slowest_s = max(found.slowest_s, report["slowest_s"])
            found.memory_rise_bytes = max(found.memory_rise_bytes, report["rise_bytes"])
            for what, count, first in report["wrong"]:
                found.wrong[what] += count
                found.first[what] = min(first, found.first.get(what, first))
        return True

    def _hangs(self, found: Findings) -> bool:
        if self.begun != self._seen:
            self._seen, self._seen_at_s = self.begun, time.monotonic()
        elif self.begun and time.monotonic() - self._seen_at_s > ANSWER_TIMEOUT_S:
            self._note(found, f"more than {ANSWER_TIMEOUT_S} s")
            self._process.kill()
            return True
        return False

    def _note(self, found: Findings, what: str) -> None:
        number = self._numbers[max(0, self.begun - 1)]
        found.wrong[what] += 1
        found.first.setdefault(what, number)


def run(
    seed: int,
    answers: int,
    first: int = 0,
    processes: int = 1,
    progress: Callable[[int], None] = lambda _: None,
    command: Sequence[str] = READER,
) -> Findings:
    """Read answers from `first` on. `progress` hears how many have been begun."""
    found, began_s, shown = Findings(seed), time.monotonic(), 0
    slices = [range(first + n, first + answers, processes) for n in range(min(processes, answers))]
    with TemporaryDirectory(prefix="kgroup-fuzz-") as folder, ExitStack() as stack:
        running = [stack.enter_context(_Process(command, seed, each, Path(folder))) for each in slices]
        left = set(running)
        while left:
            time.sleep(POLL_S)
            left = {process for process in left if not process.has_ended(found)}
            begun = sum(process.begun for process in running)
            if begun * SHOWN // answers > shown:
                shown = begun * SHOWN // answers
                progress(begun)
    found.seconds = time.monotonic() - began_s
    return found


def main() -> int:
    parser = argparse.ArgumentParser(prog="make fuzz")
    parser.add_argument("--answers", type=int, default=1_000_000)
    parser.add_argument("--first", type=int, default=0, help="the number of the first answer: that of a finding")
    parser.add_argument("--seed", type=int, default=None, help="the same answers again")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    given = parser.parse_args()
    seed = SystemRandom().randrange(2**32) if given.seed is None else given.seed
    print(f"{given.answers:,} answers to Fetch through fetcher and decoder, SEED={seed}", flush=True)
    try:
        found = run(seed, given.answers, given.first, given.processes, lambda begun: print(f"{begun:,}", flush=True))
    except KeyboardInterrupt:
        print("Stopped.")
        return 130
    for what, count in found.outcomes.most_common():
        print(f"  {what:75} {count:>9,}")
    speed, rise = found.messages / found.seconds, found.memory_rise_bytes / (1 << 20)
    print(
        f"{found.messages:,} answers in {found.seconds:.0f} s ({speed:,.0f} a second), slowest {found.slowest_s:.3f} s"
    )
    print(f"memory {rise:+.1f} MiB, SEED={seed}")
    verdict = found.verdict()
    print("\n".join(verdict) or "every answer was read as it was written, or refused")
    return 1 if verdict else 0


if __name__ == "__main__":
    sys.exit(main())
