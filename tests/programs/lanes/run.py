"""Runs lanes side by side, tells how far they are, and ends them all when one of them has failed."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from uuid import uuid4

from lanes.lane import Failure, Lane

_LOOK_EVERY_S = 0.2

_AT_ONCE_IN_BACKGROUND = 2
_TELL_EVERY_S = 60.0

_MARK = "KGROUP_LANES_RUN"
"""Environment variable of all processes of a run: it finds those that left their lane's process group."""

_GRACE_S: tuple[tuple[signal.Signals, float], ...] = ((signal.SIGINT, 20.0), (signal.SIGTERM, 10.0))
"""pytest ends its fixtures on SIGINT: a Kafka and a Spark take seconds to stop. SIGKILL comes last."""

_TERMINAL_SIGNALS = (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, signal.SIGTERM)


class Run:
    """One run of some lanes.

    Args:
        lanes: the longest first: they start in this order, as soon as there is room.
        at_once: how many test processes may be busy at once, beside those of lanes in the background.
        keep_going: finish all lanes when one has failed.
        folder: of logs and events.
        root: where the Makefile is.
        seed: for Hypothesis.
        tell: takes a line for the terminal.
    """

    def __init__(
        self,
        lanes: list[Lane],
        *,
        at_once: int,
        keep_going: bool,
        folder: Path,
        root: Path,
        seed: int,
        tell: Callable[[str], None],
    ) -> None:
        self.lanes = lanes
        self._at_once, self._keep_going, self._folder, self._root = at_once, keep_going, folder, root
        self._options = [f"--hypothesis-seed={seed}"]
        self._tell = tell
        self._mark = uuid4().hex
        self._began_at_s = time.monotonic()

    @property
    def failures(self) -> list[Failure]:
        """The failures of all lanes, in their order."""
        return [failure for lane in self.lanes for failure in lane.failures]

    def run(self) -> None:
        """Run the lanes to their end, or to the first failure. Leaves no process, also when it is interrupted."""
        waiting, running = list(self.lanes), list[Lane]()
        told_at_s = time.monotonic()
        try:
            while waiting or running:
                for lane in self._next(waiting, running):
                    waiting.remove(lane)
                    running.append(self._start(lane))
                time.sleep(_LOOK_EVERY_S)
                for lane in running:
                    lane.look()
                for lane in [lane for lane in running if lane.ended]:
                    running.remove(lane)
                    self._tell(f"{self.clock()}  {_ended(lane)}")
                if self.failures and not self._keep_going:
                    waiting.clear()
                    self._end(running)
                    return
                if time.monotonic() - told_at_s >= _TELL_EVERY_S:
                    told_at_s += _TELL_EVERY_S
                    self._tell(f"{self.clock()}  {self._standing(running)}")
        finally:
            self._end(running)
            self._end_what_is_left()

    def clock(self) -> str:
        """Minutes and seconds since the run began."""
        minutes, seconds = divmod(round(time.monotonic() - self._began_at_s), 60)
        return f"{minutes:3}:{seconds:02}"

    def _next(self, waiting: list[Lane], running: list[Lane]) -> Iterator[Lane]:
        """Those of `waiting` that may start now, in their order; lanes in the background have room of their own."""
        for background, at_once in ((False, self._at_once), (True, _AT_ONCE_IN_BACKGROUND)):
            busy = sum(lane.processes for lane in running if lane.background == background)
            for lane in [lane for lane in waiting if lane.background == background]:
                if busy and busy + lane.processes > at_once:
                    break
                busy += lane.processes
                yield lane

    def _start(self, lane: Lane) -> Lane:
        environment = {**os.environ, _MARK: self._mark}
        with _default_dispositions():
            lane.start(self._folder, self._root, self._options if lane.seeded else [], environment)
        return lane

    def _standing(self, running: list[Lane]) -> str:
        now_s = time.monotonic()
        far = [f"{lane.name.removeprefix('test-')} {lane.done}/{lane.total or '?'}" for lane in running]
        oldest = min(((at, test) for lane in running for test, at in lane.began_at_s.items()), default=None)
        slowest = f"; slowest now {oldest[1].rpartition('/')[2]} ({now_s - oldest[0]:.0f} s)" if oldest else ""
        return f"{', '.join(far)}; {len(self.failures)} failed{slowest}"

    def _end(self, running: list[Lane]) -> None:
        """End lanes that still run: politely, then not."""
        for number, grace_s in _GRACE_S:
            for lane in running:
                lane.signal(number)
            deadline_s = time.monotonic() + grace_s
            while any(not lane.ended for lane in running) and time.monotonic() < deadline_s:
                time.sleep(_LOOK_EVERY_S)
                for lane in running:
                    _look_only_at_the_end(lane)
        for lane in running:
            lane.signal(signal.SIGKILL)

    def _end_what_is_left(self) -> None:
        """Kill processes that have left their lane's process group and outlived it."""
        for pid in _marked(f"{_MARK}={self._mark}".encode()):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def _look_only_at_the_end(lane: Lane) -> None:
    """Errors of tests while they are interrupted are no failures."""
    known = list(lane.failures)
    lane.look()
    lane.failures[:] = known


def _ended(lane: Lane) -> str:
    verdict = "failed" if lane.failures else "passed"
    tests = f"{lane.passed} of {lane.total} tests, " if lane.total else ""
    return f"{lane.name} {verdict}: {tests}{lane.wall_s:.0f} s ({lane.cpu_s:.0f} of CPU)"


@contextmanager
def _default_dispositions() -> Iterator[None]:
    """Start a process as an interactive shell does: a run in the background ignores SIGINT, `nohup` SIGHUP."""
    before = {number: signal.signal(number, signal.SIG_DFL) for number in _TERMINAL_SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _marked(mark: bytes) -> list[int]:
    """Pids of processes whose environment has `mark` (proc(5)), without our own."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if mark in (folder / "environ").read_bytes().split(b"\0"):
                found.append(int(folder.name))
    return [pid for pid in found if pid != os.getpid()]
