"""The reader agrees with kio's wherever kio reads, and outlives frames that kio does not."""

import struct
from contextlib import suppress
from dataclasses import fields, is_dataclass, replace
from datetime import timedelta
from functools import cache
from types import UnionType
from typing import Any, get_args, get_origin
from uuid import UUID

import pytest
from harness import kio_messages
from harness.kio_messages import as_tuples, encode_entity
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode as KioErrorCode
from kio.schema.join_group.v9.response import JoinGroupResponseMember
from kio.schema.metadata.v12.response import MetadataResponseBroker, MetadataResponsePartition, MetadataResponseTopic
from kio.schema.types import BrokerId, TopicName
from kio.serial import entity_reader
from kio.static.primitive import i32, i32Timedelta, i64Timedelta

from spark_kgroup.errors import ProtocolViolation
from spark_kgroup.model import ErrorCode, MemberIdentity, TopicPartition
from spark_kgroup.wire import messages, schema
from spark_kgroup.wire.codec import decode_response, decode_struct, encode_request, encode_struct, read_correlation_id
from spark_kgroup.wire.responses import group_error_codes, parse_metadata

RESPONSES = sorted(set(kio_messages.RESPONSE_OF.values()), key=lambda kind: (kind.__name__, kind.__version__))
REQUEST_OF = {kio_messages.response_of(ours): ours for ours in schema.API_OF}
REQUESTS = {kios: REQUEST_OF[response] for kios, response in kio_messages.RESPONSE_OF.items()}
CORRELATION_ID = 7


def name(kind: Any) -> str:
    return f"{kind.__name__}-v{kind.__version__}"


@cache  # Hypothesis takes longer to make a strategy than to draw from it
def values(kind: type[Any]) -> st.SearchStrategy[Any]:
    """Any instance of a kio class. It is small, because each test runs for twelve classes."""
    return st.builds(kind, **{field.name: field_values(field.type) for field in fields(kind)})


def field_values(annotation: Any) -> st.SearchStrategy[Any]:
    if get_origin(annotation) is UnionType:
        return st.one_of(*map(field_values, get_args(annotation)))
    if get_origin(annotation) is tuple:
        return st.lists(field_values(get_args(annotation)[0]), max_size=3).map(tuple)
    if isinstance(annotation, type) and is_dataclass(annotation):
        return values(annotation)
    if annotation in (i32Timedelta, i64Timedelta):
        # kio writes milliseconds through floats: a few values do not survive that (kio.static.primitive says so).
        return st.integers(0, 2**31 - 1).map(lambda ms: timedelta(milliseconds=ms))
    return st.from_type(annotation)


def as_frame(response: Any) -> bytes:
    """The bytes that a broker sends after the length: header and body."""
    header = response.__header_schema__(correlation_id=i32(CORRELATION_ID))
    return encode_entity(header) + encode_entity(response)


def example(kind: type[Any]) -> Any:
    """One instance with two elements in every array."""
    return kind(**{field.name: example_of(field.type) for field in fields(kind)})


def example_of(annotation: Any) -> Any:
    if get_origin(annotation) is UnionType:
        return example_of(get_args(annotation)[0])
    if get_origin(annotation) is tuple:
        return (example_of(get_args(annotation)[0]),) * 2
    if isinstance(annotation, type) and is_dataclass(annotation):
        return example(annotation)
    if annotation is KioErrorCode:
        return KioErrorCode(27)
    if issubclass(annotation, bool):
        return True
    if issubclass(annotation, int):
        return 3
    if issubclass(annotation, str):
        return "näme"
    if issubclass(annotation, bytes):
        return b"raw"
    if annotation in (i32Timedelta, i64Timedelta):
        return timedelta(milliseconds=1500)
    return UUID(int=5)


# ----------------------------------------------------------------------------------- frames that kio reads, we read


