"""DescribeCluster v0 and v1 (key 60). v1: the client says whether it means brokers or controllers (KIP-919).

v2 would add fenced brokers, and here there are none.
"""

from __future__ import annotations

from typing import Final

from spark_kgroup.broker.call import Call
from spark_kgroup.broker.cluster import Cluster
from spark_kgroup.model import ErrorCode
from spark_kgroup.wire.broker_schema import DescribeClusterBroker, DescribeClusterRequest, DescribeClusterResponse

_BROKERS: Final = 1


def answer(cluster: Cluster, request: DescribeClusterRequest, _: Call) -> DescribeClusterResponse:
    """All nodes."""
    code, text = ErrorCode.NONE, None
    if request.endpoint_type != _BROKERS:
        code, text = ErrorCode.UNSUPPORTED_ENDPOINT_TYPE, f"Unsupported endpoint type {request.endpoint_type}"
    nodes = tuple(DescribeClusterBroker(*node) for node in cluster.nodes.values())
    return DescribeClusterResponse(0, code, text, _BROKERS, cluster.cluster_id, cluster.controller_id, nodes)
