"""Fetches from several brokers at once: positions, the order of partitions, and who is asked for what.

Runs on: executor.

Each broker has one request under way, always: the next one goes out as soon as an answer has come, before anybody looks
at its records, since the headers of its batches say where the next one begins. So the broker reads while we decode.
"""

from __future__ import annotations

import selectors
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from pyspark_kgroup.executor.native import fetch_messages as messages
from pyspark_kgroup.executor.native.broker_connection import AnswerMemory, Broker, BrokerConnection
from pyspark_kgroup.executor.native.connection_security import ConnectionSecurity
from pyspark_kgroup.executor.native.decode import Unusual
from pyspark_kgroup.executor.native.fetch_messages import Bounds, Fetched, Wanted
from pyspark_kgroup.executor.native.fetch_settings import FetchSettings
from pyspark_kgroup.limits import (
    FETCH_BUSY_BYTES_MIN,
    FETCH_BUSY_WAIT_MS,
    FETCH_IDLE_WAIT_MS,
    FETCH_SILENCE_MS,
)
from pyspark_kgroup.shared.tickets import Leader
from spark_kgroup.model import ErrorCode, TopicPartition

_EMPTY_ANSWERS_MAX: Final = 2
"""Answers without a record for ranges that end below the end of their logs: the first may have come amid a change."""


