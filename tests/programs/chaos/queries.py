"""A kgroup query of the run: one application over many lives, and the faults that it met."""

import os
import signal
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from harness.application import Application
from harness.processes import STREAM_READER
from harness.waiting import wait_for
from harness.wrong_clock import WrongClock

from chaos.evidence import Expulsion, Failure

SPARK_CONF: Final = {
    "spark.sql.streaming.minBatchesToRetain": "1000000",  # the whole offset log is evidence
    "spark.driver.memory": "1g",
}

_ENDS_AT_START: Final = (
    "No broker could be reached",  # it is started while all brokers are away, and says so soon, as promised
    # A right or a login that never was good may be refused at once. One that was has a minute.
    "this user may not see",
    "This user may not see",
    "does not accept our client certificate",
    "SCRAM-SHA-512 for",
    "grant READ on the group",
    "(TOPIC_AUTHORIZATION_FAILED)",
    "grant DESCRIBE on the topics",
    "Cannot upgrade classic group",  # under the consumer protocol: other clients made the group classic meanwhile
    "Python worker failed to connect back",  # Spark gives a Python process 10 s to start, on however busy a machine
)
"""How a query may end before it has done a batch: not by a fault of ours. One at work goes on."""

_HEARD_AGO_MAX_S: Final = 2.0
"""How long before a silence a seat and its coordinator may have heard of each other: heartbeats are 1 s apart."""

_NOTICE_S: Final = 15.0
"""How long after a silence a seat may take to find out its losses, on a busy machine."""


class SmallApplication(Application):
    """An application without Spark."""

    program = Path(__file__).parent / "small_driver.py"


class Query:
    """Keeps one query running between its faults. It is not thread-safe, its lane alone moves it.

    Attributes:
        failures: how it ended although no fault was aimed at it.
        silences: (from, to) on the wall clock, in seconds: when no process of it ran.
    """

    def __init__(
        self,
        folder: Path,
        name: str,
        read: Mapping[str, str],
        session_s: float,
        *,
        small: bool,
        clock: WrongClock | None = None,
    ) -> None:
        self._clock = clock
        self._kind = SmallApplication if small else Application
        self.folder = folder
        self.name = name
        self.session_s = session_s
        self.failures: list[Failure] = []
        self.silences: list[tuple[float, float]] = []
        self.seats = [f"{name}-{seat}" for seat in range(int(read["members"]))]
        self._read = dict(read)
        self._application: Application | None = None
        self._planned_before = 0
        self._wall_gone_at_s: float | None = None

    @property
    def silence_s(self) -> float:
        """How long it takes at least from the beginning of a silence until seats are expelled."""
        return self.session_s - _HEARD_AGO_MAX_S

    @property
    def running(self) -> bool:
        return self._application is not None and bool(self._application.processes())

    @property
    def batches_done(self) -> int:
        """How many batches are in Spark's commit log."""
        return self._batches_in("commits")

    @property
    def at_work(self) -> bool:
        """Whether it has done a batch that it planned since it was started. An earlier one is replayed before that."""
        return self.batches_done > self._planned_before

    def start(self) -> None:
        """Start it, or start it again."""
        self._application = self._kind(
            self.folder, self._read, master="local[2,4]", conf=SPARK_CONF, clock=self._clock
        ).start()
        self._planned_before = self._batches_in("offsets")
        self._silent_until_now()

    def revive(self) -> str | None:
        """Start it again if it ended by itself. Returns why it did."""
        if self._application is None or self.running:
            return None
        at_work, output = self.at_work, self._bury()
        if at_work or not any(reason in output for reason in _ENDS_AT_START):
            self.failures.append(Failure(_brief(output), time.time()))
        self.start()
        return _brief(output)

    def kill(self) -> None:
        application = self._running_application()
        application.kill()
        self._gone()

    def stop(self) -> None:
        """End it in good order. If it has failed before, that is kept."""
        application = self._running_application()
        try:
            application.stop(120)
        except AssertionError as problem:
            self.failures.append(Failure(str(problem), time.time()))
            application.kill()
        self._gone()

    def pause(self) -> None:
        self._wall_gone_at_s = time.time()
        self._running_application().pause()

    def resume(self) -> None:
        self._running_application().resume()
        self._silent_until_now()

    def kill_worker(self, pick: float) -> bool:
        """SIGKILL one of its Python workers. Returns False if it has none now."""
        if self._kind is SmallApplication:
            self._kill_and_start()
            return True
        workers = self._running_application().worker_pids
        if not workers:
            return False
        with suppress(ProcessLookupError):
            os.kill(workers[int(pick * len(workers))], signal.SIGKILL)
        return True

    def kill_reader(self) -> bool:
        """SIGKILL the stream reader: its query fails, and is started again. Returns False if it has none now."""
        application = self._running_application()
        if self._kind is SmallApplication:
            self._kill_and_start()
            return True
        readers = [p.pid for p in application.processes() if STREAM_READER[-1] in p.command]
        if not readers:  # it does not run yet, or its query has just ended by itself
            return False
        killed = readers[0]
        with suppress(ProcessLookupError):
            os.kill(killed, signal.SIGKILL)

        # If Spark had too little time for a Python process in this very moment, the driver has started the query again.
        def ended() -> bool:
            left = application.processes()
            return not left or any(STREAM_READER[-1] in p.command and p.pid != killed for p in left)

        wait_for(ended, "the query to end without its stream reader", 120)
        if not application.processes():
            self._bury()
            self.start()
        return True

    def abandon(self) -> None:
        """End it at once, in any state."""
        if self._application is not None:
            self._application.kill()
            self._application = None

    def _kill_and_start(self) -> None:
        """Without Spark all is one process."""
        self.kill()
        self.start()

    def expulsions(self) -> list[Expulsion]:
        """The seats' silences that were long enough to cost them their membership."""
        return [
            Expulsion(seat=seat, wall_from_s=begin + self.silence_s, wall_to_s=end + _NOTICE_S)
            for begin, end in self.silences
            if end - begin >= self.silence_s
            for seat in self.seats
        ]

    def _batches_in(self, log: str) -> int:
        return len(list((self.folder / "checkpoint" / log).glob("[0-9]*")))

    def _running_application(self) -> Application:
        assert self._application is not None, f"query {self.name} is not running"
        return self._application

    def _bury(self) -> str:
        """The last output of an application that ended by itself."""
        application = self._running_application()
        application.kill()
        self._gone()
        return application.failure() or (self.folder / "driver.log").read_text(errors="replace")

    def _gone(self) -> None:
        self._application = None
        self._wall_gone_at_s = time.time()

    def _silent_until_now(self) -> None:
        if self._wall_gone_at_s is not None:
            self.silences.append((self._wall_gone_at_s, time.time()))
        self._wall_gone_at_s = None


def _brief(output: str) -> str:
    """The parts with the error: the beginning of Spark's message, and the end of a traceback."""
    text = output.strip()
    return f"ended by itself: {text if len(text) < 1_200 else f'{text[:600]} ... {text[-600:]}'}"
