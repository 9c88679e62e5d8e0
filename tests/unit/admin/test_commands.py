"""What every command of `kgroup` has: a version, and errors in its own words."""

import importlib.metadata
import re
import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner

import spark_kgroup
from spark_kgroup.admin.cli import app
from spark_kgroup.admin.command_terms import in_command_terms
from spark_kgroup.errors import FencedInstanceId

PYPROJECT = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())


def test_the_version_is_the_installed_packages() -> None:
    assert spark_kgroup.__version__ == PYPROJECT["project"]["version"]
    shown = CliRunner().invoke(app, ["--version"])
    assert (shown.exit_code, shown.output) == (0, f"kgroup {spark_kgroup.__version__}\n")


def test_sources_that_are_not_installed_have_an_unknown_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.metadata, "version", lambda name: importlib.metadata.distribution(f"no-{name}"))
    assert spark_kgroup.__version__ == "0+unknown"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("Check the bootstrap servers (kafka.bootstrap.servers).", "Check the bootstrap servers (--bootstrap-server)."),
        ("Option kafka.group.id is missing", "Option --group is missing"),
        ("correct the option `subscribe`.", "correct the option `--topics`."),
        ("who subscribes to kafka.group.ids", "who subscribes to kafka.group.ids"),
        (
            "expects TLS (kafka.security.protocol)?",
            "expects TLS (security.protocol)? (Properties stand in the file that --command-config names.)",
        ),
        ("--command-config 'f': kafka.sasl.username is missing", "--command-config 'f': sasl.username is missing"),
    ],
)
def test_an_error_speaks_of_a_commands_options(text: str, told: str) -> None:
    assert in_command_terms(text) == told


def test_an_error_of_a_seat_names_no_option_of_the_source() -> None:
    told = in_command_terms(str(FencedInstanceId("g", "g-0")))
    assert re.search(r"kafka\.group|instanceIdPrefix", told) is None
    assert "--instance-id" in told
