"""The figures of `make bench-seats` from its observations, compared with figures that are easy to see."""

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from bench_seats import observed as observing
from bench_seats.executors import Executor, executors_of, own_executor, parse_command
from bench_seats.placement import Batch, Kill, batch_to_batch_moves, homes_of, is_even, settled_at
from bench_seats.session import Lines
from bench_seats.tables import Killed, Setup, as_json, kills_table, missed, summary, undisturbed_table
from bench_seats.undisturbed import Served, served
from harness.waiting import wait_for
from rich.console import Console

from pyspark_kgroup.offsets.checkpoint import Checkpoint, Owned, Period, Topic
from spark_kgroup.model import TopicPartition

URL = "spark://CoarseGrainedScheduler@127.0.0.1:4711"
WORDS = ("java", "-cp", "x", "--driver-url", URL, "--executor-id", "7", "--hostname", "127.0.1.9", "--cores", "1")


def batch(at_ms: int, placement: str, live: str = "", births_ms: list[int] | None = None) -> Batch:
    """A placement is one letter, an executor, for each partition."""
    executors = dict(enumerate(placement))
    return Batch(at_ms, frozenset(live or set(placement)), executors, births_ms or [at_ms])


def kill(*batches: Batch, generations: tuple[int, int] | None = (3, 3)) -> Kill:
    return Kill(victim="a", killed_ms=1_500, batches=batches, connections=5, generations=generations)


CLEAN = kill(batch(1_000, "aabbcc"), batch(5_000, "bcbbcc"), batch(7_000, "ddbbcc"))
CHURN = kill(batch(1_000, "aabbcc"), batch(3_000, "bccbbc"), batch(9_000, "ddbccb"), generations=(3, 4))


def printed(table: object) -> list[str]:
    console = Console(width=240)
    with console.capture() as capture:
        console.print(table)
    return [" ".join(line.split()) for line in capture.get().splitlines() if any(c.isdigit() for c in line)]


# ---------------------------------------------------------------------------------------------- placement


def test_a_kill_that_moves_only_the_partitions_of_the_victim() -> None:
    assert (CLEAN.partitions, CLEAN.lost, CLEAN.moved, CLEAN.unneeded) == (6, 2, 2, 0)
    assert CLEAN.batch_to_batch == 4  # two to survivors, and the same two to the newcomer
    assert CLEAN.gap_s == 4.0
    assert CLEAN.even


def test_the_home_of_a_seat_is_where_its_partitions_are() -> None:
    owned = {
        TopicPartition("t", number): Owned(
            period=Period(seat=f"s-{number % 3}", generation=1, topic_id="", start=0), position=9
        )
        for number in range(5)
    }
    end = Checkpoint(topics={"t": Topic(topic_id="", first_sight=5)}, owned=owned)
    seats = {"s-0": {"host": "h", "executor": "7"}, "s-1": {"host": "i", "executor": "8"}}
    progress = {"sources": [{"endOffset": end.to_json(), "latestOffset": {"seats": seats}}]}
    assert homes_of(progress) == {0: "h/7", 1: "i/8", 3: "h/7", 4: "i/8"}


def test_a_kill_that_moves_partitions_of_survivors() -> None:
    assert (CHURN.lost, CHURN.moved, CHURN.unneeded) == (2, 4, 2)
    assert CHURN.batch_to_batch == 4 + 6
    assert not kill(batch(1_000, "aabbcc"), batch(2_000, "ddbbbc")).even


def test_a_partition_that_was_not_read_in_a_batch_is_where_it_was() -> None:
    assert batch_to_batch_moves([{0: "a", 1: "b"}, {1: "b"}, {0: "a", 1: "a"}]) == 1
    assert batch_to_batch_moves([{0: "a", 1: "b"}, {1: "b"}, {0: "c", 1: "b"}]) == 1


@pytest.mark.parametrize(
    ("placement", "executors", "even"),
    [("aabbcc", 3, True), ("aabbc", 3, True), ("aaabbc", 3, False), ("aabb", 3, False), ("ab", 3, True)],
)
def test_an_even_spread_differs_by_one_at_most(placement: str, executors: int, even: bool) -> None:
    assert is_even(dict(enumerate(placement)), executors) is even


def test_settled_means_further_batches_after_all_executors_are_there_without_the_victim() -> None:
    batches = [
        batch(1_000, "abc"),
        batch(2_000, "bbc", live="abc"),  # Spark has not noticed yet
        batch(3_000, "bbc", live="bc"),
        batch(4_000, "bbc", live="bcd"),  # planned without the newcomer
        batch(5_000, "dbc"),
        batch(6_000, "dbc"),
    ]
    assert settled_at(batches, 1_500, "a", executors=3, further=2) == 5
    assert settled_at(batches[:-1], 1_500, "a", executors=3, further=2) is None


def test_latencies_are_of_records_born_around_the_kill() -> None:
    one = kill(batch(1_000, "abc", births_ms=[400]), batch(4_000, "dbc", births_ms=[499, 500, 2_499, 2_500]))
    assert one.latencies_ms(before_ms=1_000, after_ms=1_000) == [3_500, 1_501]


def test_a_batch_is_read_from_the_json_of_the_driver() -> None:
    line = {"batch": 3, "at_ms": 9, "live": ["1"], "reads": [["h/1", 0, [1, 2]], ["h/2", 1, [3]]]}
    assert Batch.from_json(line) == Batch(9, frozenset({"1"}), {0: "h/1", 1: "h/2"}, [1, 2, 3], 3)


# ------------------------------------------------------------------------------------------------- tables


