"""Waits until the group is at rest: a stream at each trigger until it has been so once, AvailableNow at each boundary.

Runs on: driver.

The first batch starts with all partitions, and AvailableNow must not mistake partitions that are still being assigned
for "no data". Each wait takes SETTLE_TIMEOUT_MS at most. Then a query that is not fresh reads without the missing
partitions, a fresh one has no batch yet, and AvailableNow fails.
"""

from __future__ import annotations

from collections.abc import Callable

from pyspark_kgroup.driver.boundary.boundary_state import BoundaryState
from pyspark_kgroup.driver.boundary.context import BoundaryContext
from pyspark_kgroup.driver.boundary.former_seats import FormerSeats
from pyspark_kgroup.driver.boundary.hand_over import HandOver, asks
from pyspark_kgroup.limits import HANDOVER_WAIT_MS, SETTLE_TIMEOUT_MS
from pyspark_kgroup.options.values import join
from spark_kgroup.runtime.views import GroupView


class Settling:
    """Waits for the group to be at rest.

    Attributes:
        settled_once: whether the group has been at rest since this process began.
    """

    def __init__(
        self,
        context: BoundaryContext,
        hand_over: HandOver,
        former_seats: FormerSeats,
    ) -> None:
        self._group = context.group
        self._options = context.options
        self._ledger = context.ledger
        self._clock = context.clock
        self._hand_over = hand_over
        self._former_seats = former_seats
        self.settled_once = False

    def wait_for_stable_group(self, boundary: BoundaryState) -> BoundaryState | None:
        """Wait for the group to rest, if this boundary needs it. None if there may be no batch yet.

        A fresh query has no batch before that: explicit `startingOffsets` are decided once, for all partitions.
        """
        if not self.settled_once:
            # Once in a process is enough: no topic leaves the subscription before a restart.
            left = self._options.subscription.beyond(boundary.start.topics)
            self._ledger.topics_gone = self._group.topics_gone(left) if left else frozenset()
        elif not boundary.logs.frozen or self._former_seats.group_rests(boundary.view):
            return boundary
        boundary = self._wait_for_rest(boundary)
        return boundary if not boundary.start.fresh or self._former_seats.group_rests(boundary.view) else None

    def _wait_for_rest(self, boundary: BoundaryState) -> BoundaryState:
        """Wait until every seat is in the group and at rest, and no seat of an earlier run is left."""
        deadline_ms = self._clock() + SETTLE_TIMEOUT_MS
        while not (done := self._rests(boundary)) and (left_ms := deadline_ms - self._clock()) > 0:
            # Partitions that could not be given up, or seats that could not leave, are tried again a while later.
            moved_on = self._moved_on_from(boundary.view)
            seen = self._group.wait_until(moved_on, min(left_ms, HANDOVER_WAIT_MS))
            # The group may be waiting for partitions that our own seats are to give up.
            boundary = self._hand_over.commit_and_give_up(boundary.with_view(seen))
        self.settled_once = self.settled_once or done
        if not done:
            boundary.skip_trigger(self._unsettled(boundary.view))
        return boundary

    def _rests(self, boundary: BoundaryState) -> bool:
        if self.settled_once:
            return self._former_seats.group_rests(boundary.view)
        return self._former_seats.make_leave(boundary)

    def _moved_on_from(self, seen: GroupView) -> Callable[[GroupView], bool]:
        """A condition on views: the view differs from `seen`, and the group is at rest or asks for partitions."""
        return lambda view: view != seen and (self._former_seats.group_rests(view) or asks(view))

    def _unsettled(self, view: GroupView) -> str:
        """A sentence for users: the seats that are not at rest, and why."""
        waiting = join([seat.instance_id for seat in view.seats if not self._former_seats.seat_rests(seat)])
        troubles = [f"Seat {seat.instance_id} {seat.trouble}" for seat in view.seats if seat.trouble]
        why = (
            troubles[0]
            if troubles
            else "Another member may be holding the rebalance up (a Java consumer rejoins only when it polls)."
        )
        return (
            f"Group {self._options.group_id!r} did not come to rest within {SETTLE_TIMEOUT_MS // 1000} s. It still "
            f"waits for: {waiting}. {why}"
        )
