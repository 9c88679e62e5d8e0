"""A batch that is durable is committed before the next trigger, where a listener says that it is."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from harness.fake_driver import Driver
from harness.fake_group import FakeGroup
from harness.waiting import wait_for

from pyspark_kgroup import durable_ends
from pyspark_kgroup.driver.registry.registry import Registry
from pyspark_kgroup.driver.registry.requests import Requests
from pyspark_kgroup.driver.registry.server import RegistryServer
from pyspark_kgroup.durable_ends import DurableEnds
from pyspark_kgroup.limits import END_OFFSETS_MAX_AGE_MS
from pyspark_kgroup.offsets.checkpoint import Checkpoint
from pyspark_kgroup.shared import application_key
from spark_kgroup.model import TopicPartition

P0 = TopicPartition("t", 0)
FOLDER = "/the/drivers"

World = Callable[..., tuple[FakeGroup, Driver]]
Where = dict[str, Any]
"""Where the listener finds a reader, as progress shows it."""


# -------------------------------------------------------------------------------------------------- the boundary


def test_the_end_of_a_durable_batch_is_committed_and_the_next_trigger_goes_on_from_there(world: World) -> None:
    group, driver = world(partitions=2, seats=2, records=10)
    driver.trigger()
    assert driver.rows[P0] == [(0, 10)]
    assert group.committed_now[P0] == 0
    driver.boundary.commit_durable(driver.durable)
    assert group.committed_now == {P0: 10, TopicPartition("t", 1): 10}
    group.produce(P0, 5)
    driver.drain()
    assert driver.rows[P0] == [(0, 10), (10, 15)]
    assert group.committed_now[P0] == 15


def test_a_driver_that_dies_after_such_a_commit_reads_no_record_twice(world: World) -> None:
    group, driver = world(partitions=2, seats=2, records=10)
    driver.trigger()
    driver.boundary.commit_durable(driver.durable)
    group.produce(P0, 5)
    driver.restart()
    driver.drain()
    assert driver.rows[P0] == [(0, 10), (10, 15)]


def test_no_offset_is_committed_for_a_topic_that_was_deleted_meanwhile(world: World) -> None:
    group, driver = world(partitions=1, records=10, fail_on_data_loss=False)
    driver.trigger()
    group.create_topic("t", 1)
    group.now_ms += END_OFFSETS_MAX_AGE_MS + 1
    driver.boundary.commit_durable(driver.durable)
    assert P0 not in group.committed_now


# -------------------------------------------------------------------------------- from the listener to the registry


@pytest.fixture
def digests() -> list[str]:
    """The digests that the registry was told."""
    return []


@pytest.fixture
def reader(digests: list[str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Where]:
    registry = Registry(["g-0"])
    server = RegistryServer(Requests(registry, on_durable=digests.append), bind_host="127.0.0.1")
    server.start()

    def find_key(folder: Path) -> bytes | None:
        return server.key if str(folder) == FOLDER else None

    monkeypatch.setattr(application_key, "find_key", find_key)
    monkeypatch.setattr(durable_ends, "DURABLE_TOLD_AFTER_MS", 50)
    yield {"folder": FOLDER, "port": server.port, "query": registry.query}
    server.close()


def progress(reader: Where, end: Checkpoint, **changed: Any) -> dict[str, Any]:
    where = {**reader, **changed}
    return {"sources": [{"endOffset": end.to_json(), "latestOffset": {**end.to_json(), "reader": where}}]}


def test_a_query_without_progress_for_a_while_has_its_last_end_told_to_its_reader(
    world: World, reader: Where, digests: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    group, driver = world(records=10)
    ends = DurableEnds()
    driver.trigger()
    first = driver.durable
    group.produce(P0, 1)
    driver.drain()
    with monkeypatch.context() as later:
        later.setattr(durable_ends, "DURABLE_TOLD_AFTER_MS", 60_000)
        ends.put("run", progress(reader, first))
    ends.put("run", progress(reader, driver.durable))
    wait_for(lambda: digests, "the reader to be told")
    assert digests == [driver.durable.digest]
    assert first.digest != driver.durable.digest


@pytest.mark.parametrize(
    "changed",
    [{"folder": "/another"}, {"folder": 1}, {"port": 1}, {"port": "x"}, {"query": "another"}],
    ids=["folder", "no folder", "port", "no port", "query"],
)
def test_a_reader_that_is_not_there_any_more_does_not_hold_up_the_next_one(
    world: World, reader: Where, digests: list[str], changed: dict[str, Any]
) -> None:
    _, driver = world(records=10)
    driver.trigger()
    ends = DurableEnds()
    ends.put("gone", progress(reader, driver.durable, **changed))
    wait_for(lambda: not ends._due, "the first one to be tried")
    ends.put("run", progress(reader, driver.durable))
    wait_for(lambda: digests, "the other one to be told")
    assert digests == [driver.durable.digest]


def test_a_run_that_is_over_is_told_of_no_ends(world: World, reader: Where) -> None:
    _, driver = world(records=10)
    driver.trigger()
    ends = DurableEnds()
    ends.put("run", progress(reader, driver.durable))
    ends.drop("run")
    assert ends._due == {}


def test_a_query_of_another_source_starts_no_thread() -> None:
    before = threading.active_count()
    DurableEnds().put("run", {"sources": [{"endOffset": "7", "latestOffset": "9"}, {"endOffset": {"t": {"0": 5}}}]})
    assert threading.active_count() == before


def test_the_group_has_no_part_in_a_digest(world: World) -> None:
    _, driver = world(records=10)
    driver.trigger()
    raw = driver.durable.to_json()
    assert Checkpoint.from_json({**raw, "group": "g"}).digest == driver.durable.digest
