"""CPU seconds of the broker, of Spark's JVM and of its Python processes, from /proc."""

import os
from pathlib import Path
from typing import NamedTuple

_TICKS_A_SECOND = os.sysconf("SC_CLK_TCK")


class Cpu(NamedTuple):
    """CPU seconds, user and system together."""

    broker: float
    jvm: float
    python: float

    def since(self, before: "Cpu") -> "Cpu":
        return Cpu(*(after - earlier for after, earlier in zip(self, before, strict=True)))


class _Process(NamedTuple):
    parent: int
    own_s: float
    reaped_s: float  # of its children that have ended


def cpu_seconds(broker: int, jvm: int) -> Cpu:
    """The CPU that the processes have used since they began.

    Python's are all that the JVM started and all that those started, the ended ones included.

    Args:
        broker: the broker's process id.
        jvm: Spark's.
    """
    processes = _processes()
    below = _descendants(jvm, processes)
    python = processes[jvm].reaped_s + sum(processes[pid].own_s + processes[pid].reaped_s for pid in below)
    return Cpu(processes[broker].own_s, processes[jvm].own_s, python)


def _processes() -> dict[int, _Process]:
    found = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue  # ended meanwhile
        own, reaped = (sum(map(int, times)) / _TICKS_A_SECOND for times in (fields[11:13], fields[13:15]))
        found[int(stat.parent.name)] = _Process(int(fields[1]), own, reaped)
    return found


def _descendants(pid: int, processes: dict[int, _Process]) -> set[int]:
    below: set[int] = set()
    nearest = {pid}
    while nearest:
        nearest = {child for child, process in processes.items() if process.parent in nearest}
        below |= nearest
    return below
