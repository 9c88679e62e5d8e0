"""`spark.read.format("kgroup")`: ranges of offsets, read once, in no group, against a real Apache Kafka."""

import json
import time
from collections.abc import Callable, Iterator
from typing import Any
from uuid import uuid4

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from harness.kafka import contents, fill, produce, run_transaction
from harness.offsets import await_end
from harness.reader_option import READER
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col, spark_partition_id
from pyspark.sql.functions import max as largest

from spark_kgroup.testing import ApacheKafka

PARTITIONS = 3
RECORDS = 300
NewTopic = Callable[[int], str]
PUSHDOWN = "spark.sql.python.filterPushdown.enabled"


@pytest.fixture
def topic(apache_kafka: ApacheKafka, new_topic: NewTopic) -> str:
    """With 100 records in each partition."""
    name = new_topic(PARTITIONS)
    produce(apache_kafka.bootstrap_servers, name, RECORDS, partitions=PARTITIONS)
    return name


@pytest.fixture
def load(spark: SparkSession, apache_kafka: ApacheKafka) -> Callable[..., DataFrame]:
    def frame_of(topic: str, **options: Any) -> DataFrame:
        required = {"kafka.bootstrap.servers": apache_kafka.bootstrap_servers, "subscribe": topic, "reader": READER}
        given = {name: value for name, value in {**required, **options}.items() if value is not None}
        return spark.read.format("kgroup").options(**given).load()

    return frame_of


@pytest.fixture
def read(load: "Read") -> "Read":
    return load


Read = Callable[..., DataFrame]


def places(frame: DataFrame) -> list[tuple[int, int]]:
    return sorted((row.partition, row.offset) for row in frame.select("partition", "offset").collect())


def span(*partitions: tuple[int, int, int]) -> list[tuple[int, int]]:
    return [(partition, offset) for partition, first, end in partitions for offset in range(first, end)]


def by_partition(topic: str, values: dict[int, int]) -> str:
    return json.dumps({topic: {str(partition): value for partition, value in values.items()}})


def refusal(frame: Callable[[], DataFrame]) -> str:
    with pytest.raises(Exception, match="kgroup") as problem:
        frame().collect()
    message = str(problem.value)
    assert "Traceback" not in message
    return message


# ------------------------------------------------------------------------------------- the rows that are read


def test_a_batch_read_is_the_topic_and_joins_no_group(
    apache_kafka: ApacheKafka, read: Read, topic: str, group: str
) -> None:
    frame = read(topic, **{"kafka.group.id": group, "includeHeaders": "true"})
    rows = frame.collect()
    found = {(row.partition, row.offset): bytes(row.value) for row in rows}
    assert found == contents(apache_kafka.bootstrap_servers, topic)
    assert len(rows) == RECORDS
    assert frame.columns == ["key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers"]
    assert {row.topic for row in rows} == {topic}
    assert frame.rdd.getNumPartitions() == PARTITIONS
    assert apache_kafka.describe_members(group) == []


def test_rows_have_the_columns_that_the_option_names(apache_kafka: ApacheKafka, read: Read, topic: str) -> None:
    frame = read(topic, columns="offset,value,partition")
    assert frame.columns == ["offset", "value", "partition"]
    found = {(row.partition, row.offset): bytes(row.value) for row in frame.collect()}
    assert found == contents(apache_kafka.bootstrap_servers, topic)
    assert read(topic, columns="headers").distinct().collect() == [(None,)]


def test_two_topics_and_a_pattern_read_the_same(read: Read, topic: str, apache_kafka: ApacheKafka) -> None:
    other = f"{topic}-other"
    apache_kafka.create_topic(other, partitions=1)
    produce(apache_kafka.bootstrap_servers, other, 10, partitions=1)
    named = read(f"{topic},{other}")
    matched = read(topic, subscribe=None, subscribePattern=f"{topic}.*")
    assert named.groupBy("topic").count().collect() != []
    assert sorted(named.select("topic", "partition", "offset").collect()) == sorted(
        matched.select("topic", "partition", "offset").collect()
    )
    assert named.count() == RECORDS + 10


def test_a_temporary_view_in_sql_reads_the_topic(spark: SparkSession, apache_kafka: ApacheKafka, topic: str) -> None:
    view = f"view_of_{uuid4().hex}"
    options = {
        "kafka.bootstrap.servers": apache_kafka.bootstrap_servers,
        "subscribe": topic,
        "endingOffsets": by_partition(topic, {0: 10, 1: 20, 2: 0}),
        "reader": READER,
    }
    listed = ", ".join(f"`{name}` '{value}'" for name, value in options.items())
    spark.sql(f"CREATE TEMPORARY VIEW {view} USING kgroup OPTIONS ({listed})")
    try:
        for _ in range(2):
            assert places(spark.sql(f"SELECT partition, offset FROM {view}")) == span((0, 0, 10), (1, 0, 20))
    finally:
        spark.catalog.dropTempView(view)


