"""The results as Markdown, and the machine and versions they were measured on."""

import os
import platform
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import TypeVar

import confluent_kafka

import pyspark_kgroup
from bench.cpu import Cpu
from bench.results import BUILT_IN, BUILT_IN_TUNED, CEILING, SOURCES, TITLES, Drained, Followed, median_cpu, median_of
from bench.workload import Shape
from spark_kgroup.testing.java import find_java
from spark_kgroup.testing.kafka_release import kafka_version

R = TypeVar("R", Drained, Followed)

BySource = Mapping[str, Sequence[R]]
"""Source -> the measurement of each repetition."""

PHASES = ("latestOffset", "queryPlanning", "walCommit", "addBatch", "commitOffsets")
"""Parts of triggerExecution, in their order. addBatch is the reading. The phases left out take a few ms."""


def machine(built_in: str) -> str:
    """The machine and the versions, on which the figures depend, in one line.

    Args:
        built_in: the version of Spark's built-in source.
    """
    python = os.environ.get("PYSPARK_PYTHON") or pyspark_kgroup.python()
    memory_gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return (
        f"{os.cpu_count()} cores ({_processor()}), {memory_gib:.0f} GiB, {platform.system()} {platform.release()}, "
        f"load average {os.getloadavg()[0]:.1f} at the start; Spark {version('pyspark')}, built-in source {built_in}, "
        f"Kafka broker {kafka_version()}, librdkafka {confluent_kafka.libversion()[0]}, PyArrow {version('pyarrow')}, "
        f"Python {platform.python_version()} ({Path(python).name}), Java {find_java().version}"
    )


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def throughput(measured: Mapping[Shape, BySource[Drained]]) -> str:
    """Seconds in Spark's batches, and from the query's start to its end, and how much faster."""
    sources = _sources(measured.values())
    rows = []
    for shape, by_source in measured.items():
        row = [str(shape)]
        row += _compared(by_source, sources, lambda one: one.batches_s, "{:.2f}")
        row += _compared(by_source, [each for each in sources if each != CEILING], lambda one: one.seconds, "{:.2f}")
        rows.append(row)
    headings = [f"{_named(source)} s" for source in sources]
    headings += [f"{_named(source)} with start s" for source in sources if source != CEILING]
    return _titled(
        "Throughput: a full topic into noop, with least-most; x: times as fast as the built-in source",
        measured.values(),
        ["shape", *headings],
        rows,
    )


def micro_batches(measured: Mapping[Shape, BySource[Drained]]) -> str:
    """Milliseconds of one micro-batch while they follow each other."""
    sources = _sources(measured.values())
    rows = []
    for shape, by_source in measured.items():
        for title, phase in (("a batch", "triggerExecution"), ("its addBatch", "addBatch")):

            def steady(one: Drained, phase: str = phase) -> float:
                return one.steady_ms(phase)

            rows.append([f"{shape}: {title}", *_compared(by_source, sources, steady, "{:.0f}")])
    headings = [f"{_named(source)} ms" for source in sources]
    return _titled(
        "Micro-batches, one after the other, with least-most; x: times as fast",
        measured.values(),
        ["shape", *headings],
        rows,
    )


def latency(measured: BySource[Followed], records_a_second: int, trigger: str) -> str:
    """Milliseconds from produce to sink."""
    sources = _sources([measured])
    rows = [
        ["p50", *_compared(measured, sources, lambda one: one.p50_ms, "{:.0f}", _share)],
        ["p99", *_compared(measured, sources, lambda one: one.p99_ms, "{:.0f}", _share)],
    ]
    title = f"Latency: produce to foreachBatch at {records_a_second:,} records/s, trigger {trigger}"
    return _titled(
        f"{title}; with least-most; x: share of the built-in's",
        [measured],
        ["", *(f"{_named(source)} ms" for source in sources)],
        rows,
    )


