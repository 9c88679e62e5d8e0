"""Set-up of all tests, and fixtures that tests on a real Kafka and tests of Spark share."""

from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from harness.costs import Costs
from harness.group_protocol import OF_ENVIRONMENT, PROTOCOLS, speaking
from harness.handing_out import hand_out, name_groups
from harness.inherited_signals import children_ignore_no_signals
from harness.progress import Progress

from spark_kgroup.uncollected import uncollected

if TYPE_CHECKING:
    from harness.secured import SecuredKafka


@pytest.fixture(scope="session", autouse=True)
def no_process_ignores_signals() -> Iterator[None]:
    """Tests end processes by SIGINT and SIGHUP, also in a run that was started with `&` or `nohup`."""
    with children_ignore_no_signals():
        yield


@pytest.fixture(params=PROTOCOLS if PROTOCOLS[0] == OF_ENVIRONMENT else (OF_ENVIRONMENT,))
def group_protocol(request: pytest.FixtureRequest) -> Iterator[str]:
    """Runs a test under both group protocols: all queries that it makes speak this one."""
    with speaking(request.param):
        yield request.param


@pytest.fixture(scope="session")
def secured_kafka(tmp_path_factory: pytest.TempPathFactory) -> "Iterator[SecuredKafka]":
    """One secured Kafka node that all tests of the session share: give topics and groups names of their own."""
    from harness.secured import secured_cluster

    with secured_cluster(tmp_path_factory.mktemp("secured")) as secured:
        yield secured


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--costs", metavar="FILE", type=Path, help="write what each test costs, a line of JSON a phase")
    parser.addoption("--progress", metavar="FILE", type=Path, help="write what goes on, a line of JSON an event")


def pytest_configure(config: pytest.Config) -> None:
    if costs := config.getoption("--costs"):
        config.pluginmanager.register(Costs(costs))
    if (progress := config.getoption("--progress")) and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Progress(progress))  # not in the processes that pytest-xdist hands tests to


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Without the search for cycles: modules and tests stay."""
    with uncollected():
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> Generator[None, None, None]:
    hand_out(items)
    yield  # pytest-xdist reads the groups
    if getattr(config.option, "loadgroup", False):
        name_groups(items)
