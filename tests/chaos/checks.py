"""What is promised, as pure functions: evidence in, violations out.

Each check stands for one sentence of docs/explain/promises.md; `CHECKS` is the list of all.
"""

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Final, NamedTuple

from chaos.evidence import ApplicationEvidence, Commit, Evidence, PeerEvidence, Span
from spark_kgroup.model import TopicPartition

Place = tuple[TopicPartition, int]
"""One record's (partition, offset)."""


JOINS_A_MINUTE_MAX: Final = 60
"""Joins of one seat within a minute: one a second, which is how often heartbeats come in a run (so often a group of
type consumer asks a member to join that still has something to give up). A storm had 650 a second."""


class Violation(NamedTuple):
    """One promise that was not kept.

    Attributes:
        where: reader and partition, as far as they play a part.
        what: offsets and numbers: enough to find it in the logs.
    """

    where: str
    what: str


def committed_records_are_all_there(evidence: Evidence) -> Iterator[Violation]:
    """The world itself: what a producer was told to be committed is in the log, and nothing that it aborted."""
    found = {value for records in evidence.topics.values() for value in records.values()}
    missing = evidence.promised - found
    if missing:
        yield Violation("producers", f"{len(missing)} acknowledged values are not in the log, {min(missing)!r} first")
    visible = evidence.forbidden & found
    if visible:
        yield Violation("producers", f"{len(visible)} aborted values are visible, {min(visible)!r} first")


def no_aborted_record(evidence: Evidence) -> Iterator[Violation]:
    """Whatever is delivered is a committed record of the topic, with its value."""
    for reader in evidence.readers:
        foreign = [
            (row.partition, row.offset)
            for row in reader.rows
            if evidence.topics.get(row.partition, {}).get(row.offset) != row.value
        ]
        aborted = sum(row.value in evidence.forbidden for row in reader.rows)
        for span in spans(foreign):
            yield Violation(
                _at(reader, span), f"offsets {_range(span)} are no committed records ({aborted} aborted in all)"
            )


def at_most_once_within_an_application(evidence: Evidence) -> Iterator[Violation]:
    """Within one application no record is delivered twice."""
    for application in evidence.applications:
        counts = Counter((row.partition, row.offset) for row in application.rows)
        for span in spans(place for place, count in counts.items() if count > 1):
            yield Violation(_at(application, span), f"offsets {_range(span)} were delivered more than once")


def a_batch_delivers_what_was_planned(evidence: Evidence) -> Iterator[Violation]:
    """Every committed record between two offsets of the checkpoint is delivered; nothing else is."""
    for application in evidence.applications:
        rows = {(row.partition, row.offset) for row in application.rows}
        planned: set[Place] = set()
        for batch in application.batches:
            expected = {place for span in batch.spans for place in _records(evidence, span)}
            planned |= expected
            missing = expected - rows
            if missing and (batch.done or missing != expected):  # the last one may not have begun
                for span in spans(missing):
                    yield Violation(_at(application, span), f"batch {batch.number} lacks offsets {_range(span)}")
        for span in spans(rows - planned):
            yield Violation(_at(application, span), f"offsets {_range(span)} are in no batch")


def ranges_do_not_overlap(evidence: Evidence) -> Iterator[Violation]:
    """Within one application no offset is in the range of two batches."""
    for application in evidence.applications:
        read: dict[TopicPartition, list[tuple[Span, int]]] = defaultdict(list)
        for batch in application.batches:
            for span in batch.spans:
                read[span.partition].append((span, batch.number))
        for ranges in read.values():
            for (span, number), (after, number_after) in pairwise(sorted(ranges)):
                if after.first < span.end:
                    yield Violation(
                        _at(application, span),
                        f"batch {number} reads {_range(span)}, batch {number_after} reads {_range(after)}",
                    )


def ranges_are_contiguous_within_a_period(evidence: Evidence) -> Iterator[Violation]:
    """A period is one unbroken row of batches, and its ranges are one unbroken range from its beginning."""
    for application in evidence.applications:
        over: set[tuple[TopicPartition, object]] = set()
        for batch in application.batches:
            for tp, owned in batch.end.owned.items():
                before = batch.start.owned.get(tp)
                goes_on = before is not None and before.period == owned.period
                where = f"{application.name}, {tp}, batch {batch.number}"
                if not goes_on and (tp, owned.period) in over:
                    yield Violation(where, f"the period that began at {owned.period.start} came back")
            over |= {
                (tp, owned.period)
                for tp, owned in batch.start.owned.items()
                if tp not in batch.end.owned or batch.end.owned[tp].period != owned.period
            }
        for last, this in pairwise(application.batches):
            if this.number != last.number + 1 or this.start != last.end:
                yield Violation(application.name, f"batch {this.number} does not start where {last.number} ended")


def no_gap(evidence: Evidence) -> Iterator[Violation]:
    """Across applications every committed record is read by somebody."""
    read = {(row.partition, row.offset) for reader in evidence.readers for row in reader.rows}
    missing = [
        (tp, offset) for tp, records in evidence.topics.items() for offset in records if (tp, offset) not in read
    ]
    for span in spans(missing):
        yield Violation(str(span.partition), f"nobody read offsets {_range(span)}")


