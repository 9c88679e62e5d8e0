"""TCP ports that stay ours until, and where possible while, another process listens on them."""

from __future__ import annotations

import socket
import sys
from typing import Final

from spark_kgroup.errors import EnvironmentProblem

_CAN_SHARE_A_BOUND_PORT: Final = sys.platform == "linux"
"""On Linux a bound socket that does not listen may stay beside a listening one if both set SO_REUSEADDR, as Java does.
So the port is still ours while a killed node is down, and no other process is given it."""


class PortReservation:
    """Ports held by bound sockets that do not listen: connecting to one is refused.

    Args:
        host: the address they are held on.
        count: how many.
        first: if it is given, the first half of the ports are first, first + 1, ... All further ones are free ones.

    Raises:
        EnvironmentProblem: a port that was asked for is taken.
    """

    def __init__(self, host: str, count: int, first: int | None = None) -> None:
        self._sockets: list[socket.socket] = []
        named = [0] * count if first is None else [*range(first, first + count // 2), *([0] * (count - count // 2))]
        try:
            for port in named:
                self._sockets.append(_bind(host, port))
        except OSError as problem:
            self.close()
            raise EnvironmentProblem(
                f"Cannot listen on {host}:{port}: {problem.strerror}. Choose another port."
            ) from problem
        self.ports: tuple[int, ...] = tuple(held.getsockname()[1] for held in self._sockets)

    def hand_over(self) -> None:
        """Let another process listen on the ports now."""
        if not _CAN_SHARE_A_BOUND_PORT:
            self.close()

    def close(self) -> None:
        """Give the ports back."""
        for held in self._sockets:
            held.close()
        self._sockets.clear()


def _bind(host: str, port: int) -> socket.socket:
    held = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        held.bind((host, port))
    except OSError:
        held.close()
        raise
    return held
