"""The real Kafka that the other tests rely on: it answers, survives kills and pauses, and leaves no process behind."""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from harness.group_log import decode_group_metadata, read_group_record
from harness.kafka import console_consumer, contents, produce
from harness.waiting import wait_for

from spark_kgroup.errors import EnvironmentProblem, OptionError
from spark_kgroup.testing import ApacheKafka

READY_S_MAX = 6.0
"""One node is ready in under 6 s once its jars are cached, on a machine that has a core to spare."""


def unique(what: str) -> str:
    return f"{what}-{uuid4().hex[:8]}"


def is_alive(pid: int) -> bool:
    state = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True, check=False).stdout
    return bool(state.strip()) and not state.startswith("Z")


def await_end(*pids: int) -> None:
    def has_ended(pid: int) -> bool:
        return not is_alive(pid)

    for pid in pids:
        wait_for(partial(has_ended, pid), f"the end of process {pid}")


@contextmanager
def static_member(
    kafka: ApacheKafka, group: str, instance_id: str, topic: str, *, beside: Sequence[Consumer] = ()
) -> Iterator[Consumer]:
    """A librdkafka consumer as a static member with an assignment. At the end it closes without leaving the group.

    Those `beside` it are polled meanwhile, since they must rejoin for the rebalance to end.
    """
    settings = {"group.instance.id": instance_id, "session.timeout.ms": 6000, "auto.offset.reset": "earliest"}
    member = Consumer({"bootstrap.servers": kafka.bootstrap_servers, "group.id": group, "log_level": 0, **settings})
    try:
        member.subscribe([topic])

        def assigned() -> bool:
            for each in (member, *beside):
                each.poll(0.05)
            return bool(member.assignment())

        wait_for(assigned, "an assignment")
        yield member
    finally:
        member.close()


@pytest.mark.full
def test_one_node_is_ready_within_the_bound(apache_kafka: ApacheKafka) -> None:
    """The shared node has filled the cache of jars. On a busy machine the bound grows with the queue for a core."""
    seconds = []
    for _ in range(3):
        began = time.monotonic()
        with ApacheKafka():
            seconds.append(time.monotonic() - began)
        bound = READY_S_MAX * max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))
        print(f"ready after {seconds[-1]:.1f} s, bound {bound:.1f} s")
        if seconds[-1] < bound:
            return
    raise AssertionError(f"ready after {seconds} s")