def test_offsets_bound_a_read_for_each_partition(read: Read, topic: str) -> None:
    frame = read(
        topic,
        startingOffsets=by_partition(topic, {0: 10, 1: -2, 2: 100}),
        endingOffsets=by_partition(topic, {0: 20, 1: 3, 2: -1}),
    )
    assert places(frame) == span((0, 10, 20), (1, 0, 3))


def test_timestamps_bound_a_read(apache_kafka: ApacheKafka, read: Read, new_topic: NewTopic) -> None:
    topic, first_ms = new_topic(2), time.time_ns() // 1_000_000 - 3_600_000
    producer = Producer({"bootstrap.servers": apache_kafka.bootstrap_servers, "enable.idempotence": True})
    for number in range(20):
        for partition in range(2):
            producer.produce(topic, b"v", b"k", partition, timestamp=first_ms + number * 1000)
    assert producer.flush(60) == 0
    at = {number: first_ms + number * 1000 for number in (3, 5, 8, 12)}
    everywhere = read(topic, startingTimestamp=str(at[5]), endingTimestamp=str(at[12]))
    assert places(everywhere) == span((0, 5, 12), (1, 5, 12))
    each = read(
        topic,
        startingOffsetsByTimestamp=by_partition(topic, {0: at[3], 1: at[5]}),
        endingOffsetsByTimestamp=by_partition(topic, {0: at[8], 1: first_ms + 10**9}),
    )
    assert places(each) == span((0, 3, 8), (1, 5, 20))
    late = str(first_ms + 10**9)
    assert "there is no record at or after its timestamp" in refusal(lambda: read(topic, startingTimestamp=late))
    assert places(read(topic, startingTimestamp=late, startingOffsetsByTimestampStrategy="latest")) == []


def test_committed_starts_where_the_group_stands_and_commits_no_offset(
    apache_kafka: ApacheKafka, read: Read, topic: str, group: str
) -> None:
    config = {"bootstrap.servers": apache_kafka.bootstrap_servers, "group.id": group}
    consumer = Consumer(config)
    consumer.commit(offsets=[TopicPartition(topic, 0, 90), TopicPartition(topic, 1, 100)], asynchronous=False)
    frame = read(topic, **{"kafka.group.id": group, "startingOffsets": "committed"})
    expected = span((0, 90, 100), (2, 0, 100))
    assert places(frame) == expected
    assert places(frame) == expected
    every = [TopicPartition(topic, number) for number in range(PARTITIONS)]
    assert [each.offset for each in consumer.committed(every)] == [90, 100, -1001]
    consumer.close()
    latest = {"kafka.group.id": group, "startingOffsets": "committed", "kafka.auto.offset.reset": "latest"}
    assert places(read(topic, **latest)) == span((0, 90, 100))


def test_transactions_are_read_as_the_isolation_level_says(
    apache_kafka: ApacheKafka, read: Read, new_topic: NewTopic
) -> None:
    topic, server = new_topic(1), apache_kafka.bootstrap_servers
    producer = Producer({"bootstrap.servers": server, "transactional.id": f"t-{uuid4()}"})
    producer.init_transactions(30)
    run_transaction(producer, topic, [b"a", b"b"], commit=True)
    run_transaction(producer, topic, [b"c"], commit=False)
    await_end(apache_kafka, topic, 0, 5)
    producer.begin_transaction()
    fill(producer, topic, [b"open"])
    committed = read(topic, **{"kafka.isolation.level": "read_committed"})
    assert [bytes(row.value) for row in committed.orderBy("offset").collect()] == [b"a", b"b"]
    everything = read(topic)
    assert [bytes(row.value) for row in everything.orderBy("offset").collect()] == [b"a", b"b", b"c", b"open"]
    end = by_partition(topic, {0: 6})
    assert "behind transactions that are still open: " in refusal(
        lambda: read(topic, endingOffsets=end, **{"kafka.isolation.level": "read_committed"})
    )
    producer.abort_transaction(30)


# --------------------------------------------------------------------------------------------------- how much


