"""How ranges are fetched, by an executor's configuration of librdkafka, and which properties only librdkafka knows.

Runs on: executor. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Self

from pyspark_kgroup.executor.native.decode import FallbackToLibrdkafka
from pyspark_kgroup.limits import FETCH_BYTES_MAX, FETCH_PARTITION_BYTES_MAX
from pyspark_kgroup.shared.token_callback import CALLBACK
from spark_kgroup.wire.security.from_properties import PROPERTIES

_USED: Final = frozenset(
    {
        "client.id",
        "client.rack",
        "fetch.max.bytes",
        "fetch.message.max.bytes",
        "isolation.level",
        "max.partition.fetch.bytes",
    }
)

_MEANINGLESS: Final = frozenset(
    {
        "auto.offset.reset",  # a position that is gone raises FallbackToLibrdkafka
        "bootstrap.servers",  # the driver names the leaders
        "check.crcs",  # they are always checked
        "enable.auto.commit",
        "enable.auto.offset.store",
        "enable.partition.eof",
        "fetch.error.backoff.ms",
        "fetch.min.bytes",  # the records of a range are in the log already: there is no wait
        "fetch.queue.backoff.ms",
        "fetch.wait.max.ms",
        "group.id",
        "log.connection.close",
        "log_level",
        "queued.max.messages.kbytes",  # only the answers on their way are queued
        "queued.min.messages",
        "reconnect.backoff.max.ms",  # a broken connection leaves the rest to librdkafka
        "topic.metadata.propagation.max.ms",
        "topic.metadata.refresh.interval.ms",
    }
)
"""Properties without a part in reading ranges natively, at any value."""

_UNDERSTOOD: Final = _USED | _MEANINGLESS | frozenset(PROPERTIES) | {CALLBACK}


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchSettings:
    """How ranges are fetched.

    Attributes:
        rack: where this client is, to be sent to a replica nearby (KIP-392), or "" if it is not configured.
        bytes_max: of an answer. One batch comes whole, however large it is.
        partition_bytes_max: of one partition in an answer.
    """

    client_id: str
    read_committed: bool
    rack: str
    bytes_max: int
    partition_bytes_max: int

    @classmethod
    def of(cls, config: Mapping[str, str]) -> Self:
        """The settings in `config`.

        Raises:
            FallbackToLibrdkafka: a property that only librdkafka understands, or a size that is no number.
        """
        for name in config:
            if name not in _UNDERSTOOD:
                raise FallbackToLibrdkafka(f"only librdkafka understands kafka.{name}", lasting=True)
        partition_bytes_max = config.get("fetch.message.max.bytes", config.get("max.partition.fetch.bytes"))
        return cls(
            client_id=config.get("client.id", ""),
            read_committed=config.get("isolation.level") == "read_committed",
            rack=config.get("client.rack", ""),
            bytes_max=_number(config.get("fetch.max.bytes"), FETCH_BYTES_MAX),
            partition_bytes_max=_number(partition_bytes_max, FETCH_PARTITION_BYTES_MAX),
        )


def _number(text: str | None, default: int) -> int:
    """The number in the text, or `default` where that is less: it bounds the memory of an answer."""
    try:
        return default if text is None else min(int(text), default)
    except ValueError:
        raise FallbackToLibrdkafka(f"{text!r} is no number", lasting=True) from None
