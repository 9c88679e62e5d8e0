"""One Kafka node with every kind of listener that asks who a client is, and access control lists."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import trustme
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    ResourcePatternType,
    ResourceType,
)
from cryptography.hazmat.primitives import serialization as keys

from harness.waiting import wait_for
from spark_kgroup.testing import ApacheKafka, SecureListener

ALICE = "alice"
"""May do only the operations that a test allows her."""
BOB = "bob"
"""Has no right at all."""
TLS_CLIENT = "tls-client"
"""The owner that the client certificate names."""

PASSWORDS = {ALICE: 'alice\'s "own" \\ pass=word;, {1}', BOB: "bob's secret"}
"""Hers needs every escape that a configuration language may have."""

KEY_PASSWORD = "of the client's key"


@dataclass(frozen=True)
class Identity:
    """A certificate chain and its private key, as text and as files. The encrypted key opens with KEY_PASSWORD."""

    certificate_pem: str
    key_pem: str
    encrypted_key_pem: str
    certificate_location: str
    key_location: str
    encrypted_key_location: str


@dataclass(frozen=True)
class SecuredKafka:
    """Listeners, by the proof that they ask of a client, and the certificate that they show it:

    SSL             TLS, a client certificate if it has one
    MTLS            TLS, a client certificate
    SASL_PLAINTEXT  a login
    SASL_SSL        TLS and a login
    SHORT           TLS and a login every SHORT_SESSION_MS
    EXPIRED         TLS with a certificate that has expired
    WRONG_HOST      TLS with a certificate for elsewhere.example
    OTHER_CA        TLS with a certificate from another CA

    An anonymous client (the plain listener, or TLS without a client certificate) may do everything.
    """

    kafka: ApacheKafka
    ca_pem: str
    ca_location: str
    client: Identity
    other_ca_client: Identity

    def bootstrap(self, listener: str) -> str:
        return self.kafka.bootstrap_of(listener)

    def allow(self, user: str, operation: AclOperation, *, topic: str = "", group: str = "") -> None:
        """Let `user` do this with the topic, or the group. Returns once the broker knows it."""
        kind, name = (ResourceType.TOPIC, topic) if topic else (ResourceType.GROUP, group)
        rule = (kind, name, ResourcePatternType.LITERAL, f"User:{user}", "*", operation, AclPermissionType.ALLOW)
        for done in self.kafka.admin.create_acls([AclBinding(*rule)]).values():
            done.result(30)
        wait_for(lambda: self.kafka.admin.describe_acls(AclBindingFilter(*rule)).result(30), f"the rule {rule}")

    def forbid(self, user: str, topic: str) -> None:
        """Take away every right of `user` on the topic. Returns once the broker knows it."""
        whose = (ResourceType.TOPIC, topic, ResourcePatternType.LITERAL, f"User:{user}")
        every = AclBindingFilter(*whose, None, AclOperation.ANY, AclPermissionType.ANY)  # type: ignore[arg-type]
        for done in self.kafka.admin.delete_acls([every]).values():
            done.result(30)
        wait_for(lambda: not self.kafka.admin.describe_acls(every).result(30), f"the end of {user}'s rights")


SHORT_SESSION_MS = 3_500
"""On a loaded machine a renewal may come late by 5 % of it without the broker's noticing."""


@contextmanager
def secured_cluster(folder: Path) -> Iterator[SecuredKafka]:
    """Start it, and write the certificates to `folder`."""
    ca, other_ca = trustme.CA(), trustme.CA()
    long_ago = datetime.now(UTC) - timedelta(days=3)
    shown = {
        "": ca.issue_cert("127.0.0.1", "localhost"),
        "EXPIRED": ca.issue_cert("127.0.0.1", not_before=long_ago, not_after=long_ago + timedelta(days=1)),
        "WRONG_HOST": ca.issue_cert("elsewhere.example"),
        "OTHER_CA": other_ca.issue_cert("127.0.0.1"),
    }
    ca_location = folder / "ca.pem"
    ca.cert_pem.write_to_path(ca_location)
    ca_pem = ca.cert_pem.bytes().decode()

    def tls(name: str, **more: Any) -> SecureListener:
        cert = shown.get(name, shown[""])
        return SecureListener(
            name=name, certificate_pem=chain_of(cert), key_pem=key_of(cert), client_ca_pem=ca_pem, **more
        )

    listeners = [
        tls("SSL", client_auth="requested"),
        tls("MTLS", client_auth="required"),
        SecureListener(name="SASL_PLAINTEXT", sasl=True),
        tls("SASL_SSL", sasl=True),
        tls("SHORT", sasl=True, session_ms=SHORT_SESSION_MS),
        tls("EXPIRED"),
        tls("WRONG_HOST"),
        tls("OTHER_CA"),
    ]
    properties = {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
        "group.min.session.timeout.ms": "1000",
    }
    with ApacheKafka(server_properties=properties, listeners=listeners, users=PASSWORDS) as kafka:
        yield SecuredKafka(
            kafka,
            ca_pem,
            str(ca_location),
            identity(ca.issue_cert("client@example.org", common_name=TLS_CLIENT), folder, "client"),
            identity(other_ca.issue_cert("client@example.org", common_name=TLS_CLIENT), folder, "other-ca"),
        )


def identity(cert: trustme.LeafCert, folder: Path, name: str) -> Identity:
    texts = {
        f"{name}.pem": chain_of(cert),
        f"{name}.key": key_of(cert),
        f"{name}-encrypted.key": key_of(cert, KEY_PASSWORD),
    }
    for file, text in texts.items():
        (folder / file).write_text(text)
    return Identity(*texts.values(), *(str(folder / file) for file in texts))


def chain_of(cert: trustme.LeafCert) -> str:
    return "".join(blob.bytes().decode() for blob in cert.cert_chain_pems)


def key_of(cert: trustme.LeafCert, password: str | None = None) -> str:
    """PKCS#8, the only form that Kafka takes."""
    key = keys.load_pem_private_key(cert.private_key_pem.bytes(), None)
    protection = keys.BestAvailableEncryption(password.encode()) if password else keys.NoEncryption()
    return key.private_bytes(keys.Encoding.PEM, keys.PrivateFormat.PKCS8, protection).decode()
