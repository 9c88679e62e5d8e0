"""Spark's own Kafka source, `format("kafka")`, which is not part of PySpark."""

from importlib.metadata import version
from pathlib import Path

from spark_kgroup.testing.ivy import Coordinate
from spark_kgroup.testing.kafka_jars import fetch_jars

_OF_OLDER_SPARK = {"4.0": "4.0.0", "4.1": "4.1.0"}
"""PySpark's release -> that of the connector. With later ones, 4.2.0 is the newest that there is."""

CONNECTOR = (
    # By name: the registry lacks some of their dependencies, and Spark has the rest.
    Coordinate(
        "org.apache.spark",
        "spark-sql-kafka-0-10_2.13",
        _OF_OLDER_SPARK.get(version("pyspark")[:3], "4.2.0"),
        transitive=False,
    ),
    Coordinate("org.apache.spark", "spark-token-provider-kafka-0-10_2.13", "4.0.0", transitive=False),
    Coordinate("org.apache.kafka", "kafka-clients", "3.9.1", transitive=False),
    Coordinate("org.apache.commons", "commons-pool2", "2.12.1", transitive=False),
)


def connector_jars() -> list[Path]:
    """The jars of `format("kafka")`."""
    return fetch_jars(CONNECTOR, f"spark-sql-kafka-{CONNECTOR[0].revision}")
