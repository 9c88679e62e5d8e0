"""`kgroup assign --group`: the partitions that a change to a group would move, planned from the group's description."""

from typing import Any

import pytest
from typer.testing import CliRunner

from spark_kgroup.admin.cli import app
from spark_kgroup.admin.group_plan import Change, GroupPlan, check_plannable, plan_change, write_tables
from spark_kgroup.errors import GroupError, OptionError
from spark_kgroup.model import DescribedGroup, DescribedMember, Subscription, TopicDescription, TopicPartition

T = [TopicPartition("t", index) for index in range(20)]


def member(name: str, *indexes: int, static: bool = True) -> DescribedMember:
    return DescribedMember(
        member_id=f"{name}-id",
        instance_id=name if static else None,
        client_id="",
        client_host="",
        assignment=frozenset(T[index] for index in indexes),
        subscription=Subscription(topics=("t",)),
    )


def group(*members: DescribedMember, **more: Any) -> DescribedGroup:
    common = {"group": "g", "state": "Stable", "protocol": "cooperative-sticky", "members": members}
    return DescribedGroup(**common | more)


def planned(change: Change, **more: Any) -> GroupPlan:
    """The plan of a change to three members with two partitions each."""
    topics = {"t": TopicDescription(name="t", topic_id=None, partition_count=6)}
    return plan_change(group(member("a", 0, 1), member("b", 2, 3), member("c", 4, 5), **more), topics, change)


def test_a_group_that_does_not_change_moves_no_partition() -> None:
    assert planned(Change()).partitions == {}


def test_members_that_join_get_their_share_in_the_second_round() -> None:
    found = planned(Change(joining=3))
    assert {len(target) for target in found.plan.target.values()} == {1}
    assert found.partitions == {T[1]: ("a", "new-1", 2), T[3]: ("b", "new-2", 2), T[5]: ("c", "new-3", 2)}


def test_partitions_of_a_member_that_leaves_are_shared_in_the_first_round() -> None:
    found = planned(Change(leaving=["b"]))
    assert found.partitions == {T[2]: ("b", "a", 1), T[3]: ("b", "c", 1)}
    assert found.plan.moved == []


def test_partitions_that_are_added_go_to_those_who_have_least() -> None:
    found = planned(Change(more_partitions={"t": 3}))
    assert found.partitions == {T[6]: (None, "a", 1), T[7]: (None, "b", 1), T[8]: (None, "c", 1)}


def test_another_assignor_may_be_tried() -> None:
    found = planned(Change(joining=3, assignor="range"))
    assert found.partitions.keys() == set(T[1:6])
    assert {number for _, _, number in found.partitions.values()} == {1}


def test_names_of_members_that_join_are_not_those_of_present_members() -> None:
    found = plan_change(group(member("new-1", static=False), member("new-2")), {}, Change(joining=2))
    assert list(found.plan.target) == ["new-2", "new-1", "new-1-id", "new-3"]


@pytest.mark.parametrize(
    ("change", "more", "words"),
    [
        (Change(leaving=["d"]), {}, "--leave 'd' is no member: name one of a, b, c"),
        (Change(more_partitions={"u": 1}), {}, "no member subscribes to an existing topic 'u'"),
        (Change(assignor="fair"), {}, "Unknown assignor 'fair'"),
        (Change(), {"protocol": "fair"}, "'fair' is not known here: name one that is like it with --assignor"),
    ],
)
def test_a_change_of_a_member_or_topic_that_is_not_there_is_refused(
    change: Change, more: dict[str, str], words: str
) -> None:
    with pytest.raises(OptionError, match=words):
        planned(change, **more)


@pytest.mark.parametrize(
    ("described", "words"),
    [
        (group(state="Dead"), "There is no group 'g'"),
        (group(state="Empty"), "Start a member first"),
        (group(state="PreparingRebalance"), "Try again when it is Stable"),
        (group(group_type="consumer"), "KIP-848"),
    ],
)
def test_a_group_whose_leader_cannot_be_asked_is_refused(described: DescribedGroup, words: str) -> None:
    with pytest.raises(GroupError, match=words):
        check_plannable(described)


def test_the_tables_show_each_members_load_and_each_partition_that_changes_hands(
    capsys: pytest.CaptureFixture[str],
) -> None:
    write_tables(planned(Change(joining=1, leaving=["c"], more_partitions={"t": 1})))
    words, members, partitions = capsys.readouterr().out.strip().split("\n\n")
    assert words.splitlines() == [
        "Group g is Stable, assignor cooperative-sticky",
        "If 1 more member joined, and c left, and t had 1 more partition: 0 of 7 partitions would move between "
        "members that stay, 3 would come to them from members that left or from no member, in 1 round",
    ]
    assert [line.split() for line in members.splitlines()[1:]] == [
        ["a", "2", "3", "2", "0", "1"],
        ["b", "2", "2", "2", "0", "0"],
        ["c", "2", "-", "0", "2", "0"],
        ["new-1", "-", "2", "0", "0", "2"],
    ]
    assert [line.split() for line in partitions.splitlines()] == [
        ["TOPIC", "PARTITION", "FROM", "TO", "ROUND"],
        ["t", "4", "c", "new-1", "1"],
        ["t", "5", "c", "new-1", "1"],
        ["t", "6", "-", "a", "1"],
    ]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--join", "2"], "--group is missing"),
        (["--group", "g"], "--bootstrap-server is missing"),
        (["--group", "g", "--bootstrap-server", "b:1", "--add-partitions", "6"], "'6' is not TOPIC=N"),
        (["--group", "g", "--bootstrap-server", "b:1", "--add-partitions", "t=9999999"], "more than 2,000,000"),
    ],
)
def test_options_that_do_not_go_together_are_refused(options: list[str], words: str) -> None:
    refused = CliRunner().invoke(app, ["assign", *options])
    assert isinstance(refused.exception, OptionError)
    assert words in str(refused.exception)
