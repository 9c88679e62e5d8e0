"""Queries that come back under either group protocol, or change it, without Spark: no seat or record is lost."""

import json
import time
from collections.abc import Mapping

import pytest
from harness.group_protocol import speaking, spoken
from harness.groups import assignment_by_instance, described_by_us, stable_generation
from harness.kafka import MakeTopic, contents, produce
from harness.offsets import committed
from harness.query import Query
from harness.sharing import Sharing
from harness.waiting import wait_for

from pyspark_kgroup.offsets.checkpoint import EMPTY
from spark_kgroup.model import CLASSIC, CONSUMER
from spark_kgroup.testing import ApacheKafka

PARTITIONS = 4
SESSION_S = 120
BACK_WITHIN_S = 30
"""Most of it is for a busy machine. It is a quarter of the session that other clients would wait for."""


@pytest.fixture
def topic(new_topic: MakeTopic) -> str:
    return new_topic(PARTITIONS)


def written_for(protocol: str, options: Mapping[str, str]) -> dict[str, str]:
    """A classic query's options, for `protocol`."""
    with speaking(protocol):
        return spoken(options)


def places(query: Query) -> list[tuple[int, int]]:
    """(partition, offset) of each row."""
    return sorted((partition, row["offset"]) for (_, partition), rows in query.rows.items() for row in rows)


def test_a_query_changes_to_the_consumer_protocol_and_back_and_keeps_its_seats_and_reads_each_record_once(
    apache_kafka: ApacheKafka, topic: str, group: str
) -> None:
    server = apache_kafka.bootstrap_servers
    with speaking(CLASSIC):
        query = Query(server, group, topic, members="2")
    classic = query.options
    sent = 0
    before: dict[str, set[tuple[str, int]]] = {}
    for run, protocol in enumerate((CLASSIC, CONSUMER, CLASSIC, CONSUMER)):
        query.options = written_for(protocol, classic)
        produce(server, topic, 40, partitions=PARTITIONS, first=sent)
        sent += 40
        with query:
            if run:
                query.run()  # the batch that the last run had planned, and did not do
            query.settle()
            assert described_by_us(apache_kafka, group).group_type == protocol
            shares = assignment_by_instance(apache_kafka, group)
            assert sorted(map(len, shares.values())) == [2, 2]
            assert before in ({}, shares), "a seat's partitions have moved"
            before = shares
            produce(server, topic, 40, partitions=PARTITIONS, first=sent)
            sent += 40
            wait_for(query.plan, "the next batch to be planned", 30)
    with query:
        query.run()
        query.settle()
    assert places(query) == sorted(contents(server, topic))
    assert sum(committed(server, group, topic, PARTITIONS).values()) == sent


def test_a_query_that_was_killed_has_its_partitions_again_long_before_its_session_is_over_without_a_rebalance(
    apache_kafka: ApacheKafka, topic: str, group: str, group_protocol: str
) -> None:
    server = apache_kafka.bootstrap_servers
    query = Query(
        server, group, topic, executor=None, members="2", **{"kafka.session.timeout.ms": str(1000 * SESSION_S)}
    )
    produce(server, topic, 40, partitions=PARTITIONS)
    with Sharing(server, group, topic, commit_each=True, protocol=group_protocol) as peer, query:

        def shared() -> bool:
            query.trigger()
            return sorted(map(len, assignment_by_instance(apache_kafka, group).values())) == [1, 1, 2]

        wait_for(shared, "three members to share four partitions", 60)
        wait_for(lambda: not query.trigger() and peer.owned, "the query to be at rest", 60)
        generation, moves = stable_generation(apache_kafka, group), peer.moves
        before, read = assignment_by_instance(apache_kafka, group), len(places(query))
        query._reader.stop()  # without a word to the group, as after SIGKILL
        produce(server, topic, 40, partitions=PARTITIONS, first=40)
        began_s = time.monotonic()
        with query:
            wait_for(lambda: query.trigger() and len(places(query)) > read, "the next records", BACK_WITHIN_S)
            assert time.monotonic() - began_s < BACK_WITHIN_S
            wait_for(lambda: not query.trigger(), "the query to be at rest", 60)
            assert assignment_by_instance(apache_kafka, group) == before
            assert (stable_generation(apache_kafka, group), peer.moves) == (generation, moves)
            wait_for(lambda: len(peer.rows) + len(places(query)) == 80, "all to be read", 60)
    assert sorted(peer.rows + places(query)) == sorted(contents(server, topic))


@pytest.mark.usefixtures("group_protocol")
@pytest.mark.parametrize("new_checkpoint", [False, True], ids=["its checkpoint", "a new checkpoint"])
def test_seats_leave_though_the_query_comes_back_with_another_client_id(
    apache_kafka: ApacheKafka, topic: str, group: str, new_checkpoint: bool
) -> None:
    """As after a move to another pod: the client id is the pod's name.

    The seats that must leave are known by the checkpoint, and by the metadata beside their committed offsets.
    """
    server = apache_kafka.bootstrap_servers
    session = {"kafka.session.timeout.ms": str(1000 * SESSION_S)}
    query = Query(server, group, topic, executor=None, members="3", **session, **{"kafka.client.id": "pod-a"})
    produce(server, topic, 40, partitions=PARTITIONS)
    with query:
        query.settle()
    query.options |= {"members": "1", "kafka.client.id": "pod-b", "startingOffsets": "committed"}
    if new_checkpoint:
        query.durable = json.dumps(EMPTY.to_json())
    produce(server, topic, 40, partitions=PARTITIONS, first=40)
    began_s = time.monotonic()
    with query:
        wait_for(lambda: query.trigger() and len(places(query)) == 80, "all to be read", BACK_WITHIN_S)
        assert time.monotonic() - began_s < BACK_WITHIN_S
        assert list(assignment_by_instance(apache_kafka, group)) == [f"{group}-0"]


def test_the_checkpoint_names_under_the_consumer_protocol_the_owner_of_each_partition(
    apache_kafka: ApacheKafka, topic: str, group: str, group_protocol: str
) -> None:
    server = apache_kafka.bootstrap_servers
    produce(server, topic, 40, partitions=PARTITIONS)
    query = Query(server, group, topic, members="2")
    with query:
        query.settle()
        found = described_by_us(apache_kafka, group).members
    members = {member.instance_id: member.member_id for member in found}
    assert json.loads(query.durable).get("members", {}) == (members if group_protocol == CONSUMER else {})


@pytest.mark.usefixtures("group_protocol")
def test_seats_leave_when_a_query_comes_back_with_fewer_and_join_when_it_has_more(
    apache_kafka: ApacheKafka, topic: str, group: str
) -> None:
    server, sent = apache_kafka.bootstrap_servers, 0
    query = Query(server, group, topic)
    for members in (4, 2, 3):
        query.options["members"] = str(members)
        produce(server, topic, 40, partitions=PARTITIONS, first=sent)
        sent += 40
        with query:
            query.settle()
            assert len(places(query)) == sent
            shares = assignment_by_instance(apache_kafka, group)
        assert sorted(shares) == sorted(f"{group}-{seat}" for seat in range(members))
        assert sum(map(len, shares.values())) == PARTITIONS
    assert places(query) == sorted(contents(server, topic))
