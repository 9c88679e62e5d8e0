"""Print the new records of a Kafka topic. Run it again: it goes on where it stopped.

python examples/quickstart.py 127.0.0.1:9092 flights checkpoints/flights
"""

import os
import sys

from pyspark.sql import SparkSession

import pyspark_kgroup

broker, topic, checkpoint = sys.argv[1:]
os.environ.setdefault("PYSPARK_PYTHON", pyspark_kgroup.python())  # where spark-kgroup is installed
spark = SparkSession.builder.getOrCreate()
records = (
    spark.readStream.format("kgroup")
    .option("kafka.bootstrap.servers", broker)
    .option("kafka.group.id", topic)
    .option("subscribe", topic)
    .option("startingOffsets", "earliest")
    .load()
)
query = records.selectExpr("partition", "offset", "CAST(value AS STRING)").writeStream.format("console")
query.option("checkpointLocation", checkpoint).trigger(availableNow=True).start().awaitTermination()
