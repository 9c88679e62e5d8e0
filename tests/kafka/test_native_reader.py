"""Our own reader gives librdkafka's rows, on every kind of log, and leaves to it exactly the unusual batches."""

import logging
import os
import pickle
import random
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

import pyarrow as pa
import pytest
from confluent_kafka import ElectionType, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AclOperation
from harness.both_readers import by_both, natively, reading, whole
from harness.decoder import built_decoder
from harness.kafka import MakeTopic, fill, produce, run_transaction
from harness.query import Query
from harness.secured import ALICE, PASSWORDS
from harness.waiting import wait_for

import pyspark_kgroup
from pyspark_kgroup.errors import DataLoss
from pyspark_kgroup.executor.native import fetched_log
from pyspark_kgroup.executor.native.broker_connection import BrokerConnection
from pyspark_kgroup.executor.native.fetched_log import FetchedLog
from pyspark_kgroup.executor.native.fetcher import Chunk, Fetcher
from pyspark_kgroup.executor.read import range_reader, topic_ids, unread_ranges
from pyspark_kgroup.executor.read.range_reader import read_with_librdkafka
from pyspark_kgroup.executor.read.reader import read_ranges
from pyspark_kgroup.shared.tickets import OffsetRange, ReadSettings
from spark_kgroup.testing import ApacheKafka

if TYPE_CHECKING:
    from harness.secured import SecuredKafka

TEN_MEGABYTES = 10 * 1024 * 1024

both_levels = pytest.mark.parametrize("isolation", ["read_committed", "read_uncommitted"])


@pytest.fixture(scope="session", autouse=True)
def decoder() -> None:
    built_decoder()  # of the session, not of the module: one process need not run all of its tests


@pytest.fixture(autouse=True)
def reasons_are_shown(caplog: pytest.LogCaptureFixture) -> None:
    """A failure shows why a range was left to librdkafka."""
    caplog.set_level(logging.INFO, "pyspark_kgroup.executor.native")


def options(kafka: ApacheKafka, **more: str) -> dict[str, str]:
    return {"kafka.bootstrap.servers": kafka.bootstrap_servers, "includeHeaders": "true", **more}


def all_of(kafka: ApacheKafka, topic: str, **more: str) -> tuple[list[OffsetRange], ReadSettings]:
    settings, leaders = reading(options(kafka, **more), topic)
    return whole(kafka.bootstrap_servers, topic, leaders), settings


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_records_of_every_codec_shape_and_size_are_the_same_rows(
    apache_kafka: ApacheKafka, new_topic: MakeTopic, codec: str
) -> None:
    """Whole, cut at random, and in fetches of a batch each. Any key, value or header may be null."""
    topic, rng = new_topic(4), random.Random(codec)
    producer = Producer(
        {
            "bootstrap.servers": apache_kafka.bootstrap_servers,
            "compression.type": codec,
            "linger.ms": 5,
            "enable.idempotence": True,
        }
    )
    for number in range(4_000):
        text = b"%d " % number * rng.choice([0, 1, 1, 5, 100])
        every: list[tuple[str, str | bytes | None]] = [("h", b"1"), ("h", None), ("ü", b"\x00\xff"), ("", b"")]
        headers = every[: rng.randrange(5)]
        value = None if rng.random() < 0.1 else text
        producer.produce(topic, value, rng.choice([None, b"", b"k", text]), number % 4, headers=headers)
        producer.poll(0)
        if rng.random() < 0.01:
            producer.flush(120)
    assert producer.flush(120) == 0
    ranges, settings = all_of(apache_kafka, topic)
    assert by_both(ranges, settings).num_rows == 4_000
    cuts = [sorted(rng.sample(range(r.start_offset, r.end_offset + 1), 2)) for r in ranges]
    cut = [r._replace(start_offset=first, end_offset=end) for r, (first, end) in zip(ranges, cuts, strict=True)]
    for more in ({}, {"kafka.max.partition.fetch.bytes": "700"}):
        settings, _ = reading(options(apache_kafka, **more), topic)
        by_both(cut, settings)


@pytest.mark.parametrize("kind", ["CreateTime", "LogAppendTime"])
def test_timestamps_of_all_kinds_are_the_same(
    apache_kafka: ApacheKafka, new_topic: MakeTopic, producer: Producer, kind: str
) -> None:
    topic = new_topic(message_timestamp_type=kind)
    for timestamp in (1, 1_700_000_000_123, -1, 1_000):
        producer.produce(topic, b"v", timestamp=timestamp)
    assert producer.flush(120) == 0
    table = by_both(*all_of(apache_kafka, topic))
    assert set(table["timestampType"].to_pylist()) == {int(kind == "LogAppendTime")}


