"""A program of examples/, run as a user runs it, and the processes and files that it leaves behind."""

import os
import subprocess
import sys
from pathlib import Path
from uuid import uuid4

from harness.waiting import wait_for

EXAMPLES = Path(__file__).parents[2] / "examples"
TIMEOUT_S = 480


class Example:
    """Starts an example with a mark in its environment: all processes that come of it have the mark, too."""

    def __init__(self, temporary: Path) -> None:
        self._mark = f"KGROUP_EXAMPLE={uuid4().hex}"
        self._temporary = temporary
        self.output = temporary.with_suffix(".txt")
        temporary.mkdir()

    def start(self, script: str, *arguments: str) -> subprocess.Popen[bytes]:
        name, _, value = self._mark.partition("=")
        environment = {**os.environ, name: value, "TMPDIR": str(self._temporary), "COLUMNS": "100"}
        environment.pop("PYTHONSAFEPATH", None)  # a user's is not set, and an example imports its neighbours
        command = [sys.executable, str(EXAMPLES / script), *arguments]
        with self.output.open("wb") as file:  # a session of its own: Ctrl-C in a terminal reaches all of its group
            return subprocess.Popen(
                command, stdout=file, stderr=subprocess.STDOUT, env=environment, start_new_session=True
            )

    def run(self, script: str, *arguments: str) -> tuple[int, str]:
        code = self.start(script, *arguments).wait(TIMEOUT_S)
        return code, self.printed()

    def printed(self) -> str:
        return self.output.read_text()

    def processes(self) -> list[str]:
        found = []
        for process in Path("/proc").glob("[0-9]*"):
            try:
                if self._mark.encode() in (process / "environ").read_bytes().split(b"\0"):
                    found.append((process / "cmdline").read_text().replace("\0", " "))
            except OSError:
                continue  # it has ended, or it is not ours
        return found

    def assert_nothing_is_left(self) -> None:
        wait_for(lambda: not self.processes(), f"the end of {self.processes()}", 30)
        assert list(self._temporary.iterdir()) == []
