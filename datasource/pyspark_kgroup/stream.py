"""Spark's interface: one stream reader per query, in the driver's long-lived stream-reader process.

Runs on: both. `read` runs in the executors' workers, everything else on the driver.

Spark asks in this order: `latestOffset(start)`, then `partitions(start, end)`, then the tasks call `read`; `commit`
comes late, and not for the last batch of AvailableNow, so nothing relies on it: positions go to the group at the next
boundary, when `start` says that they are durable. After a restart with an unfinished batch, `partitions` comes first.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from pyspark_kgroup.admission import AdmissionControl, default_read_limit, offsets_max
from pyspark_kgroup.arrow import spark_schema
from pyspark_kgroup.boundary import Boundary
from pyspark_kgroup.brief_errors import brief_errors
from pyspark_kgroup.checkpoint import EMPTY, Checkpoint, Period
from pyspark_kgroup.checkpoint_origin import origin_warnings
from pyspark_kgroup.executor import TicketReads, read_ticket
from pyspark_kgroup.jvm import Jvm
from pyspark_kgroup.options import PassedOn, SourceOptions, parse
from pyspark_kgroup.plan import positions_by_seat, ranges_by_seat
from pyspark_kgroup.registry import Counts, Position, Registry
from pyspark_kgroup.reporting import commit_metadata, latest_offset
from pyspark_kgroup.seats import Lease, Mode, Scan
from pyspark_kgroup.security_options import driver_settings
from pyspark_kgroup.sizing import seats_warning, sized, stays_on_this_host
from pyspark_kgroup.worker import Range, SeatRanges
from spark_kgroup.errors import OptionError
from spark_kgroup.member.classic import Inheritance
from spark_kgroup.model import TopicPartition
from spark_kgroup.runtime.group import GroupSettings
from spark_kgroup.runtime.thread import GroupRuntime
from spark_kgroup.wire.cluster import parse_bootstrap
from spark_kgroup.wire.commit_metadata import Author
from spark_kgroup.wire.security import secured

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

log = logging.getLogger(__name__)


_LOOPBACK: Final = "127.0.0.1"
"""Where the registry of a query listens that stays on this host: no other one has to know that it is there."""


class Ticket(InputPartition):
    """One Spark input partition: what one seat reads in one micro-batch, and all that its task needs."""

    def __init__(self, reads: TicketReads) -> None:
        super().__init__(reads)
        self.reads = reads


class KgroupStreamReader(AdmissionControl, DataSourceStreamReader):
    """The stream reader of one query. Spark calls it from one thread.

    Constructing it has no side effects: Spark builds and pickles more readers than it runs. The group is joined by the
    first call that needs it.
    """

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self._given = PassedOn(options)
        self._schema = schema
        self._runtime: GroupRuntime | None = None
        self._boundary: Boundary | None = None
        self._registry: Registry | None = None
        self._planned_end: Mapping[str, Any] = EMPTY.to_json()
        self._freezing = self._bounded = False
        self._latest: Checkpoint | None = None
        self._read: list[tuple[Mapping[str, Any], Checkpoint]] = []
        self._run_ms = time.time_ns() // 1_000_000

    @cached_property
    def _options(self) -> SourceOptions:
        """The checked options; with a schema of the user's own, Spark has not asked for them before the first call."""
        options = parse(self._given)
        if self._schema != spark_schema(options.include_headers):
            raise OptionError(
                "kgroup has a schema of its own, like format('kafka'): remove .schema(...) from the query."
            )
        return options

    # --------------------------------------------------------------------------------------------- offsets

    def initialOffset(self) -> dict[str, Any]:
        """The empty offset: a constant, since Spark does not persist it and asks again on a replay."""
        return EMPTY.to_json()

    @brief_errors()
    def getDefaultReadLimit(self) -> Any:
        """`maxOffsetsPerTrigger` as Spark's read limit."""
        return default_read_limit(self._options.max_offsets_per_trigger)

    def prepareForTriggerAvailableNow(self) -> None:
        """Spark's AvailableNow: read no further than the end offsets of the first boundary."""
        self._freezing = True  # the first boundary is not here yet: the seats join when it is known what they had
        self._bounded = True

    @brief_errors()
    def latestOffset(self, start: Mapping[str, Any] | None = None, limit: Any = None) -> dict[str, Any]:
        """The boundary between two batches: `start` is durable; what comes back is the next batch's end.

        Args:
            start: the end of the last completed batch; None before PySpark 4.2.
            limit: Spark's read limit; None before PySpark 4.2.

        Raises:
            KgroupError: the cluster, the group or the checkpoint will not have it; the message says why.
        """
        # PySpark 4.0 and 4.1 do not say where the batch starts. It starts where the last planned one ended: a restart
        # begins with partitions(X, X), a replay goes on with partitions(W, X), and this call comes when X is durable.
        start = self._planned_end if start is None else start
        before = self._checkpoint(start)
        after = self._joined(before).advance(before, offsets_max(limit, self._options.max_offsets_per_trigger))
        self._latest = after
        if after == before:
            return dict(start)  # unchanged means unchanged to the byte: any difference makes Spark run a batch
        return replace(after, group=self._options.group_id).to_json()

    def _checkpoint(self, offset: Mapping[str, Any]) -> Checkpoint:
        """What `offset` says; one that equals one of the last two is not read again: Spark shows each several times."""
        for known, checkpoint in self._read:
            if known == offset:
                return checkpoint
        self._read = [(offset, Checkpoint.from_json(offset)), *self._read[:1]]
        return self._read[0][1]

    @brief_errors()
    def reportLatestOffset(self) -> dict[str, Any] | None:
        """How far the logs go and who serves the seats, for the query's progress (`reporting`); asks nobody."""
        if self._boundary is None or self._latest is None:
            return None
        boundary = self._boundary
        return latest_offset(self._latest, boundary.logs.listed_ends, boundary.members, self._leases(), self._counts())

    def _leases(self) -> Mapping[str, Lease]:
        return self._registry.leases() if self._registry is not None else {}

    def _lease(self, seat: str | None) -> Lease | None:
        return self._registry.lease(seat) if self._registry is not None and seat is not None else None

    def _counts(self) -> Counts:
        return self._registry.counts() if self._registry is not None else Counts()

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing to do: the next boundary commits what `start` proves durable."""

    # ------------------------------------------------------------------------------------------------ reading

    @brief_errors()
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """One ticket for each seat that may have data between `start` and `end`."""
        until = self._checkpoint(end)
        boundary = self._joined(until)  # a replay begins here: the seats are asked back while the batch runs
        self._planned_end = end
        plan = boundary.readable(until, ranges_by_seat(self._checkpoint(start), until))
        reads = {
            seat: [Range(tp.topic, tp.partition, first, last) for tp, (first, last) in sorted(ranges.items())]
            for seat, ranges in plan.items()
        }
        owned = positions_by_seat(until, boundary.logs.topics)
        return self._tickets(json.dumps([start, end], sort_keys=True), reads, owned)

    def _tickets(
        self, batch: str, reads: Mapping[str, Sequence[Range]], owned: Mapping[str, Sequence[Position]]
    ) -> list[Ticket]:
        """The tickets of a new scan of a batch: bound to a seat now, or when a task asks the registry."""
        options, registry = self._options, self._registry
        template = SeatRanges(
            seat="",
            ranges=(),
            consumer_config=options.consumer_config(),
            include_headers=options.include_headers,
            fail_on_data_loss=options.fail_on_data_loss,
        )
        if registry is None:
            scan = Scan(scan_id=0, mode=Mode.FIXED, tickets=tuple(sorted(reads)))
        else:
            scan = registry.plan(batch, reads, owned)
        bind_host = registry.bind_host if registry is not None else ""
        return [
            Ticket(
                TicketReads(
                    scan_id=scan.scan_id,
                    ticket=number,
                    mode=scan.mode,
                    reads=replace(template, seat=seat, ranges=tuple(reads[seat])) if seat is not None else None,
                    template=template,
                    stall_timeout_ms=options.api_timeout_ms,
                    registry_host=options.registry_host or bind_host or None,
                    registry_port=registry.port if registry is not None else 0,
                    key=registry.key if registry is not None else b"",
                    prefetch_bytes=options.prefetch_bytes,
                    query=options.group_id,
                )
            )
            for number, seat in enumerate(scan.tickets)
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one ticket; needs nothing but the ticket."""
        assert isinstance(partition, Ticket)
        return read_ticket(partition.reads)

    # ----------------------------------------------------------------------------------------------- lifetime

    def _joined(self, planned: Checkpoint) -> Boundary:
        """The boundary of this query, its seats in (or on their way into) the group.

        Args:
            planned: what an earlier process of this query planned to read at last.
        """
        if self._boundary is None:
            for warning in origin_warnings(planned, self._options):
                log.warning("%s", warning)
            jvm = Jvm.of_this_process()
            if jvm is not None:
                jvm.end_process_with_it()
            runtime = GroupRuntime(self._settings(planned, jvm))
            runtime.start()
            self._runtime = runtime
            self._tell_of_seats(runtime)
            self._registry = self._started_registry([seat.instance_id for seat in runtime.view().seats])
            self._boundary = Boundary(runtime, self._options, self._run_ms)
        if self._freezing:
            self._boundary.freeze()
            self._freezing = False
        return self._boundary

    def _tell_of_seats(self, runtime: GroupRuntime) -> None:
        topics = runtime.topics(self._options.metadata_max_age_ms)
        partitions = sum(topic.partition_count for topic in topics.values())
        if warning := seats_warning(self._options, len(runtime.view().seats), partitions):
            log.warning("%s", warning)

    def _started_registry(self, seats: Sequence[str]) -> Registry | None:
        """What executors ask which seat to read; None if they are to fetch nothing ahead.

        Under AvailableNow mostly one batch is read: a sidecar would take longer to start than it saves. Windows has
        nothing that a sidecar needs.
        """
        if not self._options.prefetch_bytes or self._bounded or os.name == "nt":
            return None
        here = self._options.registry_host is None and stays_on_this_host()
        registry = Registry(seats, bind_host=_LOOPBACK if here else "", port=self._options.registry_port)
        registry.start()
        return registry

    def _settings(self, planned: Checkpoint, jvm: Jvm | None) -> GroupSettings:
        options = sized(self._options)
        author = Author(app=options.instance_id_prefix, run_ms=self._run_ms)
        return GroupSettings(
            bootstrap=parse_bootstrap(options.bootstrap_servers),
            group=options.group_id,
            topics=options.topics,
            instance_ids=options.instance_ids,
            assignors=options.assignors,
            session_timeout_ms=options.session_timeout_ms,
            rebalance_timeout_ms=options.rebalance_timeout_ms,
            heartbeat_interval_ms=options.heartbeat_interval_ms,
            metadata_max_age_ms=options.metadata_max_age_ms,
            request_timeout_ms=options.request_timeout_ms,
            api_timeout_ms=options.api_timeout_ms,
            client_id=options.client_id,
            security=secured(driver_settings(options.security)),
            topics_must_exist=False,  # the boundary knows which may be gone
            inheritances=inheritances(planned),
            spare_seats=self._options.members is not None,
            commit_metadata=lambda who: commit_metadata(author, who.member_id, self._lease(who.instance_id)),
            commit_mark=author.encode(),
            alive=jvm.alive if jvm is not None else lambda: True,
        )

    def stop(self) -> None:
        """End the sessions without leaving the group: the seats are static and wait for the next start.

        Mostly not called: Spark ends the process with SIGTERM, or its pipe closes. The runtime's thread is a daemon and
        holds nothing but sockets, so those ends are clean too.
        """
        if self._registry is not None:
            self._registry.close()
            self._registry = None
        if self._runtime is not None:
            self._runtime.close()
            self._runtime = self._boundary = None


def inheritances(planned: Checkpoint) -> dict[str, Inheritance]:
    """Instance id -> what that seat was reading, or had read and not committed, when its last process ended.

    Of topics that have left `subscribe`, too: nobody else shall have them before that is done and committed.
    """
    by_seat: dict[str, dict[TopicPartition, Period]] = {}
    for tp, held in planned.owned.items():
        by_seat.setdefault(held.period.seat, {})[tp] = held.period
    return {
        seat: Inheritance(partitions=frozenset(periods), generation=max(p.generation for p in periods.values()))
        for seat, periods in by_seat.items()
    }
