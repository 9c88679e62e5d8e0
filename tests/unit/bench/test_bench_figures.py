"""The bench's figures from its measurements, compared with figures that are easy to see."""

import os
import platform
import subprocess
import sys

import pytest
from bench.ceiling import ready_batch
from bench.cpu import Cpu, cpu_seconds
from bench.results import Drained, Followed, median_cpu, median_of, summed
from bench.tables import cpu, latency, machine, memory, micro_batches, throughput, where_time_goes
from bench.workload import QUICK_SHAPES, SHAPES, Shape
from harness.waiting import wait_for

from pyspark_kgroup.limits import FETCH_JOINED_BYTES_MAX
from pyspark_kgroup.shared.arrow import arrow_schema

SHAPE = Shape("small", 2_000_000, 100)
MICRO = Shape("micro", 400, 100, batch_records=100)
CPU = Cpu(broker=1.0, jvm=2.0, python=3.0)
IDLE = Cpu(0.5, 0.25, 0.125)


def drained(seconds: float, **more: int) -> Drained:
    phases = {"triggerExecution": seconds * 1000, "addBatch": seconds * 900}
    return Drained(records=SHAPE.records, seconds=seconds + 2, cpu=CPU, batches_ms=[phases], **more)


def in_batches(*milliseconds: int) -> Drained:
    batches = [{"triggerExecution": each, "addBatch": each - 100} for each in milliseconds]
    return Drained(records=MICRO.records, seconds=9, cpu=CPU, batches_ms=batches)


def cells(table: str) -> list[list[str]]:
    """The rows of a Markdown table below its headings, and before them the headings."""
    title, blank, headings, rule, *rows = table.splitlines()
    assert title.endswith(":")
    assert blank == ""
    assert set(rule) <= set("|:- ")
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in (headings, *rows)]


def test_throughput_is_the_median_of_the_batches_and_says_how_much_faster_each_is_than_the_built_in() -> None:
    measured = {
        "kafka": [drained(4), drained(5), drained(9)],
        "native": [drained(2), drained(8), drained(2.5)],
        "ceiling": [drained(1), drained(1), drained(1)],
    }
    table = throughput({SHAPE: measured})
    assert "median of 3" in table
    headings, row = cells(table)
    assert dict(zip(headings, row, strict=True)) == {
        "shape": "2,000,000 x 100 B",
        "built-in s": "5.00 (4.00-9.00)",
        "kgroup s": "2.50 (2.00-8.00) **2.00x**",
        "ceiling s": "1.00 (1.00-1.00) **5.00x**",
        "built-in with start s": "7.00 (6.00-11.00)",
        "kgroup with start s": "4.50 (4.00-10.00) **1.56x**",
    }


def test_a_micro_batch_is_the_median_of_those_after_the_first_two() -> None:
    measured = {"kafka": [in_batches(9_000, 5_000, 400, 600, 500)], "native": [in_batches(9_000, 8_000, 250)]}
    _, batch, reading = cells(micro_batches({MICRO: measured}))
    assert batch == ["400 x 100 B in batches of 100: a batch", "500", "250 **2.00x**"]
    assert reading[1:] == ["400", "150 **2.67x**"]


def test_latency_shows_p50_and_p99_and_their_share_of_the_built_in() -> None:
    slow = Followed(latencies_ms=range(0, 202, 2), cpu=CPU, idle=IDLE, phases_ms={})
    fast = Followed(latencies_ms=range(101), cpu=CPU, idle=IDLE, phases_ms={})
    assert (fast.p50_ms, fast.p99_ms) == (50, 99)
    _, p50, p99 = cells(latency({"kafka": [slow], "native": [fast]}, 1_000, "200 milliseconds"))
    assert p50 == ["p50", "100", "50 **0.50x**"]
    assert p99 == ["p99", "198", "99 **0.50x**"]


