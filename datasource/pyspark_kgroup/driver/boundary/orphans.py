"""Orphans, partitions without an owner: their remembered positions are committed before the group assigns them.

Runs on: driver.

The runtime finds partitions without an owner (`spark_kgroup.runtime.metadata_watch`). It holds back the rebalance that
gives them an owner until the group has the positions that the checkpoint remembers.
"""

from __future__ import annotations

import logging

from pyspark_kgroup.driver.boundary.boundary_commits import BoundaryCommits, SeatShare
from pyspark_kgroup.driver.boundary.boundary_state import BoundaryState
from pyspark_kgroup.driver.boundary.context import BoundaryContext
from pyspark_kgroup.driver.boundary.hand_over import HandOver
from pyspark_kgroup.limits import HANDOVER_WAIT_MS, LOOK_WAIT_MS
from spark_kgroup.runtime.views import GroupView

log = logging.getLogger(__name__)


class Orphans:
    """Makes the group rebalance if its assignment does not fit, once the remembered positions are committed."""

    def __init__(self, context: BoundaryContext, hand_over: HandOver) -> None:
        self._group = context.group
        self._commits = BoundaryCommits(context)
        self._hand_over = hand_over

    def find_owners(self, boundary: BoundaryState) -> BoundaryState:
        """After a static rejoin, make the group rebalance if its assignment does not fit any more.

        1. A sync revokes P from a seat. 2. The seat dies before it rejoins. 3. Its static rejoin is answered with the
        group's old assignment, without P. 4. Our checkpoint alone knows how far P was read.
        """
        if boundary.view.look_due and boundary.view.settled:
            seen = self._group.wait_until(lambda v: not (v.look_due and v.settled), LOOK_WAIT_MS)
            boundary = boundary.with_view(seen)
        held = boundary.view.held
        if held is None:
            return boundary
        log.warning("the group rebalances: %s", held.reason)
        # Any seat may commit for a partition without an owner: the coordinator checks the member alone.
        if self._commits.commit_remembered(boundary, [SeatShare(boundary.view.seats[0], held.without_owner)]):
            return boundary  # the rebalance stays held back
        return self._rebalance(boundary, held.reason)

    def is_something_left(self, view: GroupView) -> bool:
        """Whether the next boundary has to wait for the runtime's look, or to rebalance."""
        return view.held is not None or (view.look_due and view.settled)

    def _rebalance(self, boundary: BoundaryState, reason: str) -> BoundaryState:
        """Make the group rebalance, and give up the partitions that it then asks for."""
        self._group.force_rebalance(reason)
        generation = boundary.view.seats[0].identity.generation
        seen = self._group.wait_until(
            lambda view: view.settled and view.seats[0].identity.generation != generation, HANDOVER_WAIT_MS
        )
        return self._hand_over.commit_and_give_up(boundary.with_view(seen))
