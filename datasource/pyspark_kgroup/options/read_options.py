"""The options that streams and batch reads have in common.

Runs on: driver. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from pyspark_kgroup.options.offset_bound import OffsetBound
from pyspark_kgroup.options.subscription import Subscription
from pyspark_kgroup.shared.columns import HEADERS, TIMESTAMP
from pyspark_kgroup.shared.redacted import Redacted
from pyspark_kgroup.shared.tickets import Reader, ReadSettings

_NO_GROUP: Final = "spark-kgroup"
"""The group that librdkafka is given if the query names none: with `assign()` it needs one, and neither joins nor
commits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """Options of a query, checked. Units are last in a name. The effect of each is in `rows`.

    Attributes:
        group_id: None for a batch read that names none.
    """

    bootstrap_servers: str
    group_id: str | None
    subscription: Subscription
    starting_offsets: OffsetBound
    columns: tuple[str, ...]
    fail_on_data_loss: bool
    reader: Reader
    request_timeout_ms: int
    api_timeout_ms: int
    read_committed: bool
    client_id: str
    passed_on: Redacted = field(default_factory=Redacted)
    security: Redacted = field(default_factory=Redacted)

    @property
    def include_headers(self) -> bool:
        """Whether rows have the column `headers`."""
        return HEADERS in self.columns

    def read_settings(self) -> ReadSettings:
        """How executors read."""
        return ReadSettings(
            consumer_config=self.consumer_config(),
            reader=self.reader,
            include_headers=self.include_headers,
            include_timestamps=TIMESTAMP in self.columns,
            columns=self.columns,
            fail_on_data_loss=self.fail_on_data_loss,
            stall_timeout_ms=self.api_timeout_ms,
        )

    def consumer_config(self) -> dict[str, str]:
        """Configuration of an executor's librdkafka consumer, which makes no group calls."""
        return {
            "check.crcs": "true",  # a damaged batch is an error, as with Java's consumer (librdkafka's default: false)
            "fetch.queue.backoff.ms": "10",  # with 1 s it waits half of the time (measured: 100 B records)
            "fetch.wait.max.ms": "25",  # records of a ticket are in the log already: only its end is ever waited for
            "log_level": "2",  # `unread_ranges` logs an error of a read once, librdkafka 20 times a second
            "log.connection.close": "false",  # brokers close idle connections all the time
            "reconnect.backoff.max.ms": "1000",  # as Java's client: 10 s are long where answers get lost
            "topic.metadata.propagation.max.ms": "5000",  # topics in tickets exist: only brokers' metadata may lag
            **self.passed_on,
            **self.security,
            "bootstrap.servers": self.bootstrap_servers,
            "group.id": self.group_id or _NO_GROUP,
            "client.id": self.client_id,
            "isolation.level": "read_committed" if self.read_committed else "read_uncommitted",
            "auto.offset.reset": "error",  # an offset that is gone is an error, never a jump
            "enable.auto.commit": "false",
            "enable.auto.offset.store": "false",
            "enable.partition.eof": "true",  # the end of a range may lie past the last record one can see
        }
