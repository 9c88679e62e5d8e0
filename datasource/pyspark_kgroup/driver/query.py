"""The driver's half of one query: its seats in the group, the registry of its executors, and its boundary.

Runs on: driver, in the stream-reader process.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from secrets import token_hex
from typing import TYPE_CHECKING, Any, Final

from pyspark_kgroup.driver.boundary.boundary import Boundary
from pyspark_kgroup.driver.leaders import leader_of, ranges_of
from pyspark_kgroup.driver.registry.reporting import Counts, commit_metadata, latest_offset
from pyspark_kgroup.driver.registry.seats import Home, Part, Scan, parts_of
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
from pyspark_kgroup.limits import SLOTS_KNOWN_MS
from pyspark_kgroup.offsets.checkpoint import Checkpoint
from pyspark_kgroup.offsets.earlier_runs import EarlierRuns, earlier_runs, owned_by_seat
from pyspark_kgroup.offsets.plan import NO_LIMIT, Limit, Ranges, positions_by_seat, ranges_by_seat
from pyspark_kgroup.options.parser import SourceOptions
from pyspark_kgroup.options.security import driver_settings
from pyspark_kgroup.query_log import show_log
from pyspark_kgroup.shared.tickets import (
    Mode,
    Position,
    Range,
    RegistryAccess,
    SeatRanges,
    TicketPayload,
)
from spark_kgroup.clock import monotonic_ms
from spark_kgroup.errors import KgroupError
from spark_kgroup.model import AUTO, CLIENT, CONSUMER, MemberIdentity, TopicPartition
from spark_kgroup.runtime.settings import GroupSettings
from spark_kgroup.runtime.thread import GroupRuntime
from spark_kgroup.seat_note import Author
from spark_kgroup.wire.address import parse_bootstrap
from spark_kgroup.wire.responses import CommittedOffset
from spark_kgroup.wire.security.secured import security_of

if TYPE_CHECKING:
    from pyspark_kgroup.driver.registry.registry import Registry
    from pyspark_kgroup.shared.application_key import ApplicationKey

log = logging.getLogger(__name__)

_LOOPBACK: Final = "127.0.0.1"
"""Where the registry listens if the query stays on this host, so that no other host can reach it."""


class Query:
    """One query on the driver. The group is joined by the first call that needs it.

    Args:
        options: of the query.
        bounded: under AvailableNow: see `TopicLogs`.
    """

    def __init__(self, options: SourceOptions, *, bounded: bool) -> None:
        self._options = options
        self._bounded = bounded
        self._runtime: GroupRuntime | None = None
        self._boundary: Boundary | None = None
        self._registry: Registry | None = None
        self._latest: Checkpoint | None = None
        self._seat_count: SeatCount | None = None
        self._registered: Sequence[str] = ()
        self._last_batch: tuple[int, int] | None = None  # seats with data, and when it was planned (ms)
        self._start: Checkpoint | None = None  # of the batch that ends at `_latest`
        self._tickets_of_latest = False  # whether that batch has tickets
        self._warned_of_skipped = False
        self._key: ApplicationKey | None = None
        self._us = Author(app=options.instance_id_prefix, process=token_hex(4))
        self._earlier = EarlierRuns()
        self._lock = threading.Lock()  # of the boundary: held by Spark's thread, or by one that commits between batches

    def advance(self, start: Checkpoint, limit: Limit = NO_LIMIT, *, at_once: bool = False) -> Checkpoint:
        """The boundary between two batches: `start` is durable, and the next batch's end is returned.

        The arguments are those of `Boundary.advance`.
        """
        with self._lock:
            self._look_for_skipped(start)
            boundary = self._join(start)
            if self._seat_count is not None:
                self._resize(boundary, self._seat_count)
            after = boundary.advance(start, limit, at_once=at_once)
            self._start, self._latest, self._tickets_of_latest = start, after, False
            return replace(
                after,
                members=self._members_to_remember(boundary, after),
                record_bytes=self._sizes_to_remember(after),
            )

    def _look_for_skipped(self, start: Checkpoint) -> None:
        """Warn, once, of a batch that is durable and that no task has read.

        Spark plans no tickets for a batch that its sink skips, except where the query asks how many tickets there are.
        """
        planned, registry = self._tickets_of_latest, self._registry
        if self._warned_of_skipped or (planned and (registry is None or not registry.is_untouched())):
            return  # BEFORE checkpoints are compared, which are large
        if self._start is None or self._start == self._latest or start != self._latest:
            return
        reads = ranges_by_seat(self._start, start).values()
        if offsets := sum(end - first for ranges in reads for first, end in ranges.values()):
            from pyspark_kgroup.offsets.skipped_batches import skipped_warning

            log.warning("%s", skipped_warning(offsets, reached=not planned or self._counts().accepted > 0))
            self._warned_of_skipped = True

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
        runtime, registry = self._runtime, self._registry
        if runtime is None or registry is None:
            return
        view = runtime.view()
        seats = [seat.instance_id for seat in view.seats]
        if seats != self._registered:
            registry.resize(seats)
            self._registered = seats
        batch, self._last_batch = self._last_batch, None
        if batch is None or monotonic_ms() - batch[1] > SLOTS_KNOWN_MS:
            return  # it is long ago: sidecars of executors have ended since
        if not (boundary.settled_once and view.settled):
            return  # the change before is not over
        partitions = sum(topic.partition_count for topic in boundary.logs.topics.values())
        wanted = seat_count.wanted(
            len(seats), registry.slots(), partitions, monotonic_ms(), busy=batch[0] >= len(seats)
        )
        if wanted > len(seats):
            more = [f"{self._options.instance_id_prefix}-{number}" for number in range(len(seats), wanted)]
            log.info("executors run %d tasks at once: %d seats join the group", registry.slots(), len(more))
            runtime.add_seats(more)
        boundary.let_leave(seats[wanted:])

    def progress(self) -> dict[str, Any] | None:
        """Where logs end and who serves the seats (`reporting`), without a request. None before the first boundary."""
        if self._boundary is None or self._latest is None:
            return None
        boundary = self._boundary
        ends, ended = boundary.logs.listed_ends, boundary.stops.ended
        shown = latest_offset(self._latest, ends, boundary.members, self._homes(), self._counts(), ended=ended)
        if self._registry is not None and self._key is not None:  # for the listener
            where = {"port": self._registry.port, "query": self._registry.query}
            shown["reader"] = {"folder": str(self._key.folder), **where}
        return shown

    def _homes(self) -> Mapping[str, Home]:
        return self._registry.homes() if self._registry is not None else {}

    def _home(self, seat: str | None) -> Home | None:
        return self._registry.home(seat) if self._registry is not None and seat is not None else None

    def _rack_of(self, seat: str | None) -> str | None:
        """The rack where a seat reads: its home's, or `client.rack` until it has a home that knows its rack."""
        home = self._home(seat)
        return (home.executor.rack if home is not None else "") or self._options.passed_on.get("client.rack") or None

    def _record_bytes(self, topic: str) -> float | None:
        return self._registry.sizes.of(topic) if self._registry is not None else None

    def _sizes_to_remember(self, end: Checkpoint) -> Mapping[str, int]:
        if self._registry is None or self._options.limit.size_bytes is None:
            return {}
        return self._registry.sizes.to_remember(end.topics)

    def _members_to_remember(self, boundary: Boundary, end: Checkpoint) -> Mapping[str, str]:
        if self._options.group_protocol != CONSUMER:
            return {}  # in a classic group the generation of a claim says how old it is (KIP-792)
        seats = {owned.period.seat for owned in end.owned.values()}
        return {seat: member for seat, member in boundary.members.items() if seat in seats}

    def _counts(self) -> Counts:
        return self._registry.counts() if self._registry is not None else Counts()

    def tickets(self, batch: str, start: Checkpoint, end: Checkpoint) -> list[TicketPayload]:
        """One ticket for each seat that may have data between `start` and `end`.

        Args:
            batch: a digest of the batch's two offsets, by which batches are told apart.
            start: where it begins.
            end: where it ends.
        """
        with self._lock:
            self._tickets_of_latest = self._tickets_of_latest or end == self._latest
            return self._tickets_of(self._join(end), batch, start, end)  # a replay begins here

    def _tickets_of(self, boundary: Boundary, batch: str, start: Checkpoint, end: Checkpoint) -> list[TicketPayload]:
        topics = boundary.logs.topics
        plan = boundary.logs.readable(end, ranges_by_seat(start, end))
        reads = {seat: [ranges_of(piece, topics) for piece in pieces] for seat, pieces in self._pieces_of(plan).items()}
        read = {tp for ranges in plan.values() for tp in ranges}
        owned = {
            seat: [
                Position(*tp, offset, tag, None if tp in read else leader_of(topics, tp))
                for tp, offset, tag in positions
                if tp in read or not boundary.stops.is_reached(topics, tp, offset)  # else nothing to fetch ahead
            ]
            for seat, positions in positions_by_seat(end, topics).items()
        }
        return self._tickets(batch, reads, owned)

    def _pieces_of(
        self, plan: Mapping[str, Ranges]
    ) -> Mapping[str, Sequence[Sequence[tuple[TopicPartition, tuple[int, int]]]]]:
        """The ranges that each seat reads, in one piece, or in as many as options say."""
        at_least, offsets_max = self._options.min_partitions, self._options.max_records_per_partition
        if at_least is None and offsets_max is None:
            return {seat: [tuple(sorted(ranges.items()))] for seat, ranges in plan.items()}
        from pyspark_kgroup.offsets.pieces import pieces_of_seats  # most queries divide no share

        return pieces_of_seats(plan, at_least, offsets_max)

    def _tickets(
        self, batch: str, reads: Mapping[str, Sequence[Sequence[Range]]], owned: Mapping[str, Sequence[Position]]
    ) -> list[TicketPayload]:
        """The tickets of a new scan of a batch: bound to a seat now, or when a task asks the registry."""
        options, registry = self._options, self._registry
        self._last_batch = len(reads), monotonic_ms()
        settings = options.read_settings()
        if registry is None:
            seats = tuple(seat for seat in sorted(reads) for _ in reads[seat])
            scan = Scan(scan_id=0, mode=Mode.FIXED, tickets=seats)
        else:
            scan = registry.plan(batch, reads, owned)
        access = self._registry_access()
        sidecars = registry.sidecars() if registry is not None else ()
        fixed = scan.mode is Mode.FIXED
        parts: Sequence[Part | None] = parts_of(scan.tickets) if fixed else [None] * len(scan.tickets)
        return [
            TicketPayload(
                scan_id=scan.scan_id,
                ticket=number,
                mode=scan.mode,
                reads=SeatRanges(seat=part.seat, ranges=tuple(reads[part.seat][part.piece])) if part else None,
                settings=settings,
                registry=access,
                sidecars=sidecars,
            )
            for number, part in enumerate(parts)
        ]

    def _registry_access(self) -> RegistryAccess | None:
        if self._registry is None:
            return None
        return RegistryAccess(
            host=self._options.registry_host or self._registry.bind_host or None,
            port=self._registry.port,
            key=self._registry.key,
            query=self._registry.query,
            prefetch_bytes=self._options.prefetch_bytes,
            tells_sizes=self._options.limit.size_bytes is not None,
        )

    def _join(self, planned: Checkpoint) -> Boundary:
        """The boundary of this query, its seats in (or on their way into) the group.

        Args:
            planned: the end of the last batch that an earlier process of this query planned.
        """
        if self._boundary is None:
            jvm = Jvm.of_this_process()
            if jvm is not None:
                show_log(self._options.group_id)
            for warning in origin_warnings(planned, self._options):
                log.warning("%s", warning)
            if jvm is not None:
                jvm.end_process_with_it(self._release_key)
            runtime = GroupRuntime(self._settings(planned, jvm))
            runtime.start()
            self._runtime = runtime
            self._tell_of_seats(runtime)
            self._registered = [seat.instance_id for seat in runtime.view().seats]
            self._registry = self._start_registry(self._registered, jvm)
            if self._registry is not None and not self._bounded and grows_with_executors(self._options):
                self._seat_count = SeatCount(least=fill_in_members(self._options).members or 1)
            if self._registry is not None:
                self._registry.sizes.remember(planned.record_bytes)
            self._boundary = Boundary(
                runtime,
                self._options,
                self._us,
                record_bytes=self._record_bytes,
                earlier_seats=self._earlier.seats,
                bounded=self._bounded,
            )
        return self._boundary

    def _begin_run(self, planned: Checkpoint, committed: Mapping[TopicPartition, CommittedOffset]) -> None:
        """Take this run's number BEFORE a seat joins: commits with that number, or a higher one, were made since."""
        texts = {found.metadata for found in committed.values()}
        self._earlier = earlier_runs(planned, texts, group=self._options.group_id, app=self._us.app)
        self._us = replace(self._us, run=self._earlier.last + 1)

    def _author(self, who: MemberIdentity) -> Author:
        """The author that a seat of this run writes beside its commits."""
        number = (who.instance_id or "").rpartition("-")[2]
        return replace(self._us, seat=int(number)) if number.isdecimal() else self._us

    def _tell_of_seats(self, runtime: GroupRuntime) -> None:
        topics = runtime.topics(self._options.metadata_max_age_ms)
        partitions = sum(topic.partition_count for topic in topics.values())
        if warning := seats_warning(self._options, len(runtime.view().seats), partitions):
            log.warning("%s", warning)

    def _start_registry(self, seats: Sequence[str], jvm: Jvm | None) -> Registry | None:
        """The registry that executors ask which seat to read, or None if they are not to fetch ahead.

        Under AvailableNow without a limit one batch reads all: a sidecar would take longer to start than it saves. On
        Windows a sidecar cannot run.
        """
        one_batch = self._bounded and self._options.limit == NO_LIMIT
        if not self._options.prefetch_bytes or one_batch or os.name == "nt":
            return None
        # Imported while the seats join: that takes 16 ms (measured).
        from pyspark_kgroup.driver.registry.registry import Registry
        from pyspark_kgroup.shared.application_key import hold_key, key_folder
        from pyspark_kgroup.shared.token_callback import CALLBACK

        here = self._options.registry_host is None and stays_on_this_host()
        if jvm is not None and CALLBACK not in self._options.consumer_config():
            folder = key_folder(os.getppid())  # with a callback, its module may be on the path of our workers alone
            self._key = hold_key(folder) if folder is not None else None
        registry = Registry(
            seats,
            key=self._key.value if self._key is not None else None,
            homes_serve_others=self._options.homes_serve_others,
            bind_host=_LOOPBACK if here else "",
            port=self._options.registry_port,
            on_durable=self._on_durable,
        )
        registry.start()
        return registry

    def _settings(self, planned: Checkpoint, jvm: Jvm | None) -> GroupSettings:
        options = fill_in_members(self._options)
        if grows_with_executors(self._options):
            options = as_many_as_before(options, planned)
        return GroupSettings(
            bootstrap=parse_bootstrap(options.bootstrap_servers),
            group=options.group_id,
            topics=options.subscription.topics,
            pattern=options.subscription.pattern,
            instance_ids=options.instance_ids,
            group_protocol=options.group_protocol,
            own_ids=options.member_ids == CLIENT,
            own_ids_if_alone=options.member_ids == AUTO,
            assignors=options.assignors,
            server_assignor=options.remote_assignor,
            rack_of=self._rack_of,
            session_timeout_ms=options.session_timeout_ms,
            rebalance_timeout_ms=options.rebalance_timeout_ms,
            heartbeat_interval_ms=options.heartbeat_interval_ms,
            metadata_max_age_ms=options.metadata_max_age_ms,
            request_timeout_ms=options.request_timeout_ms,
            api_timeout_ms=options.api_timeout_ms,
            client_id=options.client_id,
            security=security_of(driver_settings(options.security)),
            topics_must_exist=False,  # the boundary knows which may be gone
            previously_owned=owned_by_seat(planned, options.group_id),
            holds_rebalances=True,
            releases_seats=False,  # a batch may be unfinished
            cap_seats_to_partitions=self._options.members is None,
            commit_metadata=lambda who, topic_id: commit_metadata(
                self._author(who), who.member_id, topic_id, self._home(who.instance_id)
            ),
            commit_mark=lambda who, topic_id: self._author(who).encode(topic_id),
            before_joining=lambda committed: self._begin_run(planned, committed),
            alive=jvm.alive if jvm is not None else lambda: True,
        )

    def stop(self) -> None:
        """End the sessions without leaving the group."""
        if self._registry is not None:
            self._registry.close()
            self._registry = None
        if self._runtime is not None:
            self._runtime.close()
            self._runtime = self._boundary = None
        self._release_key()

    def _release_key(self) -> None:
        if self._key is not None:
            self._key.release()
