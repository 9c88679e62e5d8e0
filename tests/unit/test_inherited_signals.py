"""Processes that tests start take signals the same way, under any parent process of the tests."""

import signal
import subprocess
import sys
from pathlib import Path

from harness.inherited_signals import children_ignore_no_signals

IGNORED = """
import signal
print(*(number.name for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGHUP)
        if signal.getsignal(number) is signal.SIG_IGN))
"""

FROM_A_BACKGROUND_JOB = 'trap \'\' INT QUIT TERM HUP; exec "$0" -m pytest -p no:cacheprovider "$1"'


def ignored_by_a_child() -> list[str]:
    shown = subprocess.run([sys.executable, "-c", IGNORED], capture_output=True, text=True, check=True)
    return shown.stdout.split()


def test_a_process_that_a_test_starts_ignores_no_signal() -> None:
    assert ignored_by_a_child() == []


def test_so_it_is_in_a_test_run_that_ignores_signals() -> None:
    test = f"{__file__}::{test_a_process_that_a_test_starts_ignores_no_signal.__name__}"
    command = ["sh", "-c", FROM_A_BACKGROUND_JOB, sys.executable, test]
    run = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True, check=False)
    assert "1 passed" in run.stdout, run.stdout


def test_the_test_run_itself_goes_on_ignoring_the_same_signals() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with children_ignore_no_signals():
            signal.raise_signal(signal.SIGHUP)
            assert ignored_by_a_child() == []
        assert ignored_by_a_child() == ["SIGHUP"]
    finally:
        signal.signal(signal.SIGHUP, before)
