"""The embedded broker answers the same requests as Apache Kafka: error codes, offsets, timestamps and epochs alike.

Left out of the comparison are texts, topic ids, ports, throttle times, and settings that the embedded broker has not.
"""

import socket
import struct
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple
from uuid import UUID, uuid4

import pytest
from harness.broker_calls import produced as produced_now
from harness.record_batches import CONTROL
from harness.waiting import wait_for

from spark_kgroup.broker import topic_configs
from spark_kgroup.testing import ApacheKafka, EmbeddedBroker
from spark_kgroup.wire import broker_schema as messages
from spark_kgroup.wire.broker_schema import LAYOUTS
from spark_kgroup.wire.codec import decode_struct, encode_struct

pytestmark = pytest.mark.since_kafka_4

LAYOUT_OF: Final = {layout.request: layout for layout in LAYOUTS.values()}
CODECS = ["none", "gzip", "snappy", "zstd"]
"""Java's lz4 refuses the frames of PyArrow, whose blocks depend on each other (Lz4BlockInputStream)."""

STATE = messages.ReplicaState()


class Raw:
    """A blocking connection that asks one request after the other."""

    def __init__(self, bootstrap: str) -> None:
        host, port = bootstrap.split(",")[0].rsplit(":", 1)
        self._socket = socket.create_connection((host, int(port)), timeout=20)

    def close(self) -> None:
        self._socket.close()

    def ask(self, request: Any, version: int | None = None) -> Any:
        layout = LAYOUT_OF[type(request)]
        version = layout.last if version is None else version
        flexible = version >= layout.flexible_since
        head = struct.pack(">hhih", layout.key, version, 1, 4) + b"test" + (b"\0" if flexible else b"")
        frame = head + encode_struct(request, flexible=flexible, version=version)
        self._socket.sendall(struct.pack(">i", len(frame)) + frame)
        (size,) = struct.unpack(">i", self._read(4))
        at = 5 if flexible and layout.name != "ApiVersions" else 4
        return decode_struct(layout.response, self._read(size)[at:], flexible=flexible, version=version)

    def _read(self, size: int) -> bytes:
        content = b""
        while len(content) < size:
            more = self._socket.recv(size - len(content))
            assert more, "the broker has closed the connection"
            content += more
        return content


class Side(NamedTuple):
    """One of the two brokers, and the topic of this test on it."""

    raw: Raw
    topic: str
    topic_id: UUID

    # Each asks in the newest version, and leaves out of the answer what may differ.

    def produce(self, *batches: bytes | None, partition: int = 0, acks: int = -1, version: int = 12) -> list[Any]:
        said = []
        for raw in batches:
            data = (messages.PartitionProduceData(partition, raw),)
            topics = (messages.TopicProduceData(self.topic, self.topic_id, data),)
            answer = self.raw.ask(messages.ProduceRequest(None, acks, 30_000, topics), version)
            (one,) = answer.responses[0].partition_responses
            said.append((one.error_code, one.base_offset, one.log_append_time_ms, one.log_start_offset))
        return said

    def fetch(
        self,
        offset: int,
        *,
        partition: int = 0,
        bytes_max: int = 2**20,
        epoch: int = -1,
        last_epoch: int = -1,
        session: tuple[int, int] = (0, -1),
        topic_id: UUID | None = None,
    ) -> Any:
        one = messages.FetchPartition(partition, epoch, offset, last_epoch, -1, bytes_max, None)
        topic = messages.FetchTopic("", topic_id or self.topic_id, (one,))
        answer = self.raw.ask(
            messages.FetchRequest(None, -1, STATE, 0, 0, bytes_max, 0, *session, (topic,), (), ""), 17
        )
        if answer.error_code:
            return answer.error_code
        (found,) = answer.responses[0].partitions
        marks = found.high_watermark, found.last_stable_offset, found.log_start_offset
        return found.error_code, marks, found.diverging_epoch, found.records or b""

    def offset_at(self, timestamp_ms: int, *, epoch: int = -1, partition: int = 0, version: int = 10) -> Any:
        one = messages.ListOffsetsPartition(partition, epoch, timestamp_ms)
        topics = (messages.ListOffsetsTopic(self.topic, (one,)),)
        (found,) = self.raw.ask(messages.ListOffsetsRequest(-1, 0, topics, 30_000), version).topics[0].partitions
        return found[1:]

    def end_of_epoch(self, epoch: int, *, known: int = -1, partition: int = 0) -> Any:
        one = messages.OffsetForLeaderPartition(partition, known, epoch)
        topics = (messages.OffsetForLeaderTopic(self.topic, (one,)),)
        (found,) = self.raw.ask(messages.OffsetForLeaderEpochRequest(-1, topics)).topics[0].partitions
        return found

    def delete_records(self, offset: int, *, partition: int = 0) -> Any:
        one = messages.DeleteRecordsPartition(partition, offset)
        topics = (messages.DeleteRecordsTopic(self.topic, (one,)),)
        return self.raw.ask(messages.DeleteRecordsRequest(topics, 30_000)).topics[0].partitions

    def create(self, name: str, partitions: int = 1, factor: int = 1, **more: Any) -> Any:
        configs = tuple(messages.CreatableTopicConfig(*each) for each in more.get("configs", {}).items())
        by_hand = tuple(messages.CreatableReplicaAssignment(*each) for each in more.get("by_hand", ()))
        topic = messages.CreatableTopic(name, partitions, factor, by_hand, configs)
        answer = self.raw.ask(messages.CreateTopicsRequest((topic,) * more.get("times", 1), 30_000, True))
        return [(one.error_code, one.num_partitions, one.replication_factor) for one in answer.topics]

    def grow(self, total: int, *, name: str | None = None, by_hand: Sequence[Sequence[int]] | None = None) -> int:
        assignments = None if by_hand is None else tuple(messages.CreatePartitionsAssignment(tuple(x)) for x in by_hand)
        topic = messages.CreatePartitionsTopic(name or self.topic, total, assignments)
        code: int = self.raw.ask(messages.CreatePartitionsRequest((topic,), 30_000, True)).results[0].error_code
        return code

    def alter(self, *changes: tuple[str, int, str | None], name: str | None = None) -> int:
        resource = messages.AlterConfigsResource(
            2, name or self.topic, tuple(messages.AlterableConfig(*each) for each in changes)
        )
        answer = self.raw.ask(messages.IncrementalAlterConfigsRequest((resource,), False))
        code: int = answer.responses[0].error_code
        return code

    def configs(self, name: str | None = None) -> Any:
        resource = messages.DescribeConfigsResource(2, name or self.topic, None)
        (found,) = self.raw.ask(messages.DescribeConfigsRequest((resource,), False, False)).results
        ours = sorted(
            (one.name, one.value, one.config_source, one.config_type, one.read_only, one.is_sensitive)
            for one in found.configs
            if one.name in topic_configs.SETTINGS and not (one.name in OF_THE_NODES and one.config_source != 1)
        )
        return [found.error_code, *ours]


