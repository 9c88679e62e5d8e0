"""A broker of three is gone, and with it all replicas of some partitions: the other partitions are read on."""

import logging
from collections.abc import Callable
from uuid import uuid4

import pytest
from confluent_kafka import Producer
from harness.kafka import MakeTopic, fill
from harness.query import Query
from harness.waiting import wait_for

from pyspark_kgroup.batch import KgroupReader
from pyspark_kgroup.shared.columns import COLUMNS, spark_schema
from spark_kgroup.errors import RequestTimedOut
from spark_kgroup.runtime import topics
from spark_kgroup.runtime.topics import Topics
from spark_kgroup.testing import ApacheKafka

PARTITIONS = 6
GONE_WITHIN_S = 30
"""How long the other partitions may stand still when a broker dies."""


def values(first: int, count: int = 10) -> list[bytes]:
    return [str(number).encode() for number in range(first, first + count)]


@pytest.mark.xdist_group("together-faults_of_three_nodes")
def test_a_broker_that_is_gone_for_long_holds_up_only_the_partitions_it_alone_has(
    three_nodes: ApacheKafka, caplog: pytest.LogCaptureFixture
) -> None:
    kafka = three_nodes
    topic, group = f"single-{uuid4().hex[:8]}", f"group-{uuid4().hex[:8]}"
    kafka.create_topic(topic, PARTITIONS, replication_factor=1)
    leaders = {index: p.leader for index, p in kafka.admin.list_topics(topic, 30).topics[topic].partitions.items()}
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "enable.idempotence": True})
    for index in leaders:
        fill(producer, topic, values(0), index)
    gone = leaders[0]
    away = {index for index, node in leaders.items() if node == gone}
    assert away < leaders.keys()
    options = {"kafka.default.api.timeout.ms": "120000", "members": "2"}

    def all_have(query: Query, count: int, partitions: set[int]) -> Callable[[], bool]:
        def have() -> bool:
            query.trigger()
            return all(len(query.rows.get((topic, index), ())) >= count for index in partitions)

        return have

    with (
        caplog.at_level(logging.WARNING),
        Query(kafka.bootstrap_servers, group, topic, executor=None, **options) as query,
    ):
        wait_for(all_have(query, 10, set(leaders)), "all that there is at first", 60)
        kafka.nodes[gone - 1].kill()
        wait_for(lambda: leader_of(kafka, topic, 0) in (-1, None), "the cluster to notice", 60)
        others = leaders.keys() - away
        for index in others:
            fill(producer, topic, values(10), index)
        wait_for(all_have(query, 20, set(others)), "what the others have", GONE_WITHIN_S)
        assert all(len(query.rows[topic, index]) == 10 for index in away)
        assert len([m for m in caplog.messages if m.startswith("No answer for")]) == 1

        fresh = Query(
            kafka.bootstrap_servers, f"{group}-fresh", topic, executor=None, subscribePattern=f"{topic}|none", **options
        )
        del fresh.options["subscribe"]
        with fresh:
            wait_for(all_have(fresh, 20, set(others)), "what the others have, from a fresh query", GONE_WITHIN_S)
        with pytest.raises(RequestTimedOut, match=f"{topic}-{min(away)}"):
            batch(kafka, topic, failOnDataLoss="true").partitions()
        assert len(batch(kafka, topic, failOnDataLoss="false").partitions()) == len(others)

        kafka.nodes[gone - 1].restart()
        for index in away:
            fill(producer, topic, values(10), index)
        wait_for(all_have(query, 20, set(leaders)), "the rest", 60)
        with fresh:
            wait_for(all_have(fresh, 20, set(leaders)), "the rest, by the fresh query", 60)
    for each in (query, fresh):
        assert {key: [row["offset"] for row in rows] for key, rows in each.rows.items()} == {
            (topic, index): list(range(20)) for index in leaders
        }


def leader_of(kafka: ApacheKafka, topic: str, partition: int) -> int | None:
    return kafka.admin.list_topics(topic, 30).topics[topic].partitions[partition].leader


def batch(kafka: ApacheKafka, topic: str, **more: str) -> KgroupReader:
    options = {
        "kafka.bootstrap.servers": kafka.bootstrap_servers,
        "subscribe": topic,
        "kafka.default.api.timeout.ms": "3000",
        **more,
    }
    return KgroupReader(options, spark_schema(COLUMNS))


def test_a_query_looks_leaders_up_for_as_long_as_it_runs(
    apache_kafka: ApacheKafka, new_topic: MakeTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that is cut off goes on answering, so no answer says that there is another (`Topics.watch_leaders`)."""
    looked: list[Topics] = []

    async def look_up_leaders(known: Topics) -> None:
        looked.append(known)

    monkeypatch.setattr(topics, "LEADERS_LOOKED_UP_MS", 10)
    monkeypatch.setattr(Topics, "look_up_leaders", look_up_leaders)
    with Query(apache_kafka.bootstrap_servers, f"group-{uuid4().hex[:8]}", new_topic()) as query:
        query.plan()
        so_far = len(looked)
        wait_for(lambda: len(looked) > so_far + 5, "looks between two batches")
