"""A query that stays on this host hides its registry from all other hosts."""

import socket

import pytest

from pyspark_kgroup.driver import query as query_module
from pyspark_kgroup.driver.query import Query
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
    monkeypatch: pytest.MonkeyPatch, stays: bool, options: dict[str, str], host: str | None, reached: bool
) -> None:
    monkeypatch.setattr(query_module, "stays_on_this_host", lambda: stays)
    query = Query(parse({**OPTIONS, **options}), bounded=False)
    registry = query._start_registry(["g-0"], None)
    assert registry is not None
    query._registry = registry
    try:
        connect(("127.0.0.1", registry.port), registry.key).close()
        try:
            socket.create_connection(("127.0.0.9", registry.port), 30).close()  # another address of this host
        except ConnectionRefusedError:
            assert not reached
        else:
            assert reached
        (ticket,) = query._tickets("b", {"g-0": [[]]}, {})
        assert ticket.registry is not None
        assert ticket.registry.host == host
    finally:
        registry.close()
