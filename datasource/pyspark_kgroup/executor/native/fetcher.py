"""Fetches from several brokers at once: positions, the order of partitions, and which broker is asked for which.

Runs on: executor.

Each broker has one request under way, always: the next one goes out as soon as an answer has come, before its records
are decoded, since the headers of its batches say where the next one begins. So the broker reads while we decode.

Brokers do not wait for each other: while one is being connected to, is silent, or pauses in the midst of an answer, the
others are read. If a broker fails, the partitions that it serves as a replica go back to their leaders (KIP-392), those
that it leads are left to librdkafka, and the partitions of other brokers go on. A partition with an unusual answer is
left to librdkafka too. Only one request makes all brokers wait, for `FETCH_BROKERS_MS` at most: Metadata, for the
address of a node that a leader prefers and that neither the driver nor an answer has located.
"""

from __future__ import annotations

import math
import selectors
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Final, NamedTuple

from pyspark_kgroup.executor.native import fetch_messages as messages
from pyspark_kgroup.executor.native.broker_connection import (
    AnswerMemory,
    Broker,
    BrokerConnection,
    BrokerFailed,
    Connecting,
)
from pyspark_kgroup.executor.native.connection_security import ConnectionSecurity
from pyspark_kgroup.executor.native.decode import FallbackToLibrdkafka
from pyspark_kgroup.executor.native.fetch_messages import Bounds, FetchAnswer, Fetched
from pyspark_kgroup.executor.native.fetch_settings import FetchSettings
from pyspark_kgroup.executor.native.fetched_log import FetchedLog, Verdict
from pyspark_kgroup.limits import (
    FETCH_AWAITED_MS,
    FETCH_BUSY_BYTES_MIN,
    FETCH_BUSY_WAIT_MS,
    FETCH_IDLE_WAIT_MS,
    FETCH_PARTITIONS_MAX,
    FETCH_SILENCE_MS,
)
from pyspark_kgroup.shared.tickets import Leader
from spark_kgroup.model import TopicPartition

_EMPTY_ANSWERS_MAX: Final = 2
"""After so many answers in a row without a record, a range is left to librdkafka, since its log has records there. The
first of them may have come amid a change."""


class Chunk(NamedTuple):
    """Record batches of one partition, as they are in an answer.

    Attributes:
        position: the first offset that is wanted of them.
        end: one past the last wanted offset, or None if all are wanted.
        next_offset: where the next request goes on: one past their last offset, or the end.
        records: a view of memory that the next `Fetcher.take` may use again.
        aborted: (producer id, first offset) of the aborted transactions among them.
    """

    partition: TopicPartition
    position: int
    end: int | None
    next_offset: int
    records: memoryview
    aborted: Sequence[tuple[int, int]]


@dataclass(slots=True)
class _Asked:
    """One broker, the partitions that it is asked for, and its request under way.

    Attributes:
        node_id: the broker's.
        owed: a request is due. It waits for a connection, or for the end of a pause or of `muted_until_s`.
        logs: in the order in which they are asked for, `FETCH_PARTITIONS_MAX` at a time. Those of the last answer come
            last, and among them those that gave records: KIP-74 promises progress only to the first of a request.
        under_way: the partitions in the request under way, by their names in its answer. Empty without a request.
        overdue_at_s: when the answer to it is overdue.
        muted_until_s: until then the broker reads no request of ours, since a quota was exceeded (KIP-219).
        awaited_since_s: since when a reader waits for this broker without any answer, or None if no reader waits.
        idle: whether the last answer had no record.
    """

    node_id: int
    broker: Broker
    logs: list[FetchedLog] = field(default_factory=list)
    owed: bool = False
    connecting: Connecting | None = None
    connection: BrokerConnection | None = None
    under_way: dict[tuple[bytes, int], FetchedLog] = field(default_factory=dict)
    overdue_at_s: float = 0.0
    muted_until_s: float = 0.0
    awaited_since_s: float | None = None
    idle: bool = False

    def open_logs(self) -> list[FetchedLog]:
        return [log for log in self.logs if not log.done]

    def due_logs(self, now_s: float) -> list[FetchedLog]:
        """The partitions that one request may ask for now."""
        if now_s < self.muted_until_s:
            return []
        due = (log for log in self.logs if log.paused_until_s <= now_s and not log.done)
        return list(islice(due, FETCH_PARTITIONS_MAX))

    def on_awaited(self, now_s: float, *, at_once: bool) -> None:
        """Note whether a reader waits for this broker (`at_once`)."""
        if not at_once:
            self.awaited_since_s = None
        elif self.awaited_since_s is None or (not self.under_way and self.connecting is None):
            self.awaited_since_s = max(now_s, self.muted_until_s)

    def silent_at_s(self) -> float:
        """When the broker's silence counts as failure, or infinity if it never does."""
        patience_s = math.inf if self.awaited_since_s is None else self.awaited_since_s + FETCH_AWAITED_MS / 1000
        if self.under_way:
            return min(self.overdue_at_s, patience_s)
        return patience_s if self.connecting is not None else math.inf

    def wait_ends_at_s(self) -> float:
        """When a request to the broker is due, or its silence counts as failure. Infinity for never."""
        if self.owed and not self.under_way and self.connecting is None:
            paused_until_s = min((log.paused_until_s for log in self.open_logs()), default=math.inf)
            return max(self.muted_until_s, paused_until_s)
        return self.silent_at_s()

    def hang_up(self) -> None:
        """End the connection, which has no request under way. Another one takes its place."""
        if self.connection is not None:
            self.connection.close()
        self.connection = None

    def close(self) -> None:
        for end in (self.connecting, self.connection):
            if end is not None:
                end.close()
        self.connecting = self.connection = None
        self.under_way = {}
        self.owed = False