@pytest.mark.parametrize("kind", RESPONSES, ids=name)
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_any_response_is_read_as_kio_reads_it(kind: Any, data: st.DataObject) -> None:
    response = data.draw(values(kind))
    raw = encode_entity(response)
    by_kio, size = entity_reader(kind)(raw, 0)
    assert size == len(raw)
    if kind is kio_messages.ApiVersionsResponse and response.error_code == ErrorCode.UNSUPPORTED_VERSION:
        return  # a version 0 answer by definition: see the test of the fallback
    ours = decode_response(REQUEST_OF[kind], as_frame(response))
    assert ours == as_tuples(by_kio)
    if kind is not kio_messages.ApiVersionsResponse:  # which has tagged fields
        assert encode_struct(ours, flexible=kind.__flexible__) == raw


@pytest.mark.parametrize("kind", REQUESTS, ids=name)
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_any_request_is_written_and_read_as_kio_does(kind: Any, data: st.DataObject) -> None:
    raw = encode_entity(data.draw(values(kind)))
    by_kio, _ = entity_reader(kind)(raw, 0)
    ours = decode_struct(REQUESTS[kind], raw, flexible=kind.__flexible__)
    assert ours == as_tuples(by_kio)
    assert encode_struct(ours, flexible=kind.__flexible__) == raw
    frame = encode_request(ours, 77, "client")
    header, size = entity_reader(kind.__header_schema__)(frame, 4)
    assert as_tuples(header) == (kind.__api_key__, kind.__version__, 77, "client")
    assert frame[4 + size :] == raw


@pytest.mark.parametrize("kind", RESPONSES, ids=name)
def test_the_classes_of_a_response_are_those_of_the_schema(kind: Any) -> None:
    response = example(kind)
    again = decode_response(REQUEST_OF[kind], as_frame(response))
    assert again == as_tuples(response)
    assert type(again) is schema.API_OF[REQUEST_OF[kind]].response


def test_a_request_frame_is_length_header_and_body() -> None:
    request = messages.heartbeat("g", MemberIdentity(instance_id="seat-0", member_id="m", generation=3))
    frame = encode_request(request, correlation_id=77, client_id="client")
    (length,) = struct.unpack_from(">i", frame)
    assert length == len(frame) - 4
    assert struct.unpack_from(">hhi", frame, 4) == (12, 4, 77)  # Heartbeat, v4, correlation id
    # The client id keeps its 2-byte length even in the flexible header (RequestHeader.json). No tags follow.
    assert frame[12:21] == b"\x00\x06client\x00"
    by_kio, size = entity_reader(kio_messages.HeartbeatRequest)(frame, 21)
    assert (as_tuples(by_kio), size) == (request, len(frame) - 21)


def test_builders_put_their_values_where_kafka_expects_them() -> None:
    who = MemberIdentity(instance_id="seat-0", member_id="m", generation=3)
    join = messages.join_group(
        "g", who, [("range", b"x")], session_timeout_ms=1_500, rebalance_timeout_ms=2_500, reason="why"
    )
    assert (join.session_timeout_ms, join.rebalance_timeout_ms) == (1_500, 2_500)
    assert (join.member_id, join.group_instance_id, join.protocol_type, join.reason) == (
        "m",
        "seat-0",
        "consumer",
        "why",
    )
    commit = messages.offset_commit(
        "g", who, {TopicPartition("b", 1): 5, TopicPartition("a", 0): 6, TopicPartition("b", 0): 7}
    )
    sent = {(t.name, p.partition_index): p.committed_offset for t in commit.topics for p in t.partitions}
    assert sent == {("b", 1): 5, ("a", 0): 6, ("b", 0): 7}
    assert [topic.name for topic in commit.topics] == ["a", "b"]
    assert (commit.generation_id_or_member_epoch, commit.member_id, commit.group_instance_id) == (3, "m", "seat-0")
    assert messages.offset_fetch("g", [TopicPartition("a", 0)]).require_stable
    assert not messages.metadata(["a"]).allow_auto_topic_creation
    assert messages.metadata(None).topics is None
    assert messages.metadata([]).topics == ()


