"""The buffer of a seat's server: record batches fetched ahead of the next batch, in the order in which they came.

Runs on: executor. Pure (Arrow only).

Each partition has a *span*: all records of its log from offset `first` up to `next` have come, and those that no read
has taken are here. A read is served from the span first, and then with the records that follow it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

import pyarrow as pa

from pyspark_kgroup.shared.arrow import last_rows
from spark_kgroup.model import TopicPartition

_SMALL_ROWS: Final = 1_024
_SMALL_BYTES: Final = 256 * 1024
"""Successive pieces below both are joined: each piece takes 5 KB besides its rows (measured), and time in every
read."""

_EVERYTHING: Final = 2**63 - 1
"""Above any offset."""


@dataclass(slots=True)
class _BufferedSpan:
    first: int
    next: int


class _PartitionRows(NamedTuple):
    """Successive rows of one partition: `first_row` <= row < `end_row`."""

    partition: TopicPartition
    first_row: int
    end_row: int
    first_offset: int
    last_offset: int


class _Piece(NamedTuple):
    batch: pa.RecordBatch
    runs: tuple[_PartitionRows, ...]
    bytes: int


class PrefetchBuffer:
    """The buffer of one seat.

    Attributes:
        bytes: of all record batches here.
    """

    def __init__(self) -> None:
        self.bytes = 0
        self._spans: dict[TopicPartition, _BufferedSpan] = {}
        self._pieces: deque[_Piece] = deque()

    @property
    def partitions(self) -> Collection[TopicPartition]:
        """The partitions that have a span."""
        return self._spans.keys()

    def next_offset(self, partition: TopicPartition) -> int:
        """One past the last offset that has come."""
        return self._spans[partition].next

    def begin(self, partition: TopicPartition, offset: int) -> None:
        """Start a new span at `offset`. Earlier records of the partition are forgotten."""
        self.drop(partition)
        self._spans[partition] = _BufferedSpan(offset, offset)

    def drop(self, partition: TopicPartition) -> None:
        """Forget the partition."""
        if self._spans.pop(partition, None) is not None:
            self._remove({partition: _EVERYTHING})

    def skip(self, partition: TopicPartition, offset: int) -> bool:
        """Forget the records below `offset`.

        Returns:
            Whether a read that starts there can be served. If not, the span stays as it was.
        """
        span = self._spans.get(partition)
        if span is None or not span.first <= offset <= span.next:
            return False
        if offset > span.first:
            self._remove({partition: offset})
            span.first = offset
        return True

    def add(self, batch: pa.RecordBatch, partition: TopicPartition) -> None:
        """Append a batch that has come. It is dropped if the partition has no span.

        Args:
            batch: with at least one row.
            partition: of all rows.

        Raises:
            ValueError: an offset came twice.
        """
        span = self._spans.get(partition)
        if span is None:
            return
        piece = _one_partition_piece(partition, batch)
        (run,) = piece.runs
        if run.first_offset < span.next:
            raise ValueError(f"offset {run.first_offset} of {partition} came after {span.next - 1}")
        span.next = run.last_offset + 1
        if self._pieces and _is_small(self._pieces[-1]) and _is_small(piece):
            last = self._pieces.pop()
            self.bytes -= last.bytes
            piece = _piece(_concatenate([last.batch, piece.batch]))
        self._append(piece)

    def advance(self, partition: TopicPartition, offset: int) -> None:
        """Move the end of the span to `offset`: no more records come below it (transaction markers, compaction)."""
        span = self._spans.get(partition)
        if span is not None:
            span.next = max(span.next, offset)

    def take(self, ends: Mapping[TopicPartition, int]) -> list[pa.RecordBatch]:
        """Remove and return all rows of these partitions below these offsets.

        Args:
            ends: partition -> one past the last offset wanted. Each partition has a span.
        """
        for partition, end in ends.items():
            span = self._spans[partition]
            # No further than rows have come: those between there and `end` are taken by a later call.
            span.first = max(span.first, min(end, span.next))
        return self._remove(ends)

    def _remove(self, below: Mapping[TopicPartition, int]) -> list[pa.RecordBatch]:
        pieces, self._pieces, self.bytes = self._pieces, deque(), 0
        removed = []
        for piece in pieces:
            taken, left = _divide(piece, below)
            if taken.runs:
                removed.append(taken.batch)
            self._append(left)
        return removed

    def _append(self, piece: _Piece) -> None:
        if piece.runs:
            self._pieces.append(piece)
            self.bytes += piece.bytes


def _is_small(piece: _Piece) -> bool:
    return bool(piece.batch.num_rows < _SMALL_ROWS and piece.bytes < _SMALL_BYTES)


def _piece(batch: pa.RecordBatch) -> _Piece:
    return _Piece(batch, tuple(_runs(batch)), batch.nbytes)


def _one_partition_piece(partition: TopicPartition, batch: pa.RecordBatch) -> _Piece:
    # As `_piece`, without its search for runs of rows: the caller knows that there is one run.
    offsets, rows = batch["offset"], batch.num_rows
    return _Piece(
        batch, (_PartitionRows(partition, 0, rows, offsets[0].as_py(), offsets[rows - 1].as_py()),), batch.nbytes
    )


def _runs(batch: pa.RecordBatch) -> Iterator[_PartitionRows]:
    topics, partitions, offsets = batch["topic"], batch["partition"], batch["offset"]
    first_row = 0
    for last_row in last_rows(batch):
        partition = TopicPartition(topics[last_row].as_py(), partitions[last_row].as_py())
        yield _PartitionRows(partition, first_row, last_row + 1, offsets[first_row].as_py(), offsets[last_row].as_py())
        first_row = last_row + 1


def _divide(piece: _Piece, below: Mapping[TopicPartition, int]) -> tuple[_Piece, _Piece]:
    """The rows below these offsets, and the rest. Neither piece keeps the memory of the other."""
    nothing = _Piece(piece.batch.slice(0, 0), (), 0)
    cuts = [_first_row_at(piece.batch, run, below.get(run.partition, 0)) for run in piece.runs]
    if all(cut == run.first_row for run, cut in zip(piece.runs, cuts, strict=True)):
        return nothing, piece
    if all(cut == run.end_row for run, cut in zip(piece.runs, cuts, strict=True)):
        return piece, nothing
    taken = [piece.batch.slice(run.first_row, cut - run.first_row) for run, cut in zip(piece.runs, cuts, strict=True)]
    left = [piece.batch.slice(cut, run.end_row - cut) for run, cut in zip(piece.runs, cuts, strict=True)]
    return _piece(_concatenate(taken)), _piece(_concatenate(left))


def _first_row_at(batch: pa.RecordBatch, run: _PartitionRows, offset: int) -> int:
    """The first row of `run` at or past `offset`, or the row behind it."""
    if offset <= run.first_offset:
        return run.first_row
    if offset > run.last_offset:
        return run.end_row
    # Value by value: a list of the column would make a Python object for each row.
    offsets = batch["offset"].slice(run.first_row, run.end_row - run.first_row)
    return run.first_row + bisect_left(offsets, offset, key=lambda one: one.as_py())


def _concatenate(slices: list[pa.RecordBatch]) -> pa.RecordBatch:
    """The slices joined, as a copy: a slice would keep the memory of the whole batch that it was cut from."""
    columns = [pa.concat_arrays([part.column(index) for part in slices]) for index in range(slices[0].num_columns)]
    return pa.RecordBatch.from_arrays(columns, schema=slices[0].schema)