def cpu(drained: Mapping[Shape, BySource[Drained]], followed: BySource[Followed]) -> str:
    """CPU seconds for a million records, start included. For a followed topic, those of the measured time."""
    sources = _sources([*drained.values(), followed])
    rows = [
        [str(shape), *(_parts([one.cpu_s_a_million for one in by_source.get(source, ())]) for source in sources)]
        for shape, by_source in drained.items()
    ]
    if followed:
        rows.append(
            ["latency (in all)", *(_parts([one.cpu for one in followed.get(source, ())]) for source in sources)]
        )
        rows.append(
            ["idle, as long (in all)", *(_parts([one.idle for one in followed.get(source, ())]) for source in sources)]
        )
    title = "CPU seconds for a million records: broker + JVM + Python = all"
    return _titled(title, [*drained.values(), followed], ["", *map(_named, sources)], rows)


def memory(measured: Mapping[Shape, BySource[Drained]]) -> str:
    """The most that was resident in any repetition, in MiB."""
    sources = [source for source in _sources(measured.values()) if source not in (BUILT_IN, BUILT_IN_TUNED)]
    rows = [
        [
            str(shape),
            *(
                _mib(max((getattr(one, name) for one in by_source.get(source, ())), default=0))
                for source in sources
                for name in ("worker_kib", "server_kib")
            ),
        ]
        for shape, by_source in measured.items()
    ]
    headings = [f"{_named(source)}: {what}" for source in sources for what in ("a worker", "a seat's server")]
    return _table("Memory: the most that was resident, MiB", ["", *headings], rows)


def where_time_goes(measured: Mapping[str, BySource[Drained] | BySource[Followed]]) -> str:
    """Spark's phases in ms.

    Args:
        measured: title -> source -> repetitions.
    """
    rows = []
    for what, by_source in measured.items():
        for source, repetitions in by_source.items():
            phases = median_of([each.phases_ms for each in repetitions])
            figures = [f"{phases.get(phase, 0.0):,.0f}" for phase in ("triggerExecution", *PHASES)]
            rows.append([what, _named(source), *figures])
    return _table(
        "Where the time goes: Spark's phases in ms (latency: of one batch)", ["", "", "batches", *PHASES], rows
    )


# ------------------------------------------------------------------------------------------------------------- Markdown


def _sources(measured: Iterable[Mapping[str, object]]) -> list[str]:
    """The sources that were measured, in their usual order."""
    found = {source for by_source in measured for source in by_source}
    return [source for source in SOURCES if source in found]


def _named(source: str) -> str:
    return TITLES[source]


def _times_as_fast(own: float, built_in: float) -> float:
    return built_in / own


def _share(own: float, built_in: float) -> float:
    return own / built_in


def _compared(
    by_source: BySource[R],
    sources: Sequence[str],
    figure: Callable[[R], float],
    form: str,
    compare: Callable[[float, float], float] = _times_as_fast,
) -> list[str]:
    """Median (least-most), and how it compares with the built-in source's median."""
    found = {source: [figure(one) for one in by_source[source]] for source in sources if source in by_source}
    cells = []
    for source in sources:
        if not (values := found.get(source)):
            cells.append("-")
            continue
        cell = form.format(median(values))
        if len(values) > 1:
            cell += f" ({form.format(min(values))}-{form.format(max(values))})"
        if source != BUILT_IN and BUILT_IN in found:
            cell += f" **{compare(median(values), median(found[BUILT_IN])):.2f}x**"
        cells.append(cell)
    return cells


def _parts(measured: Sequence[Cpu]) -> str:
    if not measured:
        return "-"
    parts = median_cpu(measured)
    return " + ".join(f"{part:.2f}" for part in parts) + f" = {sum(parts):.2f}"


def _mib(kib: int) -> str:
    return f"{kib / 1024:.0f}" if kib else "-"


def _titled(
    title: str,
    measured: Iterable[Mapping[str, Sequence[object]]],
    headings: Sequence[str],
    rows: Sequence[Sequence[str]],
) -> str:
    repetitions = min(len(runs) for by_source in measured for runs in by_source.values())
    return _table(f"{title} (median of {repetitions})", headings, rows)


def _table(title: str, headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [headings, [":--" if heading in ("", "shape") else "--:" for heading in headings], *rows]
    return "\n".join([f"{title}:", "", *(f"| {' | '.join(line)} |" for line in lines)])
