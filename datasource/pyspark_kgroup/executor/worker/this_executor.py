"""Which executor this process belongs to, by its ancestors in /proc.

Runs on: executor.
"""

from __future__ import annotations

import logging
import os
import platform
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Final

from pyspark_kgroup.shared.process_folder import read_stat, start_ticks
from pyspark_kgroup.shared.tickets import Executor, ReadSettings

log = logging.getLogger(__name__)

RACK_VARIABLE: Final = "KGROUP_CLIENT_RACK"
"""Environment of an executor: its rack, as Kafka's brokers know theirs (broker.rack)."""

_RACK: Final = "client.rack"


def this_executor(task_cpus: int = 1) -> Executor:
    """The executor whose worker this process is: the nearest JVM among its ancestors.

    Args:
        task_cpus: how many cores each task has (`spark.task.cpus`).
    """
    host, rack = platform.node(), os.environ.get(RACK_VARIABLE, "")
    try:
        pid = os.getpid()
        while pid > 0:
            if _read_name(pid) == "java":
                command = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
                return Executor(
                    key=f"{host}:{pid}:{start_ticks(pid)}",
                    # The one JVM of local mode has no such argument.
                    executor_id=_argument(command, "--executor-id") or "driver",
                    host=_argument(command, "--hostname") or host,
                    pid=pid,
                    rack=rack,
                    cores=max(1, int(cores) // task_cpus)
                    if (cores := _argument(command, "--cores")).isdecimal()
                    else 0,
                )
            pid = _read_parent(pid)
    except OSError as problem:  # no /proc here
        log.debug("this process's executor is unknown: %s", problem)
    return Executor(
        key=f"{host}:{os.getppid()}", executor_id="", host=host, pid=os.getppid(), rack=rack, has_sidecar=False
    )


def settings_for_rack(executor: Executor, settings: ReadSettings) -> ReadSettings:
    """`settings` for reading in this executor's rack (KIP-392), or in the query's if the executor has none."""
    if not executor.rack:
        return settings
    return replace(settings, consumer_config={**settings.consumer_config, _RACK: executor.rack})


def _read_parent(pid: int) -> int:
    return int(read_stat(pid)[1])


def _read_name(pid: int) -> str:
    return Path(f"/proc/{pid}/comm").read_text(errors="replace").strip()


def _argument(command: list[str], name: str) -> str:
    return next((value for flag, value in pairwise(command) if flag == name), "")
