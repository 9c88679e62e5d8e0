"""From a host's name to a TCP connection: every address of the name, side by side, and no wait without a bound.

`getaddrinfo` blocks for as long as the system's resolver likes (glibc: 5 s for each server and try), and a pool of
threads would let names that hang hold up names that resolve. So each name is looked up in a thread of its own, which
all callers that ask for that name meanwhile share.
"""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from concurrent.futures import Future
from functools import partial
from typing import Any, Final

from spark_kgroup.limits import LOOK_UPS_MAX, NEXT_ADDRESS_AFTER_MS
from spark_kgroup.threads import in_a_thread
from spark_kgroup.wire.race import first_success

Found = tuple[socket.AddressFamily, tuple[Any, ...]]
"""One address of a host, as `socket.connect` takes it."""

_lock: Final = threading.Lock()
_looking_up: Final[dict[tuple[str, int], Future[list[Found]]]] = {}


async def resolve_addresses(host: str, port: int) -> list[Found]:
    """All addresses of a host, the best first (RFC 6724). Waits as long as the system's resolver does.

    Raises:
        OSError: it has none, or `host` and `port` cannot be a host's name and a port.
    """
    try:
        return _ask_resolver(host, port, socket.AI_NUMERICHOST)  # a numeric address: no DNS server is asked
    except socket.gaierror:
        return await asyncio.wrap_future(_shared_look_up(host, port))


def _shared_look_up(host: str, port: int) -> Future[list[Found]]:
    key = (host, port)
    with _lock:
        if key not in _looking_up:
            if len(_looking_up) >= LOOK_UPS_MAX:
                raise OSError(f"{LOOK_UPS_MAX} names are being looked up already: check this machine's DNS")
            _looking_up[key] = in_a_thread(partial(_look_up_and_forget, key), f"look up {host[:40]!a}")
        return _looking_up[key]


def _look_up_and_forget(key: tuple[str, int]) -> list[Found]:
    """The addresses. A caller that asks from now on causes a new look-up."""
    try:
        return _ask_resolver(*key)
    finally:
        with _lock:
            del _looking_up[key]


def _ask_resolver(host: str, port: int, flags: int = 0) -> list[Found]:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=flags)
    except (ValueError, OverflowError):  # a name that IDNA cannot encode, one with a NUL, or a port out of range
        raise OSError("this cannot be a host's name and port") from None
    return [(family, address) for family, _, _, _, address in found]


async def connect_to_first(addresses: list[Found]) -> socket.socket:
    """A TCP connection, non-blocking, to the first address that accepts one (RFC 8305).

    Raises:
        OSError: none does. It is the error of the attempt that failed first.
    """
    failures: dict[int, OSError] = {}
    attempts = enumerate(partial(_connect_to, *found) for found in addresses)
    accepted = await first_success(
        attempts, patience_ms=NEXT_ADDRESS_AFTER_MS, failure=OSError, failures=failures, discard=socket.socket.close
    )
    if accepted is None:
        raise next(iter(failures.values()))
    return accepted


async def _connect_to(family: socket.AddressFamily, address: tuple[Any, ...]) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        await asyncio.get_running_loop().sock_connect(sock, address)
    except OSError as error:
        sock.close()
        raise OSError(error.errno, f"{os.strerror(error.errno or 0)} at {address[0]}") from None
    except BaseException:
        sock.close()
        raise
    return sock


def connect(host: str, port: int, timeout_s: float, *, look_up_timeout_s: float | None = None) -> socket.socket:
    """A TCP connection for callers without an event loop, found as above.

    Args:
        host: a name or an address.
        port: where it listens.
        timeout_s: bound on the look-up and the connection together, and on each later wait, until the caller sets
            another.
        look_up_timeout_s: bound on finding the addresses, if that may take longer. `timeout_s` then bounds the rest.

    Raises:
        OSError: no connection came about. A TimeoutError says which step took too long.
    """
    loop = asyncio.new_event_loop()
    try:
        sock = loop.run_until_complete(_connect_within(host, port, timeout_s, look_up_timeout_s))
    finally:
        loop.close()
    sock.settimeout(timeout_s)
    return sock


async def _connect_within(host: str, port: int, timeout_s: float, look_up_timeout_s: float | None) -> socket.socket:
    late = f"the name {host!r} was not resolved within {look_up_timeout_s or timeout_s:g} s"
    try:
        async with asyncio.timeout(look_up_timeout_s or timeout_s) as bound:
            addresses = await resolve_addresses(host, port)
            late = f"no connection was accepted within {timeout_s:g} s"
            if look_up_timeout_s is not None:
                bound.reschedule(asyncio.get_running_loop().time() + timeout_s)
            return await connect_to_first(addresses)
    except TimeoutError:
        raise TimeoutError(late) from None
