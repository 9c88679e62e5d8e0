"""An executor that a firewall keeps from the registry: its workers read directly, and only one of them waits."""

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace

import pytest
from harness.odd_servers import Listener, firewalled_port
from harness.sidecars import let_retry_time_pass, sleeping_executor, with_registry_at

from pyspark_kgroup.driver.registry.registry import Registry
from pyspark_kgroup.driver.registry.requests import Requests
from pyspark_kgroup.driver.registry.server import RegistryServer
from pyspark_kgroup.errors import RegistryUnreachable
from pyspark_kgroup.executor import sidecar_dir
from pyspark_kgroup.executor.sidecar_dir import RecentFailures, SidecarDir, find_sidecar_dir
from pyspark_kgroup.executor.worker import registry_client
from pyspark_kgroup.executor.worker.ticket_reader import Worker
from pyspark_kgroup.limits import SIDECAR_RETRY_MS
from pyspark_kgroup.shared import channel as channel_module
from pyspark_kgroup.shared.tickets import Executor, Mode, ReadSettings, RegistryAccess, SeatRanges, TicketPayload

CONNECT_MS = 500
NOTHING = SeatRanges(seat="g-0", ranges=())


@pytest.fixture(autouse=True)
def _shorter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel_module, "CHANNEL_CONNECT_MS", CONNECT_MS)


@pytest.fixture
def executor() -> Iterator[Executor]:
    """An executor without a sidecar: there is no Kafka here for its seats' servers."""
    with sleeping_executor() as executor:
        yield replace(executor, has_sidecar=False)


def fixed_ticket(port: int, key: bytes) -> TicketPayload:
    """A FIXED ticket of a query whose registry is at this port."""
    return TicketPayload(
        scan_id=1,
        ticket=0,
        mode=Mode.FIXED,
        reads=NOTHING,
        settings=ReadSettings(consumer_config={}),
        registry=RegistryAccess(host="127.0.0.1", port=port, key=key, query="q", prefetch_bytes=1024 * 1024),
    )


@pytest.fixture
def firewalled(server: RegistryServer) -> Iterator[TicketPayload]:
    """A FIXED ticket of a query whose registry cannot be reached."""
    with firewalled_port() as port:
        yield fixed_ticket(port, server.key)


@pytest.fixture
def place(executor: Executor, server: RegistryServer) -> SidecarDir:
    return find_sidecar_dir(executor, server.key)


def took_s(executor: Executor, ticket: TicketPayload, worker: Worker | None = None) -> float:
    """How long a read takes, in a worker that has not read before if none is given."""
    begun_s = time.monotonic()
    assert list((worker or Worker(executor)).read(ticket)) == []
    return time.monotonic() - begun_s


@contextmanager
def registry_at(port: int, key: bytes) -> Iterator[RegistryServer]:
    registry = Registry(["g-0"])
    registry.query = "q"
    registry.plan("0", {"g-0": [[]]}, {})
    server = RegistryServer(Requests(registry), key=key, port=port)
    server.start()
    yield server
    server.close()


def test_only_the_first_worker_waits_for_an_unreachable_registry_and_warns_of_it(
    server: RegistryServer, executor: Executor, firewalled: TicketPayload, caplog: pytest.LogCaptureFixture
) -> None:
    assert took_s(executor, firewalled) >= CONNECT_MS / 1000
    took_s(executor, with_registry_at(server.port, firewalled))  # it would be reached
    assert server.counts().accepted == 0
    assert caplog.text.count("This executor reads the ranges that its tickets carry.") == 1


def test_after_the_retry_time_the_registry_is_asked(
    server: RegistryServer, executor: Executor, firewalled: TicketPayload, place: SidecarDir
) -> None:
    took_s(executor, firewalled)
    let_retry_time_pass(place)
    assert took_s(executor, firewalled) >= CONNECT_MS / 1000
    let_retry_time_pass(place)
    took_s(executor, with_registry_at(server.port, firewalled))
    assert server.counts().accepted == 1


def test_a_late_ticket_asks_the_registry_though_other_tickets_found_it_unreachable(
    server: RegistryServer, executor: Executor, firewalled: TicketPayload
) -> None:
    took_s(executor, firewalled)
    called = threading.Event()
    with ThreadPoolExecutor(1) as worker:
        with Listener(lambda _: called.set()) as nobody:
            late = replace(with_registry_at(nobody.port, firewalled), mode=Mode.LATE, reads=None)
            reading = worker.submit(took_s, executor, late)
            assert called.wait(30)
        with registry_at(nobody.port, server.key) as reached:
            reading.result()
    assert reached.counts().accepted == 1


