"""Each test paraphrases one of Kafka's RoundRobinAssignorTest (named in it)."""

from __future__ import annotations

from itertools import cycle
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from spark_kgroup.assignors import assignor
from spark_kgroup.assignors.contract import RebalanceProtocol, ranked
from spark_kgroup.model import GroupMember, TopicPartition

from .test_range_assignor import Group, described, groups, member

ROUND = assignor("roundrobin")


def shares(members: list[GroupMember], **counts: int) -> dict[str, list[str]]:
    assignment = ROUND.assign(members, described(**counts))
    return {member_id: [str(partition) for partition in sorted(share)] for member_id, share in assignment.items()}


def test_the_roundrobin_assignor_is_eager_and_sends_no_user_data() -> None:
    assert (ROUND.name, ROUND.protocol) == ("roundrobin", RebalanceProtocol.EAGER)
    assert ROUND.user_data(frozenset(), 3) is None


def test_members_without_partitions_are_in_the_assignment() -> None:
    # testOneConsumerNoTopic, testOneConsumerNonexistentTopic
    assert shares([member("c1"), member("c2", "gone")], t=2) == {"c1": [], "c2": []}
    assert shares([], t=2) == {}


def test_the_round_goes_on_from_topic_to_topic() -> None:
    # testTwoConsumersTwoTopicsSixPartitions
    assert shares([member("c0", "t0", "t1"), member("c1", "t0", "t1")], t0=3, t1=3) == {
        "c0": ["t0-0", "t0-2", "t1-1"],
        "c1": ["t0-1", "t1-0", "t1-2"],
    }


def test_a_member_that_does_not_want_a_topic_is_passed_over() -> None:
    # RoundRobinAssignor's own example of unequal subscriptions
    members = [member("c0", "t0"), member("c1", "t0", "t1"), member("c2", "t0", "t1", "t2")]
    assert shares(members, t0=1, t1=2, t2=3) == {
        "c0": ["t0-0"],
        "c1": ["t1-0"],
        "c2": ["t1-1", "t2-0", "t2-1", "t2-2"],
    }


def test_static_members_come_before_dynamic_ones() -> None:
    # testOneStaticConsumerAndOneDynamicConsumerTwoTopicsSixPartitions
    assert shares([member("a", "t"), member("z", "t", instance_id="i")], t=3) == {"z": ["t-0", "t-2"], "a": ["t-1"]}


@given(groups())
def test_the_round_is_the_one_of_javas_circular_iterator(group: Group) -> None:
    members, topics = group
    dealt: dict[str, set[TopicPartition]] = {m.member_id: set() for m in members}
    round_of = cycle(ranked(members))
    wanted = {name for m in members for name in m.subscription.topics}
    for name in sorted(wanted & topics.keys()):
        for partition in topics[name].partitions:
            dealt[next(m for m in round_of if name in m.subscription.topics).member_id].add(partition)
    assert ROUND.assign(members, topics) == dealt


@given(groups(), st.randoms())
def test_the_order_of_members_does_not_matter(group: Group, random: Random) -> None:
    members, topics = group
    before = ROUND.assign(members, topics)
    random.shuffle(members)
    assert ROUND.assign(members, topics) == before
