"""`kgroup member --json` processes under test."""

import json
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from harness.waiting import wait_for

KGROUP = str(Path(sys.executable).parent / "kgroup")
Pair = tuple[str, int]


class MemberProcess:
    """One `kgroup member` process. A context manager that ends it with Ctrl-C."""

    def __init__(
        self,
        bootstrap: str,
        group: str,
        topics: str | None,
        instance_id: str | None,
        *more: str,
        pattern: str = "",
    ) -> None:
        static = [] if instance_id is None else ["--instance-id", instance_id]
        command = [KGROUP, "member", "--bootstrap-server", bootstrap, "--group", group, "--json"]
        command += ["--topics", topics] if topics is not None else ["--pattern", pattern]
        self.events: list[dict[str, Any]] = []
        self.stderr = ""
        self.process = subprocess.Popen(
            [*command, *static, *more], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self._reader = threading.Thread(target=self._read, name=f"events of {instance_id}")
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.events.append(json.loads(line))

    def __enter__(self) -> "MemberProcess":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.process.send_signal(signal.SIGCONT)
            self.interrupt()
        else:  # the test has failed: pytest shows with it the member's events and stderr
            self.process.kill()
            self.end()
            print(f"----- member {self.process.args!r}: {self.events[-10:]}\n{self.stderr[-4_000:]}")

    def interrupt(self) -> int:
        """Ctrl-C after its first event, and wait for the end. Returns the exit code.

        A member that has joined listens for signals. One that still imports its modules would end at once.
        """
        wait_for(lambda: self.events or self.process.poll() is not None, f"a first event of {self.process.args!r}")
        self.process.send_signal(signal.SIGINT)
        return self.end()

    def end(self) -> int:
        """Wait for the end. Returns the exit code. Safe to call twice."""
        code = self.process.wait(30)
        self._reader.join(30)
        for pipe in (self.process.stdout, self.process.stderr):
            if pipe is not None and not pipe.closed:
                self.stderr += pipe.read()
                pipe.close()
        return code

    @property
    def owned(self) -> set[Pair]:
        """All that it owns from its last event on."""
        last = next((e for e in reversed(self.events) if "partitions" in e), None)
        return {(topic, index) for topic, index in last["partitions"]} if last else set()

    def last(self, event: str) -> dict[str, Any] | None:
        return next((e for e in reversed(self.events) if e["event"] == event), None)

    def wait_for_event(self, event: str, timeout_s: float = 30, *, after: int = 0) -> dict[str, Any]:
        """The first `event` among those after the first `after` events."""
        return wait_for(
            lambda: next((e for e in self.events[after:] if e["event"] == event), None), f"event {event!r}", timeout_s
        )

    def wait_for_owned(self, count: int, timeout_s: float = 90) -> set[Pair]:
        wait_for(lambda: len(self.owned) == count, f"{count} partitions (events: {self.events[-4:]})", timeout_s)
        return self.owned


def all_pairs(topic: str, partitions: int) -> set[Pair]:
    return {(topic, index) for index in range(partitions)}


def described(bootstrap: str, group: str) -> dict[str, Any]:
    """A group as `kgroup describe` prints it."""
    command = [KGROUP, "describe", "--bootstrap-server", bootstrap, "--group", group, "--json"]
    found: dict[str, Any] = json.loads(subprocess.run(command, capture_output=True, timeout=60, check=True).stdout)
    return found
