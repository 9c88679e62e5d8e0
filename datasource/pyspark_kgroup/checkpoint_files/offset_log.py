"""Spark's two logs in the folder of a checkpoint: the offset log and the commit log.

Runs on: driver, in the process of the command `kgroup checkpoint`.

`offsets/N` says where batch N ends: a line with the log's version, one with metadata (the watermark, settings), then
one for each source, "-" if it has no offset yet (OffsetSeqLog). Spark writes it before the batch, and `commits/N` after
it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from pyspark_kgroup.checkpoint_files.files import Files
from pyspark_kgroup.errors import CheckpointError

_VERSION: Final = "v1"
_HEAD_LINES: Final = 2
_BACKUP: Final = "kgroup-backup"


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
        files: those of the query's `checkpointLocation`.

    Raises:
        CheckpointError: it is no such folder.
    """

    def __init__(self, files: Files) -> None:
        if not files.names("offsets"):
            raise CheckpointError(
                f"{files} is no checkpoint of a query: it has no folder `offsets` with a file in it. Give the folder "
                "that is the query's checkpointLocation."
            )
        self._files = files

    def _batches(self, log: str) -> list[int]:
        return sorted(int(name) for name in self._files.names(log) if name.isascii() and name.isdigit())

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
            return BatchEnd.parse(batch, self._files.read(f"offsets/{batch}").decode())
        except FileNotFoundError:
            raise CheckpointError(
                f"{self._files} has no file offsets/{batch}: the checkpoint is damaged, or Spark has just removed it."
            ) from None
        except UnicodeDecodeError:
            raise CheckpointError(f"{self._files}/offsets/{batch} is no text: the checkpoint is damaged.") from None

    def put(self, before: BatchEnd, after: BatchEnd) -> str:
        """Put `after` in place of `before`, in one step, and return the name of the copy of `before` that is kept.

        Raises:
            CheckpointError: the log has gone on meanwhile: the query runs.
        """
        kept = self._free_name(f"offsets-{before.batch}")
        self._files.write(kept, before.text.encode())
        if self.unfinished is not None or self.last_done != before.batch or self.read(before.batch) != before:
            raise CheckpointError("The checkpoint has changed just now: stop the query that writes it, and try again.")
        self._files.write(f"offsets/{before.batch}", after.text.encode())
        return kept

    def _free_name(self, name: str) -> str:
        """The name of a file that is not there yet: a batch may be exported again, after a way back and forth."""
        taken, number = set(self._files.names(_BACKUP)), 1
        while (free := name if number == 1 else f"{name}-{number}") in taken:
            number += 1
        return f"{_BACKUP}/{free}"
