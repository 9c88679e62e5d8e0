"""Where the next batch ends: end offsets, less what must wait and what the limit leaves for later.

Runs on: driver.

A partition that the group has not acknowledged stays where it is. Under a limit each partition has its turn.
"""

from __future__ import annotations

from pyspark_kgroup.driver.crossing import Crossing
from pyspark_kgroup.driver.ledger import Ledger
from pyspark_kgroup.offsets.plan import apply_limit, in_turn
from spark_kgroup.model import TopicPartition


class BatchEnd:
    """Whose turn it was last."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._last_in_turn: TopicPartition | None = None

    def positions(self, crossing: Crossing, limit: int | None) -> dict[TopicPartition, int]:
        """The position of each adopted partition after the next batch of at most `limit` offsets, None for all."""
        ends = crossing.logs.ends(self._ledger.holdings.keys())
        unacknowledged = self._ledger.unacknowledged()
        available = {}
        for tp in self._ledger.holdings:
            position = self._ledger.position(tp)
            end = position if tp in unacknowledged else max(position, ends.get(tp, position))
            available[tp] = (position, end)
        positions = apply_limit(available, limit, self._last_in_turn)
        moved = [tp for tp, position in positions.items() if position > available[tp][0]]
        if limit is not None and moved:
            self._last_in_turn = in_turn(moved, self._last_in_turn)[-1]
        return positions
