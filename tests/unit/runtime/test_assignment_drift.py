"""Drifts of a group's assignment: tables of members' topics and partitions, and of the partitions there are."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import pytest
from harness.custom_assignors import FirstTakesAll

from spark_kgroup.assignors.custom import load_assignor
from spark_kgroup.model import DescribedGroup, DescribedMember, Subscription, TopicDescription, TopicPartition
from spark_kgroup.runtime.assignment_drift import AssignmentDrift, find_drift, find_unshared, left_out_by, topics_of

STICKY = "cooperative-sticky"


def tps(text: str) -> frozenset[TopicPartition]:
    """`t0 u12` -> partitions 0 of t, and 1 and 2 of u."""
    return frozenset(TopicPartition(part[0], int(index)) for part in text.split() for index in part[1:])


def topics(**counts: int) -> dict[str, TopicDescription]:
    return {n: TopicDescription(name=n, topic_id=None, partition_count=count) for n, count in counts.items()}


def member(name: str, subscribed: str | None, has: str = "", claims: str = "") -> DescribedMember:
    """`subscribed` has a letter for each topic, or is None for a subscription that cannot be decoded."""
    subscription = None if subscribed is None else Subscription(topics=tuple(subscribed), owned=tps(claims))
    return DescribedMember(
        member_id=f"{name}-1",
        instance_id=name,
        client_id="",
        client_host="",
        assignment=tps(has),
        subscription=subscription,
    )


def group(*members: DescribedMember, protocol: str = STICKY) -> DescribedGroup:
    return DescribedGroup(group="g", state="Stable", protocol=protocol, members=members)


@pytest.mark.parametrize(
    ("members", "there", "found"),
    [
        pytest.param([member("a", "t", "t012")], {"t": 3}, AssignmentDrift(), id="all fits"),
        pytest.param(
            [member("a", "t", "t01")], {"t": 3}, AssignmentDrift(without_owner=tps("t2")), id="a partition was added"
        ),
        pytest.param(
            [member("a", "t", "t01"), member("b", "u")],
            {"t": 2, "u": 1},
            AssignmentDrift(without_owner=tps("u0")),
            id="nobody has what another member subscribes",
        ),
        pytest.param([member("a", "t", "t0", "t01")], {"t": 2}, AssignmentDrift(), id="withheld, and claimed"),
        pytest.param(
            [member("a", "t", "t012")], {"t": 2}, AssignmentDrift(gone=tps("t2")), id="a topic was made anew, smaller"
        ),
        pytest.param([member("a", "tu", "t0 u0")], {"t": 1}, AssignmentDrift(gone=tps("u0")), id="a topic was deleted"),
        pytest.param([member("a", "th", "t0 h0")], {"t": 1}, AssignmentDrift(), id="a topic cannot be seen"),
        pytest.param(
            [member("a", "t", "t0 u0"), member("b", "u", "u1")],
            {"t": 1, "u": 2},
            AssignmentDrift(not_subscribed=tps("u0")),
            id="a member has left a topic",
        ),
        pytest.param(
            [member("ours", "t", "t0 u0")], {"t": 1, "u": 1}, AssignmentDrift(), id="... and gives it up itself"
        ),
        pytest.param([member("a", None, "t0")], {"t": 1}, AssignmentDrift(), id="a subscription cannot be read"),
        pytest.param([member("a", "tx", "t0")], {"t": 1}, AssignmentDrift(), id="a subscribed topic does not exist"),
        pytest.param(
            [member("a", "t"), member("b", "t", "t0")], {"t": 1}, AssignmentDrift(), id="a member has nothing"
        ),
        pytest.param([], {}, AssignmentDrift(), id="no members"),
    ],
)
def test_the_assignment_of_a_group_at_rest_fits_or_not(
    members: list[DescribedMember], there: Mapping[str, int], found: AssignmentDrift
) -> None:
    assert find_drift(group(*members), topics(**there), hidden={"h"}, ours={"ours-1"}) == found


def test_topics_to_look_up_are_those_that_are_subscribed_or_assigned() -> None:
    assert topics_of(group(member("a", "tu", "t0 v0"), member("b", None, "w0"))) == set("tuvw")


@pytest.mark.parametrize(
    ("protocol", "members", "there", "found"),
    [
        pytest.param(STICKY, [member("a", "tu", "t0"), member("b", "u", "u012")], {"t": 1, "u": 3}, "u", id="sticky"),
        pytest.param(STICKY, [member("a", "tu", "t01"), member("b", "u", "u01")], {"t": 2, "u": 2}, "", id="balanced"),
        pytest.param(STICKY, [member("a", "t", "t0"), member("b", "t", "t12")], {"t": 3}, "", id="all have one"),
        pytest.param("range", [member("a", "tu", "t0"), member("b", "u", "u01")], {"t": 1, "u": 2}, "u", id="range"),
        pytest.param("range", [member("a", "t", "t0"), member("b", "t")], {"t": 1}, "", id="range has none for it"),
        pytest.param("range", [member("a", "tx", "t0")], {"t": 1}, "", id="a topic that does not exist"),
        pytest.param("theirs", [member("a", "t"), member("b", "t", "t01")], {"t": 2}, "", id="an unknown assignor"),
    ],
)
def test_a_member_lacks_a_share_if_its_group_s_assignor_says_so(
    protocol: str, members: list[DescribedMember], there: Mapping[str, int], found: Iterable[str]
) -> None:
    assert find_unshared(group(*members, protocol=protocol), topics(**there)) == set(found)


def test_a_drift_says_all_that_does_not_fit() -> None:
    drift = AssignmentDrift(
        without_owner=tps("t01"), gone=tps("u0"), not_subscribed=tps("v0"), unshared=frozenset("wx")
    )
    assert drift.reason == (
        "2 partitions without an owner; 1 partitions that are gone; 1 partitions assigned to members that do not "
        "subscribe to them; subscribed without a share: w, x"
    )


@pytest.mark.parametrize("more", ["without_owner", "gone", "not_subscribed", "unshared"])
def test_a_drift_is_part_of_another_that_has_all_of_it(more: str) -> None:
    whole = AssignmentDrift(without_owner=tps("t0"), gone=tps("t0"), not_subscribed=tps("t0"), unshared=frozenset("t"))
    part = AssignmentDrift(**{more: getattr(whole, more)})
    assert part
    assert part <= whole
    assert not whole <= part
    assert not part <= AssignmentDrift()


def test_ten_thousand_partitions_of_a_thousand_members_are_compared() -> None:
    share = {f"m{k}": frozenset(TopicPartition("t", 10 * k + n) for n in range(10)) for k in range(1_000)}
    members = [
        DescribedMember(
            member_id=name,
            instance_id=name,
            client_id="",
            client_host="",
            assignment=owned,
            subscription=Subscription(topics=("t",)),
        )
        for name, owned in share.items()
    ]
    assert find_drift(group(*members), topics(t=10_000)) == AssignmentDrift()
    assert len(find_drift(group(*members), topics(t=10_003)).without_owner) == 3
    assert find_unshared(group(*members), topics(t=10_000)) == set()


def test_members_that_swapped_their_racks_lack_no_share_until_the_next_rebalance() -> None:
    """Kafka's leader compares the racks of replicas with those it knew (ConsumerCoordinator.MetadataSnapshot), and
    never those of members."""

    def at(rack: str, who: DescribedMember) -> DescribedMember:
        assert who.subscription is not None
        return replace(who, subscription=replace(who.subscription, rack=rack))

    there = {
        name: replace(topic, racks={0: frozenset({rack})})
        for (name, topic), rack in zip(topics(t=1, u=1).items(), ("r1", "r2"), strict=True)
    }
    swapped = group(at("r2", member("a", "tu", "t0")), at("r1", member("b", "tu", "u0")))
    assert find_unshared(swapped, there) == set()


def test_a_custom_assignor_names_the_partitions_it_leaves_out() -> None:
    class AllButTheFirst(FirstTakesAll):
        def assign(self, *given: Any) -> Any:
            return {who: {tp for tp in share if tp.partition} for who, share in super().assign(*given).items()}

    resting = group(member("a", "t", "t1"))
    assert left_out_by(AllButTheFirst(), resting, topics(t=3)) == tps("t0")


def test_a_custom_assignor_that_fails_forces_no_rebalance() -> None:
    failing = load_assignor("harness.custom_assignors:Raising")
    assert left_out_by(failing, group(member("a", "t", "t1")), topics(t=3)) == tps("t012")
