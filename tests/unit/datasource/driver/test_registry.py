"""The registry as executors see it: over its sockets, with the real bookkeeping behind it."""

import errno
import gc
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from queue import Queue
from typing import Any

import pytest
from harness.waiting import wait_for

from pyspark_kgroup.driver.registry import requests as requests_module
from pyspark_kgroup.driver.registry import seat_bindings as seats_module
from pyspark_kgroup.driver.registry.peers import Admissions
from pyspark_kgroup.driver.registry.registry import Registry
from pyspark_kgroup.driver.registry.reporting import Counts
from pyspark_kgroup.driver.registry.requests import Requests
from pyspark_kgroup.driver.registry.seat_bindings import Scan
from pyspark_kgroup.driver.registry.server import RegistryServer
from pyspark_kgroup.errors import ChannelEnded
from pyspark_kgroup.limits import REGISTRY_PORT_WAIT_MS
from pyspark_kgroup.shared.channel import Channel, Message, connect, frame
from pyspark_kgroup.shared.tickets import Leader, Mode, OffsetRange, Position
from spark_kgroup.errors import OptionError

SEATS = ("g-0", "g-1")
Dial = Callable[[], Channel]


def executor(name: str, *, has_sidecar: bool = True) -> Message:
    return {
        "key": f"{name}/1/1",
        "executor_id": name,
        "host": "here",
        "pid": 1,
        "has_sidecar": has_sidecar,
        "rack": "",
        "cores": 0,
    }


def ask(channel: Channel, op: str, **fields: Any) -> Message:
    also: dict[str, Message] = {"hello": {"address": None, "query": "q"}, "bind": {"for_guest": False}}
    channel.send({"op": op, "id": 5, **also.get(op, {}), **fields})
    answer = channel.receive(30)
    assert answer.pop("id") == 5
    return answer


def beat(channel: Channel) -> list[str]:
    """The seats that the registry names in its answer to a heartbeat."""
    answer = ask(channel, "heartbeat")
    assert answer.pop("op") == "homes"
    assert set(answer) == {"seats"}
    return list(answer["seats"])


def reads_of(batch: int, seats: Sequence[str] = SEATS) -> dict[str, list[list[OffsetRange]]]:
    return {seat: [[OffsetRange("t", SEATS.index(seat), 10 * batch, 10 * batch + 10)]] for seat in seats}


def plan(registry: Registry, batch: int, seats: Sequence[str] = SEATS) -> Scan:
    owned = {seat: [Position("t", SEATS.index(seat), 10 * batch + 10, "id of t")] for seat in SEATS}
    return registry.plan(str(batch), reads_of(batch, seats), owned)


@pytest.fixture
def registry(request: pytest.FixtureRequest) -> Registry:
    registry = Registry(getattr(request, "param", SEATS))
    registry.query = "q"
    return registry


def of_its_own(**options: Any) -> RegistryServer:
    """A server that a test starts and closes itself, of a registry that it does not look at."""
    return RegistryServer(Requests(Registry(SEATS)), **options)


@pytest.fixture
def dial(server: RegistryServer) -> Iterator[Dial]:
    dialled: list[Channel] = []

    def connected() -> Channel:
        dialled.append(connect(("127.0.0.1", server.port), server.key))
        return dialled[-1]

    yield connected
    for channel in dialled:
        channel.close()


@pytest.fixture
def sidecar(dial: Dial) -> Callable[[str], Channel]:
    def joined(name: str) -> Channel:
        channel = dial()
        assert ask(channel, "hello", executor=executor(name), sidecar=True) == {"op": "welcome", "serves_others": False}
        return channel

    return joined


Sidecar = Callable[[str], Channel]


def homes(registry: Registry) -> dict[str, str]:
    return {seat: home.executor.executor_id for seat, home in registry.homes().items()}


# ---------------------------------------------------------------------------------------------------------- requests


