"""`doctor(spark)` looks at the executors of a session from within."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pyspark
import pytest
from harness.stream import options
from pyspark.sql import SparkSession

import pyspark_kgroup
from pyspark_kgroup.diagnosis import Verdict
from spark_kgroup.errors import OptionError
from spark_kgroup.testing import ApacheKafka


def test_a_session_is_looked_at_from_within_its_executors(
    spark: SparkSession, apache_kafka: ApacheKafka, new_topic: Callable[[int], str], group: str
) -> None:
    diagnosis = pyspark_kgroup.doctor(spark, options(apache_kafka.bootstrap_servers, new_topic(1), group))
    found = {finding.subject: finding.found for finding in diagnosis}
    assert not [finding for finding in diagnosis if finding.verdict is Verdict.FAILS], diagnosis
    assert found["Python"].startswith(f"{sys.version_info.major}.{sys.version_info.minor}.")
    assert found["executor's JVM"] == "is an ancestor of its Python processes"
    assert found["other executors"] == "there is no other"
    assert found["brokers"] == "1 of 1 reached"
    assert "not compared" not in found["clock"]


def test_options_that_no_stream_would_take_are_refused(spark: SparkSession) -> None:
    with pytest.raises(OptionError, match=r"kafka\.group\.id is missing"):
        pyspark_kgroup.doctor(spark, {"subscribe": "t"})


def kgroup_doctor(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [str(Path(sys.executable).with_name("kgroup")), "doctor", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=240, env={**os.environ, **environment})


def test_the_command_starts_a_session_of_its_own_and_looks_at_it_without_pandas(
    class_archive: None, apache_kafka: ApacheKafka, tmp_path: Path
) -> None:
    (tmp_path / "pandas.py").write_text("raise ModuleNotFoundError('this environment has no pandas', name='pandas')")
    words = "--master local[2] --conf spark.ui.enabled=false --conf spark.driver.host=127.0.0.1 --json"
    server = apache_kafka.bootstrap_servers
    done = kgroup_doctor(*words.split(), "--bootstrap-server", server, PYTHONPATH=str(tmp_path))
    assert done.returncode == 0, done.stderr
    found = {finding["subject"]: finding["found"] for finding in json.loads(done.stdout)}
    assert found["executor's JVM"] == "is an ancestor of its Python processes"
    assert found["brokers"] == "1 of 1 reached"
    assert "Looking at the executors: done after" in done.stderr


@pytest.mark.full
def test_spark_starts_with_the_settings_that_the_command_advises(class_archive: None) -> None:
    def way_to_the_jvm(*settings: str) -> dict[str, str]:
        local = ("spark.ui.enabled=false", "spark.driver.host=127.0.0.1", *settings)
        done = kgroup_doctor("--master", "local[1]", "--json", *(f"--conf={setting}" for setting in local))
        assert done.returncode == 0, done.stderr
        found: list[dict[str, str]] = json.loads(done.stdout)
        (finding,) = (each for each in found if each["subject"] == "way to the JVM")
        return finding

    before = way_to_the_jvm()
    if pyspark.__version__.startswith("4.0."):
        assert before["found"] == "TCP, as always before PySpark 4.1"
        return
    assert before["found"] == "TCP"
    settings = re.findall(r"spark\.[\w.]+=\w+", before["advice"])
    assert len(settings) == 2
    assert way_to_the_jvm(*settings)["found"] == "a Unix socket"


def test_a_session_that_does_not_come_about_is_one_error_without_a_traceback() -> None:
    done = kgroup_doctor("--master", "no-such-master")
    assert done.returncode == 1
    assert "kgroup: Spark did not run the examination" in done.stderr
    assert "Traceback" not in done.stderr
