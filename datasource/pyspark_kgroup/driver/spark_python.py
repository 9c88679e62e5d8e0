"""Which Python Spark starts, where nobody has said it.

Runs on: driver, in the user's own process. Spark starts `python3` from PATH unless PYSPARK_PYTHON names another one: an
environment that was not activated (a systemd unit, cron, an IDE) then runs its program, and Spark runs another Python,
in which nothing is installed.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Final

_SAID_ELSEWHERE: Final = (
    "PYSPARK_PYTHON",
    "PYSPARK_DRIVER_PYTHON",
    "PYSPARK_GATEWAY_PORT",
    "SPARK_REMOTE",
    "SPARK_CONNECT_MODE_ENABLED",  # PySpark sets it where the session's builder names the server
)
"""Somebody chose a Python; or spark-submit did, or a server that is not this process's."""


def other_python(environment: Mapping[str, str], running: str) -> str | None:
    """The Python that Spark starts instead of `running`; None if it is the same one, or if somebody chose it.

    Environments share one executable by symbolic links: what tells them apart is the folder.
    """
    if any(name in environment for name in _SAID_ELSEWHERE):
        return None
    found = shutil.which("python3", path=environment.get("PATH", ""))
    if found is None:
        return "no python3 on PATH"
    return None if Path(found).parent.absolute() == Path(running).parent.absolute() else found
