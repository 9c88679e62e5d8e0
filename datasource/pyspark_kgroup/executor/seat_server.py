"""One process for one seat: its consumer stays warm, and fetches and converts ahead of the next batch.

Runs on: executor, as a fork of the `sidecar`. One thread (and librdkafka's own).

It is asked for ranges of offsets, with the socket of the worker that reads them, and sends that worker record batches
(`batch_stream`). Whatever is out of the ordinary is no error here: this process ends, the worker reads directly what
it has not got, by the rules of `range_reader`, and the next read starts another server.
"""

from __future__ import annotations

import logging
import select
import socket
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Final, cast

import pyarrow as pa
from confluent_kafka import Consumer, KafkaError, Message
from confluent_kafka import TopicPartition as AssignedPartition

from pyspark_kgroup.errors import ChannelEnded
from pyspark_kgroup.executor.ahead import Ahead
from pyspark_kgroup.executor.batch_stream import Outlet
from pyspark_kgroup.executor.consumer_security import usable_here
from pyspark_kgroup.executor.range_reader import RECORDS_AT_ONCE, RECORDS_FIRST, no_collection
from pyspark_kgroup.executor.records import record_batch
from pyspark_kgroup.limits import (
    ARROW_BATCH_BYTES_MAX,
    ARROW_BATCH_ROWS_MAX,
    SEAT_SERVER_QUEUE_BYTES_MAX,
    SEAT_SERVER_STALL_MS,
)
from pyspark_kgroup.shared.arrow import rebatch
from pyspark_kgroup.shared.channel import Frames, frame
from pyspark_kgroup.shared.messages import Finished, QueryMessage, Serve, WorkerGone, parse, to_json
from spark_kgroup.model import TopicPartition

log = logging.getLogger(__name__)

_TICK_S: Final = 0.02
"""How often the consumer is asked for more while no one reads (a request is heard at once). At 200 ms a batch, a tenth
of it may still be in librdkafka's queue when the batch is asked for; 50 times a second cost 0.5 % of a core."""

_FETCH_BYTES_MIN: Final = "65536"
"""What a fetch waits for, up to fetch.wait.max.ms. Measured at 1,000 records/s: with librdkafka's 1 byte a broker
answers each time something is produced, which takes both a third of a core more, and reads are done no sooner."""

_FRESH_MAX: Final = 1_024
_FRESH_BYTES_MAX: Final = 256 * 1024
"""Records wait for each other, up to either, until they are converted: a batch costs as much as 500 records (measured),
and at 1,000 records/s a few come at a time."""

_WAIT_S: Final = 0.1
"""How long a read waits for more before it looks at positions, and hands over what it has."""

_JOINED_BYTES_MAX: Final = 2 * 1024 * 1024
"""Pieces are joined up to this size: what is sent should still be in the processor's cache. Measured: 8 MiB
(`ARROW_BATCH_BYTES_MAX`, which a larger piece is cut to) cost a tenth more CPU at 100 B a record, a fifth at 1 KB."""

_SLOW_S: Final = 1.0
"""How long rows may be kept back until a batch is full: the worker must not take us for dead."""


class CannotServe(Exception):
    """This server cannot go on. Seen by nobody: the process ends."""


