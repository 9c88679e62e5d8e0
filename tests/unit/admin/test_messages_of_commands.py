"""The output of commands: errors in their own words, and other people's names without effect on a terminal."""

from collections.abc import Mapping
from typing import Any

import pytest

from spark_kgroup.admin import describe_command, group_plan
from spark_kgroup.admin.command_output import complain
from spark_kgroup.admin.describe_command import join_answers
from spark_kgroup.admin.group_plan import Change, GroupPlan
from spark_kgroup.admin.member_command import write_json, write_text
from spark_kgroup.assignors.plan import Plan
from spark_kgroup.errors import GroupRejected
from spark_kgroup.model import DescribedGroup, DescribedMember
from spark_kgroup.peer_words import printable

HOSTILE = {
    "a closing tag": "[/red]",
    "a style": "[bold]x[/bold]",
    "a link": "[link=http://evil]click[/link]",
    "an emoji's name": ":smile:",
    "a backslash before a tag": "\\[red]",
}
STEERING = {
    "escape sequences": "\x1b]0;owned\x07\x1b[2J",
    "a line of its own": "a\n10:00:00  fenced",
    "a carriage return": "a\rfenced",
    "8-bit controls": "\x9b31m",
    "writing that turns round": "a\u202eb",
    "a lone surrogate": "\ud800",
}


def event(**more: Any) -> Mapping[str, Any]:
    return {"event": "assigned", "at_ms": 0, "leader": False, "generation": 1, **more}


@pytest.mark.parametrize("name", HOSTILE.values(), ids=HOSTILE)
def test_a_topic_that_looks_like_markup_is_written_as_it_is(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    write_text(event(partitions=[[name, 0]], reason=name))
    assert f"partitions {name}-0  ({name})" in capsys.readouterr().out


def test_tables_have_names_and_addresses_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    """rich makes pictures of words between two colons, as in many an IPv6 address."""
    host = "2001:db8:0:b:1:2:3:4"
    member = DescribedMember(
        member_id=":bomb:", instance_id=":x:", client_id=":warning:", client_host=f"/{host}", assignment=frozenset()
    )
    group = DescribedGroup(group=":a:", state="Stable", protocol=":b:", members=(member,))
    describe_command.write_tables(describe_command.join_answers(group, {}, {}))
    plan = Plan(target={}, first_round={}, moved=())
    group_plan.write_tables(GroupPlan(group=group, change=Change(), plan=plan, owners={}))
    printed = capsys.readouterr().out
    assert printed.isascii()
    for name in (f":warning:@{host}", ":bomb:", ":x:", "Group :a: is Stable", "assignor :b:"):
        assert name in printed


@pytest.mark.parametrize("name", STEERING.values(), ids=STEERING)
def test_control_characters_are_written_as_question_marks(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    write_text(event(partitions=[[name, 0]], reason=name))
    complain(GroupRejected(f"the broker says {name}"))
    for line in (*capsys.readouterr().out.splitlines(), printable(name)):
        assert line.isprintable()
        assert "?" in line


def test_json_has_all_names_in_ascii(capsys: pytest.CaptureFixture[str]) -> None:
    for name in (*HOSTILE.values(), *STEERING.values()):
        write_json(event(partitions=[[name, 0]]))
        (line,) = capsys.readouterr().out.splitlines()
        assert line.isascii()
        assert line.isprintable()


def test_seats_are_listed_by_number_however_many_digits_it_has() -> None:
    """A hostile broker may name any: Python reads no number of more than 4,300 digits."""
    names = ["s-9", "s-10", "s-" + "1" * 5_000, "s-" + "2" * 4_999, "s", "s-x", "s-\u0663", None, "s-007"]
    members = [
        DescribedMember(member_id=f"m{n}", instance_id=name, client_id="c", client_host="/h", assignment=frozenset())
        for n, name in enumerate(names)
    ]
    group = DescribedGroup(group="g", state="Stable", protocol="range", members=tuple(members))
    ordered = [each.member.instance_id for each in join_answers(group, {}, {}).members]
    numbered = [name for name in ordered if name is not None and name[2:].isascii() and name[2:].isdigit()]
    assert numbered == ["s-007", "s-9", "s-10", "s-" + "2" * 4_999, "s-" + "1" * 5_000]
