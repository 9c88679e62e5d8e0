"""The circumstances of one request, and an answer that comes later."""

from __future__ import annotations

from typing import NamedTuple

from spark_kgroup.model import TopicPartition


class Call(NamedTuple):
    """The circumstances of one request.

    Attributes:
        node_id: the node that was asked.
        version: of the request.
        now_ms: the time, in ms since 1970.
        client_id: from the header, empty if there was none.
        client_host: the client's address as Kafka shows it, such as "/127.0.0.1".
        waited: whether the request has waited for as long as it may: it is answered now.
    """

    node_id: int
    version: int
    now_ms: int
    client_id: str = ""
    client_host: str = "/127.0.0.1"
    waited: bool = False


class Later(NamedTuple):
    """Call the handler again: when one of the partitions has changed, or when the wait is over.

    Attributes:
        wait_ms: the longest wait, on the client's clock: no virtual clock ends it.
        partitions: their change may complete the answer (`Cluster.changed`).
    """

    wait_ms: int
    partitions: frozenset[TopicPartition]


class HangUp(Exception):
    """The connection is to end without an answer."""
