"""The costs of each test: seconds by the clock and CPU seconds, of its setup, its call and its teardown.

`--costs FILE` writes a line of JSON as each phase ends and each fixture of a wider scope than a test is made. CPU time
is that of pytest's process and of its descendants, also of those that have ended and were waited for. A process that
left the tree (a sidecar that its worker outlived, or a child of a process that was killed) is not in it. Linux: it
reads /proc.
"""

import json
import os
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def tree_cpu_s(root: int) -> float:
    """CPU seconds of a process and its descendants (proc(5): utime, stime, cutime, cstime)."""
    ticks, left = 0, [root]
    while left:
        folder = f"/proc/{left.pop()}"  # no Path: this runs ten times for each test
        try:
            ticks += sum(map(int, _read(f"{folder}/stat").rpartition(b")")[2].split()[11:15]))
            for task in os.listdir(f"{folder}/task"):
                left += map(int, _read(f"{folder}/task/{task}/children").split())
        except (FileNotFoundError, ProcessLookupError):
            continue  # it ended meanwhile: the process that waited for it has its time
    return ticks / _TICKS_PER_S


def _read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


class Costs:
    """The plugin of one run."""

    def __init__(self, file: Path) -> None:
        self._out = file.open("a", buffering=1)

    def _measured(self, what: str, name: str) -> Generator[None, Any, Any]:
        wall, cpu = time.monotonic(), tree_cpu_s(os.getpid())
        try:
            return (yield)
        finally:
            row = {"what": what, "name": name, "wall_s": round(time.monotonic() - wall, 3)}
            self._out.write(json.dumps({**row, "cpu_s": round(tree_cpu_s(os.getpid()) - cpu, 3)}) + "\n")

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Any:
        return (yield from self._measured("setup", item.nodeid))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Any:
        return (yield from self._measured("call", item.nodeid))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> Any:
        return (yield from self._measured("teardown", item.nodeid))

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[Any]) -> Any:
        if fixturedef.scope == "function":  # it is in its test's setup; of the unit lane, each look at /proc is a tenth
            return (yield)
        return (yield from self._measured("fixture", f"{fixturedef.argname} ({fixturedef.scope})"))
