"""Sidecars and workers of other executors. The ranges have no records, so no Kafka is needed."""

import logging
import os
import signal
import socket
from collections.abc import Iterator
from dataclasses import replace

import pytest
from harness.odd_servers import firewalled_port
from harness.sidecars import (
    Query,
    await_gone,
    kill,
    read_on,
    sidecars_of,
    sleeping_executor,
    start_sidecar,
    with_registry_at,
)
from harness.waiting import wait_for

from pyspark_kgroup.driver.registry import requests as requests_module
from pyspark_kgroup.errors import ChannelEnded, KeyRefused, RegistryUnreachable
from pyspark_kgroup.executor.worker import registry_client
from pyspark_kgroup.executor.worker.ticket_reader import Worker
from pyspark_kgroup.limits import SIDECAR_UNAUTHENTICATED_MAX
from pyspark_kgroup.shared import channel as channel_module
from pyspark_kgroup.shared.channel import Message, connect, new_key
from pyspark_kgroup.shared.messages import Bind, Hello, ReadAtHome, ReadDirectly, Refused, Welcome
from pyspark_kgroup.shared.tickets import Executor, Mode, SidecarAddress, TicketPayload

NO_BROKER = "127.0.0.1:1"
NO_RECORDS = {0: (41, 41)}


@pytest.fixture(autouse=True)
def _shorter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel_module, "CHANNEL_CONNECT_MS", 1_000)
    monkeypatch.setattr(registry_client, "REGISTRY_PATIENCE_MS", 5_000)


@pytest.fixture
def home() -> Iterator[Executor]:
    with sleeping_executor("1") as executor:
        yield executor


@pytest.fixture
def guest() -> Iterator[Executor]:
    """Another executor. It has no sidecar, so that the seat stays where it is."""
    with sleeping_executor("2") as executor:
        yield replace(executor, has_sidecar=False)


@pytest.fixture
def query() -> Iterator[Query]:
    with Query(NO_BROKER, "t", {"seat-0": [0]}, leaders=lambda *_: {}, homes_serve_others=True) as query:
        yield query


@pytest.fixture
def address(query: Query, home: Executor) -> SidecarAddress:
    """The address of the sidecar of the seat's home."""
    assert query.run(home, NO_RECORDS) == []
    (address,) = query.registry.sidecars()
    assert (address.host, address.executor) == ("127.0.0.1", home.key)
    return address


def counted(query: Query) -> tuple[int, int, int]:
    """Reads at home, over the network, and directly."""
    counts = query.registry.counts()
    return counts.warm_reads, counts.network_reads, counts.direct_reads


def test_the_home_of_a_seat_serves_a_worker_of_another_executor(
    query: Query, home: Executor, guest: Executor, address: SidecarAddress
) -> None:
    assert query.run(guest, NO_RECORDS) == []
    wait_for(lambda: counted(query) == (1, 1, 0), "the read to be served over the network")
    assert query.run(home, NO_RECORDS) == []
    wait_for(lambda: counted(query) == (2, 1, 0), "the server to serve its own executor as before")


def test_a_worker_whose_own_sidecar_is_there_reads_from_the_home_as_well(
    query: Query, home: Executor, address: SidecarAddress
) -> None:
    with sleeping_executor("2") as other:
        (ticket,) = query.plan(NO_RECORDS)
        assert list(read_on(other, ticket)) == []
        wait_for(lambda: counted(query) == (1, 1, 0), "the read to be served over the network")
        assert {one.executor for one in query.registry.sidecars()} == {home.key, other.key}


def test_a_query_whose_records_stay_on_their_executors_reads_directly(home: Executor, guest: Executor) -> None:
    with Query(NO_BROKER, "t", {"seat-0": [0]}, leaders=lambda *_: {}, homes_serve_others=False) as query:
        for executor in (home, guest):
            assert query.run(executor, NO_RECORDS) == []
        wait_for(lambda: counted(query) == (1, 0, 1), "the guest to have read directly")


