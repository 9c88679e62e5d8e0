"""Each test paraphrases a sentence of KIP-429 or one of Kafka's tests, named in it.

CST is CooperativeStickyAssignorTest, AST is AbstractStickyAssignorTest (clients/src/test in Kafka).
"""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from spark_kgroup.assignors import assignor
from spark_kgroup.assignors.contract import RebalanceProtocol
from spark_kgroup.assignors.cooperative_sticky import claimed_generation
from spark_kgroup.model import GroupMember, Subscription, TopicDescription, TopicPartition

STICKY = assignor("cooperative-sticky")


def parts(text: str) -> frozenset[TopicPartition]:
    """Partitions out of "t-0 t-1"."""
    pairs = (word.rsplit("-", 1) for word in text.split())
    return frozenset(TopicPartition(topic, int(index)) for topic, index in pairs)


def member(
    member_id: str, topics: str, owned: str = "", generation: int = 1, instance_id: str | None = None
) -> GroupMember:
    subscription = Subscription(topics=tuple(topics.split()), owned=parts(owned), generation=generation)
    return GroupMember(member_id=member_id, instance_id=instance_id, subscription=subscription)


def described(**counts: int) -> dict[str, TopicDescription]:
    return {name: TopicDescription(name=name, topic_id=None, partition_count=n) for name, n in counts.items()}


def shares(members: list[GroupMember], **counts: int) -> dict[str, frozenset[TopicPartition]]:
    return dict(STICKY.assign(members, described(**counts)))


def next_round(members: list[GroupMember], assignment: dict[str, frozenset[TopicPartition]]) -> list[GroupMember]:
    """The members as they rejoin: they gave up the partitions that they lost and claim their new shares."""
    return [
        replace(
            m,
            subscription=replace(
                m.subscription, owned=assignment[m.member_id], generation=m.subscription.generation + 1
            ),
        )
        for m in members
    ]


# A member's user data


def test_user_data_is_the_generation_as_int32() -> None:
    # CST.testEncodeAndDecodeGeneration
    assert STICKY.protocol is RebalanceProtocol.COOPERATIVE
    assert STICKY.user_data(parts("t-0"), -1) == b"\xff\xff\xff\xff"
    assert STICKY.user_data(parts("t-0"), 10) == b"\x00\x00\x00\x0a"


@pytest.mark.parametrize(
    ("field", "user_data", "generation"),
    [
        (-1, None, -1),  # CST.testDecodeGeneration
        (-1, b"\x00\x00\x00\x0a", 10),  # CST.testMemberDataWithInconsistentData: only the user data knows
        (12, b"\x00\x00\x00\x0a", 12),  # CST.testMemberDataWithEmptyPartitionsAndHigherGeneration
        (-1, b"", -1),  # kafka-python
        (-1, b"\x00\x00\x00\x01\x00\x01t\x00\x00\x00\x00\x00\x00\x00\x05", -1),  # librdkafka: topics first
    ],
)
def test_the_generation_is_in_the_subscription_or_else_in_the_user_data(
    field: int, user_data: bytes | None, generation: int
) -> None:
    assert claimed_generation(Subscription(topics=(), generation=field, user_data=user_data)) == generation


# Whose claim counts


def test_two_claims_in_one_generation_cancel_each_other() -> None:
    # CST.testAllConsumersHaveOwnedPartitionInvalidatedWhenClaimedByMultipleConsumersInSameGeneration...:
    # the partition counts as owned, so no member gets it until both have revoked it
    members = [member("c1", "t", "t-0 t-1"), member("c2", "t", "t-0 t-2"), member("c3", "t")]
    first = shares(members, t=3)
    assert first == {"c1": parts("t-1"), "c2": parts("t-2"), "c3": parts("")}
    assert shares(next_round(members, first), t=3)["c3"] == parts("t-0")


def test_three_claims_are_judged_by_generation_alone_in_any_order() -> None:
    # AST.testSubscriptionNotEqualAndAssignSamePartitionWith3Generation. Java's outcome depends on the order
    claims = [member("c1", "t", "t-0", 5), member("c2", "t", "t-0", 5), member("c3", "t", "t-0", 6)]
    for members in itertools.permutations(claims):
        assert shares(list(members), t=3)["c3"] == parts("t-0")


def test_the_claim_of_the_highest_generation_wins() -> None:
    # AST.testEnsurePartitionsAssignedToHighestGeneration
    members = [
        member("c1", "a b c", "a-0 b-0 c-0", 10),
        member("c2", "a b c", "a-1 b-1 c-1", 9),
        member("c3", "a b c", "b-1 c-0 c-2", 8),
    ]
    assert shares(members, a=3, b=3, c=3) == {
        "c1": parts("a-0 b-0 c-0"),
        "c2": parts("a-1 b-1 c-1"),
        "c3": parts("a-2 b-2 c-2"),
    }


