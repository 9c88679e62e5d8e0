"""Which Python Spark starts, where no setting names one.

Runs on: driver, in the user's own process. Spark starts `python3` from PATH unless PYSPARK_PYTHON names another one: an
environment that was not activated (a systemd unit, cron, an IDE) then runs its program, and Spark runs another Python,
in which nothing is installed.
"""

from __future__ import annotations

import shutil
import subprocess
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
"""With one of these, the user or spark-submit has chosen a Python, or a server that this process did not start."""


_START_S: Final = 10
"""How long a Python may take to say which environment it is of. A shim of pyenv takes 0.1 s (measured)."""


def other_python(environment: Mapping[str, str], prefix: str) -> str | None:
    """The Python that Spark starts instead of one of the environment at `prefix`.

    None if it is of that environment, too, or if a setting chose it. Only a Python itself knows its environment
    (sys.prefix): environments share one executable by symbolic links, and pyenv puts a shim of its own before them.
    """
    if any(name in environment for name in _SAID_ELSEWHERE):
        return None
    found = shutil.which("python3", path=environment.get("PATH", ""))
    if found is None:
        return "no python3 on PATH"
    ours = Path(prefix)
    if Path(found).parent.absolute() == ours / "bin" or _ask_prefix(found, environment) == ours.resolve():
        return None
    return found


def _ask_prefix(python: str, environment: Mapping[str, str]) -> Path | None:
    """The environment that `python` belongs to, or None if it does not say."""
    asking = [python, "-I", "-c", "import sys; print(sys.prefix)"]
    try:
        done = subprocess.run(asking, env=environment, capture_output=True, text=True, timeout=_START_S, check=True)
    except (OSError, ValueError, subprocess.SubprocessError):
        return None
    return Path(done.stdout.strip()).resolve()
