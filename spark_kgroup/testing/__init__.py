"""Real Kafka at hand, for tests and for development.

`ApacheKafka` runs one or three real broker processes. `SecureListener`s let it authenticate clients.
`pytest_plugin` offers it as fixtures. Names are loaded on first use, because pytest imports this package in every
project that has it installed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from spark_kgroup.testing.apache_kafka import ApacheKafka
    from spark_kgroup.testing.listeners import SecureListener, unsecured_token

__all__ = ["ApacheKafka", "SecureListener", "unsecured_token"]


def __getattr__(name: str) -> object:
    if name == "ApacheKafka":
        from spark_kgroup.testing.apache_kafka import ApacheKafka

        return ApacheKafka
    if name in ("SecureListener", "unsecured_token"):
        from spark_kgroup.testing import listeners

        return getattr(listeners, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
