"""How the measuring programs (`bench*`) run Kafka, and how they end: by Ctrl-C, or by a problem in its own words."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager

import typer
from rich.console import Console

from spark_kgroup.errors import KgroupError

AT_FULL_SPEED = "-XX:TieredStopAtLevel=4"
"""The option of Java with which a broker is as fast as in production. Tests have brokers that start faster."""

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Problem(Exception):
    """The program cannot go on. The message says why."""

    @classmethod
    def of(cls, what: str, stderr: str) -> "Problem":
        """`what` failed: its last lines on stderr say why."""
        return cls("\n  ".join([f"{what} failed:", *stderr.splitlines()[-10:]]))


@contextmanager
def problems_told(console: Console) -> Iterator[None]:
    """End the program with a message and an exit code of its own, without a traceback."""
    try:
        yield
    except KeyboardInterrupt:
        console.print("Stopped.")
        raise typer.Exit(130) from None
    except (Problem, KgroupError) as problem:
        console.print(str(problem), markup=False)
        raise typer.Exit(1) from None


def heed_only_the_first_stop() -> None:
    """Only the first Ctrl-C or signal to end counts: ending the running processes must not be interrupted."""

    def stop(*_: object) -> None:
        for number in STOP_SIGNALS:
            signal.signal(number, signal.SIG_IGN)
        raise KeyboardInterrupt

    for number in STOP_SIGNALS:
        signal.signal(number, stop)
