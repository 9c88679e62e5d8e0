"""The boundary between two micro-batches: the only place where partitions are adopted and given up.

Runs on: driver.

The order of the steps is the promise: a position is committed only when it is durable, a partition is given up only
after its position is committed, and it is read only after the group knows where reading starts. Each step is a module
of its own.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pyspark_kgroup.driver.boundary.acknowledgement import Acknowledgement
from pyspark_kgroup.driver.boundary.adopt import Adoption
from pyspark_kgroup.driver.boundary.batch_end import BatchEnd
from pyspark_kgroup.driver.boundary.boundary_commits import BoundaryCommits
from pyspark_kgroup.driver.boundary.boundary_state import BoundaryState
from pyspark_kgroup.driver.boundary.context import BoundaryContext
from pyspark_kgroup.driver.boundary.former_seats import FormerSeats
from pyspark_kgroup.driver.boundary.hand_over import HandOver
from pyspark_kgroup.driver.boundary.idle_check import IdleCheck
from pyspark_kgroup.driver.boundary.ledger import find_holders
from pyspark_kgroup.driver.boundary.orphans import Orphans
from pyspark_kgroup.driver.boundary.scale_down import ScaleDown
from pyspark_kgroup.driver.boundary.settling import Settling
from pyspark_kgroup.driver.boundary.stop_offsets import StopOffsets
from pyspark_kgroup.driver.boundary.topic_logs import TopicLogs
from pyspark_kgroup.limits import OUT_OF_REACH_AGAIN_MS
from pyspark_kgroup.offsets.checkpoint import Checkpoint
from pyspark_kgroup.offsets.plan import NO_LIMIT, Limit
from spark_kgroup.errors import GroupUnsettled, KgroupError, UnknownTopic
from spark_kgroup.model import TopicPartition

if TYPE_CHECKING:
    from pyspark_kgroup.driver.boundary.first_sample import FirstSample

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Steps:
    """The steps of one query's boundaries. Each remembers between two boundaries what it needs to know."""

    idle_check: IdleCheck
    hand_over: HandOver
    scale_down: ScaleDown
    settling: Settling
    orphans: Orphans
    adoption: Adoption
    acknowledgement: Acknowledgement
    batch_end: BatchEnd

    @classmethod
    def of(
        cls,
        context: BoundaryContext,
        stops: StopOffsets,
        record_bytes: Callable[[str], float | None],
        first_sample: FirstSample | None,
        earlier_seats: Collection[str],
    ) -> _Steps:
        """The steps of a query that has crossed no boundary yet. A step that waits for the group has `hand_over`."""
        hand_over, acknowledgement = HandOver(context), Acknowledgement(context)
        former_seats = FormerSeats(context, earlier_seats)
        return cls(
            idle_check=IdleCheck(context),
            hand_over=hand_over,
            scale_down=ScaleDown(context),
            settling=Settling(context, hand_over, former_seats),
            orphans=Orphans(context, hand_over),
            adoption=Adoption(context, hand_over, former_seats, acknowledgement, stops),
            acknowledgement=acknowledgement,
            batch_end=BatchEnd(context, stops, record_bytes, first_sample),
        )


