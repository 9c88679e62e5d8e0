"""The rights that docs/operate/security.md lists, on a real Kafka with ACLs, and what is said of missing ones."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from uuid import uuid4

import pytest
from confluent_kafka.admin import AclOperation
from harness.decoder import built_decoder
from harness.fake_broker import on_a_loop, until
from harness.kafka import produce
from harness.secured import BOB, PASSWORDS, SecuredKafka

from pyspark_kgroup.batch import KgroupReader
from pyspark_kgroup.shared.columns import COLUMNS, spark_schema
from spark_kgroup.errors import BrokerError
from spark_kgroup.runtime.group import Group
from spark_kgroup.runtime.settings import ClientSettings, GroupSettings, ProtocolSettings
from spark_kgroup.wire.address import parse_bootstrap
from spark_kgroup.wire.cluster import Cluster
from spark_kgroup.wire.security.secured import load_security
from spark_kgroup.wire.security.settings import Security, SecuritySettings

pytestmark = pytest.mark.xdist_group("together-secured_kafka")

RECORDS = 20


@pytest.fixture
def topic(secured_kafka: SecuredKafka) -> Iterator[str]:
    """A topic that Bob may read, and whose name is the name of a group that he may be in."""
    built_decoder()
    name = f"rights-{uuid4().hex[:8]}"
    secured_kafka.kafka.create_topic(name, partitions=2)
    secured_kafka.allow(BOB, AclOperation.READ, topic=name)
    secured_kafka.allow(BOB, AclOperation.READ, group=name)
    yield name
    secured_kafka.forbid(BOB, topic=name)


def bob(kafka: SecuredKafka) -> Security:
    settings = SecuritySettings(
        protocol="SASL_SSL",
        mechanism="SCRAM-SHA-512",
        ca_pem=kafka.ca_pem,
        username=BOB,
        password=PASSWORDS[BOB],
    )
    return load_security(settings)


@asynccontextmanager
async def seated(kafka: SecuredKafka, topic: str, group: str, **protocol: object) -> AsyncIterator[Group]:
    """One seat of Bob's, or without a login of a user who may do everything, that has joined."""
    anyone = not protocol.pop("as_bob", True)
    bootstrap = kafka.kafka.bootstrap_servers if anyone else kafka.bootstrap("SASL_SSL")
    member = Group(
        GroupSettings(
            bootstrap=parse_bootstrap(bootstrap),
            group=group,
            topics=(topic,),
            instance_ids=("anyone" if anyone else "bob",),
            client=ClientSettings() if anyone else ClientSettings(security=bob(kafka)),
            protocol=ProtocolSettings(heartbeat_interval_ms=200, **protocol),  # type: ignore[arg-type]
        )
    )
    await member.start()
    try:
        view = await member.wait_until(lambda view: view.settled and bool(view.seats[0].owned_since), timeout_ms=30_000)
        assert view.seats[0].owned_since
        yield member
    finally:
        await member.close()


@pytest.mark.parametrize("reader", ["native", "librdkafka"])
def test_a_batch_read_needs_no_right_to_a_group(secured_kafka: SecuredKafka, topic: str, reader: str) -> None:
    produce(secured_kafka.kafka.bootstrap_servers, topic, RECORDS, partitions=2)
    options = {
        "kafka.bootstrap.servers": secured_kafka.bootstrap("SASL_SSL"),
        "kafka.security.protocol": "SASL_SSL",
        "kafka.sasl.mechanism": "SCRAM-SHA-512",
        "kafka.sasl.username": BOB,
        "kafka.sasl.password": PASSWORDS[BOB],
        "kafka.ssl.ca.pem": secured_kafka.ca_pem,
        "kafka.default.api.timeout.ms": "20000",
        "subscribe": topic,
        "reader": reader,
    }
    batch = KgroupReader(options, spark_schema(COLUMNS))
    assert sum(rows.num_rows for ticket in batch.partitions() for rows in batch.read(ticket)) == RECORDS


def test_without_the_groups_settings_a_member_under_the_consumer_protocol_works_and_names_the_operation_to_grant(
    secured_kafka: SecuredKafka, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    lacking = f"session timeout of group '{topic}', so it is taken for the default, 45 s: DescribeConfigs failed with"

    @on_a_loop
    async def scenario() -> None:
        async with seated(secured_kafka, topic, topic, name="consumer"):
            assert lacking in caplog.text
            assert "grant DESCRIBE_CONFIGS on the group to this user" in caplog.text
        caplog.clear()
        secured_kafka.allow(BOB, AclOperation.DESCRIBE_CONFIGS, group=topic)
        async with seated(secured_kafka, topic, topic, name="consumer"):
            assert lacking not in caplog.text

    scenario()


def test_without_the_brokers_settings_seats_keep_its_member_ids_and_name_the_operation_to_grant(
    secured_kafka: SecuredKafka, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    @on_a_loop
    async def scenario() -> None:
        async with seated(secured_kafka, topic, topic, own_ids=True):
            await until(lambda: "seats keep the coordinator's member ids" in caplog.text)

    scenario()
    assert "grant DESCRIBE_CONFIGS on the cluster to this user" in caplog.text


def test_a_topic_of_another_member_that_may_not_be_seen_hides_a_group_of_type_consumer(
    secured_kafka: SecuredKafka, topic: str
) -> None:
    hidden = f"hidden-{topic}"
    secured_kafka.kafka.create_topic(hidden, partitions=1)

    @on_a_loop
    async def scenario() -> None:
        cluster = Cluster(
            parse_bootstrap(secured_kafka.bootstrap("SASL_SSL")), client_id="test", security=bob(secured_kafka)
        )
        async with (
            seated(secured_kafka, topic, topic, name="consumer"),
            seated(secured_kafka, hidden, topic, name="consumer", as_bob=False),
        ):
            with pytest.raises(
                BrokerError, match=rf"group '{topic}': .+grant DESCRIBE on the topics of all its members"
            ):
                await cluster.groups.describe(topic)
            secured_kafka.allow(BOB, AclOperation.DESCRIBE, topic=hidden)
            assert len((await cluster.groups.describe(topic)).members) == 2
        await cluster.close()

    scenario()
