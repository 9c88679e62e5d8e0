"""The secret that all queries of an application share, so that they also share the sidecars of their executors.

Runs on: driver, in the stream-reader process of each query, and in the user's own. Linux: elsewhere there are no
sidecars.

The first query leaves it in a folder of the driver's JVM that opens for this user alone. Each stream reader locks it
for as long as it lives, and the one that ends last removes it. A folder that killed stream readers leave is swept after
the JVM has ended.
"""

from __future__ import annotations

import fcntl
import hmac
import logging
import os
import threading
from contextlib import suppress
from pathlib import Path
from typing import Final

from pyspark_kgroup.shared import process_folder
from pyspark_kgroup.shared.channel import KEY_BYTES, new_key
from spark_kgroup import __version__

log = logging.getLogger(__name__)

_ATTEMPTS: Final = 100
"""How often the key is made or read anew, if another stream reader removes it at this moment."""


class ApplicationKey:
    """The key of this application, held by a stream reader: it stays until all stream readers have released it.

    Args:
        secret: the content of the file.
        path: of the file.
        descriptor: of the file, locked.
    """

    def __init__(self, secret: bytes, path: Path, descriptor: int) -> None:
        self.value: Final = _of_this_version(secret)
        self.folder: Final = path.parent
        self._path = path
        self._descriptor: int | None = descriptor
        self._lock = threading.Lock()

    def release(self) -> None:
        """Remove it, unless another stream reader holds it. May be called by any thread, and again."""
        with self._lock:
            descriptor, self._descriptor = self._descriptor, None
            if descriptor is None:
                return
            with suppress(OSError):  # another stream reader holds it, or this is Windows, or the disk has gone
                fcntl.flock(descriptor, fcntl.LOCK_UN)
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if _is_file(self._path, descriptor):
                    self._path.unlink()
                    self.folder.rmdir()
            os.close(descriptor)


def key_folder(jvm: int) -> Path | None:
    """Where the driver with this pid has its key, or None if none can be shared: each query has its own then."""
    try:
        return process_folder.folder_path(jvm, str(process_folder.start_ticks(jvm)), process_folder.KEY)
    except OSError as problem:
        log.info("this query shares no sidecars with the other queries of its application: %s", problem)
        return None


def hold_key(folder: Path) -> ApplicationKey | None:
    """Hold the key of this application, made if there is none.

    Args:
        folder: the driver's (`key_folder`).

    Returns:
        None if none can be shared: such a query has a key and sidecars of its own.
    """
    path = folder / "secret"
    try:
        process_folder.sweep()
        for _ in range(_ATTEMPTS):
            with suppress(FileNotFoundError, FileExistsError):  # its last holder removes it at this moment
                process_folder.make(folder)
                _make_secret(path)
                if (key := _hold(path)) is not None:
                    return key
        raise OSError(f"other processes remove {path} again and again")
    except OSError as problem:
        log.info("this query shares no sidecars with the other queries of its application: %s", problem)
        return None


def find_key(folder: Path) -> bytes | None:
    """The key of the application with this folder, or None if there is none, or it is not this user's."""
    try:
        process_folder.check(folder)
        return _of_this_version(_checked((folder / "secret").read_bytes(), folder))
    except OSError:
        return None


def _of_this_version(secret: bytes) -> bytes:
    """The key for queries of this version of the package: another version would not understand their messages."""
    return hmac.digest(secret, f"spark-kgroup {__version__}".encode(), "sha256")


def _make_secret(path: Path) -> None:
    """Make the file if there is none, whole from the first moment. Raises OSError."""
    if path.exists():
        return
    draft = path.with_name(f"draft-{os.getpid()}")
    try:
        draft.touch(mode=0o600)
        draft.write_bytes(new_key())
        with suppress(FileExistsError):  # another query was faster
            os.link(draft, path)
    finally:
        draft.unlink(missing_ok=True)


def _hold(path: Path) -> ApplicationKey | None:
    """The key in the file, which stays locked, or None if the file was removed before that. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        if _is_file(path, descriptor):
            # One byte more than a key has, so that a longer file is noticed.
            key = ApplicationKey(_checked(os.read(descriptor, KEY_BYTES + 1), path), path, descriptor)
            descriptor = -1
            return key
        return None
    finally:
        if descriptor >= 0:
            os.close(descriptor)


def _is_file(path: Path, descriptor: int) -> bool:
    """Whether the file at this path is the one that is open."""
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _checked(secret: bytes, path: Path) -> bytes:
    if len(secret) != KEY_BYTES:
        raise OSError(f"{path} holds no key")
    return secret
