"""Other members come and go while batches run: partitions move only between batches, and no record is read twice."""

import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from harness.groups import assignment_by_instance, stable_generation
from harness.kafka import Producing, contents, produce
from harness.mostly import mostly
from harness.offsets import lag
from harness.sharing import KafkaPythonSharing, Sharing
from harness.stream import Collected, assert_exactly, await_rows, options, start, wait_running
from harness.waiting import wait_for
from pyspark.sql import DataFrame, SparkSession

from spark_kgroup.model import CLASSIC, CONSUMER
from spark_kgroup.testing import ApacheKafka

NewTopic = Callable[[int], str]


@pytest.mark.parametrize("library", [Sharing, pytest.param(KafkaPythonSharing, marks=pytest.mark.full)])
def test_a_consumer_of_another_library_joins_and_leaves_while_batches_run(
    spark: SparkSession,
    apache_kafka: ApacheKafka,
    new_topic: NewTopic,
    group: str,
    tmp_path: Path,
    library: type[Sharing | KafkaPythonSharing],
) -> None:
    topic = new_topic(4)
    server = apache_kafka.bootstrap_servers
    collected = Collected()
    with Producing(server, topic, partitions=4, per_round=60, pause_s=0.3) as producing:
        query = start(spark, options(server, topic, group), tmp_path / "cp", collected)
        wait_for(lambda: len(collected) > 100 or query.exception(), "a running query", 60)
        with library(server, group, topic) as peer:
            wait_for(lambda: len(peer.rows) > 100, "the peer to read its share", 60)
            assert 1 <= len(peer.owned) <= 2
        at_leave = len(collected)
        wait_for(lambda: len(collected) > at_leave + 200 or query.exception(), "the query to go on alone", 60)
    await_rows(query, collected, producing.sent - len(peer.rows), 120)
    wait_for(lambda: lag(server, group, topic) == 0, "lag 0", 60)
    query.stop()

    ours = [(partition, offset) for _, partition, offset, _ in collected.rows]
    assert len(ours) == len(set(ours))
    assert len(peer.rows) == len(set(peer.rows))
    assert not set(ours) & set(peer.rows), "read by both"
    assert set(ours) | set(peer.rows) == contents(server, topic).keys(), "a gap"


@mostly(CLASSIC)
def test_no_partition_moves_while_a_batch_is_being_read(
    spark: SparkSession,
    apache_kafka: ApacheKafka,
    new_topic: NewTopic,
    group: str,
    tmp_path: Path,
    group_protocol: str,
) -> None:
    topic = new_topic(4)
    server = apache_kafka.bootstrap_servers
    produce(server, topic, 40, partitions=4)
    collected, in_batch, go_on = Collected(), threading.Event(), threading.Event()

    def slow_sink(frame: DataFrame, batch_id: int) -> None:
        in_batch.set()
        assert go_on.wait(90)
        collected(frame, batch_id)

    read = options(server, topic, group)
    query = start(spark, read, tmp_path / "cp", slow_sink)
    assert in_batch.wait(60)
    generation = stable_generation(apache_kafka, group)
    with Sharing(server, group, topic, protocol=group_protocol) as peer:
        # The join makes a new generation at once (no batch is waited for), but no partition is handed over in it.
        wait_for(lambda: stable_generation(apache_kafka, group) > generation, "the rebalance", 60)
        assert peer.owned == set()
        go_on.set()
        wait_for(lambda: len(peer.owned) == 1, "the hand-over between two batches", 60)
        await_rows(query, collected, 40)
        assert_exactly(collected, contents(server, topic))
        assert peer.rows == [], "records of the running batch were handed over"
    query.stop()


@mostly(CLASSIC)
@pytest.mark.usefixtures("group_protocol")
def test_a_second_query_with_another_prefix_joins_and_its_seats_expire(
    spark: SparkSession, apache_kafka: ApacheKafka, new_topic: NewTopic, group: str, tmp_path: Path
) -> None:
    topic = new_topic(4)
    server = apache_kafka.bootstrap_servers
    first, second = Collected(), Collected()
    settings = {"startingOffsets": "committed", "kafka.auto.offset.reset": "earliest"}
    one = {**options(server, topic, group, instanceIdPrefix="one"), **settings}
    short = {"instanceIdPrefix": "two", "kafka.session.timeout.ms": "6000"}
    two = {**options(server, topic, group, **short), **settings}
    with Producing(server, topic, partitions=4, per_round=60, pause_s=0.3) as producing:
        query = start(spark, one, tmp_path / "one", first)
        await_rows(query, first, 100)
        other = start(spark, two, tmp_path / "two", second)
        wait_for(
            lambda: sorted(map(len, assignment_by_instance(apache_kafka, group).values())) == [1, 1, 1, 1],
            "one partition for each of four seats",
            90,
        )
        await_rows(query, first, len(first) + 100)
        await_rows(other, second, len(second) + 100)
    wait_running(other, lambda: len(first) + len(second) >= producing.sent, "all that was sent", 120)
    wait_for(lambda: lag(server, group, topic) == 0, "lag 0", 60)
    other.stop()  # static seats stay until their session ends
    produce(server, topic, 100, partitions=4, first=producing.sent)
    await_rows(query, first, len(first) + 100, 90)
    query.stop()
    assert sorted(assignment_by_instance(apache_kafka, group)) == ["one-0", "one-1"]
    ours = {(p, o) for _, p, o, _ in first.rows}
    theirs = {(p, o) for _, p, o, _ in second.rows}
    assert not ours & theirs
    assert ours | theirs == contents(server, topic).keys()
    assert len(first) + len(second) == producing.sent + 100


