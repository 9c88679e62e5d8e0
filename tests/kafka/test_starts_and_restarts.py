"""Each way to start a query, followed through restarts, records sent meanwhile and partitions that are added.

These are the stories of Spark's KafkaSourceSuiteBase. It tells each of them for topics by name and by pattern, with and
without failOnDataLoss. Here these four go on side by side.
"""

import json
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from uuid import uuid4

import pytest
from confluent_kafka import Producer
from harness.query import Query
from harness.waiting import wait_for

from spark_kgroup.errors import OptionError
from spark_kgroup.testing import ApacheKafka

OLD_MS = int(time.time() * 1000) - 3_600_000
YOUNG_MS = OLD_MS + 60_000

BEFORE = {0: "oyy", 1: "oyy", 2: "ooy", 3: "ooy", 4: "oooy"}
"""Partition -> its records when a query starts, old ones and young ones."""

STARTS: dict[str, tuple[Callable[[str], dict[str, str]], list[int]]] = {
    "earliest": (lambda _: {"startingOffsets": "earliest"}, [0, 0, 0, 0, 0]),
    "latest": (lambda _: {"startingOffsets": "latest"}, [3, 3, 3, 3, 4]),
    "offsets": (
        lambda topic: {"startingOffsets": json.dumps({topic: {"0": -2, "1": -1, "2": 0, "3": 1, "4": 2}})},
        [0, 3, 0, 1, 2],
    ),
    "timestamps": (
        lambda topic: {
            "startingOffsetsByTimestamp": json.dumps({topic: {**dict.fromkeys("0123", YOUNG_MS), "4": OLD_MS}})
        },
        [1, 1, 2, 2, 0],
    ),
    "one timestamp": (lambda _: {"startingTimestamp": str(YOUNG_MS)}, [1, 1, 2, 2, 3]),
}
"""The options that are given, and the first offset of each partition that is then read."""


def topic_with(kafka: ApacheKafka, records: Mapping[int, str]) -> str:
    """A new topic. The pattern leaves the last part of its name open."""
    topic = f"starts-{uuid4().hex[:8]}-suffix"
    kafka.create_topic(topic, partitions=len(records))
    send(kafka, topic, records)
    return topic


def send(kafka: ApacheKafka, topic: str, records: Mapping[int, str]) -> None:
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "enable.idempotence": True})
    for partition, ages in records.items():
        for age in ages:
            producer.produce(topic, b"1", partition=partition, timestamp=OLD_MS if age == "o" else YOUNG_MS)
    assert producer.flush(60) == 0


def query_of(kafka: ApacheKafka, topic: str, subscribe: str, **options: str) -> Query:
    """A query without a checkpoint, in a group of its own."""
    query = Query(kafka.bootstrap_servers, f"group-{uuid4().hex[:8]}", topic, executor=None, **options)
    if subscribe == "subscribePattern":
        query.options["subscribePattern"] = f"{query.options.pop('subscribe').removesuffix('suffix')}.*"
    return query


def offsets(query: Query) -> dict[int, list[int]]:
    return {partition: [row["offset"] for row in rows] for (_, partition), rows in sorted(query.rows.items())}


@pytest.mark.parametrize("start", STARTS)
def test_a_query_goes_on_from_where_it_started_and_reads_added_partitions_from_their_beginning(
    apache_kafka: ApacheKafka, start: str
) -> None:
    given, firsts = STARTS[start]

    def story(subscribe: str, fail_on_data_loss: str) -> None:
        topic = topic_with(apache_kafka, BEFORE)
        ends = {partition: len(ages) for partition, ages in BEFORE.items()}
        query = query_of(apache_kafka, topic, subscribe, failOnDataLoss=fail_on_data_loss, **given(topic))

        def expected() -> dict[int, list[int]]:
            spans = {p: range(firsts[p] if p in BEFORE else 0, end) for p, end in ends.items()}
            return {partition: list(span) for partition, span in spans.items() if span}

        def more() -> None:
            send(apache_kafka, topic, dict.fromkeys(ends, "o"))
            ends.update({partition: end + 1 for partition, end in ends.items()})

        def all_is_read() -> bool:
            query.trigger()
            return offsets(query) == expected()

        with query:
            query.settle()
            assert offsets(query) == expected()
        with query:
            query.settle()
            assert offsets(query) == expected(), "what was read does not come back"
        more()
        with query:
            query.settle()
            assert offsets(query) == expected(), "nor is anything skipped that came meanwhile"
            apache_kafka.add_partitions(topic, 8)
            ends.update(dict.fromkeys(range(5, 8), 0))
            more()
            wait_for(all_is_read, "records of added partitions", 60)
            query.settle()
            assert offsets(query) == expected()

    with ThreadPoolExecutor(4) as at_once:
        list(at_once.map(story, *zip(*product(("subscribe", "subscribePattern"), ("true", "false")), strict=True)))


def test_topics_start_where_a_word_for_each_says_and_one_that_appears_later_at_its_beginning(
    apache_kafka: ApacheKafka,
) -> None:
    early, late = (topic_with(apache_kafka, {0: "oo", 1: "o"}) for _ in range(2))
    appears = f"{early}-too"
    words = json.dumps({early: "earliest", late: "Latest"})
    query = Query(apache_kafka.bootstrap_servers, f"group-{early}", "unused", startingOffsets=words)
    del query.options["subscribe"]
    query.options["subscribePattern"] = f"{early}.*|{late}"

    def found() -> dict[str, list[list[int]]]:
        rows = {topic: [query.rows.get((topic, p), []) for p in (0, 1)] for topic in (early, late, appears)}
        return {topic: [[row["offset"] for row in part] for part in parts] for topic, parts in rows.items()}

    def appeared() -> bool:
        query.trigger()
        return found()[appears] == [[0, 1], []]

    with query:
        query.settle()
        assert found() == {early: [[0, 1], [0]], late: [[], []], appears: [[], []]}
    send(apache_kafka, late, {0: "y"})
    with query:
        apache_kafka.create_topic(appears, partitions=2)
        send(apache_kafka, appears, {0: "oo"})
        wait_for(appeared, "a topic that appears", 60)
        query.settle()
        assert found() == {early: [[0, 1], [0]], late: [[2], []], appears: [[0, 1], []]}


@pytest.mark.parametrize("start", ["timestamps", "one timestamp"])
def test_a_query_without_a_record_so_young_fails_or_reads_later_records(apache_kafka: ApacheKafka, start: str) -> None:
    def story(subscribe: str) -> None:
        topic = topic_with(apache_kafka, {0: "oy", 1: "oo"})
        by_partition = {"startingOffsetsByTimestamp": json.dumps({topic: dict.fromkeys("01", YOUNG_MS)})}
        given = by_partition if start == "timestamps" else {"startingTimestamp": str(YOUNG_MS)}
        for strategy in ({}, {"startingOffsetsByTimestampStrategy": "error"}):
            with (
                query_of(apache_kafka, topic, subscribe, **given, **strategy) as query,
                pytest.raises(OptionError, match=f"no record at or after its timestamp in {topic}-1 "),
            ):
                query.settle()
        with query_of(apache_kafka, topic, subscribe, **given, startingOffsetsByTimestampStrategy="latest") as query:
            query.settle()
            assert offsets(query) == {0: [1]}
            send(apache_kafka, topic, {1: "yy"})
            query.settle()
            assert offsets(query) == {0: [1], 1: [2, 3]}

    with ThreadPoolExecutor(2) as at_once:
        list(at_once.map(story, ("subscribe", "subscribePattern")))
