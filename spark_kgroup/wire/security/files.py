"""Files of certificates and keys, which are renewed while a client runs.

cert-manager, Vault's agent and Strimzi's operator replace them before certificates expire, often one after the other.
A client that read them when it started cannot connect any more when brokers have restarted (librdkafka issue 2868), so
they are looked at for each new connection: one `stat` for each file, which follows symbolic links, as Kubernetes
replaces them.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Final, TypeAlias, TypeVar

from spark_kgroup.errors import OptionError

log = logging.getLogger(__name__)

Made = TypeVar("Made")

_LOOK_S: Final = 0.2
"""Pause between two attempts to read files that are being renewed (ours)."""

_Look: TypeAlias = "tuple[tuple[int, int, int] | None, ...]"
"""Of each file its time of modification in ns, size and inode, or None if it is not there."""


class CredentialFiles:
    """The files that one client reads its certificate authorities, certificate and key from.

    Args:
        locations: how an error names the file -> its path. Of a directory it is seen that files come and go.
    """

    def __init__(self, locations: Mapping[str, str]) -> None:
        self._locations = dict(locations)
        self._seen = self._stat_files()

    def __len__(self) -> int:
        return len(self._locations)

    def have_changed(self) -> bool:
        """Whether one of them is another than when `take_change` was last called, or this was made."""
        return self._stat_files() != self._seen

    def take_change(self) -> bool:
        """As `have_changed`, once for each change.

        To be called BEFORE the files are read: a file that changes between the look and the reading is then read again.
        """
        before, self._seen = self._seen, self._stat_files()
        return before != self._seen

    def changed_within(self, lately_ms: int) -> bool:
        """Whether one of them was changed or put there in the last so many milliseconds.

        A copy may keep the time of modification (`cp -p`, `rsync -t`), and does not keep the time of change.
        """
        found = [each for path in self._locations.values() if (each := _stat(path)) is not None]
        times = [at for each in found for at in (each.st_mtime_ns, each.st_ctime_ns)]
        wall_ns = time.time_ns()
        return any(abs(wall_ns - at) < lately_ms * 1e6 for at in times)

    def describe(self) -> str:
        """The name, path and time of last change of each file, or that it cannot be read, for an error message.

        Empty if there are no files.
        """
        looks = zip(self._locations.items(), self._stat_files(), strict=True)
        return ", ".join(f"{name} ({path!r}) {_changed_at(look)}" for (name, path), look in looks)

    def _stat_files(self) -> _Look:
        return tuple(map(_look_at, self._locations.values()))


def read_settled(files: CredentialFiles, read: Callable[[], Made], patience_ms: int) -> Made:
    """What `read` makes of the files, read again for a while if one of them has just changed.

    A process that begins between the renewal of a certificate and that of its key has no earlier pair to keep. Blocks.

    Args:
        files: the files that `read` reads.
        read: reads them.
        patience_ms: how long they are read again, and how long ago the change may be.

    Raises:
        OptionError: `read` raised it, the last time.
    """
    ends_s = time.monotonic() + patience_ms / 1000
    told = False
    while True:
        try:
            return read()
        except OptionError as error:
            if time.monotonic() >= ends_s or not files.changed_within(patience_ms):
                raise
            if not told:
                log.warning("Certificates have just changed, and are read again: %s", error)
            told = True
        time.sleep(_LOOK_S)


def _stat(path: str) -> os.stat_result | None:
    try:
        return os.stat(path)
    except (OSError, ValueError):  # ValueError: of a path with a zero byte
        return None


def _look_at(path: str) -> tuple[int, int, int] | None:
    found = _stat(path)
    return None if found is None else (found.st_mtime_ns, found.st_size, found.st_ino)


def _changed_at(look: tuple[int, int, int] | None) -> str:
    return "cannot be read" if look is None else f"was last changed at {utc(look[0] / 1e9)}"


def utc(wall_s: float) -> str:
    """An instant as people read it.

    Args:
        wall_s: seconds since the epoch.
    """
    return f"{datetime.fromtimestamp(wall_s, UTC):%Y-%m-%d %H:%M:%S} UTC"
