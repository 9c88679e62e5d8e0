"""The users of a run's queries: the main one logs in with a password, the second has a certificate.

They exist only where the operator's lane plays. Else all clients are anonymous, and may do everything.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import trustme
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)
from harness.secured import chain_of, key_of

from spark_kgroup.testing import SecureListener

MAIN: Final = "main"
SECOND: Final = "second"
"""User names: in a login, and in a certificate."""

SASL: Final = "SASL_CLIENTS"
MTLS: Final = "MTLS_CLIENTS"
"""Listeners."""

SERVER_PROPERTIES: Final = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",  # brokers, producers, and plain consumers
}

_PASSWORD: Final = "the main query's"
_OTHER_PASSWORD: Final = "not the main query's"
_ANSWER_TIMEOUT_S: Final = 30.0

Right = tuple[ResourceType, str]
"""A topic or a group that a user may read."""

Rule = tuple[ResourceType, str, ResourcePatternType, str, str, AclOperation, AclPermissionType]
"""An access control list's entry: resource type, name, kind of name, user, host, operation, allowed or not."""


class Access:
    """Certificates, passwords and rights of the two queries."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._ca, self._foreign_ca = trustme.CA(), trustme.CA()
        self._ca.cert_pem.write_to_path(folder / "ca.pem")
        self.renew_certificate()

    @property
    def users(self) -> Mapping[str, str]:
        return {MAIN: _PASSWORD}

    @property
    def listeners(self) -> Sequence[SecureListener]:
        cert = self._ca.issue_cert("127.0.0.1", "localhost")
        tls = SecureListener(
            name=MTLS,
            certificate_pem=chain_of(cert),
            key_pem=key_of(cert),
            client_ca_pem=self._ca.cert_pem.bytes().decode(),
            client_auth="required",
        )
        return [SecureListener(name=SASL, sasl=True), tls]

    def options(self, user: str) -> dict[str, str]:
        """The options by which a query of this user logs in."""
        if user == MAIN:
            return {
                "kafka.security.protocol": "SASL_PLAINTEXT",
                "kafka.sasl.mechanism": "SCRAM-SHA-512",
                "kafka.sasl.username": MAIN,
                "kafka.sasl.password": _PASSWORD,
            }
        return {
            "kafka.security.protocol": "SSL",
            "kafka.ssl.ca.location": str(self._folder / "ca.pem"),
            "kafka.ssl.certificate.location": str(self._folder / "client.pem"),
            "kafka.ssl.key.location": str(self._folder / "client.key"),
        }

    # ---------------------------------------------------------------------------------------- certificates

    def renew_certificate(self) -> None:
        """Write another certificate of the same owner, then its key, in the order of operators' tools."""
        self._write(self._ca.issue_cert("second@example.org", common_name=SECOND))

    def spoil_certificate(self) -> None:
        """Write a certificate that no broker accepts, until it is renewed."""
        self._write(self._foreign_ca.issue_cert("second@example.org", common_name=SECOND))

    def _write(self, cert: trustme.LeafCert) -> None:
        for name, text in (("client.pem", chain_of(cert)), ("client.key", key_of(cert))):
            (self._folder / f".{name}").write_text(text)
            os.replace(self._folder / f".{name}", self._folder / name)

    # ------------------------------------------------------------------------------------------- passwords

    def change_password(self, admin: AdminClient, *, back: bool) -> None:
        """Give the main query's user another password at the brokers, or, with `back`, its own again."""
        password = _PASSWORD if back else _OTHER_PASSWORD
        info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
        changed = admin.alter_user_scram_credentials([UserScramCredentialUpsertion(MAIN, info, password.encode())])
        changed[MAIN].result(_ANSWER_TIMEOUT_S)

    # ---------------------------------------------------------------------------------------------- rights

    def rights(self, group: str, topics: Sequence[str]) -> Sequence[Right]:
        return [(ResourceType.GROUP, group), *((ResourceType.TOPIC, topic) for topic in topics)]

    def give(self, admin: AdminClient, rights: Sequence[Right], users: Sequence[str] = (MAIN, SECOND)) -> None:
        for done in admin.create_acls([AclBinding(*rule) for rule in _rules(rights, users)]).values():
            done.result(_ANSWER_TIMEOUT_S)

    def take(self, admin: AdminClient, rights: Sequence[Right], users: Sequence[str] = (MAIN,)) -> None:
        for done in admin.delete_acls([AclBindingFilter(*rule) for rule in _rules(rights, users)]).values():
            done.result(_ANSWER_TIMEOUT_S)


def _rules(rights: Sequence[Right], users: Sequence[str]) -> Iterator[Rule]:
    for kind, name in rights:
        for user in users:
            who = f"User:{user}"
            yield kind, name, ResourcePatternType.LITERAL, who, "*", AclOperation.READ, AclPermissionType.ALLOW