def duplicates_only_after_a_loss(evidence: Evidence) -> Iterator[Violation]:
    """Two applications read one record only if it is in the last batch of one that lost it before the group knew.

    Each reader but one must have lost what it read: of two that both kept it, one was not the owner.
    """
    readings: dict[Place, list[tuple[str, bool]]] = defaultdict(list)
    for reader in evidence.readers:
        exposed = _exposed(reader, evidence.commits)
        for row in set(reader.rows):
            lost = any(span.first <= row.offset < span.end for span in exposed.get(row.partition, ()))
            readings[row.partition, row.offset].append((reader.name, lost))
    guilty: dict[str, list[Place]] = defaultdict(list)
    for place, by in readings.items():
        if sum(not lost for _, lost in by) > 1:
            guilty[" and ".join(name + (" (lost it)" if lost else "") for name, lost in sorted(by))].append(place)
    for names, places in guilty.items():
        for span in spans(places):
            yield Violation(f"{names}, {span.partition}", f"both read offsets {_range(span)}, and kept them")


def _exposed(
    reader: ApplicationEvidence | PeerEvidence, commits: Sequence[Commit]
) -> Mapping[TopicPartition, Sequence[Span]]:
    spans_exposed = reader.exposed(commits) if isinstance(reader, ApplicationEvidence) else reader.exposed
    by_partition: dict[TopicPartition, list[Span]] = defaultdict(list)
    for span in spans_exposed:
        by_partition[span.partition].append(span)
    return by_partition


def commits_never_fall(evidence: Evidence) -> Iterator[Violation]:
    """The group's committed offset of a partition only rises."""
    reached: dict[TopicPartition, int] = {}
    for tp, offset, _ in evidence.commits:
        if offset < reached.get(tp, 0):
            yield Violation(str(tp), f"committed {reached[tp]}, then {offset}")
        reached[tp] = max(offset, reached.get(tp, 0))


def lag_is_zero(evidence: Evidence) -> Iterator[Violation]:
    """In the end the group's last commit of every partition is its log end."""
    last = {tp: offset for tp, offset, _ in evidence.commits}
    for tp, end in sorted(evidence.log_ends.items()):
        if last.get(tp) != end:
            yield Violation(str(tp), f"committed {last.get(tp)}, log end {end}")


def joins_are_bounded(evidence: Evidence) -> Iterator[Violation]:
    """A seat joins when the group asks it to, and backs off when a join changed nothing."""
    for application in evidence.applications:
        for seat, joins in sorted(application.joins_by_seat().items()):
            begin_s, most = busiest_minute(joins)
            if most > JOINS_A_MINUTE_MAX:
                yield Violation(f"{application.name}, {seat}", f"{most} joins in the minute from {begin_s:.0f} on")


def queries_live(evidence: Evidence) -> Iterator[Violation]:
    """No query or consumer ends but by a fault that was aimed at it."""
    for reader in evidence.readers:
        for failure in reader.failures:
            yield Violation(reader.name, failure)


def no_process_is_left(evidence: Evidence) -> Iterator[Violation]:
    """After the end nothing runs."""
    for command in evidence.processes_left:
        yield Violation("machine", command)


CHECKS: Sequence[Callable[[Evidence], Iterator[Violation]]] = (
    committed_records_are_all_there,
    no_aborted_record,
    at_most_once_within_an_application,
    a_batch_delivers_what_was_planned,
    ranges_do_not_overlap,
    ranges_are_contiguous_within_a_period,
    no_gap,
    duplicates_only_after_a_loss,
    commits_never_fall,
    lag_is_zero,
    joins_are_bounded,
    queries_live,
    no_process_is_left,
)


def verdict(evidence: Evidence) -> dict[str, list[Violation]]:
    """Each promise, by the name of its check, with what broke it."""
    return {check.__name__.replace("_", " "): list(check(evidence)) for check in CHECKS}


def busiest_minute(wall_at_s: Sequence[float]) -> tuple[float, int]:
    """(when the minute with the most of these moments begins, how many there are in it); (0, 0) without any."""
    moments = sorted(wall_at_s)
    counted = [(bisect_left(moments, begin_s + 60) - index, begin_s) for index, begin_s in enumerate(moments)]
    most, begin_s = max(counted, key=lambda found: found[0], default=(0, 0.0))
    return begin_s, most


def spans(places: Iterable[Place]) -> list[Span]:
    """Neighbouring offsets as one span each; a gap of one is bridged, since a transaction's marker takes an offset."""
    found: list[Span] = []
    for tp, offset in sorted(places):
        if found and found[-1].partition == tp and offset <= found[-1].end + 1:
            found[-1] = Span(tp, found[-1].first, offset + 1)
        else:
            found.append(Span(tp, offset, offset + 1))
    return found


def _records(evidence: Evidence, span: Span) -> Iterator[Place]:
    records = evidence.topics.get(span.partition, {})
    return ((span.partition, offset) for offset in range(span.first, span.end) if offset in records)


def _at(reader: ApplicationEvidence | PeerEvidence, span: Span) -> str:
    return f"{reader.name}, {span.partition}"


def _range(span: Span) -> str:
    return f"{span.first}..{span.end - 1}"