class _Terms(NamedTuple):
    """The arguments of `Fetcher.ask`, for the requests that are owed."""

    bytes_max: int | None = None
    at_once: bool = False


class Fetcher:
    """Fetches partitions from their leaders, or from replicas that these prefer, each up to its first unusual answer.

    Methods raise `FallbackToLibrdkafka` when no partition is left to fetch. `close` is due then. If the error is a
    `LogLost`, another fetcher may go on.

    Args:
        settings: how to fetch.
        security: TLS and SASL.

    Attributes:
        left: partitions that are no longer fetched while the rest are, and why: their broker has failed, or its answer
            for them is unusual.
    """

    def __init__(self, settings: FetchSettings, security: ConnectionSecurity) -> None:
        self._settings = settings
        self._security = security
        self._brokers: dict[int, Broker] = {}
        self._asked: dict[int, _Asked] = {}
        self._terms = _Terms()
        self.left: dict[TopicPartition, FallbackToLibrdkafka] = {}
        self._memory = AnswerMemory()

    def add(
        self, partition: TopicPartition, leader: Leader, position: int, end: int | None = None, *, last_epoch: int = -1
    ) -> None:
        """From the next request on, fetch `partition` too.

        Args:
            partition: is not being fetched yet, or is left.
            leader: as metadata has it.
            position: the first offset.
            end: one past the last, or None for no end: records are fetched as they come.
            last_epoch: leader epoch of the batch before `position`, by which the leader tells whether its log is the
                same (KIP-320), or -1 if it is unknown.
        """
        self.left.pop(partition, None)
        self._brokers[leader.node_id] = Broker(leader.host, leader.port)
        self._add(FetchedLog(partition, leader, position, end, last_epoch))

    def drop(self, partitions: Collection[TopicPartition]) -> None:
        """Stop fetching these partitions. Records of theirs that are on their way are not returned."""
        for asked in self._asked.values():
            for log in asked.logs:
                if log.partition in partitions:
                    log.end = log.position  # `done` from now on: the answer under way is not taken for it
            asked.logs = asked.open_logs()
        for partition in partitions:
            self.left.pop(partition, None)

    def ask(self, bytes_max: int | None = None, *, at_once: bool = False) -> None:
        """Ask every broker that has no request under way for its partitions.

        A broker is asked later, in `ready`, if its connection is not open yet, or if all of its partitions have to
        pause (`FetchedLog`).

        Args:
            bytes_max: of each answer, less than the settings allow.
            at_once: whether a reader waits for records that should be in the log. A broker that is silent for
                `FETCH_AWAITED_MS` has failed then.
        """
        self._terms, now_s = _Terms(bytes_max, at_once), time.monotonic()
        for asked in self._asked.values():
            asked.owed = not asked.under_way
            asked.on_awaited(now_s, at_once=at_once)
        self._ask_owed()

    def connections(self) -> list[BrokerConnection]:
        """The connections with a request under way."""
        return [asked.connection for asked in self._asked.values() if asked.connection is not None and asked.under_way]

    def readables(self) -> list[BrokerConnection | Connecting]:
        """The connections for `select` to wait for. Once one is readable, `ready` is due."""
        connecting = [asked.connecting for asked in self._asked.values() if asked.connecting is not None]
        return [*self.connections(), *connecting]

    def waits(self) -> bool:
        """Whether a request is under way or owed, so that `ready` has an answer to wait for."""
        return bool(self.readables()) or self.wait_s() is not None

    def wait_s(self) -> float | None:
        """How long `select` may wait until `ready` is due anyway, or None for ever."""
        ends_at_s = min((asked.wait_ends_at_s() for asked in self._asked.values()), default=math.inf)
        return None if ends_at_s == math.inf else max(0.0, ends_at_s - time.monotonic())

    def ready(self, wait_s: float = math.inf) -> list[BrokerConnection]:
        """Wait for the next answers, `wait_s` at most: the connections on which they come.

        Raises:
            FallbackToLibrdkafka: no request is under way or owed, or every broker that was waited for has failed.
        """
        until_s = time.monotonic() + wait_s
        if not self.waits():
            raise FallbackToLibrdkafka("no range is left to ask for")
        while True:
            self._ask_owed()
            self._take_connected()
            found = self._select(until_s - time.monotonic())
            self._end_silent(found)
            if found or time.monotonic() >= until_s or not self.waits():
                return found

    def take(self, connection: BrokerConnection, *, go_on: bool = True) -> list[Chunk]:
        """Receive the bytes that have come on `connection`, without waiting for the rest of the answer.

        Args:
            connection: out of `connections`.
            go_on: whether the next request is sent before this returns.

        Returns:
            The answer's chunks once all of it has come, else none. They are to be used before the next call.
        """
        asked = next(asked for asked in self._asked.values() if asked.connection is connection)
        asked.awaited_since_s = None
        chunks: list[Chunk] = []
        left_before = len(self.left)
        with self._losing_only(asked):
            received = connection.take_fetched(self._memory)
            if received is None:
                asked.overdue_at_s = time.monotonic() + FETCH_SILENCE_MS / 1000
                return []
            chunks = self._take_answer(asked, messages.fetch_answer(connection.fetch_version, received))
        if len(self.left) > left_before and not chunks and not self._has_open_logs():
            raise next(reversed(self.left.values()))
        if go_on:
            self.ask()
        return chunks

    def close(self) -> None:
        """End every connection."""
        for asked in self._asked.values():
            asked.close()

    # --------------------------------------------------------------------------------------------------------- asking

    def _select(self, wait_s: float) -> list[BrokerConnection]:
        """The connections on which answers come within `wait_s`, or earlier if a broker is due (`self.wait_s`)."""
        own_s = self.wait_s()
        wait_s = min(wait_s, math.inf if own_s is None else own_s)
        with selectors.DefaultSelector() as selector:  # not `select`, which takes no descriptor above 1,023
            for readable in self.readables():
                selector.register(readable, selectors.EVENT_READ, readable)
            found = [key.data for key, _ in selector.select(None if wait_s == math.inf else wait_s)]
        return [readable for readable in found if isinstance(readable, BrokerConnection)]

    def _take_connected(self) -> None:
        """Take over connections that have opened although no partition is due on them, as after `drop`.

        A `Connecting` that is done stays readable: left alone, it would end every `select` at once.
        """
        for asked in list(self._asked.values()):
            if asked.connecting is not None:
                with self._losing_only(asked):
                    self._connection(asked)

    def _end_silent(self, answering: Collection[BrokerConnection]) -> None:
        now_s = time.monotonic()
        for asked in list(self._asked.values()):
            # Bytes that have come are no silence, even if this process takes them too late.
            if asked.silent_at_s() <= now_s and asked.connection not in answering:
                with self._losing_only(asked):
                    raise BrokerFailed(f"{asked.broker} did not answer in time")

    @contextmanager
    def _losing_only(self, asked: _Asked) -> Iterator[None]:
        """If this broker fails within the block, it loses its partitions (`_stop_asking`), and the other brokers go on.

        Raises:
            Verdict: the broker's answer is final.
            FallbackToLibrdkafka: the broker has failed, and no other broker has partitions to fetch.
        """
        try:
            yield
        except Verdict:
            raise
        except FallbackToLibrdkafka as failure:
            asked.close()
            logs = asked.open_logs()
            for log in logs:
                self._stop_asking(log, asked, failure)
            if logs and not self._has_open_logs():
                raise

    def _stop_asking(self, log: FetchedLog, asked: _Asked, failure: FallbackToLibrdkafka) -> None:
        """Stop asking this broker for `log`, since it has failed, or its answer for `log` is unusual.

        The leader is asked instead of a replica. If the leader itself was asked, the partition is `left`.
        """
        asked.logs = [other for other in asked.logs if other is not log]
        if log.return_to_leader(time.monotonic()):
            leader = self._add(log)
            leader.owed = not leader.under_way
        else:
            self.left[log.partition] = failure

    def _has_open_logs(self) -> bool:
        return any(asked.open_logs() for asked in self._asked.values())

    def _ask_owed(self) -> None:
        for asked in list(self._asked.values()):
            if asked.owed:
                with self._losing_only(asked):
                    self._ask(asked)

    def _add(self, log: FetchedLog) -> _Asked:
        node_id = log.node_id
        if node_id not in self._asked:
            self._asked[node_id] = _Asked(node_id, self._brokers[node_id])
        self._asked[node_id].logs.append(log)
        return self._asked[node_id]

    def _move(self, log: FetchedLog, asked: _Asked) -> None:
        """Put `log` under the broker that its next request goes to."""
        if log.node_id != asked.node_id:
            asked.logs = [other for other in asked.logs if other is not log]
            self._add(log)

    def _ask(self, asked: _Asked) -> None:
        now_s = time.monotonic()
        logs = asked.due_logs(now_s)
        connection = self._connection(asked) if logs else None
        if connection is None:
            return
        asked.owed = False
        wanted = [log.wanted() for log in logs]
        bounds = self._bounds(asked, logs)
        # A leader that is to be kept to does not learn the rack, or it would prefer a replica again.
        body = messages.fetch_request(
            connection.fetch_version,
            wanted,
            bounds,
            read_committed=self._settings.read_committed,
            rack="" if any(log.keeps_to_leader(now_s) for log in logs) else self._settings.rack,
        )
        connection.ask_to_fetch(body)
        keys = (messages.answer_key(connection.fetch_version, one) for one in wanted)
        asked.under_way = dict(zip(keys, logs, strict=True))
        asked.overdue_at_s = time.monotonic() + (bounds.wait_ms_max + FETCH_SILENCE_MS) / 1000

    def _connection(self, asked: _Asked) -> BrokerConnection | None:
        """An open connection without a request under way, whose session does not end soon. None while it opens."""
        if asked.connecting is not None:
            if not asked.connecting.is_done:
                return None
            connecting, asked.connecting = asked.connecting, None
            asked.connection = connecting.connection()
        elif asked.connection is not None and (asked.connection.session_ends or asked.connection.has_ended):
            asked.hang_up()
        by_id = all(log.leader.topic_id for log in asked.logs)
        if asked.connection is not None and asked.connection.fetch_version > messages.FETCH_BY_NAME and not by_id:
            asked.hang_up()  # that version takes ids only, and the id of one topic is unknown
        if asked.connection is None:
            # An answer, or the driver's newer metadata, may name another address.
            asked.broker = self._brokers[asked.node_id]
            opening = partial(
                BrokerConnection.open, asked.broker, self._settings.client_id, self._security, by_id=by_id
            )
            asked.connecting = Connecting(asked.broker, opening)
        return asked.connection

    def _bounds(self, asked: _Asked, logs: Sequence[FetchedLog]) -> Bounds:
        """How long the broker waits, and for how many bytes.

        Where records are known to be in the log, the first of them ends the wait. Without an end, a broker waits for
        `FETCH_BUSY_BYTES_MIN` while records flow, and only for the first record after an answer without any. While a
        reader waits (`at_once`) no poll lasts long, since the next read may be of other partitions. If a request asks
        for only a part of the broker's partitions, and none of them has an end, it waits for that part of the time.
        """
        bytes_max, at_once = self._terms
        endless = all(log.end is None for log in logs)
        if at_once:
            wait_ms, bytes_min = FETCH_BUSY_WAIT_MS, 1
        elif endless and not asked.idle:
            wait_ms, bytes_min = FETCH_BUSY_WAIT_MS, FETCH_BUSY_BYTES_MIN
        else:
            wait_ms, bytes_min = FETCH_IDLE_WAIT_MS, 1
        if endless:
            wait_ms = max(1, wait_ms * len(logs) // len(asked.logs))
        return Bounds(wait_ms, bytes_min, bytes_max or self._settings.bytes_max, self._settings.partition_bytes_max)

    # -------------------------------------------------------------------------------------------------------- answers

    def _take_answer(self, asked: _Asked, answer: FetchAnswer) -> list[Chunk]:
        under_way, asked.under_way = asked.under_way, {}
        self._brokers.update((node_id, Broker(*where)) for node_id, where in answer.endpoints.items())
        if answer.throttle_ms > 0:
            asked.muted_until_s = time.monotonic() + min(answer.throttle_ms, FETCH_SILENCE_MS) / 1000
            if not answer.fetched:  # above a quota, Kafka answers any request without partitions
                return []
        logs = []
        for one in answer.fetched:
            log = under_way.pop((one.topic, one.partition), None)
            if log is None:
                raise FallbackToLibrdkafka(f"{asked.broker} answered for a partition that it was not asked for")
            logs.append(log)
        if under_way:
            raise FallbackToLibrdkafka(f"{asked.broker} did not answer for each partition that it was asked for")
        # BEFORE positions move: if this request fails, the records of this answer are still to be read.
        self._look_up({one.preferred_replica for one in answer.fetched if one.preferred_replica >= 0}, asked)
        # From here on positions move, so an unusual answer for one log must not hold back the records of the rest.
        taken = (self._take(log, one, asked) for log, one in zip(logs, answer.fetched, strict=True) if not log.done)
        chunks = [chunk for chunk in taken if chunk is not None]
        # A broker that refuses one partition answers at once, so the rest may be empty for lack of time.
        refused = any(one.error for one in answer.fetched)
        self._note(asked, logs, {chunk.partition for chunk in chunks}, counts=not refused)
        return chunks

    def _look_up(self, preferred: Collection[int], asked: _Asked) -> None:
        """Ask where these nodes are, if the driver's metadata did not tell."""
        if asked.connection is not None and not self._brokers.keys() >= set(preferred):
            self._brokers = asked.connection.brokers() | self._brokers

    def _take(self, log: FetchedLog, fetched: Fetched, asked: _Asked) -> Chunk | None:
        """The chunk that was fetched of `log`, or None if there is none: another node may be asked next then."""
        chunk, now_s = None, time.monotonic()
        try:
            if fetched.error:
                log.on_refused(fetched.error, self._new_leader(log, fetched.leader), now_s)
            elif fetched.diverges_at is not None:
                log.on_diverged(fetched.diverges_at, now_s)
            else:
                log.on_answered(now_s)
                chunk = self._chunk(log, fetched)
                if chunk is None and fetched.preferred_replica >= 0:
                    self._on_preferred(log, fetched.preferred_replica, now_s)
        except Verdict:
            raise
        except FallbackToLibrdkafka as fallback:
            self._stop_asking(log, asked, fallback)
            return None
        self._move(log, asked)
        return chunk

    def _on_preferred(self, log: FetchedLog, node_id: int, now_s: float) -> None:
        """The leader prefers another node (KIP-392)."""
        log.on_preferred(node_id, now_s)
        if node_id not in self._brokers:
            log.return_to_leader(now_s)

    def _new_leader(self, log: FetchedLog, leader: tuple[int, int] | None) -> Leader | None:
        """The leader that an answer names, or None if it names none or the address of that node is unknown."""
        node_id, epoch = leader or (-1, -1)
        where = self._brokers.get(node_id)
        return where and Leader(node_id, *where, epoch, log.leader.topic_id)

    def _chunk(self, log: FetchedLog, fetched: Fetched) -> Chunk | None:
        """The batches that were fetched of `log`, whose position moves past them. None if no batch is whole."""
        batches = messages.read_batch_headers(fetched.records, log.position, log.end)
        if not batches.size:
            return None
        position = log.position
        log.on_records(batches.next_offset, batches.leader_epoch)
        records = fetched.records[: batches.size]
        return Chunk(log.partition, position, log.end, log.position, records, fetched.aborted)

    def _note(self, asked: _Asked, had: Sequence[FetchedLog], spoke: set[TopicPartition], *, counts: bool) -> None:
        """Put the partitions of an answer behind the rest, and count successive answers without any record."""
        last = {id(log): log.partition in spoke for log in had}
        others = [log for log in asked.logs if id(log) not in last and not log.done]
        answered = sorted(
            (log for log in asked.logs if id(log) in last and not log.done), key=lambda log: last[id(log)]
        )
        asked.logs = others + answered
        asked.idle = not spoke and (counts or asked.idle)
        for log in answered:
            log.empty = 0 if spoke else log.empty + counts
            if log.end is not None and log.empty >= _EMPTY_ANSWERS_MAX:
                nothing = FallbackToLibrdkafka(f"{log.partition} has no record from offset {log.position} to {log.end}")
                self._stop_asking(log, asked, nothing)
