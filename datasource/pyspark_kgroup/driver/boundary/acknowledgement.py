"""Waiting for the group to acknowledge commits.

Runs on: driver.

No partition is read on before its commit is acknowledged: it waits, with one warning, and the query fails when one has
waited for `kafka.default.api.timeout.ms`. AvailableNow has no later trigger: it retries until SETTLE_TIMEOUT_MS, then
fails.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from typing import Final

from pyspark_kgroup.driver.boundary.boundary_commits import BoundaryCommits
from pyspark_kgroup.driver.boundary.boundary_state import BoundaryState
from pyspark_kgroup.driver.boundary.context import BoundaryContext
from pyspark_kgroup.limits import HANDOVER_WAIT_MS, SETTLE_TIMEOUT_MS
from pyspark_kgroup.options.values import join
from spark_kgroup.errors import GroupUnsettled
from spark_kgroup.model import TopicPartition
from spark_kgroup.runtime.views import GroupView

log = logging.getLogger(__name__)


_POSITIONS: Final = "the offsets read of"


class Acknowledgement:
    """Keeps since when each partition waits for an acknowledged commit."""

    def __init__(self, context: BoundaryContext) -> None:
        self._group = context.group
        self._options = context.options
        self._ledger = context.ledger
        self._commits = BoundaryCommits(context)
        self._clock = context.clock
        self._missing_since_ms: dict[str, dict[TopicPartition, int]] = {}
        """By what the commits say: positions and starts are acknowledged for themselves."""

    def wait_for_commits(self, boundary: BoundaryState) -> BoundaryState:
        """Under AvailableNow commit again until all is acknowledged. Else let partitions wait for the next trigger.

        Raises:
            GroupUnsettled: a commit was not acknowledged in time.
        """
        deadline_ms = self._clock() + SETTLE_TIMEOUT_MS
        while boundary.logs.bounded and (unacknowledged := self._unacknowledged(boundary.view)):
            if self._clock() > deadline_ms:
                boundary.skip_trigger(self.missing(_POSITIONS, unacknowledged))
            # A changed view ends the pause: a commit that a rebalance refused may be accepted in the new generation.
            seen = self._group.wait_until(changed_from(boundary.view), HANDOVER_WAIT_MS)
            boundary = self._commits.commit_durable(boundary.with_view(seen))
            self._ledger.drop_lost(boundary.view)

        if unacknowledged := self._unacknowledged(boundary.view):
            self.fail_if_missing_for_long(_POSITIONS, unacknowledged, "These partitions wait for that.")
        else:
            self.on_all_acknowledged(_POSITIONS)
        return boundary

    def on_all_acknowledged(self, what: str) -> None:
        """No partition waits any more for an acknowledged commit of `what`."""
        self._missing_since_ms.pop(what, None)

    def _unacknowledged(self, view: GroupView) -> set[TopicPartition]:
        return {tp for seat in view.seats for tp in self._ledger.uncommitted(seat)}

    def fail_if_missing_for_long(self, what: str, partitions: Collection[TopicPartition], then: str) -> None:
        """Warn once while partitions wait for an acknowledged commit, with the sentence `then` on how they wait.

        Raises:
            GroupUnsettled: one has waited for `api_timeout_ms`.
        """
        now_ms, before = self._clock(), self._missing_since_ms.get(what, {})
        self._missing_since_ms[what] = now = {tp: before.get(tp, now_ms) for tp in partitions}
        if not before:
            log.warning("%s %s Trying again at each trigger.", self.missing(what, partitions), then)
        timeout_ms = self._options.api_timeout_ms
        overdue = [tp for tp, since_ms in now.items() if now_ms - since_ms > timeout_ms]
        if overdue:
            raise GroupUnsettled(
                f"{self.missing(what, overdue)} {then} Tried for {timeout_ms // 1000} s "
                "(kafka.default.api.timeout.ms): see the log of the group's coordinator."
            )

    def missing(self, what: str, partitions: Collection[TopicPartition]) -> str:
        """A sentence for users, with the coordinator's reason if there is one."""
        names = join(sorted(partitions))
        refusal = self._group.commit_refusal()
        why = f" ({refusal})" if refusal else ""
        return f"Group {self._options.group_id!r} did not acknowledge {what} {names}{why}."


def changed_from(seen: GroupView) -> Callable[[GroupView], bool]:
    """A condition on views: the view differs from `seen`."""
    return lambda view: view != seen
