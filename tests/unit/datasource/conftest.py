"""A model group with Spark's driver in front of it, on the clock of the group, and a registry with its server."""

from collections.abc import Callable, Iterator

import pytest
from harness.fake_driver import COMMITTED_OR_EARLIEST, Driver
from harness.fake_group import FakeGroup

from pyspark_kgroup.driver.registry.registry import Registry
from pyspark_kgroup.driver.registry.requests import Requests
from pyspark_kgroup.driver.registry.server import RegistryServer
from pyspark_kgroup.options.offset_bound import OffsetBound

World = Callable[..., tuple[FakeGroup, Driver]]


@pytest.fixture
def world() -> World:
    def build(
        partitions: int = 1,
        seats: int = 1,
        records: int = 0,
        starting: OffsetBound = COMMITTED_OR_EARLIEST,
        read_committed: bool = False,
        fail_on_data_loss: bool = True,
        bounded: bool = False,
        ending: OffsetBound | None = None,
    ) -> tuple[FakeGroup, Driver]:
        group = FakeGroup({"t": partitions}, seats)
        for tp in sorted(group.log):
            group.produce(tp, records)
        return group, Driver(group, starting, read_committed, fail_on_data_loss, bounded, ending=ending)

    return build


@pytest.fixture
def registry() -> Registry:
    """The registry of a query with one seat, which has no range to read in batch 0."""
    registry = Registry(["g-0"])
    registry.query = "q"
    registry.plan("0", {"g-0": [[]]}, {})
    return registry


@pytest.fixture
def server(registry: Registry) -> Iterator[RegistryServer]:
    """Where executors reach the registry."""
    server = RegistryServer(Requests(registry))
    server.start()
    yield server
    server.close()
