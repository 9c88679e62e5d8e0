"""Reads ranges of offsets: ordinary records with the native reader, and the rest with librdkafka.

Runs on: executor. Needs neither Spark nor the driver.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

import pyarrow as pa

from pyspark_kgroup.executor.native.read_natively import Left, read_natively
from pyspark_kgroup.shared.tickets import OffsetRange, ReadSettings


def read_ranges(ranges: Sequence[OffsetRange], settings: ReadSettings) -> Iterator[pa.RecordBatch]:
    """Read exactly these ranges: see `range_reader.read_with_librdkafka`, which reads on where the native reader stops.

    The native reader's reasons, and the time for which it has waited, are handed on, so that the user sees one error
    after one deadline.
    """
    left = Left(ranges, {}, time.monotonic())
    if settings.reader == "native":
        left = yield from read_natively(ranges, settings)
    if left.ranges:
        # Imported here: librdkafka's module brings asyncio with it, and mostly no ranges are left.
        from pyspark_kgroup.executor.read import range_reader

        yield from range_reader.read_with_librdkafka(
            left.ranges, settings, reasons=left.reasons, quiet_since_s=left.quiet_since_s
        )
