"""Messages between driver and executors, and within an executor: JSON between processes that hold the same key.

Runs on: both.

A frame is a 4-byte big-endian length and that many bytes of UTF-8: one JSON object. The server speaks first:

    server -> {"nonce": N}
    client -> {"nonce": M, "mac": HMAC-SHA256(key, "spark-kgroup channel 2: client of SERVER" | N | M)}
    server -> {"mac": HMAC-SHA256(key, "spark-kgroup channel 2: server of SERVER" | N | M)}

SERVER is the server that the client means: "registry", of which each key has one, "sidecar FOLDER", where it listens,
or, over the network, "sidecar of executor KEY", which names its executor. Nonces are 32 random bytes, in hexadecimal
like the codes. To a peer without the key a server does not answer: it closes. A recorded handshake cannot be replayed,
since each side picks a nonce, nor reflected, since a code names its role. A man in the middle cannot pass a proof on,
since a code names the server that is meant (version 1 did not). Later frames are neither encrypted nor signed: an
attacker who can change packets between two hosts is not kept out.

`Frames` and `Challenge` know no socket, so that an event loop can use them. `connect` and `Channel` block.
"""

from __future__ import annotations

import hmac
import json
import os
import secrets
import select
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from pyspark_kgroup.errors import ChannelEnded, KeyRefused, NobodyListens
from pyspark_kgroup.limits import (
    CHANNEL_BYTES_MAX,
    CHANNEL_CONNECT_MS,
    CHANNEL_HANDSHAKE_BYTES_MAX,
    CHANNEL_HANDSHAKE_MS,
    CHANNEL_LOOK_UP_MS,
    CHANNEL_RECEIVE_BYTES,
    CHANNEL_SEND_MS,
)
from pyspark_kgroup.shared.messages import QueryMessage, parse, to_json
from spark_kgroup.errors import KgroupError

Message = dict[str, Any]
"""One JSON object."""

KEY_BYTES: Final = 32
"""As long as HMAC-SHA256's output (RFC 2104, section 3)."""

REGISTRY: Final = "registry"
"""The registry's name in a handshake. A sidecar's is `SidecarDir.server`, over the network `SidecarAddress.server`."""

_LENGTH: Final = struct.Struct(">I")
_NONCE_BYTES: Final = 32
_CREDENTIALS: Final = struct.Struct("3i")
"""struct ucred of unix(7): pid, uid, gid."""

_REFUSED: Final = "The peer does not hold this application's key, or has another version of spark-kgroup."


def new_key() -> bytes:
    """A new random key."""
    return secrets.token_bytes(KEY_BYTES)


# --------------------------------------------------------------------------------------------------------- frames


def frame(message: Message) -> bytes:
    """`message` as it goes over the wire.

    Raises:
        ChannelEnded: no peer would take one so large.
    """
    body = json.dumps(message, separators=(",", ":")).encode()
    if len(body) > CHANNEL_BYTES_MAX:
        raise ChannelEnded(f"A message of {len(body)} bytes is larger than any peer takes.")
    return _LENGTH.pack(len(body)) + body


class Frames:
    """Messages out of bytes, however those were cut. Holds at most one frame and the bytes of the last `feed`.

    Until `trust` is called, no message may be larger than those of the handshake.
    """

    def __init__(self) -> None:
        self._bytes_max = CHANNEL_HANDSHAKE_BYTES_MAX
        self._bytes = bytearray()

    def feed(self, data: bytes) -> None:
        """Take the bytes that have come."""
        self._bytes += data

    def trust(self, bytes_max: int = CHANNEL_BYTES_MAX) -> None:
        """The peer has shown the key, or we have started it: take messages of up to `bytes_max`."""
        self._bytes_max = bytes_max

    @property
    def wanted(self) -> int:
        """How many bytes the next message lacks, as far as is known. Reading no more leaves later messages unread."""
        return self._end() - len(self._bytes)

    def next(self) -> Message | None:
        """The next whole message, if it is here.

        Raises:
            ChannelEnded: these are not the frames of a channel.
        """
        end = self._end()
        if end == _LENGTH.size or len(self._bytes) < end:  # no frame is empty, so its length is not here yet
            return None
        body = bytes(self._bytes[_LENGTH.size : end])
        del self._bytes[:end]
        try:
            message = json.loads(body)
        except (ValueError, RecursionError):  # RecursionError: a thousand brackets
            message = None
        if not isinstance(message, dict):
            raise ChannelEnded("The peer sent a message that is not a JSON object.")
        return message

    def _end(self) -> int:
        """Where the next frame ends, or its length if that is not here yet."""
        if len(self._bytes) < _LENGTH.size:
            return _LENGTH.size
        (length,) = _LENGTH.unpack_from(self._bytes)
        if not 0 < length <= self._bytes_max:
            raise ChannelEnded(f"The peer announced a message of {length} bytes.")
        return _LENGTH.size + int(length)


