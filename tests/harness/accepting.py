"""The server's half of a channel on a blocking socket: registry and sidecars have theirs on an event loop."""

import socket

from pyspark_kgroup.limits import CHANNEL_REQUEST_BYTES_MAX
from pyspark_kgroup.shared.channel import REGISTRY, Challenge, Channel

HANDSHAKE_S = 10.0


def accept(sock: socket.socket, key: bytes, server: str = REGISTRY, timeout_s: float = HANDSHAKE_S) -> Channel:
    """Shake hands, as `server`, with the peer that has connected. `sock` is closed if that fails.

    Raises:
        ChannelEnded: the peer hung up, took too long, or sends data that are no frames.
        KeyRefused: the peer does not hold `key`. It was not told whether we do.
    """
    channel = Channel(sock)
    try:
        challenge = Challenge(key, server)
        channel.send(challenge.message, timeout_s)
        channel.send(challenge.answer(channel.receive(timeout_s)), timeout_s)
        channel.trust(CHANNEL_REQUEST_BYTES_MAX)
    except BaseException:
        channel.close()
        raise
    return channel
