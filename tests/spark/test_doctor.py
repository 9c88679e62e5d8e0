"""`doctor(spark)` looks at the executors of a session from within."""

import sys
from collections.abc import Callable

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
