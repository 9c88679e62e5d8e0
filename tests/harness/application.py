"""A Spark application in processes of its own, to be killed, stopped and started again.

Its folder holds all that outlives it: `checkpoint`, `sink`, and beside them `progress.jsonl` (Spark's progress, one
object per line), `failure.txt` (the query's error), `driver.log` and `members.log` (joins and losses of its seats) and
`warnings.log`.
"""

import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self

import pyarrow.parquet as pq

import pyspark_kgroup
from harness.processes import WORKERS
from harness.reader_option import READER
from harness.waiting import wait_for
from harness.wrong_clock import WrongClock

_HERE = Path(__file__).parent
_LOGGED = "after sink, before commit log"

CLASS_ARCHIVE = Path(sys.prefix) / "spark-classes.jsa"
"""Spark's classes as one memory-mapped file, if it was recorded: a driver's JVM then starts with half the CPU time
(measured: 4.8 instead of 10.2 s until its first batch), and an executor's with 2.8 s less. A Java, a PySpark or a class
path that it does not fit does without it: a folder of configuration before the jars is another class path."""

QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""Options of a JVM that lives for seconds: a second compiler and a collector with many threads cost more than they
give."""

_SILENT = "-Xlog:disable -Xlog:all=error:stderr"
"""An archive that does not fit is told on standard output, where tests await answers of the driver's Python."""


class Row(NamedTuple):
    """One record as the sink holds it."""

    topic: str
    partition: int
    offset: int
    value: bytes
    batch_id: int


class Process(NamedTuple):
    pid: int
    parent: int
    state: str
    command: str