def test_min_partitions_and_most_records_make_more_tasks_and_the_same_rows(read: Read, topic: str) -> None:
    everything = span(*((partition, 0, 100) for partition in range(PARTITIONS)))
    several = read(topic, minPartitions="8")
    assert several.rdd.getNumPartitions() == 8
    assert places(several) == everything
    small = read(topic, maxRecordsPerPartition="30")
    assert small.rdd.getNumPartitions() == 12
    assert small.groupBy(spark_partition_id()).count().agg(largest("count")).collect()[0][0] <= 30
    assert places(small) == everything
    assert read(topic, minPartitions="2").rdd.getNumPartitions() == PARTITIONS


@pytest.fixture
def pushdown(spark: SparkSession) -> Iterator[None]:
    spark.conf.set(PUSHDOWN, "true")
    yield
    spark.conf.unset(PUSHDOWN)


@pytest.mark.usefixtures("pushdown")
def test_queries_on_one_frame_have_their_own_rows_each_with_pushdown_on(read: Read, topic: str) -> None:
    """Of a reader that took filters Spark 4.1 to 4.3 keeps the plan, and gives it to the next query on the frame."""
    frame = read(topic)
    assert frame.where(col("partition") == 0).count() == RECORDS // PARTITIONS
    assert frame.count() == RECORDS
    both = frame.where(col("partition") == 0).union(frame.where(col("partition") == 1))
    assert places(both) == span((0, 0, 100), (1, 0, 100))


# --------------------------------------------------------------------------------------------- mistakes


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"subscribe": "no-such-topic"}, "Topic 'no-such-topic' does not exist"),
        ({"startingOffsets": "latest"}, "Option startingOffsets is 'latest'"),
        ({"startingOffsets": "committed"}, "kafka.group.id is missing"),
        ({"endingOffsets": '{"TOPIC": {"0": 1}}'}, "Option endingOffsets does not name TOPIC-1, TOPIC-2"),
        (
            {"endingOffsets": '{"TOPIC": {"0": 1, "1": 1, "2": 101}}'},
            "lies beyond the end of TOPIC-2: 101 (ends at 100)",
        ),
        (
            {
                "startingOffsets": '{"TOPIC": {"0": 9, "1": 9, "2": 9}}',
                "endingOffsets": '{"TOPIC": {"0": 9, "1": 8, "2": 10}}',
            },
            "Option endingOffsets lies before startingOffsets in TOPIC-1: 9 to 8",
        ),
        (
            {"startingTimestamp": "9", "endingTimestamp": "8"},
            "Option endingTimestamp lies before startingTimestamp in TOPIC-0: 9 ms to 8 ms",
        ),
        ({"pushFilters": "true"}, "Option pushFilters cannot be used"),
        ({"assign": '{"TOPIC":[0]}'}, "Option assign cannot be used"),
        ({"kafka.bootstrap.servers": "127.0.0.1:1"}, "No broker could be reached"),
    ],
)
def test_an_error_of_a_batch_read_is_our_sentence_and_no_frame(
    read: Read, topic: str, options: dict[str, str], message: str
) -> None:
    given = {name: value.replace("TOPIC", topic) for name, value in options.items()}
    assert message.replace("TOPIC", topic) in refusal(lambda: read(topic, **given))


def test_a_schema_of_the_users_own_is_refused_for_a_batch_read(
    spark: SparkSession, apache_kafka: ApacheKafka, topic: str
) -> None:
    given = {"kafka.bootstrap.servers": apache_kafka.bootstrap_servers, "subscribe": topic}
    frame = spark.read.format("kgroup").schema("value string").options(**given)
    assert "remove .schema" in refusal(frame.load)


def test_records_that_are_gone_fail_a_batch_read_or_are_skipped(
    apache_kafka: ApacheKafka, read: Read, topic: str
) -> None:
    where = TopicPartition(topic, 0, 30)
    apache_kafka.admin.delete_records([where])[where].result(30)
    start = by_partition(topic, {0: 20, 1: 99, 2: 99})
    message = refusal(lambda: read(topic, startingOffsets=start))
    assert f"Offsets 20 on of {topic}-0 were to be read next, but the log has 30 to 99" in message
    assert "failOnDataLoss=false" in message
    left = read(topic, startingOffsets=start, failOnDataLoss="false")
    assert places(left) == span((0, 30, 100), (1, 99, 100), (2, 99, 100))
    gone = read(
        topic, startingOffsets=start, endingOffsets=by_partition(topic, {0: 25, 1: 99, 2: 99}), failOnDataLoss="false"
    )
    assert places(gone) == []
    assert places(read(topic, endingOffsets=by_partition(topic, {0: 31, 1: 0, 2: 0}))) == span((0, 30, 31))