OF_THE_NODES: Final = ("retention.ms", "min.insync.replicas")
"""Settings whose defaults the tests' Kafka has from its properties, or from its first start."""


def produced(values: Sequence[bytes] = (b"v",), **more: Any) -> bytes:
    """A batch with timestamps of 2023: Kafka refuses those that are an hour ahead of its clock."""
    return produced_now(values, **{"times_ms": range(1_700_000_000_000, 1_700_000_000_000 + len(values)), **more})


Script = Callable[[Side], list[Any]]


def sent(sequence: int, *, epoch: int = 0, records: int = 1) -> bytes:
    return produced([b"v"] * records, producer=4_000_000, epoch=epoch, sequence=sequence)


def with_wrong_checksum() -> bytes:
    raw = bytearray(produced())
    raw[-1] ^= 1
    return bytes(raw)


def batches_of_all_kinds(side: Side) -> list[Any]:
    said = side.produce(*(produced([b"a" * 50, b"b" * 50], codec=codec) for codec in CODECS))
    said += side.produce(
        with_wrong_checksum(),
        produced(count=0),
        produced(count=7),
        produced(base_offset=4),
        produced(attributes=CONTROL),
        produced([b"x" * 2_000_000]),
        produced() + produced(),
        produced(magic=1),
    )
    said += side.produce(produced(codec="zstd"), version=6)
    said += side.produce(produced(), partition=9)
    said += side.produce(produced(), acks=7)
    return [*said, side.fetch(0), side.fetch(3), side.fetch(10), side.fetch(11), side.fetch(-1)]


def idempotent_producers(side: Side) -> list[Any]:
    batches = [sent(0, records=2), sent(2), sent(3), sent(2), sent(5), sent(4), sent(5), sent(6), sent(7), sent(3)]
    said = side.produce(*batches)
    said += side.produce(sent(1, epoch=1), sent(0, epoch=1), sent(8), sent(1, epoch=1))
    return [*said, side.offset_at(-1)]


def offsets(side: Side) -> list[Any]:
    times = [[100, 300, 200], [250, 250, 700], [400, 500, 600]]
    batches = [produced([b"v"] * 3, codec=codec, times_ms=each) for codec, each in zip(CODECS[1:], times, strict=True)]
    asked = (-1, -2, -3, -4, 0, 100, 101, 250, 301, 500, 700, 701)
    said = [*side.produce(*batches), *(side.offset_at(ms) for ms in asked)]
    said += [side.offset_at(-1, epoch=0), side.offset_at(-1, epoch=5), side.offset_at(-1, partition=9)]
    said += [side.offset_at(-3, version=6), side.offset_at(-4, version=7), side.offset_at(-6)]
    said += [side.end_of_epoch(epoch) for epoch in (-1, 0, 3)]
    said += [side.end_of_epoch(0, known=0), side.end_of_epoch(0, known=4), side.end_of_epoch(0, partition=9)]
    said += [side.delete_records(each) for each in (2, 1, 10, -2)]
    said += [side.offset_at(-2), side.offset_at(0), side.fetch(1), side.fetch(2)]
    # Not the largest timestamp (-3) after this: Kafka finds the deleted record as long as its segment is there.
    return [*said, side.delete_records(-1), side.offset_at(-2), side.end_of_epoch(0)]


