"""Spark's admission control, where this PySpark has it.

Runs on: driver. From 4.2 Spark says where a batch starts and how much it may take (`latestOffset(start, limit)`), and
lets a source prepare for AvailableNow. PySpark 4.0 and 4.1 call `latestOffset()` and know none of these names.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

try:
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadMaxRows,
        ReadMinRows,
        SupportsTriggerAvailableNow,
    )
except ImportError:  # PySpark 4.0 and 4.1
    HAS_ADMISSION_CONTROL = False
else:
    HAS_ADMISSION_CONTROL = True

if TYPE_CHECKING or HAS_ADMISSION_CONTROL:

    class AdmissionControl(SupportsTriggerAvailableNow):
        """The mix-in with which a stream reader takes part in AvailableNow."""

else:

    class AdmissionControl:
        """Empty: before PySpark 4.2 a Python source has no part in AvailableNow."""


def default_read_limit(offsets_max: int | None, bytes_max: int | None, offsets_min: int | None) -> Any:
    """The options for the size of a batch, as Spark's read limit. Spark asks for it from PySpark 4.2 on.

    No read limit of PySpark can hold all three options. That does no harm: Spark only passes this one back, or another
    one for Trigger.Once, and the reader uses the options themselves.
    """
    if offsets_min is not None or bytes_max is not None:
        return ReadMinRows(offsets_min or 1)
    return ReadAllAvailable() if offsets_max is None else ReadMaxRows(offsets_max)


def takes_everything(limit: Any) -> bool:
    """Whether a batch takes all there is despite the options, as under Trigger.Once. `limit` is None before 4.2."""
    return limit is not None and not hasattr(limit, "min_rows") and not hasattr(limit, "max_rows")


def is_at_once(limit: Any) -> bool:
    """Whether Spark wants even a small batch: it hands back another limit than that of `minOffsetsPerTrigger`."""
    return limit is not None and not hasattr(limit, "min_rows")