@pytest.mark.parametrize("stale", [9, -1])
def test_the_claims_of_a_stale_member_do_not_count_against_newer_ones(stale: int) -> None:
    # AST.testOwnedPartitionsAreInvalidatedForConsumerWithStaleGeneration, ...WithNoGeneration
    members = [member("c1", "a b", "a-0 a-2 b-1", 10), member("c2", "a b", "a-0 a-2 b-1", stale)]
    assert shares(members, a=3, b=3) == {"c1": parts("a-0 a-2 b-1"), "c2": parts("a-1 b-0 b-2")}


def test_lone_claims_count_in_any_generation() -> None:
    # AST.testNoReassignmentOnCurrentMembers
    members = [
        member("c1", "a b c d", "", -1),
        member("c2", "a b c d", "a-0 c-0 b-0", 9),
        member("c3", "a b c d", "d-2 c-2 b-1", 8),
        member("c4", "a b c d", "d-1 a-1 a-2", 7),
    ]
    assert shares(members, a=3, b=3, c=3, d=3)["c1"] == parts("b-2 c-1 d-0")


def test_members_of_old_versions_keep_their_partitions() -> None:
    # CST.testAssignorWithOldVersionSubscriptions
    old = [
        GroupMember(
            member_id=f"c{k}",
            instance_id=None,
            subscription=Subscription(
                topics=("t",), owned=parts(f"t-{k}"), user_data=STICKY.user_data(frozenset(), 7 + k)
            ),
        )
        for k in range(2)
    ]
    assert shares([*old, member("c2", "t", "", 7)], t=3) == {f"c{k}": parts(f"t-{k}") for k in range(3)}
    # and their generation counts where claims collide
    both = [replace(m, subscription=replace(m.subscription, owned=parts("t-0 t-1"))) for m in old]
    assert shares(both, t=2) == {"c0": parts(""), "c1": parts("t-0")}


# Equal subscriptions


def test_a_first_assignment_is_dealt_round_robin() -> None:
    # AST.testAddRemoveTwoConsumersTwoTopics
    members = [member("c1", "a b"), member("c2", "a b")]
    first = shares(members, a=3, b=4)
    assert first == {"c1": parts("a-0 a-2 b-1 b-3"), "c2": parts("a-1 b-0 b-2")}
    # add two
    members = [*next_round(members, first), member("c3", "a b"), member("c4", "a b")]
    second = shares(members, a=3, b=4)
    assert second == {"c1": parts("a-0 b-1"), "c2": parts("b-0 a-1"), "c3": parts(""), "c4": parts("")}
    members = next_round(members, second)
    third = shares(members, a=3, b=4)
    assert third == second | {"c3": parts("a-2 b-3"), "c4": parts("b-2")}
    # remove the first two
    fourth = shares(next_round(members, third)[2:], a=3, b=4)
    assert fourth == {"c3": parts("a-2 b-3 a-0 b-1"), "c4": parts("b-2 a-1 b-0")}


def test_a_member_that_owns_its_quota_gets_the_odd_partition() -> None:
    # AST.testConsumerOwningMinQuotaExpectedMaxQuota
    members = [member("c1", "a b", "a-0 b-1"), member("c2", "a b", "a-1 b-2")]
    assert shares(members, a=2, b=3) == {"c1": parts("a-0 b-1 b-0"), "c2": parts("a-1 b-2")}


def test_a_partition_that_must_move_waits_for_its_owner() -> None:
    # KIP-429: a partition is not given to its new owner in the round in which the old one is told to revoke it.
    # AST.testMaxQuotaConsumerMoreThanNumExpectedMaxCapacityMembers (Java keeps the same two of four)
    members = [member("c1", "a b", "a-0 b-0"), member("c2", "a b", "a-1 b-1"), member("c3", "a b")]
    first = shares(members, a=2, b=2)
    assert sorted(len(share) for share in first.values()) == [0, 1, 2]
    assert first["c3"] == parts("")
    # asked again before the owner gave its partition up, the answer is the same
    assert shares(members, a=2, b=2) == first
    second = shares(next_round(members, first), a=2, b=2)
    assert sorted(len(share) for share in second.values()) == [1, 1, 2]
    assert all(first[who] <= second[who] for who in first)