# ------------------------------------------------------------------------------------------------------ handshake


class Challenge:
    """The server's half of the handshake: send `message`, then what `answer` returns.

    Args:
        key: the application's secret.
        server: our own name.

    Attributes:
        message: the server's nonce, used for one handshake and never again.
    """

    def __init__(self, key: bytes, server: str) -> None:
        self._key = key
        self._server = server
        self._nonce = secrets.token_bytes(_NONCE_BYTES)
        self.message: Message = {"nonce": self._nonce.hex()}

    def answer(self, response: Message) -> Message:
        """The message that proves to the client that we hold the key too.

        Raises:
            KeyRefused: `response` does not prove that the client holds it: close without an answer.
        """
        nonce = _hex(response, "nonce")
        if not hmac.compare_digest(_hex(response, "mac"), _mac(self._key, "client", self._server, self._nonce, nonce)):
            raise KeyRefused(_REFUSED)
        return {"mac": _mac(self._key, "server", self._server, self._nonce, nonce).hex()}


def _mac(key: bytes, role: str, server: str, server_nonce: bytes, client_nonce: bytes) -> bytes:
    """The code of a handshake. Each nonce has a fixed length, so no two handshakes have the same text."""
    text = f"spark-kgroup channel 2: {role} of {server}".encode(errors="surrogateescape")  # a path may hold any bytes
    return hmac.digest(key, text + server_nonce + client_nonce, "sha256")


def _hex(message: Message, name: str) -> bytes:
    """32 bytes: a nonce, or a code."""
    text = message.get(name)
    try:
        value = bytes.fromhex(text) if isinstance(text, str) else b""
    except ValueError:
        value = b""
    if len(value) != _NONCE_BYTES:
        raise KeyRefused("The peer does not speak this handshake.")
    return value


# ------------------------------------------------------------------------------------------------------- channels


class Channel:
    """One end of a channel, made by `connect`. One thread may send while another one receives.

    Attributes:
        socket: a blocking one. No byte beyond the last received message was read from it.
    """

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(True)
        self.socket = sock
        self._frames = Frames()

    def trust(self, bytes_max: int = CHANNEL_BYTES_MAX) -> None:
        """As `Frames.trust`."""
        self._frames.trust(bytes_max)

    def ask(self, request: QueryMessage, timeout_s: float) -> QueryMessage:
        """Send `request`, and wait for the answer.

        Raises:
            ChannelEnded: the peer is gone, silent for `timeout_s`, or sends no message of ours. The channel is closed.
        """
        try:
            self.say(request)
            return self.hear(timeout_s)
        except ChannelEnded:
            self.close()
            raise

    def say(self, message: QueryMessage) -> None:
        """As `send`."""
        self.send(to_json(message))

    def hear(self, timeout_s: float) -> QueryMessage:
        """As `receive`. An object that is no message of ours raises ChannelEnded, too."""
        return parse(self.receive(timeout_s))

    def send(self, message: Message, timeout_s: float = CHANNEL_SEND_MS / 1000) -> None:
        """Send `message`.

        Raises:
            ChannelEnded: the peer is gone, or left too much unread. The channel is closed.
        """
        deadline_s = time.monotonic() + timeout_s
        left = memoryview(frame(message))
        try:
            while left:
                self._wait(select.POLLOUT, deadline_s)
                with suppress(BlockingIOError):
                    left = left[self.socket.send(left, socket.MSG_DONTWAIT) :]
        except (OSError, ValueError) as problem:  # ValueError: it was closed
            self.close()  # a part of the frame may be on its way
            raise ChannelEnded(f"The peer is gone ({problem}).") from None

    def receive(self, timeout_s: float) -> Message:
        """The next message. After a timeout, the bytes of it that have come are kept, so that another call can go on.

        Raises:
            ChannelEnded: the peer is gone, silent for `timeout_s`, or sends data that are no messages.
        """
        return self._receive(time.monotonic() + timeout_s)

    def _receive(self, deadline_s: float) -> Message:
        try:
            while (message := self._frames.next()) is None:
                self._wait(select.POLLIN, deadline_s)
                with suppress(BlockingIOError):
                    self._frames.feed(self._read(min(self._frames.wanted, CHANNEL_RECEIVE_BYTES)))
        except TimeoutError:
            raise ChannelEnded("The peer was silent for too long.") from None
        except (OSError, ValueError) as problem:  # ValueError: it was closed
            raise ChannelEnded(f"The peer is gone ({problem}).") from None
        return message

    def _read(self, count: int) -> bytes:
        data = self.socket.recv(count, socket.MSG_DONTWAIT)
        if not data:
            raise ChannelEnded("The peer hung up.")
        return data

    def _wait(self, events: int, deadline_s: float) -> None:
        # Not by settimeout, which would also hold for a thread that uses the other direction.
        poll = select.poll()
        poll.register(self.socket, events)
        if not poll.poll(max(0.0, deadline_s - time.monotonic()) * 1000):
            raise TimeoutError("no answer in time")

    def close(self) -> None:
        """End it. Safe to call twice."""
        self.socket.close()


