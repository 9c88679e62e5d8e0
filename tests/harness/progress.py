"""The progress of a pytest run, as a line of JSON for each event: for a program that runs several side by side.

`--progress FILE` writes `collected` (how many tests), `began` (a test), `ended` (a test, and whether it passed) and
`failed` (a test or a module, and how it failed). With pytest-xdist, the process that hands tests out writes them all.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from harness.handing_out import without_group


class Progress:
    """The plugin of one run."""

    def __init__(self, file: Path) -> None:
        self._out = file.open("a", buffering=1)
        self._failed: set[str] = set()

    def _tell(self, event: str, **fields: Any) -> None:
        self._out.write(json.dumps({"event": event, **fields}) + "\n")

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        if items := getattr(session, "items", ()):  # with pytest-xdist, its processes collect
            self._tell("collected", count=len(items))

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids: list[str]) -> None:
        self._tell("collected", count=len(ids))

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._tell("began", test=without_group(nodeid))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._failed.add(report.nodeid)
            self._tell_failure(report)
        if report.when == "teardown":
            self._tell("ended", test=without_group(report.nodeid), passed=report.nodeid not in self._failed)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._tell_failure(report)

    def _tell_failure(self, report: pytest.TestReport | pytest.CollectReport) -> None:
        captured = [f"--- {title}\n{text}" for title, text in report.sections]
        self._tell("failed", test=without_group(report.nodeid), how="\n".join([*captured, report.longreprtext]))
