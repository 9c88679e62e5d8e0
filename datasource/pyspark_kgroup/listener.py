"""`KgroupListener`: the uses of Spark's progress: a query's lag in logs and metrics, its last commit, its end.

Runs on: driver, in the user's own process. With Spark Connect in the client, which needs this package then.

    spark.streams.addListener(KgroupListener())

Under PySpark 4.0 and 4.1 progress does not say how far logs go, so there is no lag to report.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary

from pyspark_kgroup.durable_ends import DurableEnds
from pyspark_kgroup.ended_queries import EndedQueries
from pyspark_kgroup.errors import CheckpointError
from pyspark_kgroup.limits import PROGRESS_LOGGED_MS
from pyspark_kgroup.offsets.checkpoint import Checkpoint
from pyspark_kgroup.offsets.skipped_batches import skipped_warning
from pyspark_kgroup.progress_as_text import ProgressAsText
from spark_kgroup.clock import monotonic_ms
from spark_kgroup.model import TopicPartition

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from prometheus_client.core import GaugeMetricFamily
    from pyspark.sql.streaming.listener import (
        QueryIdleEvent,
        QueryProgressEvent,
        QueryStartedEvent,
        QueryTerminatedEvent,
    )

log = logging.getLogger(__name__)

_SEATS_LOGGED_MAX: Final = 5
"""Seats in one log line, those with most lag first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionLag:
    """One partition after one batch."""

    seat: str
    partition: TopicPartition
    position: int
    end: int

    @property
    def lag(self) -> int:
        """Offsets that are still to be read."""
        return max(0, self.end - self.position)


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryLag:
    """One query after one batch.

    Attributes:
        query: its name, or its id if it has none.
        seats: instance id -> the executor that serves it (`reporting.latest_offset`).
        groups: instance id -> the group that the seat is a member of.
    """

    query: str
    batch: int
    partitions: tuple[PartitionLag, ...]
    seats: Mapping[str, Mapping[str, Any]]
    groups: Mapping[str, str]

    @property
    def by_seat(self) -> dict[str, int]:
        """Instance id -> lag of all its partitions."""
        found: dict[str, int] = dict.fromkeys(self.seats, 0)
        for each in self.partitions:
            found[each.seat] = found.get(each.seat, 0) + each.lag
        return found


def parse_lag(progress: Mapping[str, Any]) -> QueryLag | None:
    """The lag in one progress report (StreamingQueryProgress as JSON), None if it has no kgroup source with one."""
    partitions: list[PartitionLag] = []
    seats: dict[str, Mapping[str, Any]] = {}
    groups: dict[str, str] = {}
    found = False
    for source in progress.get("sources", ()):
        shown = source.get("latestOffset")
        if not isinstance(shown, Mapping) or "seats" not in shown:
            continue  # another kind of source, or PySpark 4.1, which shows the end of the batch under this name
        try:
            end, latest = Checkpoint.from_json(source["endOffset"]), Checkpoint.from_json(shown)
        except (CheckpointError, KeyError):
            continue
        found = True
        seats |= shown["seats"]
        groups |= dict.fromkeys((*shown["seats"], *(held.period.seat for held in latest.owned.values())), end.group)
        partitions += [
            PartitionLag(seat=held.period.seat, partition=tp, position=end.position(tp) or 0, end=held.position)
            for tp, held in latest.owned.items()
        ]
    if not found:
        return None
    name = progress.get("name") or progress["id"]
    batch = int(progress["batchId"])
    return QueryLag(query=str(name), batch=batch, partitions=tuple(partitions), seats=seats, groups=groups)


def skipped_offsets(progress: Mapping[str, Any]) -> int:
    """The number of offsets, in the first batch of a checkpoint, of sources that gave no row. 0 for any later batch.

    The stream reader judges later batches (`Query`), which may hold only markers of transactions. But with `once`, and
    before PySpark 4.2 with `availableNow`, Spark does not call it any more after its one batch.
    """
    offsets = 0
    for source in progress.get("sources", ()) if progress.get("batchId") == 0 else ():
        try:
            end = Checkpoint.from_json(source["endOffset"])
        except (CheckpointError, KeyError):
            continue
        if not source.get("numInputRows"):
            offsets += sum(held.position - held.period.start for held in end.owned.values())
    return offsets


