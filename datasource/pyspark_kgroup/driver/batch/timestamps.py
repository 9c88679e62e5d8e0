"""Timestamps that have no record at or after them.

Runs on: driver. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

from pyspark_kgroup.offsets.offset_spec import AtTimestamp
from pyspark_kgroup.options.offset_bound import OffsetBound
from pyspark_kgroup.options.values import join
from spark_kgroup.errors import OptionError
from spark_kgroup.model import TopicPartition


def check_without_record(bound: OffsetBound, timestamps: Mapping[TopicPartition, AtTimestamp]) -> None:
    """See that partitions without a record at or after their timestamps may be taken at their ends.

    Raises:
        OptionError: they may not. It names partitions and dates.
    """
    if timestamps and not bound.later_is_latest:
        without = join([f"{tp} ({_instant(timestamps[tp].ms)})" for tp in sorted(timestamps)])
        raise OptionError(
            f"Option {bound.option}: there is no record at or after its timestamp in {without}. Give an earlier "
            "one, or set startingOffsetsByTimestampStrategy=latest to start such partitions at their end."
        )


def _instant(timestamp_ms: int) -> str:
    """A timestamp as a date, too, where the calendar goes so far."""
    try:
        at = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=timestamp_ms)
    except OverflowError:
        return f"{timestamp_ms} ms"
    return f"{timestamp_ms} ms: {at:%Y-%m-%d %H:%M:%S} UTC"
