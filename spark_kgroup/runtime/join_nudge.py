"""The seats of one process hear of a rebalance together, and not each at a heartbeat of its own.

1. The first seat of a new group is alone in its first generation. 2. The other seats join, and the coordinator keeps
them waiting until the first one has joined, too. 3. That one would hear of it at its next heartbeat, up to an interval
later. The same happens when a seat has given partitions up and joins again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from spark_kgroup.limits import NEIGHBOURS_ASK_AFTER_MS
from spark_kgroup.member import contract
from spark_kgroup.runtime.session import Session


class JoinNudge:
    """Has seats that are in a generation ask, while other seats of this process wait for the next one.

    Args:
        sessions: our seats.
        heartbeat_interval_ms: the time after which each seat has asked anyway.

    """

    def __init__(self, sessions: Mapping[str | None, Session], heartbeat_interval_ms: int) -> None:
        self._sessions = sessions
        self._heartbeat_interval_ms = heartbeat_interval_ms
        self._joined = asyncio.Event()

    def on_join_sent(self) -> None:
        """A seat has asked for the next generation."""
        self._joined.set()

    async def run(self) -> None:
        """Look a few times after the last join, until cancelled."""
        while True:
            await self._joined.wait()
            wait_ms = 0
            while wait_ms < self._heartbeat_interval_ms:
                wait_ms = NEIGHBOURS_ASK_AFTER_MS if self._joined.is_set() else 2 * wait_ms
                self._joined.clear()
                try:
                    async with asyncio.timeout(wait_ms / 1000):
                        await self._joined.wait()
                except TimeoutError:
                    self._have_them_ask()

    def _have_them_ask(self) -> None:
        """Do so only when all other seats have sent their joins: then one more generation has all of them."""
        machines = [(session, session.machine) for session in self._sessions.values()]
        waiting = [session for session, machine in machines if machine.awaits_join]
        members = [session for session, machine in machines if machine.in_generation]
        if waiting and len(waiting) + len(members) == len(self._sessions):
            for session in members:
                session.post(contract.NeighbourJoins())
