"""The costs of one query at one size, and the figures as Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Boundaries:
    """The driver's half of one query on a real broker.

    Attributes:
        started_s: from the first call until the first offset, in a new group.
        restarted_s: the same for a new reader with the checkpoint, beside the seats that the group still has.
        idle_ms: CPU of the driver for a trigger without new records, the mean.
        busy_ms: CPU of the driver for a trigger and the plan of its batch, with new records in each partition.
        idle_requests: to brokers for a trigger without new records, the mean.
        busy_requests: to brokers for a trigger with new records and the plan of its batch, the mean.
        busy_kb: bytes to brokers and from them for it, in KB.
        tasks: of such a batch.
        offset_kb: size of the offset in Spark's log, in KB.
        memory_mib: of the driver's process, at the end.
    """

    partitions: int
    seats: int
    started_s: float
    restarted_s: float
    idle_ms: float
    busy_ms: float
    idle_requests: float
    busy_requests: float
    busy_kb: float
    tasks: int
    offset_kb: float
    memory_mib: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Reads on many executors, by the registry's bookkeeping and Spark's placement of tasks, simulated.

    Attributes:
        cores: of each executor.
        with_data: seats with data in a batch.
        tasks: of a batch, the mean.
        at_home: part of the reads on the home of their seat.
        network: part of the reads that the home serves over the network.
        cpu_ms: of the driver, for planning a batch and binding its tickets.
    """

    executors: int
    cores: int
    seats: int
    with_data: int
    tasks: float
    at_home: float
    network: float
    cpu_ms: float


def boundaries_table(runs: Sequence[Boundaries]) -> str:
    """One line for each size."""
    return table(
        [
            "partitions",
            "seats",
            "start",
            "restart",
            "idle trigger: CPU",
            "requests",
            "busy trigger: CPU",
            "requests",
            "KB to and from brokers",
            "tasks",
            "offset",
            "memory",
        ],
        [
            [
                f"{run.partitions:,}",
                f"{run.seats:,}",
                f"{run.started_s:.1f} s",
                f"{run.restarted_s:.1f} s",
                f"{run.idle_ms:.0f} ms",
                f"{run.idle_requests:.1f}",
                f"{run.busy_ms:.0f} ms",
                f"{run.busy_requests:.0f}",
                f"{run.busy_kb:,.0f}",
                str(run.tasks),
                f"{run.offset_kb:.1f} KB",
                f"{run.memory_mib} MiB",
            ]
            for run in runs
        ],
    )


def placement_table(runs: Sequence[Placement]) -> str:
    """One line for each size."""
    return table(
        ["executors x cores", "seats", "with data", "tasks", "at home", "from the home", "directly", "CPU a batch"],
        [
            [
                f"{run.executors} x {run.cores}",
                f"{run.seats:,}",
                f"{run.with_data:,}",
                f"{run.tasks:.0f}",
                f"{run.at_home:.0%}",
                f"{run.network:.0%}",
                f"{abs(1 - run.at_home - run.network):.0%}",
                f"{run.cpu_ms:.1f} ms",
            ]
            for run in runs
        ],
    )


def table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table of Markdown, all columns to the right."""
    lines = [headings, ["--:"] * len(headings), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
