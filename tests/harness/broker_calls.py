"""The embedded broker without sockets: requests to its handlers, and batches as producers make them."""

from collections.abc import Sequence
from itertools import count
from typing import Any
from uuid import UUID

from harness.record_batches import Batch, Record
from spark_kgroup.broker.call import Call
from spark_kgroup.broker.cluster import Cluster, Node, Partition
from spark_kgroup.broker.served import SERVED
from spark_kgroup.wire import broker_schema

NOW_MS = 1_800_000_000_000
KEY_OF = {served.layout.request: key for key, served in SERVED.items()}


def cluster_of(nodes: int = 1, **more: Any) -> Cluster:
    """A cluster whose topic ids are 1, 2 and so on."""
    ids = count(1)
    cluster = Cluster("cluster", new_topic_id=lambda: UUID(int=next(ids)), **more)
    cluster.nodes.update({n: Node(n, "127.0.0.1", 9000 + n, f"rack-{n}") for n in range(1, nodes + 1)})
    return cluster


def ask(cluster: Cluster, request: Any, *, version: int | None = None, node: int = 1, waited: bool = False) -> Any:
    """The handler's answer, in the newest version if none is given."""
    served = SERVED[KEY_OF[type(request)]]
    call = Call(node, served.layout.last if version is None else version, NOW_MS, "client", waited=waited)
    assert served.answer is not None, "a coordinator answers it"
    return served.answer(cluster, request, call)


def produced(
    values: Sequence[bytes] = (b"v",),
    *,
    codec: str = "none",
    producer: int = -1,
    epoch: int = 0,
    sequence: int = -1,
    times_ms: Sequence[int] | None = None,
    **more: Any,
) -> bytes:
    """One batch as a producer sends it: its first offset is 0."""
    times = times_ms or [NOW_MS + i for i in range(len(values))]
    records = [Record(i, value=value, timestamp_ms=ms) for i, (value, ms) in enumerate(zip(values, times, strict=True))]
    return Batch(
        records, codec=codec, producer_id=producer, producer_epoch=epoch, base_sequence=sequence, **more
    ).encoded()


def produce(
    cluster: Cluster,
    topic: str,
    *batches: bytes | None,
    partition: int = 0,
    version: int = 12,
    node: int = 1,
    acks: int = -1,
) -> list[broker_schema.PartitionProduceResponse]:
    """Append batches one after the other, and return what the broker said of each."""
    found = cluster.topics.get(topic)
    topic_id = found.topic_id if found else UUID(int=99)
    said = []
    for raw in batches:
        data = (broker_schema.PartitionProduceData(partition, raw),)
        request = broker_schema.ProduceRequest(
            None, acks, 1000, (broker_schema.TopicProduceData(topic, topic_id, data),)
        )
        answer = ask(cluster, request, version=version, node=node)
        said.append(answer.responses[0].partition_responses[0])
    return said


def fetch(
    cluster: Cluster,
    topic: str,
    offset: int = 0,
    *,
    partition: int = 0,
    bytes_max: int = 2**20,
    partition_bytes_max: int = 2**20,
    min_bytes: int = 1,
    wait_ms: int = 0,
    leader_epoch: int = -1,
    last_epoch: int = -1,
    session: tuple[int, int] = (0, -1),
    version: int = 17,
    node: int = 1,
    waited: bool = False,
) -> Any:
    """The answer to a Fetch of one partition."""
    one = broker_schema.FetchPartition(partition, leader_epoch, offset, last_epoch, -1, partition_bytes_max, None)
    found = cluster.topics.get(topic)
    topic_id = found.topic_id if found else UUID(int=99)
    request = broker_schema.FetchRequest(
        None,
        -1,
        broker_schema.ReplicaState(),
        wait_ms,
        min_bytes,
        bytes_max,
        0,
        *session,
        (broker_schema.FetchTopic(topic, topic_id, (one,)),),
        (),
        "",
    )
    return ask(cluster, request, version=version, node=node, waited=waited)


def fetched(*args: Any, **kwargs: Any) -> broker_schema.FetchedPartition:
    """The one partition in the answer to `fetch`."""
    found: broker_schema.FetchedPartition = fetch(*args, **kwargs).responses[0].partitions[0]
    return found


def partition_of(cluster: Cluster, topic: str, index: int = 0) -> Partition:
    return cluster.topics[topic].partitions[index]
