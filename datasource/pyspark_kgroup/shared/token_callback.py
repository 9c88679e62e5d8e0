"""The option `tokenCallback`: a user's function that returns OAUTHBEARER tokens, named `MODULE:FUNCTION`.

Runs on: both. A function does not travel between processes by its name alone, so each side imports it for itself.

A user who may write options may not thereby call any function that Python can import: `os:system` takes one text, too.
So a function says of itself that it is a token callback::

    from pyspark_kgroup import token_callback

    @token_callback
    def token_for(config: str) -> tuple[str, float]:
        return fetch_token(config), time.time() + 3600

Importing a module runs that module's own code, and no more than that. It has to be on Python's path.
"""

from __future__ import annotations

import logging
import platform
import time
from collections.abc import Callable
from importlib import import_module
from typing import Any, Final, NamedTuple, TypeVar, cast

from spark_kgroup.errors import AuthenticationFailed, OptionError
from spark_kgroup.limits import TOKEN_TIMEOUT_MS
from spark_kgroup.wire.security.tokens import Token, TokenProvider, in_a_thread, serves_until

log = logging.getLogger(__name__)

CALLBACK: Final = "oauth_cb"
"""The property in which confluent-kafka takes the function itself. Between our processes it holds `MODULE:FUNCTION`."""

TokenCallback = Callable[[str], object]

F = TypeVar("F", bound=TokenCallback)

_DECLARED: Final = object()
_MARK: Final = "_kgroup_token_callback"


def token_callback(function: F) -> F:
    """Declare that `function` returns OAUTHBEARER tokens, so that the option `tokenCallback` may name it.

    Args:
        function: gets kafka.sasl.oauthbearer.config, and returns (token, expiry in seconds since the epoch[,
            principal[, extensions]]). Called on the driver and on executors.
    """
    setattr(function, _MARK, _DECLARED)
    return function


class Returned(NamedTuple):
    """A token with all four items: the shape that confluent-kafka wants of its `oauth_cb`."""

    token: str
    wall_expires_at_s: float
    principal: str
    extensions: dict[str, str]

    def __repr__(self) -> str:
        return f"Returned(wall_expires_at_s={self.wall_expires_at_s})"


def import_function(name: str) -> TokenCallback:
    """The function called `MODULE:FUNCTION`.

    Raises:
        OptionError: this process cannot import it, or it does not say that it is a token callback.
    """
    module, _, function = name.partition(":")
    try:
        found: Any = getattr(import_module(module), function)
    except Exception as error:  # a user's module may raise anything while it is imported
        log.debug("the token callback cannot be imported", exc_info=True)
        raise OptionError(
            f"Option tokenCallback: {name} cannot be imported by Python on {platform.node()} ({type(error).__name__}: "
            f"{error}). Install its module for the Python that Spark runs, on the driver and on every executor."
        ) from None
    if not callable(found) or getattr(found, _MARK, None) is not _DECLARED:
        raise OptionError(
            f"Option tokenCallback: {name} does not say that it is a token callback: put @token_callback before it "
            "(from pyspark_kgroup import token_callback). No other function is called."
        )
    return cast("TokenCallback", found)


def call(name: str, function: TokenCallback, config: str) -> Returned:
    """Ask `function` for a token. Blocks as long as the function does.

    Args:
        name: `MODULE:FUNCTION`, for messages.
        function: the function of that name.
        config: kafka.sasl.oauthbearer.config.

    Raises:
        AuthenticationFailed: it raised, or did not return a valid token. Never shows the token.
    """
    try:
        returned = function(config)
    except Exception as error:  # a user's function may raise anything
        log.debug("the token callback failed", exc_info=True)
        raise AuthenticationFailed(
            f"OAUTHBEARER: tokenCallback {name} failed with {type(error).__name__}: {error}", retriable=True
        ) from None
    result = _complete(returned)
    if result is None:
        raise AuthenticationFailed(
            f"OAUTHBEARER: tokenCallback {name} returned {_kinds(returned)}: it must return (token: str, expiry in "
            "seconds since the epoch: float[, principal: str[, extensions: dict of str]])."
        )
    until_s = serves_until(f"the token of tokenCallback {name}", result.wall_expires_at_s, time.time())
    return result._replace(wall_expires_at_s=until_s)


def call_in_time(name: str, function: TokenCallback, config: str, timeout_ms: int = TOKEN_TIMEOUT_MS) -> Returned:
    """As `call`, for `timeout_ms` at most.

    Raises:
        AuthenticationFailed: as `call`, or the function did not return in time.
    """
    try:
        return in_a_thread(lambda: call(name, function, config)).result(timeout_ms / 1000)
    except TimeoutError:
        raise AuthenticationFailed(
            f"OAUTHBEARER: tokenCallback {name} did not return within {timeout_ms} ms.", retriable=True
        ) from None


def token_provider(name: str, config: str) -> TokenProvider:
    """The driver's source of tokens.

    Raises:
        OptionError: the function cannot be imported here.
    """
    function = import_function(name)

    def provide() -> Token:
        token, wall_expires_at_s, _, extensions = call(name, function, config)
        return Token(token, wall_expires_at_s, extensions)

    return provide


def _complete(returned: object) -> Returned | None:
    """The returned token with all four items, or None if it does not have the shape."""
    match returned:
        case (str() as token, float() | int() as expiry, *rest) if token:
            pass
        case _:
            return None
    match rest:
        case []:
            return Returned(token, expiry, "", {})
        case [str() as principal]:
            return Returned(token, expiry, principal, {})
        case [str() as principal, dict() as extensions] if all(
            isinstance(word, str) for pair in extensions.items() for word in pair
        ):
            return Returned(token, expiry, principal, extensions)
    return None


def _kinds(returned: object) -> str:
    """Its type, or for a tuple those of its items, but not its contents, which may hold a token."""
    if isinstance(returned, tuple):
        return f"({', '.join(type(item).__name__ for item in returned)})"
    return type(returned).__name__