def test_a_home_that_cannot_be_reached_costs_the_first_worker_alone_time(
    query: Query, home: Executor, guest: Executor, address: SidecarAddress
) -> None:
    with firewalled_port() as port:
        query.registry._sidecars[home.key] = address._replace(port=port)
        for _ in range(3):
            assert query.run(guest, NO_RECORDS) == []
        wait_for(lambda: counted(query) == (1, 0, 3), "all to be read directly")
        assert [entry.name for entry in query.place(guest).folder.iterdir() if str(port) in entry.name]


def test_a_home_whose_sidecar_has_never_read_leaves_it_to_the_worker(
    query: Query, home: Executor, guest: Executor, address: SidecarAddress
) -> None:
    """It has no settings to read with: they do not travel over the network, since they may hold secrets."""
    wait_for(lambda: counted(query) == (1, 0, 0), "the first read to be counted, which the killed sidecar reports")
    (pid,) = sidecars_of(query, home)
    kill(pid)
    wait_for(lambda: not query.registry.sidecars(), "the end of the sidecar to be noticed")
    start_sidecar(home, query.plan(NO_RECORDS)[0])
    wait_for(lambda: len(query.registry.homes()) == 1, "the seat to be at home where it was")
    assert query.run(guest, NO_RECORDS) == []
    wait_for(lambda: counted(query) == (1, 0, 1), "the guest to have read directly")


# -------------------------------------------------------------------------- an executor that cannot reach the driver


@pytest.fixture
def behind_a_firewall(query: Query, address: SidecarAddress) -> Iterator[TicketPayload]:
    """A LATE ticket, as an executor sees it that is kept from the driver's port."""
    (ticket,) = query.plan(NO_RECORDS)
    assert ticket.mode is Mode.LATE
    assert ticket.sidecars == (address,)
    with firewalled_port() as port:
        yield with_registry_at(port, ticket)


def test_an_executor_that_cannot_reach_the_driver_asks_by_way_of_another_one(
    query: Query, guest: Executor, behind_a_firewall: TicketPayload, caplog: pytest.LogCaptureFixture
) -> None:
    assert list(Worker(guest).read(behind_a_firewall)) == []
    wait_for(lambda: counted(query) == (1, 1, 0), "the read to be served over the network")
    assert list(Worker(guest).read(behind_a_firewall)) == []
    # Which of both ways it takes depends on time: a server without a broker to fetch from rests soon.
    wait_for(lambda: sum(counted(query)) == 3, "the second read to be counted")
    warnings = [each.getMessage() for each in caplog.records if "cannot reach port" in each.getMessage()]
    assert len(warnings) == 1
    assert f"Executor 2 on host here cannot reach port {query.server.port}" in warnings[0]
    assert "by way of executor 1" in warnings[0]
    assert "`registryPort`" in warnings[0]
    assert query.plan(NO_RECORDS)[0].mode is Mode.LATE, "the batch was bound by all of its tickets"


def test_only_the_first_worker_of_an_executor_behind_a_firewall_waits_for_the_driver(
    query: Query, guest: Executor, behind_a_firewall: TicketPayload
) -> None:
    assert list(Worker(guest).read(behind_a_firewall)) == []
    accepted = query.server.counts().accepted
    assert behind_a_firewall.registry is not None
    reached = with_registry_at(query.server.port, behind_a_firewall)  # it would be, but no worker tries
    assert list(Worker(guest).read(reached)) == []
    assert query.server.counts().accepted == accepted


def test_an_executor_behind_a_firewall_counts_its_direct_reads_by_way_of_another_one(
    home: Executor, guest: Executor
) -> None:
    with Query(NO_BROKER, "t", {"seat-0": [0]}, leaders=lambda *_: {}) as query, firewalled_port() as port:
        assert query.run(home, NO_RECORDS) == []
        (ticket,) = query.plan(NO_RECORDS)
        assert list(Worker(guest).read(with_registry_at(port, ticket))) == []
        wait_for(lambda: counted(query) == (1, 0, 1), "the read to be counted")


