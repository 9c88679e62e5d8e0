"""Record batches in a real Kafka's log, made byte for byte by a test: no producer's library would send some of them."""

from __future__ import annotations

import socket
import struct
import zlib
from pathlib import Path

from spark_kgroup.testing import ApacheKafka
from spark_kgroup.wire.address import parse_bootstrap

_PRODUCE, _VERSION = 0, 7


def produce_raw(kafka: ApacheKafka, topic: str, batch: bytes) -> None:
    """Send a record batch as it is to partition 0. The broker checks its head."""
    (where, *_) = parse_bootstrap(kafka.bootstrap_servers)
    name = struct.pack(">h", len(topic)) + topic.encode()
    body = struct.pack(">hhii", -1, -1, 30_000, 1) + name + struct.pack(">iii", 1, 0, len(batch)) + batch
    request = struct.pack(">hhih", _PRODUCE, _VERSION, 1, -1) + body
    with socket.create_connection((where.host, where.port), 30) as connection:
        connection.sendall(struct.pack(">i", len(request)) + request)
        (size,) = struct.unpack(">i", _exactly(connection, 4))
        answer = _exactly(connection, size)
    (error,) = struct.unpack_from(">h", answer, 4 + 4 + len(name) + 4 + 4)
    assert error == 0, f"Produce failed with {error}"


def _exactly(connection: socket.socket, size: int) -> bytes:
    answer = b""
    while len(answer) < size:
        piece = connection.recv(size - len(answer))
        assert piece, "the broker has closed the connection"
        answer += piece
    return answer


def replace_in_log(kafka: ApacheKafka, topic: str, old: bytes, new: bytes) -> None:
    """Have other bytes in the log of partition 0: just as many, for the broker knows how many there are."""
    assert len(old) == len(new)
    segment = segment_of(kafka, topic)
    before = segment.read_bytes()
    assert before.count(old) == 1
    segment.write_bytes(before.replace(old, new))


def segment_of(kafka: ApacheKafka, topic: str) -> Path:
    """The only segment of partition 0."""
    (segment,) = (kafka.nodes[0].directory / "data" / f"{topic}-0").glob("*.log")
    return segment


def message_of_before_0_11(offset: int, value: bytes) -> bytes:
    """A record in the format of Kafka 0.10 (magic 1; LegacyRecord.java)."""
    checked = struct.pack(">bbqii", 1, 0, 1_700_000_000_000, -1, len(value)) + value
    message = struct.pack(">I", zlib.crc32(checked)) + checked
    return struct.pack(">qi", offset, len(message)) + message
