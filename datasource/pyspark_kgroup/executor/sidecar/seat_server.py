"""The server of one seat: it fetches and converts records ahead of the next batch (`prefetcher`), and serves reads.

Runs on: executor, in a fork of the `sidecar` (`seat_processes`). One thread.

The sidecar asks it for ranges of offsets, and hands it the socket of the worker that reads them. The server sends that
worker record batches (`batch_stream`). Records or answers that the native reader leaves to librdkafka
(`FallbackToLibrdkafka`) are no error here: the server ends, in the midst of a read as well. Its worker reads the rest
directly, by the rules of `unread_ranges`, and so do the seat's workers for a while (`SEAT_SERVER_REST_MS`, or
`SEAT_SERVER_LASTING_REST_MS`). Then a read starts another server.
"""

from __future__ import annotations

import logging
import selectors
import socket
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Final

import pyarrow as pa

from pyspark_kgroup.errors import ChannelEnded
from pyspark_kgroup.executor.batch_stream import BatchSender
from pyspark_kgroup.executor.native.decode import FallbackToLibrdkafka
from pyspark_kgroup.executor.native.reader_setup import native_reader_setup
from pyspark_kgroup.executor.read.read_sizes import ReadSizes
from pyspark_kgroup.executor.sidecar.prefetch_buffer import PrefetchBuffer
from pyspark_kgroup.executor.sidecar.prefetcher import Prefetcher
from pyspark_kgroup.limits import ARROW_BATCH_ROWS_MAX, FETCH_JOINED_BYTES_MAX, FETCH_LARGE_BYTES, SEAT_SERVER_STALL_MS
from pyspark_kgroup.shared.arrow import rebatch
from pyspark_kgroup.shared.channel import Frames, frame
from pyspark_kgroup.shared.messages import Finished, QueryMessage, Serve, WorkerGone, parse, to_json
from pyspark_kgroup.shared.tickets import Leader, ReadSettings
from spark_kgroup.model import TopicPartition

log = logging.getLogger(__name__)

_SLOW_S: Final = 1.0
"""How long rows may be kept back until a batch is full: the worker must not take us for dead."""


def make_prefetcher(ahead: PrefetchBuffer, quota: Callable[[], int], settings: ReadSettings) -> Prefetcher:
    """The prefetcher of a seat that is read with these settings.

    Args:
        ahead: the buffer that it fills.
        quota: how many bytes the seat may hold ahead by now.
        settings: how to read.

    Raises:
        FallbackToLibrdkafka: as `native_reader_setup`.
    """
    return Prefetcher(
        ahead,
        quota,
        *native_reader_setup(settings),
        include_headers=settings.include_headers,
        include_timestamps=settings.include_timestamps,
    )


