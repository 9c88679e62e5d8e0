"""One Kafka process: broker and KRaft controller in one (process.roles=broker,controller)."""

from __future__ import annotations

import base64
import os
import re
import signal
import subprocess
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from spark_kgroup.errors import EnvironmentProblem
from spark_kgroup.testing.java import Java
from spark_kgroup.testing.kafka_release import KafkaRelease, Logging
from spark_kgroup.testing.watchdog import ProcessGuard

START_TIMEOUT_S: Final = 120.0
"""Bound on a start. Measured on 2 cores: 1.5 s for one node while they are idle, 35 s for three while seven times as
many processes want them."""

STOP_TIMEOUT_S: Final = 20.0
"""After SIGTERM. Measured: 0.3 s. A node that has lost its quorum does not end by itself at all."""

_POLL_S: Final = 0.02
_LOG_LINES_MAX: Final = 15
_ERRORS_MAX: Final = 4
_ERROR = re.compile(r"\S+ \S+ (?:ERROR|FATAL) |(?:Caused by: )?[\w.$]+(?:Exception|Error)\b")
"""A line of the log at that level ("%d %p ..."), or the first line of a stack trace."""

_BROKER_JVM: Final = ("-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
"""Serial: 2.2 s until started against 2.7 s with G1 on 2 cores. C1 alone: 1.3 s of CPU time against 2.4 s, at the price
of a slower broker. For measurements, a node's own options add -XX:TieredStopAtLevel=4, Java's default."""

_TOOL_JVM: Final = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
"""Tools live for a second: start-up is all that counts."""

_STARTED: Final = "Kafka Server started"
_PORT_TAKEN: Final = ("Address already in use", "BindException")


_META: Final = "meta.properties"
"""The file in a formatted directory that names its cluster, its node and itself."""

_formatted: dict[tuple[Path, tuple[str, ...]], dict[str, bytes]] = {}
"""(jars, further arguments) -> the files that Kafka's storage tool has written in this process, by name."""


class PortTaken(EnvironmentProblem):
    """Another process listens on a port that a node needs."""


@dataclass(frozen=True, slots=True)
class Jvm:
    """How this cluster's Java processes are started.

    Attributes:
        release: of Apache Kafka.
        jars: the directory that holds its jars.
        options: of every JVM, a node's or a tool's.
        node_options: of nodes only.
    """

    java: Java
    release: KafkaRelease
    jars: Path
    guard: ProcessGuard
    options: Sequence[str] = ()
    node_options: Sequence[str] = ()

    def command(self, options: Sequence[str], main_class: str, arguments: Sequence[str]) -> list[str | Path]:
        """The command line that runs `main_class`."""
        return [self.java.executable, *self.options, *options, "-cp", str(self.jars / "*"), main_class, *arguments]

    def tool(self, main_class: str, arguments: Sequence[str], timeout_s: float) -> str:
        """The standard output of one of Kafka's command-line classes.

        Raises:
            EnvironmentProblem: it failed, or was not done in time and has been killed.
        """
        process = self.guard.popen(
            self.command(_TOOL_JVM, main_class, arguments), stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        try:
            output, errors = process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired as problem:
            raise EnvironmentProblem(f"{main_class} was not done after {timeout_s:.0f} s.") from problem
        finally:
            if process.returncode is None:
                process.kill()
                process.communicate()
        if process.returncode != 0:
            words = (output + errors).decode(errors="replace").strip()
            raise EnvironmentProblem(f"{main_class} failed (exit code {process.returncode}): {words}")
        return output.decode()


class KafkaNode:
    """One node of an `ApacheKafka`.

    Attributes:
        node_id: Kafka's node.id, from 1.
        port: clients connect here. It stays the same for the node's whole life.
        log_path: Kafka's own log. The JVM's output is beside it, in stdout.log.
        interruptions: how often it was ended or paused.
    """

    def __init__(self, node_id: int, directory: Path, port: int) -> None:
        self.node_id = node_id
        self.port = port
        self.directory = directory
        self.log_path = directory / "server.log"
        self._stdout_path = directory / "stdout.log"
        self._properties_path = directory / "server.properties"
        self._process: subprocess.Popen[bytes] | None = None
        self._jvm: Jvm | None = None
        self._log_start = 0
        self.interruptions = 0
        self._paused = False
        self._data_elsewhere = False

    @property
    def pid(self) -> int:
        """Process id of the JVM.

        Raises:
            EnvironmentProblem: the node is not running.
        """
        if self._process is None:
            raise EnvironmentProblem(f"Kafka node {self.node_id} is not running.")
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether the JVM is there, paused or not."""
        return self._process is not None and self._process.poll() is None

    @property
    def answers(self) -> bool:
        """Whether the JVM is there, and not paused."""
        return self.running and not self._paused

    def configure(self, properties: Mapping[str, str]) -> None:
        """Write the node's properties, with log.dirs added."""
        self.directory.mkdir(parents=True, exist_ok=True)
        self._data_elsewhere = "log.dirs" in properties
        own = {"log.dirs": str(self.directory / "data"), **properties}
        text = "".join(f"{name}={_escape(value)}\n" for name, value in own.items())
        self._properties_path.write_text(text)

    def format(self, jvm: Jvm, cluster_id: str, more: Sequence[str] = ()) -> None:
        """Prepare the data directory unless it already holds data. `more` are arguments of Kafka's storage tool.

        The tool takes 0.6 s of CPU time, and what it writes differs from node to node only in `_META`: so it runs once
        in a process, and later nodes get copies, unless their properties name other `log.dirs`.
        """
        data = self.directory / "data"
        if (data / _META).exists():
            return
        key = (jvm.jars, tuple(more))
        if key not in _formatted or self._data_elsewhere:
            arguments = ["format", "--cluster-id", cluster_id, "--config", str(self._properties_path), *more]
            jvm.tool("kafka.tools.StorageTool", arguments, START_TIMEOUT_S)
            if not self._data_elsewhere:
                _formatted[key] = {path.name: path.read_bytes() for path in data.iterdir() if path.is_file()}
            return
        data.mkdir(parents=True, exist_ok=True)
        for name, content in _formatted[key].items():
            (data / name).write_bytes(content)
        own = {"cluster.id": cluster_id, "node.id": self.node_id, "directory.id": random_uuid(), "version": 1}
        # Last: a directory with this file counts as formatted.
        (data / _META).write_text("".join(f"{name}={value}\n" for name, value in own.items()))

    def launch(self, jvm: Jvm) -> None:
        """Start the process, and return before it is ready."""
        if self.running:
            return
        self._jvm = jvm
        self._paused = False
        # The log goes on from start to start, and an earlier one says as well that the node has started.
        self._log_start = self.log_path.stat().st_size if self.log_path.exists() else 0
        options = [*_BROKER_JVM, *jvm.node_options, self._log_option(jvm.release.logging)]
        with self._stdout_path.open("ab") as stdout:
            self._process = jvm.guard.popen(
                jvm.command(options, "kafka.Kafka", [str(self._properties_path)]),
                stdout=stdout,
                stderr=subprocess.STDOUT,
                directory=self.directory,
            )

    def _log_option(self, logging: Logging) -> str:
        """Write the settings of the process's log, and return the JVM option that names their file."""
        path = self.directory / "log4j.properties"
        path.write_text(logging.settings.format(log=_escape(str(self.log_path))))
        return f"-D{logging.property}={path.as_uri()}"

    def await_started(self, timeout_s: float = START_TIMEOUT_S) -> None:
        """Wait until the node says that it has started.

        Raises:
            PortTaken: its port was taken by another process.
            EnvironmentProblem: it died, or has not started in time.
        """
        deadline = time.monotonic() + timeout_s
        while _STARTED not in self._log_since_launch():
            if not self.running:
                raise self._death()
            if time.monotonic() > deadline:
                raise EnvironmentProblem(
                    f"Kafka node {self.node_id} has not started in {timeout_s:.0f} s. {self.last_words()}"
                )
            time.sleep(_POLL_S)

    def kill(self) -> None:
        """End the process at once, as a crash does (SIGKILL). Its data stays."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """End the process in an orderly way (SIGTERM), or by force if it does not end in time."""
        self.request_stop()
        self.await_stopped()

    def request_stop(self) -> None:
        """Ask the process to end, and return before it has."""
        if self._process is not None and self.running:
            self.interruptions += 1
            # A process that stands still acts on SIGTERM only when it goes on.
            self.resume()
            self._process.terminate()

    def await_stopped(self, timeout_s: float = STOP_TIMEOUT_S) -> None:
        """Wait for the end that `request_stop` asked for. When the time is over, kill the process."""
        if self._process is None:
            return
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None

    def restart(self) -> None:
        """Stop the node if it runs, and start it in place: same data, same port. Returns once it has started."""
        if self._jvm is None:
            raise EnvironmentProblem(f"Kafka node {self.node_id} was never started.")
        self.stop()
        self.launch(self._jvm)
        self.await_started()

    def pause(self) -> None:
        """Freeze the process (SIGSTOP): its connections stay open without an answer. Returns when it stands still."""
        self.interruptions += 1
        os.kill(self.pid, signal.SIGSTOP)
        self._paused = True
        if hasattr(os, "waitid"):  # until one thread has taken the signal, the process still answers
            os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def resume(self) -> None:
        """Let a paused process go on (SIGCONT)."""
        os.kill(self.pid, signal.SIGCONT)
        self._paused = False

    def _end(self, how: signal.Signals) -> None:
        if self._process is None:
            return
        self.interruptions += 1
        self._process.send_signal(how)
        self._process.wait()
        self._process = None

    def _log_since_launch(self) -> str:
        if not self.log_path.exists():
            return ""
        with self.log_path.open("rb") as file:
            file.seek(self._log_start)
            return file.read().decode(errors="replace")

    def _death(self) -> EnvironmentProblem:
        log = self._log_since_launch()
        if any(sign in log for sign in _PORT_TAKEN):
            return PortTaken(
                f"Kafka node {self.node_id} could not listen: port {self.port} (or its controller port) is taken. "
                "Choose another port, or none to get a free one."
            )
        return EnvironmentProblem(f"Kafka node {self.node_id} died while it started. {self.last_words()}")

    def last_words(self) -> str:
        """The first errors in the node's log and its end, for an error message."""
        printed = self._stdout_path.read_text(errors="replace").splitlines() if self._stdout_path.exists() else []
        lines = [*self._log_since_launch().splitlines(), *printed]
        before, last = lines[:-_LOG_LINES_MAX], lines[-_LOG_LINES_MAX:]
        errors = [line for line in before if _ERROR.match(line)][:_ERRORS_MAX]
        shown = [*errors, "...", *last] if errors else last
        return f"Last lines of {self.log_path}:\n  " + "\n  ".join(shown)


def _escape(value: str) -> str:
    """As the value of a Java properties file."""
    return value.replace("\\", "\\\\").replace("\n", "\\n")


def random_uuid() -> str:
    """128 random bits in base64, not beginning with a dash, which the storage tool would take for an option."""
    while True:
        drawn = base64.urlsafe_b64encode(uuid.uuid4().bytes).rstrip(b"=").decode()
        if not drawn.startswith("-"):
            return drawn
