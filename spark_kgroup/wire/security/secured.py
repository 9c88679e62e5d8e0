"""How a connection is secured: TLS below Kafka's protocol, SASL as its first requests.

`SecuritySettings` says what a user chose, in librdkafka's terms; `secured` makes of it what a connection uses. `tls`,
`sasl` and `oauth` do the work.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from ssl import SSLContext
from typing import Final, Literal, Protocol

from spark_kgroup.errors import OptionError
from spark_kgroup.wire.messages import Request, Response
from spark_kgroup.wire.security.oauth import Token, TokenProvider
from spark_kgroup.wire.security.sasl import MECHANISMS, Login, Mechanism
from spark_kgroup.wire.security.tls import client_context

__all__ = ["Plaintext", "Secured", "Security", "SecuritySettings", "Token", "TokenProvider", "secured"]

SecurityProtocol = Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"]

PROTOCOLS: Final[tuple[SecurityProtocol, ...]] = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
"""Kafka's names (org.apache.kafka.common.security.auth.SecurityProtocol)."""

Send = Callable[[Request], Awaitable[Response]]
"""Sends one request over the connection that is being authenticated, and returns its answer."""


class Security(Protocol):
    """What a connection needs to know before it is used."""

    def ssl_context(self) -> SSLContext | None:
        """The TLS context, None for plain TCP."""

    async def authenticate(self, address: object, send: Send, /) -> int:
        """Prove who we are on a connection that has negotiated versions, or has been in use (KIP-368).

        Args:
            address: the broker's, for error messages.
            send: nothing else goes over the connection meanwhile.

        Returns:
            For how many ms this holds; 0 for as long as the connection does.

        Raises:
            AuthenticationFailed: the broker refused us, or we could not even try.
        """


class Plaintext:
    """No encryption, no authentication (Kafka's security.protocol=PLAINTEXT)."""

    def ssl_context(self) -> SSLContext | None:
        """None: plain TCP."""
        return None

    async def authenticate(self, _address: object, _send: Send, /) -> int:
        """Nothing to prove."""
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
        key_location: ssl.key.location: PEM; not needed if the key stands beside the certificate.
        key_pem: ssl.key.pem, the same as text.
        key_password: ssl.key.password, for an encrypted key.
        verify_certificate: enable.ssl.certificate.verification.
        verify_hostname: ssl.endpoint.identification.algorithm=https.
        mechanism: sasl.mechanism.
        username: sasl.username, for PLAIN and SCRAM.
        password: sasl.password.
        token: for OAUTHBEARER; called in a thread of its own whenever a new token is needed.
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


class Secured:
    """TLS, SASL or both. Made by `secured`; belongs to one event loop."""

    def __init__(self, context: SSLContext | None, login: Login | None) -> None:
        self._context = context
        self._login = login

    def ssl_context(self) -> SSLContext | None:
        """The TLS context, None for SASL_PLAINTEXT."""
        return self._context

    async def authenticate(self, address: object, send: Send, /) -> int:
        """Log in, if SASL is used: see `Security.authenticate`."""
        return await self._login.authenticate(address, send) if self._login else 0


def secured(settings: SecuritySettings) -> Security:
    """What connections use; reads the files that are named.

    Raises:
        OptionError: something is missing, contradictory, unreadable or malformed; names the property and the fix.
    """
    if settings.protocol not in PROTOCOLS:
        raise OptionError(f"kafka.security.protocol is {settings.protocol!r}: it is one of {', '.join(PROTOCOLS)}.")
    if settings.protocol == "PLAINTEXT":
        return Plaintext()
    context = client_context(settings) if settings.protocol.endswith("SSL") else None
    return Secured(context, _login(settings) if settings.protocol.startswith("SASL") else None)


def _login(settings: SecuritySettings) -> Login:
    """The mechanism with all it needs."""
    mechanism, protocol = settings.mechanism, settings.protocol
    if mechanism not in MECHANISMS:
        told = "is missing" if mechanism is None else f"is {mechanism!r}"
        raise OptionError(
            f"kafka.sasl.mechanism {told}: with kafka.security.protocol={protocol} it is one of "
            f"{', '.join(MECHANISMS)}."
        )
    if mechanism == "OAUTHBEARER":
        if settings.token is None:
            raise OptionError(
                "kafka.sasl.mechanism=OAUTHBEARER needs tokens: set kafka.sasl.oauthbearer.method=oidc with its token "
                "endpoint and client, or name a function that returns tokens."
            )
        return Login.with_tokens(settings.token)
    for name, value in (("username", settings.username), ("password", settings.password)):
        if not value:
            raise OptionError(f"kafka.sasl.{name} is missing: kafka.sasl.mechanism={mechanism} needs it.")
    assert settings.username
    assert settings.password
    return Login.with_password(mechanism, settings.username, settings.password)
