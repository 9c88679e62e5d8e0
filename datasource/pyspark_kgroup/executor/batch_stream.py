"""Record batches over a socket, from a seat's server to a worker.

Runs on: executor.

    8-byte big-endian length, an Arrow IPC message, the next length and message, ..., length 0

Length 0 says that the read is complete.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from typing import Final

import pyarrow as pa

from pyspark_kgroup.shared.arrow import arrow_schema

_LENGTH: Final = struct.Struct(">Q")


class BatchSender:
    """The sending end of a worker's socket."""

    def __init__(self, worker: socket.socket) -> None:
        self._worker = worker

    def send(self, batch: pa.RecordBatch) -> None:
        """Send one batch.

        Raises:
            OSError: the worker has gone.
        """
        data = batch.serialize()  # without the schema, which both ends know
        self._worker.sendall(_LENGTH.pack(data.size))
        self._worker.sendall(data)

    def end(self) -> None:
        """Send the length 0: the read is complete. Raises as `send`."""
        self._worker.sendall(_LENGTH.pack(0))


def receive(sock: socket.socket, include_headers: bool, timeout_s: float) -> Iterator[pa.RecordBatch]:
    """The batches that an `BatchSender` sends, up to its `end`.

    Raises:
        OSError: the server has gone, or is silent for `timeout_s`.
    """
    sock.settimeout(timeout_s)
    schema = arrow_schema(include_headers)
    while size := _LENGTH.unpack(_exactly(sock, _LENGTH.size))[0]:
        yield pa.ipc.read_record_batch(_exactly(sock, size), schema)


def _exactly(sock: socket.socket, size: int) -> pa.Buffer:
    # Arrow's own memory: the batch is then a view of it, and not a copy.
    buffer = pa.allocate_buffer(size)
    view = memoryview(buffer)
    while view:
        count = sock.recv_into(view)
        if count == 0:
            raise ConnectionResetError("the seat's server has gone")
        view = view[count:]
    return buffer
