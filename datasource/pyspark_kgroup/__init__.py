"""`spark.readStream.format("kgroup")`: Kafka topics as a real consumer group.

Runs on: both. Spark finds `DefaultSource` in top-level modules named `pyspark_*`, so `format("kgroup")` needs no
registration where this package is installed; `register(spark)` exists for platforms without that look-up.
"""

from pyspark_kgroup.source import DefaultSource, register

__all__ = ["DefaultSource", "register"]
