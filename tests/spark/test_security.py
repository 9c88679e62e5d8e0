"""Whole queries over TLS and SASL, with the fewest rights that do, their refusals, and that no secret is shown."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest
from confluent_kafka.admin import AclOperation
from harness.groups import stable_generation
from harness.kafka import contents, produce
from harness.offsets import lag
from harness.secured import ALICE, BOB, KEY_PASSWORD, PASSWORDS, SHORT_SESSION_MS, TLS_CLIENT
from harness.spark_log import all_that_spark_says
from harness.stream import Collected, assert_exactly, await_rows, options, start
from harness.token_endpoint import token_endpoint
from harness.waiting import wait_for
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

if TYPE_CHECKING:
    from harness.secured import SecuredKafka

PARTITIONS = 2
RECORDS = 20
CLIENT_SECRET = "between-the-client-and-its-provider"

HIDE_INLINE_KEYS = r"(?i)url|key\.pem|keystore\.key|oauthbearer\.config"
"""The site's value of spark.sql.redaction.options.regex (Spark's own: (?i)url), for users who have a key as text."""

Properties = dict[str, str]


@pytest.fixture(autouse=True)
def no_secret_is_shown(spark: SparkSession, secured_kafka: "SecuredKafka", tmp_path: Path) -> Iterator[None]:
    """In each test here, neither Spark's log at DEBUG, nor its event log, nor the checkpoint holds a secret."""
    with all_that_spark_says(spark, tmp_path / "said"):
        yield
    assert "DataSourceV2 named 'kgroup'" in (tmp_path / "said" / "log").read_text(), "nothing was logged"
    for path in filter(Path.is_file, tmp_path.rglob("*")):
        assert shown_secrets(path.read_text(errors="replace"), secured_kafka) == [], path


def shown_secrets(text: str, secured: "SecuredKafka") -> list[str]:
    """Parts of secrets, free of characters that JSON or a log would escape."""
    parts = [CLIENT_SECRET, KEY_PASSWORD.partition("'")[0], PASSWORDS[ALICE].partition("pass=")[2], key_part(secured)]
    assert all(len(part) > 8 for part in parts)
    return [part for part in parts if part in text]


def key_part(secured: "SecuredKafka") -> str:
    return secured.client.encrypted_key_pem.splitlines()[1]


@pytest.fixture
def topic(secured_kafka: "SecuredKafka") -> str:
    name = f"topic-{uuid4().hex[:8]}"
    secured_kafka.kafka.create_topic(name, partitions=PARTITIONS)
    produce(secured_kafka.kafka.bootstrap_servers, name, RECORDS, partitions=PARTITIONS)
    return name


@pytest.fixture
def allowed(secured_kafka: "SecuredKafka", topic: str, group: str) -> Callable[[str], None]:
    """Give a user the rights that a query needs by docs/operate/security.md, and no more."""

    def allow(user: str) -> None:
        secured_kafka.allow(user, AclOperation.READ, topic=topic)
        secured_kafka.allow(user, AclOperation.READ, group=group)

    return allow


def secured_options(
    secured: "SecuredKafka", listener: str, topic: str, group: str, properties: Properties
) -> Properties:
    protocol = {"MTLS": "SSL", "SSL": "SSL", "EXPIRED": "SSL", "OTHER_CA": "SSL"}.get(listener, "SASL_SSL")
    given = {"security.protocol": protocol, **properties}
    return options(secured.bootstrap(listener), topic, group) | {f"kafka.{k}": v for k, v in given.items()}


def assert_all_is_read(
    spark: SparkSession, secured: "SecuredKafka", read: Properties, checkpoint: Path
) -> StreamingQuery:
    """The rows are the topic, and the group's lag is 0. The query still runs."""
    topic, group = read["subscribe"], read["kafka.group.id"]
    collected = Collected()
    query = start(spark, read, checkpoint, collected)
    await_rows(query, collected, RECORDS, 180)
    assert_exactly(collected, contents(secured.kafka.bootstrap_servers, topic))
    wait_for(lambda: lag(secured.kafka.bootstrap_servers, group, topic) == 0, "lag 0", 60)
    return query


# ------------------------------------------------------------------------------------------------ who we are


