"""Committed offsets and groups at the coordinator: who may commit, what is kept, what goes, and when."""

from __future__ import annotations

from typing import Any

import pytest

from spark_kgroup.coordinator import GroupMetadata, GroupRemoved, OffsetCommitted, OffsetRemoved
from spark_kgroup.model import ErrorCode, Subscription
from spark_kgroup.wire import schema
from spark_kgroup.wire.consumer_protocol import encode_subscription

from .asking import SESSION_MS, Asking

DAY_MS = 24 * 3_600_000
CHECK_MS = 600_000


def deleted(g: Asking, *indexes: int) -> Any:
    """The answer to OffsetDelete of partitions of the topic "t"."""
    partitions = tuple(map(schema.OffsetDeleteRequestPartition, indexes))
    return g.answer(schema.OffsetDeleteRequest("g", (schema.OffsetDeleteRequestTopic("t", partitions),)), 0)


def subscribed_to(topic: str) -> Asking:
    """A group at rest of one member that subscribes to a topic."""
    g = Asking()
    g.join(instance_id="a", protocols=(("range", encode_subscription(Subscription(topics=(topic,)))),))
    g.pass_ms(3_000)
    (member_id,) = g.group.members
    g.sync(member_id, 1, instance_id="a")
    return g


# ----------------------------------------------------------------------------------------------------- commits


def test_a_client_without_a_group_s_protocol_may_commit_and_makes_the_group() -> None:
    g = Asking()
    assert g.commit({0: 7, 1: 8}, text="note") == [ErrorCode.NONE] * 2
    assert g.fetch() == {("t", 0): (7, "note"), ("t", 1): (8, "note")}
    assert g.restarted().fetch() == g.fetch()
    assert g.restarted().state == g.state == "Empty"


@pytest.mark.parametrize(("version", "error"), [(8, ErrorCode.ILLEGAL_GENERATION), (9, ErrorCode.GROUP_ID_NOT_FOUND)])
def test_a_member_of_a_group_that_is_not_there_may_not_commit(version: int, error: ErrorCode) -> None:
    partitions = (schema.OffsetCommitRequestPartition(0, 7, -1, None),)
    request = schema.OffsetCommitRequestV9("g", 1, "me", None, (schema.OffsetCommitRequestTopic("t", partitions),))
    (topic,) = Asking().answer(request, version).topics
    assert topic.partitions == ((0, error),)


def test_members_commit_in_their_generation_also_while_it_ends_but_not_before_the_next_is_assigned() -> None:
    g = Asking()
    leader, follower = g.two_seats()
    unknown = [ErrorCode.UNKNOWN_MEMBER_ID]
    assert g.commit({0: 1}) == unknown, "the group has members"
    assert g.commit({0: 1}, "unheard-of", 1) == unknown
    assert g.commit({0: 1}, follower, 0) == [ErrorCode.ILLEGAL_GENERATION]
    assert g.commit({0: 1}, follower, 1) == [ErrorCode.NONE]
    g.join(leader, "a")
    assert g.commit({0: 2}, follower, 1) == [ErrorCode.NONE], "a rebalance goes on"
    g.join(follower, "b")
    assert g.commit({0: 3}, follower, 1) == [ErrorCode.ILLEGAL_GENERATION]
    assert g.commit({0: 3}, follower, 2) == [ErrorCode.REBALANCE_IN_PROGRESS]
    assert g.fetch() == {("t", 0): (2, "")}


def test_a_commit_counts_as_a_heartbeat() -> None:
    g = Asking()
    _, follower = g.two_seats()
    g.pass_ms(SESSION_MS - 1)
    g.commit({0: 1}, follower, 1)
    g.pass_ms(SESSION_MS - 1)
    assert follower in g.group.members


def test_a_text_that_is_too_long_is_refused_for_its_partition_alone() -> None:
    g = Asking(offset_metadata_max_bytes=4)
    partitions = tuple(
        schema.OffsetCommitRequestPartition(n, n, -1, text) for n, text in enumerate(("long!", "fits", None))
    )
    topics = (schema.OffsetCommitRequestTopic("t", partitions),)
    (topic,) = g.answer(schema.OffsetCommitRequest("g", -1, "", None, topics), 8).topics
    assert topic.partitions == ((0, ErrorCode.OFFSET_METADATA_TOO_LARGE), (1, 0), (2, 0))
    assert g.fetch() == {("t", 1): (1, "fits"), ("t", 2): (2, "")}