class SeatServer:
    """Serves one seat until its socket to the sidecar ends.

    Args:
        control: a stream socket to the sidecar. Each request is one frame with the worker's socket attached.
        ahead: the buffer of the seat.
        prefetcher: fills it.
    """

    def __init__(self, control: socket.socket, ahead: PrefetchBuffer, prefetcher: Prefetcher) -> None:
        self._control = control
        self._frames = Frames()
        self._frames.trust()
        self._ahead = ahead
        self._prefetcher = prefetcher
        self._tags: Mapping[TopicPartition, str] = {}  # of the logs from which the records in `ahead` came
        self._fallback: FallbackToLibrdkafka | None = None  # why the prefetcher cannot go on

    def run(self) -> None:
        """Serve one read after the other, and fetch ahead between them.

        Raises:
            FallbackToLibrdkafka: a partition cannot be fetched natively, or no record came for too long.
            ChannelEnded: the sidecar sent a message that is no request to serve.
        """
        while True:
            wait_s = self._prefetcher.prefetch()
            if not self._is_asked(wait_s):
                self._prefetcher.take()
                continue
            request = self._request()
            if request is None:
                return
            self._serve(*request)

    def _is_asked(self, wait_s: float | None) -> bool:
        """Wait for a request of the sidecar's or for fetched records: whether there is a request."""
        # Made anew each time: connections come and go between two waits.
        with selectors.DefaultSelector() as selector:
            selector.register(self._control, selectors.EVENT_READ)
            for connection in self._prefetcher.connections():
                selector.register(connection, selectors.EVENT_READ)
            return any(key.fileobj is self._control for key, _ in selector.select(wait_s))

    def _request(self) -> tuple[socket.socket, Serve] | None:
        """The next read, or None if there will be no more."""
        # One socket at most: the sidecar sends no further request before it has heard of the end of the last read.
        data, fds, _, _ = socket.recv_fds(self._control, 65_536, 1)
        worker = socket.socket(fileno=fds[0]) if fds else None
        if worker is not None:
            worker.setblocking(True)  # the sidecar's event loop made the shared socket non-blocking
        while data:
            self._frames.feed(data)
            if worker is not None and (message := self._frames.next()) is not None:
                return worker, _expect_serve(parse(message))
            data = self._control.recv(65_536)
        return None

    # ------------------------------------------------------------------------------------------------------ a read

    def _serve(self, worker: socket.socket, request: Serve) -> None:
        """Serve one read, and tell the sidecar how many rows it had, and how many of them were here already.

        If the worker has gone, no rows are reported: the reader of the rest counts its own.

        Raises:
            FallbackToLibrdkafka: as `run`.
        """
        owned = {TopicPartition(at.topic, at.partition): at.offset for at in request.owned}
        tags = {TopicPartition(at.topic, at.partition): at.tag for at in request.owned}
        leaders = {TopicPartition(at.topic, at.partition): at.leader for at in request.owned}
        leaders |= {TopicPartition(r.topic, r.partition): r.leader for r in request.ranges}
        starts = {TopicPartition(r.topic, r.partition): r.start_offset for r in request.ranges}
        ends = {TopicPartition(r.topic, r.partition): r.end_offset for r in request.ranges}
        finished = False
        try:
            # FIRST: `_take_on` decides by the spans which records are kept, so undecoded ones have to be in them.
            self._prefetcher.flush()
            self._forget_changed(tags)
            # `starts` overrides: in a partition of both, this read begins below the position of the next batch.
            self._take_on(owned | starts, leaders)
            outlet = BatchSender(worker)
            sizes = ReadSizes({r.topic for r in request.ranges} if request.tells_sizes else ())
            # BEFORE the worker sees the end: it may ask at once, and the sidecar must not take the seat for busy.
            self._say(self._send(outlet, ends, sizes))
            finished = True
            outlet.end()
        except OSError as problem:  # Spark wants no more rows of the worker (a limit, say), or the worker died
            log.debug("a worker has gone: %s", problem)
            if not finished:
                self._say(WorkerGone())
            if self._fallback is not None:  # the prefetcher has lost records that its next requests would not ask for
                raise self._fallback from None
        finally:
            worker.close()
        self._take_on(owned, leaders)  # the next batch begins there, also where other tasks read the rest of this one

    def _send(self, outlet: BatchSender, ends: Mapping[TopicPartition, int], sizes: ReadSizes) -> Finished:
        fetched = self._ahead.take(ends)
        ready = sum(batch.num_rows for batch in fetched)
        for batch in self._batches(fetched, ends):
            outlet.send(batch)
            sizes.add(batch)
        return Finished(rows=sizes.rows, ready=ready, sizes=sizes.by_topic())

    def _say(self, message: Finished | WorkerGone) -> None:
        self._control.sendall(frame(to_json(message)))

    def _forget_changed(self, tags: Mapping[TopicPartition, str]) -> None:
        """Drop records of logs that have another tag by now: the log may have other records at the same offsets."""
        self._give_up([tp for tp in self._ahead.partitions if tags.get(tp) != self._tags.get(tp)])
        self._tags = tags

    def _take_on(self, starts: Mapping[TopicPartition, int], leaders: Mapping[TopicPartition, Leader | None]) -> None:
        """Fetch exactly these partitions, from these offsets. A span that includes its offset is kept from there on."""
        self._give_up([partition for partition in self._ahead.partitions if partition not in starts])
        astray = {partition: offset for partition, offset in starts.items() if not self._ahead.skip(partition, offset)}
        self._prefetcher.end([partition for partition in astray if partition in self._ahead.partitions])
        for partition, offset in astray.items():
            self._ahead.begin(partition, offset)
        self._prefetcher.begin({partition: leaders[partition] for partition in starts})

    def _give_up(self, partitions: Sequence[TopicPartition]) -> None:
        self._prefetcher.end(partitions)
        for partition in partitions:
            self._ahead.drop(partition)

    def _batches(self, fetched: list[pa.RecordBatch], ends: Mapping[TopicPartition, int]) -> Iterator[pa.RecordBatch]:
        """All rows below `ends`, in batches of bounded size. Waits for rows that have not come yet.

        Args:
            fetched: the first of them.
            ends: partition -> one past the last offset.

        Raises:
            FallbackToLibrdkafka: as `run`.
        """
        gathered = _Gathered()
        progress, progress_at_s = self._progress(ends), time.monotonic()
        while True:
            yield from gathered.add(fetched)
            unread = {tp: end for tp, end in ends.items() if self._ahead.next_offset(tp) < end}
            if not unread:
                break
            try:
                self._prefetcher.fetch(unread)
            except FallbackToLibrdkafka as fallback:
                self._fallback = fallback
                yield from gathered.flush()  # else the worker would fetch these rows again
                raise
            fetched = self._ahead.take(ends)
            now_s, now_progress = time.monotonic(), self._progress(ends)
            if now_progress > progress:
                progress, progress_at_s = now_progress, now_s
            elif now_s > progress_at_s + SEAT_SERVER_STALL_MS / 1000:
                raise FallbackToLibrdkafka(
                    f"no record came for {SEAT_SERVER_STALL_MS / 1000:.0f} s from {next(iter(unread))}"
                )
            # No more rows have come in this look: Spark can work on those that are here meanwhile.
            elif gathered.since_s is not None:
                yield from gathered.flush()
            if gathered.since_s is not None and now_s > gathered.since_s + _SLOW_S:
                yield from gathered.flush()
        yield from gathered.flush()

    def _progress(self, partitions: Collection[TopicPartition]) -> int:
        """A number that grows whenever records of these partitions have come."""
        return sum(map(self._ahead.next_offset, partitions))