@both_levels
def test_transactions_are_read_as_the_isolation_level_says(
    apache_kafka: ApacheKafka, new_topic: MakeTopic, producer: Producer, transactions: Producer, isolation: str
) -> None:
    """Plain records, committed and aborted ones in turn, and every range that begins or ends among them."""
    topic = new_topic(2)
    for turn in range(4):
        fill(producer, topic, [b"plain %d" % turn] * 3)
        run_transaction(transactions, topic, [b"t %d" % turn] * 5, 0, commit=turn % 2 == 0)
    run_transaction(transactions, topic, [b"aborted"] * 3, 1, commit=False)
    more = {"kafka.isolation.level": isolation}

    def all_ended() -> list[OffsetRange] | None:
        ranges, _ = all_of(apache_kafka, topic, **more)
        return ranges if sorted(r.end_offset for r in ranges) == [4, 36] else None

    ranges = wait_for(all_ended, "the ends of the transactions")
    settings, _ = reading(options(apache_kafka, **more), topic)
    assert by_both(ranges, settings).num_rows == (22 if isolation == "read_committed" else 35)
    first = next(r for r in ranges if r.partition == 0)
    for start in range(0, 36, 5):
        by_both([first._replace(start_offset=start)], settings)
        by_both([first._replace(end_offset=start)], settings)


def test_records_of_ten_megabytes_come_whole(apache_kafka: ApacheKafka, new_topic: MakeTopic) -> None:
    topic = new_topic(2, max_message_bytes=str(2 * TEN_MEGABYTES))
    limits = {"message.max.bytes": 2 * TEN_MEGABYTES, "enable.idempotence": True}
    producer = Producer({"bootstrap.servers": apache_kafka.bootstrap_servers, **limits})
    for partition in range(2):
        fill(producer, topic, [b"small", b"x" * TEN_MEGABYTES, b"small", b"y" * TEN_MEGABYTES], partition)
    assert by_both(*all_of(apache_kafka, topic)).num_rows == 8


def test_a_compacted_log_has_the_same_gaps(apache_kafka: ApacheKafka, new_topic: MakeTopic, producer: Producer) -> None:
    topic = new_topic(
        cleanup_policy="compact", min_cleanable_dirty_ratio="0.001", segment_bytes="1048576", delete_retention_ms="0"
    )
    filler = b"." * 1_000
    for number in range(2_500):
        producer.produce(topic, b"%d" % number + filler, b"%d" % (number % 7))
    assert producer.flush(120) == 0

    def compacted() -> list[OffsetRange] | None:
        ranges, settings = all_of(apache_kafka, topic)
        return ranges if natively(ranges, settings)[0].num_rows < 2_000 else None

    ranges = wait_for(compacted, "a compacted log", 60, every_s=0.5)
    _, settings = all_of(apache_kafka, topic)
    for first in range(0, 2_500, 250):
        by_both([r._replace(start_offset=first, end_offset=first + 249) for r in ranges], settings)


def test_a_range_is_read_while_its_log_grows(
    apache_kafka: ApacheKafka, new_topic: MakeTopic, producer: Producer
) -> None:
    topic = new_topic(1)
    fill(producer, topic, [b"%d" % number for number in range(1_000)])
    ranges, settings = all_of(apache_kafka, topic)
    fill(producer, topic, [b"later"] * 1_000)
    assert by_both(ranges, settings)["offset"].to_pylist() == list(range(1_000))


