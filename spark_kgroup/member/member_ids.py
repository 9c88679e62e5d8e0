"""Member ids that clients make themselves (KIP-1082), as Kafka's own client makes them (Uuid.randomUuid)."""

from __future__ import annotations

from base64 import urlsafe_b64encode
from collections.abc import Callable


def new_member_id(random_bytes: Callable[[int], bytes]) -> str:
    """A version 4 UUID in URL-safe base64 without padding, never with a "-" in front, which tools take for an option.

    Args:
        random_bytes: gives as many random bytes as it is asked for, passed in so that a simulation repeats.
    """
    while True:
        drawn = bytearray(random_bytes(16))
        drawn[6] = drawn[6] & 0x0F | 0x40  # RFC 9562: version 4
        drawn[8] = drawn[8] & 0x3F | 0x80  # and its variant
        text = urlsafe_b64encode(drawn).decode().rstrip("=")
        if not text.startswith("-"):
            return text
