"""`lanes`: lanes beside each other, a run that ends at the first failure, and failures that can be read."""

import json
import os
import shlex
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from harness.handing_out import without_group
from harness.waiting import wait_for
from lanes.__main__ import described
from lanes.lane import Failure, Lane
from lanes.run import Run

MakeRun = Callable[..., Run]


@pytest.fixture
def make_run(tmp_path: Path) -> MakeRun:
    """Called with target=program of Python: a run of a Makefile with these targets."""

    def make(at_once: int = 2, keep_going: bool = False, **targets: str) -> Run:
        rules = [f"{name}:\n\t@{sys.executable} {tmp_path / name}.py $(PYTEST)\n" for name in targets]
        (tmp_path / "Makefile").write_text("\n".join(rules))
        for name, program in targets.items():
            (tmp_path / f"{name}.py").write_text(program)
        lanes = [Lane(name) for name in targets]
        return Run(lanes, folder=tmp_path, root=tmp_path, tell=print, at_once=at_once, keep_going=keep_going, seed=7)

    return make


SAYS = """
import sys
events = next(a for a in sys.argv if a.startswith("--progress=")).partition("=")[2]
def say(text):
    with open(events, "a") as file:
        file.write(text + "\\n")
"""
"""The function by which a lane's program writes its events."""


WAITS = """
import pathlib, time
def wait_for_file(path):
    ends_at_s = time.monotonic() + 30
    while not pathlib.Path(path).exists():
        assert time.monotonic() < ends_at_s, f"waited 30 s in vain for {path}"
        time.sleep(0.01)
"""
"""The function by which a lane's program waits for another lane. A run that starts no other lane fails by its bound."""


def events(*of_them: dict[str, object]) -> str:
    return SAYS + "".join(f"say({json.dumps(json.dumps(each))})\n" for each in of_them)


def test_lanes_run_at_once_as_far_as_there_is_room(make_run: MakeRun, tmp_path: Path) -> None:
    meet = f"""{WAITS}
pathlib.Path({str(tmp_path)!r}, "NAME").touch()
wait_for_file({str(tmp_path)!r} + "/OTHER")
"""
    one, other = meet.replace("NAME", "x").replace("OTHER", "y"), meet.replace("NAME", "y").replace("OTHER", "x")
    run = make_run(one=one, other=other, third="import sys; print('third')")
    run.run()
    assert [lane.code for lane in run.lanes] == [0, 0, 0]
    assert (tmp_path / "third.log").read_text() == "third\n"


def test_a_lane_in_the_background_needs_no_room_and_has_the_lowest_priority(make_run: MakeRun, tmp_path: Path) -> None:
    waits = f"{WAITS}\nwait_for_file({str(tmp_path / 'done')!r})"
    tells = f"""
import os, pathlib
print(os.nice(0))
pathlib.Path({str(tmp_path)!r}, "done").touch()
"""
    run = make_run(at_once=1, waits=waits, unit=tells)
    run.lanes[1].background = True
    run.run()
    assert [lane.code for lane in run.lanes] == [0, 0]
    assert int((tmp_path / "unit.log").read_text()) == 19


def test_tests_are_counted_and_a_failed_one_ends_the_other_processes_and_their_children(
    make_run: MakeRun, tmp_path: Path
) -> None:
    """1. A lane starts a process that leaves its group. 2. A test of the other lane fails. 3. Both are gone."""
    leaves = f"""
import pathlib, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
pathlib.Path({str(tmp_path / "child.new")!r}).write_text(str(child.pid))
pathlib.Path({str(tmp_path / "child.new")!r}).rename({str(tmp_path / "child")!r})
time.sleep(600)
"""
    fails = events(
        {"event": "collected", "count": 3},
        {"event": "began", "test": "t.py::a"},
        {"event": "ended", "test": "t.py::a", "passed": True},
        {"event": "failed", "test": "t.py::b", "how": "assert 1 == 2"},
    )
    waits = f"{WAITS}\nwait_for_file({str(tmp_path / 'child')!r})"
    run = make_run(leaves=leaves, fails=f"{waits}\n{fails}\ntime.sleep(600)")
    began_at_s = time.monotonic()
    run.run()
    assert time.monotonic() - began_at_s < 60
    assert run.failures == [Failure("fails", "t.py::b", "assert 1 == 2")]
    assert (run.lanes[1].passed, run.lanes[1].done, run.lanes[1].total) == (1, 2, 3)
    child = int((tmp_path / "child").read_text())
    wait_for(lambda: not Path(f"/proc/{child}").exists() or zombie(child), "the end of what had left the group", 30)


def zombie(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def test_a_lane_that_fails_without_a_test_shows_the_end_of_its_log(make_run: MakeRun) -> None:
    run = make_run(lint="raise SystemExit('\\n'.join(map(str, range(100))))")
    run.run()
    (failure,) = run.failures
    assert failure.test == ""
    assert failure.tail().splitlines()[-2] == "99"  # then make's own word
    assert len(failure.tail().splitlines()) <= 60


def test_a_run_that_keeps_going_finishes_all_lanes(make_run: MakeRun) -> None:
    run = make_run(at_once=1, keep_going=True, bad="raise SystemExit(1)", good="")
    run.run()
    assert [lane.code == 0 for lane in run.lanes] == [False, True]


def test_lanes_have_signals_as_an_interactive_shell_gives_them(make_run: MakeRun, tmp_path: Path) -> None:
    """A run in the background ignores SIGINT: its lanes could not be ended politely, nor could their tests'
    processes."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        run = make_run(shows="import signal; print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)")
        run.run()
    finally:
        signal.signal(signal.SIGINT, before)
    assert (tmp_path / "shows.log").read_text() == "True\n"


def test_a_failure_names_the_command_that_runs_it_again() -> None:
    text = described(Failure("test-unit", "tests/unit/test_x.py::test_y[a b]", "how"), seed=7)
    again = text.splitlines()[-1].partition("again: ")[2]
    assert shlex.split(again) == [
        "make",
        "test-unit",
        "TESTS='tests/unit/test_x.py::test_y[a b]'",
        "PYTEST=--hypothesis-seed=7",
    ]
    assert "seed" not in described(Failure("lint", "", "how"), seed=7)


@pytest.mark.parametrize(
    ("named", "plain"),
    [
        ("tests/x.py::test_y@together-test_x", "tests/x.py::test_y"),
        ("tests/x.py::test_y[a@b]", "tests/x.py::test_y[a@b]"),
    ],
)
def test_a_test_s_id_is_told_without_the_group_that_xdist_adds(named: str, plain: str) -> None:
    assert without_group(named) == plain


def test_no_process_of_a_run_is_left_when_it_is_interrupted(make_run: MakeRun, tmp_path: Path) -> None:
    stays = f"""
import os, pathlib, time
pathlib.Path({str(tmp_path / "pid")!r}).write_text(str(os.getpid()))
time.sleep(600)
"""
    run = make_run(stays=stays)

    started = run._start

    def start(lane: Lane) -> Lane:
        started(lane)
        wait_for((tmp_path / "pid").exists, "the lane's program", 30)
        os.kill(os.getpid(), signal.SIGINT)
        return lane

    run._start = start  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        run.run()
    pid = int((tmp_path / "pid").read_text() or 0)
    wait_for(lambda: not pid or zombie(pid), "the end of the lane", 30)
