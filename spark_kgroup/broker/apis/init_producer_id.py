"""InitProducerId v0 to v5 (key 22).

v3: a producer names the id that it has (KIP-360). Without transactions that does not matter, and it gets another id, as
with Kafka.

v6 would add two-phase commit. Source: Kafka's TransactionCoordinator.handleInitProducerId.
"""

from __future__ import annotations

from spark_kgroup.broker.call import Call
from spark_kgroup.broker.cluster import Cluster
from spark_kgroup.model import ErrorCode
from spark_kgroup.wire.broker_schema import InitProducerIdRequest, InitProducerIdResponse


def answer(cluster: Cluster, request: InitProducerIdRequest, _: Call) -> InitProducerIdResponse:
    """A new id for an idempotent producer. A transactional one is refused."""
    if request.transactional_id is not None:
        return InitProducerIdResponse(0, ErrorCode.INVALID_REQUEST, -1, -1)
    return InitProducerIdResponse(0, ErrorCode.NONE, cluster.new_producer_id(), 0)
