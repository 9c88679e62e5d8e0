"""Partitions without an owner, after a static rejoin: nobody else notices them.

Runs on: driver.

One look for each rejoin, when the group is at rest. It makes the group rebalance at most once, and only after the group
knows what the checkpoint remembers of those partitions.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from pyspark_kgroup.driver.commits import Commits, SeatShare
from pyspark_kgroup.driver.crossing import Crossing
from pyspark_kgroup.driver.group_port import GroupPort
from pyspark_kgroup.driver.hand_over import HandOver
from pyspark_kgroup.limits import HANDOVER_WAIT_MS, ORPHAN_CHECK_INTERVAL_MS
from pyspark_kgroup.options.parser import SourceOptions
from spark_kgroup.model import DescribedGroup, TopicDescription, TopicPartition

log = logging.getLogger(__name__)


class Orphans:
    """The look for partitions that nobody owns."""

    def __init__(
        self,
        group: GroupPort,
        options: SourceOptions,
        commits: Commits,
        hand_over: HandOver,
        clock: Callable[[], int],
    ) -> None:
        self._group = group
        self._options = options
        self._commits = commits
        self._hand_over = hand_over
        self._clock = clock
        self._checked_rejoins = 0
        self._checked_at_ms = 0

    def look_after_rejoin(self, crossing: Crossing) -> None:
        """After a static rejoin: does the group's assignment still fit what the seats subscribe to?

        1. a sync revokes P from a seat; 2. the seat dies before it rejoins; 3. its static rejoin is answered with the
        group's old assignment, without P; 4. nobody knows. The same look finds partitions that were added while the
        leader was away, which KIP-814 leaves open. What a member claims is no orphan, even if the group withholds it
        from everybody: in a cooperative rebalance it is being read until that member comes to its boundary.

        Nor does a static rejoin with another subscription make the group rebalance: a seat may still have partitions of
        a topic that left `subscribe`, which nobody reads, and no share of one that came.
        """
        view = crossing.view
        due = view.rejoins != self._checked_rejoins and view.settled
        if not due or self._clock() - self._checked_at_ms < ORPHAN_CHECK_INTERVAL_MS:
            return
        self._checked_at_ms = self._clock()
        group = self._group.describe()
        if group.is_consumer_type:  # its coordinator itself sees to new partitions, and leaves none to nobody
            self._checked_rejoins = view.rejoins
            return
        if group.state != "Stable":
            return  # still due at the next boundary
        topics = self._group.topics(0)
        orphans = _without_owner(group, topics)
        reason = self._reason(crossing, group, topics, orphans)
        if not reason:
            self._group.tell_all_owned(topics)
            self._checked_rejoins = view.rejoins
            return
        log.warning("the group rebalances after a rejoin: %s", reason)
        if self._commits.commit_remembered(crossing, [SeatShare(view.seats[0], orphans)]):
            return  # still due
        self._checked_rejoins = view.rejoins
        self._rebalance(crossing, reason)

    def _reason(
        self,
        crossing: Crossing,
        group: DescribedGroup,
        topics: Mapping[str, TopicDescription],
        orphans: frozenset[TopicPartition],
    ) -> str:
        """Why the group must rebalance; empty if it need not."""
        seats = {seat.instance_id for seat in crossing.view.seats}
        ours = {tp for member in group.members if member.instance_id in seats for tp in member.assignment}
        unread = {tp for tp in ours if tp.topic not in self._options.topics}
        unshared = crossing.start.subscribed_anew(topics) - {tp.topic for tp in ours}
        found = {"without an owner": orphans, "of topics that left `subscribe`": unread}
        reason = "; ".join(f"{len(tps)} partitions {what}" for what, tps in found.items() if tps)
        return reason or (f"subscribed anew: {', '.join(sorted(unshared))}" if unshared else "")

    def _rebalance(self, crossing: Crossing, reason: str) -> None:
        """Make the group rebalance, and give up what it then asks for."""
        self._group.force_rebalance(reason)
        generation = crossing.view.seats[0].identity.generation
        crossing.view = self._group.wait_until(
            lambda view: view.settled and view.seats[0].identity.generation != generation, HANDOVER_WAIT_MS
        )
        self._hand_over.commit_and_give_up(crossing)


def _without_owner(group: DescribedGroup, topics: Mapping[str, TopicDescription]) -> frozenset[TopicPartition]:
    owned = {tp for member in group.members for tp in member.assignment | member.claimed}
    return frozenset(tp for topic in topics.values() for tp in topic.partitions if tp not in owned)
