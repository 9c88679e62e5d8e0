"""An OAUTHBEARER token, and how a provider is asked for one (RFC 7628, KIP-255)."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Final, TypeVar

from spark_kgroup import threads
from spark_kgroup.errors import AuthenticationFailed
from spark_kgroup.limits import TOKEN_CLOCK_OFF_MAX_S, TOKEN_OF_UNKNOWN_LIFE_S

T = TypeVar("T")

log = logging.getLogger(__name__)

_VALUE: Final = re.compile(r"[-_~+/.a-zA-Z0-9]+=*")
_EXTENSION_NAME: Final = re.compile(r"(?!auth$)[A-Za-z]+")
_EXTENSION_VALUE: Final = re.compile(r"[\x21-\x7e \t\r\n]+")
"""Syntax that a broker accepts (OAuthBearerClientInitialResponse). The name `auth` is the token's own."""


@dataclass(frozen=True, slots=True)
class Token:
    """One OAUTHBEARER token.

    Attributes:
        value: the text that the broker checks, mostly a JWT (RFC 6750: b64token).
        wall_expires_at_s: seconds since the epoch.
        extensions: sent beside it (KIP-342).
    """

    value: str = field(repr=False)
    wall_expires_at_s: float
    extensions: Mapping[str, str] = field(default_factory=dict)

    def initial_response(self) -> bytes:
        """The client's first message (RFC 7628, section 3.1).

        Raises:
            AuthenticationFailed: it is no token that a broker would take.
        """
        if not _VALUE.fullmatch(self.value):
            raise AuthenticationFailed(
                "OAUTHBEARER: the text that came is no token (RFC 6750: letters, digits and -._~+/, = at the end). "
                "Check the token function or the token endpoint."
            )
        for name, value in self.extensions.items():
            if not (_EXTENSION_NAME.fullmatch(name) and _EXTENSION_VALUE.fullmatch(value)):
                raise AuthenticationFailed(
                    f"OAUTHBEARER: the extension {name!r} cannot be sent (RFC 7628: names have letters only and are "
                    "not 'auth', values are printable ASCII). Check `sasl.oauthbearer.extensions`."
                )
        pairs = [f"auth=Bearer {self.value}", *(f"{name}={value}" for name, value in self.extensions.items())]
        return "\x01".join(["n,,", *pairs, "\x01"]).encode()


def serves_until(token: str, wall_expires_at_s: float, wall_now_s: float, *, retriable: bool = False) -> float:
    """Until when a token serves that has just been made, in seconds since the epoch.

    By a clock that is ahead it may have expired. Then the broker is to say whether it accepts it, with a warning, and
    the next one is fetched soon.

    Args:
        token: where it comes from, for messages.
        wall_expires_at_s: its expiry, in seconds since the epoch.
        wall_now_s: this machine's clock.
        retriable: whether the next token may be a better one.

    Raises:
        AuthenticationFailed: no clock is so far ahead.
    """
    expired_s = wall_now_s - wall_expires_at_s
    if expired_s < 0:
        return wall_expires_at_s
    said = f"OAUTHBEARER: {token} is new, and expired {expired_s:.0f} s ago by this machine's clock."
    if expired_s > TOKEN_CLOCK_OFF_MAX_S:
        raise AuthenticationFailed(
            f"{said} Check the clock, and that the expiry is given in seconds since the epoch.", retriable=retriable
        )
    log.warning(
        "%s Check the clock, and that this is no earlier token. The broker decides whether it accepts it.", said
    )
    return wall_now_s + TOKEN_OF_UNKNOWN_LIFE_S


TokenProvider = Callable[[], Token]
"""Returns a new token. It may block, for at most `TOKEN_TIMEOUT_MS`."""


def in_a_thread(provider: Callable[[], T]) -> Future[T]:
    """Ask `provider` in a thread of its own. Any error that it raises becomes an AuthenticationFailed.

    Raises:
        AuthenticationFailed: there is no thread left for it.
    """

    def ask() -> T:
        try:
            return provider()
        except AuthenticationFailed:
            raise
        except BaseException as error:  # a user's function may raise any exception, SystemExit included
            log.debug("the token function failed", exc_info=True)
            message = f"OAUTHBEARER: the token function failed with {type(error).__name__}: {error}"
            raise AuthenticationFailed(message, retriable=True) from error

    try:
        return threads.in_a_thread(ask, "kgroup token")
    except OSError as error:
        raise AuthenticationFailed(f"OAUTHBEARER: no token could be asked for: {error}.", retriable=True) from None
