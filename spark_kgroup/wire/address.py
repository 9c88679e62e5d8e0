"""Where a broker listens, and how a user writes it: HOST:PORT."""

from __future__ import annotations

import re
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Final

from spark_kgroup.errors import OptionError

_HOST_CHARS_MAX: Final = 253
"""RFC 1035 allows no longer name."""

_HOST_AND_PORT: Final = re.compile(r"(?:\[([0-9a-fA-F:.%]+)\]|([\w.-]+)):([0-9]{1,5})", re.ASCII)
"""HOST:PORT, or [IPv6]:PORT."""


@dataclass(frozen=True, slots=True, order=True)
class Address:
    """Where a broker listens."""

    host: str
    port: int

    def __str__(self) -> str:
        # Brokers name each other's addresses, and these texts reach logs and terminals.
        host = self.host if self.host.isprintable() and len(self.host) <= _HOST_CHARS_MAX else ascii(self.host[:80])
        return f"[{host}]:{self.port}" if ":" in self.host else f"{host}:{self.port}"


def read_address(text: str) -> Address:
    """The address in `host:port`, or in `[::1]:9092`.

    Raises:
        ValueError: the text is no address. The message says so.
    """
    match = _HOST_AND_PORT.fullmatch(text)
    if match is None or not 0 < int(match[3]) < 65536 or not _is_a_host(match):
        raise ValueError(f"{text!r} is not HOST:PORT")
    return Address(match[1] or match[2], int(match[3]))


def parse_bootstrap(text: str, name: str = "bootstrap.servers") -> tuple[Address, ...]:
    """Addresses from `host:port[,host:port]`.

    Args:
        text: as the user wrote it.
        name: by which the user knows it.

    Raises:
        OptionError: an entry is no address, or there is none.
    """
    try:
        addresses = tuple(read_address(entry.strip()) for entry in text.split(",") if entry.strip())
    except ValueError as error:
        raise OptionError(
            f"`{name}`: {error}: give one or more brokers, such as 'broker-1:9092,broker-2:9092' (IPv6: '[::1]:9092')."
        ) from None
    if not addresses:
        raise OptionError(f"`{name}` is {text!r}: give one or more brokers, such as 'broker-1:9092'.")
    return addresses


def can_be_looked_up(host: str) -> bool:
    """Whether it is a name at all: no empty label, none beyond 63 characters (RFC 1035)."""
    try:
        return bool(host.encode("idna"))
    except UnicodeError:
        return False


def _is_a_host(entry: re.Match[str]) -> bool:
    """Whether it is a whole IPv6 address, or a name that can be looked up."""
    if not entry[1]:
        return can_be_looked_up(entry[2])
    try:
        return bool(ip_address(entry[1]))
    except ValueError:
        return False