def test_a_ticket_is_bound_to_a_seat_with_its_ranges_and_all_that_it_owns(registry: Registry, sidecar: Sidecar) -> None:
    channel = sidecar("1")
    scan = plan(registry, 0)
    assert (scan.mode, scan.tickets) == (Mode.FIXED, SEATS)
    for ticket, seat in enumerate(SEATS):
        assert ask(channel, "bind", scan=scan.scan_id, ticket=ticket, executor=executor("1")) == {
            "op": "bound",
            "seat": seat,
            "at_home": True,
            "ranges": [["t", ticket, 0, 10, None, ""]],
            "owned": [["t", ticket, 10, "id of t", None]],
            "home": None,
        }
    assert homes(registry) == {"g-0": "1", "g-1": "1"}
    assert plan(registry, 1).mode is Mode.LATE


@pytest.mark.parametrize("registry", [(*SEATS, "g-2")], indirect=True)
def test_a_late_ticket_without_a_seat_left_is_answered_nothing_left(registry: Registry, sidecar: Sidecar) -> None:
    channel = sidecar("1")
    first = plan(registry, 0)
    for ticket in range(2):
        ask(channel, "bind", scan=first.scan_id, ticket=ticket, executor=executor("1"))
    late = plan(registry, 1)
    answers = [ask(channel, "bind", scan=late.scan_id, ticket=n, executor=executor("1")) for n in range(3)]
    bound = {"op": "bound", "at_home": True, "home": None}
    assert sorted(answers, key=lambda answer: str(answer.get("seat"))) == [
        {"op": "nothing-left"},
        {**bound, "seat": "g-0", "ranges": [["t", 0, 10, 20, None, ""]], "owned": [["t", 0, 20, "id of t", None]]},
        {**bound, "seat": "g-1", "ranges": [["t", 1, 10, 20, None, ""]], "owned": [["t", 1, 20, "id of t", None]]},
    ]


def test_an_unknown_scan_is_refused_in_words_and_the_connection_goes_on(registry: Registry, sidecar: Sidecar) -> None:
    channel = sidecar("1")
    scan = plan(registry, 0)
    for unknown in ({"scan": scan.scan_id + 1, "ticket": 0}, {"scan": scan.scan_id, "ticket": 2}):
        answer = ask(channel, "bind", **unknown, executor=executor("1"))
        assert answer["op"] == "refused"
        assert set(answer) == {"op", "reason"}
    assert beat(channel) == []


def test_a_worker_without_a_sidecar_reads_but_is_no_home(registry: Registry, dial: Dial) -> None:
    scan = plan(registry, 0)
    channel = dial()
    assert ask(channel, "hello", executor=executor("2", has_sidecar=False), sidecar=False) == {
        "op": "welcome",
        "serves_others": False,
    }
    answer = ask(channel, "bind", scan=scan.scan_id, ticket=0, executor=executor("2", has_sidecar=False))
    assert (answer["seat"], answer["at_home"]) == ("g-0", False)
    assert homes(registry) == {}


# ------------------------------------------------------------------------------- two sidecars of one executor


HERE, THERE = ["here", 1, "1/1/1"], ["there", 2, "1/1/1"]


@pytest.fixture
def _sooner(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests_module, "SUCCEEDED_SIDECAR_SILENCE_MS", 1_500)
    monkeypatch.setattr(requests_module, "SUCCESSOR_WAIT_MS", 3_000)


def greet(channel: Channel, address: list[object]) -> None:
    """Greet the registry as the sidecar of executor 1 does, without waiting for the answer."""
    channel.send({"op": "hello", "id": 5, "query": "q", "executor": executor("1"), "sidecar": True, "address": address})


def addresses(registry: Registry) -> list[list[object]]:
    return [list(address) for address in registry.sidecars()]