def test_cpu_is_shown_by_process_for_a_million_records_and_as_it_is_where_time_was_measured() -> None:
    followed = Followed(latencies_ms=[1.0], cpu=CPU, idle=IDLE, phases_ms={})
    table = cpu({SHAPE: {"kafka": [drained(4)], "ceiling": [drained(1)]}}, {"kafka": [followed]})
    assert cells(table) == [
        ["", "built-in", "ceiling"],
        ["2,000,000 x 100 B", *["0.50 + 1.00 + 1.50 = 3.00"] * 2],
        ["latency (in all)", "1.00 + 2.00 + 3.00 = 6.00", "-"],
        ["idle, as long (in all)", "0.50 + 0.25 + 0.12 = 0.88", "-"],
    ]


def test_memory_is_the_most_of_any_repetition() -> None:
    measured = {"kafka": [drained(1)], "native": [drained(1, worker_kib=1024), drained(1, worker_kib=3 * 1024)]}
    headings, row = cells(memory({SHAPE: measured}))
    assert headings == ["", "kgroup: a worker", "kgroup: a seat's server"]
    assert row == ["2,000,000 x 100 B", "3", "-"]


def test_where_time_goes_shows_the_phases_of_each_source() -> None:
    _, *rows = cells(where_time_goes({"small": {"kafka": [drained(4)], "native": [drained(2)]}}))
    assert rows == [
        ["small", "built-in", "4,000", "0", "0", "0", "3,600", "0"],
        ["small", "kgroup", "2,000", "0", "0", "0", "1,800", "0"],
    ]


def test_the_ceiling_has_the_source_s_columns_in_batches_as_large_as_those_that_are_handed_over() -> None:
    batch = ready_batch(1_000)
    batch.validate(full=True)
    assert batch.schema == arrow_schema(include_headers=False)
    assert FETCH_JOINED_BYTES_MAX * 0.9 < batch.nbytes <= FETCH_JOINED_BYTES_MAX * 1.1


def test_phases_are_summed_over_batches_and_their_medians_taken_over_repetitions() -> None:
    assert summed([{"a": 1, "b": 2}, {"a": 3}]) == {"a": 4, "b": 2}
    assert median_of([{"a": 1}, {"a": 3, "b": 5}, {"a": 8, "b": 7}]) == {"a": 3, "b": 5}
    assert median_cpu([Cpu(1, 9, 3), Cpu(2, 8, 3), Cpu(4, 1, 3)]) == Cpu(2, 8, 3)
    assert Cpu(3, 4, 5).since(Cpu(1, 1, 1)) == Cpu(2, 3, 4)


def test_the_shapes_are_those_that_were_asked_for() -> None:
    assert [str(shape) for shape in SHAPES] == [
        "4,000,000 x 100 B",
        "1,000,000 x 1 KB",
        "4,000,000 x 100 B lz4",
        "4,000,000 x 100 B in batches of 400,000",
    ]
    assert [(shape.records, shape.batch_records) for shape in QUICK_SHAPES] == [
        (40_000, None),
        (10_000, None),
        (40_000, None),
        (40_000, 4_000),
    ]


def test_the_machine_s_facts() -> None:
    line = machine("4.2.0")
    assert f"{os.cpu_count()} cores" in line
    for peer in ("load average", "Spark 4", "built-in source 4.2.0", "Kafka broker", "librdkafka", "PyArrow", "Java"):
        assert peer in line


def test_the_facts_name_the_python_that_spark_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", "/env/bin/kgroup-python")
    assert f"Python {platform.python_version()} (kgroup-python)" in machine("4.2.0")


def test_cpu_time_of_a_process_counts_its_children_that_live_and_that_ended() -> None:
    burn = "import time\nwhile time.process_time() < {}: pass\n"
    program = (
        "import subprocess, sys, time\n"
        f"subprocess.run([sys.executable, '-c', {burn.format(0.3)!r}])\n"
        f"child = subprocess.Popen([sys.executable, '-c', {burn.format(0.2)!r} + 'input()'], stdin=subprocess.PIPE)\n"
        "input()\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE) as process:
        try:
            wait_for(
                lambda: cpu_seconds(os.getpid(), process.pid).python >= 0.45, "the CPU time of both, in whole ticks", 60
            )
            assert cpu_seconds(os.getpid(), process.pid).jvm < 0.25
        finally:
            process.kill()
