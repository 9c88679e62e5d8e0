"""Where a batch read begins and ends, on a real Kafka: starts and ends of all kinds with each other."""

import json
import time
from uuid import uuid4

import pytest
from confluent_kafka import Producer

from pyspark_kgroup.batch import KgroupReader
from pyspark_kgroup.shared.columns import COLUMNS, spark_schema
from pyspark_kgroup.stream import Ticket
from spark_kgroup.errors import OptionError
from spark_kgroup.testing import ApacheKafka

FIRST_MS = int(time.time() * 1000) - 3_600_000

PARTITIONS = 2
RECORDS = 9
"""Records of each partition: three of each of three times, a second apart."""


@pytest.fixture(scope="module")
def topic(apache_kafka: ApacheKafka) -> str:
    name = f"bounds-{uuid4().hex[:8]}"
    apache_kafka.create_topic(name, partitions=PARTITIONS)
    producer = Producer({"bootstrap.servers": apache_kafka.bootstrap_servers, "enable.idempotence": True})
    for number in range(RECORDS):
        for partition in range(PARTITIONS):
            producer.produce(name, b"v", partition=partition, timestamp=at(number // 3))
    assert producer.flush(60) == 0
    return name


def at(turn: int) -> int:
    return FIRST_MS + turn * 1000


def each(topic: str, *values: int) -> str:
    return json.dumps({topic: {str(partition): value for partition, value in enumerate(values)}})


def read(kafka: ApacheKafka, topic: str, **options: str) -> list[list[int]]:
    """The offsets that are read of each partition."""
    given = {"kafka.bootstrap.servers": kafka.bootstrap_servers, "subscribe": topic, **options}
    reader = KgroupReader(given, spark_schema(COLUMNS))
    tasks = reader.partitions()
    cluster = kafka.admin.list_topics(timeout=20).cluster_id
    assert {task.payload.settings.cluster for task in tasks if isinstance(task, Ticket)} <= {cluster}
    rows = [row for task in tasks for batch in reader.read(task) for row in batch.to_pylist()]
    return [sorted(row["offset"] for row in rows if row["partition"] == number) for number in range(PARTITIONS)]


@pytest.mark.parametrize(
    ("start", "end", "expected"),
    [
        (("earliest",), ("latest",), [(0, 9), (0, 9)]),
        ((), (), [(0, 9), (0, 9)]),
        ((-2, 2), (-1, 4), [(0, 9), (2, 4)]),
        (("from", 1, 1), ("to", 2, 2), [(3, 6), (3, 6)]),
        (("from", 0, 1), (-1, 4), [(0, 9), (3, 4)]),
        ((-2, 1), ("to", 2, 1), [(0, 6), (1, 3)]),
        (("from", 1, 2), (), [(3, 9), (6, 9)]),
        ((), ("to", 2, 1), [(0, 6), (0, 3)]),
        (("from", 1), ("to", 2), [(3, 6), (3, 6)]),
        ((), ("to", 1, 3), [(0, 3), (0, 9)]),
        (("from", 1, 1), (2, 3), "endingOffsets lies before startingOffsetsByTimestamp in {0}-0: 3 to 2"),
        ((3, 4), ("to", 1, 1), "endingOffsetsByTimestamp lies before startingOffsets in {0}-1: 4 to 3"),
        (("from", 2), (9, 5), "endingOffsets lies before startingTimestamp in {0}-1: 6 to 5"),
        ((9, 10), (), "startingOffsets lies beyond the end of {0}-1: 10 (ends at 9)"),
        (("from", 0, 3), (), "startingOffsetsByTimestamp: there is no record at or after its timestamp in {0}-1"),
        (("from", 0), (7, 10), "endingOffsets lies beyond the end of {0}-1: 10 (ends at 9)"),
    ],
)
def test_starts_and_ends_of_all_kinds_go_together_and_an_end_before_the_start_is_an_error(
    apache_kafka: ApacheKafka,
    topic: str,
    start: tuple[object, ...],
    end: tuple[object, ...],
    expected: list[tuple[int, int]] | str,
) -> None:
    options = {**given(topic, "starting", *start), **given(topic, "ending", *end)}
    if isinstance(expected, str):
        with pytest.raises(OptionError) as problem:
            read(apache_kafka, topic, **options)
        assert str(problem.value).startswith(f"Option {expected.format(topic)}")
    else:
        assert read(apache_kafka, topic, **options) == [list(range(*span)) for span in expected]


def given(topic: str, which: str, *how: object) -> dict[str, str]:
    """The option of one end: a word, an offset for each partition, one turn for all, or a turn for each partition."""
    match how:
        case ():
            return {}
        case (str(word),):
            return {f"{which}Offsets": word}
        case (str(), int(turn)):
            return {f"{which}Timestamp": str(at(turn))}
        case (str(), *turns):
            return {f"{which}OffsetsByTimestamp": each(topic, *(at(turn) for turn in turns if isinstance(turn, int)))}
        case _:
            return {f"{which}Offsets": each(topic, *(place for place in how if isinstance(place, int)))}
