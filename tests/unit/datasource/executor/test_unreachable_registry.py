"""An executor that a firewall keeps from the registry: its workers read by themselves, and only one of them waits."""

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from harness.sidecars import let_retry_time_pass, sleeping_executor
from harness.strangers import Listener, firewalled_port

from pyspark_kgroup.driver.registry import Registry
from pyspark_kgroup.executor import ticket_reader as executor_module
from pyspark_kgroup.executor.ticket_reader import Place, place_of, read_on
from pyspark_kgroup.shared import channel as channel_module
from pyspark_kgroup.shared.tickets import Executor, Mode, ReadSettings, SeatRanges, TicketReads

CONNECT_MS = 500
NOTHING = SeatRanges(seat="g-0", ranges=())


@pytest.fixture(autouse=True)
def _shorter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel_module, "CHANNEL_CONNECT_MS", CONNECT_MS)


@pytest.fixture
def executor() -> Iterator[Executor]:
    """One without a sidecar: there is no Kafka here for its seats' servers."""
    with sleeping_executor() as executor:
        yield replace(executor, warm=False)


@pytest.fixture
def firewalled(registry: Registry) -> Iterator[TicketReads]:
    """A FIXED ticket of a query whose registry cannot be reached."""
    with firewalled_port() as port:
        yield TicketReads(
            scan_id=1,
            ticket=0,
            mode=Mode.FIXED,
            reads=NOTHING,
            settings=ReadSettings(consumer_config={}),
            registry_host="127.0.0.1",
            registry_port=port,
            key=registry.key,
            prefetch_bytes=1024 * 1024,
            query="test",
        )


@pytest.fixture
def place(executor: Executor, firewalled: TicketReads) -> Place:
    return place_of(executor, firewalled.key)


def took_s(executor: Executor, ticket: TicketReads) -> float:
    begun_s = time.monotonic()
    assert list(read_on(executor, ticket)) == []
    return time.monotonic() - begun_s


def test_only_the_first_worker_waits_for_an_unreachable_registry(
    registry: Registry, executor: Executor, firewalled: TicketReads
) -> None:
    assert took_s(executor, firewalled) >= CONNECT_MS / 1000
    took_s(executor, replace(firewalled, registry_port=registry.port))  # it would be reached
    assert registry.counts().accepted == 0


def test_after_the_retry_time_the_registry_is_asked(
    registry: Registry, executor: Executor, firewalled: TicketReads, place: Place
) -> None:
    took_s(executor, firewalled)
    let_retry_time_pass(place)
    assert took_s(executor, firewalled) >= CONNECT_MS / 1000
    let_retry_time_pass(place)
    took_s(executor, replace(firewalled, registry_port=registry.port))
    assert registry.counts().accepted == 1


def test_a_late_ticket_asks_the_registry_though_others_found_it_unreachable(
    executor: Executor, firewalled: TicketReads
) -> None:
    took_s(executor, firewalled)
    called = threading.Event()
    with ThreadPoolExecutor(1) as worker:
        with Listener(lambda _: called.set()) as nobody:
            late = replace(firewalled, mode=Mode.LATE, reads=None, registry_port=nobody.port)
            reading = worker.submit(took_s, executor, late)
            assert called.wait(30)
        registry = Registry(["g-0"], port=nobody.port)
        registry.key = firewalled.key
        registry.plan("0", {"g-0": []}, {})
        registry.start()
        reading.result()
    assert registry.counts().accepted == 1
    registry.close()


def test_workers_that_start_together_wait_together_and_start_no_sidecar(
    executor: Executor, firewalled: TicketReads, place: Place
) -> None:
    """A sidecar would take a second to start, only to find that it can do nothing."""
    warm = replace(executor, warm=True)
    with ThreadPoolExecutor(8) as workers:
        took = list(workers.map(lambda _: took_s(warm, firewalled), range(8)))
    assert max(took) < 4 * CONNECT_MS / 1000
    assert sorted(entry.name for entry in place.folder.iterdir()) == ["lock", "no-registry", "no-sidecar"]


def test_marks_in_a_folder_that_others_can_open_are_not_believed(
    registry: Registry, executor: Executor, firewalled: TicketReads, place: Place
) -> None:
    took_s(executor, firewalled)
    place.folder.chmod(0o755)
    executor_module._failed_at_s.clear()  # as in another worker
    took_s(executor, replace(firewalled, registry_port=registry.port))
    assert registry.counts().accepted == 1


def test_a_worker_that_can_leave_no_mark_remembers_the_failure_for_as_long(
    registry: Registry, executor: Executor, firewalled: TicketReads, place: Place
) -> None:
    place.folder.mkdir(mode=0o755)
    place.folder.chmod(0o755)
    took_s(executor, firewalled)
    took_s(executor, replace(firewalled, registry_port=registry.port))  # it would be reached
    assert registry.counts().accepted == 0
    let_retry_time_pass(place)
    took_s(executor, replace(firewalled, registry_port=registry.port))
    assert registry.counts().accepted == 1
