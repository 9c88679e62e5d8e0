"""Executors, workers, seat servers and sidecars are killed in the midst of a read: every record comes once.

Three executors are JVMs of their own (`local-cluster`). A worker stops at a named point, so that the test knows which
read is under way.
"""

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from harness.application import Application, rows, stop_environment
from harness.groups import stable_generation
from harness.kafka import contents, produce
from harness.offsets import committed
from harness.stream import options
from harness.waiting import wait_for

from spark_kgroup.testing import ApacheKafka
from spark_kgroup.testing.spark_cluster import SparkCluster

pytestmark = pytest.mark.usefixtures("class_archive")

NewTopic = Callable[[int], str]

EXECUTORS = 3
PARTITIONS = 6
ROUNDS_MAX = 30
"""Until every executor has a seat's server. Measured: 3."""
CONF = Path(__file__).parents[2] / "conf"
CLUSTER = f"local-cluster[{EXECUTORS},1,1024]"

WHOLE: dict[str, int] = {}
PIECES = {"minPartitions": 7}
"""Options with which seats' shares are divided among more tasks."""


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def executor_of(worker: int) -> int:
    """The JVM of a worker: its daemon's parent."""
    return parent_of(parent_of(worker))


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)


def warm(found: Callable[[int], list[int]], worker: int) -> int:
    """The first process that `found` gives for the worker's executor."""
    executor = executor_of(worker)
    return wait_for(lambda: found(executor), f"executor {executor} to have what is to be killed", 30)[0]


class Filling:
    """Fills a topic round by round, and counts the records that it sent."""

    def __init__(self, server: str, topic: str) -> None:
        self._server, self._topic, self.sent = server, topic, 0

    def more(self, records: int = 300) -> None:
        produce(self._server, self._topic, records, partitions=PARTITIONS, first=self.sent)
        self.sent += records


def test_a_process_that_dies_during_a_read_costs_no_record_and_repeats_none(
    apache_kafka: ApacheKafka, new_topic: NewTopic, group: str, tmp_path: Path
) -> None:
    topic, server = new_topic(PARTITIONS), apache_kafka.bootstrap_servers
    filling = Filling(server, topic)
    read = options(server, topic, group, members=EXECUTORS)
    filling.more()
    with Application(tmp_path, read, master=CLUSTER, stop_at="while reading") as application:

        def meanwhile(dies: Callable[[int], int]) -> None:
            """Stop a worker in its read, kill the process that `dies` gives for it, release it, and await all rows."""
            application.arm()
            filling.more()
            worker = application.await_stop_point()
            kill(dies(worker))
            application.release()
            application.await_rows(filling.sent)

        application.await_stop_point()
        application.release()
        application.await_rows(filling.sent)
        generation = stable_generation(apache_kafka, group)
        for _ in range(ROUNDS_MAX):
            filling.more()
            application.await_rows(filling.sent)
            if all(map(application.seat_servers, application.executor_pids)):
                break  # the first reads were direct, and started the sidecars
        meanwhile(lambda worker: worker)
        meanwhile(lambda worker: warm(application.seat_servers, worker))
        meanwhile(lambda worker: warm(application.sidecars, worker))
        meanwhile(executor_of)
        filling.more()
        application.await_rows(filling.sent)
        all_read = dict.fromkeys(range(PARTITIONS), filling.sent // PARTITIONS)
        wait_for(lambda: committed(server, group, topic, PARTITIONS) == all_read, "the group to know", 60)
        assert stable_generation(apache_kafka, group) == generation, "the group rebalanced"
        application.stop()
        wait_for(lambda: not application.sidecars(), "the sidecars to end")
    assert sorted((r.partition, r.offset) for r in rows(tmp_path)) == sorted(contents(server, topic))


@pytest.mark.full
@pytest.mark.parametrize("more", [WHOLE, PIECES], ids=["whole shares", "pieces"])
def test_a_speculative_copy_of_a_slow_task_reads_the_same(
    apache_kafka: ApacheKafka, new_topic: NewTopic, group: str, tmp_path: Path, more: dict[str, int]
) -> None:
    topic, server = new_topic(PARTITIONS), apache_kafka.bootstrap_servers
    filling = Filling(server, topic)
    read = options(server, topic, group, members=EXECUTORS, **more)
    conf = {
        "spark.speculation": "true",
        "spark.speculation.interval": "100ms",
        "spark.speculation.quantile": "0.3",
        "spark.speculation.multiplier": "1.5",
        "spark.speculation.minTaskRuntime": "100ms",
        "spark.speculation.task.duration.threshold": "500ms",  # a batch may begin with one task, as records arrive
    }
    filling.more()
    stop_at = "while reading"
    (tmp_path / "temporary").mkdir()
    armed = stop_environment(tmp_path, stop_at)
    # Spark never runs a copy on the same host: each worker has an address of its own.
    with SparkCluster(tmp_path / "temporary", CONF, cores=1, memory="1g", environment=armed) as cluster:
        cluster.start_workers(*(f"127.0.0.{number + 2}" for number in range(EXECUTORS)))
        with Application(tmp_path, read, master=cluster.master_url, stop_at=stop_at, conf=conf) as application:
            application.await_stop_point()  # and it is never released: only a copy of its task can finish the batch
            application.await_rows(filling.sent, 120)
            application.arm()
            filling.more()
            application.await_stop_point()
            application.await_rows(filling.sent, 120)
            application.stop()
    assert sorted((r.partition, r.offset) for r in rows(tmp_path)) == sorted(contents(server, topic))


@pytest.mark.full
@pytest.mark.parametrize("more", [WHOLE, PIECES], ids=["whole shares", "pieces"])
def test_a_stage_repeated_after_its_shuffle_files_were_lost_reads_the_same(
    apache_kafka: ApacheKafka, new_topic: NewTopic, group: str, tmp_path: Path, more: dict[str, int]
) -> None:
    topic, server = new_topic(PARTITIONS), apache_kafka.bootstrap_servers
    filling = Filling(server, topic)
    read = options(server, topic, group, members=EXECUTORS, **more)
    filling.more()
    with Application(tmp_path, read, master=CLUSTER, stop_at="after shuffle", shuffles=True) as application:
        application.await_stop_point()
        application.release()
        application.await_rows(filling.sent)
        application.arm()
        filling.more()
        halted = application.await_stop_point()  # all is read and shuffled, but other executors have not taken it
        other = next(pid for pid in application.executor_pids if pid != executor_of(halted))
        kill(other)
        application.release()
        application.await_rows(filling.sent)
        assert "FetchFailed" in (tmp_path / "driver.log").read_text(), "no shuffle file was missed"
        application.stop()
    assert sorted((r.partition, r.offset) for r in rows(tmp_path)) == sorted(contents(server, topic))
