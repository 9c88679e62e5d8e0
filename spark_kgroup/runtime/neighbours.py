"""The seats of one process hear of their group together, and not each by heartbeats of its own.

*At rest two seats hear for all.* A coordinator tells every member of a classic group alike that the group rebalances.
So two seats of a generation, the sentinels, send a heartbeat each interval, and the others only as often as their
session takes (`ClassicMember`, *rests*). What such a seat hears late concerns it alone: that another process has taken
its seat and no sentinel's.

*When a seat joins, or loses its connection, all ask.* The same when other seats become the sentinels, which were
resting until then:

1. The first seat of a new group is alone in its first generation. 2. The other seats join, and the coordinator keeps
them waiting until the first one has joined, too. 3. That one would hear of it at its next heartbeat, up to an interval
later. The same happens when a seat has given partitions up and joins again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from itertools import islice
from typing import Final, Protocol

from spark_kgroup.clock import monotonic_ms
from spark_kgroup.limits import NEIGHBOURS_ASK_AFTER_MS
from spark_kgroup.member import contract
from spark_kgroup.member.machine import Machine
from spark_kgroup.model import NO_GENERATION

_SENTINELS: Final = 2
"""One may be about to learn that its connection leads nowhere."""


class Seat(Protocol):
    """What is asked of each session (`session.Session`)."""

    machine: Machine

    def post(self, event: contract.Event) -> None:
        """Hand the machine an event."""


class Neighbours:
    """Has the other seats of this process ask when one of them has news, and rest while two of them beat.

    Args:
        sessions: our seats, in the order in which they started.
        heartbeat_interval_ms: the time after which each seat that does not rest has asked anyway.

    """

    def __init__(self, sessions: Mapping[str | None, Seat], heartbeat_interval_ms: int) -> None:
        self._sessions = sessions
        self._heartbeat_interval_ms = heartbeat_interval_ms
        self._news = asyncio.Event()
        self._disturbed = False
        self._generation = NO_GENERATION
        self._sentinels: list[Seat] = []
        """Of `_generation`. They were in touch with the coordinator when they were chosen."""

    def on_join_sent(self) -> None:
        """A seat has asked for the next generation."""
        self._news.set()

    def on_connection_lost(self) -> None:
        """A seat has lost its connection to the coordinator: the others ask over theirs, if they still have them."""
        self._disturbed = True
        self._news.set()

    def hear_for(self, seat: Seat) -> bool:
        """Whether two other seats hear of the next generation as soon as this one would.

        A group of type consumer has no leader, and tells each of its classic members something else.
        """
        same = bool(seat.machine.leader_id) and seat.machine.identity.generation == self._generation
        return same and len(self._sentinels) == _SENTINELS and seat not in self._sentinels

    async def run(self) -> None:
        """Look a few times after the last news, and each interval whether two seats still beat, until cancelled."""
        while True:
            if await self._news_within(self._heartbeat_interval_ms):
                await self._follow_news()
            self._choose_sentinels()

    async def _follow_news(self) -> None:
        wait_ms = 0
        while wait_ms < self._heartbeat_interval_ms:
            wait_ms = NEIGHBOURS_ASK_AFTER_MS if self._news.is_set() else 2 * wait_ms
            self._news.clear()
            if not await self._news_within(wait_ms) and (self._disturbed or self._joins_are_sent()):
                self._have_them_ask()
        # A seat that could not send its join by now, for its connection is lost, is not awaited for longer.
        if any(seat.machine.awaits_join for seat in self._sessions.values()):
            self._have_them_ask()

    async def _news_within(self, wait_ms: int) -> bool:
        try:
            async with asyncio.timeout(wait_ms / 1000):
                return await self._news.wait()
        except TimeoutError:
            return False

    def _choose_sentinels(self) -> None:
        """Choose the first two seats of the newest generation that are in touch with the coordinator.

        If they are others than before, all seats ask: those that were chosen rest until then. And if a broker hangs,
        which leaves connections open, all seats find that out together.
        """
        seats = list(self._sessions.values())
        members = [seat.machine for seat in seats if seat.machine.in_generation and seat.machine.leader_id]
        newest = max((machine.identity.generation for machine in members), default=NO_GENERATION)
        now_ms = monotonic_ms()
        in_touch = (
            seat for seat in seats if seat.machine.identity.generation == newest and seat.machine.in_touch(now_ms)
        )
        chosen = list(islice(in_touch, _SENTINELS))
        others = newest == self._generation and chosen != self._sentinels
        self._generation, self._sentinels = newest, chosen
        if others and len(seats) > _SENTINELS:
            self._have_them_ask()

    def _joins_are_sent(self) -> bool:
        """Whether all seats outside a generation have asked for one: then one more generation has all of them."""
        machines = [seat.machine for seat in self._sessions.values()]
        waiting = sum(machine.awaits_join for machine in machines)
        members = sum(machine.in_generation for machine in machines)
        return waiting > 0 and waiting + members == len(machines)

    def _have_them_ask(self) -> None:
        self._disturbed = False
        for seat in self._sessions.values():
            if seat.machine.in_generation:
                seat.post(contract.NeighbourJoins())
