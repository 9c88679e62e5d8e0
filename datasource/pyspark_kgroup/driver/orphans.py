"""What the group's assignment lacks: its members watch for that; here is committed first what the checkpoint remembers.

Runs on: driver.

The runtime finds partitions that nobody owns (`spark_kgroup.runtime.metadata_watch`) and holds the rebalance back that
gives them to somebody, until the group knows what the checkpoint remembers of them.
"""

from __future__ import annotations

import logging

from pyspark_kgroup.driver.commits import Commits, SeatShare
from pyspark_kgroup.driver.crossing import Crossing
from pyspark_kgroup.driver.group_port import GroupPort
from pyspark_kgroup.driver.hand_over import HandOver
from pyspark_kgroup.limits import HANDOVER_WAIT_MS, LOOK_WAIT_MS
from spark_kgroup.runtime.views import GroupView

log = logging.getLogger(__name__)


class Orphans:
    """Has the group rebalance for what its assignment lacks, once that may be."""

    def __init__(self, group: GroupPort, commits: Commits, hand_over: HandOver) -> None:
        self._group = group
        self._commits = commits
        self._hand_over = hand_over

    def find_owners(self, crossing: Crossing) -> None:
        """After a static rejoin: have the group rebalance if its assignment does not fit any more.

        1. a sync revokes P from a seat; 2. the seat dies before it rejoins; 3. its static rejoin is answered with the
        group's old assignment, without P; 4. our checkpoint alone knows how far P was read.
        """
        if crossing.view.look_due and crossing.view.settled:
            crossing.view = self._group.wait_until(lambda v: not (v.look_due and v.settled), LOOK_WAIT_MS)
        held = crossing.view.held
        if held is None:
            return
        log.warning("the group rebalances: %s", held.reason)
        if self._commits.commit_remembered(crossing, [SeatShare(crossing.view.seats[0], held.without_owner)]):
            return  # still held
        self._rebalance(crossing, held.reason)

    def is_something_left(self, view: GroupView) -> bool:
        """Whether the next boundary has something to do here."""
        return view.held is not None or (view.look_due and view.settled)

    def _rebalance(self, crossing: Crossing, reason: str) -> None:
        """Make the group rebalance, and give up what it then asks for."""
        self._group.force_rebalance(reason)
        generation = crossing.view.seats[0].identity.generation
        crossing.view = self._group.wait_until(
            lambda view: view.settled and view.seats[0].identity.generation != generation, HANDOVER_WAIT_MS
        )
        self._hand_over.commit_and_give_up(crossing)