class Application:
    """One query in a driver of its own: Python, JVM, stream reader and workers, one terminal session.

    A context manager that leaves no process. A second one on the same folder is the restart.

    Args:
        folder: the folder of all its files, made if it is missing.
        read: options of the kgroup stream.
        sink: Spark's own file sink, or a foreachBatch function with the batch id as key.
        trigger: a processing time, or "availableNow".
        stop_at: one of the points in `harness/stop_points`, or "after sink, before commit log".
        conf: Spark's configuration beyond the settings of `_conf`.
        cut_off: Spark's id of an executor that cannot reach the registry on the driver.
        shuffles: whether the rows are shuffled on their way to the sink ("after shuffle" is a point there).
        clock: of the host that all its processes run on, if that is not right.

    Attributes:
        program: the program that the driver runs, with the folder as its argument.
    """

    program = _HERE / "driver_program.py"

    def __init__(
        self,
        folder: Path,
        read: dict[str, str],
        *,
        sink: Literal["files", "batches"] = "files",
        trigger: str = "200 milliseconds",
        master: str = "local[2]",
        stop_at: str | None = None,
        conf: dict[str, str] | None = None,
        cut_off: str = "",
        shuffles: bool = False,
        clock: WrongClock | None = None,
    ) -> None:
        self.folder = folder
        self.stop_at = stop_at
        self._cut_off = cut_off
        self._clock = clock
        self._sink = sink
        self._settings = {
            "read": {"reader": READER, **read},
            "sink": sink,
            "trigger": trigger,
            "master": master,
            "shuffles": shuffles,
            "conf": {**_conf(folder / "temporary"), **(conf or {})},
        }
        self._process: subprocess.Popen[bytes] | None = None

    # -------------------------------------------------------------------------------------------- lifetime

    def start(self) -> Self:
        """Start the driver, and return at once."""
        assert self._process is None, "an application starts once: make another one for the restart"
        for made in ("temporary", "stop"):
            (self.folder / made).mkdir(parents=True, exist_ok=True)
        for left in ("failure.txt", "stop/reached", "stop/released"):
            (self.folder / left).unlink(missing_ok=True)
        (self.folder / "application.json").write_text(json.dumps(self._settings))
        with (self.folder / "driver.log").open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-P", self.program, self.folder],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env=self._environment(),
                cwd=self.folder,  # `python -m` puts it on the path: there must be no sources in it
                start_new_session=True,
            )
        return self

    def _environment(self) -> dict[str, str]:
        python = pyspark_kgroup.python()
        return {
            **os.environ,
            "PYSPARK_PYTHON": python,
            "PYSPARK_DRIVER_PYTHON": python,
            **stop_environment(self.folder, self.stop_at),
            "KGROUP_CUT_OFF": self._cut_off,
            **(self._clock.environment if self._clock is not None else {}),
        }

    def __enter__(self) -> Self:
        return self if self._process is not None else self.start()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.kill()
        if kind is not None:
            self._print_logs()

    def _print_logs(self) -> None:
        """Print the logs that explain a failed test, for pytest to show with it."""
        for name, length in (("failure.txt", 4_000), ("members.log", 6_000), ("driver.log", 12_000)):
            path = self.folder / name
            if path.exists():
                print(f"----- the end of {name} of {self.folder.name}\n{path.read_text(errors='replace')[-length:]}")

    def kill(self) -> None:
        """SIGKILL to every process of the session."""
        self._signal_all(signal.SIGKILL, done=lambda _: False)
        self._close()

    def stop(self, timeout_s: float = 300) -> None:
        """Stop the query and end the driver in good order. A failed query is an error."""
        self._driver.stdin.close()
        assert self.await_end(timeout_s) == 0, self._ending()

    def await_end(self, timeout_s: float = 300) -> int:
        """Wait for the driver to end, and all its children. Returns the driver's exit code."""
        code = int(self._driver.wait(timeout_s))
        wait_for(lambda: not self.processes(), "all processes of the application to end", timeout_s)
        self._close()
        return code

    def _close(self) -> None:
        if self._process is not None:
            assert self._process.stdin is not None
            self._process.stdin.close()
            self._process.wait(30)

    @property
    def _driver(self) -> Any:
        assert self._process is not None, "the application was not started"
        return self._process

    # ------------------------------------------------------------------------------------------- processes

    def processes(self) -> list[Process]:
        """All processes of the session, without zombies."""
        command = ["ps", "-ww", "-o", "pid=,ppid=,state=,args=", "-s", str(self._driver.pid)]
        listing = subprocess.run(command, check=False, capture_output=True, text=True).stdout
        rows = [line.split(maxsplit=3) for line in listing.splitlines()]
        return [Process(int(pid), int(parent), state, args) for pid, parent, state, args in rows if state != "Z"]

    @property
    def driver_pid(self) -> int:
        return int(self._driver.pid)

    @property
    def jvm_pid(self) -> int:
        """The driver's JVM. Waits for it to be there."""

        def found() -> list[int]:
            children = [p for p in self.processes() if p.parent == self.driver_pid]
            return [p.pid for p in children if "java" in p.command.split()[0]]

        return wait_for(found, "the driver's JVM", 120)[0]

    @property
    def reader_pid(self) -> int:
        """The stream reader's process. Waits for it to be there."""

        def found() -> list[int]:
            return [p.pid for p in self.processes() if "python_streaming_source_runner" in p.command]

        return wait_for(found, "the stream reader's process", 120)[0]

    @property
    def worker_pids(self) -> list[int]:
        """Python workers of the executors, as many as there are now: the forks of Spark's daemon of their kind.

        The worker that looks data sources up for a starting driver is forked by another kind of daemon. It is left out,
        because Spark does not try again after its death.
        """
        daemons = [p for p in self.processes() if p.command.endswith(" ".join(WORKERS))]
        forks = {p.pid for p in daemons}
        return sorted(p.pid for p in daemons if p.parent in forks)

    @property
    def executor_pids(self) -> list[int]:
        """JVMs of a cluster's executors."""
        return sorted(p.pid for p in self.processes() if "CoarseGrainedExecutorBackend" in p.command)

    def sidecars(self, executor: int | None = None) -> list[int]:
        """Sidecars of this application, or of one executor's JVM, without the processes that they have forked."""
        all_of_them = self._beside()
        pids = {process.pid for process in all_of_them}
        found = [process.pid for process in all_of_them if process.parent not in pids]
        return [pid for pid in found if executor is None or executor in _watched_by(pid)]

    def seat_servers(self, executor: int) -> list[int]:
        """The processes that the sidecar of an executor has forked."""
        parents = self.sidecars(executor)
        return sorted(process.pid for process in self._beside() if process.parent in parents)

    def _beside(self) -> list[Process]:
        """Sidecars and seat servers, which have sessions of their own: they inherit our environment."""
        ours = f"TMPDIR={self.folder / 'temporary'}".encode()
        listing = subprocess.run(["ps", "-ww", "-eo", "pid=,ppid=,state=,args="], capture_output=True, text=True)
        rows = [
            line.split(maxsplit=3) for line in listing.stdout.splitlines() if "pyspark_kgroup.executor.sidecar." in line
        ]
        found = [Process(int(pid), int(parent), state, args) for pid, parent, state, args in rows if state != "Z"]
        return [process for process in found if ours in _environment_of(process.pid)]

    def pause(self) -> None:
        """SIGSTOP to every process of the session."""
        self._signal_all(signal.SIGSTOP, done=lambda process: process.state == "T")

    def resume(self) -> None:
        """SIGCONT to every process of the session."""
        self._signal_all(signal.SIGCONT, done=lambda process: process.state != "T")

    def _signal_all(self, number: signal.Signals, done: Any) -> None:
        """Signal until `done` holds for every process, because new processes may start meanwhile."""

        def all_done() -> bool:
            waiting = [process.pid for process in self.processes() if not done(process)]
            for pid in waiting:
                with suppress(ProcessLookupError):
                    os.kill(pid, number)
            return not waiting

        wait_for(all_done, f"{number.name} to reach every process", every_s=0.01)

    # ---------------------------------------------------------------------------------------------- points

    def await_stop_point(self, timeout_s: float = 300) -> int:
        """Wait until a process has reached the named point, and stands there. Returns its pid."""
        if self.stop_at == _LOGGED and self._sink == "files":
            return self._catch_between_logs(timeout_s)
        reached = self.folder / "stop" / "reached"
        self.wait_for(lambda: reached.exists() and reached.read_text(), f"the point {self.stop_at!r}", timeout_s)
        return int(reached.read_text())

    def disarm(self) -> None:
        """Let no process stop at the named point, until `arm`. May be called before the start."""
        (self.folder / "stop").mkdir(parents=True, exist_ok=True)
        (self.folder / "stop" / "disarmed").touch()

    def arm(self) -> None:
        """Let the next process that comes to the named point stop there, even if one has stopped there before."""
        for left in ("released", "reached", "disarmed"):
            (self.folder / "stop" / left).unlink(missing_ok=True)

    def release(self) -> None:
        """Let the process go on from where it stands."""
        (self.folder / "stop" / "released").touch()
        if self.stop_at == _LOGGED and self._sink == "files":
            os.kill(self.jvm_pid, signal.SIGCONT)

    def _catch_between_logs(self, timeout_s: float) -> int:
        """Spark's file sink runs no Python: stop the JVM when its log has a batch that the commit log has not.

        A try may come too late. The next batch is the next try.
        """
        deadline = time.monotonic() + timeout_s
        jvm = self.jvm_pid
        batch_id = max(_newest(self.folder / "sink" / "_spark_metadata"), _newest(self.folder / "checkpoint/commits"))
        while True:
            batch_id += 1
            sunk = self.folder / "sink" / "_spark_metadata" / str(batch_id)
            left_s = deadline - time.monotonic()
            self.wait_for(sunk.exists, f"a batch to stand at {self.stop_at!r} (now {batch_id})", left_s, every_s=0.001)
            os.kill(jvm, signal.SIGSTOP)
            wait_for(lambda: next(p.state for p in self.processes() if p.pid == jvm) == "T", "the JVM to stand still")
            if not (self.folder / "checkpoint" / "commits" / str(batch_id)).exists():
                return jvm
            os.kill(jvm, signal.SIGCONT)

    # ------------------------------------------------------------------------------------------- the query

    def failure(self) -> str | None:
        """The query's error text, None while it has none."""
        path = self.folder / "failure.txt"
        return path.read_text() if path.exists() else None

    def batches_done(self) -> int:
        """How many batches are in Spark's commit log."""
        return _newest(self.folder / "checkpoint" / "commits") + 1

    def progress(self) -> list[dict[str, Any]]:
        """Spark's progress reports of all runs on this folder, oldest first."""
        path = self.folder / "progress.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def await_rows(self, count: int, timeout_s: float = 300) -> list[Row]:
        """Wait until the sink holds `count` rows, and return all its rows."""
        found: list[Row] = self.wait_for(
            lambda: there if len(there := rows(self.folder)) >= count else [], f"{count} rows", timeout_s
        )
        return found

    def wait_for(self, condition: Any, what: str, timeout_s: float = 300, every_s: float | None = None) -> Any:
        """As `harness.waiting.wait_for`, but a driver that has ended is an error at once."""

        def alive_and_so() -> Any:
            if (value := condition()) or self._driver.poll() is None:
                return value
            raise AssertionError(f"the driver ended while {what} was awaited: {self._ending()}")

        return wait_for(alive_and_so, what, timeout_s, every_s)

    def _ending(self) -> str:
        """Why the driver ended, as far as it could say so."""
        if (failure := self.failure()) is not None:
            return failure[:4000]
        return (self.folder / "driver.log").read_text(errors="replace")[-4000:]


