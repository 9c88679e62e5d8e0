"""A batch was planned and not committed, and its partitions belong to another member when the driver comes back.

Spark replays the batch as it was planned. Afterwards each partition starts by rule 2 of `adoption`, where the other
owner got to if that is further, and no committed offset ever falls.
"""

from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition
from harness.application import Application, rows
from harness.group_history import assert_never_rewound, group_history
from harness.group_protocol import OF_ENVIRONMENT
from harness.kafka import contents, produce
from harness.mostly import mostly
from harness.offsets import committed, set_committed
from harness.sharing import SPEAKING, Sharing
from harness.stream import Collected, await_rows, options, start
from harness.waiting import wait_for
from pyspark.sql import DataFrame, SparkSession

from spark_kgroup.model import CLASSIC
from spark_kgroup.testing import ApacheKafka

pytestmark = pytest.mark.usefixtures("class_archive")

NewTopic = Callable[[int], str]

PARTITIONS = 4
COMMITTED = dict.fromkeys(range(PARTITIONS), 5)
"""Where the group stands before the first batch, of 5..10 in each partition."""

BATCH = {(p, o) for p in range(PARTITIONS) for o in range(5, 10)}


@pytest.fixture
def topic(apache_kafka: ApacheKafka, new_topic: NewTopic, group: str) -> str:
    name = new_topic(PARTITIONS)
    produce(apache_kafka.bootstrap_servers, name, 40, partitions=PARTITIONS)
    set_committed(apache_kafka.bootstrap_servers, group, name, COMMITTED)
    return name


def from_committed(bootstrap: str, topic: str, group: str, session_timeout_ms: int) -> dict[str, str]:
    more = {"startingOffsets": "committed", "kafka.session.timeout.ms": session_timeout_ms}
    return options(bootstrap, topic, group, **more)


@pytest.mark.full
@mostly(CLASSIC)
def test_other_owner_keeps_reading_while_the_batch_is_replayed(
    apache_kafka: ApacheKafka, topic: str, group: str, tmp_path: Path, group_protocol: str
) -> None:
    server = apache_kafka.bootstrap_servers
    read = from_committed(server, topic, group, 6_000)
    with Application(tmp_path, read, sink="batches", stop_at="while reading") as killed:
        killed.await_stop_point(300)
        killed.kill()
    planned = (tmp_path / "checkpoint/offsets/0").read_bytes()
    assert killed.batches_done() == 0

    with Sharing(server, group, topic, commit_each=True, protocol=group_protocol) as peer:
        produce(server, topic, 40, partitions=PARTITIONS, first=40)
        wait_for(lambda: len(peer.rows) == 60, "the other member to read the batch, and on", 60)
        with Application(tmp_path, read, sink="batches") as back:
            back.await_rows(20)
            assert {(r.partition, r.offset) for r in rows(tmp_path) if r.batch_id == 0} == BATCH
            assert (tmp_path / "checkpoint/offsets/0").read_bytes() == planned
            wait_for(lambda: 1 <= len(peer.owned) < PARTITIONS, "the partitions to be shared", 60)
            produce(server, topic, 40, partitions=PARTITIONS, first=80)
            wait_for(lambda: len(peer.rows) + len(rows(tmp_path)) >= 60 + 20 + 40, "both to go on", 60)
            peer.leave()
            produce(server, topic, 40, partitions=PARTITIONS, first=120)
            end = dict.fromkeys(range(PARTITIONS), 40)
            wait_for(lambda: committed(server, group, topic, PARTITIONS) == end, "the query to go on alone", 60)
            back.stop()

    ours = [(r.partition, r.offset) for r in rows(tmp_path)]
    assert len(ours) == len(set(ours))
    assert len(peer.rows) == len(set(peer.rows))
    assert set(ours) & set(peer.rows) == BATCH, "read by both: the one unfinished batch, and nothing else"
    assert set(ours) | set(peer.rows) == {place for place in contents(server, topic) if place[1] >= 5}, "a gap"
    assert_never_rewound(group_history(server, group))


def test_other_owner_left_within_at_or_past_the_batch(
    spark: SparkSession, apache_kafka: ApacheKafka, topic: str, group: str, tmp_path: Path
) -> None:
    """The other owner stopped within the batch, at its end, beyond it, and in one partition before any record."""
    server = apache_kafka.bootstrap_servers
    read = from_committed(server, topic, group, 3_000)

    def failing(frame: DataFrame, batch_id: int) -> None:
        raise ArithmeticError("the sink fails")

    wait_for(start(spark, read, tmp_path / "cp", failing).exception, "the query to fail", 60)
    produce(server, topic, 40, partitions=PARTITIONS, first=40)
    own_for_a_while(server, group, topic, {0: 7, 1: 10, 2: 15})

    collected = Collected()
    query = start(spark, read, tmp_path / "cp", collected)
    await_rows(query, collected, 20 + 35)
    end = dict.fromkeys(range(PARTITIONS), 20)
    wait_for(lambda: committed(server, group, topic, PARTITIONS) == end or query.exception(), "the group to know", 60)
    query.stop()
    assert {(p, o) for _, p, o, _ in collected.batches[0]} == BATCH
    later = {0: 10, 1: 10, 2: 15, 3: 10}
    expected = BATCH | {(p, o) for p, first in later.items() for o in range(first, 20)}
    assert sorted((p, o) for _, p, o, _ in collected.rows) == sorted(expected)
    assert_never_rewound(group_history(server, group))


def own_for_a_while(bootstrap: str, group: str, topic: str, positions: dict[int, int]) -> None:
    """Take all partitions over, commit `positions`, and leave."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "enable.auto.commit": False,
            **SPEAKING[OF_ENVIRONMENT],
        }
    )
    try:
        consumer.subscribe([topic])

        def taken() -> bool:
            consumer.poll(0.1)
            return len(consumer.assignment()) == PARTITIONS

        wait_for(taken, "all partitions to be taken over", 60)
        consumer.commit(offsets=[TopicPartition(topic, p, o) for p, o in positions.items()], asynchronous=False)
    finally:
        consumer.close()
