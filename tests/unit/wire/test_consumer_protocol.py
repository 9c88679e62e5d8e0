"""Subscriptions and assignments: Java's bytes, every version, and bytes that are neither."""

import struct
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_kgroup.errors import ProtocolViolation
from spark_kgroup.model import NO_GENERATION, Subscription, TopicPartition
from spark_kgroup.wire.consumer_protocol import (
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)

INT32S = st.integers(-(2**31), 2**31 - 1)
NAMES = st.text(st.characters(codec="utf-8"), max_size=20)
PARTITIONS = st.frozensets(st.builds(TopicPartition, NAMES, INT32S), max_size=8)
SUBSCRIPTIONS = st.builds(
    Subscription,
    topics=st.lists(NAMES, max_size=5).map(lambda names: tuple(sorted(names))),
    owned=PARTITIONS,
    generation=INT32S,
    rack=st.none() | NAMES.filter(bool),
    user_data=st.none() | st.binary(max_size=20),
)

TOPICS = b"\0\0\0\2" + b"\0\1a" + b"\0\1b"
USER_DATA = b"\0\0\0\2" + b"ud"
OWNED = b"\0\0\0\1" + b"\0\1a" + b"\0\0\0\2" + b"\0\0\0\0" + b"\0\0\0\3"
OWNED_PARTITIONS = frozenset({TopicPartition("a", 0), TopicPartition("a", 3)})


def test_a_subscription_is_written_as_java_writes_it() -> None:
    """ConsumerProtocol.serializeSubscription: newest version, topics and partitions sorted, one entry per topic."""
    subscription = Subscription(topics=("b", "a"), owned=OWNED_PARTITIONS, generation=5, rack="r1", user_data=b"ud")
    expected = b"\0\3" + TOPICS + USER_DATA + OWNED + b"\0\0\0\5" + b"\0\2r1"
    assert encode_subscription(subscription) == expected


def test_absent_parts_are_written_as_java_writes_them() -> None:
    expected = b"\0\3" + b"\0\0\0\0" + b"\xff\xff\xff\xff" + b"\0\0\0\0" + b"\xff\xff\xff\xff" + b"\xff\xff"
    assert encode_subscription(Subscription(topics=())) == expected


def test_an_assignment_is_written_as_java_writes_it() -> None:
    assert encode_assignment(OWNED_PARTITIONS) == b"\0\3" + OWNED + b"\xff\xff\xff\xff"


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (b"\0\0" + TOPICS + USER_DATA, Subscription(topics=("a", "b"), user_data=b"ud")),
        (
            b"\0\1" + TOPICS + USER_DATA + OWNED,
            Subscription(topics=("a", "b"), user_data=b"ud", owned=OWNED_PARTITIONS),
        ),
        (
            b"\0\2" + TOPICS + USER_DATA + OWNED + b"\0\0\0\7",
            Subscription(topics=("a", "b"), user_data=b"ud", owned=OWNED_PARTITIONS, generation=7),
        ),
        (
            b"\0\3" + TOPICS + USER_DATA + OWNED + b"\0\0\0\7" + b"\0\2r1",
            Subscription(topics=("a", "b"), user_data=b"ud", owned=OWNED_PARTITIONS, generation=7, rack="r1"),
        ),
        (
            b"\0\4" + TOPICS + USER_DATA + OWNED + b"\0\0\0\7" + b"\0\2r1" + b"what v4 adds",
            Subscription(topics=("a", "b"), user_data=b"ud", owned=OWNED_PARTITIONS, generation=7, rack="r1"),
        ),
    ],
    ids=["v0", "v1", "v2", "v3", "a later version"],
)
def test_subscriptions_of_every_version_are_read(raw: bytes, expected: Subscription) -> None:
    assert decode_subscription(raw) == expected


@pytest.mark.parametrize("user_data", [USER_DATA, b"\xff\xff\xff\xff"], ids=["user data", "none"])
def test_a_version_1_without_owned_partitions_is_read_as_version_0(user_data: bytes) -> None:
    """As old sarama and kafka-go write it. franz-go does the same (its issue 493)."""
    assert decode_subscription(b"\0\1" + TOPICS + user_data) == decode_subscription(b"\0\0" + TOPICS + user_data)


def test_a_field_that_an_old_version_lacks_is_unknown() -> None:
    found = decode_subscription(b"\0\0" + TOPICS + b"\xff\xff\xff\xff")
    assert (found.owned, found.generation, found.rack, found.user_data) == (frozenset(), NO_GENERATION, None, None)


def test_topics_are_sorted_whichever_client_wrote_them() -> None:
    assert decode_subscription(b"\0\0\0\0\0\2" + b"\0\1b" + b"\0\1a" + b"\xff\xff\xff\xff").topics == ("a", "b")


def test_an_empty_rack_is_no_rack() -> None:
    """ConsumerProtocol.deserializeSubscription does the same."""
    raw = b"\0\3" + TOPICS + USER_DATA + OWNED + b"\0\0\0\7" + b"\0\0"
    assert decode_subscription(raw).rack is None


@pytest.mark.parametrize("version", [0, 1, 2, 3, 4, 99])
def test_assignments_of_every_version_are_read(version: int) -> None:
    raw = struct.pack(">h", version) + OWNED + USER_DATA + (b"what it adds" if version > 3 else b"")
    assert decode_assignment(raw) == OWNED_PARTITIONS


def test_no_bytes_are_an_empty_assignment() -> None:
    """The coordinator sends none to a member without a share from the leader."""
    assert decode_assignment(b"") == frozenset()


@given(SUBSCRIPTIONS)
def test_any_subscription_comes_back(subscription: Subscription) -> None:
    assert decode_subscription(encode_subscription(subscription)) == subscription


@given(PARTITIONS)
def test_any_assignment_comes_back(partitions: frozenset[TopicPartition]) -> None:
    assert decode_assignment(encode_assignment(partitions)) == partitions


@given(st.binary(max_size=80))
def test_garbage_is_refused_or_read_without_any_other_error(raw: bytes) -> None:
    for decode in (decode_subscription, decode_assignment):
        with suppress(ProtocolViolation):
            decode(raw)


def test_bytes_cut_off_anywhere_are_refused() -> None:
    whole = Subscription(topics=("a",), owned=OWNED_PARTITIONS, generation=5, rack="r1", user_data=b"ud")
    raw = encode_subscription(whole)
    for end in range(len(raw)):
        with pytest.raises(ProtocolViolation):
            decode_subscription(raw[:end])
    raw = encode_assignment(OWNED_PARTITIONS)
    for end in range(1, len(raw)):
        with pytest.raises(ProtocolViolation):
            decode_assignment(raw[:end])


@pytest.mark.parametrize("raw", [b"\xff\xff" + TOPICS + USER_DATA, b"\x80\0"], ids=["-1", "least"])
def test_a_negative_version_is_refused(raw: bytes) -> None:
    with pytest.raises(ProtocolViolation, match="has no version"):
        decode_subscription(raw)


def test_a_claim_of_many_topics_is_refused() -> None:
    with pytest.raises(ProtocolViolation, match="claims a length of 2147483647"):
        decode_assignment(b"\0\3" + b"\x7f\xff\xff\xff")
