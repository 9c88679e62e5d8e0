"""The driver is away or stands still, for less or for longer than its session, and comes back."""

from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest
from harness.application import Application, rows
from harness.group_history import assert_never_rewound, commits, group_history
from harness.group_protocol import OF_ENVIRONMENT
from harness.groups import assignment_by_instance, stable_generation
from harness.kafka import contents, produce
from harness.mostly import mostly
from harness.offsets import committed, set_committed
from harness.sharing import Sharing
from harness.stream import Collected, await_rows, options, start
from harness.waiting import wait_for
from pyspark.sql import SparkSession

from spark_kgroup.model import CLASSIC, CONSUMER
from spark_kgroup.testing import ApacheKafka

pytestmark = pytest.mark.usefixtures("class_archive")

NewTopic = Callable[[int], str]


def all_at(offset: int) -> dict[int, int]:
    return dict.fromkeys(range(4), offset)


def shared_and_known(kafka: ApacheKafka, group: str, topic: str, peer: Sharing, offset: int) -> None:
    """Wait until two seats and a peer share the four partitions, and all is read up to `offset` and committed."""

    def at_rest() -> bool:
        shares = assignment_by_instance(kafka, group).values()
        return sorted(map(len, shares)) == [1, 1, 2] and 1 <= len(peer.owned) <= 2

    wait_for(at_rest, "three members to share four partitions", 120)
    server = kafka.bootstrap_servers
    wait_for(lambda: committed(server, group, topic, 4) == all_at(offset), "all to be read and known", 120)
    assert at_rest()


@mostly(CLASSIC)
def test_a_driver_killed_and_back_within_the_session_moves_no_partition(
    apache_kafka: ApacheKafka, new_topic: NewTopic, group: str, tmp_path: Path, group_protocol: str
) -> None:
    topic, server = new_topic(4), apache_kafka.bootstrap_servers
    read = options(server, topic, group, **{"kafka.session.timeout.ms": 120_000})
    produce(server, topic, 40, partitions=4)
    with ExitStack() as others, Application(tmp_path, read) as application:
        application.await_rows(40)  # its checkpoint has a batch
        peer = others.enter_context(Sharing(server, group, topic, commit_each=True, protocol=group_protocol))
        shared_and_known(apache_kafka, group, topic, peer, 10)
        before, generation = assignment_by_instance(apache_kafka, group), stable_generation(apache_kafka, group)
        moves = peer.moves
        application.kill()
        produce(server, topic, 40, partitions=4, first=40)
        with Application(tmp_path, read) as back:
            known = partial(committed, server, group, topic, 4)
            back.wait_for(lambda: known() == all_at(20), "the rest to be read and known", 120)
            assert assignment_by_instance(apache_kafka, group) == before
            assert stable_generation(apache_kafka, group) == generation
            assert peer.moves == moves
            back.stop()
    ours = [(r.partition, r.offset) for r in rows(tmp_path)]
    assert sorted(ours + peer.rows) == sorted(contents(server, topic))


@mostly(CONSUMER)
def test_a_driver_gone_for_longer_leaves_its_partitions_to_another_member_and_none_is_skipped(
    spark: SparkSession,
    apache_kafka: ApacheKafka,
    new_topic: NewTopic,
    group: str,
    tmp_path: Path,
    group_protocol: str,
) -> None:
    topic, server = new_topic(4), apache_kafka.bootstrap_servers
    read = options(server, topic, group, **{"kafka.session.timeout.ms": 3_000})
    collected = Collected()
    produce(server, topic, 40, partitions=4)
    query = start(spark, read, tmp_path / "cp", collected)
    await_rows(query, collected, 40)
    wait_for(lambda: committed(server, group, topic, 4) == all_at(10), "the group to know", 60)
    query.stop()
    with Sharing(server, group, topic, commit_each=True, protocol=group_protocol) as peer:
        produce(server, topic, 40, partitions=4, first=40)
        wait_for(lambda: len(peer.rows) == 40, "the other member to read on", 60)
        query = start(spark, read, tmp_path / "cp", collected)
        wait_for(lambda: 1 <= len(peer.owned) <= 2 or query.exception(), "the partitions to be shared", 60)
        produce(server, topic, 40, partitions=4, first=80)
        wait_for(lambda: committed(server, group, topic, 4) == all_at(30), "all to be read and known", 60)
    produce(server, topic, 40, partitions=4, first=120)
    wait_for(lambda: committed(server, group, topic, 4) == all_at(40), "the query to go on alone", 60)
    query.stop()
    ours = [(p, o) for _, p, o, _ in collected.rows]
    assert sorted(ours + peer.rows) == sorted(contents(server, topic)), "a gap, or a record read by both"
    assert_never_rewound(group_history(server, group))


@pytest.mark.full
def test_a_commit_from_before_a_long_pause_is_refused(
    apache_kafka: ApacheKafka, new_topic: NewTopic, group: str, tmp_path: Path
) -> None:
    """1. A batch is durable, its commit about to be sent. 2. SIGSTOP. 3. The seats expire, another member takes their
    partitions and goes on. 4. SIGCONT: the commit is sent, under a membership that is over."""
    topic, server = new_topic(4), apache_kafka.bootstrap_servers
    produce(server, topic, 40, partitions=4)
    set_committed(server, group, topic, all_at(5))
    more = {"startingOffsets": "committed", "kafka.session.timeout.ms": 6_000}
    read = options(server, topic, group, **more)
    point = "after commit log, before group commit"
    with Application(tmp_path, read, sink="batches", stop_at=point) as application:
        application.await_stop_point(300)
        application.pause()
        batch = {(r.partition, r.offset) for r in rows(tmp_path)}
        assert committed(server, group, topic, 4) == all_at(5)
        with Sharing(server, group, topic, commit_each=True, protocol=OF_ENVIRONMENT) as peer:
            produce(server, topic, 40, partitions=4, first=40)
            wait_for(lambda: len(peer.rows) == 60, "the other member to read the batch, and on", 60)
            assert committed(server, group, topic, 4) == all_at(20)
            expired = len(commits(group_history(server, group)))
            generation = stable_generation(apache_kafka, group)
            application.release()
            application.resume()
            wait_for(lambda: 1 <= len(peer.owned) < 4, "the seats to rejoin", 60)
            # No member has had a new record to read so far: any commit since is the late one, and got through.
            assert commits(group_history(server, group))[expired:] == []
            assert stable_generation(apache_kafka, group) > generation
            produce(server, topic, 40, partitions=4, first=80)
            wait_for(lambda: committed(server, group, topic, 4) == all_at(30), "all to be read and known", 60)
        produce(server, topic, 40, partitions=4, first=120)
        wait_for(lambda: committed(server, group, topic, 4) == all_at(40), "the query to go on alone", 60)
        application.stop()
    ours = [(r.partition, r.offset) for r in rows(tmp_path)]
    assert len(ours) == len(set(ours))
    assert len(peer.rows) == len(set(peer.rows))
    assert batch == {(p, o) for p in range(4) for o in range(5, 10)}
    assert set(ours) & set(peer.rows) == batch, "read by both: the one batch that the group knew nothing of"
    assert set(ours) | set(peer.rows) == {place for place in contents(server, topic) if place[1] >= 5}, "a gap"
    assert_never_rewound(group_history(server, group))
