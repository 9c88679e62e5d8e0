"""Adopting partitions that arrived: where each one starts, so that its first batch can be planned.

Runs on: driver.

The rules are in `offsets.adoption`. Here their words (earliest, latest, a timestamp) become offsets. A start that the
group does not have is committed and acknowledged BEFORE a batch relies on it. A partition whose start is not
acknowledged is not adopted, and the next trigger tries again. Until then there is a batch of the other partitions only
if the rules cannot give it another start at the next trigger: it came later, and starts at its earliest offset.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence, Set
from typing import NamedTuple

from pyspark_kgroup.driver.boundary.acknowledgement import Acknowledgement, changed_from
from pyspark_kgroup.driver.boundary.boundary_commits import BoundaryCommits
from pyspark_kgroup.driver.boundary.boundary_state import BoundaryState
from pyspark_kgroup.driver.boundary.context import BoundaryContext
from pyspark_kgroup.driver.boundary.former_seats import FormerSeats
from pyspark_kgroup.driver.boundary.hand_over import HandOver
from pyspark_kgroup.driver.boundary.ignored_commits import IgnoredCommitWarnings
from pyspark_kgroup.driver.boundary.ledger import Holding, find_holders
from pyspark_kgroup.driver.boundary.position_check import PositionCheck
from pyspark_kgroup.driver.boundary.stop_offsets import StopOffsets
from pyspark_kgroup.limits import HANDOVER_WAIT_MS, LEADER_PATIENCE_MS, SETTLE_TIMEOUT_MS
from pyspark_kgroup.offsets.adoption import Committed, Start, adopted_start, make_period, topic_key
from pyspark_kgroup.offsets.data_loss import out_of_log
from pyspark_kgroup.offsets.offset_spec import AtTimestamp, OffsetSpec
from pyspark_kgroup.options.offset_bound import LATEST, OffsetBoundValue
from pyspark_kgroup.options.values import join
from spark_kgroup.errors import OptionError
from spark_kgroup.model import TopicPartition
from spark_kgroup.runtime.views import SeatCommit, SeatView

log = logging.getLogger(__name__)


class StartOffset(NamedTuple):
    """Where a partition starts.

    Attributes:
        offset: the first that is read.
        truncated: whether the log does not reach as far as the rules say.
    """

    offset: int
    truncated: bool


class Adoption:
    """Takes partitions that the group gave us into the ledger.

    Attributes:
        position_check: whether logs have the positions of adopted partitions, and of those that are to be adopted.
    """

    def __init__(
        self,
        context: BoundaryContext,
        hand_over: HandOver,
        former_seats: FormerSeats,
        acknowledgement: Acknowledgement,
        stops: StopOffsets,
    ) -> None:
        self._group = context.group
        self._options = context.options
        self._ledger = context.ledger
        self._commits = BoundaryCommits(context)
        self._clock = context.clock
        self._hand_over = hand_over
        self._former_seats = former_seats
        self._acknowledgement = acknowledgement
        self._stops = stops
        self.position_check = PositionCheck(context)
        self._start_offsets = StartOffsets(context, stops, self.position_check)
        self._ignored_commits = IgnoredCommitWarnings(context)

    def adopt_what_arrived(self, boundary: BoundaryState) -> BoundaryState | None:
        """Adopt partitions that arrived. None if there may be no batch yet.

        There is none while the group has not acknowledged where a partition starts, unless that cannot change.

        Raises:
            GroupUnsettled: a start was not acknowledged in time.
        """
        deadline_ms, what = self._clock() + SETTLE_TIMEOUT_MS, "where to start with"
        while unacknowledged := self._adopt(boundary):
            if not boundary.logs.bounded:
                alone = all(self._stays_at_earliest(boundary, tp) for tp in unacknowledged)
                then = "They are not read before that." if alone else "There is no batch before that."
                self._acknowledgement.fail_if_missing_for_long(what, unacknowledged, then)
                if not alone:
                    return None
                # The refusal may say that a seat has lost its partitions.
                boundary = boundary.with_view(self._group.view())
                self._ledger.drop_lost(boundary.view)
                return boundary if self._ledger.holdings else None
            if self._clock() > deadline_ms:
                boundary.skip_trigger(self._acknowledgement.missing(what, unacknowledged))
            seen = self._group.wait_until(changed_from(boundary.view), HANDOVER_WAIT_MS)
            # During the wait the group may have asked for partitions back.
            boundary = self._hand_over.commit_and_give_up(boundary.with_view(seen))
        self._acknowledgement.on_all_acknowledged(what)
        return boundary

    def _adopt(self, boundary: BoundaryState) -> frozenset[TopicPartition]:
        """Adopt partitions that arrived, except those whose start the group did not acknowledge, which are returned.

        No batch may rely on such a start: 1. `startingOffsets` says 0, and the committed offset is 80, where another
        member left it. 2. A first batch 0..30 is planned. 3. The driver dies. 4. On return the further of 30 and 80
        counts, so 30..80 would be skipped.
        """
        held = self._arrived(boundary)
        if not held:
            return frozenset()
        heard = boundary.logs.heard(held).keys()
        explicit = self._explicit_start_counts(boundary, held.keys(), heard)
        # A partition that still starts by the option waits for its leader: adopted now, it would start by other rules.
        arrived = {tp: seat for tp, seat in held.items() if tp in heard or tp not in boundary.start.unstarted}
        # Partitions that got no answer before get no second patience: all other partitions wait meanwhile.
        patience_ms = 0 if arrived.keys() <= boundary.logs.out_of_reach.partitions else LEADER_PATIENCE_MS
        answers = self._commits.committed(arrived, patience_ms)
        committed = boundary.logs.answered(answers)
        starts = {
            tp: adopted_start(
                tp,
                checkpoint=boundary.start,
                topic=boundary.topics[tp.topic],
                committed=committed.get(tp),
                explicit=tp in explicit,
                later=self._ledger.is_later(tp.topic),
            )
            for tp in arrived
            if tp not in answers.unanswered
        }
        offsets = self._start_offsets.of(boundary, starts, heard)
        # The checkpoint keeps them, so that they start by the option in a later process, too.
        self._ledger.unstarted = frozenset(
            tp for tp in explicit & (held.keys() - offsets.keys()) if not self._ledger.is_later(tp.topic)
        )
        committed = {tp: found for tp, found in committed.items() if tp in offsets}
        self._warn_of_starts_at_the_end([tp for tp in offsets if starts[tp].offset is OffsetSpec.STARTING])
        self._ignored_commits.warn(boundary, starts, {tp: at.offset for tp, at in offsets.items()}, committed)
        return self._record(boundary, {tp: arrived[tp] for tp in offsets}, starts, offsets, committed)

    @staticmethod
    def _stays_at_earliest(boundary: BoundaryState, tp: TopicPartition) -> bool:
        """Whether this partition, which starts by no position and no committed offset, starts at earliest later, too.

        Not on a fresh checkpoint, whose option counts once for all partitions, nor in a topic that was created again,
        of which the next checkpoint has no memory.
        """
        known = boundary.start.topics.get(tp.topic)
        if boundary.start.fresh or boundary.start.position(tp) is not None or tp in boundary.start.given_up:
            return False
        if known is None:
            return True
        return known.topic_id == topic_key(boundary.topics[tp.topic]) and tp.partition >= known.first_sight

    def _arrived(self, boundary: BoundaryState) -> dict[TopicPartition, SeatView]:
        """Partitions that our seats hold, may keep and have not adopted, with those whose log lost our position."""
        topics = boundary.topics
        positions = {tp: self._ledger.position(tp) for tp in self._ledger.holdings}
        lacking = self.position_check.lacking(boundary.logs, self._stops.unread(topics, positions))
        self._ledger.forget(lacking)  # to be adopted anew, where the log goes on
        return {
            tp: seat
            for tp, seat in find_holders(boundary.view).items()
            if tp not in self._ledger.holdings
            and tp not in seat.to_give_up
            and tp.topic in topics  # the group's leader may know a newer topic or partition than we do
            and tp.partition < topics[tp.topic].partition_count
        }

    def _explicit_start_counts(
        self, boundary: BoundaryState, held: Set[TopicPartition], heard: Set[TopicPartition]
    ) -> Set[TopicPartition]:
        """Those of `held` for which an explicit `startingOffsets` wins over committed offsets.

        There are none if other applications are in the group. Under a fresh checkpoint that is decided for all of
        `held`. A partition that could not be adopted then, since no leader answered, still starts by the option when it
        is `heard` of.
        """
        starting, fresh = self._options.starting_offsets, boundary.start.fresh
        concerned = held if fresh else heard & boundary.start.unstarted
        if starting.committed or not concerned:
            return frozenset()
        if others := self._former_seats.other_applications(boundary.view):
            log.warning(
                "%s=%s is ignored: group %r has members of other applications (%s), so their committed offsets count.",
                starting.option,
                starting,
                self._options.group_id,
                join(others),
            )
            return frozenset()
        if fresh:
            first = [topic for name, topic in boundary.topics.items() if not self._ledger.is_later(name)]
            starting.check(tp for topic in first for tp in topic.partitions)
        return concerned

    def _warn_of_starts_at_the_end(self, partitions: Sequence[TopicPartition]) -> None:
        """Warn that a group without committed offsets starts at the end, where a new user sees no rows."""
        starting = self._options.starting_offsets
        if partitions and starting.committed and starting.everywhere is OffsetSpec.LATEST:
            log.warning(
                "Group %r has no committed offsets for %s: reading starts at the end, without the records in there. "
                "To read them, set startingOffsets=earliest and start with a new checkpointLocation.",
                self._options.group_id,
                join(sorted(partitions)),
            )

    def _record(
        self,
        boundary: BoundaryState,
        arrived: Mapping[TopicPartition, SeatView],
        starts: Mapping[TopicPartition, Start],
        offsets: Mapping[TopicPartition, StartOffset],
        committed: Mapping[TopicPartition, Committed],
    ) -> frozenset[TopicPartition]:
        """Take `arrived` into the ledger, and commit starts that the group does not have.

        Returns:
            The partitions whose commit was not acknowledged. The ledger has forgotten them.
        """
        # After a truncation the group's offset is set back, too. Else: 1. The log is cut from 100 to 60 and grows to
        # 120. 2. We are at 80, and the committed offset is 100. 3. An owner that starts at the further skips 80..100.
        first = {tp for tp in arrived if starts[tp].commit_first or offsets[tp].truncated}
        for tp, seat in arrived.items():
            owned_since, known = seat.owned_since[tp], committed.get(tp)
            period = make_period(
                tp,
                offsets[tp].offset,
                checkpoint=boundary.start,
                topic=boundary.topics[tp.topic],
                seat=seat.instance_id,
                owned_since=owned_since,
            )
            # None until the first commit is acknowledged: the offset that it replaces is no position of ours.
            offset = known.offset if known is not None and tp not in first else None
            self._ledger.adopt(tp, Holding(period=period, owned_since=owned_since, committed=offset))
        log.info("adopted %s", join([f"{tp} from {offsets[tp].offset}" for tp in sorted(arrived)]))
        by_seat: dict[str, tuple[SeatView, dict[TopicPartition, int]]] = {}
        # Each seat commits for its own partitions alone, under the identity that owns them.
        for tp in first:
            by_seat.setdefault(arrived[tp].instance_id, (arrived[tp], {}))[1][tp] = offsets[tp].offset
        wanted = [SeatCommit(seat=seat, positions=positions) for seat, positions in by_seat.values()]
        unacknowledged = frozenset(first - self._commits.commit(wanted))
        self._ledger.forget(unacknowledged)
        return unacknowledged


class StartOffsets:
    """Where partitions start, as offsets that their logs have: what the rules say, looked up and checked."""

    def __init__(self, context: BoundaryContext, stops: StopOffsets, position_check: PositionCheck) -> None:
        self._group = context.group
        self._options = context.options
        self._stops = stops
        self._position_check = position_check

    def of(
        self, boundary: BoundaryState, starts: Mapping[TopicPartition, Start], heard: Set[TopicPartition]
    ) -> Mapping[TopicPartition, StartOffset]:
        """The offset at which each partition starts.

        A partition whose start only its leader knows is left out until a leader answers.

        Args:
            boundary: its state.
            starts: where partitions start, by the rules.
            heard: partitions whose leaders answer.
        """
        offsets = {tp: start.offset for tp, start in starts.items()}
        specs = {tp: self._by_option(tp, at) for tp, at in offsets.items() if tp in heard or isinstance(at, int)}
        earliest = [tp for tp, spec in specs.items() if spec is OffsetSpec.EARLIEST]
        latest = [tp for tp, spec in specs.items() if spec is OffsetSpec.LATEST]
        timestamps = {tp: spec for tp, spec in specs.items() if isinstance(spec, AtTimestamp)}
        found = {tp: spec for tp, spec in specs.items() if isinstance(spec, int)}
        answered, logs, read_committed = boundary.logs.answered, self._group.logs, self._options.read_committed
        given = {tp: at for tp, at in found.items() if offsets[tp] is OffsetSpec.STARTING}
        # Ends of the logs, and not the readable ones: offsets within an open transaction exist, too.
        reached = logs.ends(given, LEADER_PATIENCE_MS, read_committed=False)
        beyond = {tp: given[tp] for tp, end in answered(reached).items() if given[tp] > end}
        unchecked = set(reached.unanswered)
        if beyond:  # the leader may have been cut off: another broker is asked for it before that is the user's mistake
            logs.ask_another_broker(beyond, LEADER_PATIENCE_MS)
            again = logs.ends(beyond, LEADER_PATIENCE_MS, read_committed=False)
            _check_not_beyond(beyond, answered(again))
            unchecked |= again.unanswered.keys()
        # An offset that could not be checked against its log waits for the leader.
        found = {tp: at for tp, at in found.items() if tp not in unchecked}
        found |= answered(logs.starts(earliest, LEADER_PATIENCE_MS))
        at = {tp: timestamp.ms for tp, timestamp in timestamps.items()}
        records = logs.at(at, LEADER_PATIENCE_MS, read_committed=read_committed)
        found |= answered(records)
        without = {tp: at for tp, at in timestamps.items() if tp not in found and tp not in records.unanswered}
        if without:
            from pyspark_kgroup.driver.batch.timestamps import check_without_record  # few queries start by timestamp

            check_without_record(self._options.starting_offsets, without)
        ends = logs.ends([*latest, *without], LEADER_PATIENCE_MS, read_committed=read_committed)
        return self._within_logs(boundary, starts, {**found, **answered(ends)}, heard)

    def _by_option(self, partition: TopicPartition, offset: int | OffsetSpec) -> OffsetBoundValue:
        return self._options.starting_offsets.offset_of(partition) if offset is OffsetSpec.STARTING else offset

    def _within_logs(
        self,
        boundary: BoundaryState,
        starts: Mapping[TopicPartition, Start],
        offsets: Mapping[TopicPartition, int],
        heard: Set[TopicPartition],
    ) -> dict[TopicPartition, StartOffset]:
        """`offsets`, or where a log goes on that does not have its offset: the records in between are lost.

        If no leader answers for a partition, its offset is checked when one does, as that of every adopted partition is
        (`PositionCheck.lacking`).
        """
        unread = self._stops.unread(boundary.topics, offsets).keys() & heard
        # The log itself has just named its earliest offset, so that one needs no second request.
        given = [tp for tp in unread if self._by_option(tp, starts[tp].offset) is not OffsetSpec.EARLIEST]
        log_ranges = self._position_check.log_ranges(boundary.logs, {tp: offsets[tp] for tp in given})
        nearest = {tp: log_range.nearest(offsets[tp]) for tp, log_range in log_ranges.items()}
        boundary.logs.lose(
            [out_of_log(tp, offsets[tp], None, log_ranges[tp]) for tp in sorted(nearest) if nearest[tp] != offsets[tp]]
        )
        return {tp: StartOffset(at := nearest.get(tp, wanted), at < wanted) for tp, wanted in offsets.items()}


def _check_not_beyond(offsets: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]) -> None:
    """See that logs with these ends reach as far as `startingOffsets` says. Raises OptionError if one does not."""
    beyond = [f"{tp}: {offsets[tp]} (ends at {ends[tp]})" for tp in sorted(ends) if offsets[tp] > ends[tp]]
    if beyond:
        raise OptionError(
            f"Option startingOffsets lies beyond the end of {join(beyond)}: give an offset that exists, or "
            f"{LATEST} for latest."
        )
