"""Ranges of offsets cut into pieces, one for each task, so that more tasks can read than there are seats or partitions.

Runs on: driver. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from heapq import heapify, heapreplace
from itertools import pairwise
from typing import NamedTuple, TypeVar

from pyspark_kgroup.limits import TASKS_MAX
from spark_kgroup.errors import OptionError
from spark_kgroup.model import TopicPartition

K = TypeVar("K", bound=str | TopicPartition)


class OffsetInterval(NamedTuple):
    """Offsets: `start_offset` <= offset < `end_offset`."""

    start_offset: int
    end_offset: int

    @property
    def offsets(self) -> int:
        """How many there are."""
        return max(0, self.end_offset - self.start_offset)


Piece = tuple[tuple[TopicPartition, OffsetInterval], ...]
"""The spans that one task reads, none of them empty."""


def pieces(
    spans: Mapping[TopicPartition, OffsetInterval], at_least: int | None, offsets_max: int | None
) -> list[Piece]:
    """Pieces of one partition each, in the order of partitions and offsets. None is empty.

    Args:
        spans: the offsets to read of each partition.
        at_least: how many pieces there are to be, as far as there are offsets. The largest are divided further. None
            if one for each partition is enough.
        offsets_max: most offsets of a piece, or None for any number.

    Raises:
        OptionError: that would be more than `TASKS_MAX` pieces.
    """
    counts = _counts({tp: span.offsets for tp, span in sorted(spans.items())}, at_least, offsets_max)
    return [piece for tp, count in counts.items() for piece in divide([(tp, spans[tp])], count)]


def pieces_of_seats(
    reads: Mapping[str, Mapping[TopicPartition, tuple[int, int]]], at_least: int | None, offsets_max: int | None
) -> dict[str, list[Piece]]:
    """The pieces of each seat, one or more, in the order of its partitions and offsets, otherwise as `pieces`.

    Args:
        reads: seat -> partition -> the offsets that the seat is to read of it.
        at_least: how many pieces there are to be, of all seats together.
        offsets_max: most offsets of a piece.
    """
    spans = {
        seat: [(tp, OffsetInterval(*ranges[tp])) for tp in sorted(ranges)] for seat, ranges in sorted(reads.items())
    }
    sizes = {seat: sum(span.offsets for _, span in each) for seat, each in spans.items()}
    return {seat: divide(spans[seat], count) for seat, count in _counts(sizes, at_least, offsets_max).items()}


def _counts(sizes: Mapping[K, int], at_least: int | None, offsets_max: int | None) -> dict[K, int]:
    """Into how many pieces each seat or partition that has offsets is divided."""
    left = {key: offsets for key, offsets in sizes.items() if offsets}
    counts = {key: -(-offsets // offsets_max) if offsets_max else 1 for key, offsets in left.items()}
    if offsets_max and sum(counts.values()) > max(TASKS_MAX, len(left)):
        total, tasks = sum(left.values()), sum(counts.values())
        raise OptionError(
            f"Option maxRecordsPerPartition is {offsets_max}: {total} offsets would be {tasks} tasks, and {TASKS_MAX} "
            f"is the most. Set it to {-(-total // max(1, TASKS_MAX - len(left)))} or more."
        )
    missing = (at_least or 0) - sum(counts.values())
    largest = [(-(left[key] / counts[key]), key) for key in left]
    heapify(largest)
    while missing > 0 and largest and -largest[0][0] > 1:
        key = largest[0][1]
        counts[key] += 1
        missing -= 1
        heapreplace(largest, (-(left[key] / counts[key]), key))
    return counts


def divide(spans: Sequence[tuple[TopicPartition, OffsetInterval]], count: int) -> list[Piece]:
    """`spans`, one after the other, in `count` pieces whose sizes differ by one offset at most.

    Args:
        spans: with `count` offsets at least.
        count: 1 or more.
    """
    total = sum(span.offsets for _, span in spans)
    cuts = [total * number // count for number in range(count + 1)]
    left = [(tp, span) for tp, span in reversed(spans) if span.offsets]  # the next one last
    return [_taken(left, end - first) for first, end in pairwise(cuts)]


def _taken(left: list[tuple[TopicPartition, OffsetInterval]], offsets: int) -> Piece:
    """The next `offsets`, which are taken from `left`: no span is looked at for more pieces than it has."""
    found = []
    while offsets:
        tp, span = left.pop()
        cut = min(span.end_offset, span.start_offset + offsets)
        found.append((tp, OffsetInterval(span.start_offset, cut)))
        if cut < span.end_offset:
            left.append((tp, OffsetInterval(cut, span.end_offset)))
        offsets -= cut - span.start_offset
    return tuple(found)
