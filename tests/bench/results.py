"""What was measured, and what it comes to: medians, percentiles, ratios."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median, quantiles

from bench.cpu import Cpu

BUILT_IN, OURS = SOURCES = ("kafka", "kgroup")


@dataclass(frozen=True, slots=True)
class Drained:
    """One topic read from its beginning to its end.

    Attributes:
        seconds: from the query's start to its end.
        phases_ms: Spark's durationMs, summed over the batches.
    """

    records: int
    seconds: float
    cpu: Cpu
    phases_ms: Mapping[str, float]

    @property
    def batches_s(self) -> float:
        """In Spark's batches: without what comes before the first, such as starting a stream reader's process."""
        return self.phases_ms["triggerExecution"] / 1000


@dataclass(frozen=True, slots=True)
class Followed:
    """Records that were produced while they were read.

    Attributes:
        latencies_ms: from produce to sink, of every record that counts.
        phases_ms: Spark's durationMs, the mean of the batches that had records.
    """

    latencies_ms: Sequence[float]
    cpu: Cpu
    phases_ms: Mapping[str, float]

    @property
    def p50_ms(self) -> float:
        return median(self.latencies_ms)

    @property
    def p99_ms(self) -> float:
        return quantiles(self.latencies_ms, n=100, method="inclusive")[98]


def summed(phases: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Each phase over all batches."""
    total: defaultdict[str, float] = defaultdict(float)
    for batch in phases:
        for phase, milliseconds in batch.items():
            total[phase] += milliseconds
    return dict(total)


def median_of(mappings: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Each phase's median over repetitions; one that is missing counts as 0."""
    names = {name for mapping in mappings for name in mapping}
    return {name: median(mapping.get(name, 0.0) for mapping in mappings) for name in sorted(names)}


def median_cpu(measured: Sequence[Cpu]) -> Cpu:
    """The median of each of its parts."""
    return Cpu(*(median(part) for part in zip(*measured, strict=True)))