def test_a_reason_is_cut_to_a_length_that_every_broker_reads() -> None:
    """JoinGroupRequest.maybeTruncateReason: 255 characters. A broker hangs up on a string of more than 32,767."""
    who, reason = MemberIdentity(instance_id="seat-0"), "x" * 40_000
    join = messages.join_group("g", who, [], session_timeout_ms=1, rebalance_timeout_ms=1, reason=reason)
    assert join.reason == reason[:255]
    assert [member.reason for member in messages.leave_group("g", [who], reason).members] == [reason[:255]]


# ----------------------------------------------------------------------------------------- a newer broker's additions


def with_unknown_tags(raw: bytes, at: int) -> bytes:
    """`raw` with its empty tag buffer at `at` replaced by one that has two unknown tags."""
    assert raw[at] == 0
    return raw[:at] + b"\x02" + b"\x63\x03new" + b"\xc8\x01\x00" + raw[at + 1 :]


def join_response(error: int = 0) -> kio_messages.JoinGroupResponse:
    return kio_messages.JoinGroupResponse(
        throttle_time=i32Timedelta.parse(timedelta(0)),
        error_code=KioErrorCode(error),
        generation_id=i32(4),
        protocol_type="consumer",
        protocol_name="range",
        leader="me",
        skip_assignment=True,
        member_id="me",
        members=(
            JoinGroupResponseMember(member_id="me", group_instance_id=None, metadata=b"first"),
            JoinGroupResponseMember(member_id="you", group_instance_id="seat-1", metadata=b"second"),
        ),
    )


@pytest.mark.parametrize("where", ["header", "member", "response"])
def test_unknown_tagged_fields_are_skipped(where: str) -> None:
    """KIP-482: tagged fields may be added without a new version, and a reader ignores those it does not know."""
    response = join_response()
    frame = as_frame(response)
    at = {"header": 4, "member": frame.index(b"first") + len(b"first"), "response": len(frame) - 1}[where]
    assert decode_response(schema.JoinGroupRequest, with_unknown_tags(frame, at)) == as_tuples(response)


def test_unknown_tagged_fields_are_skipped_beside_known_ones() -> None:
    response = example(kio_messages.ApiVersionsResponse)
    frame = as_frame(response)
    tail = encode_entity(response)
    known = tail.rindex(b"\x04\x00")  # number of tags (4), then tag 0
    at = len(frame) - len(tail) + known
    changed = frame[:at] + b"\x05" + frame[at + 1 :] + b"\x63\x03new"
    assert decode_response(schema.ApiVersionsRequest, changed) == as_tuples(response)


@pytest.mark.parametrize("code", [12_345, -2, 32_767, -32_768])
def test_an_unknown_error_code_stays_the_number_it_is(code: int) -> None:
    frame = bytearray(as_frame(join_response()))
    frame[9:11] = struct.pack(">h", code)
    response = decode_response(schema.JoinGroupRequest, bytes(frame))
    assert isinstance(response, schema.JoinGroupResponse)
    assert response.error_code == code
    no_error: int = ErrorCode.NONE
    assert response.error_code != no_error
    assert response.members == as_tuples(join_response().members)
    assert str(code) in repr(response)


def test_each_error_code_that_we_name_has_kafkas_number() -> None:
    assert [KioErrorCode(code).name.upper() for code in ErrorCode] == [code.name for code in ErrorCode]


def test_an_unsupported_api_versions_answer_is_read_as_version_0() -> None:
    """KIP-511: a broker that does not know our version answers UNSUPPORTED_VERSION in the form of version 0."""
    raw = struct.pack(">ihihhh", CORRELATION_ID, 35, 1, 18, 0, 2)
    response = decode_response(schema.ApiVersionsRequest, raw)
    assert isinstance(response, schema.ApiVersionsResponseV0)
    assert [(k.api_key, k.min_version, k.max_version) for k in response.api_keys] == [(18, 0, 2)]


