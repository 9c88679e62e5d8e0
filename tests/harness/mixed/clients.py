"""The processes of a mixed group: a member each, of one of four clients, that reports each change of its partitions."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from harness.members import KGROUP, Pair
from spark_kgroup.testing.java import find_java
from spark_kgroup.testing.kafka_jars import kafka_jars

OURS: Final = "kgroup"
JAVA: Final = "java"
LIBRDKAFKA: Final = "librdkafka"
KAFKA_PYTHON: Final = "kafka-python"

SPEAKING: Final = {
    "classic": (OURS, JAVA, LIBRDKAFKA, KAFKA_PYTHON),
    "consumer": (OURS, JAVA, LIBRDKAFKA),  # kafka-python knows the classic protocol alone
}
"""Protocol -> the clients that speak it."""

_HERE: Final = Path(__file__).parent
_END_TIMEOUT_S: Final = 60

_COMPILING: Final = threading.Lock()


@dataclass(frozen=True, slots=True)
class Change:
    """All that a member owns from a moment on."""

    at_ms: int
    event: str
    owned: frozenset[Pair]


class Client:
    """One member, from its start until it leaves or is killed.

    Args:
        kind: its client.
        instance_id: makes it static.
        session_timeout_ms: of the classic protocol.

    Attributes:
        changes: its reports, in order.
        ended_at_ms: when it was killed or had left, None while it runs.
    """

    def __init__(
        self,
        kind: str,
        bootstrap: str,
        group: str,
        topic: str,
        *,
        protocol: str = "classic",
        instance_id: str = "",
        session_timeout_ms: int = 6_000,
    ) -> None:
        self.kind = kind
        self.changes: list[Change] = []
        self.ended_at_ms: int | None = None
        self._log: list[str] = []
        self._process = subprocess.Popen(
            _command(kind, bootstrap, group, topic, protocol, instance_id, session_timeout_ms),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._threads = [threading.Thread(target=self._hear), threading.Thread(target=self._hear_log)]
        for thread in self._threads:
            thread.start()

    def _hear(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            event: dict[str, Any] = json.loads(line)
            if "partitions" in event:
                owned = frozenset((topic, index) for topic, index in event["partitions"])
                self.changes.append(Change(event["at_ms"], event["event"], owned))

    def _hear_log(self) -> None:
        assert self._process.stderr is not None
        self._log.extend(self._process.stderr)

    @property
    def owned(self) -> frozenset[Pair]:
        """The partitions of its last report, none once it has ended."""
        return self.changes[-1].owned if self.changes and self.ended_at_ms is None else frozenset()

    def kill(self) -> None:
        """SIGKILL: it sends no further message."""
        self._process.kill()
        self._process.wait(_END_TIMEOUT_S)
        self._on_ended(time.time_ns() // 1_000_000)

    def leave(self) -> None:
        """Leave the group and end. A static member of another client goes without a word, as that client has it."""
        assert self._process.stdin is not None
        if self.kind == OURS:
            self._process.send_signal(signal.SIGINT)
        else:
            self._process.stdin.close()
        code = self._process.wait(_END_TIMEOUT_S)
        self._on_ended(time.time_ns() // 1_000_000)
        assert code == 0, f"{self.kind} ended with {code}: {self.log}"

    def abandon(self) -> None:
        """End it in any state. Safe to call at any time."""
        if self.ended_at_ms is None:
            self.kill()

    def _on_ended(self, at_ms: int) -> None:
        for thread in self._threads:
            thread.join(_END_TIMEOUT_S)
        self.ended_at_ms = at_ms
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            if pipe is not None:
                pipe.close()

    @property
    def log(self) -> str:
        """The end of its standard error."""
        return "".join(self._log)[-1500:]

    @property
    def given_up(self) -> int:
        """How many partitions it gave up while it was a member: each one moves."""
        before: frozenset[Pair] = frozenset()
        count = 0
        for change in self.changes:
            if change.event not in ("leaving", "left"):
                count += len(before - change.owned)
            before = change.owned
        return count

    def spans(self) -> list[tuple[Pair, int, int]]:
        """(partition, first ms, last ms) of each time it owned one, in a group whose members have all ended."""
        since: dict[Pair, int] = {}
        found: list[tuple[Pair, int, int]] = []
        assert self.ended_at_ms is not None
        for change in [*self.changes, Change(self.ended_at_ms, "ended", frozenset())]:
            found += [(pair, since.pop(pair), change.at_ms) for pair in since.keys() - change.owned]
            since |= dict.fromkeys(change.owned - since.keys(), change.at_ms)
        return found


def _jars() -> str:
    # slf4j without a binding is silent.
    return os.pathsep.join(str(jar) for jar in kafka_jars() if not jar.name.startswith("log4j-slf4j-impl"))


@cache
def _java_classes() -> TemporaryDirectory[str]:
    """The folder of the compiled `GroupClient`. A member that compiles it itself starts in more than twice the time."""
    folder: TemporaryDirectory[str] = TemporaryDirectory(prefix="group-client-")
    compiler: list[str | Path] = [find_java().executable, "-m", "jdk.compiler/com.sun.tools.javac.Main", "-cp", _jars()]
    subprocess.run([*compiler, "-d", folder.name, _HERE / "GroupClient.java"], check=True, timeout=_END_TIMEOUT_S)
    return folder


def _command(
    kind: str, bootstrap: str, group: str, topic: str, protocol: str, instance_id: str, session_timeout_ms: int
) -> list[str | Path]:
    if kind == OURS:
        command: list[str | Path] = [KGROUP, "member", "--json", "--bootstrap-server", bootstrap, "--group", group]
        command += ["--topics", topic, "--group-protocol", protocol, "--leave"]
        command += ["--instance-id", instance_id] if instance_id else []
        return command + (["--session-timeout-ms", str(session_timeout_ms)] if protocol == "classic" else [])
    arguments = [bootstrap, group, topic, kind, protocol, instance_id, str(session_timeout_ms)]
    if kind == JAVA:
        with _COMPILING:
            classes = _java_classes()
        java: list[str | Path] = [find_java().executable, "-Xmx96m", "-XX:TieredStopAtLevel=1"]
        return [*java, "-cp", os.pathsep.join([classes.name, _jars()]), "GroupClient", *arguments]
    return [sys.executable, _HERE / "group_client.py", kind, *arguments]
