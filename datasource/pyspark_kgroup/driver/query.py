"""The driver's half of one query: its seats in the group, the registry of its executors, and its boundary.

Runs on: driver, in the stream-reader process.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from secrets import token_hex
from typing import TYPE_CHECKING, Any, Final

from pyspark_kgroup.driver.boundary.boundary import Boundary
from pyspark_kgroup.driver.boundary.context import BoundaryContext
from pyspark_kgroup.driver.boundary.skipped import SkippedBatches
from pyspark_kgroup.driver.registry.executors import Executors
from pyspark_kgroup.driver.registry.reporting import commit_metadata, latest_offset
from pyspark_kgroup.driver.startup.checkpoint_origin import origin_warnings
from pyspark_kgroup.driver.startup.jvm import Jvm
from pyspark_kgroup.driver.startup.seat_count import SeatCount
from pyspark_kgroup.driver.startup.sizing import (
    as_many_as_before,
    fill_in_members,
    grows_with_executors,
    seats_warning,
    stays_on_this_host,
)
from pyspark_kgroup.errors import CheckpointError
from pyspark_kgroup.limits import SLOTS_KNOWN_MS
from pyspark_kgroup.offsets.adoption import known_ids
from pyspark_kgroup.offsets.checkpoint import Checkpoint
from pyspark_kgroup.offsets.earlier_runs import ThisRun, owned_by_seat
from pyspark_kgroup.offsets.plan import NO_LIMIT, Limit
from pyspark_kgroup.options.offset_bound import warnings_of_seconds
from pyspark_kgroup.options.parser import SourceOptions
from pyspark_kgroup.options.security import driver_settings
from pyspark_kgroup.query_log import show_log
from pyspark_kgroup.shared.tickets import OffsetRange, ReadSettings, TicketPayload, TopicSize
from spark_kgroup.clock import monotonic_ms
from spark_kgroup.errors import KgroupError
from spark_kgroup.model import AUTO, CLIENT, CONSUMER
from spark_kgroup.runtime.settings import ClientSettings, GroupSettings, OngoingWork, OwnerHooks, ProtocolSettings
from spark_kgroup.runtime.thread import GroupRuntime
from spark_kgroup.wire.address import parse_bootstrap
from spark_kgroup.wire.security.secured import load_security

if TYPE_CHECKING:
    from pyspark_kgroup.driver.boundary.first_sample import FirstSample
    from pyspark_kgroup.driver.boundary.kafka_offsets import KafkaOffsets
    from pyspark_kgroup.offsets.kafka_offset import KafkaOffset

log = logging.getLogger(__name__)

_FIRST_BATCH_OF_KAFKA_SOURCE: Final = (
    'A batch of this checkpoint was planned by format("kafka") and is not finished, and where it begins is not in its '
    'offsets: it is the first batch. Finish it with format("kafka") (one run with trigger(availableNow=True)), then '
    'change the query to format("kgroup").'
)

Sample = Callable[[Sequence[OffsetRange], ReadSettings], Iterable[TopicSize]]


class Query:
    """One query on the driver. The group is joined by the first call that needs it.

    Args:
        options: of the query.
        bounded: under AvailableNow: see `TopicLogs`.
        sample: reads records in these ranges, and returns their sizes, or None if executors see enough batches.
    """

    def __init__(self, options: SourceOptions, *, bounded: bool, sample: Sample | None = None) -> None:
        self._options = options
        self._sample = sample
        self._bounded = bounded
        self._runtime: GroupRuntime | None = None
        self._boundary: Boundary | None = None
        self._context: BoundaryContext | None = None
        self._kafka_offsets: KafkaOffsets | None = None
        self._executors = Executors(options, bounded=bounded, on_durable=self._on_durable)
        self._run = ThisRun(options.group_id, options.instance_id_prefix, process=token_hex(4))
        self._latest: Checkpoint | None = None
        self._skipped = SkippedBatches(self._executors.is_untouched, self._executors.was_reached)
        self._seat_count: SeatCount | None = None
        self._registered: Sequence[str] = ()
        self._last_batch: tuple[int, int] | None = None  # seats with data, and when it was planned (ms)
        self._lock = threading.Lock()  # of the boundary: held by Spark's thread, or by one that commits between batches

    def advance(
        self, offset: Checkpoint | KafkaOffset, limit: Limit = NO_LIMIT, *, at_once: bool = False
    ) -> Checkpoint | KafkaOffset:
        """The boundary between two batches: `offset` is durable, and the next batch's end is returned.

        The arguments are those of `Boundary.advance`, and `offset` may be one of `format("kafka")`. It is returned
        itself if there is no next batch.
        """
        with self._lock:
            if isinstance(offset, Checkpoint):
                self._skipped.look(offset)
            boundary = self._join(offset)
            start = offset if isinstance(offset, Checkpoint) else self._kafka(offset).checkpoint(offset)
            if self._seat_count is not None:
                self._resize(boundary, self._seat_count)
            after = boundary.advance(start, limit, at_once=at_once)
            self._latest = after
            if after is start and start is not offset:
                return offset
            self._skipped.on_planned(start, after)
            return replace(
                after,
                members=self._members_to_remember(boundary, after),
                cluster=start.cluster if after is start else self._cluster_to_remember(),
                record_bytes=self._executors.sizes_to_remember(after),
            )

    def _on_durable(self, digest: str) -> None:
        """Commit: the batch with this end is in Spark's commit log, and Spark may ask for the next one much later."""
        threading.Thread(target=self._commit_durable, args=(digest,), name="kgroup commit", daemon=True).start()

    def _commit_durable(self, digest: str) -> None:
        with self._lock:
            if self._boundary is None or self._latest is None or self._latest.digest != digest:
                return  # Spark has asked for the next batch meanwhile
            try:
                self._boundary.commit_durable(self._latest)
            except KgroupError as error:
                log.info("the batch is committed at the next trigger instead: %s", error)

    def _resize(self, boundary: Boundary, seat_count: SeatCount) -> None:
        """Let seats join, or begin to leave, if executors run more tasks at once than there are seats, or fewer."""
        runtime, executors = self._runtime, self._executors
        assert runtime is not None, "there is a boundary"
        view = runtime.view()
        seats = [seat.instance_id for seat in view.seats]
        # The last call may have added seats, and the boundary after it may have let some leave.
        if seats != self._registered:
            executors.resize(seats)
            self._registered = seats
        batch, self._last_batch = self._last_batch, None
        if batch is None or monotonic_ms() - batch[1] > SLOTS_KNOWN_MS:
            return  # it is long ago: sidecars of executors have ended since
        if not (boundary.settled_once and view.settled):
            return  # the change before is not over
        partitions = sum(topic.partition_count for topic in boundary.logs.topics.values())
        wanted = seat_count.wanted(
            len(seats), executors.slots(), partitions, monotonic_ms(), busy=batch[0] >= len(seats)
        )
        if wanted > len(seats):
            more = [f"{self._options.instance_id_prefix}-{number}" for number in range(len(seats), wanted)]
            log.info("executors run %d tasks at once: %d seats join the group", executors.slots(), len(more))
            runtime.add_seats(more)
        # The highest numbers leave: a restart joins as seats 0 to n - 1. An empty slice takes back an earlier request.
        boundary.let_leave(seats[wanted:])

    def progress(self) -> dict[str, Any] | None:
        """Where logs end and who serves the seats (`reporting`), without a request. None before the first boundary."""
        if self._boundary is None or self._latest is None:
            return None
        boundary = self._boundary
        ends, ended = boundary.logs.listed_ends, boundary.stops.ended
        homes, counts = self._executors.homes(), self._executors.counts()
        shown = latest_offset(self._latest, ends, boundary.members, homes, counts, ended=ended)
        return {**shown, **self._executors.reader()}

    def _members_to_remember(self, boundary: Boundary, end: Checkpoint) -> Mapping[str, str]:
        if self._options.group_protocol != CONSUMER:
            return {}  # in a classic group the generation of a claim says how old it is (KIP-792)
        seats = {owned.period.seat for owned in end.owned.values()}
        return {seat: member for seat, member in boundary.members.items() if seat in seats}

    def _cluster_to_remember(self) -> str:
        assert self._runtime is not None, "there is a boundary"
        return self._runtime.cluster_id() or ""  # the checkpoint's own, where brokers do not say theirs

    def tickets(
        self, batch: str, start: Checkpoint | KafkaOffset, end: Checkpoint | KafkaOffset
    ) -> list[TicketPayload]:
        """One ticket for each seat that may have data between `start` and `end`.

        A batch that `format("kafka")` has planned and not finished has a ticket for each partition instead.

        Args:
            batch: a digest of the batch's two offsets, by which batches are told apart.
            start: where it begins.
            end: where it ends.

        Raises:
            CheckpointError: `format("kafka")` has planned the batch, and its checkpoint does not say where it begins.
        """
        from pyspark_kgroup.driver.ticket_plan import make_tickets, seat_reads  # not needed to join

        with self._lock:
            if not isinstance(end, Checkpoint):
                return self._tickets_of_kafka_source(start, end)
            self._skipped.on_tickets(end)
            boundary = self._join(end)  # a replay begins here
            # Periods decide, and an offset of format("kafka") has none.
            begun = start if isinstance(start, Checkpoint) else start.checkpoint(self._options.subscription, {})
            reads = seat_reads(boundary, self._options, begun, end)
            self._last_batch = len(reads.pieces), monotonic_ms()
            return make_tickets(
                batch, reads, self._options, self._executors, end.cluster or self._cluster_to_remember()
            )

    def _tickets_of_kafka_source(self, start: Checkpoint | KafkaOffset, end: KafkaOffset) -> list[TicketPayload]:
        """The tickets of a batch that `format("kafka")` has planned: its offsets, read without seats."""
        if isinstance(start, Checkpoint):
            raise CheckpointError(_FIRST_BATCH_OF_KAFKA_SOURCE)
        from pyspark_kgroup.driver.ticket_plan import make_tickets_without_seats  # most queries have no such batch

        self._join(end)
        kafka = self._kafka(end)
        spans = kafka.spans(start, end)
        return make_tickets_without_seats(spans, kafka.topics_of(end), self._options, self._cluster_to_remember())

    def _kafka(self, offset: KafkaOffset) -> KafkaOffsets:
        if self._kafka_offsets is None:
            from pyspark_kgroup.driver.boundary.kafka_offsets import KafkaOffsets  # most queries see no such offset

            assert self._context is not None, "there is a boundary"
            assert self._boundary is not None
            self._kafka_offsets = KafkaOffsets(self._context, self._boundary.logs, offset)
        return self._kafka_offsets

    def _join(self, last: Checkpoint | KafkaOffset) -> Boundary:
        """The boundary of this query, its seats in (or on their way into) the group.

        Args:
            last: the end of the last batch that an earlier process of this query planned.
        """
        if self._boundary is None:
            planned = last if isinstance(last, Checkpoint) else last.checkpoint(self._options.subscription, {})
            jvm = Jvm.of_this_process()
            if jvm is not None:
                show_log(self._options.group_id)
            bounds = self._options.starting_offsets, self._options.ending_offsets
            for warning in (*origin_warnings(planned, self._options), *warnings_of_seconds(bounds)):
                log.warning("%s", warning)
            if jvm is not None:
                # BEFORE a seat joins: a reader whose JVM is gone must not take the seats back from the next reader.
                jvm.end_process_with_it(self._executors.release_key)
            runtime = GroupRuntime(self._settings(planned, jvm))
            runtime.start()
            self._runtime = runtime
            self._tell_of_seats(runtime)
            # Not `options.instance_ids`: there may be fewer seats (`cap_seats_to_partitions`).
            self._registered = [seat.instance_id for seat in runtime.view().seats]
            knows_executors = self._executors.start(
                self._registered, planned.record_bytes, on_spark=jvm is not None, on_this_host=stays_on_this_host
            )
            if knows_executors and not self._bounded and grows_with_executors(self._options):
                self._seat_count = SeatCount(least=fill_in_members(self._options).members or 1)
            self._context = BoundaryContext.of(runtime, self._options, self._run.author)
            self._boundary = Boundary(
                self._context,
                record_bytes=self._executors.record_bytes,
                first_sample=self._first_sample() if knows_executors else None,
                earlier_seats=self._run.earlier_seats,
                bounded=self._bounded,
            )
        return self._boundary

    def _first_sample(self) -> FirstSample | None:
        sample = self._sample
        if sample is None:
            return None
        from pyspark_kgroup.driver.boundary.first_sample import FirstSample  # most queries need none

        return FirstSample(lambda ranges: self._executors.add_sizes(sample(ranges, self._options.read_settings())))

    def _tell_of_seats(self, runtime: GroupRuntime) -> None:
        topics = runtime.topics(self._options.metadata_max_age_ms)
        partitions = sum(topic.partition_count for topic in topics.values())
        if warning := seats_warning(self._options, len(runtime.view().seats), partitions):
            log.warning("%s", warning)

    def _settings(self, planned: Checkpoint, jvm: Jvm | None) -> GroupSettings:
        options = fill_in_members(self._options)
        if grows_with_executors(self._options):
            options = as_many_as_before(options, planned)
        return GroupSettings(
            bootstrap=parse_bootstrap(options.bootstrap_servers),
            group=options.group_id,
            topics=options.subscription.topics,
            pattern=options.subscription.pattern,
            topics_must_exist=False,  # the boundary knows which may be gone
            instance_ids=options.instance_ids,
            cap_seats_to_partitions=self._options.members is None,  # as given: a number that the user chose stays
            client=ClientSettings(
                client_id=options.client_id,
                security=load_security(driver_settings(options.security)),
                request_timeout_ms=options.request_timeout_ms,
                api_timeout_ms=options.api_timeout_ms,
                metadata_max_age_ms=options.metadata_max_age_ms,
                cluster_id=planned.cluster or None,
            ),
            protocol=ProtocolSettings(
                name=options.group_protocol,
                assignors=options.assignors,
                server_assignor=options.remote_assignor,
                session_timeout_ms=options.session_timeout_ms,
                rebalance_timeout_ms=options.rebalance_timeout_ms,
                heartbeat_interval_ms=options.heartbeat_interval_ms,
                own_ids=options.member_ids == CLIENT,
                own_ids_if_alone=options.member_ids == AUTO,
            ),
            work=OngoingWork(
                previously_owned=owned_by_seat(planned, options.group_id),
                holds_rebalances=True,  # until orphans' positions are committed (`orphans`)
                releases_seats=False,  # a batch may be unfinished
                topic_ids=known_ids(planned),
                reads_logs=True,
            ),
            hooks=self._hooks(planned, jvm),
        )

    def _hooks(self, planned: Checkpoint, jvm: Jvm | None) -> OwnerHooks:
        return OwnerHooks(
            rack_of=self._executors.rack_of,
            commit_metadata=lambda who, topic_id: commit_metadata(
                self._run.author_as(who), who.member_id, topic_id, self._executors.home(who.instance_id)
            ),
            commit_mark=lambda who, topic_id: self._run.author_as(who).encode(topic_id),
            before_joining=lambda committed: self._run.begin(planned, (found.metadata for found in committed.values())),
            alive=jvm.alive if jvm is not None else lambda: True,
        )

    def stop(self) -> None:
        """End the sessions without leaving the group."""
        self._executors.stop()
        if self._runtime is not None:
            self._runtime.close()
            self._runtime = self._boundary = self._context = self._kafka_offsets = None
        self._executors.release_key()
