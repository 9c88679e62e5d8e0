"""Undisturbed batches: how often a seat is served by its own server, and how much was there when asked."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from bench_seats.session import Session

WARM_UP_BATCHES = 10
"""Until every executor has its seats and their servers have records ahead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """Reads of all batches that count, as our reader reports them (running totals in Spark's progress).

    Attributes:
        at_home: by the seat's own server, on the same executor.
        network: by the seat's own server, for a worker on another executor.
        guest: directly, on another executor than the seat's home.
        alone: by a worker that found no server.
        rows: of all reads.
        ready: those of them that were there when the worker asked.
        batch_ms: Spark's triggerExecution, the median.
    """

    at_home: int
    network: int
    guest: int
    alone: int
    rows: int
    ready: int
    batches: int
    batch_ms: float

    @property
    def reads(self) -> int:
        return self.at_home + self.network + self.guest + self.alone

    @property
    def home_share(self) -> float:
        return self.at_home / max(1, self.reads)

    @property
    def server_share(self) -> float:
        """Of all reads, those that the seat's own server has served, wherever it is."""
        return (self.at_home + self.network) / max(1, self.reads)

    @property
    def ready_share(self) -> float:
        return self.ready / max(1, self.rows)


def served(progress: Sequence[Mapping[str, Any]]) -> Served:
    """The reads between the first and the last of these batches."""
    first, last = (_reads(batch) for batch in (progress[0], progress[-1]))
    totals = {
        name: last.get(name, 0) - first.get(name, 0)
        for name in ("at_home", "network", "guest", "alone", "rows", "ready")
    }
    took_ms = median(batch["durationMs"]["triggerExecution"] for batch in progress[1:])
    return Served(**totals, batches=len(progress) - 1, batch_ms=took_ms)


def _reads(batch: Mapping[str, Any]) -> Mapping[str, int]:
    reported: Mapping[str, Mapping[str, int]] = batch["sources"][0].get("latestOffset") or {}
    return reported.get("reads", {})


def follow(session: Session, batches: int, show: Callable[[int], None]) -> Served:
    """Let so many batches run, after some to warm up.

    Args:
        show: told how many have run.
    """
    needed = WARM_UP_BATCHES + batches + 1

    def ran() -> list[Mapping[str, Any]]:
        busy = [batch for batch in session.progress if batch["numInputRows"]]
        show(len(busy))
        return busy if len(busy) >= needed else []

    return served(session.await_(ran, f"{batches} batches", 180 + 10 * batches)[WARM_UP_BATCHES:needed])
