"""Several queries of one application share a sidecar, seat servers and a key beside their executor."""

import os
import tempfile
from collections.abc import Callable
from pathlib import Path

from harness.kafka import produce
from harness.members import described
from harness.processes import sidecar_processes
from harness.stream import Collected, await_rows, options, start
from harness.waiting import wait_for
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from spark_kgroup.testing import ApacheKafka

SEATS = 4
QUERIES = 3


def key_folders(spark: SparkSession) -> list[Path]:
    """Where stream readers of this session leave the key. A JVM does not pass our TMPDIR on."""
    assert spark._jvm is not None
    pid = spark._jvm.java.lang.ProcessHandle.current().pid()
    return [found for root in {"/tmp", tempfile.gettempdir()} for found in Path(root).glob(f"kgroup-*-{pid}-*-key")]


def test_queries_of_one_application_share_a_sidecar_and_its_processes_until_the_last_one_stops(
    spark: SparkSession, apache_kafka: ApacheKafka, new_topic: Callable[[int], str], group: str, tmp_path: Path
) -> None:
    server, topic = apache_kafka.bootstrap_servers, new_topic(SEATS)
    wait_for(lambda: not sidecar_processes(), "the sidecars of earlier tests to end", 30)
    queries: list[tuple[StreamingQuery, Collected]] = []
    for number in range(QUERIES):
        collected, folder = Collected(), tmp_path / f"query {number}"
        folder.mkdir()
        read = {**options(server, topic, f"{group}-{number}"), "members": str(SEATS)}
        queries.append((start(spark, read, folder, collected), collected))
    sent = 0

    def at_home() -> bool:
        """After another batch of each: in the first one tasks read directly, while the sidecar starts."""
        nonlocal sent
        produce(server, topic, 400, partitions=SEATS, first=sent)
        sent += 400
        for query, collected in queries:
            await_rows(query, collected, sent)
        shown = [described(server, f"{group}-{number}") for number in range(QUERIES)]
        return all(member["warm"] for members in shown for member in members["members"])

    wait_for(at_home, "the servers of all seats to have served", 120)
    served = sidecar_processes()
    assert len(served) == 1 + min(SEATS * QUERIES, len(os.sched_getaffinity(0))), "one sidecar, a process for each core"
    assert len(key_folders(spark)) == 1
    for query, _ in queries[1:]:
        query.stop()
    (query, collected), sent = queries[0], sent + 400
    produce(server, topic, 400, partitions=SEATS, first=sent - 400)
    await_rows(query, collected, sent)
    assert sidecar_processes() <= served, "the query that is left has the servers that it had"
    query.stop()
    wait_for(lambda: not sidecar_processes(), "the sidecar to end with the last query", 30)
    wait_for(lambda: not key_folders(spark), "the key to be removed by the last stream reader", 30)
