"""The evidence that a run leaves behind, as plain values. It is the only input of the checks."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from history.facts import Lasting, Produced, Recreated, Warned

from pyspark_kgroup.offsets.checkpoint import Checkpoint, Period
from pyspark_kgroup.offsets.plan import ranges_by_seat
from spark_kgroup.model import TopicPartition

_NOTICE_S: Final = 5.0
"""How long a seat that was expelled may take to find out, on a busy machine: heartbeats come once a second."""


class Span(NamedTuple):
    """Offsets of one partition: `first` <= offset < `end`."""

    partition: TopicPartition
    first: int
    end: int


class Commit(NamedTuple):
    """One offset commit of the group, as its coordinator wrote it.

    Attributes:
        by_us: whether one of this source's seats made it, which writes a note beside its offsets.
    """

    partition: TopicPartition
    offset: int
    wall_at_s: float
    by_us: bool = True


class Delivered(NamedTuple):
    """One record as a reader handed it on.

    Attributes:
        batch: of a query, whose sink has the row.
        file: name of the sink's file that holds the row.
        wall_at_s: when it was handed on, or its sink showed it, or None if that is not known.
    """

    partition: TopicPartition
    offset: int
    value: bytes
    batch: int = 0
    file: str = ""
    wall_at_s: float | None = None


class Failure(NamedTuple):
    """A query or consumer ended although no fault was aimed at it."""

    words: str
    wall_at_s: float | None = None


class Join(NamedTuple):
    """A seat joined anew while its process ran."""

    seat: str
    wall_at_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """One micro-batch of one application, from its checkpoint.

    Attributes:
        wall_planned_at_s: when Spark wrote the offset log.
        done: whether it is in Spark's commit log.
    """

    number: int
    start: Checkpoint
    end: Checkpoint
    wall_planned_at_s: float
    done: bool = True

    @property
    def spans(self) -> list[Span]:
        """The ranges that this batch reads."""
        plan = ranges_by_seat(self.start, self.end)
        return [Span(tp, first, end) for ranges in plan.values() for tp, (first, end) in ranges.items()]


@dataclass(frozen=True, slots=True, kw_only=True)
class Expulsion:
    """A seat was out of the group: the coordinator removed it, or they had not heard of each other for a session.

    Attributes:
        wall_from_s: it happened not before this moment,
        wall_to_s: and not after this one.
        given_away: the seat stayed in the group, and the coordinator gave its partitions away: it converted the group,
            or made a new target in the moment in which a driver came back. So a batch that was under way may be read
            again though the seat committed it and handed over later.
    """

    seat: str
    wall_from_s: float
    wall_to_s: float
    given_away: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplicationEvidence:
    """One query, over all its lives on one checkpoint.

    Attributes:
        batches: by number, from 0, none missing.
        failures: how its query ended by itself although no fault was aimed at it.
        warnings: that it logged, in the order of time.
    """

    name: str
    batches: Sequence[Batch]
    rows: Sequence[Delivered]
    expulsions: Sequence[Expulsion] = ()
    failures: Sequence[Failure] = ()
    joins: Sequence[Join] = ()
    warnings: Sequence[Warned] = ()

    def joins_by_seat(self) -> Mapping[str, Sequence[float]]:
        """Seat -> when it joined (wall clock, in seconds)."""
        found: dict[str, list[float]] = defaultdict(list)
        for join in self.joins:
            found[join.seat].append(join.wall_at_s)
        return found

    def exposed(self, commits: Sequence[Commit], recreated: Sequence[Recreated] = ()) -> list[Span]:
        """Ranges that may be read again: the last one of each period that ended by lost membership.

        Offsets that were committed by then are left out, but for those of a topic's earlier life. A period that was
        handed over is no such period, even if the same seat was expelled at another time, unless the coordinator gave
        its partitions away.
        """
        found = []
        for period in _periods(self.batches):
            if (lost_at_s := self._wall_lost_at_s(period)) is not None and period.last_read is not None:
                tp, first, end = period.last_read
                # The moment of the loss is the earliest possible one, and may be before the topic's present life.
                life_known_at_s = max(lost_at_s, period.wall_shown_at_s)
                lives = (r.wall_at_s for r in recreated if r.topic == tp.topic and r.wall_at_s <= life_known_at_s)
                life_began_at_s = max(lives, default=0.0)
                known = max(
                    (c.offset for c in commits if c.partition == tp and life_began_at_s <= c.wall_at_s <= lost_at_s),
                    default=0,
                )
                if known < end:
                    found.append(Span(tp, max(first, known), end))
        return found

    def _wall_lost_at_s(self, period: "_OwnedPeriod") -> float | None:
        """When its seat was expelled, at the earliest, or None if it was not.

        A batch planned well after an expulsion shows that the period was not lost by that one.
        """
        moments = [
            e.wall_from_s
            for e in self.expulsions
            if e.seat == period.period.seat
            and (e.given_away or not period.handed_over)
            and max(period.wall_began_at_s, period.wall_planned_at_s - _NOTICE_S) <= e.wall_to_s
            and (period.wall_over_at_s is None or e.wall_from_s <= period.wall_over_at_s)
        ]
        return min(moments, default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerEvidence:
    """One plain consumer of the group, over all its lives.

    Attributes:
        exposed: ranges that it had read and could not commit when it lost its membership.
    """

    name: str
    rows: Sequence[Delivered]
    exposed: Sequence[Span] = ()
    failures: Sequence[Failure] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """All of one run.

    Attributes:
        topics: the records that a read_committed reader finds at the end.
        earlier: the records that it found in topics before they were deleted and made again, oldest first.
        recreated: when topics were made again.
        log_ends: partition -> log end offset.
        produced: every record that was sent, and its fate as its producer knows it.
        lasting: faults that were left on to the end.
        commits: the group's offset commits, in the coordinator's order.
        processes_left: command lines of processes that outlived the run.
    """

    topics: Mapping[TopicPartition, Mapping[int, bytes]]
    log_ends: Mapping[TopicPartition, int]
    produced: Sequence[Produced]
    applications: Sequence[ApplicationEvidence]
    peers: Sequence[PeerEvidence] = ()
    commits: Sequence[Commit] = ()
    processes_left: Sequence[str] = ()
    earlier: Sequence[Mapping[TopicPartition, Mapping[int, bytes]]] = ()
    recreated: Sequence[Recreated] = ()
    lasting: Sequence[Lasting] = ()

    @property
    def recreated_topics(self) -> frozenset[str]:
        return frozenset(recreated.topic for recreated in self.recreated)

    @property
    def readers(self) -> Sequence[ApplicationEvidence | PeerEvidence]:
        return (*self.applications, *self.peers)


@dataclass(slots=True, kw_only=True)
class _OwnedPeriod:
    """One ownership period as the batches show it.

    Attributes:
        wall_shown_at_s: when the first batch was planned that shows it.
        wall_planned_at_s: when the last batch was planned that reads of it. A batch that reads nothing of it carries
            the entry on, though the seat may have lost it.
    """

    period: Period
    wall_began_at_s: float
    wall_shown_at_s: float
    wall_planned_at_s: float = 0.0
    wall_over_at_s: float | None = None
    last_read: Span | None = None
    handed_over: bool = False


def _periods(batches: Sequence[Batch]) -> Iterator[_OwnedPeriod]:
    open_periods: dict[TopicPartition, _OwnedPeriod] = {}
    before: dict[TopicPartition, _OwnedPeriod] = {}
    wall_before_s = 0.0
    for batch in batches:
        for tp, period in list(open_periods.items()):
            owned = batch.end.owned.get(tp)
            if owned is None or owned.period != period.period:
                period.wall_over_at_s = batch.wall_planned_at_s
                # A topic that was created anew has no entry among the lost ones, whatever ended the period.
                there = batch.end.topics.get(tp.topic)
                same_topic = there is not None and there.topic_id == period.period.topic_id
                period.handed_over = same_topic and owned is None and tp not in batch.end.lost
                before[tp] = open_periods.pop(tp)
                yield before[tp]
        for tp, owned in batch.end.owned.items():
            if tp not in open_periods:
                # Adopted after the batch before was planned: an expulsion in between may end it already.
                open_periods[tp] = _OwnedPeriod(
                    period=owned.period,
                    wall_began_at_s=wall_before_s,
                    wall_shown_at_s=batch.wall_planned_at_s,
                    last_read=_unacknowledged(before.get(tp), owned.period),
                )
        for span in batch.spans:
            open_periods[span.partition].last_read = span
            open_periods[span.partition].wall_planned_at_s = batch.wall_planned_at_s
        wall_before_s = batch.wall_planned_at_s
    yield from open_periods.values()


def _unacknowledged(before: _OwnedPeriod | None, period: Period) -> Span | None:
    """The last range of the period before, if this one goes on at its end, as it does once that end is committed."""
    if before is None or before.handed_over or before.last_read is None:
        return None
    return before.last_read if before.last_read.end == period.start else None
