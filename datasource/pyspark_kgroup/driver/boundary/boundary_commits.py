"""Commits of durable positions, by the seats that hold the partitions, and for partitions that no seat has adopted.

Runs on: driver.

A commit without an acknowledgement counts as not made. A commit sets the group's offset back only where `adopt` says
why (an explicit start, a truncation), or after the checkpoint was set back (`commit_remembered`). A partition to give
up that another application reads already is let go without a commit (`taken_over`).
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from pyspark_kgroup.driver.boundary.boundary_state import BoundaryState
from pyspark_kgroup.driver.boundary.context import BoundaryContext
from pyspark_kgroup.driver.boundary.taken_over import find_taken_over
from pyspark_kgroup.limits import LEADER_PATIENCE_MS
from pyspark_kgroup.offsets.adoption import Committed, Writer, topic_key
from spark_kgroup.errors import WireError
from spark_kgroup.model import TopicDescription, TopicPartition
from spark_kgroup.runtime.views import SeatCommit, SeatView
from spark_kgroup.seat_note import is_of_topic
from spark_kgroup.wire.listing import Answers

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SeatShare:
    """Partitions that a seat is to commit for, whether it holds them or not."""

    seat: SeatView
    partitions: frozenset[TopicPartition]


class BoundaryCommits:
    """Makes the commits of this query between two batches. Has no state of its own: each step makes itself one."""

    def __init__(self, context: BoundaryContext) -> None:
        self._group = context.group
        self._options = context.options
        self._ledger = context.ledger
        self._us = context.us

    def commit_durable(self, boundary: BoundaryState) -> BoundaryState:
        """Commit durable positions. After a refusal the view is taken anew, since a membership may be over."""
        wanted = [SeatCommit(seat=s, positions=self._ledger.uncommitted(s)) for s in boundary.view.seats]
        acknowledged = self.commit(wanted)
        if any(each.positions.keys() - acknowledged for each in wanted):
            boundary = boundary.with_view(self._group.view())
        return boundary

    def commit(self, commits: Sequence[SeatCommit]) -> frozenset[TopicPartition]:
        """Commit for partitions in the ledger, and return those whose commit was acknowledged."""
        wanted = [each for each in self._without_what_others_read(commits) if each.positions]
        if not wanted:
            return frozenset()
        acknowledged = self._group.commit([self._with_topic_ids(each) for each in wanted])
        for each in wanted:
            self._ledger.on_acknowledged(acknowledged & each.positions.keys(), each.positions)
        return acknowledged

    def _with_topic_ids(self, commit: SeatCommit) -> SeatCommit:
        return replace(
            commit, topic_ids={tp.topic: self._ledger.holdings[tp].period.topic_id for tp in commit.positions}
        )

    def _without_what_others_read(self, commits: Sequence[SeatCommit]) -> Sequence[SeatCommit]:
        """`commits` without requested partitions that another application reads already: those are let go.

        If the coordinator does not describe the group, every requested partition is left out of `commits` and kept, as
        after a commit without an acknowledgement: no offset is set back, and the next trigger asks again.
        """
        asked = {
            tp: (self._ledger.holdings[tp].committed, offset)
            for each in commits
            for tp, offset in each.positions.items()
            if tp in each.seat.to_give_up
        }
        if not asked:
            return commits
        try:
            out = find_taken_over(self._group, asked, {each.seat.instance_id for each in commits}, self._us)
            self._ledger.let_go(out)
        except WireError as error:
            log.info(
                "the coordinator did not describe the group, so revoked partitions are kept until the next trigger: %s",
                error,
            )
            out = frozenset(asked)
        return [_commit(each.seat, each.positions, each.positions.keys() - out) for each in commits]

    def commit_remembered(self, boundary: BoundaryState, shares: Sequence[SeatShare]) -> frozenset[TopicPartition]:
        """Commit the checkpoint's positions of partitions that we have not adopted, BEFORE they get a new owner.

        1. A batch is done. 2. The driver dies before the boundary that would commit it. 3. After its return the group
        asks for the partition, or leaves it without an owner, before we adopt it. Without this commit the partition's
        next owner would read the batch again.

        Returns:
            The partitions whose durable position the group does not have, or may not have.
        """
        behind, unanswered = self._remembered_beyond_the_group(boundary, {tp for s in shares for tp in s.partitions})
        wanted = [_commit(share.seat, behind, share.partitions & behind.keys()) for share in shares]
        topic_ids = {name: topic.topic_id for name, topic in boundary.start.topics.items()}
        wanted = [replace(each, topic_ids=topic_ids) for each in wanted if each.positions]
        return (frozenset(behind) - self._group.commit(wanted)) | unanswered

    def _remembered_beyond_the_group(
        self, boundary: BoundaryState, partitions: Collection[TopicPartition]
    ) -> tuple[dict[TopicPartition, int], frozenset[TopicPartition]]:
        """The checkpoint's positions in those of `partitions` where the group does not have them.

        Returns:
            Partition -> position, and the partitions whose committed offset the coordinator did not tell.
        """
        start, topics = boundary.start, self._existing_topics(partitions)
        same = {name for name in start.topics.keys() & topics if start.topics[name].topic_id == topic_key(topics[name])}
        remembered = {
            tp: position for tp in partitions if tp.topic in same and (position := start.position(tp)) is not None
        }
        # A further offset that we committed ourselves means that the checkpoint was set back since: its position is
        # committed again. Of an inherited partition, another query's checkpoint has the rest (`adoption`).
        committed = self.committed(remembered, LEADER_PATIENCE_MS)
        known = {
            tp
            for tp, found in committed.found.items()
            if is_of_topic(found.text, start.topics[tp.topic].topic_id) is not False  # None: it names no topic
            and (
                found.offset == remembered[tp]
                or (found.offset > remembered[tp] and (found.writer is not Writer.US or tp in start.inherited))
            )
        }
        unanswered = frozenset(committed.unanswered)
        return {tp: at for tp, at in remembered.items() if tp not in known | unanswered}, unanswered

    def _existing_topics(self, partitions: Collection[TopicPartition]) -> Mapping[str, TopicDescription]:
        """The topics of `partitions` that exist, those included that are no longer in `subscribe`.

        An earlier process of the query may have read them.
        """
        names = {tp.topic for tp in partitions}
        topics = self._group.topics(self._options.metadata_max_age_ms)
        left = self._options.subscription.beyond(names)
        return {**topics, **self._group.topics_named(left)} if left else topics

    def committed(self, partitions: Collection[TopicPartition], patience_ms: int) -> Answers[Committed]:
        """The committed offset of each of `partitions`, and who committed it.

        A partition without a committed offset is in neither part of the answer. One that the coordinator refuses for
        `patience_ms`, unlike the rest, is unanswered.
        """
        answers = self._group.committed_answers(partitions, patience_ms)
        committed = {
            tp: Committed(found.offset, Writer.of(found.metadata, self._us), found.metadata)
            for tp, found in answers.found.items()
            if found is not None
        }
        return Answers(committed, answers.unanswered)


def _commit(
    seat: SeatView, positions: Mapping[TopicPartition, int], partitions: Collection[TopicPartition]
) -> SeatCommit:
    return SeatCommit(seat=seat, positions={tp: positions[tp] for tp in partitions})
