"""The log lines of a query, as Spark shows them.

Runs on: driver.
"""

from __future__ import annotations

import logging
import os
from typing import Final

LEVEL_VARIABLE: Final = "KGROUP_LOG_LEVEL"
"""Environment of the driver: the least grave log lines of a query that are shown, such as INFO."""


def show_log(group: str) -> None:
    """Give this process's log lines, among Spark's, their time, level and group, unless logging is configured already.

    Without a handler Python shows the bare text of warnings alone. `LEVEL_VARIABLE` asks for more, or for less.
    """
    of_group = group.replace("%", "%%")
    form = f"%(asctime)s %(levelname)s kgroup, group {of_group}: %(message)s"
    logging.basicConfig(level=logging.WARNING, format=form, datefmt="%y/%m/%d %H:%M:%S")  # as Spark's log4j2 has it
    level = logging.getLevelNamesMapping().get(os.environ.get(LEVEL_VARIABLE, "").strip().upper())
    if level is not None:
        for package in ("spark_kgroup", "pyspark_kgroup"):
            logging.getLogger(package).setLevel(level)
