"""SASL over Kafka's own requests (KIP-43, KIP-152): SaslHandshake, then SaslAuthenticate until the mechanism is done.

The content of the messages comes from `mechanisms`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Self

from spark_kgroup.errors import AuthenticationFailed
from spark_kgroup.model import ErrorCode
from spark_kgroup.peer_words import printable_words
from spark_kgroup.wire import messages, schema
from spark_kgroup.wire.security.mechanisms import Exchange, oauthbearer, plain, scram
from spark_kgroup.wire.security.oauth import TokenCache
from spark_kgroup.wire.security.settings import Mechanism, Send
from spark_kgroup.wire.security.tokens import TokenProvider

log = logging.getLogger(__name__)


class Login:
    """One way to log in, as often as a connection needs it. Belongs to one event loop."""

    def __init__(
        self, mechanism: Mechanism, who: str, check: str, begin: Callable[[bool], Awaitable[Exchange]]
    ) -> None:
        self._mechanism = mechanism
        self._who = who
        self._check = check
        self._begin = begin
        self._refused = False

    @classmethod
    def with_password(cls, mechanism: Mechanism, username: str, password: str) -> Self:
        """PLAIN or SCRAM.

        Raises:
            OptionError: the mechanism's rules allow no such user or password.
        """
        start = plain if mechanism == "PLAIN" else partial(scram, mechanism)

        async def begin(_: bool) -> Exchange:
            return start(username, password)

        next(start(username, password))  # a user or password that the mechanism does not allow raises now
        check = "Check `sasl.username` and `sasl.password`, and that the cluster knows them for this mechanism."
        return cls(mechanism, f"user {username!r}", check, begin)

    @classmethod
    def with_tokens(cls, provider: TokenProvider) -> Self:
        """OAUTHBEARER."""
        tokens = TokenCache(provider)

        async def begin(refused: bool) -> Exchange:
            return oauthbearer(await tokens.token(fresh=refused))

        check = "Check the token function, or `sasl.oauthbearer.*`, and the cluster's conditions for tokens."
        return cls("OAUTHBEARER", "our token", check, begin)

    async def authenticate(self, address: object, send: Send) -> int:
        """Log in: see `Security.authenticate`."""
        try:
            lifetime_ms = await self._exchange(address, send)
        except AuthenticationFailed:
            self._refused = True
            raise
        self._refused = False
        return lifetime_ms

    async def _exchange(self, address: object, send: Send) -> int:
        exchange = await self._begin(self._refused)
        message = next(exchange)
        self._check_handshake(address, await send(messages.sasl_handshake(self._mechanism)))
        while True:
            answer = await send(messages.sasl_authenticate(message))
            assert isinstance(answer, schema.SaslAuthenticateResponse)
            if int(answer.error_code) != ErrorCode.NONE:
                reason = printable_words(answer.error_message) or ErrorCode.name_of(int(answer.error_code))
                raise AuthenticationFailed(
                    f"{address} refused {self._mechanism} for {self._who}: {reason.rstrip('.')}. {self._check}"
                )
            try:
                # In a thread: the broker decides how much there is to compute, and heartbeats must not wait for it.
                reply = await asyncio.to_thread(_reply, exchange, answer.auth_bytes)
            except AuthenticationFailed as error:
                raise AuthenticationFailed(f"{address}, {self._mechanism} for {self._who}: {error}") from None
            if reply is None:
                return answer.session_lifetime_ms
            message = reply

    def _check_handshake(self, address: object, answer: schema.Response) -> None:
        assert isinstance(answer, schema.SaslHandshakeResponse)
        code = int(answer.error_code)
        if code == ErrorCode.UNSUPPORTED_SASL_MECHANISM:
            raise AuthenticationFailed(
                f"{address} does not have `sasl.mechanism`={self._mechanism} enabled: this listener has "
                f"{printable_words(', '.join(sorted(answer.mechanisms))) or 'none'}."
            )
        if code == ErrorCode.ILLEGAL_SASL_STATE:
            raise AuthenticationFailed(f"{address} is a listener without SASL: check `security.protocol` and the port.")
        if code != ErrorCode.NONE:
            raise AuthenticationFailed(f"{address} refused SaslHandshake with {ErrorCode.name_of(code)}.")


def _reply(exchange: Exchange, challenge: bytes) -> bytes | None:
    """The client's reply to the broker's challenge, or None if the exchange is complete."""
    try:
        return exchange.send(challenge)
    except StopIteration:
        return None
