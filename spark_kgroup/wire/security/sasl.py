"""SASL over Kafka's own requests (KIP-43, KIP-152): SaslHandshake, then SaslAuthenticate until the mechanism is done.

A mechanism is a generator: it yields what the client says and is sent what the broker answers.
"""

from __future__ import annotations

import asyncio
import base64
import logging
import re
import time
from collections.abc import Awaitable, Callable, Generator
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import Self

from scramp import ScramClient, ScramException

from spark_kgroup.errors import AuthenticationFailed, OptionError
from spark_kgroup.limits import (
    AUTHENTICATION_GRACE_MS,
    SCRAM_ITERATIONS_MAX,
    SCRAM_ITERATIONS_MIN,
    SCRAM_SALT_BYTES_MIN,
)
from spark_kgroup.model import ErrorCode
from spark_kgroup.wire import messages
from spark_kgroup.wire.security.oauth import TokenCache
from spark_kgroup.wire.security.settings import Mechanism, Send
from spark_kgroup.wire.security.tokens import Token, TokenProvider

log = logging.getLogger(__name__)

Exchange = Generator[bytes, bytes, None]
"""Yields what the client says next, is sent the broker's answer; raises AuthenticationFailed if that is no good."""


class Login:
    """One way to log in, as often as a connection needs it. Belongs to one event loop."""

    def __init__(
        self, mechanism: Mechanism, who: str, check: str, begin: Callable[[bool], Awaitable[Exchange]]
    ) -> None:
        self._mechanism = mechanism
        self._who = who
        self._check = check
        self._begin = begin
        self._known = False
        self._refused_since_s: float | None = None

    @classmethod
    def with_password(cls, mechanism: Mechanism, username: str, password: str) -> Self:
        """PLAIN or SCRAM.

        Raises:
            OptionError: the mechanism's rules allow no such user or password.
        """
        start = plain if mechanism == "PLAIN" else partial(scram, mechanism)

        async def begin(_: bool) -> Exchange:
            return start(username, password)

        next(start(username, password))  # a user or password that cannot be said is found out now
        check = "Check `sasl.username` and `sasl.password`, and that the cluster knows them for this mechanism."
        return cls(mechanism, f"user {username!r}", check, begin)

    @classmethod
    def with_tokens(cls, provider: TokenProvider) -> Self:
        """OAUTHBEARER."""
        tokens = TokenCache(provider)

        async def begin(refused: bool) -> Exchange:
            return oauthbearer(await tokens.token(fresh=refused))

        check = "Check the token function, or `sasl.oauthbearer.*`, and what the cluster asks of tokens."
        return cls("OAUTHBEARER", "our token", check, begin)

    async def authenticate(self, address: object, send: Send) -> int:
        """Log in: see `Security.authenticate`.

        A cluster that has known us may refuse us for `AUTHENTICATION_GRACE_MS` before that is final: a broker that
        starts may not have its users yet, and a token endpoint may be away.
        """
        try:
            lifetime_ms = await self._exchange(address, send)
        except AuthenticationFailed as error:
            now_s = time.monotonic()
            self._refused_since_s = self._refused_since_s or now_s
            if self._known and now_s - self._refused_since_s < AUTHENTICATION_GRACE_MS / 1000:
                error.retriable = True
            raise
        self._known, self._refused_since_s = True, None
        return lifetime_ms

    async def _exchange(self, address: object, send: Send) -> int:
        exchange = await self._begin(self._refused_since_s is not None)
        said = next(exchange)
        self._check_handshake(address, await send(messages.sasl_handshake(self._mechanism)))
        while True:
            answer = await send(messages.sasl_authenticate(said))
            assert isinstance(answer, messages.SaslAuthenticateResponse)
            if int(answer.error_code) != ErrorCode.NONE:
                told = answer.error_message or ErrorCode.name_of(int(answer.error_code))
                raise AuthenticationFailed(
                    f"{address} refused {self._mechanism} for {self._who}: {told.rstrip('.')}. {self._check}"
                )
            try:
                # How much there is to compute the broker decides; heartbeats do not wait for it.
                reply = await asyncio.to_thread(_reply, exchange, answer.auth_bytes)
            except AuthenticationFailed as error:
                raise AuthenticationFailed(f"{address}, {self._mechanism} for {self._who}: {error}") from None
            if reply is None:
                return answer.session_lifetime // timedelta(milliseconds=1)
            said = reply

    def _check_handshake(self, address: object, answer: messages.Response) -> None:
        assert isinstance(answer, messages.SaslHandshakeResponse)
        code = int(answer.error_code)
        if code == ErrorCode.UNSUPPORTED_SASL_MECHANISM:
            raise AuthenticationFailed(
                f"{address} does not have `sasl.mechanism`={self._mechanism} enabled: this listener has "
                f"{', '.join(sorted(answer.mechanisms)) or 'none'}."
            )
        if code == ErrorCode.ILLEGAL_SASL_STATE:
            raise AuthenticationFailed(f"{address} is a listener without SASL: check `security.protocol` and the port.")
        if code != ErrorCode.NONE:
            raise AuthenticationFailed(f"{address} refused SaslHandshake with {ErrorCode.name_of(code)}.")


