"""The costs of the sessions of one process, and the figures as Markdown."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from spark_kgroup.testing.kafka_release import kafka_version

_TICKS_A_SECOND = os.sysconf("SC_CLK_TCK")


class Cpu(NamedTuple):
    """CPU seconds so far, user and system together."""

    ours: float
    broker: float

    def since(self, before: Cpu) -> Cpu:
        return Cpu(self.ours - before.ours, self.broker - before.broker)

    @classmethod
    def now(cls, broker: int) -> Cpu:
        """The CPU of this process, and of the one with the id `broker`."""
        return cls(_cpu_seconds(os.getpid()), _cpu_seconds(broker))


@dataclass(frozen=True, slots=True)
class Sessions:
    """One run.

    Attributes:
        protocol: classic or consumer.
        seats: each has a session of its own.
        partitions: before some are added.
        started_s: until all seats had their shares and no partition was to be given up.
        starting: CPU meanwhile.
        minute: CPU in one minute at rest.
        noticed_s: from the addition of partitions until all of them had an owner.
        noticing: CPU meanwhile.
        moved: partitions that changed their owner then.
        memory_mib: at the end, in RAM.
    """

    protocol: str
    seats: int
    partitions: int
    started_s: float
    starting: Cpu
    minute: Cpu
    noticed_s: float
    noticing: Cpu
    moved: int
    memory_mib: int


def memory_mib() -> int:
    """The memory of this process that is in RAM."""
    resident = int(Path("/proc/self/statm").read_text().split()[1])
    return resident * os.sysconf("SC_PAGE_SIZE") // 2**20


def _cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:13])) / _TICKS_A_SECOND


def machine() -> str:
    """The machine and the versions, on which the figures depend, in one line."""
    return (
        f"{os.cpu_count()} cores, {platform.system()} {platform.release()}, load average {os.getloadavg()[0]:.1f} at "
        f"the start; Python {platform.python_version()}, Kafka broker {kafka_version()}"
    )


def table(runs: Sequence[Sessions]) -> str:
    """One line for each run. CPU is shown as ours / the broker's."""
    headings = (
        "",
        "all have their share",
        "CPU s",
        "CPU s a minute, at rest",
        "new partitions owned",
        "CPU s",
        "moved",
        "MiB",
    )
    rows: list[Sequence[str]] = [headings, [":--", *["--:"] * (len(headings) - 1)]]
    for run in runs:
        title = f"{run.protocol}: {run.seats:,} seats, {run.partitions:,} partitions"
        started, noticed = f"{run.started_s:.1f} s", f"{run.noticed_s:.1f} s"
        cpu = [f"{of.ours:.1f} / {of.broker:.1f}" for of in (run.starting, run.minute, run.noticing)]
        rows.append([title, started, cpu[0], cpu[1], noticed, cpu[2], str(run.moved), str(run.memory_mib)])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)
