"""More tasks than seats and partitions: pieces of a seat's ranges, on whichever executor has room."""

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from harness.application import Application, rows
from harness.kafka import contents, produce
from harness.stream import Collected, assert_exactly, await_rows, options, start
from pyspark.sql import DataFrame, SparkSession

from spark_kgroup.testing import ApacheKafka

PARTITIONS = 2
NewTopic = Callable[[int], str]


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def test_a_batch_has_as_many_tasks_as_asked_and_the_group_stays_as_it_was(
    spark: SparkSession, apache_kafka: ApacheKafka, new_topic: NewTopic, group: str, tmp_path: Path
) -> None:
    topic, server = new_topic(PARTITIONS), apache_kafka.bootstrap_servers
    produce(server, topic, 1_000, partitions=PARTITIONS)
    collected, tasks = Collected(), []

    def sink(frame: DataFrame, batch_id: int) -> None:
        tasks.append(frame.rdd.getNumPartitions())
        collected(frame, batch_id)

    read = options(server, topic, group, members=2, minPartitions=7)
    query = start(spark, read, tmp_path / "cp", sink)
    await_rows(query, collected, 1_000)
    query.stop()
    assert tasks[0] == 7
    assert_exactly(collected, contents(server, topic))
    assert sorted(row.instance_id or "" for row in apache_kafka.describe_members(group)) == [f"{group}-0", f"{group}-1"]


@pytest.mark.full
def test_executors_that_die_among_pieces_cost_no_record_and_repeat_none(
    apache_kafka: ApacheKafka, new_topic: NewTopic, group: str, tmp_path: Path
) -> None:
    topic, server = new_topic(PARTITIONS), apache_kafka.bootstrap_servers
    sent = 0

    def more() -> None:
        nonlocal sent
        produce(server, topic, 300, partitions=PARTITIONS, first=sent)
        sent += 300

    read = options(server, topic, group, members=2, minPartitions=6)
    more()
    with Application(tmp_path, read, master="local-cluster[3,1,1024]", stop_at="while reading") as application:
        application.await_stop_point()
        application.release()
        application.await_rows(sent)
        for dies in (lambda worker: worker, lambda worker: parent_of(parent_of(worker))):
            application.arm()
            more()
            os.kill(dies(application.await_stop_point()), signal.SIGKILL)
            application.release()
            application.await_rows(sent)
        application.arm()
        more()
        application.await_stop_point()
        application.kill()
    with Application(tmp_path, read, master="local-cluster[3,1,1024]") as application:
        application.await_rows(sent)
        application.stop()
    assert sorted((row.partition, row.offset) for row in rows(tmp_path)) == sorted(contents(server, topic))
    assert sorted(row.instance_id or "" for row in apache_kafka.describe_members(group)) == [f"{group}-0", f"{group}-1"]