def test_members_below_the_quota_are_filled_up() -> None:
    # AST.testAllConsumersAreUnderMinQuota
    members = [member("c1", "a b", "a-0"), member("c2", "a b", "a-1"), member("c3", "a b")]
    assert shares(members, a=2, b=3) == {"c1": parts("a-0 b-1"), "c2": parts("a-1 b-2"), "c3": parts("b-0")}


def test_every_topic_stays_spread_when_members_come() -> None:
    # AST.testTopicBalanceAfterReassignment
    members = [member("c1", "a b", " ".join(f"{t}-{k}" for t in "ab" for k in range(12)))]
    for newcomers, share_of_a_topic in ((["c2"], 6), (["c3", "c4"], 3)):
        members += [member(name, "a b") for name in newcomers]
        for _ in range(2):
            members = next_round(members, shares(members, a=12, b=12))
        for m in members:
            topics = [partition.topic for partition in m.subscription.owned]
            assert (topics.count("a"), topics.count("b")) == (share_of_a_topic, share_of_a_topic)


def test_new_partitions_move_no_other_partition() -> None:
    members = [member("c1", "t", "t-0 t-2 t-4"), member("c2", "t", "t-1 t-3")]
    assert shares(members, t=8) == {"c1": parts("t-0 t-2 t-4 t-5"), "c2": parts("t-1 t-3 t-6 t-7")}


def test_partitions_and_topics_that_are_gone_are_dropped() -> None:
    # AST.testAssignmentUpdatedForDeletedTopic, testNoExceptionThrownWhenOnlySubscribedTopicDeleted
    members = [member("c1", "t gone", "gone-0 t-0 t-9"), member("c2", "gone", "gone-1")]
    assert shares(members, t=1) == {"c1": parts("t-0"), "c2": parts("")}
    assert shares([member("c1", "gone", "gone-0")]) == {"c1": parts("")}
    assert shares([], t=1) == {}


# Unequal subscriptions


def test_unequal_subscriptions_are_balanced_as_far_as_they_allow() -> None:
    # AST.testPoorRoundRobinAssignmentScenario
    everything, some = "t1 t2 t3 t4 t5", "t1 t3 t5"
    members = [member("c1", everything), member("c2", some), member("c3", some), member("c4", everything)]
    assert [len(share) for share in shares(members, t1=2, t2=1, t3=2, t4=1, t5=2).values()] == [2, 2, 2, 2]


def test_a_chain_of_moves_is_found() -> None:
    # AST.testMoveExistingAssignments: balance needs partitions to move along c3 -> c2 -> c1
    members = [
        member("c1", "t1 t2", "t1-0"),
        member("c2", "t1 t2 t3 t4", "t2-0 t3-0"),
        member("c3", "t2 t3 t4 t5 t6", "t4-0 t5-0 t6-0"),
    ]
    counts = {f"t{k}": 1 for k in range(1, 7)}
    first = shares(members, **counts)
    assert first == {"c1": parts("t1-0"), "c2": parts("t3-0"), "c3": parts("t5-0 t6-0")}
    second = shares(next_round(members, first), **counts)
    assert second == {"c1": parts("t1-0 t2-0"), "c2": parts("t3-0 t4-0"), "c3": parts("t5-0 t6-0")}


def test_a_free_partition_goes_where_no_other_partition_must_move() -> None:
    # both claims can stay, since a-0 and b-1 fit around them, but handing out one by one does not see it
    members = [member("c0", "b c", "b-0 c-0"), member("c1", "a b c"), member("c2", "a c")]
    assert shares(members, a=1, b=2, c=1) == {"c0": parts("b-0 c-0"), "c1": parts("b-1"), "c2": parts("a-0")}


def test_one_move_is_preferred_to_two() -> None:
    members = [member("c0", "b d", "b-0"), member("c1", "b c d", "c-0"), member("c2", "c")]
    first = shares(members, b=1, c=1, d=1)
    assert first == {"c0": parts("b-0"), "c1": parts("d-0"), "c2": parts("")}
    assert shares(next_round(members, first), b=1, c=1, d=1)["c2"] == parts("c-0")


def test_a_member_that_unsubscribes_gives_up_before_other_members_get() -> None:
    # the partition has a claimant that no longer wants it: it moves in the round after
    members = [member("c1", "a", "a-0 b-0"), member("c2", "a b", "a-1")]
    first = shares(members, a=2, b=1)
    assert first == {"c1": parts("a-0"), "c2": parts("a-1")}
    assert shares(next_round(members, first), a=2, b=1) == {"c1": parts("a-0"), "c2": parts("a-1 b-0")}
