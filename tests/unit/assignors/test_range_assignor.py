"""Each test paraphrases one of Kafka's RangeAssignorTest (named in it). The property asks kafka-python."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random

from hypothesis import given
from hypothesis import strategies as st
from kafka.coordinator.assignors.range import RangePartitionAssignor
from kafka.protocol.consumer.group import JoinGroupResponse
from kafka.protocol.consumer.metadata import ConsumerProtocolSubscription

from spark_kgroup.assignors import assignor
from spark_kgroup.assignors.contract import RebalanceProtocol, ranked
from spark_kgroup.model import GroupMember, Subscription, TopicDescription, TopicPartition

RANGE = assignor("range")


def member(member_id: str, *topics: str, instance_id: str | None = None) -> GroupMember:
    return GroupMember(member_id=member_id, instance_id=instance_id, subscription=Subscription(topics=topics))


def described(**counts: int) -> dict[str, TopicDescription]:
    return {name: TopicDescription(name=name, topic_id=None, partition_count=n) for name, n in counts.items()}


def shares(members: list[GroupMember], **counts: int) -> dict[str, list[str]]:
    assignment = RANGE.assign(members, described(**counts))
    return {member_id: [str(partition) for partition in sorted(share)] for member_id, share in assignment.items()}


def test_the_range_assignor_is_eager_and_sends_no_user_data() -> None:
    assert (RANGE.name, RANGE.protocol, RANGE.user_data(frozenset(), 3)) == ("range", RebalanceProtocol.EAGER, None)


def test_members_without_partitions_are_in_the_assignment() -> None:
    # testOneConsumerNoTopic, testOneConsumerNonexistentTopic
    assert shares([member("c1"), member("c2", "gone")], t=2) == {"c1": [], "c2": []}
    assert shares([]) == {}


def test_only_subscribed_topics_are_assigned() -> None:
    # testOnlyAssignsPartitionsFromSubscribedTopics
    assert shares([member("c1", "t")], t=3, other=3) == {"c1": ["t-0", "t-1", "t-2"]}


def test_the_first_members_get_one_more_of_each_topic() -> None:
    # RangeAssignor's own example: two members, two topics of three partitions
    assert shares([member("c1", "t0", "t1"), member("c0", "t0", "t1")], t0=3, t1=3) == {
        "c0": ["t0-0", "t0-1", "t1-0", "t1-1"],
        "c1": ["t0-2", "t1-2"],
    }


def test_each_topic_is_spread_over_its_own_subscribers() -> None:
    # testMultipleConsumersMixedTopics
    members = [member("c1", "t1"), member("c2", "t1", "t2"), member("c3", "t1")]
    assert shares(members, t1=3, t2=2) == {"c1": ["t1-0"], "c2": ["t1-1", "t2-0", "t2-1"], "c3": ["t1-2"]}


def test_static_members_come_before_dynamic_ones() -> None:
    # testOneStaticConsumerAndOneDynamicConsumerTwoTopicsSixPartitions
    members = [member("a", "t"), member("z", "t", instance_id="i")]
    assert shares(members, t=3) == {"z": ["t-0", "t-1"], "a": ["t-2"]}


def test_topics_with_equal_counts_and_subscribers_stay_aligned() -> None:
    # testCoPartitionedAssignmentWithSameSubscription
    members = [member(f"c{k}", "a", "b") for k in range(3)]
    for share in RANGE.assign(members, described(a=5, b=5)).values():
        assert {tp.partition for tp in share if tp.topic == "a"} == {tp.partition for tp in share if tp.topic == "b"}


TOPICS = ("a", "b", "c")


Group = tuple[list[GroupMember], dict[str, TopicDescription]]


@st.composite
def groups(draw: st.DrawFn) -> Group:
    subscriptions = draw(st.lists(st.tuples(st.booleans(), st.sets(st.sampled_from(TOPICS))), min_size=1, max_size=7))
    names = draw(st.permutations(range(len(subscriptions))))
    members = [
        member(f"m{index}", *sorted(topics), instance_id=f"i{9 - index}" if static else None)
        for index, (static, topics) in zip(names, subscriptions, strict=True)
    ]
    known = draw(st.dictionaries(st.sampled_from(TOPICS), st.integers(1, 12)))
    return members, described(**known)


class KnownTopics:
    """The part of cluster metadata that kafka-python's assignors ask for."""

    def __init__(self, topics: Mapping[str, TopicDescription]) -> None:
        self._topics = topics

    def partitions_for_topic(self, name: str) -> set[int] | None:
        return set(range(self._topics[name].partition_count)) if name in self._topics else None


@given(groups())
def test_kafka_python_agrees(group: Group) -> None:
    members, topics = group
    answer = RangePartitionAssignor.assign(
        KnownTopics(topics),
        [
            JoinGroupResponse.JoinGroupResponseMember(
                version=5,
                member_id=m.member_id,
                group_instance_id=m.instance_id,
                metadata=ConsumerProtocolSubscription(0, list(m.subscription.topics), b""),
            )
            for m in ranked(members)  # kafka-python wants static members listed together
        ],
    )
    theirs = {
        member_id: frozenset(TopicPartition(topic, index) for topic, indexes in share.assignment for index in indexes)
        for member_id, share in answer.items()
    }
    assert RANGE.assign(members, topics) == theirs


@given(groups(), st.randoms())
def test_the_order_of_members_does_not_matter(group: Group, random: Random) -> None:
    members, topics = group
    before = RANGE.assign(members, topics)
    random.shuffle(members)
    assert RANGE.assign(members, topics) == before
