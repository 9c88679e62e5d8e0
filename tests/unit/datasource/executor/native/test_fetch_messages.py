"""The bytes of Fetch and its company are those of Kafka's schemas, as kio has them. A message cut short is refused."""

import struct
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from harness import kio_messages
from harness.fetch_broker import SCHEMAS, of_brokers, partition, response
from harness.kio_messages import SaslAuthenticateRequest, SaslHandshakeRequest, encode_entity
from harness.record_batches import Batch, Record
from hypothesis import given
from hypothesis import strategies as st
from kio.schema.api_versions.v3.response import ApiVersion
from kio.schema.errors import ErrorCode
from kio.schema.metadata.v9.request import MetadataRequest
from kio.schema.types import BrokerId, TopicName
from kio.serial import entity_reader
from kio.static.primitive import i8, i16, i32, i32Timedelta, i64, i64Timedelta

from pyspark_kgroup.executor.native import fetch_messages as ours
from pyspark_kgroup.executor.native.broker_connection import Broker
from pyspark_kgroup.executor.native.decode import FallbackToLibrdkafka
from pyspark_kgroup.executor.native.fetch_messages import Batches, Bounds, Fetched, Wanted

ID_A, ID_B = UUID(int=0xA), UUID(int=0xB << 100)
WANTED = [
    Wanted("a", 3, ID_A.bytes, 7, 2**40, -1),
    Wanted("a", 200, ID_A.bytes, 0, 0, 6),
    Wanted("b", 0, ID_B.bytes, 1, 5, 1),
    Wanted("a", 1, ID_A.bytes, 2, 9, 2),
]
BOUNDS = Bounds(500, 65_536, 4 << 20, 1 << 20)


def kio_request(version: int) -> Any:
    schema = SCHEMAS[version].request

    def topic(name: str, topic_id: UUID, *wanted: Wanted) -> Any:
        named = {"topic": TopicName(name)} if version == 12 else {"topic_id": topic_id}
        return schema.FetchTopic(
            **named,
            partitions=tuple(
                schema.FetchPartition(
                    partition=i32(one.partition),
                    current_leader_epoch=i32(one.leader_epoch),
                    fetch_offset=i64(one.offset),
                    last_fetched_epoch=i32(one.last_epoch),
                    partition_max_bytes=i32(BOUNDS.partition_bytes_max),
                )
                for one in wanted
            ),
        )

    return schema.FetchRequest(
        **({"replica_id": BrokerId(-1)} if version < 15 else {}),
        max_wait=i32Timedelta.parse(timedelta(milliseconds=BOUNDS.wait_ms_max)),
        min_bytes=i32(BOUNDS.bytes_min),
        max_bytes=i32(BOUNDS.bytes_max),
        isolation_level=i8(1),
        topics=(topic("a", ID_A, *WANTED[:2]), topic("b", ID_B, WANTED[2]), topic("a", ID_A, WANTED[3])),
        forgotten_topics_data=(),
        rack_id="rack-1",
    )


@pytest.mark.parametrize("version", sorted(SCHEMAS))
def test_a_fetch_is_the_one_that_kio_writes_topics_in_the_order_of_their_partitions(version: int) -> None:
    body = ours.fetch_request(version, WANTED, BOUNDS, read_committed=True, rack="rack-1")
    assert body == encode_entity(kio_request(version))


def test_requests_of_first_contact_are_those_that_kio_writes() -> None:
    hello = kio_messages.ApiVersionsRequest(client_software_name="us", client_software_version="1.0")
    assert ours.api_versions_request("us", "1.0") == encode_entity(hello)
    assert ours.sasl_handshake_request("PLAIN") == encode_entity(SaslHandshakeRequest(mechanism="PLAIN"))
    assert ours.sasl_authenticate_request(b"x" * 300) == encode_entity(SaslAuthenticateRequest(auth_bytes=b"x" * 300))


@pytest.mark.parametrize("api", [ours.FETCH, ours.API_VERSIONS, ours.SASL_AUTHENTICATE, ours.SASL_HANDSHAKE])
def test_a_frame_has_the_header_that_its_api_wants(api: int) -> None:
    frame = ours.frame(api, 3, 77, "ünser", b"body")
    (length,) = struct.unpack_from(">i", frame)
    assert length == len(frame) - 4
    kind = {
        ours.FETCH: SCHEMAS[17].request.FetchRequest,
        ours.API_VERSIONS: kio_messages.ApiVersionsRequest,
        ours.SASL_AUTHENTICATE: SaslAuthenticateRequest,
        ours.SASL_HANDSHAKE: SaslHandshakeRequest,
    }[api]
    header, size = entity_reader(kind.__header_schema__)(frame, 4)
    assert (header.request_api_key, header.request_api_version, header.correlation_id) == (api, 3, 77)
    assert header.client_id == "ünser"
    assert frame[4 + size :] == b"body"


# -------------------------------------------------------------------------------------------------------------- answers


