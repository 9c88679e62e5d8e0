"""`subscribePattern`: topics appear and vanish while the query runs, and while it is away."""

from pathlib import Path
from uuid import uuid4

import pytest
from harness.kafka import produce
from harness.mostly import mostly
from harness.offsets import committed
from harness.stream import Collected, await_rows, options, start
from harness.waiting import wait_for
from pyspark.sql import SparkSession

from spark_kgroup.model import CONSUMER
from spark_kgroup.testing import ApacheKafka


@pytest.mark.full
@mostly(CONSUMER)
def test_each_record_of_topics_that_appear_and_vanish_is_read_once(
    spark: SparkSession, apache_kafka: ApacheKafka, group: str, tmp_path: Path, group_protocol: str
) -> None:
    prefix, server = f"of-{uuid4().hex[:8]}", apache_kafka.bootstrap_servers

    def appear(name: str) -> str:
        apache_kafka.create_topic(f"{prefix}-{name}", 2)
        produce(server, f"{prefix}-{name}", 20, partitions=2)
        return f"{prefix}-{name}"

    read = options(server, "unused", group, startingOffsets="latest", failOnDataLoss="false")
    del read["subscribe"]
    read["subscribePattern"] = rf"{prefix}-\p{{Lower}}"
    collected = Collected()
    at_start = appear("a")
    query = start(spark, read, tmp_path / "cp", collected)
    wait_for(lambda: query.exception() or committed(server, group, at_start, 2) == {0: 10, 1: 10}, "the start", 120)
    appear("UPPER")
    late = appear("b")
    await_rows(query, collected, 20, 120)
    apache_kafka.delete_topic(late)
    produce(server, at_start, 20, partitions=2, first=20)
    await_rows(query, collected, 40, 120)
    query.stop()
    meanwhile = appear("c")
    query = start(spark, read, tmp_path / "cp", collected, trigger={"availableNow": True})
    assert query.awaitTermination(180)
    rows = [(topic, partition, offset) for topic, partition, offset, _ in collected.rows]
    every = {(late, p, o) for p in range(2) for o in range(10)}
    every |= {(at_start, p, o) for p in range(2) for o in range(10, 20)}
    every |= {(meanwhile, p, o) for p in range(2) for o in range(10)}
    assert len(rows) == len(set(rows))
    assert set(rows) == every
