"""One lane of a run: a make target in a process group of its own, its log, and the events that its tests report."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

_TAIL_LINES = 60

_NICE = ("nice", "-n", "19")


@dataclass(frozen=True)
class Failure:
    """One test that failed, or a whole lane whose command did.

    Attributes:
        test: its node id, or empty for a lane that failed outside of its tests.
        how: the captured output and the traceback.
    """

    lane: str
    test: str
    how: str

    def tail(self) -> str:
        """The last lines of `how`: the cause stands at the end."""
        return "\n".join(self.how.rstrip().splitlines()[-_TAIL_LINES:])


@dataclass
class Lane:
    """A make target that runs tests, or lint.

    Attributes:
        name: of the target.
        processes: how many test processes the target keeps busy, as `--at-once` counts them.
        seeded: whether its pytest has Hypothesis, which takes a seed.
        background: it computes all the time and waits for no other process, so it takes the CPU time that the others
            leave idle.
        wall_s: seconds from start to end.
        cpu_s: CPU seconds of the lane and of all its descendants that were waited for.
    """

    name: str
    processes: int = 1
    seeded: bool = False
    background: bool = False
    total: int = 0
    passed: int = 0
    failures: list[Failure] = field(default_factory=list)
    began_at_s: dict[str, float] = field(default_factory=dict)
    wall_s: float = 0.0
    cpu_s: float = 0.0
    code: int | None = None
    _process: subprocess.Popen[bytes] | None = None
    _events: IO[bytes] | None = None
    _unfinished: bytes = b""

    def start(self, folder: Path, root: Path, pytest_options: list[str], environment: dict[str, str]) -> None:
        """Start the target. Its output goes to `<folder>/<name>.log`, its events to `<folder>/<name>.jsonl`."""
        events = folder / f"{self.name}.jsonl"
        events.touch()
        options = " ".join([f"--progress={events}", f"--costs={folder / f'{self.name}.costs'}", *pytest_options])
        self._events = events.open("rb")
        self.log = folder / f"{self.name}.log"
        self._started_at_s = time.monotonic()
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                [*(_NICE if self.background else ()), "make", "--no-print-directory", self.name, f"PYTEST={options}"],
                cwd=root,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    @property
    def ended(self) -> bool:
        """Whether its process has ended."""
        return self.code is not None

    @property
    def done(self) -> int:
        """How many of its tests have ended."""
        return self.passed + len({failure.test for failure in self.failures if failure.test})

    def look(self) -> None:
        """Take in the events of its tests since the last look, and whether it has ended."""
        assert self._process is not None
        assert self._events is not None
        if self.code is None:
            pid, status, usage = os.wait4(self._process.pid, os.WNOHANG)
            if pid:
                self._process.returncode = self.code = os.waitstatus_to_exitcode(status)
                self.cpu_s = usage.ru_utime + usage.ru_stime
                self.wall_s = time.monotonic() - self._started_at_s
        *lines, self._unfinished = (self._unfinished + self._events.read()).split(b"\n")
        for line in lines:
            self._take(json.loads(line))
        if self.code and not self.failures:
            self.failures.append(Failure(self.name, "", self.log.read_text(errors="replace")))

    def _take(self, event: dict[str, Any]) -> None:
        if event["event"] == "collected":
            self.total = event["count"]
        elif event["event"] == "began":
            self.began_at_s[event["test"]] = time.monotonic()
        elif event["event"] == "failed":
            self.failures.append(Failure(self.name, event["test"], event["how"]))
        elif event["event"] == "ended":
            self.began_at_s.pop(event["test"], None)
            self.passed += event["passed"]

    def signal(self, number: signal.Signals) -> None:
        """Signal the whole process group: make, pytest, its workers, and all children that have not left the group."""
        if self._process is not None and self.code is None:
            os.killpg(self._process.pid, number)