def test_a_late_ticket_asks_a_registry_whose_process_has_ended_for_a_shorter_time(
    executor: Executor, firewalled: TicketPayload, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry_client, "REGISTRY_GONE_MS", 300)
    with Listener(lambda _: None) as ended:
        gone = with_registry_at(ended.port, firewalled)
    for ticket, patience_s, least_s, most_s in ((gone, 30, 0.3, 30), (firewalled, 3, 3, 60)):
        monkeypatch.setattr(registry_client, "REGISTRY_PATIENCE_MS", patience_s * 1_000)
        begun_s = time.monotonic()
        with pytest.raises(RegistryUnreachable):
            took_s(executor, replace(ticket, mode=Mode.LATE, reads=None))
        assert least_s <= time.monotonic() - begun_s < most_s


def test_workers_that_start_together_wait_together_and_start_no_sidecar(
    executor: Executor, firewalled: TicketPayload, place: SidecarDir
) -> None:
    """A sidecar would take a second to start, only to find that it cannot reach the registry."""
    warm = replace(executor, has_sidecar=True)
    with ThreadPoolExecutor(8) as workers:
        took = list(workers.map(lambda _: took_s(warm, firewalled), range(8)))
    assert max(took) < 8 * CONNECT_MS / 1000, "one after the other, it would be that"
    assert sorted(entry.name for entry in place.folder.iterdir()) == ["no-registry-q"]


def test_marks_in_a_folder_that_other_users_can_open_are_not_believed(
    server: RegistryServer, executor: Executor, firewalled: TicketPayload, place: SidecarDir
) -> None:
    took_s(executor, firewalled)
    place.folder.chmod(0o755)
    took_s(executor, with_registry_at(server.port, firewalled))
    assert server.counts().accepted == 1


def test_a_worker_that_can_leave_no_mark_remembers_the_failure_for_as_long(
    server: RegistryServer, executor: Executor, place: SidecarDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.folder.mkdir(mode=0o755)
    place.folder.chmod(0o755)
    worker = Worker(executor)
    with firewalled_port() as port:
        ticket = fixed_ticket(port, server.key)
        assert took_s(executor, ticket, worker) >= CONNECT_MS / 1000
    with registry_at(port, server.key) as reached:
        took_s(executor, ticket, worker)  # it would be reached
        assert reached.counts().accepted == 0
        monkeypatch.setattr(sidecar_dir, "SIDECAR_RETRY_MS", 0)
        took_s(executor, ticket, worker)
        assert reached.counts().accepted == 1


def test_the_first_mark_of_an_executor_removes_those_of_executors_that_have_ended(place: SidecarDir) -> None:
    """Where no sidecar can be had, only marks are left in the folder of temporary files, and no sidecar sweeps them."""
    ended = find_sidecar_dir(
        Executor(key="here:1:5", executor_id="0", host="here", pid=1), b"key"
    )  # another has that pid now
    ended.mark("no-registry-of-old")
    beside = SidecarDir(place.folder.with_name(f"{place.folder.name}x"))
    beside.mark("no-registry-q")
    assert not ended.folder.exists()
    place.mark("no-registry-q")
    for each in (place, beside):
        each.mark("no-sidecar-q")
        assert sorted(mark.name for mark in each.folder.iterdir()) == ["no-registry-q", "no-sidecar-q"]


@pytest.mark.parametrize("marked", [True, False], ids=["with a mark", "without a place"])
def test_a_failure_is_remembered_for_the_retry_time_and_no_longer(place: SidecarDir, marked: bool) -> None:
    now_s = 1_000.0
    failures = RecentFailures(place if marked else None, "q", lambda: now_s)
    assert not failures.has("no-registry")
    failures.add("no-registry")
    assert not failures.has("no-sidecar")
    assert RecentFailures(place, "q").has("no-registry") == marked  # another worker
    assert not RecentFailures(place, "other").has("no-registry")
    now_s += SIDECAR_RETRY_MS / 1000 - 0.001
    assert failures.has("no-registry")
    failures.add("no-registry")  # that does not make it last
    now_s += 0.001
    if marked:
        let_retry_time_pass(place)
    assert not failures.has("no-registry")
