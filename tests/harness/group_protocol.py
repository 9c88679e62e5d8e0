"""Which group protocol the queries of a test speak: classic, unless the test or the environment says otherwise.

A test that asks for the fixture `group_protocol` runs under both, all other tests under that of `GROUP_PROTOCOL` in the
environment. Options are written for the classic protocol. `spoken` translates them to those of the consumer protocol.
"""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from spark_kgroup.model import CLASSIC, CONSUMER

PROTOCOLS = (CLASSIC, CONSUMER)
OF_ENVIRONMENT = os.environ.get("GROUP_PROTOCOL", CLASSIC)

_now = OF_ENVIRONMENT

_SESSION = "kafka.session.timeout.ms"
_SET_BY_BROKERS = (_SESSION, "kafka.heartbeat.interval.ms")

_SESSION_MAX_MS = 120_000
"""The brokers' group.consumer.max.session.timeout.ms here (`spark_kgroup.testing.pytest_plugin`)."""


@contextmanager
def speaking(protocol: str) -> Iterator[None]:
    """Let the queries that are made meanwhile speak `protocol`."""
    global _now
    before, _now = _now, protocol
    try:
        yield
    finally:
        _now = before


def spoken(options: Mapping[str, str]) -> dict[str, str]:
    """`options` of a query, for this test's protocol. Settings that brokers decide under it are set there."""
    if _now == CLASSIC:
        return dict(options)
    asked_ms = min(int(options.get(_SESSION, 45_000)), _SESSION_MAX_MS)
    settings = {"consumer.session.timeout.ms": str(asked_ms)}
    _configure_group(options["kafka.bootstrap.servers"], options["kafka.group.id"], settings)
    left = {name: value for name, value in options.items() if name not in _SET_BY_BROKERS}
    return {**left, "kafka.group.protocol": CONSUMER}


def _configure_group(bootstrap: str, group: str, settings: Mapping[str, str]) -> None:
    from kafka import KafkaAdminClient
    from kafka.admin import ConfigResource, ConfigResourceType

    admin = KafkaAdminClient(bootstrap_servers=bootstrap.split(","))
    try:
        admin.alter_configs([ConfigResource(ConfigResourceType.GROUP, group, configs=dict(settings))])
    finally:
        admin.close()
