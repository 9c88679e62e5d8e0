"""When the next connection to an address may begin: at once, or after a wait that grows while they come to nothing.

A connection has come to something when it has answered a request. Kafka's clients (reconnect.backoff.ms) are content
when it has authenticated; a load balancer without a broker behind it accepts that many times a second.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from random import Random
from typing import TypeVar

from spark_kgroup.limits import PACED_ADDRESSES_MAX
from spark_kgroup.wire.backoff import Backoff
from spark_kgroup.wire.connection import Address, Connection

T = TypeVar("T")


@dataclass(slots=True)
class _Row:
    """Connections in a row that came to nothing."""

    backoff: Backoff
    failures: int = 0
    next_at_s: float = 0.0


class Pace:
    """Belongs to one event loop."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng
        self._rows: dict[Address, _Row] = {}
        self._latest: dict[Address, Connection] = {}

    async def turn(self, address: Address) -> int:
        """Wait until a connection may begin; returns how many in a row came to nothing."""
        latest = self._latest.get(address)
        if latest is not None and latest.has_answered:
            self._rows.pop(address, None)
        elif latest is not None and latest.closed:
            self.failed(address)
        row = self._rows.get(address)
        if row is None:
            return 0
        await asyncio.sleep(row.next_at_s - asyncio.get_running_loop().time())
        return row.failures

    def failed(self, address: Address) -> None:
        """No connection came about, or one that never answered."""
        self._latest.pop(address, None)
        row = self._rows.pop(address, None) or _Row(Backoff(self._rng))
        row.failures += 1
        row.next_at_s = asyncio.get_running_loop().time() + row.backoff.next_ms() / 1000
        _put(self._rows, address, row)

    def opened(self, address: Address, connection: Connection) -> None:
        """`connection` is open; what becomes of it is looked at when the next one begins."""
        _put(self._latest, address, connection)


def _put(rows: dict[Address, T], address: Address, row: T) -> None:
    """Remember `row`, and forget the oldest if there are too many: brokers say which addresses there are."""
    rows[address] = row
    if len(rows) > PACED_ADDRESSES_MAX:
        del rows[next(iter(rows))]
