"""Fewer seats than executors, one of which cannot reach the driver: records come once, mostly from the seats' servers.

Three executors are JVMs of their own (`local-cluster`).
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from harness.application import Application, rows
from harness.kafka import contents, produce
from harness.stream import options

from pyspark_kgroup.admission import HAS_ADMISSION_CONTROL
from spark_kgroup.testing import ApacheKafka

pytestmark = pytest.mark.usefixtures("class_archive")

NewTopic = Callable[[int], str]

PARTITIONS = 6
SEATS = 2
CLUSTER = "local-cluster[3,1,1024]"
ROUNDS = 20
CUT_OFF = "0"
"""Spark's id of its first executor."""


def test_seats_on_few_of_many_executors_are_read_from_their_servers_though_one_cannot_reach_the_driver(
    apache_kafka: ApacheKafka, new_topic: NewTopic, group: str, tmp_path: Path
) -> None:
    topic, server = new_topic(PARTITIONS), apache_kafka.bootstrap_servers
    sent = 0
    with Application(
        tmp_path, options(server, topic, group, members=SEATS), master=CLUSTER, cut_off=CUT_OFF
    ) as application:
        for _ in range(ROUNDS):
            produce(server, topic, 300, partitions=PARTITIONS, first=sent)
            sent += 300
            application.await_rows(sent)
        application.stop()
    assert sorted((r.partition, r.offset) for r in rows(tmp_path)) == sorted(contents(server, topic))
    assert f"Executor {CUT_OFF} on host" in (tmp_path / "driver.log").read_text()
    if not HAS_ADMISSION_CONTROL:  # PySpark 4.0 and 4.1 do not ask for totals of reads
        return
    first, last = _reads(application, 5), _reads(application, -1)
    counts = {name: last[name] - first[name] for name in ("at_home", "network", "guest", "alone")}
    print(counts)
    assert counts["network"] > 0
    assert counts["at_home"] + counts["network"] >= 0.9 * sum(counts.values())


def _reads(application: Application, batch: int) -> dict[str, Any]:
    """Totals of reads up to a batch with rows."""
    busy = [progress for progress in application.progress() if progress["numInputRows"]]
    reads: dict[str, Any] = busy[batch]["sources"][0]["latestOffset"]["reads"]
    return reads
