"""A query of many partitions and seats that runs for long: does any process of it grow?"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.measuring import Problem

from bench_scale.measured import table
from spark_kgroup.testing import ApacheKafka


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """The query at one time.

    Attributes:
        minute: since its first batch.
        triggers: so far.
        driver_mib: in RAM, of the driver's process.
        broker_mib: in RAM, of the broker's.
        cpu_s: of the driver's process, so far.
    """

    minute: int
    triggers: int
    driver_mib: int
    broker_mib: int
    cpu_s: float


def watch(
    kafka: ApacheKafka, topic: str, partitions: int, seats: int, *, minutes: int, show: Callable[[str], object]
) -> list[Moment]:
    """Let a query run in a process of its own. Returns its figures every few minutes."""
    arguments = (kafka.bootstrap_servers, topic, partitions, seats, minutes)
    command = [sys.executable, "-P", "-m", "bench_scale.lasting_query", *map(str, arguments)]
    seen: list[Moment] = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        for line in process.stdout:
            seen.append(Moment(**json.loads(line), broker_mib=_resident_mib(kafka.nodes[0].pid)))
            show(f"minute {seen[-1].minute}: driver {seen[-1].driver_mib} MiB, broker {seen[-1].broker_mib} MiB")
        problem = process.stderr.read()
    if process.returncode:
        raise Problem.of(f"{partitions} partitions, {seats} seats for {minutes} minutes", problem)
    return seen


def lasting_table(seen: Sequence[Moment]) -> str:
    """One line for each moment."""
    return table(
        ["minute", "triggers", "driver", "broker", "CPU of the driver"],
        [
            [
                str(moment.minute),
                str(moment.triggers),
                f"{moment.driver_mib} MiB",
                f"{moment.broker_mib} MiB",
                f"{moment.cpu_s:.0f} s",
            ]
            for moment in seen
        ],
    )


def _resident_mib(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) // 1_024
