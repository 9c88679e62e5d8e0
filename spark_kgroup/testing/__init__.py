"""Real Kafka at hand, for tests and for development.

`ApacheKafka` runs one or three real broker processes; `pytest_plugin` offers it as fixtures. Names are loaded on first
use, because pytest imports this package in every project that has it installed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from spark_kgroup.testing.apache_kafka import ApacheKafka

__all__ = ["ApacheKafka"]


def __getattr__(name: str) -> object:
    if name == "ApacheKafka":
        from spark_kgroup.testing.apache_kafka import ApacheKafka

        return ApacheKafka
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
