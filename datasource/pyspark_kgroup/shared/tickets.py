"""Tickets: the offsets that a seat reads in one micro-batch, and whether ticket or registry names the seat.

Runs on: both. Pure: made by the driver, pickled by Spark, read by an executor.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Literal, NamedTuple

from pyspark_kgroup.limits import SIDECAR_IDLE_MS
from spark_kgroup.limits import API_TIMEOUT_MS

Reader = Literal["native", "librdkafka"]
"""Which reader reads: the native one ordinary records and librdkafka the rest, or librdkafka alone."""


class Leader(NamedTuple):
    """The leader of a partition, by the metadata that the driver had when a range of it was planned.

    Attributes:
        epoch: the leader's (KIP-320).
        topic_id: the topic's, 32 hexadecimal digits (KIP-516), or "" where a cluster has none.
    """

    node_id: int
    host: str
    port: int
    epoch: int
    topic_id: str


class OffsetRange(NamedTuple):
    """Offsets of one partition: `start_offset` <= offset < `end_offset`.

    Attributes:
        leader: None if it is not known.
        unled_topic_id: the topic's, as `Leader` has it, where no leader is known.
    """

    topic: str
    partition: int
    start_offset: int
    end_offset: int
    leader: Leader | None = None
    unled_topic_id: str = ""

    @property
    def topic_id(self) -> str:
        """The id of the topic of which the range was planned, or "" where a cluster has none."""
        return self.leader.topic_id if self.leader is not None else self.unled_topic_id


class Position(NamedTuple):
    """Where the next batch will begin in a partition that a seat owns.

    Attributes:
        tag: of the log that was looked at (`plan.positions_by_seat`).
        leader: None if it is not known, or a range of the same batch names it.
    """

    topic: str
    partition: int
    offset: int
    tag: str
    leader: Leader | None = None


class TopicSize(NamedTuple):
    """How many rows of one topic a read had, and how many bytes they take as Arrow has them."""

    topic: str
    rows: int
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SeatRanges:
    """The ranges that one ticket reads: a seat's whole share of a micro-batch, or a piece of it.

    Attributes:
        seat: the seat's instance id, or "" in a batch read.
        ranges: at most one for each partition.
    """

    seat: str
    ranges: tuple[OffsetRange, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadSettings:
    """How ranges are read, the same for all seats.

    Attributes:
        consumer_config: librdkafka's configuration (`SourceOptions.consumer_config`). May hold secrets.
        reader: with which reader.
        include_headers: whether batches have the column `headers`.
        include_timestamps: whether the column `timestamp` is used. If not, it may hold any values.
        columns: those that Spark gets, in their order, or empty for all.
        fail_on_data_loss: whether offsets that are gone are an error, or skipped with a warning.
        stall_timeout_ms: how long may pass without a record, not counting the time that the caller takes for a batch.
        cluster: the id of the driver's cluster, or "" if brokers do not say it.
        may_read: whether this user is known to have had READ on the topics: a group's commits need it as well. Then it
            may be missing for a while (`rights`).
    """

    consumer_config: Mapping[str, str] = field(repr=False)
    reader: Reader = "native"
    include_headers: bool = False
    include_timestamps: bool = True
    columns: tuple[str, ...] = ()
    fail_on_data_loss: bool = True
    stall_timeout_ms: int = API_TIMEOUT_MS
    cluster: str = ""
    may_read: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Executor:
    """One executor process (JVM).

    Attributes:
        key: unique among all processes of all hosts: host, JVM pid and its start time.
        executor_id: Spark's ("driver" in local mode), "" if unknown.
        pid: of the JVM.
        rack: where it is, by its environment, or "" if that does not say.
        has_sidecar: whether it may have one. If not, its workers read directly and it is never a home.
        cores: how many tasks it runs at once, by the arguments of its JVM and `spark.task.cpus`, or 0 if it is unknown.
    """

    key: str
    executor_id: str
    host: str
    pid: int
    rack: str = ""
    has_sidecar: bool = True
    cores: int = 0


class SidecarAddress(NamedTuple):
    """Where an executor's sidecar can be reached by workers of other executors.

    Attributes:
        host: a name or an address.
        executor: the executor's key.
    """

    host: str
    port: int
    executor: str

    @property
    def server(self) -> str:
        """The sidecar's name in a handshake over the network: no other sidecar can pass for it."""
        return f"sidecar of executor {self.executor}"


class Mode(Enum):
    """Which ranges a ticket reads: its own ones, or those that the registry names when a worker asks."""

    FIXED = "fixed"
    LATE = "late"


@dataclass(frozen=True, slots=True, kw_only=True)
class RegistryAccess:
    """Where a query's registry is, and the terms on which a sidecar serves the query.

    Attributes:
        host: None for the driver's host as Spark knows it.
        key: the application's secret. Queries that share it share the sidecars of their executors.
        query: names this run of the query among all of the application.
        prefetch_bytes: how much the query's seats on one executor may hold ahead of the next batch, in all.
        idle_ms: how long a sidecar serves the query without a read.
        tells_sizes: whether reads tell how large their rows were (`maxBytesPerTrigger`).
    """

    host: str | None
    port: int
    key: bytes = field(repr=False)
    query: str
    prefetch_bytes: int
    idle_ms: int = SIDECAR_IDLE_MS
    tells_sizes: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TicketPayload:
    """All that a task needs to read one ticket.

    Attributes:
        scan_id: of the scan that the ticket belongs to.
        ticket: its number within the scan.
        mode: whether the ticket or the registry names the ranges.
        reads: if FIXED, the ranges to read, whether the registry can be asked or not. None if LATE.
        settings: how to read.
        registry: None if there is none. Then no server fetches ahead.
        sidecars: some of other executors, which ask the registry for a worker that cannot reach it.
    """

    scan_id: int
    ticket: int
    mode: Mode
    reads: SeatRanges | None
    settings: ReadSettings
    registry: RegistryAccess | None
    sidecars: tuple[SidecarAddress, ...] = ()