def test_an_executor_that_can_reach_no_address_says_so_when_its_patience_ends(
    query: Query, home: Executor, guest: Executor, behind_a_firewall: TicketPayload
) -> None:
    (pid,) = sidecars_of(query, home)
    kill(pid)
    with pytest.raises(RegistryUnreachable, match="registryPort"):
        list(Worker(guest).read(behind_a_firewall))


def test_a_fixed_ticket_is_read_where_neither_registry_nor_sidecar_is_reachable(
    home: Executor, guest: Executor
) -> None:
    with Query(NO_BROKER, "t", {"seat-0": [0]}, leaders=lambda *_: {}) as query, firewalled_port() as port:
        (ticket,) = query.plan(NO_RECORDS)
        assert ticket.mode is Mode.FIXED
        nobody = SidecarAddress("127.0.0.1", port, "gone")
        assert list(Worker(guest).read(replace(with_registry_at(port, ticket), sidecars=(nobody,)))) == []


# ------------------------------------------------------------------------------------------------- who may ask


def test_a_peer_without_the_key_is_refused_and_reads_go_on_beside_it(
    query: Query, guest: Executor, address: SidecarAddress
) -> None:
    with pytest.raises(KeyRefused):
        connect((address.host, address.port), new_key(), address.server)
    with pytest.raises(KeyRefused):  # a proof for another sidecar does not count here
        connect((address.host, address.port), query.server.key, address._replace(executor="other").server)
    silent = [socket.create_connection((address.host, address.port)) for _ in range(100)]
    assert query.run(guest, NO_RECORDS) == []
    wait_for(lambda: counted(query) == (1, 1, 0), "the read to be served over the network")
    for each in silent:
        each.close()


@pytest.mark.parametrize("way", ["beside the executor", "over the network"])
def test_unauthenticated_peers_hold_no_more_descriptors_of_a_sidecar_than_there_may_be_of_them(
    query: Query, home: Executor, address: SidecarAddress, way: str
) -> None:
    """As `/proc` counts them, however fast they come: here they are all there when the sidecar looks next."""
    (pid,) = sidecars_of(query, home)
    at_rest = len(os.listdir(f"/proc/{pid}/fd"))
    crowd: list[socket.socket] = []
    os.kill(pid, signal.SIGSTOP)
    for _ in range(4 * SIDECAR_UNAUTHENTICATED_MAX):
        if way == "over the network":
            crowd.append(socket.create_connection((address.host, address.port), source_address=("127.0.0.2", 0)))
        else:
            crowd.append(socket.socket(socket.AF_UNIX))
            crowd[-1].connect(str(query.place(home).socket))
    os.kill(pid, signal.SIGCONT)
    crowd[-1].settimeout(30)
    assert crowd[-1].recv(1), "all were taken, and the last one was greeted"
    assert len(os.listdir(f"/proc/{pid}/fd")) <= at_rest + SIDECAR_UNAUTHENTICATED_MAX + 1
    with connect((address.host, address.port), query.server.key, address.server).socket:
        pass  # a peer with the key is heard meanwhile
    for each in crowd:
        each.close()


BAD: list[Message] = [
    {},
    {"op": "heartbeat"},
    {"op": "hung", "query": "QUERY", "seat": "seat-0"},
    {
        "op": "read",
        "query": "QUERY",
        "scan": 1,
        "ticket": 0,
        "config": {},
        "reader": "native",
        "headers": False,
        "timestamps": True,
    },
    {"op": "add-query", "query": "q", "prefetch_bytes": 1, "idle_ms": 1, "tells_sizes": False},
    {"op": "read-at-home", "query": "other", "scan": 1, "ticket": 0},
    {"op": "read-at-home", "query": "QUERY", "scan": 99, "ticket": 0},
]


