"""The measurements, and figures from them: medians, percentiles, ratios."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median, quantiles

from bench.cpu import Cpu

BUILT_IN, BUILT_IN_TUNED, OURS, OURS_TUNED, LIBRDKAFKA, CEILING = SOURCES = (
    "kafka",
    "kafka-tuned",
    "native",
    "native-tuned",
    "librdkafka",
    "ceiling",
)
"""Spark's own source, ours with either `reader`, and ready batches, which no source in Python can beat. The tuned ones
have three settings of Spark that a job may gain from (`bench.driver.TUNING`)."""

TITLES = {
    BUILT_IN: "built-in",
    BUILT_IN_TUNED: "built-in, tuned",
    OURS: "kgroup",
    OURS_TUNED: "kgroup, tuned",
    LIBRDKAFKA: "kgroup, reader=librdkafka",
    CEILING: "ceiling",
}

UNSTEADY = 2
"""Batches at a query's start that do not count as micro-batches: no record was fetched ahead for them."""


@dataclass(frozen=True, slots=True)
class Drained:
    """One topic read from its beginning to its end.

    Attributes:
        seconds: from the query's start to its end.
        batches_ms: Spark's durationMs of each batch.
        worker_kib: the peak of the largest of Spark's Python workers.
        server_kib: the same of the processes that fetch ahead, or 0 if none did.
    """

    records: int
    seconds: float
    cpu: Cpu
    batches_ms: Sequence[Mapping[str, float]]
    worker_kib: int = 0
    server_kib: int = 0

    @property
    def phases_ms(self) -> Mapping[str, float]:
        """Summed over the batches."""
        return summed(self.batches_ms)

    @property
    def batches_s(self) -> float:
        """In Spark's batches: without the time before the first, such as the start of a stream reader's process."""
        return self.phases_ms["triggerExecution"] / 1000

    def steady_ms(self, phase: str) -> float:
        """The median of a phase over the batches after the first ones."""
        steady = self.batches_ms[UNSTEADY:] or self.batches_ms
        return median(batch.get(phase, 0.0) for batch in steady)

    @property
    def cpu_s_a_million(self) -> Cpu:
        """CPU seconds for a million records."""
        return Cpu(*(part * 1e6 / self.records for part in self.cpu))


@dataclass(frozen=True, slots=True)
class Followed:
    """Records that were produced while they were read.

    Attributes:
        latencies_ms: from produce to sink, of every record that counts.
        idle: CPU of as much time before, when there was no record to read.
        phases_ms: Spark's durationMs, the mean of the batches that had records.
    """

    latencies_ms: Sequence[float]
    cpu: Cpu
    idle: Cpu
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
    """Each phase's median over repetitions. One that is missing counts as 0."""
    names = {name for mapping in mappings for name in mapping}
    return {name: median(mapping.get(name, 0.0) for mapping in mappings) for name in sorted(names)}


def median_cpu(measured: Sequence[Cpu]) -> Cpu:
    """The median of each of its parts."""
    return Cpu(*(median(part) for part in zip(*measured, strict=True)))
