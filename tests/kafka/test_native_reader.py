"""Our own reader gives librdkafka's rows, on every kind of log; and leaves to it exactly what is not ordinary."""

import random
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AclOperation
from harness.both_readers import by_both, natively, reading, whole
from harness.decoder import built_decoder
from harness.kafka import MakeTopic, produce
from harness.secured import ALICE, PASSWORDS
from harness.waiting import wait_for

from pyspark_kgroup.executor.range_reader import read_ranges
from pyspark_kgroup.shared.tickets import Range, ReadSettings
from spark_kgroup.testing import ApacheKafka

if TYPE_CHECKING:
    from harness.secured import SecuredKafka

TEN_MEGABYTES = 10 * 1024 * 1024

both_levels = pytest.mark.parametrize("isolation", ["read_committed", "read_uncommitted"])


@pytest.fixture(scope="module", autouse=True)
def decoder() -> None:
    built_decoder()


@pytest.fixture
def transactions(apache_kafka: ApacheKafka) -> Producer:
    producer = Producer({"bootstrap.servers": apache_kafka.bootstrap_servers, "transactional.id": uuid4().hex})
    producer.init_transactions(30)
    return producer


def fill(producer: Producer, topic: str, values: Sequence[bytes], partition: int = 0) -> None:
    for value in values:
        producer.produce(topic, value, value[:1], partition)
        producer.poll(0)
    assert producer.flush(30) == 0


def run_transaction(producer: Producer, topic: str, values: Sequence[bytes], partition: int, *, commit: bool) -> None:
    producer.begin_transaction()
    fill(producer, topic, values, partition)
    producer.commit_transaction(30) if commit else producer.abort_transaction(30)


def options(kafka: ApacheKafka, **more: str) -> dict[str, str]:
    return {"kafka.bootstrap.servers": kafka.bootstrap_servers, "includeHeaders": "true", **more}


def all_of(kafka: ApacheKafka, topic: str, **more: str) -> tuple[list[Range], ReadSettings]:
    settings, leaders = reading(options(kafka, **more), topic)
    return whole(kafka.bootstrap_servers, topic, leaders), settings


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_records_of_every_codec_shape_and_size_are_the_same_rows(
    apache_kafka: ApacheKafka, new_topic: MakeTopic, codec: str
) -> None:
    """Whole, cut at random, and in fetches of a batch each; any key, value or header may be null."""
    topic, rng = new_topic(4), random.Random(codec)
    producer = Producer(
        {"bootstrap.servers": apache_kafka.bootstrap_servers, "compression.type": codec, "linger.ms": 5}
    )
    for number in range(4_000):
        text = b"%d " % number * rng.choice([0, 1, 1, 5, 100])
        headers = [("h", b"1"), ("h", None), ("ü", b"\x00\xff"), ("", b"")][: rng.randrange(5)]
        value = None if rng.random() < 0.1 else text
        producer.produce(topic, value, rng.choice([None, b"", b"k", text]), number % 4, headers=headers)
        producer.poll(0)
        if rng.random() < 0.01:
            producer.flush(30)
    assert producer.flush(30) == 0
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
    assert producer.flush(30) == 0
    table = by_both(*all_of(apache_kafka, topic))
    assert set(table["timestampType"].to_pylist()) == {int(kind == "LogAppendTime")}


@both_levels
def test_transactions_are_read_as_the_isolation_level_says(
    apache_kafka: ApacheKafka, new_topic: MakeTopic, producer: Producer, transactions: Producer, isolation: str
) -> None:
    """Plain records, committed and aborted ones in turn; every range that begins or ends among them."""
    topic = new_topic(2)
    for turn in range(4):
        fill(producer, topic, [b"plain %d" % turn] * 3)
        run_transaction(transactions, topic, [b"t %d" % turn] * 5, 0, commit=turn % 2 == 0)
    run_transaction(transactions, topic, [b"aborted"] * 3, 1, commit=False)
    more = {"kafka.isolation.level": isolation}

    def all_ended() -> list[Range] | None:
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
    producer = Producer({"bootstrap.servers": apache_kafka.bootstrap_servers, "message.max.bytes": 2 * TEN_MEGABYTES})
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
    assert producer.flush(30) == 0

    def compacted() -> list[Range] | None:
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


# ----------------------------------------------------------------------------------------------- TLS and SASL


JAAS = {"sasl.username": ALICE, "sasl.password": PASSWORDS[ALICE]}


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


# ---------------------------------------------------------------------------------------------- what is left


def rest_by_librdkafka(ranges: Sequence[Range], settings: ReadSettings) -> list[int]:
    """The offsets of both readers, one after the other, as a query reads them."""
    ours, left = natively(ranges, settings)
    assert left
    return [*ours["offset"].to_pylist(), *(o for b in read_ranges(left, settings) for o in b["offset"].to_pylist())]


def test_a_leader_of_another_epoch_is_left_to_librdkafka(
    apache_kafka: ApacheKafka, topic: str, producer: Producer
) -> None:
    fill(producer, topic, [b"%d" % number for number in range(100)])
    ((first, *_), settings) = all_of(apache_kafka, topic)
    assert first.leader is not None
    for epoch in (first.leader.epoch + 1, 7):
        changed = first._replace(leader=first.leader._replace(epoch=epoch))
        assert rest_by_librdkafka([changed], settings) == list(range(100))


def test_a_topic_that_was_created_anew_gives_no_row_of_the_new_one(
    apache_kafka: ApacheKafka, topic: str, producer: Producer
) -> None:
    """By its id it is noticed in this read."""
    fill(producer, topic, [b"old"] * 10)
    ((first, *_), settings) = all_of(apache_kafka, topic)
    apache_kafka.admin.delete_topics([topic])[topic].result(30)
    wait_for(lambda: topic not in apache_kafka.admin.list_topics(timeout=10).topics, "the end of the topic")
    apache_kafka.create_topic(topic, partitions=4)
    fill(producer, topic, [b"new"] * 10)
    table, left = natively([first], settings)
    assert (table.num_rows, left) == (0, (first,))


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


# ------------------------------------------------------------------------------------------------ several brokers


@pytest.fixture(scope="module")
def three_nodes() -> Iterator[ApacheKafka]:
    with ApacheKafka(nodes=3, jvm_options=("-Xmx300m", "-XX:TieredStopAtLevel=1")) as kafka:
        yield kafka


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
    try:
        ours, left = natively(ranges, settings)
        assert left
        rest = list(read_ranges(left, settings))
        found = [*zip(ours["partition"].to_pylist(), ours["offset"].to_pylist(), strict=True)]
        found += [pair for b in rest for pair in zip(b["partition"].to_pylist(), b["offset"].to_pylist(), strict=True)]
        assert sorted(found) == [(r.partition, o) for r in ranges for o in range(r.start_offset, r.end_offset)]
    finally:
        victim.restart()
