"""Sources of one query that change places and change back, and a group or prefix that does, without Spark.

Spark keeps the offsets of sources by their place: after a deploy that changes it, each source goes on from the offsets
that the other one wrote, and after the roll-back from the offsets that it wrote itself before that.
"""

import pytest
from harness.kafka import MakeTopic, produce
from harness.query import Query

from spark_kgroup.testing import ApacheKafka

PARTITIONS = 2


def read(query: Query, topic: str) -> list[int]:
    """The numbers of all rows of a topic."""
    return sorted(int(row["value"]) for (name, _), rows in query.rows.items() if name == topic for row in rows)


@pytest.mark.parametrize("one_group", [False, True], ids=["own groups", "one group"])
def test_sources_that_change_places_and_change_back_read_each_record_once(
    apache_kafka: ApacheKafka, new_topic: MakeTopic, group: str, one_group: bool
) -> None:
    server = apache_kafka.bootstrap_servers
    topics = [new_topic(PARTITIONS) for _ in range(2)]
    groups = [group] * 2 if one_group else [f"{group}-{topic}" for topic in topics]
    one, another = (
        Query(server, name, topic, instanceIdPrefix=f"{group}-{topic}")
        for name, topic in zip(groups, topics, strict=True)
    )
    for turn, count in enumerate((20, 10, 10)):
        if turn:
            one.durable, another.durable = another.durable, one.durable
        for topic in topics:
            produce(server, topic, count, partitions=PARTITIONS, first=20 * bool(turn) + 10 * max(0, turn - 1))
        with one, another:
            one.settle()
            another.settle()
    assert [read(query, topic) for query, topic in zip((one, another), topics, strict=True)] == [[*range(40)]] * 2


@pytest.mark.parametrize("changed", ["kafka.group.id", "instanceIdPrefix"])
def test_a_query_whose_name_is_changed_and_changed_back_reads_each_record_once(
    apache_kafka: ApacheKafka, new_topic: MakeTopic, group: str, changed: str
) -> None:
    server, topic = apache_kafka.bootstrap_servers, new_topic(PARTITIONS)
    session = {"kafka.session.timeout.ms": "6000"}  # for so long seats of another prefix keep their partitions
    query = Query(server, group, topic, executor=None, instanceIdPrefix=f"{group}-blue", **session)
    before = query.options[changed]
    for turn, name in enumerate((before, f"{group}-green", before)):
        query.options[changed] = name
        produce(server, topic, 20, partitions=PARTITIONS, first=20 * turn)
        with query:
            query.settle()
    assert read(query, topic) == [*range(60)]
