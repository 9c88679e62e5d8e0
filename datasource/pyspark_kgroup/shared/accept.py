"""Accepting connections on an event loop, without losing one when the wait is cancelled.

Runs on: both.
"""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress
from typing import Any


async def next_connection(listener: socket.socket) -> tuple[socket.socket, Any]:
    """The next connection of a non-blocking listener, non-blocking as well, and its peer's address.

    As `loop.sock_accept`, which accepts in a callback: if that runs after the wait was cancelled, nothing closes the
    connection, and the loop logs an InvalidStateError (CPython, `BaseSelectorEventLoop._sock_accept`).

    Raises:
        OSError: the system refused, for lack of a descriptor for example.
    """
    loop = asyncio.get_running_loop()
    while True:
        with suppress(BlockingIOError, InterruptedError, ConnectionAbortedError):
            client, address = listener.accept()
            client.setblocking(False)
            return client, address
        readable = asyncio.Event()
        try:
            loop.add_reader(listener, readable.set)
        except NotImplementedError:  # Windows
            return await loop.sock_accept(listener)
        try:
            await readable.wait()
        finally:
            loop.remove_reader(listener)