def test_a_partition_added_mid_stream_is_read_from_earliest_and_moves_no_other_partition(
    spark: SparkSession, apache_kafka: ApacheKafka, new_topic: NewTopic, group: str, tmp_path: Path
) -> None:
    topic = new_topic(4)
    server = apache_kafka.bootstrap_servers
    produce(server, topic, 40, partitions=4)
    collected = Collected()
    # `latest` must not apply to partitions that appear later.
    read = options(server, topic, group, startingOffsets="latest")
    query = start(spark, read, tmp_path / "cp", collected)
    wait_for(lambda: query.lastProgress is not None, "the first boundary", 60)
    wait_for(lambda: lag(server, group, topic) == 0, "the first positions", 60)
    before = assignment_by_instance(apache_kafka, group)
    apache_kafka.add_partitions(topic, 6)
    produce(server, topic, 60, partitions=6, first=40)
    await_rows(query, collected, 60)
    after = assignment_by_instance(apache_kafka, group)
    query.stop()
    assert all(before[seat] <= after[seat] for seat in before)
    seen = {(p, o) for _, p, o, _ in collected.rows}
    assert {(p, o) for p, o in seen if p >= 4} == {(p, o) for p, o in contents(server, topic) if p >= 4}
    assert len(collected) == len(seen) == 60


@mostly(CONSUMER)
@pytest.mark.usefixtures("group_protocol")
def test_a_restart_within_the_session_moves_no_partition(
    spark: SparkSession, apache_kafka: ApacheKafka, new_topic: NewTopic, group: str, tmp_path: Path
) -> None:
    topic = new_topic(6)
    server = apache_kafka.bootstrap_servers
    read = options(server, topic, group, members=3)
    collected = Collected()
    produce(server, topic, 60, partitions=6)
    query = start(spark, read, tmp_path / "cp", collected)
    await_rows(query, collected, 60)
    before, generation = assignment_by_instance(apache_kafka, group), stable_generation(apache_kafka, group)
    query.stop()
    produce(server, topic, 60, partitions=6, first=60)
    query = start(spark, read, tmp_path / "cp", collected)
    await_rows(query, collected, 120)
    assert assignment_by_instance(apache_kafka, group) == before
    assert stable_generation(apache_kafka, group) == generation
    query.stop()
    assert_exactly(collected, contents(server, topic))


def test_partitions_added_while_the_driver_is_away_are_noticed_with_one_rebalance(
    spark: SparkSession, apache_kafka: ApacheKafka, new_topic: NewTopic, group: str, tmp_path: Path
) -> None:
    """KIP-814 leaves this open: a static leader that comes back to a stable group is told to skip the assignment."""
    topic = new_topic(4)
    server = apache_kafka.bootstrap_servers
    # Its metadata lives for longer than this test, so only the return itself can notice the new partitions.
    read = options(server, topic, group, **{"kafka.metadata.max.age.ms": 300_000, "kafka.session.timeout.ms": 120_000})
    collected = Collected()
    produce(server, topic, 40, partitions=4)
    query = start(spark, read, tmp_path / "cp", collected)
    await_rows(query, collected, 40)
    before, generation = assignment_by_instance(apache_kafka, group), stable_generation(apache_kafka, group)
    query.stop()
    apache_kafka.add_partitions(topic, 6)
    produce(server, topic, 60, partitions=6, first=40)
    query = start(spark, read, tmp_path / "cp", collected)
    await_rows(query, collected, 100, 120)
    after = assignment_by_instance(apache_kafka, group)
    assert all(before[seat] <= after[seat] for seat in before), "what was owned stays where it is"
    assert stable_generation(apache_kafka, group) == generation + 1
    query.stop()
    assert_exactly(collected, contents(server, topic))
