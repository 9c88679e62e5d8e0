"""The results as tables, and what they were measured on."""

import os
import platform
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from statistics import median

import confluent_kafka
from rich import box
from rich.table import Table

from bench.results import BUILT_IN, OURS, SOURCES, Drained, Followed, median_cpu, median_of
from bench.workload import Shape
from spark_kgroup.testing.java import find_java
from spark_kgroup.testing.kafka_jars import KAFKA_VERSION

Repetitions = Mapping[str, Sequence[Drained]]
"""Source -> what each repetition measured."""

PHASES = ("latestOffset", "getBatch", "queryPlanning", "walCommit", "addBatch", "commitBatch", "commitOffsets")
"""Parts of triggerExecution, in their order; addBatch is the reading."""


def machine() -> str:
    """What the figures depend on, in one line."""
    memory_gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return (
        f"{os.cpu_count()} cores ({_processor()}), {memory_gib:.0f} GiB, {platform.system()} {platform.release()}, "
        f"load {os.getloadavg()[0]:.1f} | Python {platform.python_version()}, Java {find_java().version}, "
        f"Spark {version('pyspark')}, Kafka {KAFKA_VERSION}, librdkafka {confluent_kafka.libversion()[0]}, "
        f"PyArrow {version('pyarrow')}"
    )


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def throughput(measured: Mapping[Shape, Repetitions]) -> Table:
    """Seconds and records a second, medians of the repetitions, and how much faster we are."""
    table = _table(
        f"Throughput: AvailableNow into noop, from start to end of the query ({_repetitions(measured)})",
        "shape",
        *(f"{source} s" for source in SOURCES),
        *(f"{source} records/s" for source in SOURCES),
        f"{OURS} : {BUILT_IN}",
    )
    for shape, by_source in measured.items():
        seconds = {source: median(each.seconds for each in by_source[source]) for source in SOURCES}
        table.add_row(
            str(shape),
            *(f"{seconds[source]:.2f}" for source in SOURCES),
            *(f"{shape.records / seconds[source]:,.0f}" for source in SOURCES),
            f"{seconds[BUILT_IN] / seconds[OURS]:.2f}",
        )
    return table


def latency(measured: Mapping[str, Sequence[Followed]], records_a_second: int, trigger: str) -> Table:
    """Milliseconds from produce to sink, medians of the repetitions, and how much sooner we are."""
    table = _table(
        f"Latency: produce to foreachBatch at {records_a_second:,} records/s, trigger {trigger} "
        f"(median of {len(measured[OURS])})",
        "",
        *(f"{source} ms" for source in SOURCES),
        f"{BUILT_IN} : {OURS}",
    )
    for name in ("p50", "p99"):
        found = {source: median(getattr(each, f"{name}_ms") for each in measured[source]) for source in SOURCES}
        table.add_row(name, *(f"{found[source]:.0f}" for source in SOURCES), f"{found[BUILT_IN] / found[OURS]:.2f}")
    return table


def where_time_goes(measured: Mapping[str, Mapping[str, Sequence[Drained] | Sequence[Followed]]]) -> Table:
    """Spark's phases in ms and CPU seconds, medians of the repetitions.

    Args:
        measured: title -> source -> repetitions.
    """
    table = _table(
        "Where the time goes: Spark's phases (ms; latency: of one batch), and CPU seconds",
        "",
        "",
        "trigger",
        *PHASES,
        "CPU broker",
        "JVM",
        "Python",
    )
    for title, by_source in measured.items():
        for source in SOURCES:
            phases = median_of([each.phases_ms for each in by_source[source]])
            cpu = median_cpu([each.cpu for each in by_source[source]])
            table.add_row(
                title,
                source,
                *(f"{phases.get(phase, 0.0):,.0f}" for phase in ("triggerExecution", *PHASES)),
                *(f"{seconds:.1f}" for seconds in cpu),
            )
    return table


def _repetitions(measured: Mapping[Shape, Repetitions]) -> str:
    return f"median of {min(len(runs) for by_source in measured.values() for runs in by_source.values())}"


def _table(title: str, *headings: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1), title=title, title_justify="left")
    for heading in headings:
        table.add_column(heading, justify="left" if heading in ("", "shape") else "right", no_wrap=True)
    return table
