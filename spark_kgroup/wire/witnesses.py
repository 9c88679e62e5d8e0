"""In which order the brokers of a cluster are asked. No I/O.

What one broker says is one witness. A broker that is cut off from its cluster goes on answering as before: it names
leaders and coordinators that are gone, and who asks it again is told the same again.
"""

from __future__ import annotations

from collections.abc import Iterable

from spark_kgroup.limits import WITNESS_MAX_AGE_MS
from spark_kgroup.wire.address import Address


class Witnesses:
    """Which brokers have led nowhere: they are asked after all others, the latest of them last.

    So a round of retries begins with another broker than the round before, until each had its turn. Nor is one broker
    asked first for ever: what it does not know nobody would hear of, as long as its answers lead somewhere.
    """

    def __init__(self) -> None:
        self._doubted: dict[Address, None] = {}
        self._first: Address | None = None
        self._first_since_s = 0.0

    def in_order(self, addresses: Iterable[Address]) -> list[Address]:
        """`addresses`, those that led nowhere at the end. What is remembered of any other address is forgotten."""
        known = dict.fromkeys(addresses)
        self._doubted = {address: None for address in self._doubted if address in known}
        return [*(address for address in known if address not in self._doubted), *self._doubted]

    def doubt(self, address: Address) -> None:
        """This broker was silent, or what it said led nowhere."""
        self._doubted.pop(address, None)
        self._doubted[address] = None

    def heard(self, address: Address, asked: Iterable[Address], now_s: float) -> None:
        """The broker at `address` has answered; those that were `asked` before it, in this order, have not.

        One that has been the first to answer for `WITNESS_MAX_AGE_MS` is asked after the others from now on.
        """
        for silent in asked:
            if silent == address:
                break
            self.doubt(silent)
        if address != self._first:
            self._first, self._first_since_s = address, now_s
        elif now_s - self._first_since_s > WITNESS_MAX_AGE_MS / 1000:
            self._first = None
            self.doubt(address)
