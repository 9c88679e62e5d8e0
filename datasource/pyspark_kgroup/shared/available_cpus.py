"""How many CPUs this process may use, as a JVM beside it counts them (Runtime.availableProcessors).

Runs on: both. Control groups: Linux.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

_MINE: Final = Path("/proc/self/cgroup")
"""The control groups of this process (cgroups(7)), a line each: NUMBER:CONTROLLERS:PATH. In version 2 CONTROLLERS is
empty."""

_MOUNTED: Final = Path("/sys/fs/cgroup")


def available_cpus() -> int:
    """The CPUs of this process's affinity, and no more than each quota of its control groups, rounded up.

    As in the JVM's CgroupUtil.cpp.
    """
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min([affinity, *map(math.ceil, _quotas())]))


def _quotas() -> Iterator[float]:
    """How many CPUs each of the process's control groups may use, and each of their parent groups."""
    with suppress(OSError, ValueError):
        for line in _MINE.read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers and "cpu" not in controllers.split(","):
                continue
            mounted = _MOUNTED / "cpu" if controllers else _MOUNTED
            inside = Path() if ".." in path else Path(path.lstrip("/"))  # not all of the tree is mounted in a container
            for group in (inside, *inside.parents):
                with suppress(OSError, ValueError):
                    quota, period = _read_quota(mounted / group, 1 if controllers else 2)
                    if quota.isdecimal():  # "max" or "-1": no limit
                        yield int(quota) / int(period)


def _read_quota(group: Path, version: int) -> tuple[str, str]:
    """Microseconds of CPU time in a period, and of the period. Raises OSError and ValueError."""
    if version == 1:
        return (group / "cpu.cfs_quota_us").read_text().strip(), (group / "cpu.cfs_period_us").read_text().strip()
    quota, period = (group / "cpu.max").read_text().split()
    return quota, period