def test_a_cluster_stores_records_and_leaves_no_process_or_file_when_it_stops(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with ApacheKafka() as kafka:
        pid = kafka.nodes[0].pid
        assert is_alive(pid)
        assert list(tmp_path.iterdir())
        kafka.create_topic("flights", 3)
        kafka.add_partitions("flights", 5)
        produce(kafka.bootstrap_servers, "flights", 100, partitions=5)
        found = contents(kafka.bootstrap_servers, "flights")
    assert set(found.values()) == {f"{index:020d}".encode() for index in range(100)}
    assert {partition for partition, _ in found} == {0, 1, 2, 3, 4}
    assert not is_alive(pid)
    assert not list(tmp_path.iterdir())


def test_a_refused_topic_is_an_error(apache_kafka: ApacheKafka) -> None:
    topic = unique("topic")
    apache_kafka.create_topic(topic, 1)
    with pytest.raises(EnvironmentProblem, match=f"Could not create topic {topic}.*already exists"):
        apache_kafka.create_topic(topic, 1)
    with pytest.raises(EnvironmentProblem, match=f"Could not add partitions to {topic}"):
        apache_kafka.add_partitions(topic, 1)


@pytest.fixture(scope="module")
def kafka_to_interrupt() -> Iterator[ApacheKafka]:
    """One node for the tests that kill it and start it again, or pause it and let it go on."""
    with ApacheKafka() as kafka:
        yield kafka


def test_a_killed_node_restarts_in_place_with_its_data(kafka_to_interrupt: ApacheKafka) -> None:
    kafka = kafka_to_interrupt
    kafka.create_topic("t", 2)
    produce(kafka.bootstrap_servers, "t", 50, partitions=2)
    before = contents(kafka.bootstrap_servers, "t")
    node = kafka.nodes[0]
    pid, port = node.pid, node.port

    node.kill()
    assert not is_alive(pid)
    assert not node.running
    with pytest.raises(EnvironmentProblem, match="node 1 is not running"):
        _ = node.pid
    node.restart()
    kafka.await_ready()

    assert node.port == port
    assert node.pid != pid
    assert contents(kafka.bootstrap_servers, "t") == before


def test_a_paused_node_does_not_answer_until_it_is_resumed(kafka_to_interrupt: ApacheKafka) -> None:
    kafka = kafka_to_interrupt
    kafka.admin.list_topics(timeout=20)
    kafka.nodes[0].pause()
    try:
        with pytest.raises(KafkaException):
            kafka.admin.list_topics(timeout=0.5)
    finally:
        kafka.nodes[0].resume()
    wait_for(lambda: kafka.admin.list_topics(timeout=20).brokers, "an answer")


@pytest.mark.full
@pytest.mark.xdist_group("together-reads_from_three_nodes")
def test_three_nodes_go_on_when_one_is_killed_and_take_it_back(three_nodes: ApacheKafka) -> None:
    kafka, topic = three_nodes, unique("topic")
    assert len(kafka.bootstrap_servers.split(",")) == 3
    kafka.create_topic(topic, 3)
    produce(kafka.bootstrap_servers, topic, 30, partitions=3)

    kafka.nodes[0].kill()
    produce(kafka.bootstrap_servers, topic, 30, partitions=3, first=30)
    assert len(contents(kafka.bootstrap_servers, topic)) == 60

    kafka.nodes[0].restart()
    kafka.await_ready()
    kafka.await_in_sync()
    # At once: each partition has a leader, whichever node ends next.
    assert out_of_sync(kafka) == []


def out_of_sync(kafka: ApacheKafka) -> list[tuple[str, int]]:
    """Each partition of which not all replicas are in sync, those of internal topics too."""
    topics = kafka.admin.list_topics(timeout=20).topics.items()
    partitions = [(topic, at) for topic, described in topics for at in described.partitions.values()]
    return [(topic, at.id) for topic, at in partitions if len(at.isrs) < len(at.replicas)]


def test_a_data_directory_is_kept_used_again_and_used_by_one_at_a_time(tmp_path: Path) -> None:
    with ApacheKafka(data_dir=tmp_path / "data") as kafka:
        kafka.create_topic("t", 1)
        produce(kafka.bootstrap_servers, "t", 10, partitions=1)
        first = contents(kafka.bootstrap_servers, "t")
        with pytest.raises(EnvironmentProblem, match="Another Apache Kafka runs on"):
            ApacheKafka(data_dir=tmp_path / "data").start()
        kafka.admin.list_topics(timeout=20)
    with pytest.raises(EnvironmentProblem, match=r"data of 1 node\(s\), not 3"):
        ApacheKafka(3, data_dir=tmp_path / "data").start()
    with ApacheKafka(data_dir=tmp_path / "data") as kafka:
        assert contents(kafka.bootstrap_servers, "t") == first


def test_the_port_asked_for_is_used_and_a_taken_one_named(apache_kafka: ApacheKafka) -> None:
    taken = apache_kafka.nodes[0].port
    with pytest.raises(EnvironmentProblem, match=f"Cannot listen on 127.0.0.1:{taken}"):
        ApacheKafka(port=taken).start()


def test_server_properties_reach_the_broker_and_nonsense_is_an_error_with_the_log(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentProblem, match=r"Invalid value -1 for configuration log\.segment\.bytes"):
        ApacheKafka(data_dir=tmp_path, server_properties={"log.segment.bytes": "-1"}).start()
    with pytest.raises(EnvironmentProblem, match=r"(?s)node 1 died while it started.*server\.log.*NoSuchReporter"):
        ApacheKafka(data_dir=tmp_path, server_properties={"metric.reporters": "NoSuchReporter"}).start()


@pytest.mark.parametrize(("arguments", "word"), [({"nodes": 2}, "nodes"), ({"port": 65536}, "port")])
def test_wrong_arguments_are_refused_by_name(arguments: dict[str, Any], word: str) -> None:
    with pytest.raises(OptionError, match=word):
        ApacheKafka(**arguments)


def test_a_group_is_described_by_kafkas_own_tool(apache_kafka: ApacheKafka) -> None:
    topic, group = unique("topic"), unique("group")
    apache_kafka.create_topic(topic, 3)
    produce(apache_kafka.bootstrap_servers, topic, 30, partitions=3)
    assert apache_kafka.describe_group(group) == []

    with static_member(apache_kafka, group, "seat-0", topic) as member:
        member.commit(offsets=[TopicPartition(topic, 0, 10), TopicPartition(topic, 1, 4)], asynchronous=False)
        rows = apache_kafka.describe_group(group)
        state = apache_kafka.describe_group_state(group)

    assert [(row.topic, row.partition, row.current_offset, row.log_end_offset, row.lag) for row in rows] == [
        (topic, 0, 10, 10, 0),
        (topic, 1, 4, 10, 6),
        (topic, 2, None, 10, None),
    ]
    assert {row.instance_id for row in rows} == {"seat-0"}
    assert all(row.member_id and row.member_id.startswith("seat-0-") for row in rows)
    assert (state.state, state.assignor, state.member_count) == ("Stable", "range", 1)
    assert state.coordinator == apache_kafka.bootstrap_servers


def test_the_generation_is_read_from_the_coordinators_log(apache_kafka: ApacheKafka) -> None:
    topic, group = unique("topic"), unique("group")
    apache_kafka.create_topic(topic, 2)
    with static_member(apache_kafka, group, "seat-0", topic):
        first = read_group_record(apache_kafka.bootstrap_servers, group)
    with static_member(apache_kafka, group, "seat-0", topic) as leader:
        rejoined = read_group_record(apache_kafka.bootstrap_servers, group)
        with static_member(apache_kafka, group, "seat-1", topic, beside=[leader]):
            grown = read_group_record(apache_kafka.bootstrap_servers, group)

    assert first is not None
    assert (first.generation, first.protocol) == (1, "range")
    assert rejoined is not None
    assert rejoined.generation == 1, "a static rejoin makes no generation"
    assert rejoined.leader != first.leader, "but the member has a new id"
    assert grown is not None
    assert grown.generation == 2
    assert read_group_record(apache_kafka.bootstrap_servers, unique("group")) is None


@pytest.mark.since_kafka_4
def test_our_reading_of_the_log_agrees_with_kafkas_own_formatter(apache_kafka: ApacheKafka) -> None:
    topic, group = unique("topic"), unique("group")
    apache_kafka.create_topic(topic, 2)
    with static_member(apache_kafka, group, "seat-0", topic):
        record = read_group_record(apache_kafka.bootstrap_servers, group)
    assert record is not None
    printed = apache_kafka.tool(
        console_consumer(apache_kafka.release),
        *("--bootstrap-server", apache_kafka.bootstrap_servers, "--topic", "__consumer_offsets"),
        *("--from-beginning", "--timeout-ms", "10000"),
        *("--formatter", "org.apache.kafka.tools.consumer.GroupMetadataMessageFormatter"),
    )
    assert f'"group":"{group}"' in printed
    assert f'"generation":{record.generation},"protocol":"range","leader":"{record.leader}"' in printed


def test_a_record_of_an_unknown_version_is_refused() -> None:
    with pytest.raises(EnvironmentProblem, match="GroupMetadataValue v4"):
        decode_group_metadata(b"\x00\x04\x00\x00", 0)


def test_a_tool_that_fails_is_an_error_in_its_own_words(apache_kafka: ApacheKafka) -> None:
    with pytest.raises(EnvironmentProblem, match=r"(?s)ConsumerGroupCommand failed \(exit code 1\).*nonsense"):
        apache_kafka.tool(apache_kafka.release.group_tool, "--nonsense")


OWNER = """
import sys, time
from spark_kgroup.testing import ApacheKafka
kafka = ApacheKafka()
kafka.start()
print(kafka.nodes[0].pid, kafka.nodes[0].log_path.parent.parent, flush=True)
if sys.argv[1] == "raise":
    raise RuntimeError
if sys.argv[1] == "stay":
    time.sleep(1000)
"""


@pytest.mark.parametrize(
    "how", ["stay", pytest.param("raise", marks=pytest.mark.full), pytest.param("return", marks=pytest.mark.full)]
)
def test_no_jvm_and_no_directory_outlive_the_owner_however_it_ends(how: str) -> None:
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, how], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    with owner:
        assert owner.stdout is not None
        pid, directory = owner.stdout.readline().split()
        if how == "stay":
            assert is_alive(int(pid))
            owner.kill()
    await_end(int(pid))
    wait_for(lambda: not Path(directory).exists(), "the removal of the directory")