@pytest.mark.usefixtures("_sooner")
def test_who_passes_for_the_sidecar_of_an_executor_is_refused_while_that_lives(
    registry: Registry, dial: Dial, caplog: pytest.LogCaptureFixture
) -> None:
    """It holds the key, which all executors have. Guests would hand the rows that it serves to Spark."""
    honest, impostor = dial(), dial()
    greet(honest, HERE)
    assert honest.receive(30)["op"] == "welcome"
    scan = plan(registry, 0)
    ask(honest, "bind", scan=scan.scan_id, ticket=0, executor=executor("1"))
    greet(impostor, THERE)

    def refused() -> bool:
        assert beat(honest) == ["g-0"]
        assert addresses(registry) == [HERE]
        try:
            raise AssertionError(f"answered {impostor.receive(0.1)}")
        except ChannelEnded as ended:
            return "silent" not in str(ended)

    wait_for(refused, "the impostor to be refused", 30)
    assert addresses(registry) == [HERE]
    (warning,) = [each.getMessage() for each in caplog.records if "is no sidecar of that executor" in each.getMessage()]
    assert "the sidecar of executor '1': one at 127.0.0.1, which lives, and one at 127.0.0.1, which" in warning


@pytest.mark.usefixtures("_sooner")
def test_the_successor_of_a_sidecar_is_welcome_when_that_has_been_silent(registry: Registry, dial: Dial) -> None:
    hung, successor = dial(), dial()
    greet(hung, HERE)
    assert hung.receive(30)["op"] == "welcome"
    greet(successor, THERE)
    assert successor.receive(30) == {"op": "welcome", "id": 5, "serves_others": False}
    assert addresses(registry) == [THERE]
    with pytest.raises(ChannelEnded):
        hung.receive(30)
    assert beat(successor) == []


def test_the_successor_of_a_sidecar_is_welcome_when_that_ends(registry: Registry, dial: Dial) -> None:
    replaced, successor, third = dial(), dial(), dial()
    greet(replaced, HERE)
    assert replaced.receive(30)["op"] == "welcome"
    greet(successor, THERE)
    greet(third, HERE)
    replaced.close()
    assert successor.receive(30)["op"] == "welcome"
    assert addresses(registry) == [THERE]
    successor.close()
    assert third.receive(30)["op"] == "welcome"
    assert addresses(registry) == [HERE]


BAD: list[Message] = [
    {},
    {"op": None},
    {"op": "nonsense"},
    {"op": "bind", "scan": 1, "ticket": 0},
    {"op": "bind", "scan": 1, "ticket": 0, "executor": {"key": 1}},
    {"op": "bind", "scan": "1", "ticket": 0, "executor": executor("1"), "for_guest": False},
    {"op": "bind", "scan": 1, "ticket": 0, "executor": executor("1"), "for_guest": "no"},
    {"op": "served", "seat": "g-0", "by": "worker", "rows": -1, "ready": -1, "sizes": []},
    {"op": "served", "seat": "g-0", "by": "worker", "rows": 10**4000, "ready": 0, "sizes": []},
    {"op": "hello", "executor": {}, "sidecar": True},
    {"op": "hello", "executor": executor("1"), "sidecar": "yes"},
    {"op": "heartbeat", "id": {"deep": [[[]]]}},
]


def test_a_bad_message_of_a_peer_with_the_key_ends_its_connection_alone(
    registry: Registry, server: RegistryServer, sidecar: Sidecar, dial: Dial, caplog: pytest.LogCaptureFixture
) -> None:
    other = sidecar("1")
    plan(registry, 0)
    for message in BAD:
        channel = dial()
        channel.send(message)
        with pytest.raises(ChannelEnded):
            channel.receive(30)
    assert beat(other) == []
    assert (registry.counts(), server.counts()) == (Counts(), Admissions(accepted=1 + len(BAD)))
    assert {record.levelname for record in caplog.records} == {"WARNING"}  # and no traceback of asyncio's
    assert "Is the same version of spark-kgroup installed" in caplog.text


