"""From settings to what a connection uses: TLS below Kafka's protocol, SASL as its first requests.

`tls`, `sasl` and `oauth` do the work.
"""

from __future__ import annotations

from ssl import SSLContext
from typing import TYPE_CHECKING

from spark_kgroup.errors import OptionError
from spark_kgroup.wire.security.settings import (
    MECHANISMS,
    NEEDED,
    PROTOCOLS,
    Plaintext,
    Security,
    SecuritySettings,
    Send,
)
from spark_kgroup.wire.security.tls import client_context

if TYPE_CHECKING:
    from spark_kgroup.wire.security.sasl import Login


class Secured:
    """TLS, SASL or both. Made by `security_of`; belongs to one event loop."""

    def __init__(self, context: SSLContext | None, login: Login | None) -> None:
        self._context = context
        self._login = login

    def ssl_context(self) -> SSLContext | None:
        """The TLS context, None for SASL_PLAINTEXT."""
        return self._context

    async def authenticate(self, address: object, send: Send, /) -> int:
        """Log in, if SASL is used: see `Security.authenticate`."""
        return await self._login.authenticate(address, send) if self._login else 0


def security_of(settings: SecuritySettings) -> Security:
    """What connections use; reads the files that are named.

    Raises:
        OptionError: something is missing, contradictory, unreadable or malformed; names the property and the fix.
    """
    if settings.protocol not in PROTOCOLS:
        raise OptionError(f"`security.protocol` is {settings.protocol!r}: it is one of {', '.join(PROTOCOLS)}.")
    if settings.protocol == "PLAINTEXT":
        return Plaintext()
    context = client_context(settings) if settings.protocol.endswith("SSL") else None
    return Secured(context, _login(settings) if settings.protocol.startswith("SASL") else None)


def _login(settings: SecuritySettings) -> Login:
    """The mechanism with all it needs."""
    from spark_kgroup.wire.security.sasl import Login  # with what computes SCRAM: 20 ms that others are spared

    mechanism, protocol = settings.mechanism, settings.protocol
    if mechanism not in MECHANISMS:
        problem = "is missing" if mechanism is None else f"is {mechanism!r}"
        raise OptionError(
            f"`sasl.mechanism` {problem}: with `security.protocol`={protocol} it is one of {', '.join(MECHANISMS)}."
        )
    if mechanism == "OAUTHBEARER":
        if settings.token is None:
            raise OptionError(
                "`sasl.mechanism`=OAUTHBEARER needs tokens: set `sasl.oauthbearer.method`=oidc with its token "
                "endpoint and client, or name a function that returns tokens."
            )
        return Login.with_tokens(settings.token)
    given = {"sasl.username": settings.username, "sasl.password": settings.password}
    for name in NEEDED["sasl.mechanism"][mechanism]:
        if not given[name]:
            raise OptionError(f"`{name}` is missing: `sasl.mechanism`={mechanism} needs it.")
    assert settings.username
    assert settings.password
    return Login.with_password(mechanism, settings.username, settings.password)
