"""The changes to an answer: lies that are well-formed, batches that are changed, and bytes that make no sense."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import crc32c

from fuzz.fetch_drafts import AnswerDraft, PartitionDraft, Tags
from fuzz.fetch_logs import CHECKED_FROM
from fuzz.frames import varint

INT32S = (0, 1, 2, 48, 49, 50, 127, 128, 65_536, 2**31 - 1, -1, -2, -(2**31))
INT64S = (0, 1, 5, 2**31, 2**62, 2**63 - 2, 2**63 - 1, -1, -2, -(2**63))
BYTES = (0, 1, 2, 3, 0x7E, 0x7F, 0x80, 0x81, 0xFE, 0xFF)
ERRORS = (1, 3, 6, 6, 74, 74, 75, 76, 100, 103, -1, 9_999, 32_767, -32_768)
NODES = (0, 1, 2, 3, 2**31 - 1, -2)

NOT_CHECKED = (
    (0, "q", INT64S),
    (0, "q", INT64S[-5:]),
    (8, "i", INT32S),
    (12, "i", INT32S),
    (16, "b", (0, 1, 3, -1)),
    (17, "i", INT32S),
)
"""Place, format and values of a batch's numbers that its checksum does not cover: first offset, length, leader epoch,
format, and the checksum itself."""

CHECKED = (
    (21, "h", (0, 1, 2, 3, 4, 5, 8, 16, 32, 48, 7)),
    (23, "i", INT32S),
    (27, "q", INT64S),
    (35, "q", INT64S),
    (43, "q", (7, 8, 9, -1, 2**62)),
    (51, "h", (0, -1)),
    (53, "i", INT32S),
    (57, "i", INT32S),
)
"""Fields that the checksum covers: attributes, last offset's difference, both timestamps, producer and its epoch,
sequence and number of records."""


class Mutator:
    """Changes one answer.

    Attributes:
        resealed: the checked bytes of batches that were changed and got a checksum that fits.
        changed_bytes: whether the answer's bytes are not those of its draft any more.
    """

    def __init__(self, rng: Random) -> None:
        self.resealed: set[bytes] = set()
        self.changed_bytes = False
        self._rng = rng
        self._changes = (self._change_answer, self._change_partition, self._change_batches, self._change_batch)

    def mutated(self, draft: AnswerDraft) -> bytearray:
        """The bytes of `draft` after some changes: to itself, to its bytes, or to both."""
        rng = self._rng
        of_fields, of_bytes = rng.choice(((1, 0), (2, 0), (4, 0), (0, 1), (0, 1), (0, 3), (1, 1)))
        for _ in range(of_fields):
            rng.choices(self._changes, weights=(2, 3, 3, 6))[0](draft)
        frame = draft.frame()
        self.changed_bytes = of_bytes > 0
        for _ in range(of_bytes):
            self.change_bytes(frame)
        if rng.random() < 0.5 and len(frame) >= 4:  # else most would end as too short, or too long
            frame[:4] = struct.pack(">i", len(frame) - 4)
        return frame

    # ---------------------------------------------------------------------------------------------------- the answer

    def _change_answer(self, draft: AnswerDraft) -> None:
        rng, topics = self._rng, draft.topics
        match rng.randrange(9):
            case 0:
                draft.error = rng.choice(ERRORS)
            case 1:
                draft.throttle_ms = rng.choice(INT32S)
            case 2:
                draft.session_id = rng.choice(INT32S)
            case 3:
                draft.correlation_id = rng.choice((*INT32S, max(min(INT32S), draft.correlation_id - 1)))
            case 4:
                self._change_tags(rng.choice((draft.tags, draft.header_tags, *(topic.tags for topic in topics))))
            case 5 if topics:
                rng.choice(topics).name = rng.choice((b"t", b"", b"other", rng.randbytes(16)))
            case 6:
                self._rearrange(topics)
            case 7:
                draft.version = rng.randrange(12, 18)
            case 8 if topics:
                self._rearrange(rng.choice(topics).partitions)

    def _change_tags(self, tags: Tags) -> None:
        rng = self._rng
        content = rng.choice((rng.randbytes(rng.randrange(20)), self._leader(), self._endpoints()))
        tags.append((rng.choice((0, 0, 1, 2, 77, 2**31)), content))
        if self._rng.random() < 0.2:
            tags.append(tags[0])

    def _leader(self) -> bytes:
        """`CurrentLeader` of a partition (KIP-951): node and epoch."""
        return struct.pack(">ii", self._rng.choice(NODES), self._rng.choice((*INT32S, 5, 6, 7))) + b"\0"

    def _endpoints(self) -> bytes:
        """`NodeEndpoints` of an answer (KIP-951): node, host, port, rack."""
        host = self._rng.choice((b"", b"other", b"\xff\xfe", b"x" * 300))
        one = struct.pack(">i", self._rng.choice(NODES)) + varint(len(host) + 1) + host + struct.pack(">i", 9093)
        count = self._rng.choice((0, 1, 2))
        return varint(count + 1) + (one + b"\0\0") * count

    def _lead_elsewhere(self, draft: AnswerDraft, one: PartitionDraft) -> None:
        """Have a broker say, mostly, that it does not lead, and name the leader (KIP-951)."""
        one.error = self._rng.choice(ERRORS[2:7])
        one.tags.append((1, self._leader()))
        draft.tags.append((0, self._endpoints()))

    def _rearrange(self, things: list[Any]) -> None:
        """One of them is lost, there twice, or changes its place."""
        if not things:
            return
        at, other = self._rng.randrange(len(things)), self._rng.randrange(len(things))
        match self._rng.randrange(3):
            case 0:
                del things[at]
            case 1:
                things.insert(other, things[at])
            case 2:
                things[at], things[other] = things[other], things[at]

    # ------------------------------------------------------------------------------------------------- one partition

    def _change_partition(self, draft: AnswerDraft) -> None:
        rng = self._rng
        partitions = [one for topic in draft.topics for one in topic.partitions]
        if not partitions:
            return
        one, other = rng.choice(partitions), rng.choice(partitions)
        match rng.randrange(11):
            case 0:
                one.error = rng.choice(ERRORS)
            case 1:
                one.number = rng.choice((0, 1, 2, 3, *INT32S))
            case 2:
                one.number, other.number = other.number, one.number
            case 3:
                one.preferred, one.records = rng.choice(NODES), rng.choice((None, None, one.records))
            case 4:
                self._change_tags(one.tags)
            case 5:
                one.high_watermark, one.last_stable, one.log_start = rng.choices(INT64S, k=3)
            case 6:
                one.records = rng.choice((None, []))
            case 7 | 8:
                self._lead_elsewhere(draft, one)
            case _:
                self._change_aborted(one)

    def _change_aborted(self, one: PartitionDraft) -> None:
        rng = self._rng
        count = rng.choice((0, 1, 2, 3, 9, 300))
        made = [(rng.choice((7, 8, 9, -1, *INT64S)), rng.choice((*range(0, 200, 7), *INT64S))) for _ in range(count)]
        one.aborted = rng.choice((None, made, [*(one.aborted or ()), *made], (one.aborted or [])[::-1]))

    # ------------------------------------------------------------------------------------------------------- batches

    def _change_batches(self, draft: AnswerDraft) -> None:
        """A batch is lost, there twice, elsewhere, or of another partition, or the last one ends early."""
        rng = self._rng
        logs = [one.records for topic in draft.topics for one in topic.partitions if one.records]
        if not logs:
            return
        log, other = rng.choice(logs), rng.choice(logs)
        match rng.randrange(4):
            case 0 | 1:
                self._rearrange(log)
            case 2:
                log.insert(rng.randrange(len(log) + 1), bytearray(rng.choice([*other, b""])))
            case 3:
                del log[-1][rng.randrange(len(log[-1]) + 1) :]

    def _change_batch(self, draft: AnswerDraft) -> None:
        rng = self._rng
        batches = [one for topic in draft.topics for each in topic.partitions for one in each.records or ()]
        if not batches:
            return
        batch = rng.choice(batches)
        for _ in range(rng.choice((1, 1, 2))):
            self._change_one_thing_of(batch)
        if len(batch) > CHECKED_FROM and rng.random() < 0.4:
            batch[17:21] = struct.pack(">I", crc32c.crc32c(bytes(batch[CHECKED_FROM:])))
            self.resealed.add(bytes(batch[CHECKED_FROM:]))

    def _change_one_thing_of(self, batch: bytearray) -> None:
        rng = self._rng
        match rng.randrange(5):
            case 0 | 1:
                self._put_number(batch, *rng.choice(NOT_CHECKED))
            case 2:
                self._put_number(batch, *rng.choice(CHECKED))
            case 3 if len(batch) > 61:
                batch[rng.randrange(61, len(batch))] = rng.choice((*BYTES, rng.randrange(256)))
            case _:
                self.change_bytes(batch)
                if rng.random() < 0.7 and len(batch) >= 12:
                    batch[8:12] = struct.pack(">i", len(batch) - 12)

    def _put_number(self, raw: bytearray, at: int, form: str, values: Sequence[int]) -> None:
        size = struct.calcsize(">" + form)
        if at + size > len(raw):
            return
        (number,) = struct.unpack_from(">" + form, raw, at)
        low, high = -(1 << (8 * size - 1)), (1 << (8 * size - 1)) - 1
        near = max(low, min(high, number + self._rng.choice((-50, -10, -1, 1, 2, 10, 50))))
        struct.pack_into(">" + form, raw, at, self._rng.choice((near, self._rng.choice(values))))

    # --------------------------------------------------------------------------------------------------------- bytes

    def change_bytes(self, raw: bytearray) -> None:
        """Anywhere, mostly near the front, where the numbers are."""
        rng = self._rng
        if not raw:
            return
        at, other = rng.randrange(len(raw)), rng.randrange(len(raw))
        if rng.random() < 0.5:
            at = rng.randrange(min(len(raw), 100))
        size = rng.choice((1, 4, 8, 30, 100))
        changes: tuple[Callable[[], None], ...] = (
            lambda: raw.__setitem__(at, rng.choice((*BYTES, rng.randrange(256)))),
            lambda: raw.__setitem__(at, raw[at] ^ 1 << rng.randrange(8)),
            lambda: raw.__setitem__(at, (raw[at] + rng.choice((-2, -1, 1, 2))) % 256),
            lambda: self._put_number(raw, at, "i", INT32S),
            lambda: raw.__delitem__(slice(at, at + rng.choice((size, len(raw))))),
            lambda: raw.__setitem__(slice(at, at), rng.randbytes(size)),
            lambda: raw.__setitem__(slice(at, at), raw[other : other + size] * rng.choice((1, 2, 50))),
            lambda: self._swap(raw, at, other, size),
            lambda: raw.__setitem__(slice(at, at + rng.choice((5, 12))), b"\xff" * rng.choice((5, 12))),
        )
        rng.choice(changes)()

    @staticmethod
    def _swap(raw: bytearray, at: int, other: int, size: int) -> None:
        first, second = sorted((at, other))
        size = min(size, second - first, len(raw) - second)
        raw[first : first + size], raw[second : second + size] = (
            raw[second : second + size],
            raw[first : first + size],
        )
