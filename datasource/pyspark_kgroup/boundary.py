"""The boundary between two micro-batches: the only place where partitions are adopted and given up.

Runs on: driver. The order is the promise (design section 7): commit what is durable, give up what must go, adopt what
arrived, list end offsets, apply limits. Rules and bookkeeping are pure (`adoption`, `ledger`); here is the order.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence

from pyspark_kgroup.adoption import Committed, Place, Start, Writer, adopted_start, period_of, topic_key
from pyspark_kgroup.checkpoint import Checkpoint
from pyspark_kgroup.data_loss import out_of_log
from pyspark_kgroup.ledger import Holding, Ledger, holders_of
from pyspark_kgroup.logs import Logs
from pyspark_kgroup.option_values import listed
from pyspark_kgroup.options import SourceOptions
from pyspark_kgroup.plan import Ranges, in_turn, limited
from pyspark_kgroup.starting_offsets import EARLIEST, LATEST
from pyspark_kgroup.taken_over import taken_over
from spark_kgroup.errors import GroupUnsettled, KgroupError, OptionError, WireError
from spark_kgroup.limits import HANDOVER_WAIT_MS, ORPHAN_CHECK_INTERVAL_MS, SETTLE_TIMEOUT_MS
from spark_kgroup.model import (
    NO_GENERATION,
    DescribedGroup,
    DescribedMember,
    ErrorCode,
    MemberIdentity,
    TopicDescription,
    TopicPartition,
)
from spark_kgroup.runtime.group import GroupView, SeatView
from spark_kgroup.runtime.session import monotonic_ms
from spark_kgroup.runtime.thread import GroupRuntime
from spark_kgroup.wire.commit_metadata import Author

log = logging.getLogger(__name__)

Tenures = dict[tuple[str, TopicPartition], MemberIdentity | None]
"""(instance id, partition) -> the identity under which the seat's ownership began, None if an earlier process's."""

BySeat = Mapping[str, tuple[SeatView, frozenset[TopicPartition]]]
"""Instance id -> the seat, and partitions that it is to speak for."""

_HANDOVER_ROUNDS = 4
"""A cooperative rebalance takes two generations; one more pair for a group that moved on meanwhile."""


class Boundary:
    """Carries one query from boundary to boundary. Not thread-safe: Spark asks one thing at a time.

    Args:
        run_ms: when this run of the query was started (wall clock), as its commits say; None if they do not.

    Attributes:
        logs: what brokers have of the subscribed topics, with the count of what was lost and skipped.
        members: instance id of each seat -> its member id, as of the last boundary.
    """

    def __init__(self, runtime: GroupRuntime, options: SourceOptions, run_ms: int | None = None) -> None:
        self._runtime = runtime
        self._options = options
        self._us = Author(app=options.instance_id_prefix, run_ms=run_ms)
        self._ledger = Ledger(options.topics)
        self.logs = Logs(runtime, options)
        self.members: Mapping[str, str] = {}
        self._settled_once = False
        self._outlived: int | None = None
        self._not_let_go: set[str] = set()
        self._unheard_since_ms: int | None = None
        self._checked_rejoins = 0
        self._orphans_checked_at_ms = 0
        self._last_in_turn: TopicPartition | None = None
        self._odd: dict[TopicPartition, tuple[int, Committed]] = {}

    def advance(self, start: Checkpoint, limit: int | None) -> Checkpoint:
        """The next offset after `start`, which is durable: Spark has it in its commit log.

        Args:
            start: the end of the last completed batch.
            limit: offsets for the next batch, None for all there is.

        Returns:
            `start` itself, or an equal checkpoint, if there is nothing new.
        """
        self._look(start)
        view = self._hand_over(start, self._runtime.view())
        if not self._settled_once:
            left = start.topics.keys() - self._options.topics
            self._ledger.topics_gone = self._runtime.topics_gone(left) if left else frozenset()
        if not self._settled_once or (self.logs.frozen and not self._rests(view)):
            view = self._settle(start, view)
            if start.fresh and not self._rests(view):
                return start
        view = self._look_for_orphans(start, view)
        self._look(start, {tp for seat in view.seats for tp in seat.tenures})
        adopted_in = self._adopt_what_arrived(start, view)
        if adopted_in is None:
            return start
        view = self._commit_durable(start, adopted_in)
        self.members = {seat.instance_id: seat.identity.member_id for seat in view.seats}
        self._ledger.drop_lost(view)
        self._await_acknowledgement(start, view)
        return self._ledger.checkpoint(start, self.logs.topics, self._positions(start, limit))

    def freeze(self) -> None:
        """From the next boundary on, read no further than the end offsets of that moment (AvailableNow)."""
        self.logs.freeze()

    def readable(self, end: Checkpoint, plan: Mapping[str, Ranges]) -> dict[str, Ranges]:
        """What of a batch that ends at `end` can still be read (`Logs.readable`)."""
        return self.logs.readable(end, plan)

    def _look(self, start: Checkpoint, held: Collection[TopicPartition] = ()) -> None:
        """See which topics there are, BEFORE a commit: a position of a deleted topic must not be told of a new one."""
        try:
            self.logs.look(start, held)
        except KgroupError:
            self._ledger.drop_gone(self.logs.topics)
            self._commit_durable(start, self._runtime.view())  # of the others, as long as we can
            raise
        self._ledger.drop_gone(self.logs.topics)

    # -------------------------------------------------------------------------------- 1. commit, 2. give up

    def _hand_over(self, start: Checkpoint, view: GroupView) -> GroupView:
        """Commit what is durable, then give up what must go, until the group asks for nothing more."""
        for _ in range(_HANDOVER_ROUNDS):
            self._ledger.drop_lost(view)
            view = self._commit_durable(start, view)
            if not any(seat.to_give_up for seat in view.seats):
                break
            given_up = self._give_up(start, view)
            if not given_up:
                break
            view = self._runtime.wait_until(_after(given_up), HANDOVER_WAIT_MS)
        self._ledger.drop_lost(view)
        return view

    def _commit_durable(self, start: Checkpoint, view: GroupView) -> GroupView:
        """Commit what is durable. A refusal may mean that a membership is over: then the view is a new one."""
        positions = {seat.instance_id: (seat, self._ledger.uncommitted(seat, start)) for seat in view.seats}
        acknowledged = self._commit(positions)
        refused = any(offsets.keys() - acknowledged for _, offsets in positions.values())
        return self._runtime.view() if refused else view

    def _await_acknowledgement(self, start: Checkpoint, view: GroupView) -> None:
        """Under AvailableNow, what must wait for the group's word would end as if it was read: ask again, then fail."""
        deadline_ms = monotonic_ms() + SETTLE_TIMEOUT_MS
        while self.logs.bounded and (unheard := self._unheard(start, view)):
            if monotonic_ms() > deadline_ms:
                self._put_off(self._not_acknowledged("what was read of", unheard))
            view = self._commit_durable(start, self._runtime.wait_until(_changed_from(view), HANDOVER_WAIT_MS))
            self._ledger.drop_lost(view)

        if unheard := self._unheard(start, view):
            self._bear(f"{self._not_acknowledged('what was read of', unheard)} These partitions wait for it.")
        else:
            self._unheard_since_ms = None

    def _bear(self, told: str) -> None:
        """Nothing goes on that the group has not acknowledged (`Ledger.exposed`): say so, and not for ever."""
        if self._unheard_since_ms is None:
            self._unheard_since_ms = monotonic_ms()
            log.warning("%s Trying again at each trigger.", told)
        elif monotonic_ms() - self._unheard_since_ms > self._options.api_timeout_ms:
            raise GroupUnsettled(
                f"{told} Tried for {self._options.api_timeout_ms // 1000} s (kafka.default.api.timeout.ms): see the "
                "log of the group's coordinator."
            )

    def _not_acknowledged(self, what: str, unheard: Collection[TopicPartition]) -> str:
        names = ", ".join(sorted(map(str, unheard)))
        refusal = self._runtime.commit_refusal()
        why = f" ({refusal})" if refusal else ""
        return f"Group {self._options.group_id!r} did not acknowledge {what} {names}{why}."

    def _unheard(self, start: Checkpoint, view: GroupView) -> set[TopicPartition]:
        return {tp for seat in view.seats for tp in self._ledger.uncommitted(seat, start)}

    def _commit(self, positions: Mapping[str, tuple[SeatView, dict[TopicPartition, int]]]) -> frozenset[TopicPartition]:
        wanted = {
            name: (seat, offsets)
            for name, (seat, offsets) in self._without_what_others_read(positions).items()
            if offsets
        }
        if not wanted:
            return frozenset()
        acknowledged = self._runtime.commit(wanted)
        for _, offsets in wanted.values():
            self._ledger.acknowledged(acknowledged & offsets.keys(), offsets)
        return acknowledged

    def _without_what_others_read(
        self, positions: Mapping[str, tuple[SeatView, dict[TopicPartition, int]]]
    ) -> dict[str, tuple[SeatView, dict[TopicPartition, int]]]:
        """`positions` without partitions that must go and that another application reads already: those are let go.

        If nobody can say who reads them, they wait, like what is not acknowledged: nothing is set back, and the next
        trigger asks again.
        """
        asked = {
            tp: (self._ledger.holdings[tp].committed, offset)
            for seat, offsets in positions.values()
            for tp, offset in offsets.items()
            if tp in seat.to_give_up
        }
        if not asked:
            return dict(positions)
        try:
            out = taken_over(self._runtime, asked, {seat.instance_id for seat, _ in positions.values()}, self._us)
            self._ledger.let_go(out)
        except WireError as error:
            log.info("nobody says who reads what is to be given up, so it stays for now: %s", error)
            out = frozenset(asked)
        return {
            name: (seat, {tp: offset for tp, offset in offsets.items() if tp not in out})
            for name, (seat, offsets) in positions.items()
        }

    def _give_up(self, start: Checkpoint, view: GroupView) -> Tenures:
        """Give up all that is asked for and that the group knows our position of; returns what went."""
        wanted = {seat.instance_id: (seat, self._ledger.to_hand_over(seat, start)) for seat in view.seats}
        self._commit(
            {
                name: (seat, {tp: o for tp, o in offsets.items() if tp not in self._ledger.known_to_group(offsets)})
                for name, (seat, offsets) in wanted.items()
            }
        )
        adopted, taken = self._ledger.holdings.keys(), self._ledger.taken_over
        unread = self._going_unread(
            start,
            {
                seat.instance_id: (seat, seat.to_give_up - (adopted & seat.tenures.keys()) - taken)
                for seat in view.seats
            },
        )
        went: Tenures = {}
        for name, (seat, offsets) in wanted.items():
            # Not acknowledged means not given up.
            safe = self._ledger.known_to_group({tp: offsets[tp] for tp in offsets.keys() & adopted})
            if going := safe | unread[name] | (seat.to_give_up & taken):
                self._ledger.hand_over(safe)
                self._runtime.give_up(name, going)
                went |= {(name, tp): seat.tenures.get(tp) for tp in going}
        return went

    def _going_unread(self, start: Checkpoint, asked: BySeat) -> dict[str, frozenset[TopicPartition]]:
        """Instance id -> which of its partitions in `asked`, never adopted by this process, can go.

        They can if the group knows what we remember of them. What is not ours but an earlier process's may have another
        owner by now: then our word does not count any more.
        """
        inherited = {name: partitions - seat.tenures.keys() for name, (seat, partitions) in asked.items()}
        owners: dict[TopicPartition, set[str | None]] = {}
        if any(inherited.values()):
            group = self._runtime.describe()
            if not group.tells_owners:  # nobody knows whose they are: at the next boundary
                asked = {name: (seat, partitions - inherited[name]) for name, (seat, partitions) in asked.items()}
            for member in group.members:
                for tp in member.assignment | member.claimed:
                    owners.setdefault(tp, set()).add(member.instance_id)
        taken = {name: {tp for tp in tps if owners.get(tp, set()) - {name}} for name, tps in inherited.items()}
        told = {name: (seat, partitions - taken[name]) for name, (seat, partitions) in asked.items()}
        unknown = self._commit_remembered(start, told)
        return {name: partitions - unknown for name, (_, partitions) in asked.items()}

    def _commit_remembered(self, start: Checkpoint, by_seat: BySeat) -> frozenset[TopicPartition]:
        """Tell the group how far we had read what we do not own, BEFORE it gets a new owner.

        1. a batch is done; 2. the driver dies before the boundary that would commit it; 3. on return the partition is
        asked for, or owned by nobody, before we adopt it. Without this its next owner would read the batch again.

        Returns:
            The partitions whose durable position the group does not have.
        """
        partitions = {tp for _, tps in by_seat.values() for tp in tps}
        topics = self._topics_of(partitions)
        same = {name for name in start.topics.keys() & topics if start.topics[name].topic_id == topic_key(topics[name])}
        remembered = {
            tp: position for tp in partitions if tp.topic in same and (position := start.position(tp)) is not None
        }
        committed = self._committed(remembered)
        # What we committed further ourselves, a checkpoint that was set back since does not know (`adoption`).
        known = {
            tp
            for tp, there in committed.items()
            if there.offset == remembered[tp] or (there.offset > remembered[tp] and there.writer is not Writer.US)
        }
        behind = {tp: position for tp, position in remembered.items() if tp not in known}
        told = {name: (seat, {tp: behind[tp] for tp in tps & behind.keys()}) for name, (seat, tps) in by_seat.items()}
        told = {name: (seat, offsets) for name, (seat, offsets) in told.items() if offsets}
        acknowledged = self._runtime.commit(told) if told else frozenset()
        return frozenset(behind) - acknowledged

    def _topics_of(self, partitions: Collection[TopicPartition]) -> Mapping[str, TopicDescription]:
        """The topics of `partitions` that exist; some may have left `subscribe` since an earlier process read them."""
        names = {tp.topic for tp in partitions}
        topics = self._runtime.topics(self._options.metadata_max_age_ms) if names else {}
        left = names.difference(self._options.topics)
        return {**topics, **self._runtime.topics_named(left)} if left else topics

    def _settle(self, start: Checkpoint, view: GroupView) -> GroupView:
        """Wait until every seat is in the group and at rest, and no seat of an earlier run is left.

        The first batch shall start with all there is, and AvailableNow must not take what is on its way for nothing.
        """
        deadline_ms = monotonic_ms() + SETTLE_TIMEOUT_MS
        while not (done := self._without_old_seats(start, view)) and (left_ms := deadline_ms - monotonic_ms()) > 0:
            # What could not be given up, or made to leave, just now is tried again after a while, not at once.
            view = self._runtime.wait_until(self._moved_on_from(view), min(left_ms, HANDOVER_WAIT_MS))
            view = self._hand_over(start, view)
        self._settled_once = self._settled_once or done
        if not done:
            waiting = ", ".join(seat.instance_id for seat in view.seats if not self._is_at_rest(seat))
            troubles = [
                f"Seat {seat.instance_id} is not connected: {seat.trouble}" for seat in view.seats if seat.trouble
            ]
            why = (
                troubles[0]
                if troubles
                else "Another member may be holding the rebalance up (a Java consumer rejoins only when it polls)."
            )
            told = (
                f"Group {self._options.group_id!r} did not come to rest within {SETTLE_TIMEOUT_MS // 1000} s; still "
                f"waiting for: {waiting}. {why}"
            )
            self._put_off(told)
        return view

    def _is_at_rest(self, seat: SeatView) -> bool:
        return seat.settled and seat.identity.generation != self._outlived

    def _rests(self, view: GroupView) -> bool:
        """Whether all seats are settled, in a generation without those that were made to leave."""
        return view.settled and all(map(self._is_at_rest, view.seats))

    def _moved_on_from(self, seen: GroupView) -> Callable[[GroupView], bool]:
        """Whether the group is at rest, or asks for something, in another state than `seen`."""
        return lambda view: view != seen and (self._rests(view) or _asks(view))

    def _without_old_seats(self, start: Checkpoint, view: GroupView) -> bool:
        """Whether the group is at rest without seats of an earlier run with more `members`, which are made to leave.

        Nobody serves them (KIP-345, scale down): their partitions would wait for the session timeout, and so would
        every rebalance. What is durable of their partitions is committed BEFORE they leave, by a seat that we serve.

        A group that rebalances waits for them, and so do our seats: then they leave as soon as this was tried once. The
        coordinator still takes commits in PreparingRebalance (ClassicGroup.validateOffsetCommit), so: 1. the group is
        stable when we start, and nobody claims what old seats had; 2. our seats rejoin into the generation there is;
        3. another member makes the group rebalance; 4. we commit in the old generation. Seats that came back when the
        rebalance had begun have no generation to commit in: they claim what old seats had (`runtime.group.inherited`),
        so that it is committed before it gets another owner.
        """
        if self._settled_once:
            return self._rests(view)
        group = self._runtime.describe()
        old = [member for member in self._strangers(group, view) if self._is_old_seat(member)]
        if not old:
            return self._rests(view)
        if group.tells_owners:
            if not view.settled or self._commit_remembered(start, _by(view.seats[0], _held_by(old, group, start))):
                return False  # soon we can
        else:
            self._commit_for(start, view, old)
        log.info("seats of an earlier run leave: %s", ", ".join(str(member.instance_id) for member in old))
        refused = self._runtime.remove_members(old, "the query was started again with fewer members")
        if view.settled and len(refused) < len(old):
            self._outlived = view.seats[0].identity.generation
        self._not_let_go |= refused.keys()
        if refused:
            errors = ", ".join(f"{name}: {ErrorCode.name_of(code)}" for name, code in sorted(refused.items()))
            self._put_off(
                f"The coordinator does not let seats of an earlier run with more `members` leave ({errors}): they hold "
                "partitions until their session times out (kafka.session.timeout.ms)."
            )
        return False

    def _commit_for(self, start: Checkpoint, view: GroupView, old: Collection[DescribedMember]) -> None:
        """Tell a group that rebalances how far we had read for seats that leave; it describes nobody's partitions."""
        seat = next((seat for seat in view.seats if seat.identity.generation != NO_GENERATION), None)
        if seat is not None:
            self._commit_remembered(start, _by(seat, _remembered_of(old, start)))

    def _put_off(self, told: str) -> None:
        """No next offset at this trigger; AvailableNow has no other one, and would end as if all was read."""
        if self.logs.bounded:
            raise GroupUnsettled(told)
        log.warning("%s Trying again at the next trigger.", told)

    # ------------------------------------------------------------------------------------------ 3. adopt

    def _adopt_what_arrived(self, start: Checkpoint, view: GroupView) -> GroupView | None:
        """Adopt what arrived; the view in which it is ours, None if the group does not acknowledge where it starts.

        Then there is no batch at all: another start of what was not adopted could count at the next trigger.
        """
        deadline_ms = monotonic_ms() + SETTLE_TIMEOUT_MS
        while unheard := self._adopt(start, view):
            told = self._not_acknowledged("where to start with", unheard)
            if not self.logs.bounded:
                self._bear(f"{told} There is no batch before that.")
                return None
            if monotonic_ms() > deadline_ms:
                self._put_off(told)
            view = self._hand_over(start, self._runtime.wait_until(_changed_from(view), HANDOVER_WAIT_MS))
        return view

    def _adopt(self, start: Checkpoint, view: GroupView) -> frozenset[TopicPartition]:
        """Adopt what arrived, but for what it returns: the group did not acknowledge where that is to start.

        Nothing may rely on such a start yet: 1. `startingOffsets` says 0, the group stands at 80, where another member
        left it; 2. a first batch 0..30 is planned; 3. the driver dies; 4. on return the further of 30 and 80 counts:
        30..80 would be skipped.
        """
        positions = {tp: self._ledger.position(tp, start) for tp in self._ledger.holdings}
        self._ledger.forget(self.logs.lacking(positions))  # to be adopted anew, where the log goes on
        topics = self.logs.topics
        arrived = {
            tp: seat
            for tp, seat in holders_of(view).items()
            if tp not in self._ledger.holdings
            and tp not in seat.to_give_up
            and tp.topic in topics
            and tp.partition < topics[tp.topic].partition_count
        }
        if not arrived:
            return frozenset()
        committed = self._committed(arrived)
        explicit = start.fresh and self._starts_where_told(view)
        if explicit:
            self._options.starting_offsets.check(tp for topic in topics.values() for tp in topic.partitions)
        starts = {
            tp: adopted_start(
                tp,
                checkpoint=start,
                topic=topics[tp.topic],
                committed=committed.get(tp),
                explicit=explicit,
            )
            for tp in arrived
        }
        self._tell_of_the_end([tp for tp, s in starts.items() if s.offset is Place.STARTING])
        wanted = self._resolve({tp: s.offset for tp, s in starts.items()})
        offsets = self._within_logs(starts, wanted)
        self._warn_of_odd_commits(start, starts, offsets, committed)
        # After a truncation the group's offset goes back, too. Else 1. the log is cut from 100 to 60 and grows to 120;
        # 2. we are at 80, the group at 100; 3. an owner that starts at the further of both skips 80..100.
        to_tell = {tp for tp, s in starts.items() if s.commit_first or offsets[tp] < wanted[tp]}
        for tp, seat in arrived.items():
            tenure = seat.tenures[tp]
            period = period_of(
                tp,
                offsets[tp],
                checkpoint=start,
                topic=topics[tp.topic],
                seat=seat.instance_id,
                tenure=tenure,
            )
            known = committed[tp].offset if tp in committed and tp not in to_tell else None
            self._ledger.adopt(tp, Holding(period=period, tenure=tenure, committed=known))
        log.info("adopted %s", {str(tp): offsets[tp] for tp in sorted(arrived)})
        return self._tell({tp: arrived[tp] for tp in to_tell}, offsets)

    def _committed(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, Committed]:
        found = self._runtime.committed(partitions)
        return {
            tp: Committed(there.offset, Writer.of(there.metadata, self._us))
            for tp, there in found.items()
            if there is not None
        }

    def _warn_of_odd_commits(
        self,
        start: Checkpoint,
        starts: Mapping[TopicPartition, Start],
        offsets: Mapping[TopicPartition, int],
        committed: Mapping[TopicPartition, Committed],
    ) -> None:
        """Say, once, where the group's offset plays no part, though somebody may have meant it to."""
        now = {tp: (offsets[tp], there) for tp, there in committed.items() if offsets[tp] != there.offset}
        apart = [tp for tp in sorted(now) if self._odd.get(tp) != now[tp]]
        self._odd |= now
        back = [tp for tp in apart if starts[tp].set_back and offsets[tp] < committed[tp].offset]
        if back:
            log.warning(
                "This query (instanceIdPrefix=%s) has itself committed further to group %r than its checkpoint stands "
                "(%s): the checkpoint was set back, or another one was in use. What lies between is read again, since "
                "the checkpoint decides what a batch is. To skip it, move the group's offsets (kafka-consumer-groups "
                "--reset-offsets) while the query is stopped.",
                self._us.app,
                self._options.group_id,
                _apart(back, offsets, committed),
            )
        behind = [
            tp
            for tp in apart
            if tp in start.owned and committed[tp].writer is Writer.UNKNOWN and committed[tp].offset < offsets[tp]
        ]
        if behind:
            log.warning(
                "Group %r has offsets behind the checkpoint of this query, which it did not commit (%s): they are "
                "ignored, since the checkpoint decides what a batch is. If they were moved back to read again, start "
                "the query with a new checkpointLocation and startingOffsets=committed.",
                self._options.group_id,
                _apart(behind, offsets, committed),
            )
        outrun = [tp for tp in sorted(committed) if start.fresh and committed[tp].writer is Writer.SUCCESSOR]
        if outrun and not self._options.starting_offsets.committed:
            log.warning(
                "startingOffsets=%s is ignored for %s: this very query (instanceIdPrefix=%s) was started again "
                "meanwhile, and has committed since.",
                self._options.starting_offsets,
                ", ".join(map(str, outrun)),
                self._us.app,
            )

    def _within_logs(
        self, starts: Mapping[TopicPartition, Start], offsets: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, int]:
        """`offsets`, or where the logs go on that do not have them: what lies between is lost."""
        given = [tp for tp, start in starts.items() if self._told(tp, start.offset) not in (Place.EARLIEST, EARLIEST)]
        logs = self.logs.now(given)
        nearest = {tp: logs[tp].nearest(offsets[tp]) for tp in given}
        self.logs.lose(
            [out_of_log(tp, offsets[tp], None, logs[tp]) for tp in sorted(given) if nearest[tp] != offsets[tp]]
        )
        return {**offsets, **nearest}

    def _tell(
        self, seats: Mapping[TopicPartition, SeatView], offsets: Mapping[TopicPartition, int]
    ) -> frozenset[TopicPartition]:
        """Commit starts that the group does not have; what it does not acknowledge is not adopted yet, and returned."""
        by_seat: dict[str, tuple[SeatView, dict[TopicPartition, int]]] = {}
        for tp, seat in seats.items():
            by_seat.setdefault(seat.instance_id, (seat, {}))[1][tp] = offsets[tp]
        unheard = frozenset(seats.keys() - self._commit(by_seat))
        self._ledger.forget(unheard)
        return unheard

    def _tell_of_the_end(self, partitions: Sequence[TopicPartition]) -> None:
        """Say that a group without offsets starts at the end: a new user sees no rows, and wonders."""
        starting = self._options.starting_offsets
        if partitions and starting.committed and starting.everywhere == LATEST:
            log.warning(
                "Group %r has no committed offsets for %s: reading starts at the end, without what is in there. "
                "To read that too, set startingOffsets=earliest and start with a new checkpointLocation.",
                self._options.group_id,
                listed(sorted(partitions)),
            )

    def _starts_where_told(self, view: GroupView) -> bool:
        """Whether an explicit `startingOffsets` wins over committed offsets: not if others work in the group."""
        if self._options.starting_offsets.committed:
            return False
        strangers = self._strangers(self._runtime.describe(), view)
        others = sorted(m.instance_id or m.member_id for m in strangers if not self._is_old_seat(m))
        if others:
            log.warning(
                "startingOffsets=%s is ignored: group %r has members of other applications (%s), so their committed "
                "offsets count.",
                self._options.starting_offsets,
                self._options.group_id,
                ", ".join(others),
            )
        return not others

    def _strangers(self, group: DescribedGroup, view: GroupView) -> list[DescribedMember]:
        ours = {seat.instance_id for seat in view.seats} | self._not_let_go
        return [member for member in group.members if member.instance_id not in ours]

    def _is_old_seat(self, stranger: DescribedMember) -> bool:
        """Whether this is a seat of an earlier run of this query with more `members`: by its name, and its client's."""
        prefix, _, number = (stranger.instance_id or "").rpartition("-")
        named = prefix == self._options.instance_id_prefix and number.isdecimal()
        return named and stranger.client_id == self._options.client_id

    def _resolve(self, offsets: Mapping[TopicPartition, int | Place]) -> dict[TopicPartition, int]:
        """Look up what is not a number yet."""
        told = {tp: self._told(tp, place) for tp, place in offsets.items()}
        earliest = [tp for tp, place in told.items() if place in (Place.EARLIEST, EARLIEST)]
        latest = [tp for tp, place in told.items() if place == LATEST]
        found = {tp: place for tp, place in told.items() if isinstance(place, int) and place >= 0}
        self._check_told({tp: place for tp, place in found.items() if offsets[tp] is Place.STARTING})
        found |= self._runtime.start_offsets(earliest)
        found |= self._runtime.end_offsets(latest, read_committed=self._options.read_committed)
        return found

    def _told(self, partition: TopicPartition, place: int | Place) -> int | Place:
        return self._options.starting_offsets.offset_of(partition) if place is Place.STARTING else place

    def _check_told(self, told: Mapping[TopicPartition, int]) -> None:
        ends = self._runtime.end_offsets(told, read_committed=False)
        beyond = [f"{tp}: {told[tp]} (ends at {ends[tp]})" for tp in sorted(told) if told[tp] > ends[tp]]
        if beyond:
            raise OptionError(
                f"Option startingOffsets lies beyond the end of {listed(beyond)}: give an offset that exists, or "
                f"{LATEST} for latest."
            )

    # ---------------------------------------------------------------------------------------- orphans

    def _look_for_orphans(self, start: Checkpoint, view: GroupView) -> GroupView:
        """After a static rejoin: does the group's assignment still fit what the seats subscribe to?

        1. a sync revokes P from a seat; 2. the seat dies before it rejoins; 3. its static rejoin is answered with the
        group's old assignment, without P; 4. nobody knows. The same look finds partitions that were added while the
        leader was away, which KIP-814 leaves open. What a member claims is no orphan, even if the group withholds it
        from everybody: in a cooperative rebalance it is being read until that member comes to its boundary.

        Nor does a static rejoin with another subscription make the group rebalance: a seat may still have partitions of
        a topic that left `subscribe`, which nobody reads, and no share of one that came.
        """
        due = view.rejoins != self._checked_rejoins and view.settled
        if not due or monotonic_ms() - self._orphans_checked_at_ms < ORPHAN_CHECK_INTERVAL_MS:
            return view
        self._orphans_checked_at_ms = monotonic_ms()
        group = self._runtime.describe()
        if group.is_consumer_type:  # its coordinator itself sees to new partitions, and leaves none to nobody
            self._checked_rejoins = view.rejoins
            return view
        if group.state != "Stable":
            return view  # still due at the next boundary
        topics = self._runtime.topics(0)
        orphans = {tp for topic in topics.values() for tp in topic.partitions}
        orphans -= {tp for member in group.members for tp in member.assignment | member.claimed}
        seats = {seat.instance_id for seat in view.seats}
        ours = {tp for member in group.members if member.instance_id in seats for tp in member.assignment}
        unread = {tp for tp in ours if tp.topic not in self._options.topics}
        unshared = start.subscribed_anew(topics) - {tp.topic for tp in ours}
        reasons = {"without an owner": orphans, "of topics that left `subscribe`": unread}
        reason = "; ".join(f"{len(tps)} partitions {what}" for what, tps in reasons.items() if tps)
        reason = reason or (f"subscribed anew: {', '.join(sorted(unshared))}" if unshared else "")
        if not reason:
            self._runtime.all_owned(topics)
            self._checked_rejoins = view.rejoins
            return view
        log.warning("the group rebalances after a rejoin: %s", reason)
        if self._commit_remembered(start, _by(view.seats[0], orphans)):
            return view  # still due
        self._checked_rejoins = view.rejoins
        self._runtime.force_rebalance(reason)
        generation = view.seats[0].identity.generation
        moved = self._runtime.wait_until(
            lambda v: v.settled and v.seats[0].identity.generation != generation, HANDOVER_WAIT_MS
        )
        return self._hand_over(start, moved)

    # ----------------------------------------------------------------------------- 4. end offsets, 5. limits

    def _positions(self, start: Checkpoint, limit: int | None) -> dict[TopicPartition, int]:
        ends = self.logs.ends(self._ledger.holdings.keys())
        exposed = self._ledger.exposed(start)
        available = {}
        for tp in self._ledger.holdings:
            position = self._ledger.position(tp, start)
            available[tp] = (position, position if tp in exposed else max(position, ends.get(tp, position)))
        positions = limited(available, limit, self._last_in_turn)
        moved = [tp for tp, position in positions.items() if position > available[tp][0]]
        if limit is not None and moved:
            self._last_in_turn = in_turn(moved, self._last_in_turn)[-1]
        return positions


