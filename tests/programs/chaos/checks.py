"""Checks of the product's own books (checkpoints and logs), as pure functions: evidence in, violations out.

They are about the checkpoint's ranges, and about how often seats join. `CHECKS` is the list of all. Promises about
records themselves are judged by `history`, which does not know checkpoints and seats.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Final

from history.promises import Violation

from chaos.evidence import ApplicationEvidence, Batch, Evidence, Span
from spark_kgroup.model import TopicPartition

Place = tuple[TopicPartition, int]
"""One record's (partition, offset)."""


JOINS_A_MINUTE_MAX: Final = 60
"""Joins of one seat within a minute: one a second, which is how often heartbeats come in a run (so often a group of
type consumer asks a member to join that still has partitions to give up). A storm had 650 a second."""


def a_batch_delivers_what_was_planned(evidence: Evidence) -> Iterator[Violation]:
    """Exactly the committed records between two offsets of the checkpoint are delivered.

    Topics that were recreated are left out: the same offsets are other records there.
    """
    for application in evidence.applications:
        rows = {
            (row.partition, row.offset)
            for row in application.rows
            if row.partition.topic not in evidence.recreated_topics
        }
        planned: set[Place] = set()
        for batch in application.batches:
            expected = {place for span in _spans(evidence, batch) for place in _records(evidence, span)}
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
            for span in _spans(evidence, batch):
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


def joins_are_bounded(evidence: Evidence) -> Iterator[Violation]:
    """A seat joins when the group asks it to, and backs off when a join made no change."""
    for application in evidence.applications:
        for seat, joins in sorted(application.joins_by_seat().items()):
            begin_s, most = busiest_minute(joins)
            if most > JOINS_A_MINUTE_MAX:
                yield Violation(f"{application.name}, {seat}", f"{most} joins in the minute from {begin_s:.0f} on")


CHECKS: Sequence[Callable[[Evidence], Iterator[Violation]]] = (
    a_batch_delivers_what_was_planned,
    ranges_do_not_overlap,
    ranges_are_contiguous_within_a_period,
    joins_are_bounded,
)


def verdict(evidence: Evidence) -> dict[str, list[Violation]]:
    """Name of each check -> its violations."""
    return {check.__name__.replace("_", " "): list(check(evidence)) for check in CHECKS}


def busiest_minute(wall_at_s: Sequence[float]) -> tuple[float, int]:
    """(when the minute with the most of these moments begins, how many there are in it), or (0, 0) without any."""
    moments = sorted(wall_at_s)
    counted = [(bisect_left(moments, begin_s + 60) - index, begin_s) for index, begin_s in enumerate(moments)]
    most, begin_s = max(counted, key=lambda found: found[0], default=(0, 0.0))
    return begin_s, most


def spans(places: Iterable[Place]) -> list[Span]:
    """Neighbouring offsets as one span each. A gap of one is bridged, since a transaction's marker takes an offset."""
    found: list[Span] = []
    for tp, offset in sorted(places):
        if found and found[-1].partition == tp and offset <= found[-1].end + 1:
            found[-1] = Span(tp, found[-1].first, offset + 1)
        else:
            found.append(Span(tp, offset, offset + 1))
    return found


def _spans(evidence: Evidence, batch: Batch) -> Iterator[Span]:
    return (span for span in batch.spans if span.partition.topic not in evidence.recreated_topics)


def _records(evidence: Evidence, span: Span) -> Iterator[Place]:
    records = evidence.topics.get(span.partition, {})
    return ((span.partition, offset) for offset in range(span.first, span.end) if offset in records)


def _at(reader: ApplicationEvidence, span: Span) -> str:
    return f"{reader.name}, {span.partition}"


def _range(span: Span) -> str:
    return f"{span.first}..{span.end - 1}"