def one_of_everything(version: int) -> bytes:
    topics = {
        (ID_A if version > 12 else "a"): [
            partition(0, b"records", version=version, aborted=((9, 100), (8, 2**40))),
            partition(300, b"", version=version, error=ErrorCode.not_leader_or_follower.value),
            partition(1, b"", version=version, preferred=3),
            partition(2, b"", version=version, error=74, leader=(7, 9)),
        ],
        (ID_B if version > 12 else "b"): [partition(0, b"x" * 200, version=version, diverging=(3, 77))],
    }
    endpoints = {7: Broker("b\u00fccher", 9092), 8: Broker("", 0)} if version > 15 else None
    return encode_entity(response(topics, version=version, throttle_ms=1_234, endpoints=endpoints))


@pytest.mark.parametrize("version", sorted(SCHEMAS))
def test_an_answer_to_a_fetch_is_read_in_place(version: int) -> None:
    a, b = (ID_A.bytes, ID_B.bytes) if version > 12 else (b"a", b"b")
    body = memoryview(one_of_everything(version))
    throttle_ms, found, endpoints = ours.fetch_answer(version, body)
    assert throttle_ms == 1_234
    assert found == [
        Fetched(a, 0, 0, ((9, 100), (8, 2**40)), -1, None, None, memoryview(b"records")),
        Fetched(a, 300, 6, (), -1, None, None, memoryview(b"")),
        Fetched(a, 1, 0, (), 3, None, None, memoryview(b"")),
        Fetched(a, 2, 74, (), -1, None, (7, 9), memoryview(b"")),
        Fetched(b, 0, 0, (), -1, 77, None, memoryview(b"x" * 200)),
    ]
    assert endpoints == ({7: ("b\u00fccher", 9092), 8: ("", 0)} if version > 15 else {})
    assert all(one.records.obj is body.obj for one in found), "no copy"


@pytest.mark.parametrize("version", sorted(SCHEMAS))
def test_an_answer_that_is_cut_anywhere_or_has_more_than_it_says_is_unusual(version: int) -> None:
    body = one_of_everything(version)
    for size in range(len(body)):
        with pytest.raises(FallbackToLibrdkafka):
            ours.fetch_answer(version, memoryview(body)[:size])
    with pytest.raises(FallbackToLibrdkafka, match="behind its last field"):
        ours.fetch_answer(version, memoryview(body + b"\0"))


@given(st.integers(12, 17), st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), min_size=1, max_size=8))
def test_an_answer_with_changed_bytes_is_read_or_unusual_and_never_reaches_beyond_itself(
    version: int, changes: list[tuple[int, int]]
) -> None:
    body = bytearray(one_of_everything(version))
    for at, byte in changes:
        body[at % len(body)] = byte
    try:
        found = ours.fetch_answer(version, memoryview(body)).fetched
    except FallbackToLibrdkafka:
        return
    assert sum(len(one.records) for one in found) <= len(body)


@given(st.binary(max_size=200))
def test_bytes_that_are_no_answer_are_read_or_unusual(body: bytes) -> None:
    for read in (ours.fetch_versions, ours.check_handshake, ours.sasl_answer, ours.brokers):
        try:
            read(memoryview(body))
        except FallbackToLibrdkafka:
            continue


def test_an_answer_that_lists_too_many_aborted_transactions_is_unusual(monkeypatch: pytest.MonkeyPatch) -> None:
    """In all its partitions together: each takes ten times as much memory as it has bytes."""
    answer = one_of_everything(ours.FETCH_BY_ID)
    lists = [fetched.aborted for fetched in ours.fetch_answer(ours.FETCH_BY_ID, memoryview(answer)).fetched]
    assert sum(map(len, lists)) == 2
    monkeypatch.setattr(ours, "ABORTED_TRANSACTIONS_MAX", 2)
    ours.fetch_answer(ours.FETCH_BY_ID, memoryview(answer))
    monkeypatch.setattr(ours, "ABORTED_TRANSACTIONS_MAX", 1)
    with pytest.raises(FallbackToLibrdkafka, match="more than 1 aborted transactions"):
        ours.fetch_answer(ours.FETCH_BY_ID, memoryview(answer))


def test_a_fetch_that_is_refused_as_a_whole_is_unusual_by_its_name() -> None:
    refused = encode_entity(response({}, error=ErrorCode.unsupported_version.value))
    with pytest.raises(FallbackToLibrdkafka, match="UNSUPPORTED_VERSION"):
        ours.fetch_answer(17, memoryview(refused))


@pytest.mark.parametrize("brokers", [{}, {1: Broker("a", 1), 2: Broker("b", 65_535)}], ids=["none", "two"])
def test_metadata_of_no_topic_says_where_brokers_are(brokers: dict[int, Broker]) -> None:
    asked = MetadataRequest(
        topics=(),
        allow_auto_topic_creation=False,
        include_cluster_authorized_operations=False,
        include_topic_authorized_operations=False,
    )
    assert ours.brokers_request() == encode_entity(asked)
    body = memoryview(encode_entity(of_brokers(brokers)))
    assert ours.brokers(body) == brokers
    with pytest.raises(FallbackToLibrdkafka):
        ours.brokers(body[:5] if brokers else body[:4])