def fetches(side: Side) -> list[Any]:
    side.produce(*[produced([b"v" * 50] * 2)] * 3)
    said = [side.fetch(0, epoch=0), side.fetch(0, epoch=5), side.fetch(0, partition=9), side.fetch(2, bytes_max=1)]
    said += [side.fetch(4, last_epoch=0), side.fetch(9, last_epoch=0), side.fetch(4, last_epoch=3)]
    return [*said, side.fetch(0, session=(77, 3)), side.fetch(0, topic_id=UUID(int=12345))]


def topics(side: Side) -> list[Any]:
    said = [side.create(name) for name in ("new", "no such name", side.topic, "..", "x" * 250)]
    said += [side.create("new", *each) for each in ((0, 1), (-2, 1), (1, 0), (1, 4), (1, -2), (-1, -1), (3, 1))]
    said += [side.create("new", times=2)]
    by_hand = ([(0, (1,)), (1, (1,))], [(0, (1,)), (2, (1,))], [(0, (1, 1))], [(0, (9,))], [(0, ())])
    said += [side.create("new", -1, -1, by_hand=each) for each in by_hand]
    said += [side.create("new", by_hand=[(0, (1,))])]
    wrong = ({"no.such": "1"}, {"retention.ms": "long"}, {"cleanup.policy": "burn"}, {"segment.bytes": "1"})
    said += [side.create("new", configs=each) for each in ({"retention.ms": "5"}, *wrong)]
    said += [side.grow(each) for each in (3, 2, 1, 0)]
    return [*said, side.grow(3, name="none"), side.grow(3, by_hand=[[1], [1]]), side.grow(3, by_hand=[[9]])]


def settings(side: Side) -> list[Any]:
    said: list[Any] = [*side.configs(), *side.configs("none")]
    said.append(side.alter(("retention.ms", 0, "5"), ("cleanup.policy", 2, "compact")))
    wait_for(lambda: any(one[:2] == ("retention.ms", "5") for one in side.configs()[1:]), "the settings")
    said += [*side.configs(), side.alter(("retention.ms", 0, "no")), side.alter(("no.such", 0, "1"))]
    said += [side.alter(("retention.ms", 2, "5")), side.alter(("retention.ms", 0, "5"), name="none")]
    said += [side.alter(("cleanup.policy", 3, "delete"), ("retention.ms", 1, None))]
    wait_for(lambda: all(one[:2] != ("retention.ms", "5") for one in side.configs()[1:]), "the settings")
    return [*said, *side.configs()]


def cluster(side: Side) -> list[Any]:
    described = [side.raw.ask(messages.DescribeClusterRequest(False, kind)).error_code for kind in (1, 9)]
    id_request = messages.InitProducerIdRequest(None, 0, -1, -1)
    given = wait_for(lambda: _given(side.raw.ask(id_request)), "a producer id")
    unknown = messages.MetadataRequestTopic(None, "none"), messages.MetadataRequestTopic(None, "no such name")
    by_id = (messages.MetadataRequestTopic(UUID(int=12345), None),)
    asked = [side.raw.ask(messages.MetadataRequest(each, False, False, False)) for each in (unknown, by_id, ())]
    return [*described, (given.error_code, given.producer_epoch), [[one.error_code for one in a.topics] for a in asked]]


def _given(answer: Any) -> Any:
    """None while Kafka's coordinator of producer ids is not there yet."""
    return None if answer.error_code in (14, 15) else answer


@pytest.fixture
def sides(apache_kafka: ApacheKafka) -> Iterator[tuple[Side, Side]]:
    topic = f"t-{uuid4()}"
    apache_kafka.create_topic(topic, partitions=2)
    with EmbeddedBroker() as broker:
        broker.create_topic(topic, partitions=2)
        both = []
        for bootstrap in (apache_kafka.bootstrap_servers, broker.bootstrap_servers):
            raw = Raw(bootstrap)
            asked = (messages.MetadataRequestTopic(None, topic),)
            (found,) = raw.ask(messages.MetadataRequest(asked, False, False, False)).topics
            assert found.topic_id is not None
            both.append(Side(raw, topic, found.topic_id))
        yield both[0], both[1]
        for side in both:
            side.raw.close()


@pytest.mark.parametrize(
    "script", [batches_of_all_kinds, idempotent_producers, offsets, fetches, topics, settings, cluster]
)
def test_both_brokers_answer_a_script_alike(sides: tuple[Side, Side], script: Script) -> None:
    kafka, embedded = (script(side) for side in sides)
    differences = [(i, *each) for i, each in enumerate(zip(kafka, embedded, strict=True)) if each[0] != each[1]]
    assert not differences, "\n".join(f"{i}: Kafka {theirs}, embedded {ours}" for i, theirs, ours in differences)
