"""What the bench makes of its measurements; its figures are compared with ones that are easy to see."""

import os
import subprocess
import sys

from bench.cpu import Cpu, cpu_seconds
from bench.results import Drained, Followed, median_cpu, median_of, summed
from bench.tables import latency, machine, throughput, where_time_goes
from bench.workload import QUICK_SHAPES, SHAPES, Shape
from harness.waiting import wait_for
from rich.console import Console

SHAPE = Shape("small", 1_000_000, 100)
CPU = Cpu(broker=1.0, jvm=2.0, python=3.0)


def drained(seconds: float) -> Drained:
    phases = {"triggerExecution": seconds * 1000, "addBatch": seconds * 900}
    return Drained(records=SHAPE.records, seconds=seconds + 2, cpu=CPU, phases_ms=phases)


def printed(table: object) -> list[str]:
    """The rows of a table: those with figures."""
    console = Console(width=200)
    with console.capture() as capture:
        console.print(table)
    return [" ".join(line.split()) for line in capture.get().splitlines() if any(c.isdigit() for c in line)]


def test_throughput_is_the_median_of_the_batches_and_the_ratio_says_how_much_faster_we_are() -> None:
    measured = {
        SHAPE: {"kafka": [drained(4), drained(5), drained(9)], "kgroup": [drained(2), drained(8), drained(2.5)]}
    }
    title, row = printed(throughput(measured))
    assert "median of 3" in title
    assert row == "1,000,000 x 100 B 5.00 2.50 200,000 400,000 2.00 7.00 4.50"


def test_latency_shows_p50_and_p99_and_how_much_sooner_we_are() -> None:
    slow = Followed(latencies_ms=range(0, 202, 2), cpu=CPU, phases_ms={})
    fast = Followed(latencies_ms=range(101), cpu=CPU, phases_ms={})
    assert (fast.p50_ms, fast.p99_ms) == (50, 99)
    _, p50, p99 = printed(latency({"kafka": [slow], "kgroup": [fast]}, 1_000, "200 milliseconds"))
    assert p50 == "p50 100 50 2.00"
    assert p99 == "p99 198 99 2.00"


def test_where_time_goes_shows_phases_and_cpu_of_each_source() -> None:
    rows = printed(where_time_goes({"small": {"kafka": [drained(4)], "kgroup": [drained(2)]}}))
    assert rows == [
        "small kafka 4,000 0 0 0 3,600 0 1.0 2.0 3.0",
        "small kgroup 2,000 0 0 0 1,800 0 1.0 2.0 3.0",
    ]


def test_phases_are_summed_over_batches_and_their_medians_taken_over_repetitions() -> None:
    assert summed([{"a": 1, "b": 2}, {"a": 3}]) == {"a": 4, "b": 2}
    assert median_of([{"a": 1}, {"a": 3, "b": 5}, {"a": 8, "b": 7}]) == {"a": 3, "b": 5}
    assert median_cpu([Cpu(1, 9, 3), Cpu(2, 8, 3), Cpu(4, 1, 3)]) == Cpu(2, 8, 3)
    assert Cpu(3, 4, 5).since(Cpu(1, 1, 1)) == Cpu(2, 3, 4)


def test_the_shapes_are_those_that_were_asked_for() -> None:
    assert [str(shape) for shape in SHAPES] == ["4,000,000 x 100 B", "1,000,000 x 1 KB", "4,000,000 x 100 B lz4"]
    assert [shape.records for shape in QUICK_SHAPES] == [40_000, 10_000, 40_000]


def test_the_machine_s_facts() -> None:
    assert f"{os.cpu_count()} cores" in machine()
    assert "librdkafka" in machine()


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