class SeatServer:
    """Serves one seat until its socket to the sidecar ends.

    Args:
        control: a stream socket to the sidecar. Each request is one frame with the worker's socket attached.
        share: how many bytes this seat may hold ahead by now.
        consumer_config: librdkafka's configuration (`SourceOptions.consumer_config`).
        include_headers: whether batches have the column `headers`.
    """

    def __init__(
        self,
        control: socket.socket,
        share: Callable[[], int],
        consumer_config: Mapping[str, str],
        include_headers: bool,
    ) -> None:
        self._control = control
        self._frames = Frames()
        self._frames.trust()
        self._share = share
        self._include_headers = include_headers
        self._ahead = Ahead()
        self._fresh: list[Message] = []  # fetched, not yet converted; empty while a read is served
        self._fresh_bytes = 0
        self._parked: set[TopicPartition] = set()  # those that have a span and are not fetched
        self._tags: Mapping[TopicPartition, str] = {}  # of the logs that what is here came from
        self._record_bytes = ARROW_BATCH_BYTES_MAX // RECORDS_FIRST
        self._queue_bytes = min(SEAT_SERVER_QUEUE_BYTES_MAX, share() // 2)
        own = {"queued.max.messages.kbytes": str(max(1, self._queue_bytes // 1024)), "error_cb": _log_error}
        self._consumer = Consumer({**own, **usable_here(consumer_config)}, logger=log)

    def run(self) -> None:
        """Serve one read after the other, and fetch ahead between them.

        Raises:
            CannotServe: the consumer cannot go on.
            ChannelEnded: the sidecar does not speak like one of ours.
        """
        while True:
            more = self._fetch_ahead()
            if not select.select([self._control], [], [], 0 if more else _TICK_S)[0]:
                continue
            request = self._request()
            if request is None:
                return
            self._serve(*request)

    def _request(self) -> tuple[socket.socket, Serve] | None:
        """The next read, None if there will be no more."""
        data, fds, _, _ = socket.recv_fds(self._control, 65_536, 1)
        worker = socket.socket(fileno=fds[0]) if fds else None
        if worker is not None:
            worker.setblocking(True)  # the sidecar's event loop has made it otherwise, for all who share it
        while data:
            self._frames.feed(data)
            if worker is not None and (message := self._frames.next()) is not None:
                return worker, _serve_of(parse(message))
            data = self._control.recv(65_536)
        return None

    # ------------------------------------------------------------------------------------------------------ a read

    def _serve(self, worker: socket.socket, request: Serve) -> None:
        """Serve one read, and tell the sidecar how many rows it had, and how many of them were here already.

        If the worker has gone, say nothing of rows: whoever reads the rest counts.

        Raises:
            CannotServe: the consumer cannot go on.
        """
        owned = {TopicPartition(topic, partition): position for topic, partition, position, _ in request.owned}
        tags = {TopicPartition(topic, partition): tag for topic, partition, _, tag in request.owned}
        starts = {TopicPartition(r.topic, r.partition): r.start_offset for r in request.ranges}
        ends = {TopicPartition(r.topic, r.partition): r.end_offset for r in request.ranges}
        rows = ready = 0
        finished = False
        self._convert_fresh()
        try:
            self._forget_changed(tags)
            self._take_on(owned | starts)
            fetched = self._ahead.take(ends)
            ready = sum(batch.num_rows for batch in fetched)
            outlet = Outlet(worker)
            for batch in self._batches(fetched, ends):
                outlet.send(batch)
                rows += batch.num_rows
            self._say(Finished(rows=rows, ready=ready))  # BEFORE the worker can ask for more, of a seat that is busy
            finished = True
            outlet.end()
        except OSError as problem:  # a consumer above the worker has enough, or the worker died
            log.debug("a worker has gone: %s", problem)
            if not finished:
                self._say(WorkerGone())
        finally:
            worker.close()
        self._give_up([partition for partition in self._ahead.partitions if partition not in owned])

    def _say(self, message: Finished | WorkerGone) -> None:
        self._control.sendall(frame(to_json(message)))

    def _forget_changed(self, tags: Mapping[TopicPartition, str]) -> None:
        """Drop what was fetched of logs that have another tag by now: maybe other records, at the same offsets."""
        self._give_up([tp for tp in self._ahead.partitions if tags.get(tp) != self._tags.get(tp)])
        self._tags = tags

    def _take_on(self, starts: Mapping[TopicPartition, int]) -> None:
        """Fetch these partitions, and no others; what was fetched of them ahead is kept where it goes on from there."""
        self._give_up([partition for partition in self._ahead.partitions if partition not in starts])
        astray = {partition: offset for partition, offset in starts.items() if not self._ahead.skip(partition, offset)}
        self._unassign([partition for partition in astray if partition in self._ahead.partitions])
        for partition, offset in astray.items():
            self._ahead.begin(partition, offset)
        self._assign(astray)

    def _give_up(self, partitions: Sequence[TopicPartition]) -> None:
        self._unassign(partitions)
        for partition in partitions:
            self._ahead.drop(partition)

    def _assign(self, partitions: Collection[TopicPartition]) -> None:
        """Fetch these from where what came of them ends."""
        if partitions:
            self._consumer.incremental_assign(
                [AssignedPartition(*tp, self._ahead.next_offset(tp)) for tp in partitions]
            )

    def _unassign(self, partitions: Sequence[TopicPartition]) -> None:
        flowing = [partition for partition in partitions if partition not in self._parked]
        self._parked.difference_update(partitions)
        if flowing:
            self._consumer.incremental_unassign(_as_assigned(flowing))

    def _batches(self, fetched: list[pa.RecordBatch], ends: Mapping[TopicPartition, int]) -> Iterator[pa.RecordBatch]:
        """All rows below `ends`, in batches of bounded size; waits for what has not come yet.

        Args:
            fetched: the first of them.
            ends: partition -> one past the last offset.

        Raises:
            CannotServe: nothing came for too long.
        """
        gathered = _Gathered()
        progress, progress_at_s = self._progress(ends), time.monotonic()
        while True:
            for piece in fetched:
                if not gathered.takes(piece):
                    yield from gathered.flush()
                gathered.add(piece)
            unread = [partition for partition, end in ends.items() if self._ahead.next_offset(partition) < end]
            if not unread:
                break
            self._look(unread)
            fetched = self._ahead.take(ends)
            now_s, now_progress = time.monotonic(), self._progress(ends)
            if now_progress > progress:
                progress, progress_at_s = now_progress, now_s
            elif now_s > progress_at_s + SEAT_SERVER_STALL_MS / 1000:
                raise CannotServe(f"nothing came for {SEAT_SERVER_STALL_MS / 1000:.0f} s from {unread[0]}")
            elif gathered.since_s is not None:
                yield from gathered.flush()
            if gathered.since_s is not None and now_s > gathered.since_s + _SLOW_S:
                yield from gathered.flush()
        yield from gathered.flush()

    def _progress(self, partitions: Collection[TopicPartition]) -> int:
        """Grows whenever something has come of these partitions."""
        return sum(map(self._ahead.next_offset, partitions))

    def _look(self, unread: Sequence[TopicPartition]) -> None:
        """Take what has come of these partitions; wait for a moment if that is nothing."""
        self._let_flow(unread)
        if self._fetch(0, ARROW_BATCH_BYTES_MAX, at_once=True):
            return
        before = self._progress(unread)
        for at in self._consumer.position(_as_assigned(unread)):  # negative where it is not known
            self._ahead.advance(TopicPartition(at.topic, at.partition), at.offset)
        if self._progress(unread) == before:
            self._fetch(_WAIT_S, ARROW_BATCH_BYTES_MAX, at_once=True)

    # -------------------------------------------------------------------------------------------------- the consumer

    def _fetch_ahead(self) -> bool:
        """Take some of what has come, if there is room; whether there may be more."""
        self._let_flow(())
        room = self._room()
        return room > 0 and self._fetch(0, room, at_once=False)

    def _fetch(self, wait_s: float, bytes_max: int, *, at_once: bool) -> bool:
        """Take what has come by now; whether anything has.

        Args:
            wait_s: for the first.
            bytes_max: a bound by what records took so far.
            at_once: convert what came, however little it is.

        Raises:
            CannotServe: a partition cannot be read.
        """
        records_max = min(RECORDS_AT_ONCE, min(ARROW_BATCH_BYTES_MAX, bytes_max) // self._record_bytes)
        with no_collection():  # until the records are freed again, at the end of the call
            first = self._consumer.poll(wait_s)
            if first is None:
                return False
            polled = [first, *(self._consumer.consume(records_max - 1, 0) if records_max > 1 else ())]
            self._fresh += polled
            self._fresh_bytes += sum(map(len, polled))
            if at_once or len(self._fresh) >= _FRESH_MAX or self._fresh_bytes >= _FRESH_BYTES_MAX:
                del first, polled
                self._convert_fresh()
        return True

    def _convert_fresh(self) -> None:
        """Put what has come where reads find it, as one batch in which each partition's records are together.

        Raises:
            CannotServe: a partition cannot be read.
        """
        messages, self._fresh, self._fresh_bytes = self._fresh, [], 0
        records = [message for message in messages if message.error() is None]
        if records:
            topics = set(map(Message.topic, records))
            records.sort(key=cast("Callable[[Message], int]", Message.partition))
            if len(topics) > 1:
                records.sort(key=cast("Callable[[Message], str]", Message.topic))
            batch = record_batch(records, self._include_headers, topics.pop() if len(topics) == 1 else None)
            self._record_bytes = 1 + batch.nbytes // batch.num_rows
            self._ahead.add(batch)
        for message in messages if len(records) < len(messages) else ():
            error = message.error()
            if error is not None:
                self._heed(message, error)

    def _heed(self, message: Message, error: KafkaError) -> None:
        partition = TopicPartition(message.topic() or "", cast("int", message.partition()))
        if error.code() == KafkaError._PARTITION_EOF:
            self._ahead.advance(partition, cast("int", message.offset()))
        elif partition in self._ahead.partitions:
            raise CannotServe(error.str())
        else:  # of the group, for instance, which we do not need
            _log_error(error)

    def _room(self) -> int:
        """Bytes that may still be fetched ahead; what librdkafka holds is counted as if it were full.

        Its queue was cut when this server started: if others have come since, half of the share is for what is here.
        """
        share = self._share()
        return max(share - self._queue_bytes, share // 2) - self._ahead.bytes - self._fresh_bytes

    def _let_flow(self, unread: Collection[TopicPartition]) -> None:
        """Fetch these partitions in any case, the others while there is room.

        While nobody reads, librdkafka's queue fills up, and it stops by itself; in the midst of a read it must go on
        with some. Not by its pause and resume: after those it was seen to fetch nothing for seconds.
        """
        if self._room() <= 0:
            flowing = self._parked.intersection(unread)
            if unread:
                self._unassign([partition for partition in self._ahead.partitions if partition not in unread])
                self._parked.update(partition for partition in self._ahead.partitions if partition not in unread)
        else:
            flowing = set(self._parked)
        if flowing:
            self._parked -= flowing
            self._assign(flowing)


class _Gathered:
    """Pieces that are to be sent as one batch.

    Attributes:
        since_s: when the first of them came, None if there are none.
    """

    def __init__(self) -> None:
        self.since_s: float | None = None
        self._pieces: list[pa.RecordBatch] = []
        self._rows = self._bytes = 0

    def takes(self, piece: pa.RecordBatch) -> bool:
        """Whether there is room for one more."""
        rows, size = self._rows + piece.num_rows, self._bytes + piece.nbytes
        return not self._pieces or (rows <= ARROW_BATCH_ROWS_MAX and size <= _JOINED_BYTES_MAX)

    def add(self, piece: pa.RecordBatch) -> None:
        """Take one more."""
        self.since_s = self.since_s or time.monotonic()
        self._pieces.append(piece)
        self._rows += piece.num_rows
        self._bytes += piece.nbytes

    def flush(self) -> Iterator[pa.RecordBatch]:
        """All of them, which are then forgotten; several batches only if one piece was too large."""
        if self._pieces:
            yield from rebatch(self._pieces)
        self.since_s, self._pieces, self._rows, self._bytes = None, [], 0, 0


def _log_error(error: KafkaError) -> None:
    """An error of the consumer or of a broker: librdkafka recovers, or the read stalls and its worker is the judge."""
    log.debug("%s", error.str())


def _as_assigned(partitions: Collection[TopicPartition]) -> list[AssignedPartition]:
    return [AssignedPartition(*partition) for partition in partitions]


def _serve_of(message: QueryMessage) -> Serve:
    if isinstance(message, Serve):
        return message
    raise ChannelEnded(f"The sidecar sent a {type(message).__name__} where it asks for a read.")
