"""A fake coordinator of two groups, one of which a seat under test leads: for tests of a leader and its assignor."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from kio.schema.errors import ErrorCode as KioErrorCode
from kio.schema.heartbeat.v4 import HeartbeatResponse

from harness.fake_broker import NO_THROTTLE, FakeBroker
from harness.kio_messages import HeartbeatRequest, JoinGroupRequest, SyncGroupRequest
from harness.sessions import joined, session_of, synced
from spark_kgroup.assignors.contract import Assignor
from spark_kgroup.model import Subscription, TopicDescription, TopicPartition
from spark_kgroup.runtime.session import Session
from spark_kgroup.wire.address import Address
from spark_kgroup.wire.connection import Connection
from spark_kgroup.wire.consumer_protocol import encode_subscription
from spark_kgroup.wire.responses import ClusterMetadata

T0 = TopicPartition("t", 0)
TOPIC = TopicDescription(name="t", topic_id=None, partition_count=1)


@dataclass
class Coordinator:
    """The coordinator of two groups: the seat of "led" leads it, the one of "quiet" does not."""

    broker: FakeBroker = field(default_factory=FakeBroker)
    generation: int = 1
    protocol: str = "cooperative-sticky"
    claimed: frozenset[TopicPartition] = frozenset()

    def __post_init__(self) -> None:
        self.broker.answer = self.answer

    @property
    def coordinators(self) -> "Coordinator":
        """As `Cluster.coordinators`: that of both groups."""
        return self

    async def open(self, _group: str, **_: Address | None) -> Connection:
        return await Connection.open(self.broker.address, client_id="test")

    async def metadata(self, _topics: Sequence[str], **_: int) -> ClusterMetadata:
        return ClusterMetadata(brokers={}, topics={"t": TOPIC}, leaders={}, errors={})

    def count(self, kind: type[Any], group: str) -> int:
        return sum(isinstance(request, kind) and request.group_id == group for request in self.broker.requests)

    def answer(self, request: Any) -> Any:
        match request:
            case JoinGroupRequest():
                led = request.group_id == "led"
                members = (
                    {"m": encode_subscription(Subscription(topics=("t",), owned=self.claimed, generation=0))}
                    if led
                    else {}
                )
                return joined(
                    leader="m" if led else "other",
                    generation=self.generation,
                    members=members,
                    protocol_name=self.protocol,
                )
            case SyncGroupRequest():
                share = request.assignments[0].assignment if request.assignments else b""
                return synced(share, protocol_name=self.protocol)
            case HeartbeatRequest():
                return HeartbeatResponse(throttle_time=NO_THROTTLE, error_code=KioErrorCode.none)
        raise AssertionError(f"not expected: {request}")


def seat(group: str, coordinator: Coordinator, chosen: Assignor, instance_id: str = "seat-0") -> Session:
    return session_of(
        coordinator,
        group=group,
        instance_id=instance_id,
        topics=("t",),
        assignors=(chosen,),
        heartbeat_interval_ms=10,
    )
