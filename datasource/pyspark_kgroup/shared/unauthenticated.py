"""Peers that have connected and not shown the application's key yet: how many there may be, and which one has to go.

Runs on: both. Pure.
"""

from __future__ import annotations

from collections import Counter
from typing import Generic, TypeVar

P = TypeVar("P")


class Unauthenticated(Generic[P]):
    """The unauthenticated peers of one listener.

    Of too many, the oldest of the host that holds most must go: a flood of connections pushes out its own, not those of
    executors on other hosts.

    Args:
        most: how many there may be.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._hosts: dict[P, str] = {}  # the oldest first

    def __len__(self) -> int:
        return len(self._hosts)

    def __contains__(self, peer: P) -> bool:
        return peer in self._hosts

    def add(self, peer: P, host: str) -> P | None:
        """A peer has connected from `host`.

        Returns:
            The peer whose connection the caller has to end, since there are too many, or None if there are not.
        """
        self._hosts[peer] = host
        if len(self._hosts) <= self._most:
            return None
        [(crowd, _)] = Counter(self._hosts.values()).most_common(1)
        return next(one for one, of in self._hosts.items() if of == crowd)

    def discard(self, peer: P) -> None:
        """A peer has shown the key, or its connection has ended."""
        self._hosts.pop(peer, None)
