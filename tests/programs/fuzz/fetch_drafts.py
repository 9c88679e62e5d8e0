"""Answers to Fetch as drafts: every field can be changed before they become bytes.

Layouts are those of FetchResponse.json in Apache Kafka. A test compares them with kio's.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass, field

from fuzz.frames import varint

TOPICS_HAVE_IDS = 13
"""Topics have ids from this version of Fetch on (KIP-516)."""

Tags = list[tuple[int, bytes]]


@dataclass
class PartitionDraft:
    """One partition of an answer. `records` are batches, and None is null."""

    number: int
    records: list[bytearray] | None
    aborted: list[tuple[int, int]] | None = None
    error: int = 0
    high_watermark: int = 1_000
    last_stable: int = -1
    log_start: int = -1
    preferred: int = -1
    tags: Tags = field(default_factory=list)

    def encoded(self) -> bytes:
        aborted = [struct.pack(">qq", *each) + b"\0" for each in self.aborted or ()]
        numbers = struct.pack(">ihqqq", self.number, self.error, self.high_watermark, self.last_stable, self.log_start)
        records = None if self.records is None else b"".join(self.records)
        return b"".join(
            (
                numbers,
                varint(0) if self.aborted is None else _array(aborted),
                struct.pack(">i", self.preferred),
                varint(0) if records is None else varint(len(records) + 1) + records,
                _tagged(self.tags),
            )
        )


@dataclass
class TopicDraft:
    """A topic, by the bytes of its name or id."""

    name: bytes
    partitions: list[PartitionDraft]
    tags: Tags = field(default_factory=list)

    def encoded(self, version: int) -> bytes:
        name = self.name if version >= TOPICS_HAVE_IDS else varint(len(self.name) + 1) + self.name
        return name + _array([one.encoded() for one in self.partitions]) + _tagged(self.tags)


@dataclass
class AnswerDraft:
    """A whole answer. `frame` returns the bytes that come over a connection."""

    version: int
    correlation_id: int
    topics: list[TopicDraft]
    throttle_ms: int = 0
    error: int = 0
    session_id: int = 0
    header_tags: Tags = field(default_factory=list)
    tags: Tags = field(default_factory=list)

    def body(self) -> bytes:
        head = struct.pack(">ihi", self.throttle_ms, self.error, self.session_id)
        return head + _array([topic.encoded(self.version) for topic in self.topics]) + _tagged(self.tags)

    def frame(self) -> bytearray:
        rest = struct.pack(">i", self.correlation_id) + _tagged(self.header_tags) + self.body()
        return bytearray(struct.pack(">i", len(rest)) + rest)


def _array(elements: list[bytes]) -> bytes:
    return varint(len(elements) + 1) + b"".join(elements)


def _tagged(tags: Iterable[tuple[int, bytes]]) -> bytes:
    each = [varint(tag) + varint(len(content)) + content for tag, content in tags]
    return varint(len(each)) + b"".join(each)
