"""The log of one partition: its batches, and where its leaders' epochs begin. Pure.

Source: Kafka's UnifiedLog and LeaderEpochFileCache. The log has one replica, so its high watermark and its last stable
offset are its end.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import Final, NamedTuple

from spark_kgroup.broker import record_times
from spark_kgroup.broker.batches import Batch
from spark_kgroup.broker.producers import Place, Producers
from spark_kgroup.broker.refusal import Refused
from spark_kgroup.model import ErrorCode

UNDEFINED: Final = -1
"""An epoch or an offset that there is not (OffsetsForLeaderEpochResponse.UNDEFINED_EPOCH, UNDEFINED_EPOCH_OFFSET)."""

NO_TIMESTAMP: Final = -1


class EpochEnd(NamedTuple):
    """The newest epoch that is no newer than one that was asked for, and the offset at which it ends."""

    epoch: int
    end_offset: int


class Found(NamedTuple):
    """A record, by its offset, with its timestamp and the epoch of the leader that appended it."""

    offset: int
    timestamp_ms: int
    leader_epoch: int


class Log:
    """The log of one partition.

    Attributes:
        start_offset: of the first record that is there, or of the next one.
        end_offset: of the next record.
        bytes: the size of all batches.
    """

    def __init__(self) -> None:
        self.start_offset = 0
        self.end_offset = 0
        self.bytes = 0
        self._batches: list[Batch] = []
        self._last_offsets: list[int] = []
        """Of each batch, to search in."""
        self._epochs: list[tuple[int, int]] = []
        """(epoch, offset of its first record), in order."""
        self._producers = Producers()

    @property
    def batches(self) -> tuple[Batch, ...]:
        """All batches, to look at."""
        return tuple(self._batches)

    # --------------------------------------------------------------------------------------------------- writing

    def append(self, batch: Batch, leader_epoch: int, append_time_ms: int | None) -> Place:
        """Append a produced batch, unless it is there already.

        Args:
            batch: see `batches.produced`.
            leader_epoch: the leader's that appends it.
            append_time_ms: the timestamp of its records, or None if they keep their own.

        Raises:
            Refused: an idempotent producer sent it out of order.
        """
        if (duplicate := self._producers.duplicate_of(batch)) is not None:
            return duplicate
        self._producers.check(batch)
        placed = batch.placed(self.end_offset, leader_epoch, append_time_ms)
        self._batches.append(placed)
        self._last_offsets.append(placed.last_offset)
        self.bytes += len(placed.raw)
        self.end_offset = placed.last_offset + 1
        self._producers.appended(placed)
        return Place(placed.base_offset, NO_TIMESTAMP if append_time_ms is None else append_time_ms)

    def begin_epoch(self, epoch: int) -> None:
        """A leader of this epoch begins here. An epoch without records is forgotten (LeaderEpochFileCache.assign)."""
        while self._epochs and self._epochs[-1][1] >= self.end_offset:
            self._epochs.pop()
        self._epochs.append((epoch, self.end_offset))

    def delete_before(self, offset: int) -> None:
        """Begin at `offset`: whole batches before it go (UnifiedLog.maybeIncrementLogStartOffset).

        Raises:
            Refused: the log ends before it.
        """
        if offset > self.end_offset:
            raise self._out_of_range(offset)
        if offset <= self.start_offset:
            return
        self.start_offset = offset
        self._drop(0, bisect_left(self._last_offsets, offset))
        later = [(epoch, first) for epoch, first in self._epochs if first > offset]
        earlier = [epoch for epoch, first in self._epochs if first <= offset]
        self._epochs = [(earlier[-1], offset), *later] if earlier else later

    def truncate(self, offset: int) -> None:
        """End at `offset`, or at the start of the batch that holds it: a leader came that has no more.

        The sequence numbers of producers are forgotten, as after a restart from an older snapshot.

        Raises:
            Refused: the log begins after it, or ends before it.
        """
        if not self.start_offset <= offset <= self.end_offset:
            raise self._out_of_range(offset)
        first = bisect_left(self._last_offsets, offset)
        if first < len(self._batches):
            offset = max(self.start_offset, min(offset, self._batches[first].base_offset))
        self._drop(first, len(self._batches))
        self.end_offset = offset
        self._epochs = [(epoch, start) for epoch, start in self._epochs if start < offset]
        self._producers = Producers()

    def _drop(self, first: int, end: int) -> None:
        self.bytes -= sum(len(batch.raw) for batch in self._batches[first:end])
        del self._batches[first:end], self._last_offsets[first:end]

    # --------------------------------------------------------------------------------------------------- reading

    def read(self, offset: int, bytes_max: int, *, at_least_one: bool) -> bytes:
        """Whole batches from the one that holds `offset` on.

        Args:
            offset: of the first record that is wanted. The first batch may begin before it.
            bytes_max: the size of all batches, which is kept.
            at_least_one: whether one batch that is larger than that is given, too (KIP-74).

        Raises:
            Refused: the log begins after `offset`, or ends before it.
        """
        if not self.start_offset <= offset <= self.end_offset:
            raise self._out_of_range(offset)
        first = bisect_left(self._last_offsets, offset)
        found: list[bytes] = []
        left = bytes_max
        for place in range(first, len(self._batches)):
            raw = self._batches[place].raw
            if len(raw) > left and not (at_least_one and not found):
                break
            found.append(raw)
            left -= len(raw)
        return b"".join(found)

    def find_timestamp(self, timestamp_ms: int) -> Found | None:
        """The first record with this timestamp or a later one, None if there is none.

        Raises:
            Refused: the records of a batch cannot be read.
        """
        for batch in self._batches:
            for one in record_times.at_or_after(batch, timestamp_ms):
                if one.offset >= self.start_offset:
                    return Found(one.offset, one.timestamp_ms, batch.leader_epoch)
        return None

    def find_largest_timestamp(self) -> Found | None:
        """The first record with the largest timestamp (KIP-734), None in a log without records.

        Raises:
            Refused: the records of its batch cannot be read.
        """
        largest = max((batch.max_timestamp_ms for batch in self._batches), default=NO_TIMESTAMP)
        return None if largest == NO_TIMESTAMP else self.find_timestamp(largest)

    def end_of_epoch(self, epoch: int) -> EpochEnd:
        """Where `epoch` ends (LeaderEpochFileCache.endOffsetFor). Both are UNDEFINED for a newer epoch than any."""
        if epoch == UNDEFINED or not self._epochs or epoch > self._epochs[-1][0]:
            return EpochEnd(UNDEFINED, UNDEFINED)
        if epoch == self._epochs[-1][0]:
            return EpochEnd(epoch, self.end_offset)
        higher = bisect_right(self._epochs, epoch, key=lambda entry: entry[0])
        floor = self._epochs[higher - 1][0] if higher else epoch
        return EpochEnd(floor, self._epochs[higher][1])

    def _out_of_range(self, offset: int) -> Refused:
        text = f"offset {offset} is not between {self.start_offset} and {self.end_offset}"
        return Refused(ErrorCode.OFFSET_OUT_OF_RANGE, text)

    def earliest_epoch(self) -> int:
        """The epoch of the record at the start, UNDEFINED if it is not known."""
        known = self._epochs and self._epochs[0][1] <= self.start_offset
        return self._epochs[0][0] if known else UNDEFINED
