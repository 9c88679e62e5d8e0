"""Record batches (format v2, KIP-98) as a broker looks at them: their heads. Pure.

A batch is stored as it came. On append the broker writes its first offset and its leader epoch into the head, which the
checksum does not cover, and for a topic with log append time the time as well, which it does.
"""

from __future__ import annotations

from dataclasses import dataclass
from struct import Struct, error
from typing import Final

from crc32c import crc32c

from spark_kgroup.broker.refusal import Refused
from spark_kgroup.model import ErrorCode

_HEAD: Final = Struct(">qiibIhiqqqhii")
HEAD_BYTES: Final = _HEAD.size
_LENGTH_AT: Final = 8
_LENGTH: Final = Struct(">i")
_BEFORE_LENGTH_END: Final = 12
"""Offset and length: the length counts the bytes after these (RecordBatch.LOG_OVERHEAD)."""
_HEAD_START: Final = Struct(">qii")
_MAGIC_AT: Final = 16
_CRC: Final = Struct(">I")
_CRC_AT: Final = 17
_CHECKED_AT: Final = 21
"""The checksum covers the bytes from here on: the attributes are the first."""
_ATTRIBUTES: Final = Struct(">h")
_TIMES: Final = Struct(">qq")
_TIMES_AT: Final = 27

MAGIC: Final = 2
NO_PRODUCER: Final = -1
NO_SEQUENCE: Final = -1
CODEC_MASK, APPEND_TIME, TRANSACTIONAL, CONTROL = 0x07, 0x08, 0x10, 0x20
ZSTD: Final = 4


class NoSuchBatch(Refused):
    """There is not exactly one batch of this format in the request. No log is looked at before that."""


@dataclass(frozen=True, slots=True)
class Batch:
    """One batch, and the fields of its head."""

    raw: bytes
    base_offset: int
    leader_epoch: int
    attributes: int
    last_offset_delta: int
    base_timestamp_ms: int
    max_timestamp_ms: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    count: int

    @property
    def last_offset(self) -> int:
        """The offset of its last record."""
        return self.base_offset + self.last_offset_delta

    @property
    def last_sequence(self) -> int:
        """The sequence number of its last record. They wrap after 2^31 - 1 (DefaultRecordBatch.incrementSequence)."""
        if self.base_sequence == NO_SEQUENCE:
            return NO_SEQUENCE
        return (self.base_sequence + self.last_offset_delta) % 2**31

    @property
    def codec(self) -> int:
        """The number of its codec: none, gzip, snappy, lz4, zstd."""
        return self.attributes & CODEC_MASK

    @property
    def has_append_time(self) -> bool:
        """Whether its records have the time of their append, which is the batch's largest timestamp."""
        return bool(self.attributes & APPEND_TIME)

    def placed(self, base_offset: int, leader_epoch: int, append_time_ms: int | None) -> Batch:
        """The batch at its place in a log.

        Args:
            base_offset: the offset of its first record.
            leader_epoch: the leader's that appends it.
            append_time_ms: the time of the append, if the topic wants that as timestamp.
        """
        raw = bytearray(self.raw)
        _HEAD_START.pack_into(raw, 0, base_offset, len(raw) - _BEFORE_LENGTH_END, leader_epoch)
        if append_time_ms is not None:
            _ATTRIBUTES.pack_into(raw, _CHECKED_AT, self.attributes | APPEND_TIME)
            _TIMES.pack_into(raw, _TIMES_AT, self.base_timestamp_ms, append_time_ms)
            _CRC.pack_into(raw, _CRC_AT, crc32c(memoryview(raw)[_CHECKED_AT:]))
        return _from_head(bytes(raw))


def produced(raw: bytes | None, *, batch_bytes_max: int, zstd: bool) -> Batch:
    """The one batch that a producer sent to a partition.

    Source: ProduceRequest.validateRecords, UnifiedLog.analyzeAndValidateRecords, LogValidator.validateBatch.

    Args:
        raw: the bytes of the request.
        batch_bytes_max: the topic's `max.message.bytes`.
        zstd: whether the version of the request allows that codec (KIP-110).

    Raises:
        Refused: it is refused.
    """
    if not raw or len(raw) < HEAD_BYTES:
        raise NoSuchBatch(ErrorCode.INVALID_RECORD, "there must be exactly one record batch for a partition")
    batch = _from_head(raw)
    _check_frame(raw, batch, zstd=zstd)
    if len(raw) > batch_bytes_max:
        text = f"the batch has {len(raw)} bytes, and max.message.bytes is {batch_bytes_max}"
        raise Refused(ErrorCode.MESSAGE_TOO_LARGE, text)
    (crc,) = _CRC.unpack_from(raw, _CRC_AT)
    if crc != crc32c(memoryview(raw)[_CHECKED_AT:]):
        raise Refused(ErrorCode.CORRUPT_MESSAGE, "the batch has another checksum than its head says")
    _check_fields(batch)
    return batch


def _check_frame(raw: bytes, batch: Batch, *, zstd: bool) -> None:
    if raw[_MAGIC_AT] != MAGIC:
        raise NoSuchBatch(ErrorCode.INVALID_RECORD, f"record batches have format 2, and this one has {raw[_MAGIC_AT]}")
    (length,) = _LENGTH.unpack_from(raw, _LENGTH_AT)
    if length + _BEFORE_LENGTH_END != len(raw):
        raise NoSuchBatch(ErrorCode.INVALID_RECORD, "there must be exactly one record batch for a partition")
    if batch.codec > ZSTD or (batch.codec == ZSTD and not zstd):
        text = f"codec {batch.codec} is unknown in this version of Produce"
        raise NoSuchBatch(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, text)


def _check_fields(batch: Batch) -> None:
    if batch.base_offset != 0:
        raise Refused(
            ErrorCode.INVALID_RECORD, f"the first offset of a produced batch is 0, and not {batch.base_offset}"
        )
    if batch.count <= 0 or batch.count != batch.last_offset_delta + 1:
        text = f"the batch claims {batch.count} records and a last offset of {batch.last_offset_delta}"
        raise Refused(ErrorCode.INVALID_RECORD, text)
    if batch.attributes & CONTROL:
        raise Refused(ErrorCode.INVALID_RECORD, "producers may not write control records")
    if batch.attributes & TRANSACTIONAL:
        raise Refused(ErrorCode.INVALID_TXN_STATE, "this broker has no transactions")
    if batch.producer_id != NO_PRODUCER and batch.base_sequence < 0:
        raise Refused(ErrorCode.INVALID_RECORD, f"a producer's sequence is not negative, as {batch.base_sequence} is")


def _from_head(raw: bytes) -> Batch:
    try:
        base, _, epoch, _, _, attributes, last, first_ms, max_ms, producer, producer_epoch, sequence, count = (
            _HEAD.unpack_from(raw)
        )
    except error as short:
        raise Refused(ErrorCode.CORRUPT_MESSAGE, f"the batch has no whole head: {short}") from None
    return Batch(raw, base, epoch, attributes, last, first_ms, max_ms, producer, producer_epoch, sequence, count)
