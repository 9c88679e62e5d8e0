"""The one table of APIs: each with its versions and its handler.

The versions are those of Apache Kafka 4, from its oldest (KIP-896) to the newest that is laid out in
`wire.broker_schema` and `wire.broker_group_schema`. Each handler says at its head what its versions bring. Clients take
the newest version that both sides know:

| API | librdkafka 2.16 | kafka-python 3.0 | Java 4.3 | this library |
|---|---|---|---|---|
| Produce | 10 | 9 | 13 | |
| Fetch | 16 | 12 | 17 | 17 |
| ListOffsets | 7 | 10 | 10 | 7 |
| Metadata | 12 | 12 | 12 | 12 |
| FindCoordinator | 2 | 5 | 5 | 4 |
| ApiVersions | 3 | 4 | 4 | 3 |
| CreateTopics | 4 | 7 | 7 | |
| DeleteTopics | 4 | 6 | 6 | |
| DeleteRecords | 2 | 2 | 2 | |
| InitProducerId | 4 | 4 | 5 | |
| OffsetForLeaderEpoch | 2 | 4 | 4 | |
| DescribeConfigs | 1 | 4 | 4 | 4 |
| CreatePartitions | 2 | 3 | 3 | |
| IncrementalAlterConfigs | 1 | 1 | 1 | |
| DescribeCluster | | 1 | 1 | |
| JoinGroup | 5 | 7 | 9 | 9 |
| SyncGroup | 3 | 5 | 5 | 5 |
| Heartbeat | 3 | 4 | 4 | 4 |
| LeaveGroup | 1 | 5 | 5 | 5 |
| OffsetCommit | 9 | 8 | 9 | 8 |
| OffsetFetch | 9 | 8 | 9 | 8 |
| DescribeGroups | 4 | 5 | 5 | 5 |
| ListGroups | 4 | 5 | 5 | 5 |
| DeleteGroups | 1 | 2 | 2 | |
| OffsetDelete | 0 | 0 | 0 | |
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from spark_kgroup.broker.apis import (
    create_partitions,
    create_topics,
    delete_records,
    delete_topics,
    describe_cluster,
    describe_configs,
    fetch,
    find_coordinator,
    incremental_alter_configs,
    init_producer_id,
    list_offsets,
    metadata,
    offset_for_leader_epoch,
    produce,
)
from spark_kgroup.broker.call import Call, Later
from spark_kgroup.broker.cluster import Cluster
from spark_kgroup.model import ErrorCode
from spark_kgroup.wire.broker_group_schema import GROUP_LAYOUTS
from spark_kgroup.wire.broker_schema import LAYOUTS, ApiVersionsRequest, ApiVersionsResponse, Layout
from spark_kgroup.wire.schema import ApiVersion

Handler = Callable[[Cluster, Any, Call], "tuple[Any, ...] | Later | None"]
"""Answers a request, or says that it waits (`Later`), or that the client wants no answer (None)."""

PRODUCE, API_VERSIONS = 0, 18


class Served(NamedTuple):
    """An API that the broker serves.

    Attributes:
        layout: its messages, and the versions that are answered.
        answer: the handler, or None for requests of groups, which the coordinator answers (`groups`).
        claimed_first: the oldest version that ApiVersions names.
    """

    layout: Layout
    answer: Handler | None
    claimed_first: int


def _answer_versions(_: Cluster, __: ApiVersionsRequest, ___: Call) -> ApiVersionsResponse:
    return ApiVersionsResponse(ErrorCode.NONE, VERSIONS)


_HANDLERS: Final[Mapping[int, Handler]] = {
    PRODUCE: produce.answer,
    1: fetch.answer,
    2: list_offsets.answer,
    3: metadata.answer,
    10: find_coordinator.answer,
    API_VERSIONS: _answer_versions,
    19: create_topics.answer,
    20: delete_topics.answer,
    21: delete_records.answer,
    22: init_producer_id.answer,
    23: offset_for_leader_epoch.answer,
    32: describe_configs.answer,
    37: create_partitions.answer,
    44: incremental_alter_configs.answer,
    60: describe_cluster.answer,
}

SERVED: Final[Mapping[int, Served]] = MappingProxyType(
    {
        **{
            key: Served(LAYOUTS[key], handler, 0 if key == PRODUCE else LAYOUTS[key].first)
            for key, handler in _HANDLERS.items()
        },
        **{key: Served(layout, None, layout.first) for key, layout in GROUP_LAYOUTS.items()},
    }
)
"""API key -> how it is served."""

VERSIONS: Final = tuple(ApiVersion(key, one.claimed_first, one.layout.last) for key, one in SERVED.items())
"""As ApiVersions names them."""

UNSUPPORTED_VERSION: Final = ApiVersionsResponse(
    ErrorCode.UNSUPPORTED_VERSION, tuple(each for each in VERSIONS if each.api_key == API_VERSIONS)
)
"""The answer, in version 0, to ApiVersions of a version that is unknown (KIP-511)."""
