"""When the next connection to an address may begin: at once, or after a wait that grows while connections fail.

A connection has succeeded when it has answered a request. Kafka's clients (reconnect.backoff.ms) are content when it
has authenticated, but a load balancer without a broker behind it accepts connections many times a second.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from random import Random
from typing import TypeVar

from spark_kgroup.errors import WireError
from spark_kgroup.limits import PACED_ADDRESSES_MAX, RETRY_BACKOFF_MS
from spark_kgroup.wire.address import Address
from spark_kgroup.wire.backoff import Backoff
from spark_kgroup.wire.connection import Connection

T = TypeVar("T")


@dataclass(slots=True)
class _Row:
    """An address whose last connections failed: the wait before the next one, the turns so far and the last error."""

    backoff: Backoff
    turns: int = 0
    next_at_s: float = 0.0
    failure: WireError | None = None


class Pace:
    """The pace of connections to each address. Belongs to one event loop."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng
        self._rows: dict[Address, _Row] = {}
        self._opened: dict[Address, list[Connection]] = {}

    def check_in_time(self, address: Address, ends_at_s: float) -> None:
        """Raise the last error if the next connection to `address` may not begin early enough before `ends_at_s`.

        To wait would end in a timeout, which does not tell why the address cannot be reached. A connection that would
        begin in the last `RETRY_BACKOFF_MS` is not begun either.

        Raises:
            WireError: as the last connection to `address` failed.
        """
        row = self._rows.get(address)
        if row is not None and row.failure is not None and row.next_at_s + RETRY_BACKOFF_MS / 1000 > ends_at_s:
            raise row.failure.again()

    async def turn(self, address: Address) -> int:
        """Wait until a connection may begin, and return which of the host's addresses has its turn, counted from 0.

        It counts attempts, not failures: seats that fail together would all come back to the same address.
        """
        opened = self._opened.pop(address, [])
        for connection in opened:  # each seat has its own, and any of them may have broken
            if connection.has_answered:
                self._rows.pop(address, None)
            elif connection.closed:
                self.on_failed(address)
        if still_open := [each for each in opened if not each.has_answered and not each.closed]:
            self._opened[address] = still_open
        row = self._rows.get(address)
        if row is None:
            return 0
        await asyncio.sleep(row.next_at_s - asyncio.get_running_loop().time())
        row.turns += 1
        return row.turns

    def on_failed(self, address: Address, failure: WireError | None = None) -> None:
        """No connection came about, for `failure`, or one that never answered."""
        # Taken out and put at the end, so that `_put` forgets the address that failed longest ago.
        row = self._rows.pop(address, None) or _Row(Backoff(self._rng))
        row.failure = failure
        row.next_at_s = asyncio.get_running_loop().time() + row.backoff.next_ms() / 1000
        _put(self._rows, address, row)

    def on_opened(self, address: Address, connection: Connection) -> None:
        """`connection` is open. Whether it has answered is looked up when the next one begins."""
        _put(self._opened, address, [*self._opened.get(address, []), connection])


def _put(rows: dict[Address, T], address: Address, row: T) -> None:
    """Remember `row`, and forget the oldest if there are too many: brokers say which addresses there are."""
    rows[address] = row
    if len(rows) > PACED_ADDRESSES_MAX:
        del rows[next(iter(rows))]