def test_the_summary_adds_kills_up() -> None:
    sums = summary([CLEAN, CHURN])
    assert (sums["moved"], sums["partitions"], sums["least_possible"]) == (6, 12, 4)
    assert (sums["unneeded"], sums["survivors"], sums["unneeded_share"]) == (2, 8, 0.25)
    assert (sums["gap_median_s"], sums["gap_max_s"]) == (5.0, 6.0)
    assert (sums["rebalances"], sums["even_again"], sums["connections_a_kill"]) == (1, 2, 5)


def test_the_tables_show_the_measured_values() -> None:
    rows = printed(kills_table({Killed("new ids", "kafka"): [CHURN], Killed("new ids", "kgroup"): [CLEAN]}))
    assert rows[2] == "new ids kafka 1 4 of 6 (67%) 2 2 of 4 (50%) 10 6.0 (6.0) 0.0 5 - 1 of 1"
    assert rows[3] == "new ids kgroup 1 2 of 6 (33%) 2 0 of 4 (0%) 4 4.0 (4.0) 0.0 5 0 1 of 1"
    one = Served(at_home=90, network=8, guest=1, alone=1, rows=2_000, ready=500, batches=50, batch_ms=123.4)
    assert printed(undisturbed_table({Setup(2, True): one})) == [
        "2 cores, mapInPandas 50 100 90 8 1 1 90.0% 98.0% 2,000 25.0% 123"
    ]


def test_only_promises_of_ours_can_be_missed() -> None:
    warm = Served(at_home=98, network=0, guest=2, alone=0, rows=1, ready=1, batches=50, batch_ms=1)
    cold = Served(at_home=97, network=3, guest=0, alone=0, rows=1, ready=1, batches=50, batch_ms=1)
    kept = {Killed("new ids", "kafka"): [CHURN], Killed("new ids", "kgroup"): [CLEAN]}
    assert missed(kept, {Setup(1, False): warm, Setup(1, False, seats=2): cold}) == []
    direct = Served(at_home=80, network=9, guest=11, alone=0, rows=1, ready=1, batches=50, batch_ms=1)
    assert missed({}, {Setup(1, False, seats=2): direct}) == [
        "1 core, 2 seats: 89.0% of reads by the seats' own servers"
    ]
    broken = as_json({Killed("new hosts", "kgroup"): [CHURN]}, {Setup(1, False): cold})["missed"]
    assert broken == [
        "new hosts: 50% of the survivors' partitions moved",
        "new hosts: the group rebalanced 1 times",
        "1 core: 97.0% of reads at home",
    ]


def test_the_json_holds_the_executor_of_each_partition_in_each_batch() -> None:
    written = json.loads(json.dumps(as_json({Killed("new ids", "kgroup"): [CLEAN]}, {})))
    (where,) = written["kills"]
    assert (where["source"], where["moved"]) == ("kgroup", 2)
    assert where["each"][0]["batches"][1] == {
        "at_ms": 5_000,
        "live": ["b", "c"],
        "placement": {str(partition): executor for partition, executor in enumerate("bcbbcc")},
    }


def test_undisturbed_reads_are_the_difference_of_running_totals() -> None:
    def progress(took_ms: int, **reads: int) -> dict[str, object]:
        return {"durationMs": {"triggerExecution": took_ms}, "sources": [{"latestOffset": {"reads": reads}}]}

    first = progress(900, at_home=3, network=1, guest=3, alone=3, rows=100, ready=0)
    last = progress(100, at_home=9, network=3, guest=4, alone=4, rows=300, ready=150)
    counted = served([first, progress(300), last])
    assert counted == Served(at_home=6, network=2, guest=1, alone=1, rows=200, ready=150, batches=2, batch_ms=200)
    assert (counted.home_share, counted.server_share, counted.ready_share) == (0.6, 0.8, 0.75)


# ---------------------------------------------------------------------------------------------- observing


def test_an_executor_is_known_by_its_command_line() -> None:
    assert parse_command("\0".join([*WORDS, ""]).encode()) == Executor("127.0.1.9", "7", URL)
    assert parse_command(b"java\0-cp\0x\0org.apache.spark.deploy.worker.Worker\0") is None


def test_a_worker_finds_its_executor_among_its_ancestors_and_the_driver_finds_them_all() -> None:
    port = random.randrange(10**6, 10**7)  # no real driver's
    words = [each.replace("4711", str(port)) for each in WORDS[3:]]
    child = "from bench_seats.executors import own_executor; print(own_executor(), flush=True)"
    between = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}]); input()"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", between, *words]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"127.0.1.9/7\n"
        found = wait_for(lambda: executors_of(port), "the executor")
        assert {executor.key: pid for executor, pid in found.items()} == {"127.0.1.9/7": process.pid}
        assert executors_of(port + 1) == {}
        process.kill()
    assert executors_of(port) == {}
    with pytest.raises(LookupError):
        own_executor()


def test_a_task_reports_one_row_for_each_partition_that_it_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(observing, "own_executor", lambda: "h/1")
    read = [
        pa.record_batch({"partition": pa.array([0, 1], pa.int32()), "value": [b"5000000", b"7999999"]}),
        pa.record_batch({"partition": pa.array([0], pa.int32()), "value": [b"9000000"]}),
    ]
    (found,) = observing.observed(iter(read))
    assert found.to_pylist() == [
        {"partition": 0, "births_ms": [5, 9], "executor": "h/1"},
        {"partition": 1, "births_ms": [7], "executor": "h/1"},
    ]
    assert list(observing.observed(iter([]))) == []


def test_lines_of_a_growing_file_are_returned_once_and_whole(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    lines = Lines(path)
    assert lines.more() == []
    path.write_text('{"a": 1}\n{"b"')
    assert lines.more() == [{"a": 1}]
    assert lines.more() == []
    path.write_text('{"a": 1}\n{"b": 2}\n')
    assert lines.more() == [{"b": 2}]