def test_a_bad_message_over_the_network_ends_its_connection_alone(
    query: Query, home: Executor, address: SidecarAddress
) -> None:
    before = sidecars_of(query, home)
    for message in BAD:
        print(message)
        peer = connect((address.host, address.port), query.server.key, address.server)
        peer.send({**message, "query": query.registry.query} if message.get("query") == "QUERY" else message)
        with pytest.raises(ChannelEnded, match="hung up"):
            peer.receive(30)
        assert query.run(home, NO_RECORDS) == []
    assert sidecars_of(query, home) == before
    assert len(before) == 1


def test_a_ticket_that_the_registry_refuses_is_refused_by_way_of_a_sidecar_as_well(
    query: Query, guest: Executor, address: SidecarAddress
) -> None:
    peer = connect((address.host, address.port), query.server.key, address.server)
    assert peer.ask(Hello(query=query.registry.query, executor=guest, sidecar=False), 30) == Welcome(
        serves_others=False
    )
    assert isinstance(peer.ask(Bind(scan=77, ticket=0, executor=guest), 30), Refused)
    peer.close()


def test_a_sidecar_refuses_to_serve_a_seat_that_has_its_home_elsewhere(
    query: Query, home: Executor, address: SidecarAddress
) -> None:
    with sleeping_executor("2") as other:
        (ticket,) = query.plan(NO_RECORDS)
        list(read_on(other, ticket))
        (its,) = [one for one in query.registry.sidecars() if one.executor == other.key]
        peer = connect((its.host, its.port), query.server.key, its.server)
        answer = peer.ask(ReadAtHome(query=query.registry.query, scan=ticket.scan_id, ticket=0), 30)
        assert isinstance(answer, ReadDirectly)
        assert answer.home is None
        peer.close()


def test_a_home_serves_no_other_executor_if_records_are_to_stay_on_their_executors(home: Executor) -> None:
    """Whichever peer asks for them: the registry names no home to an honest worker, so none asks."""
    with Query(NO_BROKER, "t", {"seat-0": [0]}, leaders=lambda *_: {}, homes_serve_others=False) as query:
        assert query.run(home, NO_RECORDS) == []
        (address,) = query.registry.sidecars()
        (ticket,) = query.plan(NO_RECORDS)
        peer = connect((address.host, address.port), query.server.key, address.server)
        peer.say(ReadAtHome(query=query.registry.query, scan=ticket.scan_id, ticket=0))
        with pytest.raises(ChannelEnded, match="hung up"):
            peer.hear(30)
        assert list(Worker(home).read(ticket)) == []
        wait_for(lambda: counted(query) == (2, 0, 0), "the server to serve its own executor as before")


def test_a_sidecar_that_hangs_is_replaced_by_the_next_worker_that_finds_it_silent(
    query: Query, home: Executor, guest: Executor, address: SidecarAddress, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(requests_module, "SUCCEEDED_SIDECAR_SILENCE_MS", 500)
    (hung,) = sidecars_of(query, home)
    os.kill(hung, signal.SIGSTOP)
    start_sidecar(home, query.plan(NO_RECORDS)[0])
    (successor,) = query.registry.sidecars()
    assert successor.executor == home.key
    assert successor != address
    assert query.run(home, NO_RECORDS) == []
    wait_for(lambda: counted(query) == (2, 0, 0), "the read at home to be served by the successor")
    assert query.run(guest, NO_RECORDS) == []
    wait_for(lambda: sum(counted(query)) == 3, "the guest's read to be counted by the successor")
    os.kill(hung, signal.SIGCONT)
    await_gone([hung])
    assert query.registry.sidecars() == (successor,)


def test_the_sidecar_of_local_mode_listens_to_no_other_executor(query: Query) -> None:
    with sleeping_executor("driver") as executor:
        assert query.run(executor, NO_RECORDS) == []
        assert len(sidecars_of(query, executor)) == 1
        assert query.registry.sidecars() == ()


def test_an_executor_that_has_gone_is_named_in_no_further_ticket(
    query: Query, home: Executor, address: SidecarAddress, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    (pid,) = sidecars_of(query, home)
    kill(pid)
    wait_for(lambda: query.registry.sidecars() == (), "the end of the sidecar to be noticed")
    assert query.plan(NO_RECORDS)[0].sidecars == ()
