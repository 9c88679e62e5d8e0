"""Children end with their owner, however it ends. Real processes, killed for real."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from harness.waiting import wait_for

from spark_kgroup.testing.watchdog import ProcessGuard

OWNER = """
import json, os, sys, time
from pathlib import Path
from spark_kgroup.testing.watchdog import ProcessGuard
guard = ProcessGuard(Path(sys.argv[1]))
quiet = dict(stdout=sys.stderr.fileno(), stderr=sys.stderr.fileno())
children = [guard.popen(["sleep", "1000"], **quiet), guard.popen(["sh", "-c", "trap '' TERM; sleep 1001; :"], **quiet)]
fork = os.fork() if "fork" in sys.argv else -1
if fork == 0:
    time.sleep(1000)
print(json.dumps([guard._watchdog.pid, *(child.pid for child in children), fork]), flush=True)
if "end" not in sys.argv:
    time.sleep(1000)
"""


def is_alive(pid: int) -> bool:
    """Whether a process is there. A zombie, which only waits for its parent to look, is not."""
    state = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True, check=False).stdout
    return bool(state.strip()) and not state.startswith("Z")


class Owner:
    """A process that guards two children and a directory."""

    def __init__(self, directory: Path, *arguments: str) -> None:
        command = [sys.executable, "-c", OWNER, str(directory), *arguments]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
        assert self.process.stdout is not None
        self.watchdog, *self.children, self.fork = json.loads(self.process.stdout.readline())
        self.process.stdout.close()
        self.directory = directory

    def __enter__(self) -> "Owner":
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait(10)

    def await_nothing_left(self) -> None:
        self.process.wait(10)
        for pid in [self.watchdog, *self.children]:
            await_end_of(pid)
        wait_for(lambda: not self.directory.exists(), "the removal of the directory")


def await_end_of(pid: int) -> None:
    wait_for(lambda: not is_alive(pid), f"the end of process {pid}")


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    directory = tmp_path / "data"
    (directory / "deep").mkdir(parents=True)
    (directory / "deep" / "file").write_text("x")
    return directory


def test_children_and_directory_are_gone_after_kill_9_of_the_owner(directory: Path) -> None:
    with Owner(directory) as owner:
        assert all(map(is_alive, owner.children))
        owner.process.kill()
        owner.await_nothing_left()


def test_a_stopped_child_ends_too(directory: Path) -> None:
    with Owner(directory) as owner:
        os.kill(owner.children[0], signal.SIGSTOP)
        owner.process.kill()
        owner.await_nothing_left()


def test_children_end_when_the_owner_ends_without_closing(directory: Path) -> None:
    with Owner(directory, "end") as owner:
        owner.await_nothing_left()


def test_a_forked_copy_of_the_owner_does_not_keep_the_children(directory: Path) -> None:
    with Owner(directory, "fork") as owner:
        owner.process.kill()
        try:
            owner.await_nothing_left()
            assert is_alive(owner.fork)
        finally:
            os.kill(owner.fork, signal.SIGKILL)


def test_a_signal_to_the_whole_terminal_is_left_to_the_owner(directory: Path) -> None:
    with Owner(directory) as owner:
        assert os.getpgid(owner.watchdog) != os.getpgid(owner.process.pid)
        assert {os.getpgid(child) for child in owner.children} == {owner.watchdog}
        for ignored in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            os.kill(owner.watchdog, ignored)
        owner.process.kill()
        owner.await_nothing_left()


def test_close_ends_running_processes_and_leaves_the_directory(directory: Path) -> None:
    guard = ProcessGuard(directory)
    child = guard.popen(["sleep", "1000"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    guard.close()
    guard.close()  # closing twice is closing once
    assert child.wait(10) == -signal.SIGKILL
    assert not is_alive(guard._watchdog.pid)
    assert directory.exists()


def test_no_process_can_be_started_once_the_group_has_ended() -> None:
    guard = ProcessGuard()
    guard.close()
    with pytest.raises((PermissionError, ProcessLookupError, subprocess.SubprocessError)):
        guard.popen(["sleep", "1000"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
