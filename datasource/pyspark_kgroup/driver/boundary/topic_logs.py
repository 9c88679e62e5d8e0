"""The logs behind the subscribed topics, as brokers show them now, and the losses in them.

Runs on: driver. Between two batches only (`boundary`).

The topic id alone decides whether a topic is still the same, never an offset. Topics are looked at anew at every
boundary that may have work (`idle_check`), and before a plan if the last look is a while ago. A topic that is created
anew after that is noticed at the next boundary.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from typing import Final, TypeVar

from pyspark_kgroup.driver.boundary.context import BoundaryContext
from pyspark_kgroup.driver.boundary.log_ends import LogEnds
from pyspark_kgroup.driver.boundary.out_of_reach import OutOfReach
from pyspark_kgroup.errors import DataLoss
from pyspark_kgroup.limits import END_OFFSETS_MAX_AGE_MS, PLANNED_TOPICS_MAX_AGE_MS
from pyspark_kgroup.offsets.adoption import topic_key
from pyspark_kgroup.offsets.checkpoint import Checkpoint
from pyspark_kgroup.offsets.data_loss import WAYS_OUT, Loss, deleted, recreated, warnings_of
from pyspark_kgroup.offsets.plan import Ranges
from spark_kgroup.errors import UnknownTopic
from spark_kgroup.model import TopicDescription, TopicPartition
from spark_kgroup.peer_words import listed
from spark_kgroup.wire.listing import Answers

T = TypeVar("T")

log = logging.getLogger(__name__)


class TopicLogs:
    """The subscribed topics and their logs, for one boundary after the other. Not thread-safe.

    Args:
        bounded: this run ends by itself (AvailableNow): it reads no further than the end offsets of its first boundary.

    Attributes:
        topics: the subscribed topics that exist, as last seen.
        losses: how many losses were skipped, without those that executors meet and log themselves.
        out_of_reach: partitions of our seats for which no leader answers: they add no records to a batch.
        missed: partitions for which one of this boundary's questions got no answer.
        offsets_skipped: how many offsets retention and DeleteRecords took in these losses. Offsets that were lost for
            another reason cannot be counted.
    """

    def __init__(self, context: BoundaryContext, *, bounded: bool) -> None:
        self.topics: Mapping[str, TopicDescription] = {}
        self.losses = 0
        self.offsets_skipped = 0
        self._group = context.group
        self._options = context.options
        self.out_of_reach = OutOfReach(context)
        self.missed: set[TopicPartition] = set()
        self._ends = LogEnds(context, self.out_of_reach.answered)
        self.bounded: Final = bounded
        self._frozen: Mapping[TopicPartition, int] | None = None
        self._to_freeze: frozenset[TopicPartition] = frozenset()
        """Partitions whose leaders had not answered when end offsets were frozen. Theirs are frozen later, at the first
        boundary where our seats hold them and a leader answers."""
        self._warned_of: dict[TopicPartition, Loss] = {}

    # ---------------------------------------------------------------------------------------------- topics

    def see_topics(self, start: Checkpoint, held: Collection[TopicPartition] = ()) -> None:
        """See which topics there are now.

        Args:
            start: the durable offset. Its positions in topics that were deleted or created anew are lost.
            held: partitions of our seats, which the metadata must contain if their topic is still there.

        Raises:
            DataLoss: records were lost, and that is an error (`failOnDataLoss`).
            UnknownTopic: a subscribed topic does not exist, and `start` has never seen it, or has no position in it and
                losses are an error.
        """
        topics = self._group.topics(END_OFFSETS_MAX_AGE_MS)
        if any(tp.topic in topics and tp.partition >= topics[tp.topic].partition_count for tp in held):
            topics = self._group.topics(0)  # the leader saw the new partition before us
        self._take(topics)
        others = self._others(start)
        gone = sorted({tp for held in (start.lost, start.owned) for tp in held if tp.topic in others})
        self.lose([self._loss(tp, start, start.position(tp) or 0, None) for tp in gone])
        if self._frozen is not None:  # a topic that was created anew waits for the next run
            self._frozen = {tp: end for tp, end in self._frozen.items() if tp not in gone}
            self._to_freeze -= set(gone)
        absent = [name for name in self._options.subscription.topics if name not in topics]
        if absent and (self._options.fail_on_data_loss or not start.topics.keys() >= set(absent)):
            raise UnknownTopic(
                f"Topic {listed(absent, repr)} does not exist on this cluster, or this user may not see it: "
                "create it, or correct the option `subscribe`."
            )

    def _take(self, topics: Mapping[str, TopicDescription]) -> None:
        if self._differ_from(topics):
            self._ends.forget()  # they may be those of a topic that is gone, and a listing of it would fail
        self.topics = topics

    def some_went(self) -> bool:
        """Whether one of the topics last seen is deleted by now, or created again."""
        return self._differ_from(self._group.topics(0))

    def _differ_from(self, now: Mapping[str, TopicDescription]) -> bool:
        """Whether one of the topics last seen is missing from `now`, or has another id there."""
        return any(name not in now or topic_key(now[name]) != topic_key(seen) for name, seen in self.topics.items())

    def _others(self, checkpoint: Checkpoint) -> set[str]:
        """Subscribed topics of `checkpoint` that are gone, or have another topic id now.

        Topics that are no longer subscribed are left out, since brokers were not asked for them.
        """
        return {
            name
            for name, known in checkpoint.topics.items()
            if name in self._options.subscription
            and (name not in self.topics or topic_key(self.topics[name]) != known.topic_id)
        }

    def _loss(self, tp: TopicPartition, checkpoint: Checkpoint, position: int, end_offset: int | None) -> Loss:
        topic = self.topics.get(tp.topic)
        if topic is None:
            return deleted(tp, position, end_offset)
        return recreated(tp, position, end_offset, checkpoint.topics[tp.topic].topic_id, topic_key(topic))

    def readable(self, end: Checkpoint, plan: Mapping[str, Ranges]) -> dict[str, Ranges]:
        """`plan` (seat -> ranges of a batch that ends at `end`) without topics that were deleted or created again.

        Their ids do not come back, so every replay of the batch reads the same, from here on.

        Raises:
            DataLoss: the plan has ranges of such topics, and that is an error.
        """
        self._take(self._group.topics(PLANNED_TOPICS_MAX_AGE_MS))
        every = {tp: span for ranges in plan.values() for tp, span in ranges.items()}
        others = self._others(end)
        gone = {tp for tp in every if tp.topic in others}
        self.lose([self._loss(tp, end, *every[tp]) for tp in sorted(gone)])
        left = {seat: {tp: s for tp, s in ranges.items() if tp not in gone} for seat, ranges in plan.items()}
        return {seat: ranges for seat, ranges in left.items() if ranges}

    # ------------------------------------------------------------------------------------------------ logs

    @property
    def listed_ends(self) -> dict[TopicPartition, int]:
        """One past the last offset of each partition, as last listed: no request, and not frozen."""
        return dict(self._ends.last)

    @property
    def frozen(self) -> bool:
        """End offsets are those of the run's beginning."""
        return self._frozen is not None

    def begin_listing(self, held: Collection[TopicPartition]) -> None:
        """Begin to list where the logs of `held` end, while the boundary asks brokers its other questions."""
        self._ends.begin(held)

    def ends(self, held: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """One past the last offset of each partition that may be read now. It is a boundary's last question.

        Raises:
            RequestTimedOut: a partition has been out of reach for too long.
        """
        if self.bounded and self._frozen is None:
            # Partitions of other members as well: our seats may get them while this run lasts.
            every = [tp for topic in self.topics.values() for tp in topic.partitions]
            self._frozen = self._ends.of(every)
            self._to_freeze = frozenset(every) - self._frozen.keys()
        ends = self.heard(held)
        self.missed.clear()
        self.out_of_reach.hear(ends)
        if self._frozen is None:
            return ends
        if late := self._to_freeze & ends.keys():
            self._frozen = {**self._frozen, **{tp: ends[tp] for tp in late}}
            self._to_freeze -= late
        # A partition that was added since waits for the next run.
        return {tp: min(end, self._frozen[tp]) for tp, end in ends.items() if tp in self._frozen}

    def heard(self, held: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """Those of `held`, partitions of our seats, whose leaders answer: one past the last readable offset of each.

        Raises:
            RequestTimedOut: one has been out of reach for too long.
        """
        ends = self._ends.of(held)
        self.out_of_reach.miss({tp: self._ends.unanswered[tp] for tp in held if tp not in ends})
        return {tp: end for tp, end in ends.items() if tp not in self.missed} if self.missed else ends

    def list_anew(self, partitions: Collection[TopicPartition]) -> None:
        """The logs of `partitions` do not end where they were listed to: the next plan lists them once more."""
        if partitions:
            self._ends.drop(partitions)

    def answered(self, answers: Answers[T]) -> Mapping[TopicPartition, T]:
        """The answers for partitions of our seats. Those without an answer are out of reach in this boundary.

        Raises:
            RequestTimedOut: one has been out of reach for too long.
        """
        self.missed |= answers.unanswered.keys()
        self.out_of_reach.miss(answers.unanswered)
        return answers.found

    def waits_for_leaders(self, positions: Mapping[TopicPartition, int]) -> bool:
        """Whether this run, which ends by itself, has to wait for leaders: records beyond `positions` are unread."""
        frozen = self._frozen or {}
        left = {
            tp
            for tp in self.out_of_reach.partitions
            if tp in self._to_freeze or (tp in frozen and positions.get(tp, -1) < frozen[tp])
        }
        return bool(left) and not self.out_of_reach.wait_no_longer(left)

    # ---------------------------------------------------------------------------------------------- losses

    def lose(self, losses: Sequence[Loss]) -> None:
        """Fail, or count the losses, with warnings that come once.

        Raises:
            DataLoss: that is an error (`failOnDataLoss`).
        """
        if losses and self._options.fail_on_data_loss:
            more = f" {len(losses) - 1} more partitions are concerned." if len(losses) > 1 else ""
            raise DataLoss(f"{losses[0]}{more} {WAYS_OUT}")
        new = [loss for loss in losses if self._warned_of.get(loss.partition) != loss]
        self._warned_of |= {loss.partition: loss for loss in new}
        self.losses += len(new)
        self.offsets_skipped += sum(loss.skipped for loss in new)
        for text in warnings_of(new):
            log.warning("%s", text)
