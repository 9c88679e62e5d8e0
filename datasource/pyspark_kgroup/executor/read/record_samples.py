"""Reads some records only to see how large they are.

Runs on: driver, before the first batch (`driver/boundary/first_sample`), with the reader of executors.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, cast

from pyspark_kgroup.executor.read.range_reader import read_with_librdkafka
from pyspark_kgroup.executor.read.read_sizes import ReadSizes
from pyspark_kgroup.limits import SAMPLE_MS, SAMPLED_BYTES
from pyspark_kgroup.shared.tickets import OffsetRange, ReadSettings, TopicSize
from spark_kgroup.errors import KgroupError

if TYPE_CHECKING:
    from collections.abc import Generator

    import pyarrow as pa

log = logging.getLogger(__name__)


def sample_sizes(
    ranges: Sequence[OffsetRange], settings: ReadSettings, clock_s: Callable[[], float] = time.monotonic
) -> tuple[TopicSize, ...]:
    """The sizes of the records in these ranges, as far as they come within `SAMPLE_MS` and `SAMPLED_BYTES` a range.

    A failure is logged at level info, and ends the sample: the read of the batch will meet it as well, and tell it.

    Args:
        ranges: at most one for each partition.
        settings: how the query's executors read.
        clock_s: a monotonic one.
    """
    sizes = ReadSizes({r.topic for r in ranges})
    hasty = replace(settings, stall_timeout_ms=SAMPLE_MS, fail_on_data_loss=True)  # it is an error, and no warning
    left, until_s = SAMPLED_BYTES * len(ranges), clock_s() + SAMPLE_MS / 1000
    reading = cast("Generator[pa.RecordBatch]", read_with_librdkafka(ranges, hasty, clock_s))
    try:
        with closing(reading):
            for batch in reading:
                sizes.add(batch)
                left -= batch.nbytes
                if left <= 0 or clock_s() > until_s:
                    break
    except KgroupError as error:
        log.info("the sizes of records are not known before the first batch: %s", error)
    return sizes.by_topic()
