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
ROUNDS = 15
ROUNDS_UNTIL_SERVED = 200
"""A bound: batches are short, and on a busy machine many of them pass until the servers of the seats have started."""
RECORDS = 300
CUT_OFF = "0"
"""Spark's id of its first executor."""


@pytest.mark.full
def test_seats_on_few_of_many_executors_are_read_from_their_servers_though_one_cannot_reach_the_driver(
    apache_kafka: ApacheKafka, new_topic: NewTopic, group: str, tmp_path: Path
) -> None:
    topic, server = new_topic(PARTITIONS), apache_kafka.bootstrap_servers
    read = options(server, topic, group, members=SEATS)
    with Application(tmp_path, read, master=CLUSTER, cut_off=CUT_OFF) as application:

        def work(round_: int) -> None:
            produce(server, topic, RECORDS, partitions=PARTITIONS, first=round_ * RECORDS)
            application.await_rows((round_ + 1) * RECORDS)

        first = 0
        while HAS_ADMISSION_CONTROL and not _reads_once_served(application) and first < ROUNDS_UNTIL_SERVED:
            work(first)
            first += 1
        for round_ in range(first, first + ROUNDS):
            work(round_)
        application.stop()
    assert sorted((r.partition, r.offset) for r in rows(tmp_path)) == sorted(contents(server, topic))
    assert f"Executor {CUT_OFF} on host" in (tmp_path / "driver.log").read_text()
    if not HAS_ADMISSION_CONTROL:  # PySpark 4.0 and 4.1 do not ask for totals of reads
        return
    before, *_, last = _reads_once_served(application)
    counts = {name: last[name] - before[name] for name in ("at_home", "network", "guest", "alone")}
    print(first, counts)
    assert counts["network"] > 0
    assert counts["at_home"] + counts["network"] >= 0.9 * sum(counts.values())


def _reads_once_served(application: Application) -> list[dict[str, Any]]:
    """Totals of reads up to each batch with rows, from the first one by which a server has read for every seat."""
    busy = [progress for progress in application.progress() if progress["numInputRows"]]
    latest = [progress["sources"][0]["latestOffset"] for progress in busy]
    served = [
        at for at, shown in enumerate(latest) if [seat["warm"] for seat in shown["seats"].values()] == [True] * SEATS
    ]
    return [shown["reads"] for shown in latest[served[0] :]] if served else []