# ----------------------------------------------------------------------------------------------- an odd server's bytes


@pytest.mark.parametrize("kind", RESPONSES, ids=name)
def test_a_response_cut_off_anywhere_is_refused(kind: Any) -> None:
    frame = as_frame(example(kind))
    for end in range(len(frame)):
        with pytest.raises(ProtocolViolation):
            decode_response(REQUEST_OF[kind], frame[:end])


@pytest.mark.parametrize("kind", RESPONSES, ids=name)
def test_bytes_after_a_response_are_refused(kind: Any) -> None:
    with pytest.raises(ProtocolViolation, match="1 bytes follow a whole"):
        decode_response(REQUEST_OF[kind], as_frame(example(kind)) + b"\0")


@settings(max_examples=100, deadline=None)
@given(frame=st.binary(max_size=200))
def test_garbage_is_refused_or_read_without_any_other_error(frame: bytes) -> None:
    """As any response: it takes longer to make garbage than to refuse it."""
    for kind in RESPONSES:
        note(name(kind))
        with suppress(ProtocolViolation):
            decode_response(REQUEST_OF[kind], frame)


@pytest.mark.parametrize("kind", RESPONSES, ids=name)
def test_a_response_with_any_one_byte_replaced_is_refused_or_read(kind: Any) -> None:
    """Lengths, varints, nulls and text, each wrong in its place."""
    frame = as_frame(example(kind))
    for at in range(len(frame)):
        for byte in (0x00, 0x01, 0x7F, 0x80, 0xFF):
            with suppress(ProtocolViolation):
                decode_response(REQUEST_OF[kind], frame[:at] + bytes([byte]) + frame[at + 1 :])


def test_a_claim_of_a_huge_array_is_refused() -> None:
    """With kio's own reader this ends the process."""
    huge = struct.pack(">ibi", CORRELATION_ID, 0, 0) + b"\xff\xff\xff\xff\x0f"
    with pytest.raises(ProtocolViolation, match="claims a length of 4294967294"):
        decode_response(schema.MetadataRequest, huge)
    with pytest.raises(ProtocolViolation, match="claims a length of 2147483647"):
        decode_response(schema.ApiVersionsRequestV0, struct.pack(">ihi", CORRELATION_ID, 0, 2**31 - 1))


def test_null_where_none_may_be_is_refused() -> None:
    with pytest.raises(ProtocolViolation, match="has no brokers: it is null"):
        decode_response(schema.MetadataRequest, struct.pack(">ibi", CORRELATION_ID, 0, 0) + b"\0")


def test_an_endless_varint_is_refused() -> None:
    with pytest.raises(ProtocolViolation, match="endless varint"):
        decode_response(schema.HeartbeatRequest, struct.pack(">i", CORRELATION_ID) + b"\x80" * 9)


def test_correlation_id_of_a_short_frame_is_refused() -> None:
    assert read_correlation_id(struct.pack(">ih", 9, 0)) == 9
    with pytest.raises(ProtocolViolation):
        read_correlation_id(b"\0\0\0")


def test_a_large_response_is_read_in_good_time() -> None:
    partitions = tuple(
        MetadataResponsePartition(
            error_code=KioErrorCode.none,
            partition_index=i32(index),
            leader_id=BrokerId(1),
            replica_nodes=(BrokerId(1), BrokerId(2)),
        )
        for index in range(5_000)
    )
    topic = MetadataResponseTopic(error_code=KioErrorCode.none, name=None, topic_id=None, partitions=partitions)
    broker = MetadataResponseBroker(node_id=BrokerId(1), host="h", port=i32(9092))
    response = kio_messages.MetadataResponse(
        throttle_time=i32Timedelta.parse(timedelta(0)), brokers=(broker,), topics=(topic,)
    )
    assert decode_response(schema.MetadataRequest, as_frame(response)) == as_tuples(response)


