"""Which Python a Spark that tests start runs."""

import os
import sys
from pathlib import Path


def spark_python() -> str:
    """`kgroup-python` of this virtual environment, with which Spark's processes start faster, or this interpreter.

    Outside of virtual environments a script may belong to another Python than this one. To ask it, as
    `pyspark_kgroup.python()` does, starts a process, and each run of pytest calls this.
    """
    script = Path(sys.executable).with_name("kgroup-python")
    in_environment = os.name == "posix" and sys.prefix != sys.base_prefix
    return str(script) if in_environment and os.access(script, os.X_OK) else sys.executable
