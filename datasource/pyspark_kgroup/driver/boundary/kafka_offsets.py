"""Going on from an offset of `format("kafka")`, and reading a batch that it has planned and not finished.

Runs on: driver. Between two batches only (`boundary`), and only until this query has an offset of its own.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping

from pyspark_kgroup.driver.boundary.boundary_commits import BoundaryCommits
from pyspark_kgroup.driver.boundary.context import BoundaryContext
from pyspark_kgroup.driver.boundary.topic_logs import TopicLogs
from pyspark_kgroup.limits import END_OFFSETS_MAX_AGE_MS, LEADER_PATIENCE_MS
from pyspark_kgroup.offsets.adoption import Writer
from pyspark_kgroup.offsets.checkpoint import Checkpoint
from pyspark_kgroup.offsets.data_loss import LogRange, Loss, deleted, out_of_log
from pyspark_kgroup.offsets.kafka_offset import KafkaOffset
from pyspark_kgroup.offsets.pieces import OffsetInterval
from pyspark_kgroup.options.values import join
from spark_kgroup.errors import UnknownTopic
from spark_kgroup.model import TopicDescription, TopicPartition

log = logging.getLogger(__name__)


class KafkaOffsets:
    """Reads offsets of `format("kafka")` for one query, as its brokers know the topics.

    Args:
        context: the query's.
        logs: where losses are counted, or are an error (`failOnDataLoss`).
        last: the last offset in the checkpoint, from which the query goes on. A warning names its positions.
    """

    def __init__(self, context: BoundaryContext, logs: TopicLogs, last: KafkaOffset) -> None:
        self._group = context.group
        self._options = context.options
        self._commits = BoundaryCommits(context)
        self._logs = logs
        self._compared = False
        self._warn_of_positions(last)

    def _warn_of_positions(self, last: KafkaOffset) -> None:
        positions = [f"{tp} at {offset}" for tp, offset in sorted(last.positions.items())]
        others = sorted(self._options.subscription.beyond(tp.topic for tp in last.positions))
        forgotten = f" It does not read {join(others)} any more." if others else ""
        log.warning(
            'This query goes on from the checkpoint of format("kafka"), as group %r: %s.%s',
            self._options.group_id,
            join(positions or ["no partition yet"]),
            forgotten,
        )

    def checkpoint(self, offset: KafkaOffset) -> Checkpoint:
        """`offset` as a checkpoint of this query, with the ids that the topics have now.

        Raises:
            DataLoss: a partition does not exist any more, and that is an error (`failOnDataLoss`).
            WireError: brokers do not answer in time.
        """
        topics = self._group.topics(END_OFFSETS_MAX_AGE_MS)
        if gone := _absent(offset, topics):
            # A broker that lags behind knows fewer partitions. The offset has no other witness.
            self._group.logs.ask_another_broker(gone, LEADER_PATIENCE_MS)
            topics = self._group.topics(0)
            gone = _absent(offset, topics)
        self._logs.lose([deleted(tp, offset.positions[tp]) for tp in gone])
        found = offset.checkpoint(self._options.subscription, topics, gone)
        self._warn_of_further_commits(found)
        return found

    def _warn_of_further_commits(self, checkpoint: Checkpoint) -> None:
        """Warn once of partitions that start further on than the checkpoint stands (`adoption`, rule 2).

        A user who names the group of another application here may expect the checkpoint to count.
        """
        if self._compared:
            return
        found = self._commits.committed(checkpoint.lost, LEADER_PATIENCE_MS).found
        self._compared = True
        further = [
            f"{tp}: group {commit.offset}, checkpoint {checkpoint.lost[tp]}"
            for tp, commit in sorted(found.items())
            if commit.offset > checkpoint.lost[tp] and commit.writer in (Writer.NEIGHBOUR, Writer.UNKNOWN)
        ]
        if further:
            log.warning(
                'Group %r has offsets beyond the checkpoint of format("kafka"), which this query did not commit '
                "(%s): reading goes on at the group's offsets, since another member of the group has read the records "
                "between. If this query is to read them, stop it, and start it on a copy of the old checkpoint with a "
                "kafka.group.id of its own.",
                self._options.group_id,
                join(further),
            )

    # ------------------------------------------------------------------------------------- an unfinished batch

    def topics_of(self, offset: KafkaOffset) -> Mapping[str, TopicDescription]:
        """The topics of `offset` that exist, subscribed or not: a batch may have been planned from others."""
        topics = self._group.topics(END_OFFSETS_MAX_AGE_MS)
        others = sorted({tp.topic for tp in offset.positions} - topics.keys())
        return {**topics, **self._group.topics_named(others)} if others else topics

    def spans(self, start: KafkaOffset, end: KafkaOffset) -> dict[TopicPartition, OffsetInterval]:
        """The offsets of the batch between `start` and `end`, as `format("kafka")` reads them.

        The two offsets decide (KafkaOffsetReaderAdmin.getOffsetRangesFromResolvedOffsets): each partition in `end` is
        read from its position in `start`. One that `start` does not have was added meanwhile, and is read from its
        earliest offset, which is 0 unless records are gone. One that `end` does not have was deleted.

        Raises:
            DataLoss: records of the batch are gone, and that is an error (`failOnDataLoss`).
            WireError: no leader says where an added partition begins.
        """
        losses = [deleted(tp, start.positions[tp]) for tp in sorted(start.positions.keys() - end.positions.keys())]
        firsts = dict(start.positions)
        for topic in sorted({tp.topic for tp in end.positions.keys() - start.positions.keys()}):
            added = {tp: at for tp, at in end.positions.items() if tp.topic == topic and tp not in start.positions}
            firsts |= self._earliest(added, losses)
        spans = {tp: OffsetInterval(firsts[tp], at) for tp, at in sorted(end.positions.items()) if tp in firsts}
        losses += [
            _ends_before_it_begins(tp, span) for tp, span in spans.items() if span.end_offset < span.start_offset
        ]
        self._logs.lose(losses)
        return {tp: span for tp, span in spans.items() if span.offsets}

    def _earliest(self, added: Mapping[TopicPartition, int], losses: list[Loss]) -> Mapping[TopicPartition, int]:
        """Where partitions of one topic begin, which end at these offsets. `losses` gets what is gone of them."""
        try:
            answers = self._group.logs.starts(added, self._options.api_timeout_ms)
        except UnknownTopic:
            losses += [deleted(tp, 0, end) for tp, end in sorted(added.items()) if end]
            return {}
        for error in answers.unanswered.values():
            raise error
        losses += [
            out_of_log(tp, 0, added[tp], LogRange(first, max(first, added[tp])))
            for tp, first in sorted(answers.found.items())
            if first
        ]
        return answers.found


def _absent(offset: KafkaOffset, topics: Mapping[str, TopicDescription]) -> Collection[TopicPartition]:
    """The partitions of `offset` that their topics do not have, in order."""
    return [
        tp for tp in sorted(offset.positions) if tp.topic in topics and tp.partition >= topics[tp.topic].partition_count
    ]


def _ends_before_it_begins(tp: TopicPartition, span: OffsetInterval) -> Loss:
    now = f'the unfinished batch of format("kafka") ends at offset {span.end_offset} there'
    return Loss(tp, span.start_offset, None, now, "the log was truncated, or the topic was deleted and created again")
