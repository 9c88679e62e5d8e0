"""The reader of each partition, and figures from it: moves, spread, gaps, latencies. Pure.

Where a partition is read in pieces, by several executors, the home of its seat counts as its reader.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import quantiles
from typing import Any

from pyspark_kgroup.offsets.checkpoint import Checkpoint

BUILT_IN, OURS = SOURCES = ("kafka", "kgroup")
"""The sources, as `spark.readStream.format` names them."""

Placement = Mapping[int, str]
"""Partition -> key of the executor that read it."""


@dataclass(frozen=True, slots=True)
class Batch:
    """One batch, as its sink saw it.

    Attributes:
        number: Spark's.
        at_ms: when its records were at the sink, in ms since the epoch.
        live: ids of the executors that Spark had by then.
        births_ms: of its records.
    """

    at_ms: int
    live: frozenset[str]
    placement: Placement
    births_ms: Sequence[int]
    number: int = 0

    @classmethod
    def from_json(cls, line: Mapping[str, Any]) -> "Batch":
        return cls(
            at_ms=line["at_ms"],
            live=frozenset(line["live"]),
            placement={partition: executor for executor, partition, _ in line["reads"]},
            births_ms=[born for _, _, births in line["reads"] for born in births],
            number=line["batch"],
        )


def homes_of(progress: Mapping[str, Any]) -> Placement:
    """Partition -> the home of its seat, by the progress of a batch of ours. Those whose seat has none are left out."""
    (source,) = progress["sources"]
    seats = source["latestOffset"]["seats"]
    return {
        tp.partition: f"{seats[owned.period.seat]['host']}/{seats[owned.period.seat]['executor']}"
        for tp, owned in Checkpoint.from_json(source["endOffset"]).owned.items()
        if owned.period.seat in seats
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Kill:
    """One executor lost, from the last batch before it to the batch at which all was settled again.

    Attributes:
        killed_ms: when, in ms since the epoch.
        batches: both of those, and all between.
        connections: opened at the broker meanwhile.
        generations: of the group before and after, or None for a source without a group.
    """

    victim: str
    killed_ms: int
    batches: Sequence[Batch]
    connections: int
    generations: tuple[int, int] | None

    @property
    def before(self) -> Placement:
        return self.batches[0].placement

    @property
    def after(self) -> Placement:
        return self.batches[-1].placement

    @property
    def partitions(self) -> int:
        return len(self.before)

    @property
    def lost(self) -> int:
        """Partitions of the victim: the fewest that can move."""
        return sum(executor == self.victim for executor in self.before.values())

    @property
    def moved(self) -> int:
        """Partitions that another executor reads, settled before and settled after."""
        return sum(self.after[partition] != executor for partition, executor in self.before.items())

    @property
    def unneeded(self) -> int:
        """Moved partitions whose executor survived."""
        return self.moved - self.lost

    @property
    def batch_to_batch(self) -> int:
        """Every change of a partition's executor on the way."""
        return batch_to_batch_moves([batch.placement for batch in self.batches])

    @property
    def gap_s(self) -> float:
        """The longest time between the ends of two successive batches."""
        return max(after.at_ms - before.at_ms for before, after in pairwise(self.batches)) / 1000

    @property
    def even(self) -> bool:
        """Whether no executor has two partitions more than another, settled after."""
        return is_even(self.after, len(self.batches[-1].live))

    def latencies_ms(self, before_ms: int, after_ms: int) -> list[int]:
        """From birth to sink, of records born from `before_ms` before the kill to `after_ms` after it."""
        first, last = self.killed_ms - before_ms, self.killed_ms + after_ms
        return [batch.at_ms - born for batch in self.batches for born in batch.births_ms if first <= born < last]


def batch_to_batch_moves(placements: Sequence[Placement]) -> int:
    """How often a partition was read by another executor than the last time that it was read."""
    moves, where = 0, dict[int, str]()
    for placement in placements:
        moves += sum(where.get(partition, executor) != executor for partition, executor in placement.items())
        where |= placement
    return moves


def is_even(placement: Placement, executors: int) -> bool:
    """Whether partitions are spread over so many executors as evenly as can be."""
    counts = Counter(placement.values())
    fewest = min(counts.values()) if len(counts) == executors else 0
    return max(counts.values()) - fewest <= 1


def settled_at(batches: Sequence[Batch], killed_ms: int, victim_id: str, executors: int, further: int) -> int | None:
    """Index of the batch at which all is settled again: so many `further` ones after all executors are there.

    None while it is not there yet.
    """
    whole = [
        index
        for index, batch in enumerate(batches)
        if batch.at_ms > killed_ms and victim_id not in batch.live and len(batch.live) == executors
    ]
    return whole[0] + further if whole and whole[0] + further < len(batches) else None


def p99(values: Sequence[float]) -> float:
    return quantiles(values, n=100, method="inclusive")[98]
