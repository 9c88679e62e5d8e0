"""All proofs between a running query and its brokers are renewed, broker by broker: nothing is lost, and it goes on.

The listener asks for a client certificate and a login. One CA signs the certificates of brokers and client. Another one
takes its place as operators do it: at first both are trusted, then the certificates are new, and in the end the old one
is trusted no more. Each step restarts the brokers one after the other, so that each connection is made anew.
"""

import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
import trustme
from confluent_kafka.admin import ScramCredentialInfo, ScramMechanism, UserScramCredentialUpsertion
from harness.application import Application
from harness.kafka import contents, produce
from harness.secured import chain_of, key_of
from harness.stream import options

from spark_kgroup.testing import ApacheKafka, SecureListener
from spark_kgroup.testing.kafka_node import KafkaNode

USER = "alice"
PASSWORD, NEXT_PASSWORD = "between-alice-and-us", "between-us-from-now-on"
LISTENER = "CLIENTS"
PARTITIONS = 6

GOES_ON_S = 60.0
"""The promise is 30 s on a quiet machine."""

pytestmark = pytest.mark.full  # the client's files alone: tests/kafka/test_security_over_the_wire.py


class Credentials:
    """The files of the client, and the properties of the brokers, with one CA that signs now.

    Args:
        folder: of the client's files.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._folder.mkdir()
        self._signs = trustme.CA()
        self._trusted = [self._signs]
        self.write_client()

    @property
    def ca_pem(self) -> str:
        return "".join(ca.cert_pem.bytes().decode() for ca in self._trusted)

    @property
    def listener(self) -> SecureListener:
        cert = self._signs.issue_cert("127.0.0.1", "localhost")
        return SecureListener(
            name=LISTENER,
            certificate_pem=chain_of(cert),
            key_pem=key_of(cert),
            client_ca_pem=self.ca_pem,
            client_auth="required",
            sasl=True,
        )

    def options(self, password: str) -> Mapping[str, str]:
        return {
            "kafka.security.protocol": "SASL_SSL",
            "kafka.sasl.mechanism": "SCRAM-SHA-512",
            "kafka.sasl.username": USER,
            "kafka.sasl.password": password,
            "kafka.ssl.ca.location": str(self._folder / "ca.pem"),
            "kafka.ssl.certificate.location": str(self._folder / "client.pem"),
            "kafka.ssl.key.location": str(self._folder / "client.key"),
        }

    def trust_another(self) -> None:
        """A second CA is trusted. The first one goes on signing."""
        self._trusted.append(trustme.CA())
        self.write_client()

    def sign_by_the_other(self) -> None:
        self._signs = self._trusted[-1]
        self.write_client()

    def trust_the_signer_alone(self) -> None:
        self._trusted = [self._signs]
        self.write_client()

    def write_client(self) -> None:
        """The CAs that the client trusts, a certificate, and then its key, in the order of operators' tools."""
        cert = self._signs.issue_cert("client@example.org", common_name=USER)
        for name, text in (("ca.pem", self.ca_pem), ("client.pem", chain_of(cert)), ("client.key", key_of(cert))):
            (self._folder / f".{name}").write_text(text)
            os.replace(self._folder / f".{name}", self._folder / name)


@pytest.fixture
def credentials(tmp_path: Path) -> Credentials:
    return Credentials(tmp_path / "credentials")


@pytest.fixture
def kafka(credentials: Credentials) -> Iterator[ApacheKafka]:
    with ApacheKafka(3, listeners=[credentials.listener], users={USER: PASSWORD}, jvm_options=["-Xmx300m"]) as kafka:
        yield kafka


def configure(node: KafkaNode, changed: Mapping[str, str]) -> None:
    """Rewrite values of the node's server.properties, for its next start."""
    path = node.directory / "server.properties"
    lines = dict(line.split("=", 1) for line in path.read_text().splitlines())
    lines |= {name: value.replace("\\", "\\\\").replace("\n", "\\n") for name, value in changed.items()}
    path.write_text("".join(f"{name}={value}\n" for name, value in lines.items()))


def roll(kafka: ApacheKafka, credentials: Credentials) -> None:
    """Restart the brokers one after the other, with the certificates and CAs of now."""
    for node in kafka.nodes:
        tls = {name: value for name, value in credentials.listener.properties({}) if ".ssl." in name}
        configure(node, tls)
        node.restart()
        kafka.await_ready()
        kafka.await_in_sync()


def test_certificates_and_their_authority_are_renewed_under_a_running_query(
    class_archive: None, credentials: Credentials, kafka: ApacheKafka, group: str, tmp_path: Path
) -> None:
    kafka.create_topic("orders", PARTITIONS)
    server = kafka.bootstrap_servers
    read = {**options(kafka.bootstrap_of(LISTENER), "orders", group), **credentials.options(PASSWORD)}
    sent = 0

    def assert_new_records_arrive(step: str) -> None:
        nonlocal sent
        produce(server, "orders", 10 * PARTITIONS, partitions=PARTITIONS, first=sent)
        sent += 10 * PARTITIONS
        began_s = time.monotonic()
        application.await_rows(sent, GOES_ON_S)
        print(f"{step}: the rows came within {time.monotonic() - began_s:.1f} s")

    with Application(tmp_path / "query", read) as application:
        assert_new_records_arrive("at the start")
        for step in (credentials.trust_another, credentials.sign_by_the_other, credentials.trust_the_signer_alone):
            step()
            roll(kafka, credentials)
            assert_new_records_arrive(step.__name__)
        rows = application.await_rows(sent)
        application.stop()
    assert {(row.partition, row.offset): row.value for row in rows} == contents(server, "orders")
    assert len(rows) == sent
    assert len({progress["runId"] for progress in application.progress()}) == 1, "the query began anew"


def change_password(kafka: ApacheKafka, password: str) -> None:
    info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
    changed = kafka.admin.alter_user_scram_credentials([UserScramCredentialUpsertion(USER, info, password.encode())])
    changed[USER].result(30)


def test_a_password_that_was_changed_ends_the_query_with_words_that_say_so_and_the_next_run_goes_on(
    class_archive: None, credentials: Credentials, kafka: ApacheKafka, group: str, tmp_path: Path
) -> None:
    """An option holds the password, so the query has to be started again. It bears the old one for a while."""
    kafka.create_topic("orders", PARTITIONS)
    server = kafka.bootstrap_servers
    read = options(kafka.bootstrap_of(LISTENER), "orders", group)
    produce(server, "orders", 20, partitions=PARTITIONS)
    with Application(tmp_path / "query", {**read, **credentials.options(PASSWORD)}) as application:
        application.await_rows(20)
        change_password(kafka, NEXT_PASSWORD)
        roll(kafka, credentials)
        produce(server, "orders", 20, partitions=PARTITIONS, first=20)
        assert application.await_end(300) != 0
    failure = application.failure() or ""
    assert f"refused SCRAM-SHA-512 for user '{USER}'" in failure
    assert "The cluster accepted this client before, last at " in failure
    assert "a password" in failure
    assert PASSWORD not in failure
    with Application(tmp_path / "query", {**read, **credentials.options(NEXT_PASSWORD)}) as application:
        rows = application.await_rows(40)
        application.stop()
    assert {(row.partition, row.offset): row.value for row in rows} == contents(server, "orders")
    assert len(rows) == 40
