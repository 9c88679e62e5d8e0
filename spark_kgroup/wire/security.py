"""How a connection is secured: the seam for TLS and SASL."""

from __future__ import annotations

from ssl import SSLContext
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from spark_kgroup.wire.connection import Connection


class Security(Protocol):
    """What a connection needs to know before it is used."""

    def ssl_context(self) -> SSLContext | None:
        """The TLS context, None for plain TCP."""

    async def authenticate(self, connection: Connection) -> None:
        """Prove who we are on a connection that is open and has negotiated versions."""


class Plaintext:
    """No encryption, no authentication (Kafka's security.protocol=PLAINTEXT)."""

    def ssl_context(self) -> SSLContext | None:
        """None: plain TCP."""
        return None

    async def authenticate(self, connection: Connection) -> None:
        """Nothing to prove."""
