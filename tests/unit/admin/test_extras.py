"""Packages that only an extra installs, and the errors where they are missing."""

import subprocess
import sys
from pathlib import Path

EXTRAS = ("typer", "rich", "javaproperties", "prometheus_client", "pooch", "requests")

WITHOUT = f"import sys; sys.modules.update(dict.fromkeys({EXTRAS}))\n"
"""An environment without these packages, as far as imports can tell."""

OF_A_QUERY = """
import pkgutil, importlib, pyspark_kgroup, spark_kgroup.runtime, spark_kgroup.wire, spark_kgroup.member
for package in (pyspark_kgroup, spark_kgroup.runtime, spark_kgroup.wire, spark_kgroup.member):
    for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        importlib.import_module(module.name)
import spark_kgroup.testing.pytest_plugin
"""


def run(program: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", WITHOUT + program], capture_output=True, text=True, timeout=120)


def test_a_query_and_pytest_need_no_package_of_the_extras() -> None:
    done = run(OF_A_QUERY)
    assert done.returncode == 0, done.stderr


def test_the_command_without_its_extra_is_one_line_that_names_it() -> None:
    done = run("from spark_kgroup.admin.command import main; main()")
    assert done.returncode == 1
    assert done.stderr == "kgroup: typer is missing. Install the command line: pip install 'spark-kgroup[cli]'\n"


def test_a_fault_in_the_command_itself_is_not_taken_for_a_missing_extra() -> None:
    done = run("sys.modules['spark_kgroup.admin.cli'] = None; from spark_kgroup.admin.command import main; main()")
    assert "Traceback" in done.stderr


def test_a_download_without_the_extra_names_it(tmp_path: Path) -> None:
    program = "from pathlib import Path; from spark_kgroup.testing.pinned_jars import Pin, download; "
    done = run(f"{program}download([Pin('0', 1, 'a/b.jar')], Path({str(tmp_path)!r}), 'b', None)")
    assert "needs pooch, which is not installed: pip install 'spark-kgroup[testing]'" in done.stderr


def test_progress_without_the_extra_is_plain_lines() -> None:
    done = run("from spark_kgroup.testing.progress import announced\nwith announced('Waiting'): pass")
    assert done.stderr.startswith("Waiting\nWaiting: done after 0.")
