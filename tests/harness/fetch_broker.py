"""A broker in a thread that answers Fetch as a test wants: for clients that block.

It reads and writes through kio, which knows Kafka's schemas by itself.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Mapping
from datetime import timedelta
from itertools import cycle
from ssl import SSLContext
from types import ModuleType
from typing import Any, TypeVar
from uuid import UUID

from kio.schema.errors import ErrorCode
from kio.schema.fetch import v12, v13, v14, v15, v16, v17
from kio.schema.metadata.v9.request import MetadataRequest
from kio.schema.metadata.v9.response import MetadataResponse, MetadataResponseBroker
from kio.schema.types import BrokerId, ProducerId, TopicName
from kio.static.primitive import i32, i32Timedelta, i64

from harness.fake_broker import RANGES, Answer, FakeBroker
from pyspark_kgroup.executor.native.broker_connection import Broker
from pyspark_kgroup.shared.tickets import Leader

T = TypeVar("T")

SCHEMAS: Mapping[int, ModuleType] = {12: v12, 13: v13, 14: v14, 15: v15, 16: v16, 17: v17}
FETCH = 1
TOPIC_ID = UUID(int=0x0123456789ABCDEF0123456789ABCDEF)
BOUND_S = 60


class FetchBroker:
    """Listens on 127.0.0.1 in a thread of its own. A context manager.

    Args:
        answer: as `FakeBroker`'s. Requests that are no Fetch come here too.
        versions: the first and the last version of Fetch that it claims, or None if it knows no Fetch.
    """

    def __init__(
        self, answer: Answer, *, versions: tuple[int, int] | None = (4, 17), tls: SSLContext | None = None
    ) -> None:
        ranges = RANGES if versions is None else {**RANGES, FETCH: versions}
        more = [MetadataRequest, *(one.FetchRequest for one in SCHEMAS.values())]
        self.fake = FakeBroker(answer, ranges=ranges, tls=tls, more=more)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="fetch broker")

    def __enter__(self) -> FetchBroker:
        self._thread.start()
        self._run(self.fake.start())
        return self

    def __exit__(self, *_: object) -> None:
        self._run(self.fake.stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(BOUND_S)
        assert not self._thread.is_alive()
        self._loop.close()

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(BOUND_S)

    def stop(self) -> None:
        """End every connection, and listen no more."""
        self._run(self.fake.stop())

    def hang_up(self) -> None:
        """End every connection, and listen anew."""
        self.stop()
        self._run(self.fake.start())

    @property
    def address(self) -> Broker:
        return Broker(self.fake.address.host, self.fake.address.port)

    @property
    def fetches(self) -> list[Any]:
        """The Fetch requests, in order of arrival."""
        return [request for request in self.fake.requests if request.__api_key__ == FETCH]

    def leader(self, node_id: int = 1, epoch: int = 5, topic_id: UUID = TOPIC_ID) -> Leader:
        """This broker as the leader of a partition."""
        return Leader(node_id, *self.address, epoch, topic_id.hex)


def wanted(request: Any) -> list[tuple[str | UUID, int, int]]:
    """(topic's name or id, partition, offset) of a Fetch, in its order."""
    return [
        (topic.topic if hasattr(topic, "topic") else topic.topic_id, one.partition, one.fetch_offset)
        for topic in request.topics
        for one in topic.partitions
    ]


def partition(
    number: int,
    records: bytes = b"",
    *,
    error: int = 0,
    version: int = 17,
    aborted: tuple[tuple[int, int], ...] | None = None,
    preferred: int = -1,
    diverging: tuple[int, int] | None = None,
    leader: tuple[int, int] | None = None,
) -> Any:
    """One partition in an answer to a Fetch."""
    schema = SCHEMAS[version].response
    tags = {}
    if diverging is not None:
        tags["diverging_epoch"] = schema.EpochEndOffset(epoch=i32(diverging[0]), end_offset=i64(diverging[1]))
    if leader is not None:
        tags["current_leader"] = schema.LeaderIdAndEpoch(leader_id=BrokerId(leader[0]), leader_epoch=i32(leader[1]))
    transactions = aborted and tuple(
        schema.AbortedTransaction(producer_id=ProducerId(producer), first_offset=i64(first))
        for producer, first in aborted
    )
    return schema.PartitionData(
        partition_index=i32(number),
        error_code=ErrorCode(error),
        high_watermark=i64(1_000),
        aborted_transactions=transactions,
        preferred_read_replica=BrokerId(preferred),
        records=records,
        **tags,
    )


def response(
    topics: Mapping[str | UUID, list[Any]],
    *,
    version: int = 17,
    error: int = 0,
    throttle_ms: int = 0,
    endpoints: Mapping[int, Broker] | None = None,
) -> Any:
    """An answer to a Fetch. `endpoints`: where nodes listen."""
    schema = SCHEMAS[version].response
    named = [
        schema.FetchableTopicResponse(
            partitions=tuple(partitions),
            **({"topic_id": topic} if isinstance(topic, UUID) else {"topic": TopicName(topic)}),
        )
        for topic, partitions in topics.items()
    ]
    return schema.FetchResponse(
        throttle_time=i32Timedelta.parse(timedelta(milliseconds=throttle_ms)),
        error_code=ErrorCode(error),
        responses=tuple(named),
        **({"node_endpoints": tuple(_endpoint(schema, *one) for one in endpoints.items())} if endpoints else {}),
    )


def _endpoint(schema: Any, node_id: int, where: Broker) -> Any:
    return schema.NodeEndpoint(node_id=BrokerId(node_id), host=where.host, port=i32(where.port), rack="a rack")


def of_brokers(brokers: Mapping[int, Broker]) -> MetadataResponse:
    """An answer to Metadata: where all nodes listen."""
    return MetadataResponse(
        throttle_time=i32Timedelta.parse(timedelta(0)),
        brokers=tuple(
            MetadataResponseBroker(node_id=BrokerId(node_id), host=where.host, port=i32(where.port), rack=rack)
            for rack, (node_id, where) in zip(cycle((None, "a rack")), brokers.items(), strict=False)
        ),
        cluster_id="a cluster",
        controller_id=BrokerId(1),
        topics=(),
    )


def answering(
    say: Callable[[int, int], Any],
    endpoints: Mapping[int, Broker] | None = None,
    brokers: Mapping[int, Broker] | None = None,
) -> Answer:
    """An answer for each partition of a Fetch: `say(partition, offset)` is its records, or a `partition(...)`.

    Args:
        say: see above.
        endpoints: where leaders listen that the answers name.
        brokers: the brokers that an answer to Metadata names.
    """

    def answer(request: Any) -> Any:
        if isinstance(request, MetadataRequest):
            return of_brokers(brokers or {})
        version = int(request.__version__)
        topics: dict[str | UUID, list[Any]] = {}
        for topic, number, offset in wanted(request):
            content = say(number, offset)
            content = partition(number, content, version=version) if isinstance(content, bytes) else content
            topics.setdefault(topic, []).append(content)
        return response(topics, version=version, endpoints=endpoints)

    return answer