def api_versions(error: int = 0, **ranges: tuple[int, int]) -> memoryview:
    found = tuple(
        ApiVersion(api_key=i16(int(key[1:])), min_version=i16(first), max_version=i16(last))
        for key, (first, last) in ranges.items()
    )
    entity = kio_messages.ApiVersionsResponse(
        error_code=ErrorCode(error), api_keys=found, throttle_time=i32Timedelta.parse(timedelta(0))
    )
    return memoryview(encode_entity(entity))


def test_versions_of_fetch_are_found_among_those_of_other_apis() -> None:
    assert ours.fetch_versions(api_versions(k0=(0, 9), k1=(4, 18), k18=(0, 4))) == (4, 18)
    with pytest.raises(FallbackToLibrdkafka, match="no Fetch"):
        ours.fetch_versions(api_versions(k0=(0, 9)))
    with pytest.raises(FallbackToLibrdkafka, match="UNSUPPORTED_VERSION"):
        ours.fetch_versions(api_versions(error=35))


def sasl_answer(error: int, lifetime_ms: int) -> memoryview:
    entity = kio_messages.SaslAuthenticateResponse(
        error_code=ErrorCode(error),
        error_message="told" if error else None,
        auth_bytes=b"server",
        session_lifetime=i64Timedelta.parse(timedelta(milliseconds=lifetime_ms)),
    )
    return memoryview(encode_entity(entity))


def test_answers_to_a_login_hold_the_broker_s_reply_and_the_lifetime_of_the_session() -> None:
    assert ours.sasl_answer(sasl_answer(0, 3_600_000)) == (b"server", 3_600_000)
    with pytest.raises(FallbackToLibrdkafka, match="SASL_AUTHENTICATION_FAILED"):
        ours.sasl_answer(sasl_answer(58, 0))


@pytest.mark.parametrize("api", [ours.FETCH, ours.API_VERSIONS])
def test_an_answer_to_another_request_is_unusual(api: int) -> None:
    tags = b"" if api == ours.API_VERSIONS else b"\0"
    assert ours.answer_body(api, 7, memoryview(b"\0\0\0\7" + tags + b"rest")) == memoryview(b"rest")
    with pytest.raises(FallbackToLibrdkafka, match="request 6 where 7 was due"):
        ours.answer_body(api, 7, memoryview(b"\0\0\0\6" + tags + b"rest"))


# -------------------------------------------------------------------------------------------------------------- batches


def batch(first: int, count: int, **more: Any) -> bytes:
    return Batch([Record(first + number) for number in range(count)], **more).encoded()


def test_the_headers_of_batches_say_where_to_go_on() -> None:
    first, second = batch(10, 5, leader_epoch=3), batch(20, 2, leader_epoch=4)
    log = memoryview(first + second)
    assert ours.read_batch_headers(log, 12, None) == Batches(22, 4, len(log))
    assert ours.read_batch_headers(log, 12, 15) == Batches(15, 3, len(first)), "what lies past the end is not looked at"
    assert ours.read_batch_headers(log, 12, 16) == Batches(22, 4, len(log))
    assert ours.read_batch_headers(memoryview(b""), 12, 16) == Batches(-1, -1, 0)


def test_a_last_batch_that_is_not_whole_is_left_for_the_next_answer() -> None:
    first, second = batch(0, 5), batch(5, 5)
    for size in range(len(second)):
        assert ours.read_batch_headers(memoryview(first + second[:size]), 0, None) == Batches(5, 0, len(first))
        assert ours.read_batch_headers(memoryview(second[:size]), 5, None) == Batches(-1, -1, 0)


@pytest.mark.parametrize(
    ("log", "why"),
    [
        (batch(0, 2, magic=1), "record format 1"),
        (batch(5, 2) + batch(5, 2), "makes no sense"),
        (batch(0, 1, last_offset=-1), "makes no sense"),
        (batch(-5, 1), "makes no sense"),
        (batch(2**63 - 1, 1), "makes no sense"),
        (batch(2**63 - 3, 3), "makes no sense"),
        (batch(0, 1)[:8] + struct.pack(">i", 48) + batch(0, 1)[12:], "makes no sense"),
        (batch(0, 1)[:8] + struct.pack(">i", -1) + batch(0, 1)[12:], "makes no sense"),
        (batch(0, 3), "records before offset 3"),
    ],
)
def test_headers_that_make_no_sense_are_unusual(log: bytes, why: str) -> None:
    with pytest.raises(FallbackToLibrdkafka, match=why):
        ours.read_batch_headers(memoryview(log), 3, None)
