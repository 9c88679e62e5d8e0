"""Which executor this process belongs to, as the table of processes says.

Runs on: executor.
"""

from __future__ import annotations

import logging
import os
import platform
from itertools import pairwise
from pathlib import Path

from pyspark_kgroup.shared.tickets import Executor

log = logging.getLogger(__name__)


def this_executor() -> Executor:
    """The executor whose worker this process is: the nearest JVM among its ancestors."""
    host = platform.node()
    try:
        pid = os.getpid()
        while pid > 0:
            if _name_of(pid) == "java":
                command = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
                return Executor(
                    key=f"{host}:{pid}:{start_ticks(pid)}",
                    executor_id=_argument(command, "--executor-id") or "driver",
                    host=_argument(command, "--hostname") or host,
                    pid=pid,
                )
            pid = _parent_of(pid)
    except OSError as problem:  # no /proc here
        log.debug("this process's executor is unknown: %s", problem)
    return Executor(key=f"{host}:{os.getppid()}", executor_id="", host=host, pid=os.getppid(), warm=False)


def start_ticks(pid: int) -> int:
    """When a process started, in clock ticks since boot (proc(5), stat): with its id, a name for it alone.

    Raises:
        OSError: there is no such process (any more).
    """
    return int(_stat(pid)[19])


def _stat(pid: int) -> list[str]:
    """Fields of /proc/PID/stat from the third on; the second may hold anything, spaces too."""
    return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()


def _parent_of(pid: int) -> int:
    return int(_stat(pid)[1])


def _name_of(pid: int) -> str:
    return Path(f"/proc/{pid}/comm").read_text(errors="replace").strip()


def _argument(command: list[str], name: str) -> str:
    return next((value for flag, value in pairwise(command) if flag == name), "")
