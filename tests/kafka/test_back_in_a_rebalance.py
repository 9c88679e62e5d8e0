"""A driver dies in a batch, and is back within its session in a rebalance: no other member reads the batch."""

from dataclasses import replace
from uuid import uuid4

import pytest
from harness.groups import described_by_us, stable_generation
from harness.kafka import produce
from harness.offsets import committed
from harness.query import Query
from harness.runtime import options_of, settings_of
from harness.sharing import Sharing
from harness.waiting import wait_for

from spark_kgroup.member.classic import PreviouslyOwned
from spark_kgroup.model import CLASSIC, TopicPartition
from spark_kgroup.runtime.thread import GroupRuntime
from spark_kgroup.testing import ApacheKafka

PARTITIONS = 2


def filled_topic(kafka: ApacheKafka) -> tuple[str, str, str]:
    """(bootstrap servers, topic, group): ten records in each partition, all of them unread."""
    topic = f"back-{uuid4().hex[:8]}"
    kafka.create_topic(topic, PARTITIONS)
    produce(kafka.bootstrap_servers, topic, 20, partitions=PARTITIONS)
    return kafka.bootstrap_servers, topic, f"group-{topic}"


def described(kafka: ApacheKafka, group: str) -> tuple[str, int]:
    """State, and how many members there are."""
    found = described_by_us(kafka, group)
    return found.state, len(found.members)


REBALANCING = ("PreparingRebalance", "Reconciling")
"""A classic group waits for its members to join again. One of type consumer waits for them to give up partitions."""


def test_a_member_that_joins_while_the_driver_is_dead_reads_no_record_of_its_batch(
    apache_kafka: ApacheKafka, group_protocol: str
) -> None:
    server, topic, group = filled_topic(apache_kafka)
    query = Query(server, group, topic, executor=None, **{"kafka.session.timeout.ms": "60000"})
    with query:
        assert query.plan()
    with Sharing(server, group, topic, protocol=group_protocol) as peer:
        wait_for(lambda: described(apache_kafka, group) in [(s, 2) for s in REBALANCING], "the member to join", 60)
        with query:
            query.run()
            if group_protocol == CLASSIC:
                wait_for(lambda: described(apache_kafka, group)[0] == "Stable", "the group to rebalance", 60)
            assert not peer.owned
            produce(server, topic, 20, partitions=PARTITIONS, first=20)

            def handed_over() -> bool:
                query.trigger()
                return len(peer.rows) >= 10 and sum(map(len, query.rows.values())) >= 30

            wait_for(handed_over, "the member to read a partition of its own, and the query the other", 60)
    (partition,) = {partition for partition, _ in peer.rows}
    assert [offset for _, offset in peer.rows] == list(range(10, 20))
    assert [row["offset"] for row in query.rows[topic, partition]] == list(range(10))
    assert [row["offset"] for row in query.rows[topic, 1 - partition]] == list(range(20))


@pytest.mark.usefixtures("group_protocol")
def test_a_driver_that_is_back_in_a_group_at_rest_starts_no_rebalance(apache_kafka: ApacheKafka) -> None:
    server, topic, group = filled_topic(apache_kafka)
    query = Query(server, group, topic)
    with query:
        assert query.plan()
    before = stable_generation(apache_kafka, group)
    with query:
        query.run()
        query.settle()
    assert stable_generation(apache_kafka, group) == before


@pytest.mark.usefixtures("group_protocol")
def test_a_query_that_was_gone_for_a_session_says_how_far_it_had_read_and_reads_on_at_once(
    apache_kafka: ApacheKafka,
) -> None:
    server, topic, group = filled_topic(apache_kafka)
    query = Query(server, group, topic, executor=None, **{"kafka.session.timeout.ms": "6000"})
    with query:
        assert query.trigger()  # done, but the boundary that would commit it never comes
    assert set(committed(server, group, topic, PARTITIONS).values()) == {0}
    wait_for(lambda: described(apache_kafka, group) == ("Empty", 0), "the session to be over", 60)
    produce(server, topic, 20, partitions=PARTITIONS, first=20)
    with query:
        assert query.plan()
        assert set(committed(server, group, topic, PARTITIONS).values()) == {10}
        query.run()
    assert [len(query.rows[topic, partition]) for partition in range(PARTITIONS)] == [20, 20]


def test_a_seat_that_the_group_no_longer_keeps_claims_no_partition(apache_kafka: ApacheKafka) -> None:
    topic = f"back-{uuid4().hex[:8]}"
    apache_kafka.create_topic(topic, 1)
    options = options_of(apache_kafka.bootstrap_servers, topic, "job", 1)
    never_assigned = frozenset({TopicPartition(topic, 7)})
    previously_owned = {"job-0": PreviouslyOwned(partitions=never_assigned, generation=99)}
    settings = settings_of(options)
    settings = replace(settings, work=replace(settings.work, previously_owned=previously_owned))
    with GroupRuntime(settings) as runtime:
        view = runtime.wait_until(lambda view: view.settled, 60_000)
        assert (view.settled, view.seats[0].to_give_up) == (True, frozenset())
    with GroupRuntime(settings) as runtime:  # now the group keeps it
        view = runtime.wait_until(lambda view: bool(view.seats[0].to_give_up), 60_000)
        assert view.seats[0].to_give_up == never_assigned