def scram(secured: "SecuredKafka") -> Properties:
    """As a Spark user has it from Kafka's own documentation."""
    quoted = PASSWORDS[ALICE].replace("\\", "\\\\").replace('"', '\\"')
    module = "org.apache.kafka.common.security.scram.ScramLoginModule"
    return {
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.jaas.config": f'{module} required username="{ALICE}" password="{quoted}";',
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": secured.ca_location,
    }


def plain(secured: "SecuredKafka") -> Properties:
    login = {"sasl.username": ALICE, "sasl.password": PASSWORDS[ALICE]}
    return {"sasl.mechanism": "PLAIN", **login, "ssl.ca.pem": secured.ca_pem}


def client_certificate(secured: "SecuredKafka") -> Properties:
    ours = secured.client
    return {
        "ssl.ca.location": secured.ca_location,
        "ssl.certificate.location": ours.certificate_location,
        "ssl.key.pem": ours.encrypted_key_pem,
        "ssl.key.password": KEY_PASSWORD,
    }


@pytest.mark.parametrize(
    ("listener", "user", "properties"), [("MTLS", TLS_CLIENT, client_certificate), ("SASL_SSL", ALICE, plain)]
)
def test_the_rows_are_the_records_of_the_topic(
    spark: SparkSession,
    secured_kafka: "SecuredKafka",
    topic: str,
    group: str,
    allowed: Callable[[str], None],
    tmp_path: Path,
    listener: str,
    user: str,
    properties: Callable[["SecuredKafka"], Properties],
) -> None:
    allowed(user)
    read = secured_options(secured_kafka, listener, topic, group, properties(secured_kafka))
    assert_all_is_read(spark, secured_kafka, read, tmp_path / "cp")


def test_a_query_with_oidc_client_credentials_reads(
    spark: SparkSession,
    secured_kafka: "SecuredKafka",
    topic: str,
    group: str,
    allowed: Callable[[str], None],
    tmp_path: Path,
) -> None:
    allowed("spark-client")
    with token_endpoint("spark-client", CLIENT_SECRET) as url:
        properties = {
            "sasl.mechanism": "OAUTHBEARER",
            "sasl.oauthbearer.token.endpoint.url": url,
            "sasl.oauthbearer.client.id": "spark-client",
            "sasl.oauthbearer.client.secret": CLIENT_SECRET,
            "ssl.ca.pem": secured_kafka.ca_pem,
        }
        read = secured_options(secured_kafka, "SASL_SSL", topic, group, properties)
        assert_all_is_read(spark, secured_kafka, read, tmp_path / "cp").stop()


def test_a_query_with_a_token_callback_reads(
    spark: SparkSession,
    secured_kafka: "SecuredKafka",
    topic: str,
    group: str,
    allowed: Callable[[str], None],
    tmp_path: Path,
) -> None:
    allowed(ALICE)
    properties = {
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.oauthbearer.config": ALICE,
        "ssl.ca.pem": secured_kafka.ca_pem,
    }
    read = secured_options(secured_kafka, "SASL_SSL", topic, group, properties)
    assert_all_is_read(spark, secured_kafka, read | {"tokenCallback": "harness.tokens:token_for"}, tmp_path / "cp")


# ------------------------------------------------------------------------------------- sessions and secrets


def test_a_query_outlives_its_sessions_with_the_broker(
    spark: SparkSession,
    secured_kafka: "SecuredKafka",
    topic: str,
    group: str,
    allowed: Callable[[str], None],
    tmp_path: Path,
) -> None:
    """connections.max.reauth.ms (KIP-368): brokers disconnect clients that do not log in anew within it."""
    allowed(ALICE)
    server = secured_kafka.kafka.bootstrap_servers
    read = secured_options(secured_kafka, "SHORT", topic, group, scram(secured_kafka))
    collected = Collected()
    query = start(spark, read, tmp_path / "cp", collected)
    await_rows(query, collected, RECORDS, 180)
    generation = stable_generation(secured_kafka.kafka, group)
    began, sent = time.monotonic(), RECORDS
    while time.monotonic() < began + 2.5 * SHORT_SESSION_MS / 1000:
        produce(server, topic, PARTITIONS, partitions=PARTITIONS, first=sent)
        sent += PARTITIONS
        await_rows(query, collected, sent, 180)
    query.stop()
    assert_exactly(collected, contents(server, topic))
    assert stable_generation(secured_kafka.kafka, group) == generation


