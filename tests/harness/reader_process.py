"""Spark's stream-reader process with a parent that can die alone (`harness.fake_jvm`), and without Spark."""

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from harness import fake_jvm
from harness.application import stop_environment
from harness.waiting import wait_for


class ReaderProcess:
    """A reader and its JVM. A context manager that leaves neither.

    Args:
        folder: the folder of its log and of the files of its stop point, made if it is missing.
        options: of the kgroup stream.
        stop_at: one of the points in `harness/stop_points`.
        outlives_its_jvm: whether the reader does not end at once with its JVM: then its last requests count.
    """

    def __init__(
        self, folder: Path, options: dict[str, str], stop_at: str | None = None, *, outlives_its_jvm: bool = False
    ) -> None:
        self.folder = folder
        for made in ("temporary", "stop"):
            (folder / made).mkdir(parents=True, exist_ok=True)
        environment = {**os.environ, **stop_environment(folder, stop_at)}
        if outlives_its_jvm:
            environment["KGROUP_OUTLIVES_ITS_JVM"] = "1"
        command = [sys.executable, "-P", fake_jvm.__file__, json.dumps(options)]
        with (folder / "reader.log").open("ab") as log:
            self._jvm = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=environment,
                cwd=folder,
            )
        self.pid = int(self._line())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for pid in (self._jvm.pid, self.pid):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._jvm.wait(30)
        for pipe in (self._jvm.stdin, self._jvm.stdout):
            assert pipe is not None
            pipe.close()

    def _line(self) -> str:
        assert self._jvm.stdout is not None
        line = self._jvm.stdout.readline()
        assert line, f"the reader's JVM has ended: {self.log()[-2000:]}"
        return line

    def log(self) -> str:
        return (self.folder / "reader.log").read_text(errors="replace")

    def ask(self, start: dict[str, Any]) -> None:
        """Call `latestOffset(start)`, and return at once."""
        assert self._jvm.stdin is not None
        print(json.dumps(start), file=self._jvm.stdin, flush=True)

    def answer(self) -> dict[str, Any]:
        """The reader's answer. Waits for it."""
        answer: dict[str, Any] = json.loads(self._line())
        assert "error" not in answer, answer["error"]
        return answer

    def await_stop_point(self) -> None:
        """Wait until the reader has reached the named point, and stands there."""
        reached = self.folder / "stop" / "reached"
        wait_for(lambda: reached.exists() and reached.read_text(), "the reader to come to its point", 60)

    def release(self) -> None:
        """Let the reader go on from the point."""
        (self.folder / "stop" / "released").touch()

    def pause(self) -> None:
        """SIGSTOP to the reader alone."""
        os.kill(self.pid, signal.SIGSTOP)
        wait_for(lambda: self.state() == "T", "the reader to stand still")

    def resume(self) -> None:
        """SIGCONT to the reader."""
        os.kill(self.pid, signal.SIGCONT)

    def kill_jvm(self) -> None:
        """SIGKILL to the JVM alone."""
        self._jvm.kill()
        self._jvm.wait(30)

    def stop_query(self) -> None:
        """Let the JVM stop the query: it hangs up, and sends SIGTERM. Returns when it has."""
        assert self._jvm.stdin is not None
        self._jvm.stdin.close()
        assert self._jvm.wait(30) == 0

    def state(self) -> str:
        """Of the reader, by proc(5), or empty if it is gone."""
        try:
            return Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            return ""

    def await_end(self, timeout_s: float = 30) -> None:
        """Wait until the reader has ended."""
        wait_for(lambda: self.state() in ("", "Z"), "the reader to end", timeout_s)
