"""Seats join as executors tell how many tasks they run at once, and a restart has as many: on a standalone cluster."""

from collections.abc import Callable
from pathlib import Path

import pytest
from harness.application import Application, rows
from harness.group_history import group_history
from harness.group_log import GroupRecord
from harness.groups import described_by_us, stable_generation
from harness.kafka import contents, produce
from harness.stream import options

from pyspark_kgroup.driver.startup.sizing import MEMBERS_DEFAULT
from spark_kgroup.testing import ApacheKafka
from spark_kgroup.testing.spark_cluster import SparkCluster

pytestmark = pytest.mark.usefixtures("class_archive")

NewTopic = Callable[[int], str]

CONF = Path(__file__).parents[2] / "conf"
PARTITIONS = 12
CORES = 3
"""Cores of each Spark worker, and of its executor."""


def seats_of(kafka: ApacheKafka, group: str) -> int:
    return len({member.instance_id for member in described_by_us(kafka, group).members})


def sizes_since(generation: int, kafka: ApacheKafka, group: str) -> set[int]:
    """How many members a classic group had in the generations after this one.

    A rebalance has two generations (KIP-429), and one more where a seat hears of it before it has given up.
    """
    history = group_history(kafka.bootstrap_servers, group)
    records = [record for record in history if isinstance(record, GroupRecord)]
    assert records or described_by_us(kafka, group).is_consumer_type
    return {record.members for record in records if record.generation > generation}


@pytest.mark.full
def test_seats_join_for_an_executor_that_comes_and_a_restart_has_as_many(
    apache_kafka: ApacheKafka, new_topic: NewTopic, group: str, tmp_path: Path
) -> None:
    topic, server = new_topic(PARTITIONS), apache_kafka.bootstrap_servers
    read = options(server, topic, group)
    del read["members"]
    read["kafka.session.timeout.ms"] = "180000"  # a start takes 40 s on a busy machine
    conf = {"spark.executor.cores": str(CORES)}
    sent = 0
    (tmp_path / "temporary").mkdir()

    def batch(application: Application) -> None:
        nonlocal sent
        produce(server, topic, 5 * PARTITIONS, partitions=PARTITIONS, first=sent)
        sent += 5 * PARTITIONS
        application.await_rows(sent)

    with SparkCluster(tmp_path / "temporary", CONF, cores=CORES, memory="1g") as cluster:
        cluster.start_workers("127.0.0.2")
        with Application(tmp_path, read, master=cluster.master_url, conf=conf) as application:
            batch(application)
            before = stable_generation(apache_kafka, group)
            assert seats_of(apache_kafka, group) == MEMBERS_DEFAULT
            cluster.start_workers("127.0.0.3")

            def grown() -> bool:
                batch(application)
                return seats_of(apache_kafka, group) == 2 * CORES

            application.wait_for(grown, f"{2 * CORES} seats", 120)
            batch(application)
            application.stop()
        after = stable_generation(apache_kafka, group)
        assert sizes_since(before, apache_kafka, group) <= {2 * CORES}, "the seats join in one rebalance"
        with Application(tmp_path, read, master=cluster.master_url, conf=conf) as application:
            batch(application)
            assert seats_of(apache_kafka, group) == 2 * CORES
            assert stable_generation(apache_kafka, group) == after, "a restart moves nothing"
            application.stop()
    assert sorted((r.partition, r.offset) for r in rows(tmp_path)) == sorted(contents(server, topic))
