"""How an error of ours leaves this package for Spark: in its own words, without the frames it came through.

Runs on: driver. Spark shows users the traceback of every error that its Python process raises
(`handle_worker_exception` in pyspark/util.py), 30 lines for an error of ours. The frames of an error that is raised on
purpose are of no use to a user. The frames of a bug stay, for we need them.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager

from pyspark_kgroup.errors import SeatTaken
from spark_kgroup.errors import FencedInstanceId, KgroupError

log = logging.getLogger(__name__)


@contextmanager
def brief_errors() -> Iterator[None]:
    """Around each call by Spark: an error of ours is one line for the user, and whole in the log at DEBUG.

    Spark's process ends with the error, and Spark's own switch is read from its environment just before: set here, it
    concerns this error alone.
    """
    try:
        yield
    except KgroupError as error:
        log.debug("%s", error, exc_info=error)
        os.environ["SPARK_HIDE_TRACEBACK"] = "1"
        if isinstance(error, FencedInstanceId):
            raise SeatTaken(error.group, error.instance_id) from None
        raise error.with_traceback(None) from None
