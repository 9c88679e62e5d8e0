"""Spark's admission control, where this PySpark has it.

Runs on: driver. From 4.2 Spark says where a batch starts and how much it may take (`latestOffset(start, limit)`), and lets a
source prepare for AvailableNow. PySpark 4.0 and 4.1 call `latestOffset()` and know none of these names.
"""

from __future__ import annotations

from typing import Any

try:
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxRows,
        SupportsTriggerAvailableNow,
    )
except ImportError:  # PySpark 4.0 and 4.1
    HAS_ADMISSION_CONTROL = False

    class AdmissionControl:
        """Nothing to mix in before PySpark 4.2."""

    def default_read_limit(_offsets_max: int | None) -> Any:
        """Never asked for before PySpark 4.2."""
        return None

    def offsets_max(_limit: Any, option: int | None) -> int | None:
        """Before PySpark 4.2 only the option says how much a batch may take."""
        return option

else:
    HAS_ADMISSION_CONTROL = True

    AdmissionControl = SupportsTriggerAvailableNow

    def default_read_limit(offsets_max: int | None) -> ReadLimit:
        """The option `maxOffsetsPerTrigger` as Spark's read limit."""
        return ReadAllAvailable() if offsets_max is None else ReadMaxRows(offsets_max)

    def offsets_max(limit: Any, option: int | None) -> int | None:
        """How many offsets the next batch may take; None for all there is (Trigger.Once ignores the option)."""
        del option
        return limit.max_rows if isinstance(limit, ReadMaxRows) else None
