"""The fixtures in another project, with a Kafka whose start takes long and says so."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from spark_kgroup.testing.spark_python import spark_python

CONFTEST = """
import sys
from spark_kgroup.testing.apache_kafka import ApacheKafka
ApacheKafka.start = lambda kafka: print("Preparing Kafka", file=sys.stderr)
"""

TESTS = """
def test_shared(apache_kafka): print("unseen")
def test_own(apache_kafka_factory): apache_kafka_factory(nodes=3)
"""


@pytest.mark.parametrize("option", ["--capture=fd", "--capture=sys", "--capture=no"])
def test_progress_of_a_start_is_shown_while_tests_wait_for_it(tmp_path: Path, option: str) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_mine.py").write_text(TESTS)
    command: list[str | Path] = [sys.executable, "-m", "pytest", option, "-p", "no:cacheprovider", tmp_path]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert "2 passed" in done.stdout, done.stdout
    assert done.stderr.count("Preparing Kafka\n") >= 2
    assert ("unseen" in done.stdout) == (option == "--capture=no")


@pytest.mark.parametrize("chosen", [None, "/another/python"])
def test_a_spark_of_an_earlier_test_without_kafka_runs_the_tests_own_python(tmp_path: Path, chosen: str | None) -> None:
    (tmp_path / "test_mine.py").write_text(
        f"import os\ndef test_spark(): assert os.environ['PYSPARK_PYTHON'] == {chosen or spark_python()!r}"
    )
    environment = {name: value for name, value in os.environ.items() if name != "PYSPARK_PYTHON"}
    environment |= {"PYSPARK_PYTHON": chosen} if chosen else {}
    command: list[str | Path] = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", tmp_path]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment)
    assert "1 passed" in done.stdout, done.stdout
