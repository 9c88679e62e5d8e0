"""The structures and calls of `records.c`, for ctypes.

Runs on: executor.
"""

from __future__ import annotations

from ctypes import CDLL, POINTER, Structure, c_int32, c_int64, c_uint8, c_uint32, c_void_p
from enum import IntEnum
from typing import ClassVar, Final

VERSION: Final = 4
"""`VERSION` in records.c: a library of another version has different structures."""


class Status(IntEnum):
    """The result of a call."""

    GOOD = 0
    OLD_FORMAT = 1
    BAD_CHECKSUM = 2
    MALFORMED = 3
    FAR_TIMESTAMP = 4


class Batch(Structure):
    """A batch that has rows."""

    _fields_: ClassVar = [
        ("payload", c_void_p),
        ("payload_bytes", c_int64),
        ("base_offset", c_int64),
        ("base_timestamp_ms", c_int64),
        ("max_timestamp_ms", c_int64),
        ("last_offset_delta", c_int32),
        ("records", c_int32),
        ("leader_epoch", c_int32),
        ("codec", c_int32),
        ("log_append_time", c_int32),
        ("more", c_int32),
    ]
    payload: int
    payload_bytes: int
    leader_epoch: int
    codec: int
    more: int


class AbortedTransaction(Structure):
    """As a Fetch answer lists it, with the producer as an index into the walk's `producers`."""

    _fields_: ClassVar = [("producer", c_int64), ("first_offset", c_int64)]


class Walk(Structure):
    """Where the walk over the batches of one answer stands."""

    _fields_: ClassVar = [
        ("bytes", c_void_p),
        ("size", c_int64),
        ("at", c_int64),
        ("start", c_int64),
        ("end", c_int64),
        ("aborted", POINTER(AbortedTransaction)),
        ("producers", POINTER(c_int64)),
        ("aborted_now", POINTER(c_uint8)),
        ("aborted_count", c_int64),
        ("aborted_begun", c_int64),
        ("producer_count", c_int64),
        ("next_offset", c_int64),
        ("leader_epoch", c_int32),
        ("compressed", c_int32),
    ]
    next_offset: int
    leader_epoch: int
    compressed: int


class ArrowSlot(Structure):
    """The next record to be read."""

    _fields_: ClassVar = [("batch", c_int32), ("record", c_int32), ("at", c_int64), ("previous_delta", c_int64)]
    batch: int
    at: int


class Sizes(Structure):
    """How many rows an Arrow batch has, and how many values and bytes its columns have."""

    _fields_: ClassVar = [
        ("rows", c_int64),
        ("rows_with_headers", c_int64),
        ("headers", c_int64),
        ("key_bytes", c_int64),
        ("keys", c_int64),
        ("value_bytes", c_int64),
        ("values", c_int64),
        ("header_key_bytes", c_int64),
        ("header_value_bytes", c_int64),
        ("header_values", c_int64),
    ]
    rows: int
    rows_with_headers: int
    headers: int
    key_bytes: int
    keys: int
    value_bytes: int
    values: int
    header_key_bytes: int
    header_value_bytes: int
    header_values: int


class Binary(Structure):
    """The buffers of a column of type binary, or string."""

    _fields_: ClassVar = [("offsets", c_void_p), ("data", c_void_p), ("validity", c_void_p), ("data_bytes", c_int64)]


class Columns(Structure):
    """The buffers of an Arrow batch."""

    _fields_: ClassVar = [
        ("rows", c_int64),
        ("headers", c_int64),
        ("key", Binary),
        ("value", Binary),
        ("header_key", Binary),
        ("header_value", Binary),
        ("partition", c_void_p),
        ("timestamp_type", c_void_p),
        ("header_offsets", c_void_p),
        ("offset", c_void_p),
        ("timestamp_us", c_void_p),
        ("header_validity", c_void_p),
    ]


def declare(library: CDLL) -> None:
    """Tell ctypes the types of the calls.

    Raises:
        AttributeError: the library lacks one of them.
    """
    range_ = (c_int64, c_int64)
    batches = (POINTER(Batch), c_int32)
    library.kgroup_version.argtypes = ()
    library.kgroup_version.restype = c_int32
    library.kgroup_crc32c.argtypes = (c_void_p, c_int64, c_int32)
    library.kgroup_crc32c.restype = c_uint32
    library.kgroup_walk.argtypes = (POINTER(Walk), *batches, POINTER(c_int32))
    wanted = (c_int32, c_int32, c_int64, c_int64)
    library.kgroup_measure.argtypes = (*batches, POINTER(ArrowSlot), *range_, *wanted, POINTER(Sizes))
    library.kgroup_fill.argtypes = (*batches, POINTER(ArrowSlot), *range_, c_int32, POINTER(Columns))