def test_a_query_whose_tasks_read_by_themselves_needs_no_librdkafka(
    apache_kafka: ApacheKafka, new_topic: MakeTopic, producer: Producer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tickets of such tasks name the partitions' leaders."""
    topic = new_topic(3)
    for partition in range(3):
        fill(producer, topic, [b"%d" % number for number in range(100)], partition)
    monkeypatch.setattr(range_reader, "read_with_librdkafka", lambda *_: pytest.fail("librdkafka read"))
    more = {"prefetchBytes": "0", "reader": "native", "maxOffsetsPerTrigger": "70"}
    with Query(apache_kafka.bootstrap_servers, f"group-{topic}", topic, executor=None, **more) as query:
        query.settle()
    assert {p: len(rows) for (_, p), rows in query.rows.items()} == dict.fromkeys(range(3), 100)


# ----------------------------------------------------------------------------------------------- TLS and SASL


JAAS = {"sasl.username": ALICE, "sasl.password": PASSWORDS[ALICE]}


@pytest.mark.xdist_group("together-secured_kafka")
@pytest.mark.parametrize(
    ("listener", "properties"),
    [
        ("SSL", {}),
        ("MTLS", None),
        ("SASL_SSL", {**JAAS, "sasl.mechanism": "SCRAM-SHA-512"}),
        ("SASL_PLAINTEXT", {**JAAS, "sasl.mechanism": "SCRAM-SHA-256"}),
        ("SASL_SSL", {**JAAS, "sasl.mechanism": "PLAIN"}),
        ("SHORT", {**JAAS, "sasl.mechanism": "PLAIN"}),
    ],
)
def test_brokers_that_want_tls_or_a_login_are_read(
    secured_kafka: "SecuredKafka", listener: str, properties: dict[str, str] | None
) -> None:
    topic = f"topic-{uuid4().hex[:8]}"
    secured_kafka.kafka.create_topic(topic, partitions=2)
    produce(secured_kafka.kafka.bootstrap_servers, topic, 2_000, partitions=2)
    secured_kafka.allow(ALICE, AclOperation.READ, topic=topic)
    if properties is None:
        ours = secured_kafka.client
        secured_kafka.allow("tls-client", AclOperation.READ, topic=topic)
        properties = {"ssl.certificate.location": ours.certificate_location, "ssl.key.location": ours.key_location}
    protocol = {"MTLS": "SSL", "SHORT": "SASL_SSL"}.get(listener, listener)
    tls = {} if protocol == "SASL_PLAINTEXT" else {"ssl.ca.pem": secured_kafka.ca_pem}
    given = {"security.protocol": protocol, **tls, **properties}
    where = {"kafka.bootstrap.servers": secured_kafka.bootstrap(listener)}
    settings, leaders = reading({**where, **{f"kafka.{name}": value for name, value in given.items()}}, topic)
    ranges = whole(secured_kafka.kafka.bootstrap_servers, topic, leaders)
    assert by_both(ranges, settings).num_rows == 2_000


# ---------------------------------------------------------------------------------------------- ranges for librdkafka


def rest_by_librdkafka(ranges: Sequence[OffsetRange], settings: ReadSettings) -> list[int]:
    """The offsets of both readers, one after the other, as a query reads them."""
    ours, left = natively(ranges, settings)
    assert left
    return [
        *ours["offset"].to_pylist(),
        *(o for b in read_with_librdkafka(left, settings) for o in b["offset"].to_pylist()),
    ]


def test_a_leader_of_another_epoch_is_left_to_librdkafka(
    apache_kafka: ApacheKafka, topic: str, producer: Producer
) -> None:
    fill(producer, topic, [b"%d" % number for number in range(100)])
    ((first, *_), settings) = all_of(apache_kafka, topic)
    assert first.leader is not None
    for epoch in (first.leader.epoch + 1, 7):
        changed = first._replace(leader=first.leader._replace(epoch=epoch))
        assert rest_by_librdkafka([changed], settings) == list(range(100))


@pytest.mark.parametrize("created", [True, False], ids=["created anew", "deleted"])
@pytest.mark.parametrize("fail", [True, False], ids=["an error", "skipped"])
def test_a_topic_that_was_deleted_gives_no_row_of_a_new_one(
    apache_kafka: ApacheKafka,
    topic: str,
    producer: Producer,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    fail: bool,
    created: bool,
) -> None:
    """The topic id shows the deletion in this read. The offsets would not: librdkafka reads the new topic by name."""
    monkeypatch.setattr(fetched_log, "FETCH_TROUBLE_MS", 500)
    monkeypatch.setattr(unread_ranges, "UNKNOWN_FOR_MS", 500)
    monkeypatch.setattr(topic_ids, "TOPIC_GONE_AFTER_MS", 500)
    fill(producer, topic, [b"old"] * 10)
    there = f"{topic}-there"
    apache_kafka.create_topic(there, partitions=1)
    fill(producer, there, [b"there"] * 10)
    ((gone, *_), settings), ((other,), _) = all_of(apache_kafka, topic), all_of(apache_kafka, there)
    settings = replace(settings, fail_on_data_loss=fail)
    apache_kafka.delete_topic(topic)
    if created:
        apache_kafka.create_topic(topic, partitions=4)
        fill(producer, topic, [b"new"] * 10)
        theirs = pa.Table.from_batches(read_with_librdkafka([gone._replace(leader=None)], settings))  # without its id
        assert set(theirs["value"].to_pylist()) == {b"new"}, "which is what this test is about"
    assert gone.leader is not None
    why = "its topic is another one now" if created else "the partition does not exist any more"
    message = f"Offsets 0 to 9 of {topic}-0 were still to be read, but {why}"
    if fail:
        with pytest.raises(DataLoss, match=re.escape(message) + ".+failOnDataLoss=false"):
            list(read_ranges([gone, other], settings))
        return
    table = pa.Table.from_batches(read_ranges([gone, other], settings))
    assert (set(table["topic"].to_pylist()), table.num_rows) == ({there}, 10)
    (warning,) = [record.getMessage() for record in caplog.records if "Data loss" in record.getMessage()]
    assert message in warning


def test_offsets_that_are_gone_are_left_to_librdkafka(
    apache_kafka: ApacheKafka, topic: str, producer: Producer
) -> None:
    fill(producer, topic, [b"v"] * 10)
    ((first, *_), settings) = all_of(apache_kafka, topic)
    beyond = first._replace(end_offset=15)
    table, left = natively([beyond], settings)
    assert table["offset"].to_pylist() == list(range(10))
    assert left == (beyond._replace(start_offset=10),)
    past = first._replace(start_offset=20, end_offset=30)
    assert natively([past], settings)[1] == (past,)


AS_THREE_TASKS = """
import pickle, sys
from pyspark_kgroup.executor.read.reader import read_ranges
ranges, settings = pickle.load(sys.stdin.buffer)
for _ in range(3):
    print(sum(batch.num_rows for batch in read_ranges(ranges, settings)))
"""


def test_an_installation_without_a_decoder_reads_with_librdkafka_and_warns_once(
    apache_kafka: ApacheKafka, topic: str, producer: Producer, tmp_path: Path
) -> None:
    """A worker is a process of its own, which reads for one task after the other."""
    fill(producer, topic, [b"v"] * 100)
    installed = Path(pyspark_kgroup.__file__).parent
    shutil.copytree(installed, tmp_path / installed.name, ignore=shutil.ignore_patterns("lib"))
    worker = subprocess.run(
        [sys.executable, "-c", AS_THREE_TASKS],
        input=pickle.dumps(all_of(apache_kafka, topic)),
        capture_output=True,
        check=True,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        timeout=60,
    )
    assert worker.stdout.split() == [b"100"] * 3
    (warning,) = worker.stderr.decode().splitlines()
    assert warning.startswith("Reading with librdkafka, which is slower: this installation has no decoder for ")


# ------------------------------------------------------------------------------------------------ several brokers


on_three_nodes = pytest.mark.xdist_group("together-reads_from_three_nodes")


def leader_of(kafka: ApacheKafka, topic: str) -> int:
    return kafka.admin.list_topics(topic, 30).topics[topic].partitions[0].leader


def all_in_sync(kafka: ApacheKafka, topic: str) -> bool:
    return all(len(one.isrs) == 3 for one in kafka.admin.list_topics(topic, 30).topics[topic].partitions.values())


def elect_preferred(kafka: ApacheKafka, topic: str, partitions: int, leader: int) -> None:
    """Let the first replica of each partition lead again."""

    def leads() -> bool:
        with suppress(KafkaException):  # refused while a replica is not in sync yet
            kafka.admin.elect_leaders(ElectionType.PREFERRED, [TopicPartition(topic, p) for p in range(partitions)])
        return leader_of(kafka, topic) == leader

    wait_for(leads, "the first replica to lead", 60, every_s=0.2)


def move_away(kafka: ApacheKafka, topic: str) -> None:
    """Kill the leader, and bring it back as a follower."""
    first = next(node for node in kafka.nodes if node.node_id == leader_of(kafka, topic))
    first.kill()
    wait_for(lambda: leader_of(kafka, topic) not in (-1, first.node_id), "another leader", 60)
    first.restart()
    wait_for(lambda: all_in_sync(kafka, topic), "the replicas to be in sync", 60)


@on_three_nodes
def test_a_leader_that_moves_in_the_midst_of_a_read_is_followed_without_librdkafka(three_nodes: ApacheKafka) -> None:
    """KIP-951: the old leader names the new one, and its address."""
    topic = f"topic-{uuid4().hex[:8]}"
    three_nodes.create_topic(topic, partitions=3, replication_factor=3)
    produce(three_nodes.bootstrap_servers, topic, 9_000, partitions=3, size=400)
    first = leader_of(three_nodes, topic)
    move_away(three_nodes, topic)
    options = {"kafka.bootstrap.servers": three_nodes.bootstrap_servers, "kafka.max.partition.fetch.bytes": "4096"}
    settings, leaders = reading(options, topic)
    assert leaders[0].node_id != first
    ranges = whole(three_nodes.bootstrap_servers, topic, leaders)

    def move(batches: int) -> None:
        if batches == 1:
            elect_preferred(three_nodes, topic, 3, first)

    assert by_both(ranges, settings, move).num_rows == 9_000


@on_three_nodes
@pytest.mark.full
def test_a_log_without_the_epoch_that_was_read_is_said_to_be_truncated(
    three_nodes: ApacheKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    """KIP-320, as after an unclean election: a log of the epochs 0 and 2, of which the reader has seen epoch 1."""
    topic, where = f"topic-{uuid4().hex[:8]}", three_nodes.bootstrap_servers
    three_nodes.create_topic(topic, partitions=1, replication_factor=3)
    first = leader_of(three_nodes, topic)
    produce(where, topic, 10, partitions=1)
    move_away(three_nodes, topic)
    elect_preferred(three_nodes, topic, 1, first)
    produce(where, topic, 10, partitions=1, first=10)
    more = {"kafka.bootstrap.servers": where, "kafka.max.partition.fetch.bytes": "1"}
    settings, leaders = reading(more, topic)
    assert leaders[0].epoch == 2
    ranges = whole(where, topic, leaders)
    assert by_both(ranges, settings).num_rows == 20
    on_records = FetchedLog.on_records
    monkeypatch.setattr(FetchedLog, "on_records", lambda log, end, epoch: on_records(log, end, epoch or 1))
    with pytest.raises(DataLoss, match=rf"Offsets 10 to 19 of {topic}-0 .+ from offset 10 on .+ it was truncated"):
        natively(ranges, settings)
    table, left = natively(ranges, replace(settings, fail_on_data_loss=False))
    assert (table["offset"].to_pylist(), left) == (list(range(20)), ())


@pytest.fixture
def read_from(monkeypatch: pytest.MonkeyPatch) -> set[int]:
    """The ports of the brokers that gave our own reader records."""
    ports: set[int] = set()
    take = Fetcher.take

    def listening(fetcher: Fetcher, connection: BrokerConnection, *, go_on: bool = True) -> list[Chunk]:
        chunks = take(fetcher, connection, go_on=go_on)
        ports.update(connection.broker.port for _ in chunks)
        return chunks

    monkeypatch.setattr(Fetcher, "take", listening)
    return ports


@on_three_nodes
def test_a_replica_in_our_rack_is_read_instead_of_the_leader(three_nodes: ApacheKafka, read_from: set[int]) -> None:
    """KIP-392. Without a rack, and in the leader's own rack, all comes from the leader."""
    topic = f"topic-{uuid4().hex[:8]}"
    three_nodes.create_topic(topic, partitions=1, replication_factor=3)
    wait_for(lambda: all_in_sync(three_nodes, topic), "the replicas to be in sync", 60)
    produce(three_nodes.bootstrap_servers, topic, 20_000, partitions=1, size=400)
    leader = leader_of(three_nodes, topic)
    ports = {node.node_id: node.port for node in three_nodes.nodes}
    assert len(ports) == 3
    racks = {"": ports[leader], **{f"rack-{node_id}": port for node_id, port in ports.items()}}
    for rack, port in racks.items():
        more = {"kafka.client.rack": rack} if rack else {}
        settings, leaders = reading({"kafka.bootstrap.servers": three_nodes.bootstrap_servers, **more}, topic)
        ranges = whole(three_nodes.bootstrap_servers, topic, leaders)
        read_from.clear()
        assert by_both(ranges, settings).num_rows == 20_000
        assert read_from == {port}, rack


@on_three_nodes
def test_partitions_of_several_brokers_are_read_side_by_side_and_one_that_dies_leaves_the_rest(
    three_nodes: ApacheKafka,
) -> None:
    topic = f"topic-{uuid4().hex[:8]}"
    three_nodes.create_topic(topic, partitions=6, replication_factor=3)
    produce(three_nodes.bootstrap_servers, topic, 60_000, partitions=6, size=100)
    settings, leaders = reading({"kafka.bootstrap.servers": three_nodes.bootstrap_servers}, topic)
    assert len({leader.node_id for leader in leaders.values()}) == 3
    ranges = whole(three_nodes.bootstrap_servers, topic, leaders)
    assert by_both(ranges, settings).num_rows == 60_000
    victim = next(node for node in three_nodes.nodes if node.node_id == leaders[0].node_id)
    victim.kill()
    ours, left = natively(ranges, settings)
    assert left
    rest = list(read_with_librdkafka(left, settings))
    found = [*zip(ours["partition"].to_pylist(), ours["offset"].to_pylist(), strict=True)]
    found += [pair for b in rest for pair in zip(b["partition"].to_pylist(), b["offset"].to_pylist(), strict=True)]
    assert sorted(found) == [(r.partition, o) for r in ranges for o in range(r.start_offset, r.end_offset)]
