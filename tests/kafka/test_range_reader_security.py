"""Driver and executor against a broker that authenticates them, without Spark. One may be let in and the other not."""

import logging
import pickle
import re
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest
import trustme
from confluent_kafka.admin import AclOperation
from harness.kafka import hex_id, produce
from harness.secured import ALICE, BOB, KEY_PASSWORD, PASSWORDS, TLS_CLIENT
from harness.waiting import wait_for

from pyspark_kgroup.executor.native import connection_security, fetched_log
from pyspark_kgroup.executor.read import range_reader, unread_ranges
from pyspark_kgroup.executor.read import reader as reader_of_all
from pyspark_kgroup.executor.read.range_reader import read_with_librdkafka
from pyspark_kgroup.offsets.checkpoint import EMPTY
from pyspark_kgroup.options.parser import parse
from pyspark_kgroup.shared.columns import COLUMNS, spark_schema
from pyspark_kgroup.shared.tickets import Leader, OffsetRange, Reader, ReadSettings
from pyspark_kgroup.stream import KgroupStreamReader
from spark_kgroup.errors import AuthenticationFailed, BrokerError
from spark_kgroup.threads import in_a_thread

if TYPE_CHECKING:
    from harness.secured import SecuredKafka

pytestmark = pytest.mark.xdist_group("together-secured_kafka")

SCRAM = {"sasl.mechanism": "SCRAM-SHA-512", "sasl.username": ALICE, "sasl.password": PASSWORDS[ALICE]}
RECORDS = 20


@pytest.fixture(scope="module")
def topic(secured_kafka: "SecuredKafka") -> str:
    name = f"topic-{uuid4().hex[:8]}"
    secured_kafka.kafka.create_topic(name, partitions=1)
    produce(secured_kafka.kafka.bootstrap_servers, name, RECORDS, partitions=1)
    secured_kafka.allow(ALICE, AclOperation.READ, topic=name)
    return name


@pytest.fixture
def short_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unread_ranges, "AUTHENTICATION_GRACE_MS", 1_000)


def options(secured: "SecuredKafka", listener: str, topic: str, group: str, **properties: str) -> dict[str, str]:
    protocol = listener if "SASL" in listener else "SSL"
    by_file = protocol == "SASL_PLAINTEXT" or "ssl.ca.location" in properties
    tls = {} if by_file else {"ssl.ca.pem": secured.ca_pem}
    given = {"security.protocol": protocol, **tls, **properties}
    return {
        "kafka.bootstrap.servers": secured.bootstrap(listener),
        "kafka.group.id": group,
        "subscribe": topic,
        "startingOffsets": "earliest",
        "members": "1",
        **{f"kafka.{name}": value for name, value in given.items()},
    }


def read(secured: "SecuredKafka", listener: str, topic: str, **properties: str) -> int:
    """How many rows an executor's consumer reads with these properties of librdkafka."""
    config = parse(options(secured, listener, topic, "g", **properties)).consumer_config()
    settings = ReadSettings(consumer_config=config, stall_timeout_ms=30_000)
    planned = OffsetRange(topic, 0, 0, RECORDS, unled_topic_id=hex_id(secured.kafka.admin, topic))
    return sum(batch.num_rows for batch in read_with_librdkafka([planned], settings))


