"""Spark's two logs in the folder of a checkpoint: the offset log and the commit log.

Runs on: driver, in the process of the command `kgroup checkpoint`.

`offsets/N` says where batch N ends: a line with the log's version, one with metadata (the watermark, settings), then
one for each source, "-" if it has no offset yet (OffsetSeqLog). Spark writes it before the batch, and `commits/N` after
it. Beside a file on a local disk stands its checksum, `.N.crc` (Hadoop's ChecksumFileSystem).
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from pyspark_kgroup.errors import CheckpointError

_VERSION: Final = "v1"
_HEAD_LINES: Final = 2
_CHECKSUM_HEAD: Final = b"crc\0"
_CHUNK_BYTES: Final = 512
"""How many bytes each sum is of (Hadoop: file.bytes-per-checksum)."""


@dataclass(frozen=True, slots=True)
class BatchEnd:
    """Where one batch ends, as Spark's offset log has it.

    Attributes:
        batch: its number.
        head: the lines before the offsets.
        offsets: of each source, as text.
    """

    batch: int
    head: Sequence[str]
    offsets: Sequence[str]

    @staticmethod
    def parse(batch: int, text: str) -> BatchEnd:
        """Read the text of a file. Raises CheckpointError for another version of the log."""
        lines = text.split("\n")
        if lines[0] != _VERSION:
            raise CheckpointError(
                f"Batch {batch} is in Spark's offset log of version {lines[0][:20]!r}, and this command reads "
                f"{_VERSION}. Version v2 is that of queries whose sources have names: give the other source a .name() "
                "of its own in the query, and Spark keeps the offsets of both."
            )
        return BatchEnd(batch, tuple(lines[:_HEAD_LINES]), tuple(lines[_HEAD_LINES:]))

    def with_offset(self, source: int, offset: str) -> BatchEnd:
        """This one with another offset of one source."""
        return replace(self, offsets=(*self.offsets[:source], offset, *self.offsets[source + 1 :]))

    @property
    def text(self) -> str:
        """As Spark writes it."""
        return "\n".join([*self.head, *self.offsets])


class CheckpointFolder:
    """The folder of a checkpoint.

    Args:
        path: the query's `checkpointLocation`.

    Raises:
        CheckpointError: it is no such folder.
    """

    def __init__(self, path: Path) -> None:
        if not (path / "offsets").is_dir():
            raise CheckpointError(
                f"{path} is no checkpoint of a query: it has no folder `offsets`. Give the folder that is the query's "
                "checkpointLocation. One in HDFS or an object store has to be copied to this disk first."
            )
        self._path = path

    def _batches(self, log: str) -> list[int]:
        folder = self._path / log
        names = [each.name for each in folder.iterdir()] if folder.is_dir() else []
        return sorted(int(name) for name in names if name.isascii() and name.isdigit())

    @property
    def last_done(self) -> int | None:
        """The number of the last finished batch, or None if none is finished."""
        return max(self._batches("commits"), default=None)

    @property
    def unfinished(self) -> int | None:
        """The number of the batch that is planned and not finished, or None."""
        last, done = max(self._batches("offsets"), default=None), self.last_done
        return last if last is not None and (done is None or last > done) else None

    def read(self, batch: int) -> BatchEnd:
        """Where a batch ends.

        Raises:
            CheckpointError: the log lacks the batch, or is of another version.
        """
        try:
            return BatchEnd.parse(batch, (self._path / "offsets" / str(batch)).read_text())
        except FileNotFoundError:
            raise CheckpointError(
                f"{self._path} has no file offsets/{batch}: the checkpoint is damaged, or Spark has just removed it."
            ) from None
        except UnicodeDecodeError:
            raise CheckpointError(f"{self._path}/offsets/{batch} is no text: the checkpoint is damaged.") from None

    def put(self, before: BatchEnd, after: BatchEnd) -> Path:
        """Put `after` in place of `before`, in one step, and return the copy of `before` that is kept.

        Raises:
            CheckpointError: the log has gone on meanwhile: the query runs.
        """
        file = self._path / "offsets" / str(before.batch)
        checksum = file.with_name(f".{file.name}.crc")
        kept = _free_name(self._path / "kgroup-backup", f"offsets-{file.name}")
        kept.parent.mkdir(exist_ok=True)
        _write(kept, before.text.encode())
        new = kept.with_name(f".{kept.name}.new")
        _write(new, after.text.encode())
        if self.unfinished is not None or self.last_done != before.batch or self.read(before.batch) != before:
            new.unlink()
            raise CheckpointError("The checkpoint has changed just now: stop the query that writes it, and try again.")
        # A file without a checksum is believed, and one with another file's is an error of Spark's: so the old one goes
        # first, and the new one comes last.
        had_checksum = checksum.exists()
        checksum.unlink(missing_ok=True)
        new.replace(file)
        if had_checksum:
            _write(new, checksum_of(after.text.encode()))
            new.replace(checksum)
        return kept


def checksum_of(content: bytes) -> bytes:
    """The content of the file with the checksum of a file: a CRC-32 of each 512 bytes."""
    chunks = [content[at : at + _CHUNK_BYTES] for at in range(0, len(content), _CHUNK_BYTES)]
    sums = b"".join(zlib.crc32(chunk).to_bytes(4, "big") for chunk in chunks)
    return _CHECKSUM_HEAD + _CHUNK_BYTES.to_bytes(4, "big") + sums


def _write(path: Path, content: bytes) -> None:
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _free_name(folder: Path, name: str) -> Path:
    """A file in `folder` that is not there yet: a batch may be exported, imported and exported again."""
    number = 1
    while (free := folder / (name if number == 1 else f"{name}-{number}")).exists():
        number += 1
    return free
