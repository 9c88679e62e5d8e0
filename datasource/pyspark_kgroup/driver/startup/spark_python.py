"""Which Python Spark starts: the one to choose, and the one that it takes where no setting names one.

Runs on: driver, in the user's own process. Spark starts `python3` from PATH unless PYSPARK_PYTHON names another one: an
environment that was not activated (a systemd unit, cron, an IDE) then runs its program, and Spark runs another Python,
in which nothing is installed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path
from typing import Final

_SCRIPT: Final = "kgroup-python"

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


def python() -> str:
    """The executable to name as PYSPARK_PYTHON before the session starts: `kgroup-python` of this environment.

    It runs the Python that runs this program, and takes the archives of PySpark off its path, which hold no compiled
    modules (the script says how). Spark's Python processes then import the PySpark of this environment, compiled, with
    a third of the CPU. Where this environment has another version of PySpark than Spark, or none, it changes nothing.

    Returns:
        The script's path, or `sys.executable` where the script is missing or would run another Python: on Windows,
        where the package is on the path without being installed (`addArtifacts`, `--py-files`, `pip install --target`),
        and where it is installed for a Python that is neither beside the script nor the first of its version on PATH.
        All works with `sys.executable`, too; each of Spark's Python processes starts later.
    """
    script = _installed_script()
    ours = Path(sys.prefix).resolve(), sys.version
    return script if script is not None and _identity(script, os.environ) == ours else sys.executable


def _installed_script() -> str | None:
    """Where the installer has put the script, be it in an environment, for the user or for the system."""
    try:
        found = [file for file in files("spark-kgroup") or () if file.name == _SCRIPT]
    except PackageNotFoundError:
        return None
    return os.path.normpath(found[0].locate()) if found else None


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
    if Path(found).parent.absolute() == ours / "bin":
        return None
    identity = _identity(found, environment)
    return None if identity is not None and identity[0] == ours.resolve() else found


def _identity(python: str, environment: Mapping[str, str]) -> tuple[Path, str] | None:
    """The environment that `python` belongs to, and its version, or None if it does not say."""
    asking = [python, "-I", "-c", "import sys; print(sys.prefix, sys.version, sep='\\n')"]
    try:
        done = subprocess.run(asking, env=environment, capture_output=True, text=True, timeout=_START_S, check=True)
    except (OSError, ValueError, subprocess.SubprocessError):
        return None
    prefix, _, version = done.stdout.rstrip("\n").partition("\n")
    return Path(prefix).resolve(), version