class Chunk(NamedTuple):
    """Record batches of one partition, as they are in an answer.

    Attributes:
        position: the first offset that is wanted of them.
        end: one past the last that is wanted; None: all are.
        next_offset: where the next request goes on: one past their last, or the end.
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
class _Log:
    """A partition that is fetched.

    Attributes:
        position: the first offset that the next request asks for.
        last_epoch: of the batch before it, -1 if none was fetched.
    """

    partition: TopicPartition
    leader: Leader
    position: int
    end: int | None
    last_epoch: int = -1

    @property
    def done(self) -> bool:
        return self.end is not None and self.position >= self.end

    def wanted(self) -> Wanted:
        topic_id = bytes.fromhex(self.leader.topic_id)
        return Wanted(*self.partition, topic_id, self.leader.epoch, self.position, self.last_epoch)


@dataclass(slots=True)
class _Asked:
    """What one broker is asked.

    Attributes:
        logs: in the order in which they are asked for: what has just given records comes last, since only the first is
            promised progress (KIP-74).
        under_way: what the request under way asks for, by the names in its answer; empty if there is none.
        overdue_at_s: when the answer to it is overdue.
        throttled_ms: how long the broker mutes the connection after its last answer (KIP-219).
        empty: how many answers in a row had no record.
    """

    broker: Broker
    logs: list[_Log] = field(default_factory=list)
    connection: BrokerConnection | None = None
    under_way: dict[tuple[bytes, int], _Log] = field(default_factory=dict)
    overdue_at_s: float = 0.0
    throttled_ms: int = 0
    empty: int = 0

    def open_logs(self) -> list[_Log]:
        return [log for log in self.logs if not log.done]

    def close(self) -> None:
        if self.connection is not None:
            self.connection.close()
        self.connection = None
        self.under_way = {}


class Fetcher:
    """Fetches partitions from where they are said to be, as long as nothing unusual happens.

    Methods raise `Unusual`; nothing more can be fetched then, and `close` is due.

    Args:
        settings: how to fetch.
        security: TLS and SASL.
        brokers: where nodes listen that a leader may prefer to itself (KIP-392); those of leaders are known anyway.
    """

    def __init__(
        self, settings: FetchSettings, security: ConnectionSecurity, brokers: Mapping[int, Broker] | None = None
    ) -> None:
        self._settings = settings
        self._security = security
        self._brokers = dict(brokers or {})
        self._asked: dict[int, _Asked] = {}
        self._memory = AnswerMemory()

    def add(self, partition: TopicPartition, leader: Leader, position: int, end: int | None = None) -> None:
        """From the next request on, fetch `partition` too.

        Args:
            partition: is not being fetched yet.
            leader: as metadata has it.
            position: the first offset.
            end: one past the last; None: without an end, as records come.
        """
        self._brokers[leader.node_id] = Broker(leader.host, leader.port)
        self._add(_Log(partition, leader, position, end), leader.node_id)

    def drop(self, partition: TopicPartition) -> None:
        """Fetch `partition` no more; what is on its way of it will not be shown."""
        for asked in self._asked.values():
            for log in asked.logs:
                if log.partition == partition:
                    log.end = log.position
            asked.logs = asked.open_logs()

    def ask(self) -> None:
        """Send a request to every broker that has none under way and has something to be asked for."""
        for asked in self._asked.values():
            if not asked.under_way:
                self._ask(asked)

    def connections(self) -> list[BrokerConnection]:
        """Those with a request under way, for `select`."""
        return [asked.connection for asked in self._asked.values() if asked.connection is not None and asked.under_way]

    def patience_s(self) -> float:
        """How long the next answer may still take; 0 if one is overdue, or there is nothing to wait for."""
        overdue_at_s = [asked.overdue_at_s for asked in self._asked.values() if asked.under_way]
        return max(0.0, min(overdue_at_s, default=0.0) - time.monotonic())

    def ready(self) -> list[BrokerConnection]:
        """Wait for the next answers: the connections on which they come.

        Raises:
            Unusual: none has come for too long, or there is nothing to wait for.
        """
        waiting = self.connections()
        if not waiting:
            raise Unusual("nothing is left to ask for")
        with selectors.DefaultSelector() as selector:  # not `select`, which takes no descriptor above 1,023
            for connection in waiting:
                selector.register(connection, selectors.EVENT_READ, connection)
            found = [key.data for key, _ in selector.select(self.patience_s())]
        if not found:
            silent = min((asked for asked in self._asked.values() if asked.under_way), key=lambda a: a.overdue_at_s)
            raise Unusual(f"{silent.broker} did not answer in time")
        return found

    def take(self, connection: BrokerConnection, *, go_on: bool = True) -> list[Chunk]:
        """Receive the answer that comes on `connection`.

        Args:
            connection: out of `connections`.
            go_on: whether the next request is sent before this returns.

        Returns:
            What it holds: to be looked at before the next call.
        """
        asked = next(asked for asked in self._asked.values() if asked.connection is connection)
        answer = connection.take_fetched(self._memory)
        asked.throttled_ms, fetched = messages.fetch_answer(connection.fetch_version, answer)
        under_way, asked.under_way = asked.under_way, {}
        chunks = []
        for one in fetched:
            log = under_way.pop((one.topic, one.partition), None)
            if log is None:
                raise Unusual(f"{asked.broker} answered for what it was not asked for")
            chunk = self._chunk(log, one) if not log.done else None
            if chunk is not None:
                chunks.append(chunk)
            elif one.preferred_replica >= 0:
                self._move(log, asked, one.preferred_replica)
        if under_way:
            raise Unusual(f"{asked.broker} did not answer for all that it was asked for")
        self._note(asked, {chunk.partition for chunk in chunks})
        if go_on:
            self.ask()
        return chunks

    def close(self) -> None:
        """End every connection."""
        for asked in self._asked.values():
            asked.close()

    # --------------------------------------------------------------------------------------------------------- asking

    def _add(self, log: _Log, node_id: int) -> None:
        if node_id not in self._asked:
            if node_id not in self._brokers:
                raise Unusual(f"{log.partition} is to be read from node {node_id}, and where that is nobody said")
            self._asked[node_id] = _Asked(self._brokers[node_id])
        self._asked[node_id].logs.append(log)

    def _move(self, log: _Log, asked: _Asked, node_id: int) -> None:
        """Ask the replica that the leader prefers (KIP-392)."""
        asked.logs = [other for other in asked.logs if other is not log]
        self._add(log, node_id)

    def _ask(self, asked: _Asked) -> None:
        logs = asked.open_logs()
        if not logs:
            return
        connection = self._connection(asked)
        wanted = [log.wanted() for log in logs]
        bounds = self._bounds(asked, logs)
        body = messages.fetch_request(
            connection.fetch_version,
            wanted,
            bounds,
            read_committed=self._settings.read_committed,
            rack=self._settings.rack,
        )
        connection.ask_to_fetch(body)
        keys = (messages.key_of(connection.fetch_version, one) for one in wanted)
        asked.under_way = dict(zip(keys, logs, strict=True))
        patience_ms = bounds.wait_ms_max + asked.throttled_ms + FETCH_SILENCE_MS
        asked.overdue_at_s = time.monotonic() + patience_ms / 1000

    def _connection(self, asked: _Asked) -> BrokerConnection:
        """An open connection whose session lasts; nothing is under way on it."""
        if asked.connection is not None and asked.connection.session_ends:
            asked.close()
        if asked.connection is None:
            by_id = all(log.leader.topic_id for log in asked.logs)
            asked.connection = BrokerConnection.open(
                asked.broker, self._settings.client_id, self._security, by_id=by_id
            )
        return asked.connection

    def _bounds(self, asked: _Asked, logs: Sequence[_Log]) -> Bounds:
        """How long the broker waits, for how much.

        Records that are known to be there need no wait. Of others several are awaited at a time while they flow, and
        the first one ends the wait when they have ceased.
        """
        flow = not asked.empty and all(log.end is None for log in logs)
        wait_ms, bytes_min = (FETCH_BUSY_WAIT_MS, FETCH_BUSY_BYTES_MIN) if flow else (FETCH_IDLE_WAIT_MS, 1)
        return Bounds(wait_ms, bytes_min, self._settings.bytes_max, self._settings.partition_bytes_max)

    # -------------------------------------------------------------------------------------------------------- answers

    def _chunk(self, log: _Log, fetched: Fetched) -> Chunk | None:
        """What was fetched of `log`, whose position moves past it; None if there is no whole batch.

        Raises:
            Unusual: it was refused, or the log is not what it was thought to be.
        """
        if fetched.error:
            raise Unusual(f"{log.partition}: {ErrorCode.name_of(fetched.error)}")
        if fetched.diverges:
            raise Unusual(f"{log.partition}: its log is not the one that was read up to offset {log.position}")
        batches = messages.batches_of(fetched.records, log.position, log.end)
        if not batches.size:
            return None
        position, log.last_epoch = log.position, batches.leader_epoch
        log.position = batches.next_offset if log.end is None else min(batches.next_offset, log.end)
        records = fetched.records[: batches.size]
        return Chunk(log.partition, position, log.end, log.position, records, fetched.aborted)

    def _note(self, asked: _Asked, spoke: set[TopicPartition]) -> None:
        """Put behind those that gave records, and count answers in which none did."""
        asked.logs = sorted(asked.open_logs(), key=lambda log: log.partition in spoke)
        asked.empty = 0 if spoke else asked.empty + 1
        starving = next((log for log in asked.logs if log.end is not None), None)
        if asked.empty >= _EMPTY_ANSWERS_MAX and starving is not None:
            raise Unusual(f"{starving.partition} has nothing from offset {starving.position} to {starving.end}")