class KgroupListener(ProgressAsText):
    """Logs one line for a query's progress at INFO, not more often than every 10 s, and exports Prometheus gauges.

    At DEBUG there are lines of each seat and partition as well.

    A query that then makes no progress for 3 s commits the end of its last batch to the group. Without a listener it
    does so at the next trigger, when Spark tells the source that the batch is durable. For that this process must run
    on the driver's host, as this user, and without Spark Connect.

    A query with an end (`endingOffsets` and the like) that has read all records up to there is stopped, some 10 s later
    (`spark.sql.streaming.noDataProgressEventInterval`). If it is not of this process's session, set the attribute
    `spark` to its own.

    It warns of a first batch of which no row was read, though it had records: a sink that remembers the numbers of
    batches has skipped it.

    Gauges need `prometheus-client` (`pip install spark-kgroup[metrics]`) and an exporter of yours, such as
    `prometheus_client.start_http_server(8000)`. Without it, progress is logged only.

    Args:
        registry: where the gauges are registered, or None for prometheus-client's own.
    """

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self._lock = threading.Lock()
        self._lags: dict[str, QueryLag] = {}
        self._logged_at_ms: dict[str, int] = {}
        self._durable = DurableEnds()
        self._ended = EndedQueries()
        self._gauges: _Gauges | None = None
        try:
            from prometheus_client import REGISTRY
        except ImportError:
            log.info("prometheus-client is not installed: the lag of queries is only logged.")
            return
        self._gauges = _get_gauges(registry or REGISTRY)

    @property
    def lags(self) -> list[QueryLag]:
        """The last lag of each query that runs."""
        with self._lock:
            return list(self._lags.values())

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """No action: a query that has just started has no progress."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        """A batch is done."""
        progress, run = json.loads(event.progress.json), str(event.progress.runId)
        self._durable.put(run, progress)
        self._ended.see(run, progress)
        if skipped := skipped_offsets(progress):
            log.warning("query %s: %s", progress.get("name") or progress["id"], skipped_warning(skipped, reached=True))
        lag = parse_lag(progress)
        if lag is None:
            return
        if self._gauges is not None:
            self._gauges.put(run, lag)
        with self._lock:
            self._lags[run] = lag
            due = monotonic_ms() - self._logged_at_ms.get(run, -PROGRESS_LOGGED_MS) >= PROGRESS_LOGGED_MS
            if due:
                self._logged_at_ms[run] = monotonic_ms()
        if due:
            log.info("%s", format_line(lag))
            for line in format_details(lag) if log.isEnabledFor(logging.DEBUG) else ():
                log.debug("%s", line)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        """No new records: a query with an end may have come to it."""
        self._ended.stop_if_ended(getattr(self, "spark", None), str(event.id), str(event.runId))

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        """The query's gauges, and all that was remembered of it, go with it."""
        self._durable.drop(str(event.runId))
        self._ended.drop(str(event.runId))
        if self._gauges is not None:
            self._gauges.drop(str(event.runId))
        with self._lock:
            self._lags.pop(str(event.runId), None)
            self._logged_at_ms.pop(str(event.runId), None)


def format_line(lag: QueryLag) -> str:
    """One line for a log."""
    by_seat = sorted(lag.by_seat.items(), key=lambda item: (-item[1], item[0]))
    shown = []
    for seat, count in by_seat[:_SEATS_LOGGED_MAX]:
        served = lag.seats.get(seat)
        where = f" (executor {served['executor']} on {served['host']}{', warm' * served['warm']})" if served else ""
        shown.append(f"{seat}{where}: {count}")
    rest = f" and {len(by_seat) - len(shown)} more seats" if len(by_seat) > len(shown) else ""
    total = sum(each.lag for each in lag.partitions)
    seats = ", ".join(shown) + rest
    return f"query {lag.query}, batch {lag.batch}: lag {total} in {len(lag.partitions)} partitions. {seats}"


