"""A query seen from outside: in its progress, in a listener's gauges, and with `kgroup describe`."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest.mock import patch

import pytest
from harness.kafka import produce
from harness.members import described
from harness.offsets import lag
from harness.processes import STREAM_READER, listens_on, spark_processes
from harness.stream import Collected, await_rows, options, start
from harness.waiting import wait_for
from prometheus_client import CollectorRegistry
from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import StreamingQueryProgress

from pyspark_kgroup.admission import HAS_ADMISSION_CONTROL
from pyspark_kgroup.listener import KgroupListener
from spark_kgroup.testing import ApacheKafka

PARTITIONS = 4
GAUGES = ["kgroup_partition_position_offset", "kgroup_partition_lag_offsets"]


def by_partition(registry: CollectorRegistry) -> list[dict[str, float]]:
    """For each of GAUGES, partition -> value."""
    samples = [sample for family in registry.collect() for sample in family.samples]
    return [{s.labels["partition"]: s.value for s in samples if s.name == name} for name in GAUGES]


@pytest.fixture
def gauges(spark: SparkSession) -> Iterator[CollectorRegistry]:
    registry = CollectorRegistry()
    listener = KgroupListener(registry)
    spark.streams.addListener(listener)
    # Progress that came as PySpark's own listener passes it would not come to the gauges.
    with patch.object(StreamingQueryProgress, "fromJObject", side_effect=AssertionError("0.2 s of CPU for a batch")):
        yield registry
    spark.streams.removeListener(listener)


@pytest.mark.skipif(not HAS_ADMISSION_CONTROL, reason="PySpark 4.0 and 4.1 show no latest offset in progress")
def test_under_a_long_trigger_a_listener_lets_the_group_have_the_end_of_the_last_batch(
    spark: SparkSession,
    apache_kafka: ApacheKafka,
    new_topic: Callable[[int], str],
    group: str,
    tmp_path: Path,
    gauges: CollectorRegistry,
) -> None:
    server, topic, collected = apache_kafka.bootstrap_servers, new_topic(PARTITIONS), Collected()
    produce(server, topic, 400, partitions=PARTITIONS)
    read = options(server, topic, group)
    query = start(spark, read, tmp_path, collected, trigger={"processingTime": "1 hour"})
    await_rows(query, collected, 400)
    wait_for(lambda: lag(server, group, topic) == 0, "lag 0, an hour before the next trigger", 60)
    query.stop()
    produce(server, topic, 400, partitions=PARTITIONS, first=400)
    query = start(spark, read, tmp_path, collected)
    await_rows(query, collected, 800)
    query.stop()
    assert sorted(row[1:3] for row in collected.rows) == [(p, o) for p in range(PARTITIONS) for o in range(200)]


def test_progress_gauges_and_describe_show_who_serves_each_seat_and_its_lag(
    spark: SparkSession,
    apache_kafka: ApacheKafka,
    new_topic: Callable[[int], str],
    group: str,
    tmp_path: Path,
    gauges: CollectorRegistry,
) -> None:
    server, topic, collected = apache_kafka.bootstrap_servers, new_topic(PARTITIONS), Collected()
    read = options(server, topic, group)
    del read["members"]  # as many seats as local[2] has cores
    before = spark_processes(STREAM_READER)
    query = start(spark, read, tmp_path, collected)
    sent = 0

    def served_warm() -> bool:
        """After another batch: the first ones are read directly, while the sidecar starts."""
        nonlocal sent
        produce(server, topic, 400, partitions=PARTITIONS, first=sent)
        sent += 400
        await_rows(query, collected, sent)
        return all(member["warm"] for member in described(server, group)["members"])

    wait_for(served_warm, "the seats' servers to have served", 60)
    (reader,) = spark_processes(STREAM_READER) - before
    assert listens_on(reader) == {"127.0.0.1"}, "in local mode nobody else has to reach it"
    wait_for(lambda: lag(server, group, topic) == 0, "lag 0", 60)
    found = described(server, group)
    served = {member["instance_id"]: (member["executor"], member["warm"]) for member in found["members"]}
    assert (found["lag"], list(served.values())) == (0, [("driver", True)] * 2)
    produce(server, topic, PARTITIONS, partitions=PARTITIONS, first=sent)
    await_rows(query, collected, sent + PARTITIONS)
    if HAS_ADMISSION_CONTROL:  # PySpark 4.0 and 4.1 do not ask how far the topic goes
        at_end = [dict.fromkeys(map(str, range(PARTITIONS)), number) for number in (sent // PARTITIONS + 1, 0)]
        wait_for(lambda: by_partition(gauges) == at_end, "gauges of the end", 60)
        assert query.lastProgress is not None
        latest = json.loads(query.lastProgress.json)["sources"][0]["latestOffset"]
        assert {seat: (at["executor"], at["warm"]) for seat, at in latest["seats"].items()} == served
        assert sent <= latest["reads"]["rows"] < sent + PARTITIONS, "what was read before this batch"
        assert (latest["reads"]["at_home"] >= 2, latest["reads"]["guest"]) == (True, 0)
    query.stop()
    wait_for(lambda: by_partition(gauges) == [{}, {}], "the gauges to go with the query", 60)
