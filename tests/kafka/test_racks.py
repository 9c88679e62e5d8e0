"""Racks on a cluster that has three: the replica that is read (KIP-392), and the seat that is assigned (KIP-881)."""

from dataclasses import replace
from uuid import uuid4

import pytest
from confluent_kafka.cimpl import NewTopic
from harness.both_readers import reading, whole
from harness.decoder import built_decoder
from harness.kafka import produce
from harness.sidecars import Query, rows_of, sleeping_executor
from harness.waiting import wait_for

from pyspark_kgroup.executor.native.broker_connection import BrokerConnection
from pyspark_kgroup.executor.native.fetcher import Chunk, Fetcher
from pyspark_kgroup.executor.worker.ticket_reader import Worker
from pyspark_kgroup.shared.tickets import Mode, SeatRanges, TicketPayload
from spark_kgroup.runtime.settings import ClientSettings, GroupSettings, OwnerHooks, ProtocolSettings
from spark_kgroup.runtime.thread import GroupRuntime
from spark_kgroup.runtime.views import GroupView
from spark_kgroup.testing import ApacheKafka
from spark_kgroup.wire.address import parse_bootstrap

pytestmark = pytest.mark.xdist_group("together-reads_from_three_nodes")

RACKS = ("rack-1", "rack-2", "rack-3")


@pytest.fixture
def read_from(monkeypatch: pytest.MonkeyPatch) -> set[int]:
    """The ports of the brokers that gave this process's own reader records."""
    built_decoder()
    ports: set[int] = set()
    take = Fetcher.take

    def listening(fetcher: Fetcher, connection: BrokerConnection, *, go_on: bool = True) -> list[Chunk]:
        chunks = take(fetcher, connection, go_on=go_on)
        ports.update(connection.broker.port for _ in chunks)
        return chunks

    monkeypatch.setattr(Fetcher, "take", listening)
    return ports


def new_topic(kafka: ApacheKafka, replicas: list[list[int]]) -> str:
    """A topic whose partitions have replicas on these brokers, all in sync. The first broker of each is its leader.

    Kafka's own choice is not as even as a test wants it where a broker is fenced for a moment.
    """
    topic = f"topic-{uuid4().hex[:8]}"
    created = kafka.admin.create_topics([NewTopic(topic, num_partitions=len(replicas), replica_assignment=replicas)])
    created[topic].result(60)

    def in_sync() -> bool:
        partitions = kafka.admin.list_topics(topic, 30).topics[topic].partitions
        found = [(one.leader, set(one.isrs)) for _, one in sorted(partitions.items())]
        return found == [(brokers[0], set(brokers)) for brokers in replicas]

    wait_for(in_sync, "the replicas to be in sync", 60)
    return topic


def test_an_executor_reads_from_the_replica_in_its_own_rack_wherever_the_query_says_it_is(
    three_nodes: ApacheKafka, read_from: set[int]
) -> None:
    topic = new_topic(three_nodes, [[1, 2, 3]])
    produce(three_nodes.bootstrap_servers, topic, 2_000, partitions=1, size=400)
    of_query = {"kafka.bootstrap.servers": three_nodes.bootstrap_servers, "kafka.client.rack": "rack-1"}
    settings, leaders = reading(of_query, topic)
    ranges = tuple(whole(three_nodes.bootstrap_servers, topic, leaders))
    ticket = TicketPayload(
        scan_id=0,
        ticket=0,
        mode=Mode.FIXED,
        reads=SeatRanges(seat="seat-0", ranges=ranges),
        settings=replace(settings, reader="native"),
        registry=None,
    )
    ports = {f"rack-{node.node_id}": node.port for node in three_nodes.nodes}
    with sleeping_executor() as executor:
        for own in ("", *RACKS):
            read_from.clear()
            assert len(rows_of(Worker(replace(executor, rack=own)).read(ticket))) == 2_000
            assert read_from == {ports[own or "rack-1"]}, own


def test_a_driver_hears_in_which_rack_the_home_of_a_seat_is(three_nodes: ApacheKafka) -> None:
    topic = new_topic(three_nodes, [[1, 2, 3]])
    produce(three_nodes.bootstrap_servers, topic, 100, partitions=1)
    with Query(three_nodes.bootstrap_servers, topic, {"seat-0": [0]}) as query, sleeping_executor() as executor:
        here = replace(executor, rack="rack-2")
        query.run(here, {0: (0, 50)})
        query.run(here, {0: (50, 100)})
        home = query.registry.home("seat-0")
        assert home is not None
        assert home.executor.rack == "rack-2"


def test_seats_get_partitions_with_a_replica_in_their_rack_and_another_rack_counts_from_the_next_rebalance_on(
    three_nodes: ApacheKafka,
) -> None:
    topic = new_topic(three_nodes, [[1], [2], [3], [1], [2], [3]])
    at = dict(enumerate(2 * RACKS))
    rack_of = {f"seat-{k}": rack for k, rack in enumerate(RACKS)}
    settings = GroupSettings(
        bootstrap=parse_bootstrap(three_nodes.bootstrap_servers),
        group=f"of-{topic}",
        topics=(topic,),
        instance_ids=tuple(rack_of),
        client=ClientSettings(metadata_max_age_ms=200),
        protocol=ProtocolSettings(heartbeat_interval_ms=100),
        hooks=OwnerHooks(rack_of=lambda seat: rack_of[seat or ""]),
    )

    def racks_read(view: GroupView) -> dict[str, set[str]]:
        return {seat.instance_id: {at[tp.partition] for tp in seat.owned_since} for seat in view.seats}

    def all_near(view: GroupView) -> bool:
        for seat in view.seats:
            if seat.to_give_up:
                runtime.give_up(seat.instance_id, seat.to_give_up)
        near = {seat: {rack} for seat, rack in rack_of.items()}
        return view.settled and racks_read(view) == near and sum(len(seat.owned_since) for seat in view.seats) == 6

    with GroupRuntime(settings) as runtime:
        wait_for(lambda: all_near(runtime.view()), "each seat to have what is near", 30)
        generation = runtime.view().seats[0].identity.generation
        rack_of |= dict(zip(rack_of, (*RACKS[1:], RACKS[0]), strict=True))
        assert runtime.describe().state == "Stable"
        assert [seat.identity.generation for seat in runtime.view().seats] == [generation] * 3
        runtime.force_rebalance("a test")
        wait_for(lambda: all_near(runtime.view()), "each seat to have what is near by now", 30)