def test_a_registry_without_descriptors_says_so_once_and_serves_those_it_has(
    server: RegistryServer, sidecar: Sidecar, caplog: pytest.LogCaptureFixture
) -> None:
    channel = sidecar("1")
    unauthenticated = [socket.socket() for _ in range(2)]
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(int(name) for name in os.listdir("/proc/self/fd"))
    fillers = [os.dup(0) for _ in range(highest)]
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(fillers) + 1, hard))
    try:
        for sock in unauthenticated:
            sock.connect(("127.0.0.1", server.port))
        wait_for(lambda: "ulimit -n" in caplog.text, "the warning")
        assert beat(channel) == []
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for filler in fillers:
            os.close(filler)
    for sock in unauthenticated:
        sock.settimeout(30)
        assert sock.recv(1) != b""  # their turn has come
        sock.close()
    assert len(caplog.records) == 1


# ------------------------------------------------------------------------------------------------------ large shares


def shares(partitions: int) -> tuple[dict[str, list[list[OffsetRange]]], dict[str, list[Position]]]:
    """A share of one seat with the longest names of topics and the largest offsets that Kafka has."""
    names = [f"{n:0249}" for n in range(partitions)]
    far = 2**63 - 1
    leader = Leader(12, "broker-12.example.org", 9092, 2**31 - 1, "f" * 32)
    reads = {
        "g-0": [[OffsetRange(name, 0, far - 1, far, leader) for name in names]],
        "g-1": [[OffsetRange("t", 0, 0, 1)]],
    }
    return reads, {
        "g-0": [Position(name, 0, far, "y" * 22 + "/12345") for name in names],
        "g-1": [Position("t", 0, 1, "")],
    }


def test_a_seat_with_forty_thousand_partitions_gets_its_share(registry: Registry, sidecar: Sidecar) -> None:
    reads, owned = shares(40_000)
    channel = sidecar("1")
    scan = registry.plan("large", reads, owned)
    answer = ask(channel, "bind", scan=scan.scan_id, ticket=0, executor=executor("1"))
    assert answer["ranges"] == [[*one[:4], list(one.leader or ()), one.unled_topic_id] for one in reads["g-0"][0]]
    assert answer["owned"] == [list(one) for one in owned["g-0"]]
    assert beat(channel) == ["g-0"]


def test_the_server_of_a_divided_share_reads_its_first_piece_and_workers_the_rest(
    registry: Registry, sidecar: Sidecar
) -> None:
    """Rows that were fetched ahead are in the first piece. A server that read a later one would drop them."""
    channel = sidecar("1")
    pieces = [[OffsetRange("t", 0, first, first + 10)] for first in (0, 10, 20)]
    scan = registry.plan("divided", {"g-0": pieces}, {"g-0": [Position("t", 0, 30, "id of t")]})
    for ticket, piece in enumerate(pieces):
        answer = ask(channel, "bind", scan=scan.scan_id, ticket=ticket, executor=executor("1"))
        assert answer["ranges"] == [list(one) for one in piece]
        assert answer["at_home"] == (ticket == 0)
        assert answer["owned"] == ([["t", 0, 30, "id of t", None]] if ticket == 0 else [])
    assert beat(channel) == ["g-0"]


def test_a_share_that_is_larger_than_a_message_is_read_by_its_ticket_and_shows_no_executor_at_work(
    registry: Registry, sidecar: Sidecar, caplog: pytest.LogCaptureFixture
) -> None:
    channel = sidecar("1")
    modes = []
    for batch, partitions in enumerate((1, 1, 80_000, 1, 1)):
        reads, owned = shares(partitions)
        scan = registry.plan(str(batch), reads, owned)
        modes.append(scan.mode)
        for ticket in range(len(scan.tickets)):
            answer = ask(channel, "bind", scan=scan.scan_id, ticket=ticket, executor=executor("1"))
            assert (answer["op"] == "refused") == (partitions > 1)
    assert modes == [Mode.FIXED, Mode.LATE, Mode.FIXED, Mode.FIXED, Mode.LATE]
    (warning,) = caplog.messages
    assert "80000 partitions of seat g-0" in warning
    assert "`members`" in warning


