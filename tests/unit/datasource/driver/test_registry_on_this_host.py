"""A query that stays on this host hides its registry from all other hosts."""

import socket

import pytest

from pyspark_kgroup.driver.registry.executors import Executors
from pyspark_kgroup.options.parser import parse
from pyspark_kgroup.shared.channel import connect

OPTIONS = {"kafka.bootstrap.servers": "a:9092", "kafka.group.id": "g", "subscribe": "t"}


@pytest.mark.parametrize(
    ("stays", "options", "host", "reached"),
    [
        (True, {}, "127.0.0.1", False),
        (False, {}, None, True),
        (True, {"registryHost": "driver-1"}, "driver-1", True),  # who names an address wants to be reached there
    ],
)
def test_a_registry_listens_where_its_executors_are(
    stays: bool, options: dict[str, str], host: str | None, reached: bool
) -> None:
    executors = Executors(parse({**OPTIONS, **options}), bounded=False, on_durable=lambda _: None)
    assert executors.start(["g-0"], {}, on_spark=False, on_this_host=lambda: stays)
    try:
        access = executors.access()
        assert access is not None
        assert access.host == host
        connect(("127.0.0.1", access.port), access.key).close()
        try:
            socket.create_connection(("127.0.0.9", access.port), 30).close()  # another address of this host
        except ConnectionRefusedError:
            assert not reached
        else:
            assert reached
    finally:
        executors.stop()
