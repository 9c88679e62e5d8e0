"""`kgroup remove-members`: mistakes that it refuses before it asks a broker, and its line about each member."""

import json

import pytest
from typer.testing import CliRunner

from spark_kgroup.admin.cli import app
from spark_kgroup.admin.remove_members_command import Removal, write_json, write_text
from spark_kgroup.errors import OptionError
from spark_kgroup.model import ErrorCode

TO_NOBODY = ["remove-members", "--bootstrap-server", "127.0.0.1:1", "--group", "g"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "Give either --instance-id"),
        (["--all", "--instance-id", "a"], "Give either --instance-id"),
        (["--instance-id", "a,"], "--instance-id names no member"),
        (["--instance-id", "a", "--command-config", "none.properties"], "--command-config 'none.properties'"),
        (["--all"], "Answer y, or give --yes"),
    ],
)
def test_a_wrong_argument_names_the_option_and_the_fix(arguments: list[str], message: str) -> None:
    done = CliRunner().invoke(app, [*TO_NOBODY, *arguments], input="")
    assert isinstance(done.exception, OptionError)
    assert message in str(done.exception)
    assert done.stdout == ""


REMOVAL = Removal(
    removed=["a", "b"],
    missing=["x", "y"],
    refused={"c": ErrorCode.FENCED_INSTANCE_ID, "d": 99},
    there=["a", "b", "c", "d"],
)


def test_each_member_has_a_line_and_those_that_stay_have_a_reason(capsys: pytest.CaptureFixture[str]) -> None:
    write_text(REMOVAL, "g")
    shown = capsys.readouterr()
    assert shown.out == "removed a\nremoved b\n"
    assert shown.err.splitlines() == [
        "kgroup: group 'g' has no static member 'x', 'y': correct --instance-id (it has: a, b, c, d).",
        "kgroup: 'c' is still in group 'g': another process has taken the seat just now: stop it, and try again.",
        "kgroup: 'd' is still in group 'g': the coordinator answered ERROR_99.",
    ]


def test_the_same_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    write_json(REMOVAL)
    assert json.loads(capsys.readouterr().out) == {
        "removed": ["a", "b"],
        "missing": ["x", "y"],
        "refused": {"c": "FENCED_INSTANCE_ID", "d": "ERROR_99"},
    }