def test_requests_that_are_under_way_together_are_answered_in_order(registry: Registry, dial: Dial) -> None:
    channel = dial()
    scan = plan(registry, 0)
    bind = {"op": "bind", "scan": scan.scan_id, "executor": executor("1"), "for_guest": False}
    requests: list[Message] = [
        {"op": "heartbeat"},
        {**bind, "ticket": 0},
        {**bind, "ticket": 9},
        {**bind, "ticket": 1},
    ] * 50
    channel.socket.sendall(b"".join(frame({**request, "id": n}) for n, request in enumerate(requests)))
    answers = [channel.receive(30) for _ in requests]
    assert [answer["id"] for answer in answers] == list(range(200))
    assert [answer.get("seat") for answer in answers[:4]] == [None, "g-0", None, "g-1"]


def test_a_served_read_is_counted_and_makes_its_seat_warm(registry: Registry, sidecar: Sidecar) -> None:
    channel = sidecar("1")
    scan = plan(registry, 0)
    ask(channel, "bind", scan=scan.scan_id, ticket=0, executor=executor("1"))
    ask(channel, "bind", scan=scan.scan_id, ticket=1, executor=executor("1"))
    ask(channel, "bind", scan=scan.scan_id, ticket=1, executor=executor("2"))
    assert not registry.homes()["g-0"].warm
    channel.send({"op": "served", "seat": "g-0", "by": "server", "rows": 10, "ready": 7, "sizes": [["t", 10, 1_000]]})
    channel.send({"op": "served", "seat": "g-0", "by": "network", "rows": 3, "ready": 3, "sizes": []})
    sizes = [["t", 10, 3_000], ["u", 0, 0]]
    channel.send({"op": "served", "seat": "g-1", "by": "worker", "rows": 5, "ready": 0, "sizes": sizes})
    assert beat(channel) == ["g-0", "g-1"]
    assert {seat: home.warm for seat, home in registry.homes().items()} == {"g-0": True, "g-1": False}
    assert registry.counts() == Counts(
        guest_bindings=1, warm_reads=1, network_reads=1, direct_reads=1, rows=18, rows_ready=10
    )
    assert (registry.sizes.of("t"), registry.sizes.of("u")) == (200, None)


def test_a_seat_whose_server_rests_is_not_warm_until_a_server_serves_it_again(
    registry: Registry, sidecar: Sidecar
) -> None:
    home, other = sidecar("1"), sidecar("2")
    scan = plan(registry, 0)
    ask(home, "bind", scan=scan.scan_id, ticket=0, executor=executor("1"))
    served: Message = {"op": "served", "seat": "g-0", "by": "server", "rows": 1, "ready": 1, "sizes": []}
    resting: Message = {"op": "resting", "seat": "g-0"}
    warm = []
    for channel, message in [
        (home, served),
        (other, resting),  # a straggler: it was the home before
        (home, resting),
        (home, {**served, "by": "worker"}),
        (home, served),
    ]:
        channel.send(message)
        beat(channel)
        warm.append(registry.homes()["g-0"].warm)
    assert warm == [True, True, False, False, True]


def test_only_a_sidecar_says_that_a_seat_rests(registry: Registry, dial: Dial) -> None:
    channel = dial()
    ask(channel, "hello", executor=executor("1"), sidecar=False)
    channel.send({"op": "resting", "seat": "g-0"})
    with pytest.raises(ChannelEnded):
        channel.receive(30)


def test_each_heartbeat_answers_a_sidecar_which_seats_it_is_home_to(registry: Registry, sidecar: Sidecar) -> None:
    """So the sidecar ends the servers of seats that have moved away."""
    one, two = sidecar("1"), sidecar("2")
    scan = plan(registry, 0)
    for ticket in range(2):
        ask(one, "bind", scan=scan.scan_id, ticket=ticket, executor=executor("1"))
    assert (sorted(beat(one)), beat(two)) == (["g-0", "g-1"], [])
    one.close()
    wait_for(lambda: not homes(registry), "the executor to be gone")
    ask(two, "bind", scan=scan.scan_id, ticket=1, executor=executor("2"))
    assert beat(two) == ["g-1"]


