"""Offsets that are not numbers yet: where they stand is looked up when a partition is adopted.

Runs on: driver. Pure.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple


class OffsetSpec(Enum):
    """An offset by its meaning (Kafka: org.apache.kafka.clients.admin.OffsetSpec)."""

    EARLIEST = "earliest"
    """The first offset that the partition still has."""

    LATEST = "latest"
    """One past the last readable offset."""

    STARTING = "starting"
    """Where the option `startingOffsets` says, or for `committed`, where `kafka.auto.offset.reset` says."""


class Ago(NamedTuple):
    """The first offset whose record is not older than this before the query starts (KIP-1106: `by_duration`).

    Attributes:
        ms: at least 0.
    """

    ms: int


class AtTimestamp(NamedTuple):
    """The first offset whose record is not older than this (Kafka: OffsetSpec.forTimestamp).

    Attributes:
        ms: since 1970, in UTC.
    """

    ms: int