# ------------------------------------------------------------------------------------------------------ fetches


def test_offsets_of_several_groups_are_fetched_at_once() -> None:
    g = Asking()
    g.commit({0: 7}, text="note")
    asked = (schema.OffsetFetchRequestTopics("t", (0, 1)),)
    groups = tuple(schema.OffsetFetchRequestGroupV9(name, None, -1, asked) for name in ("g", "none"))
    ours, none = g.answer(schema.OffsetFetchRequestV9(groups, True), 9).groups
    assert ours.topics == (("t", ((0, 7, 5, "note", 0), (1, -1, -1, "", 0))),)
    assert none.topics == (("t", ((0, -1, -1, "", 0), (1, -1, -1, "", 0))),)
    assert ours.error_code == none.error_code == ErrorCode.NONE


# ----------------------------------------------------------------------------------------------------- deletions


def test_offsets_are_deleted_but_not_those_of_subscribed_topics() -> None:
    """KIP-496."""
    g = Asking()
    g.commit({0: 1, 1: 2})
    assert deleted(g, 0, 9).topics == (("t", ((0, 0), (9, 0))),)
    assert g.fetch() == {("t", 1): (2, "")}
    for topic, error in (("t", ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC), ("other", ErrorCode.NONE)):
        g = subscribed_to(topic)
        (found,) = deleted(g, 0).topics
        assert found.partitions == ((0, error),)


def test_offsets_of_a_group_that_is_not_there_or_of_another_type_with_members_are_not_deleted() -> None:
    g = Asking()
    assert deleted(g, 0).error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert g.answer(schema.OffsetDeleteRequest("", ()), 0).error_code == ErrorCode.INVALID_GROUP_ID
    g.join(instance_id="a", protocol_type="connect")
    assert deleted(g, 0).error_code == ErrorCode.NON_EMPTY_GROUP


def test_a_group_without_members_is_deleted_with_its_offsets() -> None:
    g = Asking()
    g.two_seats()
    request = schema.DeleteGroupsRequest(("g", "none", "g"))
    assert g.answer(request, 2).results == (("g", ErrorCode.NON_EMPTY_GROUP), ("none", ErrorCode.GROUP_ID_NOT_FOUND))
    g.leave(("", "a"), ("", "b"))
    g.commit({0: 1, 1: 1})
    pending = g.answers[g.join()].member_id
    assert g.answer(schema.DeleteGroupsRequest(("g",)), 2).results == (("g", ErrorCode.NONE),)
    assert g.log[-3:-1] == [OffsetRemoved(group="g", topic="t", partition=n) for n in (0, 1)]
    assert g.log[-1] == GroupRemoved(group="g")
    assert g.fetch() == g.restarted().fetch() == {}
    assert g.state == g.restarted().state == "Dead"
    assert g.answers[g.join(pending)].error_code == ErrorCode.UNKNOWN_MEMBER_ID
    g.pass_ms(SESSION_MS)


def test_offsets_go_with_their_topic() -> None:
    g = Asking()
    g.commit({0: 1})
    g.delete_topics("other")
    assert g.fetch()
    g.delete_topics("t", "other")
    assert g.fetch() == g.restarted().fetch() == {}


# -------------------------------------------------------------------------------------------------------- expiry


