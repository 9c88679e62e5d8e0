"""How to connect and who to be, as a user chose it, and the interface through which a connection uses that.

This module has no TLS or SASL in it: `load_security` turns the settings into a `Security`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from ssl import SSLContext
from typing import TYPE_CHECKING, Final, Literal, Protocol, TypeAlias

from spark_kgroup.errors import AuthenticationFailed
from spark_kgroup.wire.security.tokens import TokenProvider

if TYPE_CHECKING:  # a program that only uses TLS, or a mechanism's messages, does not load the codec
    from spark_kgroup.wire.schema import Request, Response

SecurityProtocol = Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"]

PROTOCOLS: Final[tuple[SecurityProtocol, ...]] = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
"""Kafka's names (org.apache.kafka.common.security.auth.SecurityProtocol)."""

Mechanism = Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"]

MECHANISMS: Final[tuple[Mechanism, ...]] = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")

Send: TypeAlias = "Callable[[Request], Awaitable[Response]]"
"""Sends one request over the connection that is being authenticated, and returns its answer."""


class Security(Protocol):
    """A connection's TLS and authentication, before any other request is sent."""

    async def ssl_context(self) -> SSLContext | None:
        """The TLS context for one new connection, None for plain TCP."""

    def on_tls_refused(self, address: object, refusal: AuthenticationFailed, /) -> AuthenticationFailed:
        """Broker and client did not accept each other's certificates or protocols.

        Args:
            address: the broker's.
            refusal: as TLS tells it.

        Returns:
            The error to raise: retriable while the refusal may pass, with the changes that may have caused it.
        """

    async def authenticate(self, address: object, send: Send, /) -> int:
        """Authenticate on a connection that has negotiated versions, or has been in use (KIP-368).

        Args:
            address: the broker's, for error messages.
            send: sends a request. No other request goes over the connection meanwhile.

        Returns:
            The lifetime of the session in ms, or 0 if it lasts as long as the connection.

        Raises:
            AuthenticationFailed: the broker refused us, or we could not even try.
        """


class Plaintext:
    """No encryption, no authentication (Kafka's security.protocol=PLAINTEXT)."""

    async def ssl_context(self) -> SSLContext | None:
        """None: plain TCP."""
        return None

    def on_tls_refused(self, _address: object, refusal: AuthenticationFailed, /) -> AuthenticationFailed:
        """Never called: there is no TLS."""
        return refusal

    async def authenticate(self, _address: object, _send: Send, /) -> int:
        """Send no request: the session lasts as long as the connection."""
        return 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SecuritySettings:
    """How to connect and who to be, with librdkafka's meanings. Its `repr` holds no secret.

    Attributes:
        protocol: security.protocol.
        ca_location: ssl.ca.location, a PEM file or a directory of them (as `openssl rehash` makes it). Without it and
            `ca_pem`: the certificate authorities that this system trusts.
        ca_pem: ssl.ca.pem, the same as text.
        certificate_location: ssl.certificate.location, this client's certificate chain: PEM.
        certificate_pem: ssl.certificate.pem, the same as text.
        key_location: ssl.key.location: PEM. Not needed if the key is in the certificate's file.
        key_pem: ssl.key.pem, the same as text.
        key_password: ssl.key.password, for an encrypted key.
        verify_certificate: enable.ssl.certificate.verification.
        verify_hostname: ssl.endpoint.identification.algorithm=https.
        mechanism: sasl.mechanism.
        username: sasl.username, for PLAIN and SCRAM.
        password: sasl.password.
        token: for OAUTHBEARER. Called in a thread of its own whenever a new token is needed.
    """

    protocol: SecurityProtocol = "PLAINTEXT"
    ca_location: str | None = None
    ca_pem: str | None = field(default=None, repr=False)
    certificate_location: str | None = None
    certificate_pem: str | None = field(default=None, repr=False)
    key_location: str | None = None
    key_pem: str | None = field(default=None, repr=False)
    key_password: str | None = field(default=None, repr=False)
    verify_certificate: bool = True
    verify_hostname: bool = True
    mechanism: Mechanism | None = None
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    token: TokenProvider | None = field(default=None, repr=False)