def stop_environment(folder: Path, stop_at: str | None) -> dict[str, str]:
    """Environment variables that arm a named point, for an application in `folder` and all its processes."""
    return {
        "PYTHONPATH": str(_HERE / "stop_points"),
        "TMPDIR": str(folder / "temporary"),
        "KGROUP_STOP_AT": stop_at or "",
        "KGROUP_STOP_FOLDER": str(folder / "stop"),
        "KGROUP_MEMBERS_LOG": str(folder / "members.log"),
        "KGROUP_WARNINGS_LOG": str(folder / "warnings.log"),
    }


def record_class_archive(folder: Path, read: dict[str, str]) -> None:
    """Let one whole run of a query write `CLASS_ARCHIVE` at its end, unless it is there already.

    Test processes that begin at once wait for the one that records it: they would take the machine from each other.
    """
    with CLASS_ARCHIVE.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if CLASS_ARCHIVE.exists():
            return
        unfinished = CLASS_ARCHIVE.with_suffix(f".{os.getpid()}")
        conf = {"spark.driver.extraJavaOptions": f"{_temporary(folder)} {QUICK} -XX:ArchiveClassesAtExit={unfinished}"}
        with Application(folder, read, trigger="availableNow", conf=conf) as application:
            assert application.await_end() == 0
        unfinished.rename(CLASS_ARCHIVE)


