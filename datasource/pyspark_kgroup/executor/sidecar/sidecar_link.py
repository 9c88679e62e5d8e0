"""A sidecar's connections: channels in its event loop.

Runs on: executor.
"""

from __future__ import annotations

import asyncio
import socket
from itertools import count
from typing import NoReturn

from pyspark_kgroup.errors import ChannelEnded
from pyspark_kgroup.limits import (
    CHANNEL_HANDSHAKE_MS,
    CHANNEL_RECEIVE_BYTES,
    CHANNEL_REQUEST_BYTES_MAX,
    SIDECAR_SILENCE_MS,
)
from pyspark_kgroup.shared.channel import Challenge, Frames, Message, frame
from pyspark_kgroup.shared.messages import QueryMessage, Resting, Served, parse, to_json


class Link:
    """A channel in the event loop. It never reads beyond a message, since the socket may be handed on."""

    def __init__(self, sock: socket.socket, *, trusted: bool) -> None:
        sock.setblocking(False)
        self.socket = sock
        self._frames = Frames()
        self._sending = asyncio.Lock()
        if trusted:
            self._frames.trust()

    async def authenticate(self, key: bytes, server: str) -> None:
        """Let the peer show that it holds the key, and means `server`.

        Raises:
            KeyRefused: it does not. It was not told whether we hold the key.
            ChannelEnded: it hung up.
        """
        challenge = Challenge(key, server)
        await self._send(challenge.message)
        await self._send(challenge.answer(await self._receive()))
        self._frames.trust(CHANNEL_REQUEST_BYTES_MAX)

    async def send(self, message: QueryMessage, number: int | None = None) -> None:
        """Send `message`, with `number` as its id, which the answer repeats. Raises ChannelEnded."""
        await self._send(to_json(message) if number is None else {**to_json(message), "id": number})

    async def _send(self, message: Message) -> None:
        # Several tasks send here, and `sock_sendall` gives way between the parts of a frame.
        async with self._sending:
            try:
                await asyncio.get_running_loop().sock_sendall(self.socket, frame(message))
            except OSError as problem:
                raise ChannelEnded(f"The peer is gone ({problem}).") from None

    async def send_with_socket(self, message: QueryMessage, sock: socket.socket) -> None:
        """Send `message` with `sock` attached, over a Unix socket. Raises as `send`."""
        data = frame(to_json(message))
        async with self._sending:
            try:
                sent = socket.send_fds(self.socket, [data], [sock.fileno()])
                await asyncio.get_running_loop().sock_sendall(self.socket, data[sent:])
            except OSError as problem:
                raise ChannelEnded(f"The peer is gone ({problem}).") from None

    async def receive(self) -> QueryMessage:
        """The next message. Raises ChannelEnded, also for data that are no message."""
        return parse(await self._receive())

    async def receive_numbered(self) -> tuple[object, QueryMessage]:
        """The next message and its id. Raises as `receive`."""
        raw = await self._receive()
        return raw.get("id"), parse(raw)

    async def receive_socket(self) -> socket.socket:
        """The socket that comes with the next byte, over a Unix socket. Raises ChannelEnded if none comes in time."""
        loop, arrived = asyncio.get_running_loop(), asyncio.Event()  # asyncio has no call that receives descriptors
        loop.add_reader(self.socket, arrived.set)
        try:
            async with asyncio.timeout(CHANNEL_HANDSHAKE_MS / 1000):
                await arrived.wait()
            _, descriptors, _, _ = socket.recv_fds(self.socket, 1, 1)
        except (OSError, TimeoutError) as problem:
            raise ChannelEnded(f"The peer is gone ({problem}).") from None
        finally:
            loop.remove_reader(self.socket)
        if not descriptors:
            raise ChannelEnded("No socket came with the peer's byte.")
        return socket.socket(fileno=descriptors[0])

    async def _receive(self) -> Message:
        loop = asyncio.get_running_loop()
        while (message := self._frames.next()) is None:
            try:
                data = await loop.sock_recv(self.socket, min(self._frames.wanted, CHANNEL_RECEIVE_BYTES))
            except OSError as problem:
                raise ChannelEnded(f"The peer is gone ({problem}).") from None
            if not data:
                raise ChannelEnded("The peer hung up.")
            self._frames.feed(data)
        return message


class RegistryLink:
    """The sidecar's connection to the registry: several requests may wait for their answers."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._ids = count()
        self._waiting: dict[object, asyncio.Future[QueryMessage]] = {}

    async def hear(self) -> NoReturn:
        """Take answers until the registry hangs up, which raises ChannelEnded here and in each `ask` that waits."""
        try:
            while True:
                number, answer = await self._link.receive_numbered()
                # No future waits any more if its `ask` has given up.
                waiting = self._waiting.pop(number, None) if isinstance(number, int) else None
                if waiting is not None and not waiting.done():
                    waiting.set_result(answer)
        except ChannelEnded as ended:
            for waiting in self._waiting.values():
                if not waiting.done():
                    waiting.set_exception(ChannelEnded(str(ended)))
            raise

    async def ask(self, request: QueryMessage) -> QueryMessage:
        """Ask, and wait for the answer.

        Raises:
            ChannelEnded: there is none.
        """
        number = next(self._ids)
        self._waiting[number] = asyncio.get_running_loop().create_future()
        try:
            await self._link.send(request, number)
            async with asyncio.timeout(SIDECAR_SILENCE_MS / 1000):
                return await self._waiting[number]
        except TimeoutError:
            raise ChannelEnded("The registry is silent.") from None
        finally:
            # Also if the sending failed: asyncio would log the error that `hear` sets as never retrieved.
            self._waiting.pop(number, None)

    async def report(self, message: Served | Resting) -> None:
        """Report a read, or that a seat has no server now, without an answer. Raises ChannelEnded."""
        await self._link.send(message)
