"""Surplus seats leave the group between two batches (KIP-345, scale down), while the query goes on.

Runs on: driver.

Their durable positions are committed and acknowledged BEFORE they leave. The next owner of their partitions goes on
from there: a seat of ours by the checkpoint, which remembers lost partitions, and another application by the group's
offsets.
"""

from __future__ import annotations

import logging

from pyspark_kgroup.driver.boundary.boundary_state import BoundaryState
from pyspark_kgroup.driver.boundary.context import BoundaryContext
from pyspark_kgroup.options.values import join

log = logging.getLogger(__name__)


class ScaleDown:
    """Makes seats leave.

    Attributes:
        leaving: instance ids of the seats that are to leave, empty when they have left.
    """

    def __init__(self, context: BoundaryContext) -> None:
        self._group = context.group
        self._ledger = context.ledger
        self.leaving: frozenset[str] = frozenset()

    def make_leave(self, boundary: BoundaryState) -> BoundaryState:
        """Make `leaving` leave, all at once, if the group is at rest and has their positions, else at a later look."""
        leaving = [seat for seat in boundary.view.seats if seat.instance_id in self.leaving]
        if not leaving or not boundary.view.settled or any(map(self._ledger.uncommitted, leaving)):
            return boundary
        names = sorted(seat.instance_id for seat in leaving)
        log.info("executors run fewer tasks at once than there are seats: %s leave", join(names))
        self._group.remove_seats(names, "executors run fewer tasks at once")
        self.leaving = frozenset()
        boundary = boundary.with_view(self._group.view())
        self._ledger.drop_lost(boundary.view)
        return boundary