def _by(seat: SeatView, partitions: Collection[TopicPartition]) -> BySeat:
    return {seat.instance_id: (seat, frozenset(partitions))}


def _remembered_of(members: Collection[DescribedMember], start: Checkpoint) -> set[TopicPartition]:
    """What the checkpoint says that these seats owned."""
    names = {member.instance_id for member in members}
    return {tp for tp, owned in start.owned.items() if owned.period.seat in names}


def _held_by(members: Collection[DescribedMember], group: DescribedGroup, start: Checkpoint) -> set[TopicPartition]:
    """What these seats may be holding. A group of type consumer does not tell what it has asked back from a member."""
    held = {tp for member in members for tp in member.assignment | member.claimed}
    if group.is_consumer_type:
        held |= _remembered_of(members, start) - {tp for member in group.members for tp in member.assignment}
    return held


def _after(given_up: Tenures) -> Callable[[GroupView], bool]:
    """Whether the seats have taken `given_up` and the group is at rest, or asks again.

    Giving up is a message to the seat: a view taken before it arrives still shows what is gone, and would be answered
    twice. The second answer could meet a partition that was assigned again meanwhile.
    """

    def taken(view: GroupView) -> bool:
        held: Tenures = {(seat.instance_id, tp): None for seat in view.seats for tp in seat.to_give_up}
        held |= {(seat.instance_id, tp): who for seat in view.seats for tp, who in seat.tenures.items()}
        # What was an earlier process's and is ours now may have become so before our word arrives.
        left = all(key not in held or who not in (None, held[key]) for key, who in given_up.items())
        return left and (view.settled or _asks(view))

    return taken


def _apart(
    partitions: Sequence[TopicPartition],
    offsets: Mapping[TopicPartition, int],
    committed: Mapping[TopicPartition, Committed],
) -> str:
    """Of each partition, what the group has and where this query goes on."""
    return listed([f"{tp}: group {committed[tp].offset}, checkpoint {offsets[tp]}" for tp in partitions])


def _changed_from(seen: GroupView) -> Callable[[GroupView], bool]:
    """Whether anything is otherwise than in `seen`."""
    return lambda view: view != seen


def _asks(view: GroupView) -> bool:
    """Whether the group asks a seat to give something up."""
    return any(seat.to_give_up for seat in view.seats)
