"""Where OAUTHBEARER tokens come from, and how long one serves (KIP-255, KIP-768)."""

from __future__ import annotations

import asyncio
import base64
import http.client
import json
import logging
import ssl
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Any, Final
from urllib.parse import SplitResult, urlencode, urlsplit

from spark_kgroup.errors import AuthenticationFailed, OptionError
from spark_kgroup.limits import (
    TOKEN_BYTES_MAX,
    TOKEN_CALLS_MAX,
    TOKEN_POST_TIMEOUT_MS,
    TOKEN_REFRESH_FACTOR,
    TOKEN_RETRY_MS,
    TOKEN_TIMEOUT_MS,
)
from spark_kgroup.peer_words import printable_words
from spark_kgroup.wire.address import can_be_looked_up
from spark_kgroup.wire.security.files import CredentialFiles
from spark_kgroup.wire.security.post import post
from spark_kgroup.wire.security.tls import RenewedContext, ca_locations, trust
from spark_kgroup.wire.security.tokens import Token, TokenProvider, in_a_thread, serves_until

log = logging.getLogger(__name__)

_REFUSALS: Final = frozenset({400, 401, 403})
"""HTTP statuses after which asking again with the same credentials is of no use (RFC 6749, section 5.2)."""


class TokenCache:
    """The newest token, fetched anew when most of its life is over. Belongs to one event loop.

    Args:
        wall_clock_s: seconds since the epoch, as tokens tell when they expire.
    """

    def __init__(self, provider: TokenProvider, wall_clock_s: Callable[[], float] = time.time) -> None:
        self._provider = provider
        self._wall_clock_s = wall_clock_s
        self._token: Token | None = None
        self._wall_refresh_at_s = 0.0
        self._fetching: Future[Token] | None = None
        self._stuck: list[Future[Token]] = []

    async def token(self, *, fresh: bool = False) -> Token:
        """A token that has not expired. All callers that ask while one is fetched share it, or its failure.

        Args:
            fresh: fetch a new one, if one is to be had: a broker has refused the last one.

        Raises:
            AuthenticationFailed: none is to be had, and the last one has expired.
        """
        if self._token is not None and self._wall_clock_s() < self._wall_refresh_at_s and not fresh:
            return self._token
        try:
            return self._keep(await self._fetch())
        except AuthenticationFailed as error:
            if self._token is None or self._token.wall_expires_at_s <= self._wall_clock_s():
                raise
            log.warning("%s The token at hand serves until it expires.", error)
            self._wall_refresh_at_s = self._wall_clock_s() + TOKEN_RETRY_MS / 1000
            return self._token

    async def _fetch(self) -> Token:
        if self._fetching is None or self._fetching.done():
            self._stuck = [call for call in self._stuck if not call.done()]
            if len(self._stuck) >= TOKEN_CALLS_MAX:
                message = f"OAUTHBEARER: {TOKEN_CALLS_MAX} calls of the token function have not returned."
                raise AuthenticationFailed(message, retriable=True)
            self._fetching = in_a_thread(self._provider)
        ours = self._fetching
        try:
            async with asyncio.timeout(TOKEN_TIMEOUT_MS / 1000):
                return await asyncio.wrap_future(ours)
        except TimeoutError:
            if self._fetching is ours:  # it may never return: the next caller tries anew
                self._stuck.append(ours)
                self._fetching = None
            raise AuthenticationFailed(f"OAUTHBEARER: no token within {TOKEN_TIMEOUT_MS} ms.", retriable=True) from None
        except AuthenticationFailed as error:  # shared, so each caller raises an error of its own
            raise AuthenticationFailed(str(error), retriable=error.retriable) from None

    def _keep(self, token: Token) -> Token:
        now_s = self._wall_clock_s()
        if token.wall_expires_at_s <= now_s and self._token is not None and self._token.wall_expires_at_s > now_s:
            raise AuthenticationFailed("OAUTHBEARER: the token is new and has expired already.", retriable=True)
        until_s = serves_until("the token", token.wall_expires_at_s, now_s, retriable=True)
        self._token = token = replace(token, wall_expires_at_s=until_s)
        self._wall_refresh_at_s = now_s + (until_s - now_s) * TOKEN_REFRESH_FACTOR
        return token


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientCredentials:
    """A `TokenProvider`: OIDC client credentials (RFC 6749, section 4.4), librdkafka's sasl.oauthbearer.method=oidc.

    Attributes:
        endpoint: sasl.oauthbearer.token.endpoint.url.
        client_id: sasl.oauthbearer.client.id.
        client_secret: sasl.oauthbearer.client.secret.
        scope: sasl.oauthbearer.scope.
        extensions: sasl.oauthbearer.extensions, for the broker.
        ca_location: https.ca.location, PEM file or directory. Without it and `ca_pem`, this system's CAs are trusted.
        ca_pem: https.ca.pem, the same as text.

    Raises:
        OptionError: the endpoint is no URL, or a CA cannot be read.
    """

    endpoint: str = field(repr=False)
    client_id: str
    client_secret: str = field(repr=False)
    scope: str | None = None
    extensions: Mapping[str, str] = field(default_factory=dict)
    ca_location: str | None = None
    ca_pem: str | None = field(default=None, repr=False)
    _tls: RenewedContext | None = field(init=False, repr=False, compare=False, default=None)

    def __post_init__(self) -> None:
        url = urlsplit(self.endpoint)
        if url.scheme not in ("http", "https") or not can_be_looked_up(url.hostname or "") or not _has_a_port(url):
            raise OptionError(
                "`sasl.oauthbearer.token.endpoint.url` is not http(s)://HOST[:PORT]/PATH: give the URL at which "
                "the identity provider hands out tokens."
            )
        if url.scheme == "https":
            files = CredentialFiles(ca_locations(self.ca_location, self.ca_pem, "https.ca"))
            object.__setattr__(self, "_tls", RenewedContext(files, self._context))

    def _context(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        trust(context, self.ca_location, self.ca_pem, "https.ca")
        return context

    def __call__(self) -> Token:
        """Ask the endpoint for a token. Blocks.

        Raises:
            AuthenticationFailed: it refused, could not be asked, or answered with no token and expiry.
        """
        # `expires_in` counts from the answer. A life that is counted from the question ends a little early, and never
        # late.
        now_s = time.time()
        status, body = self._post()
        try:
            answer = json.loads(body)
        except ValueError:
            answer = None
        if status != http.HTTPStatus.OK:
            raise AuthenticationFailed(self._refusal(status, answer), retriable=status not in _REFUSALS)
        try:
            value = str(answer["access_token"])
            # RFC 6749 (section 5.1) only recommends `expires_in`, and a JWT tells its expiry itself.
            expires_at_s = now_s + float(answer["expires_in"]) if "expires_in" in answer else _read_expiry(value)
        except (KeyError, TypeError, ValueError):
            raise AuthenticationFailed(
                f"{self._name} answered with no token and expiry (access_token, expires_in). "
                "Check `sasl.oauthbearer.token.endpoint.url`."
            ) from None
        return Token(value, expires_at_s, self.extensions)

    def _post(self) -> tuple[int, bytes]:
        """HTTP status and body. Redirects are not followed: the secret is for this host only."""
        form = {"grant_type": "client_credentials", **({"scope": self.scope} if self.scope else {})}
        basic = base64.b64encode(f"{self.client_id}:{self.client_secret}".encode()).decode()
        headers = {
            "Authorization": f"Basic {basic}",
            "Content-Type": "application/x-www-form-urlencoded",
            "Accept": "application/json",
        }
        try:
            return post(
                urlsplit(self.endpoint),
                urlencode(form),
                headers,
                context=self._tls.context() if self._tls else None,
                timeout_ms=TOKEN_POST_TIMEOUT_MS,
                bytes_max=TOKEN_BYTES_MAX,
            )
        except ssl.SSLCertVerificationError as error:
            raise AuthenticationFailed(
                f"{self._name} shows a certificate that is not trusted here ({error.verify_message}). Set "
                "`https.ca.location` (or `https.ca.pem`) to the CA that issued it."
            ) from None
        except (OSError, http.client.HTTPException) as error:
            raise AuthenticationFailed(
                f"{self._name} cannot be asked: {printable_words(str(error)) or type(error).__name__}.", retriable=True
            ) from None

    def _refusal(self, status: int, answer: Any) -> str:
        """The error message, with the endpoint's `error` and `error_description` (RFC 6749) if it gave them."""
        members = answer if _is_object(answer) else {}
        words = [printable_words(str(members[name])) for name in ("error", "error_description") if members.get(name)]
        outcome = ": ".join([f"{self._name} answered HTTP {status}", *words])
        fix = "`sasl.oauthbearer.client.id`, .client.secret and .scope" if status in _REFUSALS else "its log"
        return f"{outcome}. Client {self.client_id!r}. Check {fix}."

    @property
    def _name(self) -> str:
        url = urlsplit(self.endpoint)  # without its query, and without a user in it
        port = f":{url.port}" if url.port else ""
        return f"OAUTHBEARER: the token endpoint {url.scheme}://{url.hostname}{port}{url.path}"


def _has_a_port(url: SplitResult) -> bool:
    """Whether its port, given or not, is one."""
    try:
        return url.port != 0
    except ValueError:
        return False


def _is_object(answer: Any) -> bool:
    return isinstance(answer, dict)


def _read_expiry(jwt: str) -> float:
    """The `exp` claim of a JWT, in seconds since the epoch (RFC 7519). Raises ValueError or KeyError without one."""
    _, payload, _ = jwt.split(".")
    return float(json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))["exp"])