def _reply(exchange: Exchange, told: bytes) -> bytes | None:
    """What the client says to what the broker told; None if the exchange is complete."""
    try:
        return exchange.send(told)
    except StopIteration:
        return None


def plain(username: str, password: str) -> Exchange:
    """RFC 4616: the password as it is, so use it over TLS only."""
    yield f"\0{username}\0{password}".encode()


def scram(mechanism: str, username: str, password: str) -> Exchange:
    """RFC 5802 without channel binding; the broker must prove that it knows the password, too.

    Raises:
        OptionError: when started, if SASLprep (RFC 4013) allows no such user or password.
    """
    try:
        client = ScramClient([mechanism], username, password)
        client_first = client.get_client_first()
    except ScramException:
        raise OptionError(
            f"`sasl.username` or `sasl.password` holds characters that {mechanism} does not allow (RFC 4013)."
        ) from None
    try:
        server_first = (yield client_first.encode()).decode()
        _check_challenge(mechanism, server_first)
        client.set_server_first(server_first)
        server_final = yield client.get_client_final().encode()
        client.set_server_final(server_final.decode())
    except (ScramException, UnicodeDecodeError):
        raise AuthenticationFailed(
            "the broker did not prove that it knows the password (its SCRAM message or signature is wrong): is this "
            "the broker you mean?"
        ) from None


def _check_challenge(mechanism: str, server_first: str) -> None:
    """Refuse what is well-formed but not ours to compute; what is malformed scramp refuses.

    Few iterations would let whoever plays the broker guess the password, and many keep us busy.
    """
    said = dict(part.partition("=")[::2] for part in server_first.split(","))
    fix = f"create the user's {mechanism} credential anew (kafka-configs.sh), or is this not the broker you mean?"
    iterations = said.get("i", "")
    if re.fullmatch("[0-9]+", iterations):
        # Nobody reads thousands of digits, and int() refuses them.
        count = int(iterations[:20])
        if not SCRAM_ITERATIONS_MIN <= count <= SCRAM_ITERATIONS_MAX:
            raise AuthenticationFailed(
                f"the broker asks for {count} SCRAM iterations, and {SCRAM_ITERATIONS_MIN} to {SCRAM_ITERATIONS_MAX} "
                f"are accepted: {fix}"
            )
    with suppress(ValueError):
        salt_bytes = len(base64.b64decode(said["s"], validate=True)) if said.get("s") else SCRAM_SALT_BYTES_MIN
        if salt_bytes < SCRAM_SALT_BYTES_MIN:
            raise AuthenticationFailed(
                f"the broker's SCRAM salt for this user has {salt_bytes} bytes, and {SCRAM_SALT_BYTES_MIN} are the "
                f"least that is accepted: {fix}"
            )


def oauthbearer(token: Token) -> Exchange:
    """RFC 7628: the token; a broker that refuses it says why and waits for a lone 0x01 before it ends."""
    problem = yield token.initial_response()
    if problem:
        yield b"\x01"
        raise AuthenticationFailed(f"the broker refused the token: {problem.decode(errors='replace')}")
