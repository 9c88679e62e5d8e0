"""FindCoordinator v0 to v5 (key 10). v1: also of transactions. v4: several keys at once (KIP-699).

v6 would add share groups. The first node coordinates every group. Transactions have no coordinator: a client
that asks for one gets INVALID_REQUEST, which Java's client and librdkafka take for fatal.
"""

from __future__ import annotations

from typing import Final

from spark_kgroup.broker.call import Call
from spark_kgroup.broker.cluster import Cluster
from spark_kgroup.model import ErrorCode
from spark_kgroup.wire.broker_schema import FindCoordinatorRequest, FindCoordinatorResponse
from spark_kgroup.wire.schema import Coordinator

_GROUP: Final = 0
_SEVERAL_SINCE: Final = 4
_NO_TRANSACTIONS: Final = "this broker coordinates groups, and no transactions"


def answer(cluster: Cluster, request: FindCoordinatorRequest, call: Call) -> FindCoordinatorResponse:
    """The first node, for each group."""
    keys = request.coordinator_keys if call.version >= _SEVERAL_SINCE else (request.key,)
    found = tuple(_coordinator(cluster, key, request.key_type) for key in keys)
    if call.version >= _SEVERAL_SINCE:
        return FindCoordinatorResponse(0, 0, None, -1, "", -1, found)
    (only,) = found
    return FindCoordinatorResponse(0, only.error_code, only.error_message, only.node_id, only.host, only.port, ())


def _coordinator(cluster: Cluster, key: str, key_type: int) -> Coordinator:
    if key_type != _GROUP:
        return Coordinator(key, -1, "", -1, ErrorCode.INVALID_REQUEST, _NO_TRANSACTIONS)
    node = cluster.nodes[cluster.controller_id]
    return Coordinator(key, node.node_id, node.host, node.port, ErrorCode.NONE, None)
