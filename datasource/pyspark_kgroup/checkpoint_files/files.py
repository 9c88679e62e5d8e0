"""The files of a checkpoint, on this disk or where Spark reaches them.

Runs on: driver, in the process of the command `kgroup checkpoint`.
"""

from __future__ import annotations

import os
import zlib
from pathlib import Path
from typing import Final, Protocol

_CHECKSUM_HEAD: Final = b"crc\0"
_CHUNK_BYTES: Final = 512
"""How many bytes each sum is of (Hadoop: file.bytes-per-checksum)."""


class Files(Protocol):
    """The files in one folder. A name has the folders below it, as `offsets/7`. The folder itself is its text."""

    def names(self, folder: str) -> list[str]:
        """The names of the files in a folder below this one, none if it is not there."""

    def read(self, name: str) -> bytes:
        """The content of a file. Raises FileNotFoundError."""

    def write(self, name: str, content: bytes) -> None:
        """Write a file, in place of the one that is there, in one step."""


class LocalFiles:
    """Files on this disk, with the checksums that Hadoop keeps beside them (`.7.crc`, ChecksumFileSystem)."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def __str__(self) -> str:
        return str(self._root)

    def names(self, folder: str) -> list[str]:
        """See `Files`."""
        found = self._root / folder
        return [each.name for each in found.iterdir()] if found.is_dir() else []

    def read(self, name: str) -> bytes:
        """See `Files`."""
        return (self._root / name).read_bytes()

    def write(self, name: str, content: bytes) -> None:
        """See `Files`.

        Spark fails at a file that does not fit its checksum, and believes one that has none. So the old checksum goes
        first, and the new one comes last. A file that had none gets none.
        """
        path = self._root / name
        checksum = path.with_name(f".{path.name}.crc")
        path.parent.mkdir(exist_ok=True)
        had_checksum = checksum.exists()
        new = self._write_new(path, content)
        checksum.unlink(missing_ok=True)
        new.replace(path)
        if had_checksum:
            self._write_new(path, checksum_of(content)).replace(checksum)

    def _write_new(self, path: Path, content: bytes) -> Path:
        """Write a file beside `path`, to be renamed. Neither Spark nor Hadoop looks at its name."""
        new = path.with_name(f".{path.name}.kgroup")
        with new.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        return new


def checksum_of(content: bytes) -> bytes:
    """The content of the file with the checksum of a file: a CRC-32 of each 512 bytes."""
    chunks = [content[at : at + _CHUNK_BYTES] for at in range(0, len(content), _CHUNK_BYTES)]
    sums = b"".join(zlib.crc32(chunk).to_bytes(4, "big") for chunk in chunks)
    return _CHECKSUM_HEAD + _CHUNK_BYTES.to_bytes(4, "big") + sums
