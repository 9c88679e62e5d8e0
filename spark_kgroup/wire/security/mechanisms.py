"""A client's messages to log in, by SASL mechanism: bytes only, no connection and no event loop.

A mechanism is a generator: it yields the client's messages and is sent the broker's answers.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Generator
from contextlib import suppress

from scramp import ScramClient, ScramException

from spark_kgroup.errors import AuthenticationFailed, OptionError
from spark_kgroup.limits import SCRAM_ITERATIONS_MAX, SCRAM_ITERATIONS_MIN, SCRAM_SALT_BYTES_MIN
from spark_kgroup.peer_words import printable_words
from spark_kgroup.wire.security.tokens import Token

Exchange = Generator[bytes, bytes, None]
"""Yields the client's next message and is sent the broker's answer. Raises AuthenticationFailed if that is no good."""


def plain(username: str, password: str) -> Exchange:
    """RFC 4616: the password as it is, so use it over TLS only."""
    yield f"\0{username}\0{password}".encode()


def scram(mechanism: str, username: str, password: str) -> Exchange:
    """RFC 5802 without channel binding. The broker must prove that it knows the password, too.

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
    """Refuse a challenge with too few or too many iterations, or too short a salt. A malformed one is left to scramp.

    Few iterations would let a peer that plays the broker guess the password, and many keep us busy.
    """
    attributes = dict(part.partition("=")[::2] for part in server_first.split(","))
    fix = f"create the user's {mechanism} credential anew (kafka-configs.sh), or is this not the broker you mean?"
    iterations = attributes.get("i", "")
    if re.fullmatch("[0-9]+", iterations):
        # int() refuses thousands of digits, and an error message with them is unreadable.
        count = int(iterations[:20])
        if not SCRAM_ITERATIONS_MIN <= count <= SCRAM_ITERATIONS_MAX:
            raise AuthenticationFailed(
                f"the broker asks for {count} SCRAM iterations, and {SCRAM_ITERATIONS_MIN} to {SCRAM_ITERATIONS_MAX} "
                f"are accepted: {fix}"
            )
    with suppress(ValueError):
        salt = attributes.get("s")
        salt_bytes = len(base64.b64decode(salt, validate=True)) if salt else SCRAM_SALT_BYTES_MIN
        if salt_bytes < SCRAM_SALT_BYTES_MIN:
            raise AuthenticationFailed(
                f"the broker's SCRAM salt for this user has {salt_bytes} bytes, and {SCRAM_SALT_BYTES_MIN} are the "
                f"least that is accepted: {fix}"
            )


def oauthbearer(token: Token) -> Exchange:
    """RFC 7628: the token. A broker that refuses it says why and waits for a lone 0x01 before it ends."""
    problem = yield token.initial_response()
    if problem:
        yield b"\x01"
        raise AuthenticationFailed(f"the broker refused the token: {printable_words(problem.decode(errors='replace'))}")
