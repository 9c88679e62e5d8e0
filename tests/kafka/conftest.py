"""Topics, groups and executors that tests on a real Kafka share. Fixtures for one test module stand in that module."""

from collections.abc import Generator, Iterator
from uuid import uuid4

import pytest
from confluent_kafka import Producer
from harness.kafka import MakeTopic
from harness.sidecars import sleeping_executor
from harness.three_nodes import ThreeNodes

from pyspark_kgroup.shared.tickets import Executor
from spark_kgroup.testing import ApacheKafka

_three_nodes = ThreeNodes()


@pytest.fixture
def three_nodes() -> ApacheKafka:
    """A cluster of three nodes, all of which run (`harness.three_nodes`). A test may end and pause them."""
    return _three_nodes.whole()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(nextitem: pytest.Item | None) -> Generator[None, None, None]:
    try:
        yield
    finally:
        _three_nodes.after(nextitem)


@pytest.fixture(scope="session")
def new_topic(apache_kafka: ApacheKafka) -> MakeTopic:
    """A function that makes a topic of so many partitions, with configurations whose names have `_` for `.`."""

    def make(partitions: int = 1, **configs: str) -> str:
        name = f"topic-{uuid4().hex[:8]}"
        apache_kafka.create_topic(name, partitions, configs={k.replace("_", "."): v for k, v in configs.items()})
        return name

    return make


@pytest.fixture
def topic(new_topic: MakeTopic) -> str:
    """An empty topic with four partitions."""
    return new_topic(4)


@pytest.fixture
def group() -> str:
    """The name of a group that does not exist yet."""
    return f"group-{uuid4().hex[:8]}"


@pytest.fixture
def executor() -> Iterator[Executor]:
    """An executor whose Python workers this test plays."""
    with sleeping_executor() as executor:
        yield executor


@pytest.fixture
def producer(apache_kafka: ApacheKafka) -> Producer:
    """A producer without transactions."""
    return Producer({"bootstrap.servers": apache_kafka.bootstrap_servers, "linger.ms": 5, "enable.idempotence": True})


@pytest.fixture
def transactions(apache_kafka: ApacheKafka) -> Producer:
    """A producer of transactions."""
    producer = Producer({"bootstrap.servers": apache_kafka.bootstrap_servers, "transactional.id": uuid4().hex})
    producer.init_transactions(30)
    return producer
