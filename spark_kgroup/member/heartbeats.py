"""Heartbeats that have not been answered yet, and when each was sent."""

from __future__ import annotations

from typing import Final

from spark_kgroup.member.contract import HeartbeatRequest

_EARLIER_MAX: Final = 4
"""How many unanswered heartbeats before the latest are remembered. The answer to an older one is ignored."""


class Heartbeats:
    """At most one heartbeat is awaited: the latest. The answer to an earlier one still tells when we were a member.

    Attributes:
        awaited: on our connection or, while a request is parked there, on another one, or None if it was answered or
            its answer is no longer awaited.
        awaited_at_ms: when that was sent.

    """

    def __init__(self) -> None:
        self.awaited: HeartbeatRequest | None = None
        self.awaited_at_ms = 0
        self._earlier: tuple[tuple[HeartbeatRequest, int], ...] = ()

    def send(self, request: HeartbeatRequest | None, now_ms: int) -> None:
        """Await the answer to `request`. A request still unanswered moves to the earlier ones."""
        if self.awaited is not None:
            self._earlier = (*self._earlier, (self.awaited, self.awaited_at_ms))[-_EARLIER_MAX:]
        self.awaited, self.awaited_at_ms = request, now_ms

    def drop(self) -> None:
        """Await no answer any more."""
        self.awaited = None

    def earlier_at_ms(self, request: HeartbeatRequest) -> int | None:
        """When `request` was sent, if a newer one has followed it, or None for any other."""
        return next((at_ms for earlier, at_ms in self._earlier if earlier is request), None)