@pytest.mark.parametrize(
    "request_",
    [
        {},
        {"op": "shutdown"},
        {"op": "bind", "scan": "1", "ticket": 0, "executor": {}},
        {"op": "bind", "scan": 1, "ticket": 0, "executor": {"key": 5}},
        {"op": "hello", "executor": {}, "sidecar": True},
        {"op": "served", "seat": "g-0"},
    ],
    ids=str,
)
def test_a_request_of_another_protocol_ends_the_connection(
    registry: Registry, dial: Dial, request_: Message, caplog: pytest.LogCaptureFixture
) -> None:
    channel, other = dial(), dial()
    channel.send(request_)
    with pytest.raises(ChannelEnded, match=r"hung up|reset"):
        channel.receive(30)
    assert "same version" in caplog.text
    assert beat(other) == []
    assert registry.homes() == {}


# ------------------------------------------------------------------------------------------------- an executor's life


def test_the_end_of_a_sidecars_connection_is_the_end_of_its_executor(registry: Registry, sidecar: Sidecar) -> None:
    one, two = sidecar("1"), sidecar("2")
    scan = plan(registry, 0)
    ask(one, "bind", scan=scan.scan_id, ticket=0, executor=executor("1"))
    ask(two, "bind", scan=scan.scan_id, ticket=1, executor=executor("2"))
    one.close()
    wait_for(lambda: homes(registry) == {"g-1": "2"}, "the executor to be gone")


def test_a_sidecar_that_came_back_outlives_its_former_connection(
    registry: Registry, sidecar: Sidecar, dial: Dial
) -> None:
    former, now = sidecar("1"), dial()
    scan = plan(registry, 0)
    ask(former, "bind", scan=scan.scan_id, ticket=0, executor=executor("1"))
    greet(now, HERE)
    former.close()
    assert now.receive(30)["op"] == "welcome"
    bound = [ask(now, "bind", scan=scan.scan_id, ticket=t, executor=executor("1"))["at_home"] for t in (0, 1)]
    assert bound == [True, True]
    now.close()
    wait_for(lambda: not homes(registry), "the executor to be gone")


