"""Fixtures that tests on a real Kafka and tests of Spark share."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from harness.secured import SecuredKafka


@pytest.fixture(scope="session")
def secured_kafka(tmp_path_factory: pytest.TempPathFactory) -> "Iterator[SecuredKafka]":
    """One secured Kafka node that all tests of the session share: give topics and groups names of their own."""
    from harness.secured import secured_cluster

    with secured_cluster(tmp_path_factory.mktemp("secured")) as secured:
        yield secured
