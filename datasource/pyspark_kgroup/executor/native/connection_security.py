"""TLS and SASL for a reader's own connections, from librdkafka's properties.

Runs on: executor. Asks for a token, and reads the files that are named.

The same properties and the same parts as on the driver (`spark_kgroup.wire.security`), without its event loop.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from time import time
from typing import TYPE_CHECKING

from pyspark_kgroup.executor.native.decode import FallbackToLibrdkafka
from pyspark_kgroup.limits import CREDENTIALS_SETTLE_MS
from pyspark_kgroup.shared.token_callback import CALLBACK, token_provider
from spark_kgroup.limits import TOKEN_REFRESH_FACTOR, TOKEN_TIMEOUT_MS
from spark_kgroup.wire.security.from_properties import security_settings
from spark_kgroup.wire.security.settings import Mechanism, SecuritySettings
from spark_kgroup.wire.security.tls import RenewedContext, renewed_context
from spark_kgroup.wire.security.tokens import Token, TokenProvider, in_a_thread

if TYPE_CHECKING:
    from spark_kgroup.wire.security.mechanisms import Exchange


@dataclass(frozen=True, slots=True)
class SaslLogin:
    """How to log in, as often as a connection needs it.

    Attributes:
        begin: starts the mechanism's exchange of messages. Raises KgroupError or FallbackToLibrdkafka.
        on_refused: to be called if the broker refuses: the next exchange has a new token.
    """

    mechanism: Mechanism
    begin: Callable[[], Exchange]
    on_refused: Callable[[], None] = lambda: None


@dataclass(frozen=True, slots=True)
class ConnectionSecurity:
    """How a connection is secured and logs in.

    Attributes:
        tls: the context for each new connection, or None for plain TCP.
        login: None without SASL.
    """

    tls: RenewedContext | None = field(default=None, repr=False)
    login: SaslLogin | None = None


def connection_security(config: Mapping[str, str]) -> ConnectionSecurity:
    """How to connect and as which user, by an executor's configuration of librdkafka.

    Raises:
        KgroupError: a file is not here, or does not hold its certificate or key.
        FallbackToLibrdkafka: the SASL mechanism is not spoken here.
    """
    callback = config.get(CALLBACK)
    token = token_provider(callback, config.get("sasl.oauthbearer.config", "")) if callback else None
    settings = security_settings(config, token)
    tls = renewed_context(settings, CREDENTIALS_SETTLE_MS) if settings.protocol.endswith("SSL") else None
    return ConnectionSecurity(tls, _login(settings) if settings.protocol.startswith("SASL") else None)


def _login(settings: SecuritySettings) -> SaslLogin:
    # Imported here: it imports the modules that compute SCRAM, and most listeners ask for no login.
    from spark_kgroup.wire.security import mechanisms

    mechanism = settings.mechanism
    match mechanism:
        case "OAUTHBEARER" if settings.token is not None:
            tokens = _Tokens(settings.token)
            return SaslLogin(mechanism, lambda: mechanisms.oauthbearer(tokens.token()), tokens.forget)
        case "PLAIN":
            return SaslLogin(mechanism, partial(mechanisms.plain, settings.username or "", settings.password or ""))
        case "SCRAM-SHA-256" | "SCRAM-SHA-512":
            who = (settings.username or "", settings.password or "")
            return SaslLogin(mechanism, partial(mechanisms.scram, mechanism, *who))
    raise FallbackToLibrdkafka(f"SASL mechanism {mechanism}", lasting=True)


class _Tokens:
    """The newest token, fetched anew when most of its life is over."""

    def __init__(self, provider: TokenProvider) -> None:
        self._provider = provider
        self._token: Token | None = None
        self._wall_refresh_at_s = 0.0

    def token(self) -> Token:
        """A token that lives.

        Raises:
            AuthenticationFailed: the provider gives no token.
            FallbackToLibrdkafka: none came in time.
        """
        token = self._token  # for connections of other threads may forget it meanwhile
        if token is None or time() >= self._wall_refresh_at_s:
            try:
                token = in_a_thread(self._provider).result(TOKEN_TIMEOUT_MS / 1000)
            except TimeoutError:
                raise FallbackToLibrdkafka(f"no token within {TOKEN_TIMEOUT_MS} ms") from None
            lives_s = token.wall_expires_at_s - time()
            self._token, self._wall_refresh_at_s = token, time() + lives_s * TOKEN_REFRESH_FACTOR
        return token

    def forget(self) -> None:
        """Fetch a new token for the next login: the broker may have another clock, or other keys by now."""
        self._token = None