def test_a_host_that_vanished_is_noticed_by_its_silence(
    registry: Registry, sidecar: Sidecar, dial: Dial, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its connection never ends by itself. A worker's connection may be silent: it reports its read at the end."""
    monkeypatch.setattr(requests_module, "SIDECAR_SILENCE_MS", 1_000)
    silent, alive = sidecar("1"), sidecar("2")
    worker = dial()
    scan = plan(registry, 0)
    ask(silent, "bind", scan=scan.scan_id, ticket=0, executor=executor("1"))
    ask(alive, "bind", scan=scan.scan_id, ticket=1, executor=executor("2"))

    def only_one_beats() -> bool:
        assert beat(alive) == ["g-1"]
        return homes(registry) == {"g-1": "2"}

    wait_for(only_one_beats, "the silent one to be gone")
    with pytest.raises(ChannelEnded):
        silent.receive(0)
    assert beat(worker) == []


# ------------------------------------------------------------------------------------------------- threads and memory


def test_scans_may_be_planned_while_tickets_are_bound(registry: Registry, sidecar: Sidecar) -> None:
    """Spark's thread plans, the loop binds: a ticket reads the ranges of its own scan, every seat once."""
    batches = 200
    scans: dict[str, Queue[Scan]] = {"0": Queue(), "1": Queue()}
    bound: list[tuple[int, str]] = []

    def bind_one_of_each(name: str) -> None:
        channel = sidecar(name)
        for batch in range(batches):
            scan = scans[name].get(timeout=30)
            answer = ask(channel, "bind", scan=scan.scan_id, ticket=int(name), executor=executor(name))
            if answer["op"] != "refused":  # the batch is over by now
                assert answer["ranges"] == [[*r] for r in reads_of(batch)[answer["seat"]][0]]
                bound.append((batch, answer["seat"]))

    with ThreadPoolExecutor(2) as binders:
        binding = [binders.submit(bind_one_of_each, name) for name in scans]
        for batch in range(batches):
            scan = plan(registry, batch)
            for waiting in scans.values():
                waiting.put(scan)
            # One of the two is done with the last batch, the other one may be anywhere.
            wait_for(lambda: min(map(Queue.qsize, scans.values())) == 0, "a binder", every_s=0)
            registry.homes()
        for one in binding:
            one.result()
    assert len(bound) == len(set(bound)) > batches
    assert {(batches - 1, seat) for seat in SEATS} <= set(bound)


def test_a_past_batch_is_read_directly_where_it_is_computed_again(registry: Registry, sidecar: Sidecar) -> None:
    """The seat's server has fetched ahead of it, and shall not go back."""
    channel = sidecar("1")
    scan = plan(registry, 0)
    bind = partial(ask, channel, "bind", scan=scan.scan_id, ticket=0, executor=executor("1"))
    then = bind()
    assert then["at_home"] is True
    assert then["owned"] != []
    for batch in range(1, 100):
        plan(registry, batch)
    assert bind() == {**then, "at_home": False, "owned": []}


def test_of_batches_with_many_ranges_only_the_last_two_are_kept(
    registry: Registry, dial: Dial, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(seats_module, "PAST_RANGES_MAX", 0)

    class Reads(dict[str, list[list[OffsetRange]]]):
        """A dict that can be referred to weakly."""

    def planned(batch: int) -> tuple[Scan, Callable[[], Mapping[str, Any] | None]]:
        reads = Reads(reads_of(batch))
        return registry.plan(str(batch), reads, {}), weakref.ref(reads)

    scans = [planned(batch) for batch in range(5)]
    gc.collect()
    assert [reads() is not None for _, reads in scans] == [False, False, False, True, True]
    channel = dial()
    answers = [ask(channel, "bind", scan=scan.scan_id, ticket=0, executor=executor("1")) for scan, _ in scans]
    assert [answer["op"] == "refused" for answer in answers] == [True, True, True, False, False]


# -------------------------------------------------------------------------------------------------- start and the end


def test_a_port_that_stays_taken_names_the_option() -> None:
    waits_s: list[float] = []
    with socket.create_server(("", 0)) as taken, pytest.raises(OptionError, match="registryPort"):
        of_its_own(
            port=taken.getsockname()[1],
            clock=lambda: round(1_000 * sum(waits_s)),
            wait_s=waits_s.append,
        ).start()
    assert sum(waits_s) == pytest.approx(REGISTRY_PORT_WAIT_MS / 1_000, abs=0.2)


def test_the_port_of_a_stream_reader_that_is_on_its_way_out_is_waited_for() -> None:
    with socket.create_server(("", 0)) as taken:
        port = taken.getsockname()[1]
        server = of_its_own(port=port, wait_s=lambda _: taken.close())  # freed between two tries
        server.start()
        assert taken.fileno() == -1
        connect(("127.0.0.1", server.port), server.key).close()
        server.close()


def test_a_registry_listens_on_the_given_address() -> None:
    server = of_its_own(bind_host="127.0.0.9")
    server.start()
    connect(("127.0.0.9", server.port), server.key).close()
    with pytest.raises(ChannelEnded):
        connect(("127.0.0.1", server.port), server.key)
    server.close()


def loopback_addresses() -> Iterator[str]:
    """The loopback addresses of this host, which may do without IPv6."""
    for family, address in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")):
        with suppress(OSError), socket.socket(family) as sock:
            sock.bind((address, 0))
            yield address


def test_a_registry_listens_on_all_addresses_of_this_host_by_default(server: RegistryServer) -> None:
    """Also as Spark writes them: those of IPv6 in brackets."""
    addresses = list(loopback_addresses())
    for address in [*addresses, *(f"[{address}]" for address in addresses)]:
        connect((address, server.port), server.key).close()
    wait_for(lambda: server.counts().accepted == 2 * len(addresses), "all of them")
    assert addresses


def test_a_registry_without_ipv6_listens_on_ipv4(monkeypatch: pytest.MonkeyPatch) -> None:
    """IPv6 may be switched off although the kernel and Python know it."""
    create_server = socket.create_server

    def without_ipv6(*given: Any, family: int, **more: Any) -> socket.socket:
        if family == socket.AF_INET6:
            raise OSError(errno.EADDRNOTAVAIL, "Cannot assign requested address")
        return create_server(*given, family=family, **more)

    monkeypatch.setattr(socket, "create_server", without_ipv6)
    server = of_its_own()
    server.start()
    connect(("127.0.0.1", server.port), server.key).close()
    server.close()


def test_each_registry_has_a_key_of_its_own_and_does_not_show_it() -> None:
    one, two = of_its_own(), of_its_own()
    assert len(one.key) == len(two.key) == 32
    assert one.key != two.key
    assert one.key.hex() not in repr(one)


def descriptors() -> set[str]:
    return set(os.listdir("/proc/self/fd")) if sys.platform == "linux" else set()


def test_closing_leaves_no_thread_and_no_socket() -> None:
    """With executors, unauthenticated peers and one that reads no answers on the line. Some may be about to connect."""
    before, threads = descriptors(), set(threading.enumerate())
    server = of_its_own()
    server.start()
    address = ("127.0.0.1", server.port)
    channels = [connect(address, server.key) for _ in range(3)]
    ask(channels[0], "hello", executor=executor("1"), sidecar=True)
    fill(channels[1])
    unauthenticated = [socket.create_connection(address) for _ in range(20)]
    server.close()
    assert set(threading.enumerate()) == threads
    for sock in [*unauthenticated, *(channel.socket for channel in channels)]:
        sock.settimeout(30)
        with suppress(ConnectionResetError):
            while sock.recv(65536):
                pass
        sock.close()
    assert descriptors() == before
    with pytest.raises(ChannelEnded):
        connect(address, server.key)
    server.close()


def fill(channel: Channel) -> None:
    """Ask without reading answers until the registry hears no more."""
    wire = frame({"op": "heartbeat", "id": "x" * 1000}) * 100
    channel.socket.settimeout(0.3)
    taken = 0
    with suppress(TimeoutError):
        while taken < 64 * 1024 * 1024:
            taken += channel.socket.send(wire)
    assert taken < 64 * 1024 * 1024


def test_a_registry_that_was_not_started_can_be_closed() -> None:
    of_its_own().close()


PROGRAM = """
import sys
from pyspark_kgroup.driver.registry.registry import Registry
from pyspark_kgroup.driver.registry.requests import Requests
from pyspark_kgroup.driver.registry.server import RegistryServer
server = RegistryServer(Requests(Registry(["g-0"])))
server.start()
print(server.port, server.key.hex(), flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("end", ["SIGTERM", "end of input"])
def test_a_running_registry_does_not_keep_its_process_alive(end: str) -> None:
    """Spark ends a stream reader by SIGTERM, or its pipe closes. close() is never called."""
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        port, key = process.stdout.readline().split()
        channel = connect(("127.0.0.1", int(port)), bytes.fromhex(key.decode()))
        ask(channel, "hello", executor=executor("1"), sidecar=True)
        if end == "SIGTERM":
            process.terminate()
        _, errors = process.communicate(timeout=30)
        assert (process.returncode, errors) == (-signal.SIGTERM if end == "SIGTERM" else 0, b"")
        with pytest.raises(ChannelEnded):
            channel.receive(30)
        channel.close()