def test_driver_and_executor_log_in_and_their_fullest_log_holds_no_secret(
    secured_kafka: "SecuredKafka", topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    ours, group = secured_kafka.client, f"group-{uuid4().hex[:8]}"
    secured_kafka.allow(ALICE, AclOperation.READ, group=group)
    certificate = {
        "ssl.certificate.location": ours.certificate_location,
        "ssl.key.pem": ours.encrypted_key_pem,
        "ssl.key.password": KEY_PASSWORD,
    }
    fullest = {"debug": "all", "log_level": "7"}
    given = options(secured_kafka, "SASL_SSL", topic, group, **SCRAM, **certificate, **fullest)
    reader = KgroupStreamReader(given, spark_schema(COLUMNS))
    try:
        end = reader.latestOffset(EMPTY.to_json())
        tickets = pickle.loads(pickle.dumps(reader.partitions(EMPTY.to_json(), end)))
        assert sum(batch.num_rows for ticket in tickets for batch in reader.read(ticket)) == RECORDS
    finally:
        reader.stop()
    assert f"seat {group}-0" in caplog.text, "the driver's log is not in ours: this test would see nothing"
    assert "[thrd:" in caplog.text, "librdkafka's log is not in ours: this test would see nothing"
    for secret in (PASSWORDS[ALICE], KEY_PASSWORD, *ours.encrypted_key_pem.splitlines()[1:-1]):
        assert secret not in caplog.text


JAAS = "org.apache.kafka.common.security.plain.PlainLoginModule required"


@pytest.mark.parametrize(
    ("listener", "properties"),
    [
        ("SSL", {}),
        ("MTLS", None),
        ("SASL_SSL", SCRAM),
        ("SASL_SSL", {**SCRAM, "sasl.mechanism": "PLAIN"}),
        ("SASL_SSL", {"sasl.mechanism": "PLAIN", "sasl.jaas.config": f'{JAAS} username="{ALICE}" password="%s";'}),
        ("SASL_PLAINTEXT", {**SCRAM, "sasl.mechanism": "SCRAM-SHA-256"}),
    ],
    ids=["TLS", "mutual TLS", "SCRAM-SHA-512", "PLAIN", "PLAIN, JAAS", "SCRAM-SHA-256 without TLS"],
)
def test_an_executor_reads_with_each_kind_of_login(
    secured_kafka: "SecuredKafka", topic: str, listener: str, properties: dict[str, str] | None
) -> None:
    """Tokens, of a callback and of a provider, are in the Spark tests."""
    if properties is None:
        ours = secured_kafka.client
        secured_kafka.allow(TLS_CLIENT, AclOperation.READ, topic=topic)
        properties = {"ssl.certificate.location": ours.certificate_location, "ssl.key.location": ours.key_location}
    if "sasl.jaas.config" in properties:
        quoted = PASSWORDS[ALICE].replace("\\", "\\\\").replace('"', '\\"')
        properties = {**properties, "sasl.jaas.config": properties["sasl.jaas.config"] % quoted}
    assert read(secured_kafka, listener, topic, **properties) == RECORDS


@pytest.mark.usefixtures("short_bound")
@pytest.mark.parametrize(
    ("listener", "changes", "message"),
    [
        ("SASL_SSL", {"sasl.password": "wrong"}, "[Aa]uthentication failed.*SCRAM-SHA-512"),
        ("OTHER_CA", None, "certificate verify failed.*ssl.ca.location"),
    ],
)
def test_a_broker_and_an_executor_that_do_not_accept_each_other_are_an_error_within_a_bound(
    secured_kafka: "SecuredKafka", topic: str, listener: str, changes: dict[str, str] | None, message: str
) -> None:
    properties = {} if changes is None else {**SCRAM, **changes}
    with pytest.raises(AuthenticationFailed, match=f"do not accept each other.*{message}") as problem:
        read(secured_kafka, listener, topic, **properties)
    assert "wrong" not in str(problem.value)
    assert re.search(
        r"\), for [12] s now, and the driver was accepted when it connected\. .*has changed", str(problem.value)
    )


def test_a_read_goes_on_when_the_ca_that_it_lacks_comes_to_its_disk(
    secured_kafka: "SecuredKafka", topic: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """librdkafka reads the CA when a consumer is made. A file without a valid CA is passed over until it has one."""
    ca = tmp_path / "ca.pem"
    trustme.CA().cert_pem.write_to_path(ca)
    config = parse(options(secured_kafka, "SSL", topic, "g", **{"ssl.ca.location": str(ca)})).consumer_config()
    settings = ReadSettings(consumer_config=config, stall_timeout_ms=30_000)
    reading = in_a_thread(
        lambda: sum(b.num_rows for b in read_with_librdkafka([OffsetRange(topic, 0, 0, RECORDS)], settings)), "read"
    )
    wait_for(lambda: "Trying again" in caplog.text, "the broker's certificate to be refused")
    ca.write_text("nothing yet")
    wait_for(lambda: "the earlier ones stay in use" in caplog.text, "the change to be seen")
    ca.write_text(secured_kafka.ca_pem)
    assert reading.result(30) == RECORDS


@pytest.mark.parametrize("reader", ["native", "librdkafka"])
def test_a_read_that_begins_between_the_renewal_of_a_certificate_and_of_its_key_waits_for_the_key(
    secured_kafka: "SecuredKafka",
    topic: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    reader: Reader,
) -> None:
    """No earlier pair is there that could stay in use, and in local mode a task has one attempt."""
    monkeypatch.setattr(connection_security, "CREDENTIALS_SETTLE_MS", 60_000)
    monkeypatch.setattr(range_reader, "CREDENTIALS_SETTLE_MS", 60_000)
    secured_kafka.allow(TLS_CLIENT, AclOperation.READ, topic=topic)
    ours, key = secured_kafka.client, tmp_path / "client.key"
    key.write_text(Path(secured_kafka.other_ca_client.key_location).read_text())
    pair = {"ssl.certificate.location": ours.certificate_location, "ssl.key.location": str(key)}
    config = parse(options(secured_kafka, "MTLS", topic, "g", **pair)).consumer_config()
    host, port = secured_kafka.bootstrap("MTLS").split(":")
    ranges = [
        OffsetRange(topic, 0, 0, RECORDS, Leader(1, host, int(port), 0, hex_id(secured_kafka.kafka.admin, topic)))
    ]
    settings = ReadSettings(consumer_config=config, reader=reader, stall_timeout_ms=30_000)
    reading = in_a_thread(lambda: sum(b.num_rows for b in reader_of_all.read_ranges(ranges, settings)), "read")
    wait_for(lambda: "Certificates have just changed, and are read again" in caplog.text, "the pair to be refused")
    key.write_text(Path(ours.key_location).read_text())
    assert reading.result(30) == RECORDS
    assert "with librdkafka" not in caplog.text


@pytest.mark.parametrize("reader", ["native", "librdkafka"])
def test_a_user_that_may_not_even_see_the_topic_gets_an_error_within_seconds(
    secured_kafka: "SecuredKafka", monkeypatch: pytest.MonkeyPatch, reader: Reader
) -> None:
    """As after a REVOKE of READ, which takes the implied DESCRIBE with it: librdkafka reports no error then."""
    monkeypatch.setattr(fetched_log, "FETCH_TROUBLE_MS", 500)
    monkeypatch.setattr(unread_ranges, "_IDLE_LOOK_S", 0.5)
    name = f"topic-{uuid4().hex[:8]}"
    secured_kafka.kafka.create_topic(name, partitions=1)
    produce(secured_kafka.kafka.bootstrap_servers, name, RECORDS, partitions=1)
    listener = "SASL_SSL"
    host, port = secured_kafka.bootstrap(listener).split(":")
    config = parse(options(secured_kafka, listener, name, "g", **SCRAM)).consumer_config()
    settings = ReadSettings(consumer_config=config, reader=reader, stall_timeout_ms=60_000)
    leader = Leader(1, host, int(port), 0, "")
    with pytest.raises(BrokerError, match=rf"TOPIC_AUTHORIZATION_FAILED: {name}-0: grant READ on the topic"):
        list(reader_of_all.read_ranges([OffsetRange(name, 0, 0, RECORDS, leader)], settings))


@pytest.mark.parametrize("reader", ["native", "librdkafka"])
def test_a_read_goes_on_when_a_right_that_was_there_before_is_back(
    secured_kafka: "SecuredKafka", monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, reader: Reader
) -> None:
    """As after a leader's start without all ACLs. The group's commits have shown that the user may read."""
    monkeypatch.setattr(fetched_log, "FETCH_TROUBLE_MS", 500)
    monkeypatch.setattr(unread_ranges, "_IDLE_LOOK_S", 0.5)
    name, listener = f"topic-{uuid4().hex[:8]}", "SASL_SSL"
    secured_kafka.kafka.create_topic(name, partitions=1)
    produce(secured_kafka.kafka.bootstrap_servers, name, RECORDS, partitions=1)
    config = parse(options(secured_kafka, listener, name, "g", **SCRAM)).consumer_config()
    settings = ReadSettings(consumer_config=config, reader=reader, stall_timeout_ms=60_000, may_read=True)
    host, port = secured_kafka.bootstrap(listener).split(":")
    leader = Leader(1, host, int(port), 0, hex_id(secured_kafka.kafka.admin, name))
    ranges = [OffsetRange(name, 0, 0, RECORDS, leader)]
    reading = in_a_thread(lambda: sum(b.num_rows for b in reader_of_all.read_ranges(ranges, settings)), "read")
    said = "TOPIC_AUTHORIZATION_FAILED" if reader == "native" else "Topic authorization failed"
    wait_for(lambda: said in caplog.text, "the topic to be refused")
    secured_kafka.allow(ALICE, AclOperation.READ, topic=name)
    assert reading.result(30) == RECORDS


def test_a_user_that_may_see_the_topic_and_not_read_it_gets_an_error(secured_kafka: "SecuredKafka", topic: str) -> None:
    secured_kafka.allow(BOB, AclOperation.DESCRIBE, topic=topic)
    bob = {**SCRAM, "sasl.username": BOB, "sasl.password": PASSWORDS[BOB]}
    with pytest.raises(BrokerError, match=f"TOPIC_AUTHORIZATION_FAILED: {topic}-0: grant READ on the topic"):
        read(secured_kafka, "SASL_SSL", topic, **bob)
