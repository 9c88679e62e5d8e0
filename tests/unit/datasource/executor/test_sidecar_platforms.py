"""The package imports where a platform lacks a module: one broken data source hides all other ones from Spark."""

import subprocess
import sys

import pytest


@pytest.mark.parametrize("missing", ["fcntl"])
def test_the_package_imports_where_a_module_of_unix_is_missing(missing: str) -> None:
    program = (
        f"import sys; sys.modules[{missing!r}] = None; from pyspark_kgroup import DefaultSource; DefaultSource.name()"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
