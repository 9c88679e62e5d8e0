"""From settings to the security of a connection: TLS below Kafka's protocol, SASL as its first requests.

`tls`, `sasl` and `oauth` do the work. Here is how long a refusal may last before it is final: a cluster that has
accepted us before may refuse us, or be refused, for `AUTHENTICATION_GRACE_MS`. A broker that starts may not have its
users yet, a token endpoint may be away, and a renewed certificate, CA or password reaches the brokers and this machine
at different moments. Each new attempt looks at the files again.
"""

from __future__ import annotations

import asyncio
import time
from ssl import SSLContext
from typing import TYPE_CHECKING, NamedTuple

from spark_kgroup.errors import AuthenticationFailed
from spark_kgroup.limits import AUTHENTICATION_GRACE_MS
from spark_kgroup.threads import in_a_thread
from spark_kgroup.wire.security.files import utc
from spark_kgroup.wire.security.from_properties import check_settings
from spark_kgroup.wire.security.settings import Plaintext, Security, SecuritySettings, Send
from spark_kgroup.wire.security.tls import RenewedContext, renewed_context

if TYPE_CHECKING:
    from spark_kgroup.wire.security.sasl import Login


class _Refusals(NamedTuple):
    """One refusal of a broker after the other, by the monotonic clock."""

    since_s: float
    last_s: float


class Secured:
    """TLS, SASL or both. Made by `load_security`, and belongs to one event loop."""

    def __init__(self, tls: RenewedContext | None, login: Login | None) -> None:
        self._tls = tls
        self._login = login
        self._wall_accepted_at_s: float | None = None
        self._refusals: dict[object, _Refusals] = {}  # of brokers that have not accepted us since

    async def ssl_context(self) -> SSLContext | None:
        """As `Security.ssl_context`. Files are looked at beside the event loop, for a file system may hang."""
        if self._tls is None:
            return None
        # Without files there is no file system that could hang.
        if not self._tls.files:
            return self._tls.context()
        return await asyncio.wrap_future(in_a_thread(self._tls.context, "look at certificates"))

    def on_tls_refused(self, address: object, refusal: AuthenticationFailed, /) -> AuthenticationFailed:
        """As `Security.on_tls_refused`: files that have changed since they were read are worth another attempt."""
        changed = self._tls is not None and self._tls.files.have_changed()
        return self._on_refused(address, refusal, may_pass=changed)

    async def authenticate(self, address: object, send: Send, /) -> int:
        """Log in, if SASL is used: see `Security.authenticate`."""
        try:
            lifetime_ms = await self._login.authenticate(address, send) if self._login else 0
        except AuthenticationFailed as refusal:
            told = self._on_refused(address, refusal)
            if told is refusal:
                raise
            raise told from refusal
        self._wall_accepted_at_s = time.time()
        self._refusals.pop(address, None)
        return lifetime_ms

    def _on_refused(
        self, address: object, refusal: AuthenticationFailed, *, may_pass: bool = False
    ) -> AuthenticationFailed:
        """The error to raise: it says since when the broker refuses us, if it accepted us before.

        It is retriable if `refusal` is, or this refusal may pass, and for a while if the broker accepted us before.
        """
        now_s, grace_s = time.monotonic(), AUTHENTICATION_GRACE_MS / 1000
        before = self._refusals.get(address)
        # After a longer time without a refusal the minute begins anew.
        since_s = before.since_s if before is not None and now_s - before.last_s <= grace_s else now_s
        self._refusals[address] = _Refusals(since_s, now_s)
        may_pass = may_pass or refusal.retriable
        if self._wall_accepted_at_s is None:
            return refusal if may_pass == refusal.retriable else AuthenticationFailed(str(refusal), retriable=may_pass)
        changed = self._tls.files.describe() if self._tls is not None else ""
        return AuthenticationFailed(
            f"{refusal} The cluster accepted this client before, last at {utc(self._wall_accepted_at_s)}; with "
            f"{address} it has failed for {now_s - since_s:.0f} s. A certificate, a CA, a password or the cluster's "
            "users may have changed since, or a certificate may have expired."
            f"{f' On this machine {changed}.' if changed else ''}",
            retriable=may_pass or now_s - since_s < grace_s,
        )


def load_security(settings: SecuritySettings) -> Security:
    """The security of connections with these settings. Reads the files that they name.

    Raises:
        OptionError: a setting is missing, contradictory, unreadable or malformed. It names the property and the fix.
    """
    check_settings(settings)
    if settings.protocol == "PLAINTEXT":
        return Plaintext()
    tls = renewed_context(settings) if settings.protocol.endswith("SSL") else None
    return Secured(tls, _login(settings) if settings.protocol.startswith("SASL") else None)


def _login(settings: SecuritySettings) -> Login:
    """The mechanism with all it needs."""
    from spark_kgroup.wire.security.sasl import Login  # imports scramp: 20 ms that applications without SASL save

    if settings.token is not None:
        return Login.with_tokens(settings.token)
    assert settings.mechanism
    assert settings.username
    assert settings.password
    return Login.with_password(settings.mechanism, settings.username, settings.password)
