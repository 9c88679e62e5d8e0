"""The decoder, compiled from the source as it is now."""

import subprocess
import sys
from ctypes import CDLL
from pathlib import Path

from pyspark_kgroup.executor.native import library as library_module
from pyspark_kgroup.executor.native.library import binary_name, load

ROOT = Path(__file__).parents[2]
NATIVE = Path(library_module.__file__).parent


def built_decoder() -> CDLL:
    """The decoder, built first if it is older than its source."""
    binary = NATIVE / "lib" / binary_name()
    sources = (NATIVE / "records.c", ROOT / "hatch_build.py")
    if not binary.exists() or binary.stat().st_mtime < max(source.stat().st_mtime for source in sources):
        subprocess.run([sys.executable, ROOT / "hatch_build.py"], check=True, timeout=60)
    found = load()
    assert found.library is not None, found.reason
    return found.library
