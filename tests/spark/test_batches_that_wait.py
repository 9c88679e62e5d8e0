"""`minOffsetsPerTrigger` in whole Spark, which hands the limit back as the trigger wants it."""

from collections.abc import Callable
from pathlib import Path

import pytest
from harness.kafka import produce
from harness.stream import Collected, await_rows, options, start
from harness.waiting import wait_for
from pyspark.sql import SparkSession

from pyspark_kgroup.admission import HAS_ADMISSION_CONTROL
from spark_kgroup.testing import ApacheKafka

LEAST = 100


@pytest.mark.parametrize("more", [{}, {"maxOffsetsPerTrigger": str(LEAST)}], ids=["no maximum", "a maximum"])
def test_few_records_wait_for_more_and_for_no_trigger_that_wants_all_there_are(
    spark: SparkSession,
    apache_kafka: ApacheKafka,
    new_topic: Callable[[int], str],
    group: str,
    tmp_path: Path,
    more: dict[str, str],
) -> None:
    server, topic, collected = apache_kafka.bootstrap_servers, new_topic(2), Collected()
    read = {**options(server, topic, group), "minOffsetsPerTrigger": str(LEAST), "maxTriggerDelay": "1h", **more}
    produce(server, topic, 10, partitions=2)
    query = start(spark, read, tmp_path, collected)
    await_rows(query, collected, 10)
    produce(server, topic, LEAST // 2, partitions=2, first=10)
    wait_for(lambda: query.status["message"].startswith("Waiting"), "an idle query", 30)
    produce(server, topic, LEAST // 2, partitions=2, first=10 + LEAST // 2)
    await_rows(query, collected, 10 + LEAST)
    produce(server, topic, 1, partitions=2, first=10 + LEAST)
    query.stop()
    bounded = start(spark, read, tmp_path, collected, trigger={"availableNow": True} if HAS_ADMISSION_CONTROL else None)
    await_rows(bounded, collected, 11 + LEAST)
    bounded.stop()
    assert [len(rows) for rows in collected.batches.values() if rows] == [10, LEAST, 1]
