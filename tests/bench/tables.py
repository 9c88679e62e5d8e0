"""The results as tables, and what they were measured on."""

import os
import platform
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from statistics import median

import confluent_kafka
from rich import box
from rich.console import Group
from rich.table import Table

from bench.results import BUILT_IN, OURS, SOURCES, Drained, Followed, median_cpu, median_of
from bench.workload import Shape
from spark_kgroup.testing.java import find_java
from spark_kgroup.testing.kafka_jars import KAFKA_VERSION

Repetitions = Mapping[str, Sequence[Drained]]
"""Source -> what each repetition measured."""

PHASES = ("latestOffset", "queryPlanning", "walCommit", "addBatch", "commitOffsets")
"""Parts of triggerExecution, in their order; addBatch is the reading. What is left out takes a few ms."""


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


def throughput(measured: Mapping[Shape, Repetitions]) -> Group:
    """Medians of the repetitions: Spark's batches alone, and the query from its start to its end."""
    repetitions = min(len(runs) for by_source in measured.values() for runs in by_source.values())
    title = f"Throughput: AvailableNow into noop (median of {repetitions})"
    table = _table(
        "shape",
        *(f"{source} s" for source in SOURCES),
        *(f"{source} records/s" for source in SOURCES),
        f"{OURS} : {BUILT_IN}",
        *(f"{source} with start s" for source in SOURCES),
    )
    for shape, by_source in measured.items():
        batches = {source: median(each.batches_s for each in by_source[source]) for source in SOURCES}
        table.add_row(
            str(shape),
            *(f"{batches[source]:.2f}" for source in SOURCES),
            *(f"{shape.records / batches[source]:,.0f}" for source in SOURCES),
            f"{batches[BUILT_IN] / batches[OURS]:.2f}",
            *(f"{median(each.seconds for each in by_source[source]):.2f}" for source in SOURCES),
        )
    return Group(title, table)


def latency(measured: Mapping[str, Sequence[Followed]], records_a_second: int, trigger: str) -> Group:
    """Milliseconds from produce to sink, medians of the repetitions, and how much sooner we are."""
    title = (
        f"Latency: produce to foreachBatch at {records_a_second:,} records/s, trigger {trigger} "
        f"(median of {len(measured[OURS])})"
    )
    table = _table(
        "",
        *(f"{source} ms" for source in SOURCES),
        f"{BUILT_IN} : {OURS}",
    )
    for name in ("p50", "p99"):
        found = {source: median(getattr(each, f"{name}_ms") for each in measured[source]) for source in SOURCES}
        table.add_row(name, *(f"{found[source]:.0f}" for source in SOURCES), f"{found[BUILT_IN] / found[OURS]:.2f}")
    return Group(title, table)


def where_time_goes(measured: Mapping[str, Mapping[str, Sequence[Drained] | Sequence[Followed]]]) -> Group:
    """Spark's phases in ms and CPU seconds, medians of the repetitions.

    Args:
        measured: title -> source -> repetitions.
    """
    title = "Where the time goes: Spark's phases in ms (latency: of one batch), and CPU seconds"
    table = _table(
        "",
        "",
        "batches",
        *PHASES,
        "broker s",
        "JVM s",
        "Python s",
    )
    for what, by_source in measured.items():
        for source in SOURCES:
            phases = median_of([each.phases_ms for each in by_source[source]])
            cpu = median_cpu([each.cpu for each in by_source[source]])
            table.add_row(
                what,
                source,
                *(f"{phases.get(phase, 0.0):,.0f}" for phase in ("triggerExecution", *PHASES)),
                *(f"{seconds:.1f}" for seconds in cpu),
            )
    return Group(title, table)


def _table(*headings: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1))
    for heading in headings:
        table.add_column(heading, justify="left" if heading in ("", "shape") else "right", no_wrap=True)
    return table