def test_a_producer_reaches_the_shared_kafka(apache_kafka: ApacheKafka) -> None:
    topic = unique("topic")
    apache_kafka.create_topic(topic, 1, configs={"retention.ms": "-1"})
    producer = Producer({"bootstrap.servers": apache_kafka.bootstrap_servers})
    producer.produce(topic, b"x")
    assert producer.flush(120) == 0


@pytest.mark.xdist_group("together-reads_from_three_nodes")
def test_records_stay_however_old_a_test_says_they_are(three_nodes: ApacheKafka) -> None:
    """Else those older than 7 days go as soon as brokers look for expired ones: 30 s after a start, then each 5 min."""
    kept, expiring = unique("kept"), unique("expiring")
    three_nodes.create_topic(kept, 3, replication_factor=1)  # one partition on each broker
    three_nodes.create_topic(expiring, 3, replication_factor=1, configs={"retention.ms": "60000"})
    producer = Producer({"bootstrap.servers": three_nodes.bootstrap_servers})
    for topic, partition in product((kept, expiring), range(3)):
        producer.produce(topic, b"old", partition=partition, timestamp=1_000_000_000_000)
    assert producer.flush(120) == 0
    wait_for(lambda: not contents(three_nodes.bootstrap_servers, expiring), "the brokers to look for expired records")
    assert contents(three_nodes.bootstrap_servers, kept) == dict.fromkeys(
        [(partition, 0) for partition in range(3)], b"old"
    )


def test_a_spark_that_is_started_beside_the_fixture_runs_a_python_that_was_chosen(apache_kafka: ApacheKafka) -> None:
    assert os.environ["PYSPARK_PYTHON"]