class _Gathered:
    """Pieces that are to be sent as one batch.

    Attributes:
        since_s: when the first of them came, or None if there are none.
    """

    def __init__(self) -> None:
        self.since_s: float | None = None
        self._pieces: list[pa.RecordBatch] = []
        self._rows = self._bytes = 0

    def add(self, pieces: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Take these pieces too. The earlier ones are handed on when there is no room for more."""
        for piece in pieces:
            if not self._takes(piece):
                yield from self.flush()
            self.since_s = self.since_s or time.monotonic()
            self._pieces.append(piece)
            self._rows += piece.num_rows
            self._bytes += piece.nbytes

    def flush(self) -> Iterator[pa.RecordBatch]:
        """Hand on all pieces as one batch, or as several if one piece is too large."""
        if self._pieces:
            yield from rebatch(self._pieces)
        self.since_s, self._pieces, self._rows, self._bytes = None, [], 0, 0

    def _takes(self, piece: pa.RecordBatch) -> bool:
        """Whether there is room for one more."""
        rows, size = self._rows + piece.num_rows, self._bytes + piece.nbytes
        large = max(piece.nbytes, self._bytes) > FETCH_LARGE_BYTES
        return not self._pieces or (not large and rows <= ARROW_BATCH_ROWS_MAX and size <= FETCH_JOINED_BYTES_MAX)


def _expect_serve(message: QueryMessage) -> Serve:
    if isinstance(message, Serve):
        return message
    raise ChannelEnded(f"The sidecar sent a {type(message).__name__} where it asks for a read.")
