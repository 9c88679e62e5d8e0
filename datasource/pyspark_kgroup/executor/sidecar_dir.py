"""Where an executor's sidecar for one application is on disk: a folder with its lock, its socket and workers' marks.

Runs on: executor.

The folder opens for this user alone. A folder that other users can open is not trusted: its owner could answer as the
sidecar, or leave marks.
"""

from __future__ import annotations

import errno
import hmac
import math
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

from pyspark_kgroup.limits import SIDECAR_RETRY_MS
from pyspark_kgroup.shared import process_folder
from pyspark_kgroup.shared.process_folder import folder_path
from pyspark_kgroup.shared.tickets import Executor

_SOCKET_PATH_MAX: Final = 107
"""sun_path of unix(7), without the NUL at its end."""

_LOCK_TRIES: Final = 3
"""How often a lock is opened that a sidecar removes as it ends. There is one such sidecar at a time."""


@dataclass(frozen=True, slots=True)
class SidecarDir:
    """The folder. `find_sidecar_dir` names it."""

    folder: Path

    # ------------------------------------------------------------------------------------------------- the socket

    @property
    def socket(self) -> Path:
        """Where the sidecar listens."""
        return self.folder / "socket"

    @property
    def server(self) -> str:
        """The sidecar's name in a handshake: a worker's proof for it is of no use with any other server."""
        return f"sidecar {self.folder}"

    @contextmanager
    def short_socket_path(self) -> Iterator[Path]:
        """The socket by a name that is short enough for one, however deep the folder lies.

        Raises:
            OSError: there is no such folder, or it is not ours alone.
        """
        process_folder.check(self.folder)  # BEFORE a worker connects: the folder's owner could answer
        if len(os.fsencode(self.socket)) <= _SOCKET_PATH_MAX:
            yield self.socket  # as people find it in the list of sockets
            return
        folder = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            yield Path(f"/proc/self/fd/{folder}") / self.socket.name
        finally:
            os.close(folder)

    def has_socket(self, socket_inode: int) -> bool:
        """Whether the socket is still the one that a sidecar has made."""
        try:
            return self.socket.stat().st_ino == socket_inode
        except FileNotFoundError:
            return False

    def vacate(self, socket_inode: int) -> None:
        """Remove the folder, unless it is another sidecar's by now, or about to be."""
        with suppress(OSError), self.lock.open("a") as lock:
            if _try_lock(lock.fileno()) and self.has_socket(socket_inode):
                for entry in self.folder.iterdir():
                    entry.unlink()
                self.folder.rmdir()

    # --------------------------------------------------------------------------------------------------- the lock

    @property
    def lock(self) -> Path:
        """Held by a worker that starts a sidecar, and by a sidecar that removes its folder."""
        return self.folder / "lock"

    @contextmanager
    def hold_lock(self) -> Iterator[None]:
        """Hold the lock. The folder is there then.

        Raises:
            BlockingIOError: another process holds it.
            OSError: the folder cannot be made, or is not ours alone.
        """
        for _ in range(_LOCK_TRIES):
            process_folder.make(self.folder)
            if (lock := self._open_lock()) is not None:
                with lock:
                    if not _try_lock(lock.fileno()):
                        break
                    # A sidecar may have removed the file meanwhile: a lock on it keeps no other worker out.
                    if os.fstat(lock.fileno()).st_nlink > 0:
                        yield
                        return
        raise BlockingIOError(errno.EWOULDBLOCK, "another process holds the lock", str(self.lock))

    def _open_lock(self) -> IO[str] | None:
        try:
            return self.lock.open("a")
        except FileNotFoundError:  # a sidecar may remove it, and the folder, as it ends
            return None

    # -------------------------------------------------------------------------------------------------- the marks

    def mark(self, name: str) -> None:
        """Leave a mark for the other workers of this executor. Raises OSError as `hold_lock`."""
        if not self.folder.exists():
            process_folder.sweep()  # where no sidecar can start, none sweeps the folders that have only marks
        process_folder.make(self.folder)
        (self.folder / name).touch()

    def marked_wall_s(self, name: str) -> float:
        """When the mark was left last, in seconds since the epoch.

        Raises:
            OSError: it never was, or the folder is not ours alone.
        """
        process_folder.check(self.folder)
        return (self.folder / name).stat().st_mtime


def _try_lock(descriptor: int) -> bool:
    import fcntl  # here: there is none on Windows, where this module must import all the same

    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def find_sidecar_dir(executor: Executor, key: bytes) -> SidecarDir:
    """Where the sidecar of `executor` for the application with `key` is.

    Raises:
        OSError: this platform has no place for it.
    """
    # With the key, so that another user cannot tell the next folder's name from the folders that are there.
    digest = hmac.digest(key, f"place of {executor.key}".encode(), "sha256").hex()[:16]
    return SidecarDir(folder_path(executor.pid, executor.key.rpartition(":")[2], digest))


class RecentFailures:
    """A circuit breaker: after a failure of one of an executor's workers, the rest do not wait for the same.

    Failures are marks in the executor's place. Where marks cannot be left, each process remembers its own failures.

    Args:
        place: None if there is none on this platform.
        query: whose failures these are, as `RegistryAccess.query`.
        clock_s: a monotonic one.
    """

    def __init__(self, place: SidecarDir | None, query: str, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._place = place
        self._query = query
        self._clock_s = clock_s
        self._failed_at_s: dict[str, float] = {}

    def has(self, what: str) -> bool:
        """Whether this failed within the last `SIDECAR_RETRY_MS`."""
        if self._clock_s() - self._failed_at_s.get(what, -math.inf) < SIDECAR_RETRY_MS / 1000:
            return True
        if self._place is None:
            return False
        try:
            age_s = time.time() - self._place.marked_wall_s(self._mark(what))
        except OSError:  # there is no mark, or there cannot be any
            return False
        return abs(age_s) < SIDECAR_RETRY_MS / 1000  # below 0: the clock was set back

    def add(self, what: str) -> None:
        """Note that this has failed just now."""
        if self.has(what):  # a renewed mark would put off the next try for ever
            return
        self._failed_at_s[what] = self._clock_s()
        if self._place is not None:
            with suppress(OSError):  # each process finds out by itself then
                self._place.mark(self._mark(what))

    def _mark(self, what: str) -> str:
        return f"{what}-{self._query}"
