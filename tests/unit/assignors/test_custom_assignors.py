"""Assignors by module:Class: which are taken, and which of their assignments are refused (`assignors.contract`)."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest
from harness.custom_assignors import Counted

from spark_kgroup.assignors import assignor, assignors_called, custom
from spark_kgroup.assignors.contract import RebalanceProtocol
from spark_kgroup.errors import AssignorError, OptionError

from .test_cooperative_sticky_cases import described, member, parts

MEMBERS = [member("b", "t"), member("a", "t")]
TOPICS = described(t=2)


def spelled(name: str) -> str:
    return f"harness.custom_assignors:{name}"


def test_a_custom_assignor_goes_by_module_and_class_and_members_agree_on_its_name() -> None:
    chosen = assignor(spelled("FirstTakesAll"))
    assert (chosen.name, chosen.protocol) == ("first-takes-all", RebalanceProtocol.EAGER)
    assert chosen.user_data(frozenset(), 1) is None
    assert chosen.assign(MEMBERS, TOPICS) == {"a": parts("t-0 t-1"), "b": frozenset()}


def test_a_member_that_an_assignment_does_not_name_gets_no_partition() -> None:
    assert assignor(spelled("Forgetful")).assign(MEMBERS, TOPICS) == {"a": parts("t-0 t-1"), "b": frozenset()}


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("Twice", "assigned t-0 to member 'a': to member 'b', too"),
        ("Foreign", "assigned to 'nobody', who is no member of the group"),
        ("Unwanted", "assigned u-0 to member 'b': who does not subscribe to the topic"),
        ("Missing", "assigned t-2 to member 'b': a partition that does not exist"),
        ("Text", "assigned 't-0' to member 'b': this is a str, not a TopicPartition"),
        ("Nothing", "should give a mapping from member ids to sets of partitions"),
        ("Growing", "assigned t-2 to member 'b': a partition that does not exist"),
        ("Truthful", "assigned t-True to member 'b': a topic's name is a str, and the index of a partition an int"),
        ("Halved", "assigned t-0.5 to member 'b': a topic's name is a str, and the index of a partition an int"),
        ("Exiting", "raised in assign: SystemExit(0)"),
        ("Raising", "raised in assign: KeyError('a bug')"),
    ],
)
def test_an_assignment_that_breaks_a_promise_is_refused_with_the_class_and_the_partition(name: str, fault: str) -> None:
    with pytest.raises(AssignorError) as refused:
        assignor(spelled(name)).assign(MEMBERS, TOPICS)
    assert str(refused.value).startswith(f"The assignor {spelled(name)} ")
    assert fault in str(refused.value)


def test_an_assignor_of_a_group_without_members_assigns_no_partition() -> None:
    assert assignor(spelled("FirstTakesAll")).assign([], TOPICS) == {}


def test_an_assignor_that_changes_its_arguments_changes_only_its_copy() -> None:
    members, topics = list(MEMBERS), described(t=2)
    topics["t"] = replace(topics["t"], racks={0: frozenset({"r"})})
    assert assignor(spelled("Clearing")).assign(members, topics)["a"] == parts("t-0 t-1")
    assert (members, topics, topics["t"].racks) == (MEMBERS, TOPICS, {0: frozenset({"r"})})


@pytest.mark.parametrize(
    "name",
    [
        "os:system",
        "builtins:exec",
        "subprocess:Popen",
        "unittest.mock:Mock",
        "harness.custom_assignors:Counted",
        "spark_kgroup.assignors.contract:Assignor",
        "spark_kgroup.assignors.contract:RebalanceProtocol",
    ],
)
def test_only_a_subclass_of_the_contract_is_called(name: str) -> None:
    """A configuration must not make objects of any class there is. A class that only looks like an assignor is none."""
    with pytest.raises(OptionError, match=r"module:Class of a subclass of spark_kgroup\.assignors\.contract\.Assignor"):
        assignor(name)
    assert Counted.made == 0


def test_an_assignor_that_never_returns_is_given_up_after_a_bound_and_holds_up_no_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(custom, "CUSTOM_ASSIGNOR_TIMEOUT_MS", 10)
    with pytest.raises(AssignorError, match="did not return from assign within 10 ms"):
        assignor(spelled("Hanging")).assign(MEMBERS, TOPICS)
    assert all(thread.daemon for thread in threading.enumerate() if "Hanging" in thread.name)


def test_a_class_that_is_not_made_in_time_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(custom, "CUSTOM_ASSIGNOR_TIMEOUT_MS", 10)
    with pytest.raises(OptionError, match="not imported and made within 10 ms"):
        assignor(spelled("HangingWhenMade"))


def test_a_cooperative_assignor_gives_no_member_a_partition_that_another_member_still_owns() -> None:
    """ConsumerCoordinator.validateCooperativeAssignment.

    A member that keeps a partition, or claims it too, may have it.
    """
    owning = [member("b", "t", owned="t-1"), member("a", "t", owned="t-0")]
    with pytest.raises(AssignorError, match="assigned t-1 to member 'a', while member 'b' still owns it"):
        assignor(spelled("Cooperative")).assign(owning, TOPICS)
    kept = [member("b", "t"), member("a", "t", owned="t-0 t-1")]
    assert assignor(spelled("Cooperative")).assign(kept, TOPICS)["a"] == parts("t-0 t-1")
    both = [member("b", "t", owned="t-0"), member("a", "t", owned="t-0")]
    assert assignor(spelled("Cooperative")).assign(both, TOPICS)["a"] == parts("t-0 t-1")


def test_an_eager_assignor_may_give_any_partition_to_any_member() -> None:
    owning = [member("b", "t", owned="t-1"), member("a", "t")]
    assert assignor(spelled("FirstTakesAll")).assign(owning, TOPICS)["a"] == parts("t-0 t-1")


def test_user_data_that_is_not_bytes_is_refused() -> None:
    with pytest.raises(AssignorError, match="user data of type str"):
        assignor(spelled("TextData")).user_data(frozenset(), 1)


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("harness.custom_assignors:Lacking", "has no attribute 'Lacking'"),
        ("harness.lacking:Assignor", "No module named"),
        (spelled("Nameless"), "`name` is ''"),
        (spelled("Mute"), "`user_data` and `assign` should be methods"),
        (spelled("Undecided"), "7 is not a valid RebalanceProtocol"),
        (spelled("Choosy"), "missing 1 required positional argument"),
        (spelled("ExitingWhenMade"), "SystemExit(0)"),
        ("math:pi", "not a class"),
        ("os:getcwd", "not a class"),
        ("sys:exit", "not a class"),
    ],
)
def test_a_class_that_is_no_assignor_is_refused_by_name_with_the_setting(name: str, why: str) -> None:
    with pytest.raises(OptionError) as refused:
        assignor(name)
    assert repr(name) in str(refused.value)
    assert why in str(refused.value)
    assert "`partition.assignment.strategy`" in str(refused.value)


def test_several_assignors_keep_their_order_and_need_names_of_their_own() -> None:
    found = assignors_called(["sticky", spelled("FirstTakesAll"), "range"])
    assert [each.name for each in found] == ["sticky", "first-takes-all", "range"]
    with pytest.raises(OptionError, match="have the same name, 'first-takes-all'"):
        assignors_called([spelled("Forgetful"), "range", spelled("FirstTakesAll")])