def connect(
    address: tuple[str, int] | Path, key: bytes, server: str = REGISTRY, timeout_s: float = CHANNEL_HANDSHAKE_MS / 1000
) -> Channel:
    """Connect to (host, port), or to a Unix socket of this user's, and shake hands.

    Args:
        address: where to find the server.
        key: the application's secret.
        server: the name of the server: a proof for it is worthless to another one.
        timeout_s: to connect to a Unix socket and shake hands. Over TCP it bounds the handshake alone: look-up and
            connection have bounds of their own.

    Raises:
        NobodyListens: no process listens there, on a host that answers.
        ChannelEnded: no process of ours can be reached there, or not in time.
        KeyRefused: the process there does not hold `key`, or is another user's. It has not learned the key.
    """
    deadline_s = time.monotonic() + timeout_s
    try:
        channel = Channel(_open_socket(address, timeout_s))
    except OSError as problem:
        kind = NobodyListens if isinstance(problem, ConnectionRefusedError) else ChannelEnded
        raise kind(f"No process can be reached there ({problem}).") from None
    if not isinstance(address, Path):  # look-up and connection had bounds of their own
        deadline_s = time.monotonic() + timeout_s
    with _close_on_error(channel):
        if isinstance(address, Path) and not peer_is_us(channel.socket):  # BEFORE we prove that we hold the key
            raise KeyRefused("The peer is another user's process.")
        theirs = _hex(channel._receive(deadline_s), "nonce")
        ours = secrets.token_bytes(_NONCE_BYTES)
        try:
            channel.send({"nonce": ours.hex(), "mac": _mac(key, "client", server, theirs, ours).hex()})
            answer = channel._receive(deadline_s)
        except ChannelEnded as ended:  # that is how a server refuses
            raise KeyRefused(f"The peer does not answer to this application's key: {ended}") from None
        if not hmac.compare_digest(_hex(answer, "mac"), _mac(key, "server", server, theirs, ours)):
            raise KeyRefused(_REFUSED)
        channel.trust()
    return channel


def peer_is_us(sock: socket.socket) -> bool:
    """Whether the process at the other end of a Unix socket is of this user."""
    _, uid, _ = _CREDENTIALS.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    return bool(uid == os.geteuid())


def _open_socket(address: tuple[str, int] | Path, timeout_s: float) -> socket.socket:
    if not isinstance(address, Path):
        from spark_kgroup.wire import names  # imports asyncio, too: a worker that a sidecar serves needs neither

        host, port = address
        bare = host.removeprefix("[").removesuffix("]")  # Spark writes IPv6 addresses in brackets
        connect_s = min(timeout_s, CHANNEL_CONNECT_MS / 1000)
        sock = names.connect(bare, port, connect_s, look_up_timeout_s=CHANNEL_LOOK_UP_MS / 1000)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # a question waits for its answer
        return sock
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        # Not by settimeout: while the listener's backlog is full, a non-blocking connect fails and does not wait.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _timeval(timeout_s))
        sock.connect(str(address))
        sock.settimeout(timeout_s)
    except OSError:
        sock.close()
        raise
    return sock


def _timeval(seconds: float) -> bytes:
    """`seconds` as C's struct timeval."""
    return struct.pack("@ll", int(seconds), int(seconds % 1 * 1_000_000))


@contextmanager
def _close_on_error(channel: Channel) -> Iterator[None]:
    try:
        yield
    except KgroupError:
        channel.close()
        raise