def format_details(lag: QueryLag) -> Iterator[str]:
    """The facts of `kgroup describe`, a line for each seat that is served and for each partition."""
    for seat, served in sorted(lag.seats.items()):
        since = datetime.fromtimestamp(served["since"] / 1000, UTC).isoformat(timespec="seconds")
        yield (
            f"query {lag.query}: seat {seat} is member {served['member']}, served by executor {served['executor']} on "
            f"{served['host']} since {since}, {'warm' if served['warm'] else 'not warm'}"
        )
    for each in lag.partitions:
        yield (
            f"query {lag.query}: {each.partition} of seat {each.seat} is read up to {each.position} of {each.end}, "
            f"lag {each.lag}"
        )


class _Gauges:
    """A collector (prometheus_client.registry.Collector): series that leave a query's progress end at once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lags: dict[str, QueryLag] = {}

    def put(self, run: str, lag: QueryLag) -> None:
        """A batch of this query run is done. Each listener of a session reports it."""
        with self._lock:
            self._lags[run] = lag

    def drop(self, run: str) -> None:
        """The run is over."""
        with self._lock:
            self._lags.pop(run, None)

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """All gauges of all queries, as they are now."""
        from prometheus_client.core import GaugeMetricFamily

        with self._lock:
            lags = list(self._lags.values())
        seat = ["query", "group", "seat"]
        partition = [*seat, "topic", "partition"]
        families = {
            name: GaugeMetricFamily(name, documentation, labels=labels)
            for name, documentation, labels in (
                ("kgroup_partition_position_offset", "The next offset of a partition to read.", partition),
                ("kgroup_partition_end_offset", "One past the last offset of a partition.", partition),
                ("kgroup_partition_lag_offsets", "Offsets of a partition that are still to be read.", partition),
                (
                    "kgroup_seat_info",
                    "Always 1. Its labels say which member of the group the seat is, and who serves it.",
                    [*seat, "executor", "host", "member_id"],
                ),
                ("kgroup_seat_lag_offsets", "Offsets of a seat's partitions that are still to be read.", seat),
                ("kgroup_seat_warm", "1 if the seat's own server reads on its executor.", seat),
                ("kgroup_seat_since_timestamp_seconds", "Since when that executor serves the seat.", seat),
            )
        }
        for (name, labels), value in _samples(lags).items():
            families[name].add_metric(list(labels), value)
        yield from families.values()


_GAUGES: Final[WeakKeyDictionary[CollectorRegistry, _Gauges]] = WeakKeyDictionary()
_GAUGES_LOCK: Final = threading.Lock()


def _get_gauges(registry: CollectorRegistry) -> _Gauges:
    """The gauges of one registry, which takes each metric's name once. A cell that is run again adds a listener."""
    with _GAUGES_LOCK:
        if registry not in _GAUGES:
            gauges = _Gauges()
            registry.register(gauges)
            _GAUGES[registry] = gauges
        return _GAUGES[registry]


def _samples(lags: list[QueryLag]) -> dict[tuple[str, tuple[str, ...]], float]:
    """(metric, label values) -> value: no two samples may have the same labels."""
    found: dict[tuple[str, tuple[str, ...]], float] = {}
    for lag in lags:
        for each in lag.partitions:
            group = lag.groups.get(each.seat, "")
            labels = (lag.query, group, each.seat, each.partition.topic, str(each.partition.partition))
            found["kgroup_partition_position_offset", labels] = each.position
            found["kgroup_partition_end_offset", labels] = each.end
            found["kgroup_partition_lag_offsets", labels] = each.lag
        for seat, count in lag.by_seat.items():
            of_seat = (lag.query, lag.groups.get(seat, ""), seat)
            found["kgroup_seat_lag_offsets", of_seat] = count
            if served := lag.seats.get(seat):
                who = (str(served["executor"]), str(served["host"]), str(served["member"]))
                found["kgroup_seat_info", (*of_seat, *who)] = 1
                found["kgroup_seat_warm", of_seat] = float(served["warm"])
                found["kgroup_seat_since_timestamp_seconds", of_seat] = served["since"] / 1000
    return found