def _environment_of(pid: int) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:  # it has ended
        return []


def _watched_by(pid: int) -> set[int]:
    """Pids of the processes whose end `pid` awaits (proc(5), fdinfo of a pidfd)."""
    watched: set[int] = set()
    for entry in Path(f"/proc/{pid}/fdinfo").glob("*"):
        with suppress(OSError):
            watched |= {int(line.split()[1]) for line in entry.read_text().splitlines() if line.startswith("Pid:")}
    return watched


def rows(folder: Path) -> list[Row]:
    """The rows in the application's sink, batch by batch: of Spark's file sink, only files that its log names."""
    return [row for file in sink_files(folder) for row in file.rows]


class SinkFile(NamedTuple):
    """One file of a sink.

    Attributes:
        wall_shown_at_s: when the sink began to show it.
    """

    path: Path
    batch_id: int
    wall_shown_at_s: float

    @property
    def rows(self) -> list[Row]:
        return list(_rows_of(self))


@lru_cache(maxsize=512)
def _rows_of(file: SinkFile) -> tuple[Row, ...]:
    """Tests that wait for rows look at all files again and again. A batch written anew is another `SinkFile`."""
    columns = pq.read_table(file.path, columns=["topic", "partition", "offset", "value"], partitioning=None)
    return tuple(Row._make((*row, file.batch_id)) for row in zip(*columns.to_pydict().values(), strict=True))


def sink_files(folder: Path) -> list[SinkFile]:
    """The files of the application's sink, batch by batch: of Spark's file sink, only files that its log names."""
    logged = folder / "sink" / "_spark_metadata"
    if logged.exists():
        return [file for batch_id in sorted(_numbers(logged)) for file in _sunk(logged / str(batch_id), batch_id)]
    parts = {int(path.stem.removeprefix("batch-")): path for path in (folder / "sink").glob("batch-*.parquet")}
    return [SinkFile(path, batch_id, path.stat().st_mtime) for batch_id, path in sorted(parts.items())]


def _sunk(entry: Path, batch_id: int) -> list[SinkFile]:
    """One batch of Spark's file sink, whose log is a version and then one JSON object for each file."""
    paths = [json.loads(line)["path"].removeprefix("file://") for line in entry.read_text().splitlines()[1:]]
    return [SinkFile(Path(path), batch_id, entry.stat().st_mtime) for path in paths]


def _numbers(folder: Path) -> list[int]:
    return [int(path.name) for path in folder.iterdir() if path.name.isdecimal()] if folder.exists() else []


def _newest(folder: Path) -> int:
    """The newest batch in one of Spark's logs, -1 if there is none."""
    return max(_numbers(folder), default=-1)


def quick_java() -> str:
    """Options of a JVM that starts with half the CPU time, and of which no test asks for throughput."""
    archive = f"-XX:SharedArchiveFile={CLASS_ARCHIVE} -Xshare:auto {_SILENT}"
    return f"{QUICK} {archive}" if CLASS_ARCHIVE.exists() else QUICK


def quick_scripts() -> dict[str, str]:
    """Environment variables with which Spark's own scripts start JVMs as quickly, whatever a program configures.

    Each driver is started by two JVMs: the launcher's, which prints a command line, and the driver's own.
    """
    return {"SPARK_LAUNCHER_OPTS": QUICK, "SPARK_SUBMIT_OPTS": quick_java()}


def _temporary(folder: Path) -> str:
    """The option that keeps temporary files in the folder, because a killed JVM cannot clean up."""
    return f"-Djava.io.tmpdir={folder}"


def _conf(temporary: Path) -> dict[str, str]:
    return {
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.local.dir": str(temporary),
        "spark.driver.extraJavaOptions": f"{_temporary(temporary)} {quick_java()}",
        "spark.executor.extraJavaOptions": quick_java(),
        # The file sink's log stays as it is written, one entry for each batch, so that a row's batch can be told.
        "spark.sql.streaming.fileSink.log.compactInterval": "1000000",
    }
