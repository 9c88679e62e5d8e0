"""Brokers die, move and come back: a running query waits for them, within a bound, and goes on."""

import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from uuid import uuid4

import pyarrow as pa
import pytest
from harness.group_protocol import OF_ENVIRONMENT
from harness.groups import stable_generation
from harness.kafka import contents, produce
from harness.offsets import lag
from harness.stream import Collected, assert_exactly, await_rows, options, start
from harness.waiting import wait_for
from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery

from spark_kgroup.model import CLASSIC
from spark_kgroup.testing import ApacheKafka

LONG_OUTAGE_S = 60
"""A third of the outage that Spark's own source would bear, a fifth of the one that ours does."""

SHORT_OUTAGE_S = 25
"""Longer than the session of 10 s that is to expire, and its rejoin's first retries."""

PATIENT_MS = 300_000
"""A session that outlives the outage (and the default)."""


SESSIONS = {
    "group.min.session.timeout.ms": "1000",
    "group.consumer.min.session.timeout.ms": "1000",
    "group.consumer.max.session.timeout.ms": "120000",
}
"""The sessions that brokers allow: shorter and longer ones than their defaults."""


@pytest.fixture(scope="module")
def one_node() -> Iterator[ApacheKafka]:
    with ApacheKafka(server_properties=SESSIONS) as kafka:
        yield kafka


def new_topic(kafka: ApacheKafka, partitions: int) -> str:
    name = f"topic-{uuid4().hex[:8]}"
    kafka.create_topic(name, partitions=partitions)
    return name


def assert_drained(kafka: ApacheKafka, query: StreamingQuery, group: str, topic: str, collected: Collected) -> None:
    """Each record once, lag 0, and it is still the same run of the query."""
    found = contents(kafka.bootstrap_servers, topic)
    await_rows(query, collected, len(found), 180)
    assert_exactly(collected, found)
    wait_for(lambda: lag(kafka.bootstrap_servers, group, topic) == 0, "lag 0", 120)
    assert query.isActive


@pytest.mark.full
def test_an_orderly_restart_of_the_broker_moves_no_partition(
    spark: SparkSession, one_node: ApacheKafka, group: str, tmp_path: Path
) -> None:
    topic, server = new_topic(one_node, 4), one_node.bootstrap_servers
    produce(server, topic, 80, partitions=4)
    collected = Collected()
    read = options(server, topic, group, **{"kafka.session.timeout.ms": PATIENT_MS})
    query = start(spark, read, tmp_path / "cp", collected)
    await_rows(query, collected, 80)
    generation = stable_generation(one_node, group)
    one_node.nodes[0].restart()
    one_node.await_ready()
    produce(server, topic, 80, partitions=4, first=80)
    assert_drained(one_node, query, group, topic, collected)
    assert stable_generation(one_node, group) == generation


@pytest.mark.full
def test_a_coordinator_that_dies_is_replaced_by_another_broker(
    spark: SparkSession, apache_kafka_factory: Callable[..., ApacheKafka], group: str, tmp_path: Path
) -> None:
    kafka = apache_kafka_factory(nodes=3, server_properties=SESSIONS)
    topic, server = new_topic(kafka, 6), kafka.bootstrap_servers
    produce(server, topic, 60, partitions=6)
    collected = Collected()
    read = options(server, topic, group, **{"kafka.session.timeout.ms": PATIENT_MS})
    query = start(spark, read, tmp_path / "cp", collected)
    await_rows(query, collected, 60)
    generation = stable_generation(kafka, group)
    coordinator = kafka.describe_group_state(group).coordinator
    next(node for node in kafka.nodes if coordinator == f"127.0.0.1:{node.port}").kill()
    produce(server, topic, 60, partitions=6, first=60)
    assert_drained(kafka, query, group, topic, collected)
    assert kafka.describe_group_state(group).coordinator != coordinator
    # The coordinator's state is the log of __consumer_offsets: its new leader knows members, generation and shares.
    assert stable_generation(kafka, group) == generation


@pytest.mark.parametrize("outage_s", [SHORT_OUTAGE_S, pytest.param(LONG_OUTAGE_S, marks=pytest.mark.full)])
def test_an_outage_of_all_brokers_is_waited_for(
    spark: SparkSession, one_node: ApacheKafka, tmp_path: Path, outage_s: int
) -> None:
    server = one_node.bootstrap_servers
    topics = {name: new_topic(one_node, 1 if name == "reading" else 4) for name in ("reading", "patient", "expiring")}
    sinks = {name: Collected() for name in topics}
    groups = {name: f"group-of-{topic}" for name, topic in topics.items()}

    def read(name: str, session_timeout_ms: int, **more: str) -> dict[str, str]:
        more["kafka.session.timeout.ms"] = str(session_timeout_ms)
        return options(server, topics[name], groups[name], **more)

    for name in ("patient", "expiring"):
        produce(server, topics[name], 40, partitions=4)
    produce(server, topics["reading"], 32_000, partitions=1, size=1_000)  # far more than is fetched ahead
    queries = {}
    for name, session_timeout_ms in (("patient", PATIENT_MS), ("expiring", 10_000)):
        queries[name] = start(spark, read(name, session_timeout_ms), tmp_path / name, sinks[name])
        await_rows(queries[name], sinks[name], 40, 120)
    generations = {name: stable_generation(one_node, groups[name]) for name in queries}
    little_ahead = {"kafka.queued.max.messages.kbytes": "1024", "kafka.queued.min.messages": "100"}
    queries["reading"] = start_gated(tmp_path, spark, {**read("reading", PATIENT_MS), **little_ahead}, sinks["reading"])
    wait_for((tmp_path / "began").exists, "a read in progress", 120)

    one_node.nodes[0].kill()
    (tmp_path / "go").touch()
    back_at = time.monotonic() + outage_s
    wait_for(partial(over, back_at, queries), "the end of the outage", 2 * outage_s)
    one_node.nodes[0].restart()
    one_node.await_ready()

    for name in ("patient", "expiring"):
        produce(server, topics[name], 40, partitions=4, first=40)
    for name, query in queries.items():
        assert_drained(one_node, query, groups[name], topics[name], sinks[name])
    assert len([rows for rows in sinks["reading"].batches.values() if rows]) == 1, "one batch, read through the outage"
    assert stable_generation(one_node, groups["patient"]) == generations["patient"]
    # For the other one the session was over on our side: it dropped its partitions and asked for them again. Under the
    # consumer protocol a static seat may get them back in the group's old epoch.
    if OF_ENVIRONMENT == CLASSIC:
        assert stable_generation(one_node, groups["expiring"]) > generations["expiring"]


def over(at: float, queries: dict[str, StreamingQuery]) -> bool:
    for query in queries.values():
        assert query.isActive, query.exception()
    return time.monotonic() > at


def gate(began: Path, go: Path) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """A stage behind the source that takes one Arrow batch, says so, and the rest only when it may."""

    def take(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield batch
            began.touch()
            deadline = time.monotonic() + 120
            while not go.exists():
                assert time.monotonic() < deadline, "never let go"
                time.sleep(0.05)

    return take


def start_gated(folder: Path, spark: SparkSession, read: dict[str, str], sink: Collected) -> StreamingQuery:
    frame = spark.readStream.format("kgroup").options(**read).load()
    gated = frame.mapInArrow(gate(folder / "began", folder / "go"), frame.schema)
    return gated.writeStream.option("checkpointLocation", str(folder / "cp")).foreachBatch(sink).start()
