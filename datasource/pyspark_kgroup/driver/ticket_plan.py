"""The tickets of a batch: which ranges each seat reads, in how many pieces, and how tasks read them.

Runs on: driver, in the stream-reader process.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from pyspark_kgroup.driver.batch.leaders import find_leader, make_ranges
from pyspark_kgroup.driver.boundary.boundary import Boundary
from pyspark_kgroup.driver.registry.executors import Executors
from pyspark_kgroup.driver.registry.seat_bindings import Part, make_parts
from pyspark_kgroup.offsets.checkpoint import Checkpoint
from pyspark_kgroup.offsets.plan import Ranges, positions_by_seat, ranges_by_seat
from pyspark_kgroup.options.parser import SourceOptions
from pyspark_kgroup.shared.tickets import Mode, OffsetRange, Position, SeatRanges, TicketPayload
from spark_kgroup.model import TopicDescription, TopicPartition

if TYPE_CHECKING:
    from pyspark_kgroup.offsets.pieces import OffsetInterval


class SeatReads(NamedTuple):
    """What the seats read in one batch.

    Attributes:
        pieces: seat -> the ranges that it reads, by pieces.
        owned: seat -> where the next batch begins. Seats fetch ahead from there.
    """

    pieces: Mapping[str, Sequence[Sequence[OffsetRange]]]
    owned: Mapping[str, Sequence[Position]]


def seat_reads(boundary: Boundary, options: SourceOptions, start: Checkpoint, end: Checkpoint) -> SeatReads:
    """What the seats read between two offsets: these alone decide, on every replay."""
    topics = boundary.logs.topics
    plan = boundary.logs.readable(end, ranges_by_seat(start, end))
    read = {tp for ranges in plan.values() for tp in ranges}
    return SeatReads(
        pieces={
            seat: [make_ranges(piece, topics) for piece in pieces]
            for seat, pieces in _cut_pieces(plan, options).items()
        },
        owned={
            seat: [
                # The range of a partition that is read names its leader already.
                Position(*tp, offset, tag, None if tp in read else find_leader(topics, tp))
                for tp, offset, tag in positions
                if tp in read or not boundary.stops.is_reached(topics, tp, offset)  # else nothing to fetch ahead
            ]
            for seat, positions in positions_by_seat(end, topics).items()
        },
    )


def _cut_pieces(
    plan: Mapping[str, Ranges], options: SourceOptions
) -> Mapping[str, Sequence[Sequence[tuple[TopicPartition, tuple[int, int]]]]]:
    """The ranges that each seat reads, in one piece, or in as many as options say."""
    at_least, offsets_max = options.min_partitions, options.max_records_per_partition
    if at_least is None and offsets_max is None:
        return {seat: [tuple(sorted(ranges.items()))] for seat, ranges in plan.items()}
    from pyspark_kgroup.offsets.pieces import pieces_of_seats  # most queries divide no share

    return pieces_of_seats(plan, at_least, offsets_max)


def make_tickets(
    batch: str, reads: SeatReads, options: SourceOptions, executors: Executors, cluster: str
) -> list[TicketPayload]:
    """The tickets of a new scan of a batch: bound to a seat now, or when a task asks the registry.

    Args:
        batch: a digest of the batch's two offsets, by which batches are told apart.
        reads: what the seats read in it.
        options: of the query.
        executors: of the query.
        cluster: its id, or "" if brokers do not say it.
    """
    scan = executors.plan(batch, reads.pieces, reads.owned)
    settings = replace(options.read_settings(), cluster=cluster, may_read=True)
    access, sidecars = executors.access(), executors.sidecars()
    fixed = scan.mode is Mode.FIXED
    parts: Sequence[Part | None] = make_parts(scan.tickets) if fixed else [None] * len(scan.tickets)
    return [
        TicketPayload(
            scan_id=scan.scan_id,
            ticket=number,
            mode=scan.mode,
            reads=SeatRanges(seat=part.seat, ranges=tuple(reads.pieces[part.seat][part.piece])) if part else None,
            settings=settings,
            registry=access,
            sidecars=sidecars,
        )
        for number, part in enumerate(parts)
    ]


def make_tickets_without_seats(
    spans: Mapping[TopicPartition, OffsetInterval],
    topics: Mapping[str, TopicDescription],
    options: SourceOptions,
    cluster: str,
) -> list[TicketPayload]:
    """Tickets of ranges that no seat owns: tasks read them directly, without asking the registry.

    Args:
        spans: the offsets to read of each partition.
        topics: those that exist, with their leaders.
        options: of the query.
        cluster: its id, or "" if brokers do not say it.
    """
    from pyspark_kgroup.offsets.pieces import pieces  # most queries have no such batch

    settings = replace(options.read_settings(), cluster=cluster)
    return [
        TicketPayload(
            scan_id=0,
            ticket=number,
            mode=Mode.FIXED,
            reads=SeatRanges(seat="", ranges=make_ranges(piece, topics)),
            settings=settings,
            registry=None,
        )
        for number, piece in enumerate(pieces(spans, options.min_partitions, options.max_records_per_partition))
    ]
