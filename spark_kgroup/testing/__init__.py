"""Kafka at hand, for tests and for development.

`ApacheKafka` runs one or three real broker processes. `SecureListener`s let it authenticate clients.
`pytest_plugin` offers it as fixtures. `EmbeddedBroker` is a small broker in this process, without Java, whose time a
`VirtualClock` may be. Names are loaded on first use, because pytest imports this package in every
project that has it installed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from spark_kgroup.broker.broker_clock import VirtualClock
    from spark_kgroup.testing.apache_kafka import ApacheKafka
    from spark_kgroup.testing.embedded_broker import EmbeddedBroker
    from spark_kgroup.testing.listeners import SecureListener, unsecured_token

__all__ = ["ApacheKafka", "EmbeddedBroker", "SecureListener", "VirtualClock", "unsecured_token"]


def __getattr__(name: str) -> object:
    if name == "ApacheKafka":
        from spark_kgroup.testing.apache_kafka import ApacheKafka

        return ApacheKafka
    if name == "EmbeddedBroker":
        from spark_kgroup.testing.embedded_broker import EmbeddedBroker

        return EmbeddedBroker
    if name == "VirtualClock":
        from spark_kgroup.broker.broker_clock import VirtualClock

        return VirtualClock
    if name in ("SecureListener", "unsecured_token"):
        from spark_kgroup.testing import listeners

        return getattr(listeners, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