def test_spark_shows_no_secret_of_a_query(
    spark: SparkSession,
    secured_kafka: "SecuredKafka",
    topic: str,
    group: str,
    allowed: Callable[[str], None],
    tmp_path: Path,
) -> None:
    allowed(ALICE)
    stores = {
        "ssl.keystore.type": "PEM",
        "ssl.keystore.certificate.chain": secured_kafka.client.certificate_pem,
        "ssl.keystore.key": secured_kafka.client.encrypted_key_pem,
        "ssl.key.password": KEY_PASSWORD,
    }
    read = secured_options(secured_kafka, "SASL_SSL", topic, group, scram(secured_kafka) | stores)
    frame = spark.readStream.format("kgroup").options(**read).load()
    shown = shown_secrets(plan_of(frame), secured_kafka)
    assert shown == [key_part(secured_kafka)], "Spark hides what is called password or secret, no more"
    spark.conf.set("spark.sql.redaction.options.regex", HIDE_INLINE_KEYS)
    try:
        query = assert_all_is_read(spark, secured_kafka, read, tmp_path / "cp")
        texts = [plan_of(frame), query._jsq.explainInternal(True), str(query.lastProgress), repr(frame), repr(query)]
        assert topic in texts[0], "the plan does not show options: this test would see nothing"
        assert shown_secrets("".join(texts), secured_kafka) == []
    finally:
        spark.conf.unset("spark.sql.redaction.options.regex")


def plan_of(frame: DataFrame) -> str:
    """All plans of a query, as `explain(True)` prints them."""
    return str(frame._jdf.queryExecution().toString())


# -------------------------------------------------------------------------------------------- refusals


AS_BOB = {"sasl.username": BOB, "sasl.password": PASSWORDS[BOB]}


@pytest.mark.parametrize(
    ("listener", "rights", "changes", "message"),
    [
        ("SASL_SSL", "", {"sasl.password": "wrong"}, f"SCRAM-SHA-512.*{ALICE}"),
        ("SASL_SSL", "topic", AS_BOB, "GROUP_AUTHORIZATION_FAILED"),
        pytest.param("SASL_SSL", "group", AS_BOB, "may not see topic", marks=pytest.mark.full),
        pytest.param("EXPIRED", "", None, "certificate has expired", marks=pytest.mark.full),
        pytest.param("OTHER_CA", "", None, r"`ssl\.ca\.location`", marks=pytest.mark.full),
    ],
    ids=["wrong password", "no right to the group", "no right to the topic", "expired certificate", "unknown CA"],
)
def test_a_query_that_is_refused_fails_with_one_clear_error(
    spark: SparkSession,
    secured_kafka: "SecuredKafka",
    topic: str,
    group: str,
    allowed: Callable[[str], None],
    tmp_path: Path,
    listener: str,
    rights: str,
    changes: Properties | None,
    message: str,
) -> None:
    """A query of ALICE's, started again in a way that is refused, and again as it was: each record is read once."""
    allowed(ALICE)
    server = secured_kafka.kafka.bootstrap_servers
    right = secured_options(secured_kafka, "SASL_SSL", topic, group, scram(secured_kafka))
    collected = Collected()
    query = start(spark, right, tmp_path / "cp", collected)
    await_rows(query, collected, RECORDS, 180)
    query.stop()
    produce(server, topic, RECORDS, partitions=PARTITIONS, first=RECORDS)

    if rights:
        secured_kafka.allow(BOB, AclOperation.READ, **{rights: {"topic": topic, "group": group}[rights]})
    ca = {"ssl.ca.location": secured_kafka.ca_location}
    properties = ca if changes is None else {**plain(secured_kafka), "sasl.mechanism": "SCRAM-SHA-512", **changes}
    wrong = secured_options(secured_kafka, listener, topic, group, properties)
    began = time.monotonic()
    with pytest.raises(Exception, match=message) as problem:
        start(spark, wrong, tmp_path / "cp", Collected()).awaitTermination(180)
    assert time.monotonic() - began < 120
    assert shown_secrets(str(problem.value), secured_kafka) == []

    query = start(spark, right, tmp_path / "cp", collected)
    await_rows(query, collected, 2 * RECORDS, 180)
    query.stop()
    assert_exactly(collected, contents(server, topic))
