"""Spark in local mode, with the wheel installed: the sources are not on this environment's path."""

import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import uuid4

import pytest
from harness.application import quick_scripts, record_class_archive
from harness.connector import connector_jars
from harness.kafka import produce
from harness.stream import options
from pyspark.sql import SparkSession

import pyspark_kgroup
from spark_kgroup.testing import ApacheKafka

assert "site-packages" in pyspark_kgroup.__file__, "the Spark tests run the wheel, not the source tree"


@pytest.fixture(scope="session", autouse=True)
def own_temporary_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A folder for temporary files of this session alone, so that its leftovers can be told from other processes'."""
    folder = tmp_path_factory.mktemp("temporary")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", str(folder))
        patch.setattr(tempfile, "tempdir", str(folder))
        yield


@pytest.fixture(scope="session")
def spark(class_archive: None) -> Iterator[SparkSession]:
    os.environ["PYTHONPATH"] = str(Path(__file__).parents[1])  # harness.tokens, which a test names as tokenCallback
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = pyspark_kgroup.python()
    os.environ["PYTHONSAFEPATH"] = "1"  # Spark starts `python -m`, which would import the sources from our directory
    session = (
        SparkSession.builder.master("local[2]")
        .appName("kgroup tests")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()


@pytest.fixture(scope="session")
def kafka_source(spark: SparkSession) -> None:
    """`format("kafka")`: Spark looks a source up among the jars that were added in the thread that asks for it."""
    for jar in connector_jars():
        spark.sql(f"ADD JAR {jar}")


@pytest.fixture(scope="session")
def class_archive(apache_kafka: ApacheKafka, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Each start of a JVM takes half the CPU time from then on, and tests start more than a hundred."""
    server, topic = apache_kafka.bootstrap_servers, "topic-of-the-class-archive"
    apache_kafka.create_topic(topic, partitions=2)
    produce(server, topic, 20, partitions=2)
    record_class_archive(tmp_path_factory.mktemp("class-archive"), options(server, topic, topic))
    os.environ.update(quick_scripts())


@pytest.fixture
def group() -> str:
    return f"group-{uuid4().hex[:8]}"


@pytest.fixture
def new_topic(apache_kafka: ApacheKafka) -> Callable[[int], str]:
    """Make a topic with so many partitions, and return its name."""

    def make(partitions: int) -> str:
        name = f"topic-{uuid4().hex[:8]}"
        apache_kafka.create_topic(name, partitions=partitions)
        return name

    return make


@pytest.fixture(autouse=True)
def no_query_survives(spark: SparkSession) -> Iterator[None]:
    yield
    for query in spark.streams.active:
        query.stop()