def test_offsets_of_a_group_without_members_expire_after_its_last_member_left() -> None:
    """KIP-211."""
    g = subscribed_to("t")
    (member_id,) = g.group.members
    g.commit({0: 1}, member_id, 1)
    for _ in range(9 * 24 * 60 * 60 * 1_000 // SESSION_MS // 1_000):
        g.pass_ms(SESSION_MS - 1)
        g.commit({1: 1}, member_id, 1)
    g.leave((member_id, "a"))
    g.pass_ms(7 * DAY_MS - 1)
    assert len(g.fetch()) == 2
    g.pass_ms(CHECK_MS)
    assert g.fetch() == {}
    assert g.state == "Dead"
    assert isinstance(g.log[-1], GroupRemoved)


def test_offsets_of_a_group_that_never_had_members_expire_after_their_commit() -> None:
    g = Asking()
    g.commit({0: 1})
    g.pass_ms(DAY_MS)
    g.commit({1: 1})
    g.pass_ms(6 * DAY_MS + CHECK_MS)
    assert list(g.fetch()) == [("t", 1)]
    assert g.state == "Empty"


def test_offsets_of_topics_that_members_do_not_subscribe_to_expire() -> None:
    """KIP-211, for a group of consumers that is STABLE. Those of subscribed topics stay."""
    for topic, left in (("t", 1), ("other", 0)):
        g = Asking(offsets_retention_minutes=1, offsets_retention_check_interval_ms=1_000)
        g.join(instance_id="a", protocols=(("range", encode_subscription(Subscription(topics=(topic,)))),))
        g.pass_ms(3_000)
        (member_id,) = g.group.members
        g.sync(member_id, 1, instance_id="a")
        g.commit({0: 1}, member_id, 1)
        for _ in range(70):
            g.pass_ms(1_000)
            g.beat(member_id, 1, "a")
        assert len(g.fetch()) == left, topic


def test_a_group_whose_clients_never_came_back_is_removed() -> None:
    g = Asking()
    g.answers[g.join()]
    g.pass_ms(CHECK_MS + SESSION_MS)
    assert g.state == "Dead"
    assert g.restarted().state == "Dead"


# ------------------------------------------------------------------------------------------------------ listings


def test_groups_are_described_with_the_bytes_that_count() -> None:
    g = Asking()
    leader, follower = g.two_seats()
    request = schema.DescribeGroupsRequest(("g", "none"), False)
    ours, none = g.answer(request, 5).groups
    assert ours[:5] == (0, "g", "Stable", "consumer", "range")
    assert [tuple(m) for m in ours.members] == [
        (leader, "a", "me", "/127.0.0.1", b"of range", b"of a"),
        (follower, "b", "me", "/127.0.0.1", b"of range", b"of b"),
    ]
    assert none[:6] == (0, "none", "Dead", "", "", ())
    g.join(leader, "a")
    (ours, _) = g.answer(request, 5).groups
    assert (ours.group_state, ours.protocol_data) == ("PreparingRebalance", "")
    assert [m.member_metadata for m in ours.members] == [b"", b""]


@pytest.mark.parametrize(
    ("states", "types", "found"),
    [
        ((), (), {"g", "simple"}),
        (("stable",), (), {"g"}),
        (("EMPTY", "Dead"), ("Classic",), {"simple"}),
        ((), ("consumer",), set()),
        (("unheard-of",), (), set()),
    ],
)
def test_groups_are_listed_by_state_and_type(states: tuple[str, ...], types: tuple[str, ...], found: set[str]) -> None:
    g = Asking()
    g.two_seats()
    g.ask(schema.OffsetCommitRequest("simple", -1, "", None, ()), 8)
    listed = g.answer(schema.ListGroupsRequest(states, types), 5).groups
    assert {each.group_id for each in listed} == found
    assert {each.protocol_type for each in listed} <= {"consumer", ""}


# ------------------------------------------------------------------------------------------------------- records


def test_the_records_are_what_kafka_would_keep() -> None:
    g = Asking()
    leader, _ = g.two_seats()
    g.commit({0: 7}, leader, 1, "note")
    made, settled, committed = g.log
    assert isinstance(made, GroupMetadata)
    assert (made.generation, made.protocol_type, made.members) == (0, "", ())
    assert isinstance(settled, GroupMetadata)
    assert (settled.generation, settled.protocol, settled.leader) == (1, "range", leader)
    assert [(m.instance_id, m.metadata, m.assignment) for m in settled.members] == [
        ("a", b"of range", b"of a"),
        ("b", b"of range", b"of b"),
    ]
    assert committed == OffsetCommitted(
        group="g", topic="t", partition=0, offset=7, leader_epoch=5, metadata="note", committed_at_ms=g.now_ms
    )


def test_a_request_of_another_kind_is_a_bug_of_the_caller() -> None:
    with pytest.raises(TypeError, match="MetadataRequest"):
        Asking().ask(schema.MetadataRequest(None, False, False), 12)
