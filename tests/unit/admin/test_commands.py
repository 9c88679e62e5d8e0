"""Every command of `kgroup` has a version, and refuses what cannot be."""

import importlib.metadata
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner

import spark_kgroup
from spark_kgroup.admin import member_command
from spark_kgroup.admin.cli import app
from spark_kgroup.errors import OptionError
from spark_kgroup.runtime.settings import GroupSettings

HELP_OF_ALL = """
import sys
from typer.testing import CliRunner
from spark_kgroup.admin.cli import app
for words in ([], ["assign"], ["describe"], ["doctor"], ["kafka", "run"], ["member"], ["remove-members"]):
    shown = CliRunner().invoke(app, [*words, "--help"])
    assert shown.exit_code == 0 and "Usage" in shown.output, shown.output
print(*{"kio", "javaproperties"} & sys.modules.keys())
"""

PYPROJECT = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())


def test_the_version_is_the_installed_packages() -> None:
    assert spark_kgroup.__version__ == PYPROJECT["project"]["version"]
    shown = CliRunner().invoke(app, ["--version"])
    assert (shown.exit_code, shown.output) == (0, f"kgroup {spark_kgroup.__version__}\n")


def test_sources_that_are_not_installed_have_an_unknown_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.metadata, "version", lambda name: importlib.metadata.distribution(f"no-{name}"))
    assert spark_kgroup.__version__ == "0+unknown"


def test_the_help_of_each_command_is_there_without_the_packages_that_speak_to_a_cluster() -> None:
    """Their import takes half of the time until the help is shown."""
    done = subprocess.run([sys.executable, "-c", HELP_OF_ALL], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (0, "\n"), done.stdout + done.stderr


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("--group-protocol kip-848", "--group-protocol 'kip-848' is unknown: set classic or consumer"),
        ("--remote-assignor uniform", "--remote-assignor is for --group-protocol consumer"),
        ("--group-protocol consumer --assignor range", "--assignor is for --group-protocol classic"),
        ("--group-protocol consumer --session-timeout-ms 9000", "--session-timeout-ms is for --group-protocol classic"),
        ("--group-protocol consumer --member-ids client", "--member-ids is for --group-protocol classic"),
        ("--member-ids auto", "--member-ids auto is for static members: give an --instance-id"),
        ("--member-ids client", "--member-ids client is for static members: give an --instance-id"),
        pytest.param(
            f"--rack {'r' * 40_000}", "--rack has more than the 32767 bytes that brokers take", id="long rack"
        ),
        ("--instance-id a --member-ids uuid", "--member-ids 'uuid' is unknown: set broker, client or auto"),
    ],
)
def test_a_member_refuses_a_setting_out_of_range_and_names_the_option(given: str, words: str) -> None:
    needed = ["member", "--bootstrap-server", "127.0.0.1:1", "--group", "g", "--topics", "t"]
    shown = CliRunner().invoke(app, [*needed, *given.split()])
    assert isinstance(shown.exception, OptionError)
    assert words in str(shown.exception)


@pytest.mark.parametrize(("session_timeout_ms", "interval_ms"), [("6000", 2_000), ("45000", 3_000)])
def test_three_heartbeats_of_a_member_fit_into_its_session(
    session_timeout_ms: str, interval_ms: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[GroupSettings] = []

    async def keep(settings: GroupSettings, *_: object, **__: object) -> None:
        made.append(settings)

    monkeypatch.setattr(member_command, "_run", keep)
    given = {"bootstrap-server": "b:9092", "group": "g", "topics": "t", "session-timeout-ms": session_timeout_ms}
    done = CliRunner().invoke(
        app, ["member", *(part for name, value in given.items() for part in (f"--{name}", value))]
    )
    assert done.exit_code == 0, done.output
    assert made[0].protocol.heartbeat_interval_ms == interval_ms
