"""Spark's own Kafka source, `format("kafka")`, which is not part of PySpark."""

from importlib.metadata import version
from pathlib import Path
from typing import Final

from spark_kgroup.testing.kafka_jars import fetch_jars
from spark_kgroup.testing.pinned_jars import Pin

CONNECTOR_VERSION: Final = {"4.0": "4.0.0", "4.1": "4.1.0"}.get(version("pyspark")[:3], "4.2.0")
"""With PySpark 4.3 as well, whose own connector Maven Central does not have."""

_OF_SPARK: Final = {
    "4.0.0": ("33a3b8b04df4a2e43c9d5bf8ca5972936a1ac662f2714e014d00ef6f27468bf3", 467_590),
    "4.1.0": ("a335b885043bbe0d553ab70738418a45eb4cda94a28718e4b62a347046c03723", 491_691),
    "4.2.0": ("64539c45e5d39f7ddb747312c239f38f5208d08c1a0ddf7d70beb2fbd9373705", 494_879),
}
"""Version -> SHA-256 and bytes."""

_PINS: Final = (
    Pin(
        *_OF_SPARK[CONNECTOR_VERSION],
        f"org/apache/spark/spark-sql-kafka-0-10_2.13/{CONNECTOR_VERSION}/spark-sql-kafka-0-10_2.13-{CONNECTOR_VERSION}.jar",
    ),
    Pin(
        "f2be3b76f9e6cbe63379d4e4e0dc14f59dbf056ae2ad16ff15ac108004c86767",
        64_975,
        "org/apache/spark/spark-token-provider-kafka-0-10_2.13/4.0.0/spark-token-provider-kafka-0-10_2.13-4.0.0.jar",
    ),
    Pin(
        "7568b998572d256f0b7bc0afdc1b7a2588b8b08415c62ce314c864a6851ae9d9",
        9_215_194,
        "org/apache/kafka/kafka-clients/3.9.1/kafka-clients-3.9.1.jar",
    ),
    Pin(
        "5273c8bc8c0dca2211175c0d27efbd7228efae99689aac001a8e1ef8e872e9ef",
        152_289,
        "org/apache/commons/commons-pool2/2.12.1/commons-pool2-2.12.1.jar",
    ),
)
"""Spark has the other jars that these depend on."""


def connector_jars() -> list[Path]:
    """The jars of `format("kafka")`."""
    return fetch_jars((), f"spark-sql-kafka-{CONNECTOR_VERSION}", pins=_PINS)
