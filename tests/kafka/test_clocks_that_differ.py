"""A query that comes back on a host whose clock is an hour behind or ahead: no clock says which run is the newer."""

import json
import time

import pytest
from harness.kafka import MakeTopic, produce
from harness.offsets import committed
from harness.query import Query

from pyspark_kgroup.offsets.checkpoint import EMPTY
from spark_kgroup.testing import ApacheKafka

HOUR_NS = 3_600_000_000_000
CLOCKS = pytest.mark.parametrize("off_ns", [-HOUR_NS, HOUR_NS], ids=["an hour behind", "an hour ahead"])


@CLOCKS
def test_a_query_with_a_new_checkpoint_starts_where_the_option_says(
    apache_kafka: ApacheKafka, new_topic: MakeTopic, group: str, monkeypatch: pytest.MonkeyPatch, off_ns: int
) -> None:
    server, topic = apache_kafka.bootstrap_servers, new_topic(1)
    produce(server, topic, 100, partitions=1)
    query = Query(server, group, topic)
    with query:
        query.settle()
    true_ns = time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: true_ns() + off_ns)
    query.durable = json.dumps(EMPTY.to_json())
    with query:
        query.settle()
    assert [int(row["value"]) for row in query.rows[topic, 0]] == [*range(100), *range(100)]


@CLOCKS
def test_a_checkpoint_that_was_set_back_puts_the_groups_offsets_back(
    apache_kafka: ApacheKafka, new_topic: MakeTopic, group: str, monkeypatch: pytest.MonkeyPatch, off_ns: int
) -> None:
    server, topic = apache_kafka.bootstrap_servers, new_topic(1)
    produce(server, topic, 50, partitions=1)
    query = Query(server, group, topic)
    with query:
        query.settle()
        backup, query.rows = query.durable, {}
        produce(server, topic, 50, partitions=1, first=50)
        query.settle()
    query.durable, query.rows = backup, {}
    true_ns = time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: true_ns() + off_ns)
    with query:
        assert query.plan()
        assert committed(server, group, topic, 1) == {0: 50}
        query.run()
        query.settle()
    assert [int(row["value"]) for row in query.rows[topic, 0]] == [*range(50, 100)]
