"""Spark's Python processes under `kgroup-python` import PySpark from this environment, and from no archive."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from harness.places import Places, place
from pyspark.sql import SparkSession

import pyspark_kgroup

SITE = Path(pyspark_kgroup.__file__).parents[1]
EXPECTED = {"pyspark": str(SITE / "pyspark"), "py4j": str(SITE / "py4j"), "archives": [], "prefix": sys.prefix}


def of_a_worker(spark: SparkSession) -> dict[str, Any]:
    (found,) = spark.sparkContext.parallelize([0], 1).map(place).collect()
    return dict(json.loads(found))


def test_the_session_of_the_tests_runs_the_script() -> None:
    assert Path(pyspark_kgroup.python()) == Path(sys.executable).with_name("kgroup-python")


def test_a_worker_of_a_function_imports_the_installed_pyspark(spark: SparkSession) -> None:
    assert of_a_worker(spark) == EXPECTED


def test_each_process_of_another_python_source_imports_the_installed_pyspark(spark: SparkSession) -> None:
    spark.dataSource.register(Places)
    assert [json.loads(row.place) for row in spark.read.format("places").load().collect()] == [EXPECTED] * 3


def test_without_the_script_spark_s_archives_come_first(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the script is for: where a Spark leaves them out by itself, it has nothing to do."""
    monkeypatch.setattr(spark.sparkContext, "pythonExec", sys.executable)
    found = of_a_worker(spark)
    first, *_ = map(Path, found["archives"])
    assert first.name == "pyspark.zip"
    assert found["pyspark"] == str(first / "pyspark")
