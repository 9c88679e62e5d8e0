"""One query that runs: its driver in a process of its own, its producer, and the files that it writes."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path
from threading import Event
from typing import Any, Self, TypeVar

from bench.workload import Paced
from harness.measuring import Problem

from bench_seats.driver import Settings
from bench_seats.executors import Executor, executors_of
from bench_seats.placement import OURS, Batch, homes_of
from spark_kgroup.testing.spark_cluster import spark_environment, spark_home
from spark_kgroup.testing.watchdog import ProcessGuard

T = TypeVar("T")

PARTITIONS = 12
RECORDS_A_SECOND = 1_000

TIMEOUT_S = 180.0
"""For a session to start, and for executors to come back. Measured: 15 s, on a busy machine 60 s."""

POLL_S = 0.1

CONF = Path(__file__).parents[3] / "conf"

WORKERS_PATH = os.pathsep.join(map(str, Path(__file__).parents[1:3]))
"""PYTHONPATH of Spark's workers: they run functions of this package, which needs the harness."""


class Lines:
    """Objects of a file that grows, one JSON text per line. Every one is returned once."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read = 0

    def more(self) -> list[Any]:
        if not self._path.exists():
            return []
        with self._path.open("rb") as file:
            file.seek(self._read)
            whole = file.read().rpartition(b"\n")[0]
        self._read += len(whole) + 1 if whole else 0
        return [json.loads(line) for line in whole.splitlines()]


class Session:
    """A query, followed from outside. A context manager.

    Args:
        folder: a new one.

    Attributes:
        batches: those that were observed, oldest first. `poll` adds new ones.
        progress: Spark's progress of each batch, likewise.
    """

    def __init__(self, settings: Settings, folder: Path) -> None:
        self.settings = settings
        self.batches: list[Batch] = []
        self.progress: list[Mapping[str, Any]] = []
        self._folder = folder
        self._seen: list[Batch] = []  # those after which the homes are not known yet
        self._batches = Lines(folder / "batches.jsonl")
        self._progress = Lines(folder / "progress.jsonl")
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        self._folder.mkdir()
        (self._folder / "settings.json").write_text(json.dumps(asdict(self.settings)))
        with self._stack:
            guard = ProcessGuard()
            self._stack.callback(guard.close)
            log = self._stack.enter_context((self._folder / "log").open("wb"))
            command: list[str | Path] = [sys.executable, "-m", "bench_seats.driver", self._folder]
            self._driver = guard.popen(command, stdout=log, stderr=subprocess.STDOUT, environment=self._environment())
            paced = Paced(self.settings.bootstrap, self.settings.topic, RECORDS_A_SECOND, PARTITIONS)
            self._stack.enter_context(paced)
            self._stack = self._stack.pop_all()
        return self

    def _environment(self) -> dict[str, str]:
        """Spark's home is copied as links: local-cluster works in it, and killed processes cannot clean up."""
        home = self._folder / "spark"
        home.mkdir()
        for part in spark_home().iterdir():
            (home / part.name).symlink_to(part)
        (home / "work").unlink(missing_ok=True)
        own = {"SPARK_HOME": str(home), "PYTHONPATH": WORKERS_PATH}
        return {**os.environ, **spark_environment(self._folder, CONF), **own}

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def await_(self, condition: Callable[[], T | None], what: str, timeout_s: float = TIMEOUT_S) -> T:
        """The first truthy value of `condition`, which is asked after each look for new batches.

        Raises:
            Problem: the driver ended, or the time is over.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            self._poll()
            if value := condition():
                return value
            if self._driver.poll() is not None or time.monotonic() > deadline:
                why = "ended" if self._driver.poll() is not None else f"let wait {timeout_s:.0f} s"
                last_lines = (self._folder / "log").read_text(errors="replace").splitlines()[-20:]
                raise Problem("\n  ".join([f"The driver of {self.settings.source} {why} for {what}:", *last_lines]))
            Event().wait(POLL_S)

    def executors(self) -> dict[Executor, int]:
        """Executor -> process id, of those that run now."""
        return executors_of(json.loads((self._folder / "driver.json").read_text())["port"])

    def _poll(self) -> None:
        batches = [Batch.from_json(line) for line in self._batches.more()]
        # A batch without records is one of the source's own, such as ours when partitions are adopted.
        self._seen += [batch for batch in batches if len(batch.placement) == PARTITIONS]
        self.progress += self._progress.more()
        if self.settings.tasks and self.settings.source == OURS:
            # Homes are those of the batch's beginning: where a batch left them, the next one tells.
            known = {progress["batchId"] - 1: progress for progress in self.progress}
            done = [batch for batch in self._seen if batch.number in known]
            self.batches += [replace(batch, placement=homes_of(known[batch.number])) for batch in done]
            self._seen = self._seen[len(done) :]
        else:
            self.batches += self._seen
            self._seen = []
