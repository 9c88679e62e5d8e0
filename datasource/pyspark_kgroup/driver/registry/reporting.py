"""A query's reports: the executors of its seats, beside its commits, and the ends of its logs, in its progress.

Runs on: driver.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from pyspark_kgroup.driver.registry.seat_bindings import Home
from pyspark_kgroup.offsets.checkpoint import Checkpoint
from spark_kgroup.clock import monotonic_ms
from spark_kgroup.model import TopicPartition
from spark_kgroup.seat_note import Author, SeatNote


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """Bindings and reads that a registry has counted since it started.

    Attributes:
        guest_bindings: tickets bound to a seat that has its home elsewhere.
        warm_reads: reads that a seat's own server has served to a worker beside it.
        network_reads: reads that it has served to a worker of another executor.
        direct_reads: reads that workers did directly, as far as they could tell us.
        rows: rows of all of them.
        rows_ready: rows that a seat's server had there already when it was asked.
    """

    guest_bindings: int = 0
    warm_reads: int = 0
    network_reads: int = 0
    direct_reads: int = 0
    rows: int = 0
    rows_ready: int = 0

    def __add__(self, other: Counts) -> Counts:
        return Counts(**{one.name: getattr(self, one.name) + getattr(other, one.name) for one in fields(self)})


def commit_metadata(author: Author, member: str, topic_id: str, home: Home | None) -> str:
    """The text that is written beside the offsets that a seat commits (`kgroup describe` shows it).

    Args:
        author: this run of this application.
        member: its member id.
        topic_id: of the offsets' topic, as text, or "" where it has none.
        home: the seat's home, or None if it has none now.
    """
    at_ms = time.time_ns() // 1_000_000
    if home is None:
        return SeatNote(member=member, author=author, at_ms=at_ms, topic_id=topic_id).encode()
    return SeatNote(
        member=member,
        author=author,
        at_ms=at_ms,
        executor=home.executor.executor_id,
        host=home.executor.host,
        warm=home.warm,
        since_ms=_wall_ms(home.since_ms),
        topic_id=topic_id,
    ).encode()


def latest_offset(
    end: Checkpoint,
    log_ends: Mapping[TopicPartition, int],
    members: Mapping[str, str],
    homes: Mapping[str, Home],
    counts: Counts,
    *,
    ended: bool | None = None,
) -> dict[str, Any]:
    """The `latestOffset` in a query's progress, as Spark shows it: `end` with the ends of the logs for positions.

    `seats` says in addition who serves each seat: {seat: {member, executor, host, warm, since (wall clock, ms)}}.
    `reads` are totals since the query was started: reads by the seat's own server on the same executor (`at_home`) and
    from another one (`network`), directly by a worker on another executor (`guest`), directly for want of a server or
    as a later piece of a share (`alone`). `rows` are the rows of all these reads, and `ready` those that a server had
    there when it was asked.
    A stream with an end says whether it has come to it (`ended`).

    Args:
        end: the offset that the boundary came to.
        log_ends: one past the last offset of each partition, as last listed. Without one, the position stands.
        members: instance id -> member id.
        homes: instance id -> the seat's home.
        counts: the registry's.
        ended: whether all is read up to the stops, or None for a stream without an end.
    """
    owned = {
        tp: replace(held, position=max(held.position, log_ends.get(tp, held.position)))
        for tp, held in end.owned.items()
    }
    seats = {
        seat: {
            "member": members.get(seat),
            "executor": home.executor.executor_id,
            "host": home.executor.host,
            "warm": home.warm,
            "since": _wall_ms(home.since_ms),
        }
        for seat, home in sorted(homes.items())
    }
    guest = max(0, counts.guest_bindings - counts.network_reads)
    reads = {
        "at_home": counts.warm_reads,
        "network": counts.network_reads,
        "guest": guest,
        "alone": max(0, counts.direct_reads - guest),
        "rows": counts.rows,
        "ready": counts.rows_ready,
    }
    shown = {**replace(end, owned=owned).to_json(), "seats": seats, "reads": reads}
    return shown if ended is None else {**shown, "ended": ended}


def _wall_ms(at_ms: int) -> int:
    """A monotonic instant on the wall clock, to the second: the two clocks drift apart."""
    return (time.time_ns() // 1_000_000 - (monotonic_ms() - at_ms)) // 1_000 * 1_000
