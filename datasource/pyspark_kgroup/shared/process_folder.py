"""A folder, in the temporary folder, that belongs to a process, mostly a JVM, and opens for this user alone.

Runs on: both. Linux.

The name contains pid and start time, so later processes can remove folders of dead ones.
"""

from __future__ import annotations

import errno
import hashlib
import os
import platform
import shutil
import stat
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Final

KEY: Final = "key"
"""The name of the folder in which an application's driver has its key."""

_ZOMBIE: Final = "Z"
"""The state of a process that has ended, and whose parent has not waited for it yet (proc(5))."""


def start_ticks(pid: int) -> int:
    """When a process started, in clock ticks since boot (proc(5), stat): together with its id, that names it alone.

    Raises:
        OSError: there is no such process (any more).
    """
    return int(read_stat(pid)[19])


def read_stat(pid: int) -> list[str]:
    """Fields of /proc/PID/stat from the third on. The second may hold spaces and brackets. Raises as `start_ticks`."""
    return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()


def folder_path(pid: int, ticks: str, name: str) -> Path:
    """Where the folder `name` of a process is. The folder is not made.

    Args:
        pid: the process's.
        ticks: as `start_ticks`.
        name: without a hyphen.

    Raises:
        OSError: this platform does not say which processes there are.
    """
    return Path(tempfile.gettempdir()) / f"{_prefix()}{pid}-{ticks}-{name}"


def make(folder: Path) -> None:
    """Make it if it is not there. Raises as `check`."""
    folder.mkdir(mode=0o700, exist_ok=True)
    check(folder)


def check(folder: Path) -> None:
    """See that no other user can have put a file into it.

    Raises:
        OSError: it is not there, or not this user's alone.
    """
    found = folder.lstat()  # not `stat`: a link's owner can point it elsewhere later
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or stat.S_IMODE(found.st_mode) & 0o077:
        raise PermissionError(errno.EPERM, "not a folder of this user alone", str(folder))


def sweep() -> None:
    """Remove the folders of processes that have ended, such as those that were killed."""
    prefix = _prefix()
    for folder in Path(tempfile.gettempdir()).glob(f"{prefix}*"):
        pid, _, rest = folder.name.removeprefix(prefix).partition("-")
        try:
            state = read_stat(int(pid))
            alive = state[0] != _ZOMBIE and state[19] == rest.partition("-")[0]
        except (OSError, ValueError):
            alive = False
        with suppress(FileNotFoundError):  # another process sweeps as well
            if not alive and folder.lstat().st_uid == os.geteuid():
                shutil.rmtree(folder, ignore_errors=True)


def _prefix() -> str:
    """The beginning of the names of all folders of this user, among processes that see the same process ids."""
    processes = os.stat("/proc/self/ns/pid").st_ino
    host = hashlib.sha256(platform.node().encode()).hexdigest()[:8]  # the folder may be one of several hosts
    return f"kgroup-{os.geteuid()}-{host}-{processes}-"
