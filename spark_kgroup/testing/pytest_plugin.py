"""Fixtures with a real Apache Kafka, for every project that has this package installed.

`KGROUP_KAFKA_VERSION` in the environment names its release, such as 3.7.2 (`kafka_release`).

pytest imports this in each of its runs, so it imports hardly more than pytest until a fixture is asked for.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, nullcontext
from typing import TYPE_CHECKING, Any

import pytest

from spark_kgroup.testing.spark_python import spark_python

if TYPE_CHECKING:
    from spark_kgroup.testing.apache_kafka import ApacheKafka


def pytest_configure() -> None:
    """A Spark that tests start runs their own Python, in an environment that is not activated, too.

    Set before any fixture: Spark's session may be an earlier one's than Kafka.
    """
    os.environ.setdefault("PYSPARK_PYTHON", spark_python())


def _uncaptured(config: pytest.Config) -> AbstractContextManager[None]:
    """Shows the progress of the first start of Kafka, which fetches it, while the fixture waits."""
    capture = config.pluginmanager.getplugin("capturemanager")
    return capture.global_and_fixture_disabled() if capture else nullcontext()


@pytest.fixture(scope="session")
def apache_kafka(pytestconfig: pytest.Config) -> Iterator[ApacheKafka]:
    """One Kafka node that all tests of the session share: give topics and groups names of their own.

    Sessions may be as short as 1 s (Kafka's group.min.session.timeout.ms is 6 s, and group.consumer's 45 s), so that a
    test can wait for one to end. Members under the consumer protocol heartbeat each second (Kafka: 5 s), and each step
    of theirs takes one heartbeat.
    """
    from spark_kgroup.testing.apache_kafka import ApacheKafka

    properties = {
        "group.min.session.timeout.ms": "1000",
        "group.consumer.min.session.timeout.ms": "1000",
        "group.consumer.max.session.timeout.ms": "120000",
        "group.consumer.min.heartbeat.interval.ms": "1000",
        "group.consumer.heartbeat.interval.ms": "1000",
    }
    cluster = ApacheKafka(server_properties=properties)
    with _uncaptured(pytestconfig):
        cluster.start()
    # It runs already, and this starts it no second time: only the start may write past pytest's capture.
    with cluster as kafka:
        yield kafka


@pytest.fixture
def apache_kafka_factory(pytestconfig: pytest.Config) -> Iterator[Callable[..., ApacheKafka]]:
    """Called with the arguments of `ApacheKafka`: starts a cluster of the test's own, and stops it at its end."""
    from spark_kgroup.testing.apache_kafka import ApacheKafka

    def start(*args: Any, **kwargs: Any) -> ApacheKafka:
        with _uncaptured(pytestconfig):
            return clusters.enter_context(ApacheKafka(*args, **kwargs))

    with ExitStack() as clusters:
        yield start
