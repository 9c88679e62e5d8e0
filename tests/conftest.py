"""Fixtures that tests on a real Kafka and tests of Spark share."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from harness.group_protocol import OF_ENVIRONMENT, PROTOCOLS, speaking

if TYPE_CHECKING:
    from harness.secured import SecuredKafka


@pytest.fixture(params=PROTOCOLS if PROTOCOLS[0] == OF_ENVIRONMENT else (OF_ENVIRONMENT,))
def group_protocol(request: pytest.FixtureRequest) -> Iterator[str]:
    """Runs a test under both group protocols: whatever queries it makes speak this one."""
    with speaking(request.param):
        yield request.param


@pytest.fixture(scope="session")
def secured_kafka(tmp_path_factory: pytest.TempPathFactory) -> "Iterator[SecuredKafka]":
    """One secured Kafka node that all tests of the session share: give topics and groups names of their own."""
    from harness.secured import secured_cluster

    with secured_cluster(tmp_path_factory.mktemp("secured")) as secured:
        yield secured
