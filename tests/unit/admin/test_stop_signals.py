"""Ctrl-C, SIGTERM and a closed terminal end the `kgroup` command at any time, unless it was told to ignore them."""

import os
import signal
import subprocess
from pathlib import Path

import pytest
from harness.members import KGROUP

from spark_kgroup.admin.stop_signals import STOP_SIGNALS, stop_signals

SLOW_IMPORT = """
import sys
print("importing", flush=True)
sys.stdin.readline()
sys.exit("imported")
"""
"""Stands in for typer, which the command imports: it waits for a line."""

Process = subprocess.Popen[str]


def start(*command: str, **environment: str) -> Process:
    return subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment},
    )


def start_importing(folder: Path, *command: str) -> Process:
    """The command in the midst of its imports."""
    (folder / "typer.py").write_text(SLOW_IMPORT)
    kgroup = start(*command, PYTHONPATH=str(folder))
    assert kgroup.stdout is not None
    assert kgroup.stdout.readline() == "importing\n"
    return kgroup


@pytest.mark.parametrize("number", STOP_SIGNALS)
def test_a_signal_during_the_imports_ends_the_command_by_that_signal_and_without_a_word(
    tmp_path: Path, number: signal.Signals
) -> None:
    """A shell shows it as 128 + the signal's number."""
    kgroup = start_importing(tmp_path, KGROUP, "member")
    kgroup.send_signal(number)
    assert kgroup.communicate(timeout=30) == ("", "")
    assert kgroup.returncode == -number


@pytest.mark.parametrize("number", STOP_SIGNALS)
def test_a_signal_that_the_command_was_started_to_ignore_does_not_end_its_imports(
    tmp_path: Path, number: signal.Signals
) -> None:
    """The background job of a script ignores Ctrl-C, and a command under `nohup` the end of the terminal."""
    ignoring = f"trap '' {number.name.removeprefix('SIG')}; exec \"$0\" member"
    kgroup = start_importing(tmp_path, "sh", "-c", ignoring, KGROUP)
    kgroup.send_signal(number)
    assert kgroup.communicate("go on\n", timeout=30) == ("", "imported\n")


@pytest.mark.parametrize("ignored", STOP_SIGNALS)
def test_a_signal_that_the_command_was_started_to_ignore_does_not_end_it_later_either(ignored: signal.Signals) -> None:
    before = signal.signal(ignored, signal.SIG_IGN)
    try:
        assert set(stop_signals()) == {*STOP_SIGNALS} - {ignored}
    finally:
        signal.signal(ignored, before)


def test_ctrl_c_ends_a_command_that_handles_no_signals_without_a_word() -> None:
    kgroup = start(KGROUP, "assign")
    assert kgroup.stdin is not None
    assert kgroup.stdout is not None
    kgroup.stdin.write("no group\n")
    kgroup.stdin.flush()
    assert "error" in kgroup.stdout.readline()
    kgroup.send_signal(signal.SIGINT)
    assert kgroup.communicate(timeout=30) == ("", "")
    assert kgroup.returncode == -signal.SIGINT
