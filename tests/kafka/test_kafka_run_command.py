"""`kgroup kafka run` as a person meets it: in a process of its own, ended by signals."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

import pytest
from confluent_kafka.admin import AdminClient
from harness.waiting import wait_for

from spark_kgroup.testing.kafka_jars import kafka_jars

COMMAND = [str(Path(sys.executable).parent / "kgroup"), "kafka", "run"]


class Run:
    """A running command. Its standard error goes to a file, so that it never blocks on a full pipe."""

    def __init__(self, errors: Path, *arguments: str, **environment: str) -> None:
        self._errors = errors
        with errors.open("wb") as stderr:
            self.process = subprocess.Popen(
                [*COMMAND, *arguments],
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
                env={**os.environ, **environment},
                start_new_session=True,
            )

    @property
    def output(self) -> IO[str]:
        assert self.process.stdout is not None
        return self.process.stdout

    @property
    def errors(self) -> str:
        return self._errors.read_text()

    def bootstrap_servers(self) -> str:
        """Waits for the line that says ready."""
        line = self.output.readline()
        assert line.startswith("bootstrap.servers="), self.errors
        return line.removeprefix("bootstrap.servers=").rstrip("\n")

    def jvm_pids(self) -> list[int]:
        """The JVMs of this run: they are in its session, in any process group."""
        command = ["ps", "-ww", "-s", str(self.process.pid), "-o", "pid=,stat=,args="]
        lines = subprocess.run(command, capture_output=True, text=True, check=False).stdout.splitlines()
        found = [line.split(None, 2) for line in lines if "kafka.Kafka" in line]
        return [int(pid) for pid, stat, _ in found if not stat.startswith("Z")]

    def await_nothing_left(self) -> None:
        wait_for(lambda: not self.jvm_pids(), "the end of every JVM")


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Callable[..., Run]]:
    """Starts the command, and kills the processes that a failed test leaves."""
    runs: list[Run] = []

    def start(*arguments: str, **environment: str) -> Run:
        runs.append(Run(tmp_path / f"errors-{len(runs)}", *arguments, **environment))
        return runs[-1]

    yield start
    for each in runs:
        each.process.kill()
        each.process.wait(10)
        each.output.close()
        each.await_nothing_left()


def assert_it_answers_and_ends_cleanly_on(number: signal.Signals, kafka: Run, servers: str) -> None:
    assert re.fullmatch(r"127\.0\.0\.1:\d+", servers)
    assert AdminClient({"bootstrap.servers": servers}).list_topics(timeout=20).brokers
    assert len(kafka.jvm_pids()) == 1

    os.killpg(kafka.process.pid, number)  # to the whole foreground group, as a terminal does
    assert kafka.process.wait(60) == 0, kafka.errors
    assert kafka.jvm_pids() == []
    assert kafka.output.read() == ""


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGHUP, marks=pytest.mark.full)])
def test_the_run_command_prints_servers_that_answer_and_a_signal_ends_it_cleanly(
    run: Callable[..., Run], tmp_path: Path, number: signal.Signals
) -> None:
    (tmp_path / "tmp").mkdir()
    kafka = run(TMPDIR=str(tmp_path / "tmp"))
    assert_it_answers_and_ends_cleanly_on(number, kafka, kafka.bootstrap_servers())
    assert list((tmp_path / "tmp").iterdir()) == []


def test_kill_9_leaves_no_jvm_and_a_data_directory_that_the_next_run_uses_until_sigterm(
    run: Callable[..., Run], tmp_path: Path
) -> None:
    (tmp_path / "tmp").mkdir()
    arguments, environment = ("--data-dir", str(tmp_path / "data")), {"TMPDIR": str(tmp_path / "tmp")}
    first = run(*arguments)
    first.bootstrap_servers()
    assert first.jvm_pids()
    first.process.kill()
    first.await_nothing_left()

    def started() -> tuple[Run, str] | None:
        again = run(*arguments, **environment)
        line = again.output.readline()
        return (again, line.removeprefix("bootstrap.servers=").rstrip("\n")) if line else None

    again, servers = wait_for(started, "the directory to be free again", 30)
    assert_it_answers_and_ends_cleanly_on(signal.SIGTERM, again, servers)
    assert list((tmp_path / "tmp").iterdir()) == []


@pytest.mark.full
def test_a_data_directory_is_refused_to_a_second_run_and_two_signals_do_not_make_the_stop_less_clean(
    run: Callable[..., Run], tmp_path: Path
) -> None:
    kafka = run("--data-dir", str(tmp_path / "data"))
    kafka.bootstrap_servers()
    second = run("--data-dir", str(tmp_path / "data"))
    assert second.process.wait(60) == 1
    assert second.errors.splitlines()[-1].startswith("kgroup: Another Apache Kafka runs on ")

    kafka.process.send_signal(signal.SIGINT)
    wait_for(lambda: "Stopping" in kafka.errors, "the stop to begin")
    kafka.process.send_signal(signal.SIGINT)
    assert kafka.process.wait(60) == 0, kafka.errors
    assert kafka.jvm_pids() == []


def test_an_interrupt_before_it_is_ready_leaves_no_jvm(run: Callable[..., Run]) -> None:
    kafka = run()
    wait_for(kafka.jvm_pids, "a JVM")
    kafka.process.send_signal(signal.SIGINT)
    assert kafka.process.wait(60) == 130, kafka.errors
    assert kafka.jvm_pids() == []
    assert kafka.output.read() == ""


def test_a_node_that_dies_ends_the_run_with_an_error(run: Callable[..., Run]) -> None:
    kafka = run()
    kafka.bootstrap_servers()
    os.kill(kafka.jvm_pids()[0], signal.SIGKILL)
    assert kafka.process.wait(60) == 1
    assert re.search(r"^kgroup: Kafka node 1 \(port \d+\) died", kafka.errors, re.MULTILINE)
    assert "Traceback" not in kafka.errors


@pytest.mark.parametrize(
    ("arguments", "environment", "message"),
    [
        (["--nodes", "2"], {}, "kgroup: --nodes is 2"),
        (["--port", "65535", "--nodes", "3"], {}, "kgroup: --port is 65535"),
        ([], {"JAVA_HOME": "", "PATH": "/nowhere"}, "Found no Java"),
    ],
)
def test_a_broker_that_cannot_be_run_is_one_line_on_standard_error(
    run: Callable[..., Run], arguments: list[str], environment: dict[str, str], message: str
) -> None:
    kafka = run(*arguments, **environment)
    assert kafka.process.wait(60) == 1
    last = kafka.errors.splitlines()[-1]
    assert last.startswith("kgroup: ")
    assert message in last
    assert "Traceback" not in kafka.errors
    assert kafka.output.read() == ""


def test_too_old_a_java_is_one_clear_line(run: Callable[..., Run], tmp_path: Path) -> None:
    java = tmp_path / "java-11" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text("#!/bin/sh\necho 'openjdk version \"11.0.22\" 2024-01-16' >&2\n")
    java.chmod(0o755)
    kafka = run(JAVA_HOME=str(tmp_path / "java-11"))
    assert kafka.process.wait(60) == 1
    assert re.search(r"^kgroup: Found Java 11 \(.*java\), which is too old\..*JAVA_HOME", kafka.errors, re.MULTILINE)


def test_help_shows_examples() -> None:
    shown = subprocess.run([*COMMAND, "--help"], capture_output=True, text=True, check=True).stdout
    for words in ("kgroup kafka run --nodes 3", "--data-dir", "--port"):
        assert words in shown


@pytest.mark.full
def test_the_first_run_of_a_user_shows_that_classes_are_prepared_and_on_standard_error_only(
    run: Callable[..., Run], tmp_path: Path
) -> None:
    (jar, *_) = kafka_jars()
    (tmp_path / "jars").mkdir()
    (tmp_path / "jars" / jar.parent.name).symlink_to(jar.parent)
    kafka = run(KGROUP_CACHE=str(tmp_path))
    assert kafka.bootstrap_servers()
    assert [path.suffix for path in sorted((tmp_path / "classes").iterdir())] == [".jsa", ".lock"]
    assert [line.partition(" after")[0] for line in kafka.errors.splitlines()] == [
        "Preparing Kafka's classes for faster starts (once)",
        "Preparing Kafka's classes for faster starts (once): done",
        "Starting Apache Kafka (1 node)",
        "Starting Apache Kafka (1 node): done",
        "Ctrl-C stops it.",
    ]
