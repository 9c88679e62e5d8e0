"""What a batch read reads: ranges of offsets, without what its filters exclude, cut into one piece for each task.

Runs on: driver. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from heapq import heapify, heapreplace
from itertools import pairwise
from typing import NamedTuple

from spark_kgroup.model import TopicPartition


class Span(NamedTuple):
    """Offsets: `start_offset` <= offset < `end_offset`."""

    start_offset: int
    end_offset: int

    @property
    def offsets(self) -> int:
        """How many there are."""
        return max(0, self.end_offset - self.start_offset)


def pieces(
    spans: Mapping[TopicPartition, Span], at_least: int | None, offsets_max: int | None
) -> list[tuple[TopicPartition, Span]]:
    """One piece for each task, in the order of partitions and offsets; none is empty.

    Args:
        spans: what to read of each partition.
        at_least: how many pieces there are to be, as far as there are offsets; the largest are divided further. None
            if one for each partition is enough.
        offsets_max: most offsets of a piece; None for any number.
    """
    left = {tp: span.offsets for tp, span in sorted(spans.items()) if span.offsets}
    count = {tp: -(-offsets // offsets_max) if offsets_max else 1 for tp, offsets in left.items()}
    missing = (at_least or 0) - sum(count.values())
    largest = [(-(left[tp] / count[tp]), tp) for tp in left]
    heapify(largest)
    while missing > 0 and largest and -largest[0][0] > 1:
        tp = largest[0][1]
        count[tp] += 1
        missing -= 1
        heapreplace(largest, (-(left[tp] / count[tp]), tp))
    return [(tp, piece) for tp in left for piece in _parts_of(spans[tp], count[tp])]


def _parts_of(span: Span, count: int) -> Iterable[Span]:
    """`span` in `count` pieces whose sizes differ by one offset at most."""
    edges = [span.start_offset + span.offsets * number // count for number in range(count + 1)]
    return [Span(first, last) for first, last in pairwise(edges)]
