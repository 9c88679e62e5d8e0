"""Child processes that never outlive this one, not even when it is killed with -9.

    this process ──pipe──▶ watchdog        leads a process group of its own, ignores Ctrl-C, SIGTERM and SIGHUP
         └───────────────▶ JVM, JVM, ...   born into the watchdog's group

When the pipe ends, the owner is gone: every process in the group is killed with SIGKILL, and the owner's
temporary directory is removed. A forked copy of the owner may hold the pipe open, so the watchdog also looks every
`_PARENT_CHECK_S` whether its parent is still the same.

There is no moment in which a child is unknown to the watchdog: it enters the group between fork and exec, and cannot
enter a group that has already ended (setpgid fails, and so does the exec).

The watchdog is this same file run as a script without site packages: it imports the standard library only.
"""

from __future__ import annotations

import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Final

_PARENT_CHECK_S: Final = 0.2
"""How often the watchdog looks for its parent: the bound on noticing a death that the pipe does not show."""

_KILL_TIMEOUT_S: Final = 10.0
"""A killed process is gone in milliseconds. After this long it hangs in the kernel."""

_KILL_POLL_S: Final = 0.01


class ProcessGuard:
    """Starts processes that end when this process ends, however it ends.

    Args:
        directory: removed with all it holds if this process dies, or None.
        keep_open: file descriptors the watchdog inherits, so that a lock on them outlives the owner until its
            children are gone.
    """

    def __init__(self, directory: Path | None = None, keep_open: Sequence[int] = ()) -> None:
        read_end, self._write_end = os.pipe()
        arguments = [str(os.getpid()), str(read_end), *([str(directory)] if directory else [])]
        try:
            self._watchdog = subprocess.Popen(
                [sys.executable, "-I", "-S", __file__, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                pass_fds=(read_end, *keep_open),
                process_group=0,
            )
            self._await_watching()
        except BaseException:
            os.close(self._write_end)
            raise
        finally:
            os.close(read_end)

    def _await_watching(self) -> None:
        """Wait until the watchdog ignores signals: for a byte from it, or for the end of its output if it failed."""
        assert self._watchdog.stdout is not None
        with self._watchdog.stdout as output:
            output.read(1)

    def popen(
        self,
        command: Sequence[str | Path],
        *,
        stdout: int | IO[bytes],
        stderr: int | IO[bytes],
        environment: Mapping[str, str] | None = None,
        directory: Path | None = None,
    ) -> subprocess.Popen[bytes]:
        """Start `command` in the watchdog's group, with no standard input."""
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            env=environment,
            cwd=directory,
            process_group=self._watchdog.pid,
        )

    def close(self) -> None:
        """Kill all processes that still run in the group, the watchdog too. The directory is left to the owner."""
        if self._write_end < 0:
            return
        with suppress(ProcessLookupError):
            os.killpg(self._watchdog.pid, signal.SIGKILL)
        self._watchdog.wait(_KILL_TIMEOUT_S)
        # AFTER the watchdog's end: at the end of the pipe it would remove the directory.
        os.close(self._write_end)
        self._write_end = -1


def _watch(owner: int, read_end: int, directory: str | None) -> None:
    for ignored in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(ignored, signal.SIG_IGN)
    with suppress(BrokenPipeError):  # an owner that was interrupted while it waited for this reads no more
        os.write(sys.stdout.fileno(), b"w")
    while os.getppid() == owner:
        readable, _, _ = select.select([read_end], [], [], _PARENT_CHECK_S)
        if readable:
            break  # the owner never writes: readable means that its end is closed
    _end_the_group(directory)


def _end_the_group(directory: str | None) -> None:
    """Kill this process's whole group from a copy that has stepped out of it, then clean up."""
    group = os.getpgrp()
    if os.fork() != 0:
        return
    os.setpgid(0, 0)
    deadline = time.monotonic() + _KILL_TIMEOUT_S
    while _is_there(group) and time.monotonic() < deadline:
        with suppress(ProcessLookupError):
            os.killpg(group, signal.SIGKILL)
        time.sleep(_KILL_POLL_S)
    if directory is not None:
        shutil.rmtree(directory, ignore_errors=True)


def _is_there(group: int) -> bool:
    """Whether a process of the group is alive. Zombies may stay for long where init reaps none (containers)."""
    if not sys.platform.startswith("linux"):
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return False
        return True
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            state, _, its_group = stat.read_text().rpartition(")")[2].split()[:3]
            if int(its_group) == group and state not in ("Z", "X"):
                return True
    return False


if __name__ == "__main__":
    _watch(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3] if len(sys.argv) > 3 else None)