def test_racks_of_a_partition_are_those_of_its_replicas_as_far_as_their_brokers_have_one() -> None:
    replicas = ((1, 2), (2, 3), (3, 4))
    partitions = tuple(
        MetadataResponsePartition(
            error_code=KioErrorCode.none,
            partition_index=i32(index),
            leader_id=BrokerId(nodes[0]),
            replica_nodes=tuple(map(BrokerId, nodes)),
        )
        for index, nodes in enumerate(replicas)
    )
    topic = MetadataResponseTopic(
        error_code=KioErrorCode.none, name=TopicName("t"), topic_id=None, partitions=partitions
    )
    brokers = tuple(
        MetadataResponseBroker(node_id=BrokerId(node), host="h", port=i32(9092), rack=rack)
        for node, rack in ((1, "a"), (2, "b"), (3, None))
    )
    response = kio_messages.MetadataResponse(
        throttle_time=i32Timedelta.parse(timedelta(0)), brokers=brokers, topics=(topic,)
    )
    decoded = decode_response(schema.MetadataRequest, as_frame(response))
    assert isinstance(decoded, schema.MetadataResponse)
    found = parse_metadata(decoded).topics["t"]
    assert found.racks == {0: {"a", "b"}, 1: {"b"}, 2: set()}
    without = parse_metadata(kio_messages.as_ours(replace(response, brokers=brokers[2:]))).topics["t"]
    assert without.racks == {}
    assert without == found, "a moved replica makes no other topic"


def test_a_struct_may_be_followed_by_a_newer_versions_fields() -> None:
    raw = encode_entity(join_response())
    assert decode_struct(schema.JoinGroupResponse, raw + b"more", flexible=True) == as_tuples(join_response())


def test_one_element_with_tagged_fields_among_thousands_of_numbers_is_read_as_the_others() -> None:
    """Numbers are read many at once. A struct that a newer broker has extended is no reason to refuse them."""
    offsets = tuple(schema.ListOffsetsPartitionResponse(i, 0, -1, i * 1_000, 5) for i in range(10_000))
    topics = (schema.ListOffsetsTopicResponse("t", offsets), schema.ListOffsetsTopicResponse("u", offsets[:3]))
    raw = encode_struct(schema.ListOffsetsResponse(0, topics), flexible=True)
    stride = len(encode_struct(offsets[0], flexible=True))
    of_5_000 = raw.index(encode_struct(offsets[5_000], flexible=True)) + stride - 1
    assert decode_struct(schema.ListOffsetsResponse, raw, flexible=True) == (0, topics)
    assert decode_struct(schema.ListOffsetsResponse, with_unknown_tags(raw, of_5_000), flexible=True) == (0, topics)


@pytest.mark.parametrize("asked", [schema.OffsetFetchRequest, schema.OffsetFetchRequestV9])
def test_the_error_of_a_group_is_seen_in_either_version_of_offset_fetch(asked: Any) -> None:
    """NOT_COORDINATOR is why a client looks for the coordinator anew."""
    group = schema.OffsetFetchResponseGroup("g", (), ErrorCode.NOT_COORDINATOR)
    frame = struct.pack(">ib", CORRELATION_ID, 0) + encode_struct(
        schema.OffsetFetchResponse(0, (group,)), flexible=True
    )
    assert group_error_codes(decode_response(asked, frame)) == {ErrorCode.NOT_COORDINATOR}


def test_a_null_inside_an_array_is_refused_by_the_name_of_the_array() -> None:
    handshake = struct.pack(">ihih", CORRELATION_ID, 0, 2, 5) + b"PLAIN" + struct.pack(">h", -1)
    with pytest.raises(ProtocolViolation, match="has no mechanisms: it is null"):
        decode_response(schema.SaslHandshakeRequest, handshake)