class Boundary:
    """Carries one query from boundary to boundary. Not thread-safe: Spark asks one thing at a time.

    Args:
        context: the query's. No other boundary works with it.
        record_bytes: see `BatchEnd`.
        first_sample: see `BatchEnd`.
        earlier_seats: instance ids under which earlier runs of this query have read.
        bounded: see `TopicLogs`.

    Attributes:
        logs: the subscribed topics and their logs, as brokers show them, with the counts of losses and skipped offsets.
        members: instance id of each seat -> its member id, as of the last boundary.
        stops: where a stream with an end stops reading.
    """

    def __init__(
        self,
        context: BoundaryContext,
        *,
        record_bytes: Callable[[str], float | None] = lambda _: None,
        first_sample: FirstSample | None = None,
        earlier_seats: Collection[str] = (),
        bounded: bool,
    ) -> None:
        self._us = context.us
        self._group = context.group
        self._options = context.options
        self._ledger = context.ledger
        self._commits = BoundaryCommits(context)
        self.stops = StopOffsets(context)
        self._steps = _Steps.of(context, self.stops, record_bytes, first_sample, earlier_seats)
        self.logs = TopicLogs(context, bounded=bounded)
        self.members: Mapping[str, str] = {}

    @property
    def settled_once(self) -> bool:
        """Whether the group has been at rest since this process began."""
        return self._steps.settling.settled_once

    def let_leave(self, instance_ids: Collection[str]) -> None:
        """Ask these seats, and no others, to leave the group. An empty collection withdraws an earlier request.

        They leave at the first boundary where the group is at rest and has acknowledged their positions.
        """
        self._steps.scale_down.leaving = frozenset(instance_ids)

    def commit_durable(self, end: Checkpoint) -> None:
        """Commit where the last batch ended, before Spark asks for the next one.

        Args:
            end: of the batch, which is durable: Spark has it in its commit log.

        Raises:
            KgroupError: a failure that the next boundary will meet as well.
        """
        self._ledger.begin_boundary(end)
        boundary = BoundaryState(start=end, logs=self.logs, view=self._group.view())
        self._see_topics(boundary)  # BEFORE a commit, as in `_cross`
        self._commits.commit_durable(boundary)

    def advance(self, start: Checkpoint, limit: Limit = NO_LIMIT, *, at_once: bool = False) -> Checkpoint:
        """The next offset after `start`, which is durable: Spark has it in its commit log.

        A topic may be deleted or created again while this runs. Whichever step meets that, the topics are looked at
        anew and the boundary is crossed once more with the same `start`, as the next trigger would do. Starting over is
        safe: committed positions are durable, each partition given up had its commit acknowledged, and adopted
        partitions are owned. Under AvailableNow the boundary is also crossed again while no leader answers for
        partitions that have records left to read.

        Args:
            start: the end of the last completed batch.
            limit: the most that the next batch may take.
            at_once: the batch takes new offsets however few they are (Trigger.Once).

        Returns:
            The end of the next batch, or `start` itself if that end equals it.
        """
        group, us = self._options.group_id, self._us
        while True:
            try:
                end = self._cross(start, limit, at_once=at_once)
                if end != start:
                    return replace(end, group=group, app=us.app, run=us.run or 0)
                if not self._waits_for_leaders():
                    return start
                # Not a sleep: the error of a seat that fails meanwhile ends this wait.
                self._group.wait_until(lambda _: False, OUT_OF_REACH_AGAIN_MS)
            except (UnknownTopic, GroupUnsettled) as error:  # unsettled: commits for such a topic are not acknowledged
                if not self.logs.some_went():
                    raise
                log.info("a topic was deleted or created again during the boundary, which starts over: %s", error)

    def _cross(self, start: Checkpoint, limit: Limit, *, at_once: bool) -> Checkpoint:
        steps = self._steps
        # The steps see `start` as its writer left it; the next checkpoint says that another query wrote it. Else
        # records are lost: 1. A query changes its group, and reads 20 to 30. 2. Checkpoint and sink are restored to 20,
        # before the change. 3. Were its partitions inherited, the committed 30 would count, and no sink had 20 to 30.
        self._ledger.begin_boundary(start.continued_by(self._options.group_id, self._us.app))
        boundary = BoundaryState(start=start, logs=self.logs, view=self._group.view())
        # Seats that are to leave are work that the idle check does not see.
        if not steps.scale_down.leaving and steps.idle_check.goes_on(boundary):
            return start
        # 1. See which topics there are, BEFORE a commit: a deleted topic's position must not go to its successor.
        self._see_topics(boundary)
        self.logs.begin_listing(self._ledger.holdings.keys())  # for step 8, while the commits of step 2 are made
        # 2. Commit durable positions, and give up the partitions that the group asks for by now.
        boundary = steps.hand_over.commit_and_give_up(boundary.with_view(self._group.view()))
        # After these commits, since seats leave only when the group has their positions.
        boundary = steps.scale_down.make_leave(boundary)
        # 3. Before the first batch of this process, and under AvailableNow: wait until the group is at rest.
        if (stable := steps.settling.wait_for_stable_group(boundary)) is None:
            return start
        # 4. After a static rejoin: find owners for partitions that have none.
        boundary = steps.orphans.find_owners(stable)
        # 5. Adopt partitions that arrived. See topics again first: the leader may have assigned newer ones than step 1.
        self._see_topics(boundary, {tp for seat in boundary.view.seats for tp in seat.owned_since})
        self.stops.begin_boundary(boundary)  # BEFORE a start is committed
        if (adopted := steps.adoption.adopt_what_arrived(boundary)) is None:
            return start
        # 6. Commit once more, for partitions that go on from the position where an earlier period of theirs stopped.
        boundary = self._commits.commit_durable(adopted)
        if self.logs.out_of_reach.partitions:
            self.logs.out_of_reach.keep(find_holders(boundary.view))
        self.members = {seat.instance_id: seat.identity.member_id for seat in boundary.view.seats}
        # If a commit of step 6 was refused, the view is a newer one, and a seat may have lost partitions in it.
        self._ledger.drop_lost(boundary.view)
        # 7. Under AvailableNow wait for acknowledgements. At other times a partition without one adds no records.
        boundary = steps.acknowledgement.wait_for_commits(boundary)
        # 8. List end offsets, apply stops and limit.
        positions = steps.batch_end.positions(boundary, limit, at_once=at_once)
        self._ledger.see_unadopted(boundary.view)
        end = self._ledger.checkpoint(boundary.topics, positions)
        if self.stops.ended is not None:
            idle = end == start and not self.logs.bounded  # AvailableNow ends by itself
            self.stops.see_end(boundary.topics, positions, rests=self._rests(boundary), idle=idle)
        if end == start and not self._is_something_left(boundary):
            steps.idle_check.begin(boundary, self._ledger.holdings.keys())
        return end

    def _waits_for_leaders(self) -> bool:
        """Whether AvailableNow would end here with records unread, since no leader answers for them."""
        if not (self.logs.bounded and self.logs.out_of_reach.partitions):
            return False
        return self.logs.waits_for_leaders({tp: self._ledger.position(tp) for tp in self._ledger.holdings})

    def _see_topics(self, boundary: BoundaryState, held: Collection[TopicPartition] = ()) -> None:
        try:
            self.logs.see_topics(boundary.start, held)
        except KgroupError:
            # BEFORE the commit: a deleted topic's position must not go to its successor.
            self._ledger.drop_gone(self.logs.topics)
            # The query ends: commit for the topics that are still there while our seats are in the group.
            self._commits.commit_durable(boundary.with_view(self._group.view()))
            raise
        self._ledger.drop_gone(self.logs.topics)

    def _is_something_left(self, boundary: BoundaryState) -> bool:
        """Whether the next boundary has work to do, even if seats, topics and logs stay as they are."""
        return (
            self.logs.bounded
            or not self._rests(boundary)
            or self._steps.orphans.is_something_left(boundary.view)
            or self._steps.batch_end.waits
            or self._steps.adoption.position_check.contradicted
        )

    def _rests(self, boundary: BoundaryState) -> bool:
        """Whether the group is at rest, our seats' partitions are all adopted, and their positions acknowledged."""
        holds_all = self._ledger.holdings.keys() == find_holders(boundary.view).keys()
        settled = self._steps.settling.settled_once and boundary.view.settled
        return settled and holds_all and not self._ledger.unacknowledged()
