"""What Spark's Python processes take: memory, open files, threads. Linux: it reads /proc."""

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from pyspark.sql.streaming import StreamingQuery

from harness.stream import wait_running
from harness.waiting import wait_for

Kind = tuple[str, ...]
"""Arguments that Spark starts the interpreter with, all of them."""

STREAM_READER: Kind = ("-m", "pyspark.sql.streaming.python_streaming_source_runner")
WORKERS: Kind = ("-m", "pyspark.daemon", "pyspark.worker")
"""They run tasks. What plans a query is a `pyspark.daemon` too, but of another module."""


@dataclass(frozen=True)
class Use:
    """One process at one moment; memory in KiB.

    Attributes:
        rss: resident now.
        peak: the most that was ever resident, or since `forget_peak`.
        files: open file descriptors, sockets among them.
    """

    rss: int
    peak: int
    files: int
    sockets: int
    threads: int


def use_of(pid: int) -> Use | None:
    """None if the process is gone."""
    folder = Path(f"/proc/{pid}")
    try:
        status = dict(line.split(":", 1) for line in (folder / "status").read_text().splitlines())
        targets = [target for entry in (folder / "fd").iterdir() if (target := _target(entry))]
    except (FileNotFoundError, ProcessLookupError):
        return None
    if "VmRSS" not in status:
        return None  # it has ended, and nobody has asked how
    return Use(
        rss=int(status["VmRSS"].split()[0]),
        peak=int(status["VmHWM"].split()[0]),
        files=len(targets),
        sockets=sum(target.startswith("socket:") for target in targets),
        threads=int(status["Threads"]),
    )


def _target(entry: Path) -> str:
    try:
        return os.readlink(entry)
    except FileNotFoundError:  # closed since it was listed, as is the one that listed them
        return ""


def forget_peak(pid: int) -> None:
    """Let `Use.peak` begin anew (proc(5), clear_refs)."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")


def joined_reader(before: set[int], members: int) -> int:
    """Pid of the one stream reader that is not of `before`, once it has a socket for Spark and one a member."""
    (reader,) = spark_processes(STREAM_READER) - before
    wait_for(lambda: (use := use_of(reader)) is not None and use.sockets >= members + 1, "all members to join", 60)
    return reader


def uses_until(
    query: StreamingQuery, condition: Callable[[], bool], what: str, timeout_s: float, *, reader: int
) -> dict[str, Use]:
    """What this stream reader and the workers use until then, sampled as `wait_for` asks.

    The most of everything but memory, as a worker has a consumer open only while it reads; of memory the least.
    """
    samples: dict[str, list[Use]] = {"reader": [], "worker": []}

    def sampled() -> bool:
        for kind, pids in (("reader", {reader}), ("worker", spark_processes(WORKERS))):
            if uses := [use for pid in pids if (use := use_of(pid)) is not None]:
                samples[kind].append(largest(uses))  # workers come and go: what leaks shows in the oldest
        return condition()

    wait_running(query, sampled, what, timeout_s)
    return {kind: replace(largest(uses), rss=min(use.rss for use in uses)) for kind, uses in samples.items()}


def largest(uses: list[Use]) -> Use:
    """The largest of each number."""
    return Use(*(max(getattr(use, name) for use in uses) for name in Use.__dataclass_fields__))


def spark_processes(kind: Kind) -> set[int]:
    """Pids of our descendants of this kind: `STREAM_READER` or `WORKERS` (without the daemon that forks them)."""
    parents: dict[int, int] = {}
    named: set[int] = set()
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            pid, stat = int(folder.name), (folder / "stat").read_text()
            command = (folder / "cmdline").read_bytes().decode(errors="replace").split("\0")
        except (FileNotFoundError, ProcessLookupError):
            continue
        parents[pid] = int(stat.rpartition(")")[2].split()[1])
        if tuple(command[1:-1]) == kind:  # a NUL ends each
            named.add(pid)
    ours = {pid for pid in named if _descends_from(os.getpid(), pid, parents)}
    return ours if kind != WORKERS else {pid for pid in ours if parents[pid] in ours}


def _descends_from(ancestor: int, pid: int, parents: dict[int, int]) -> bool:
    while pid in parents:
        pid = parents[pid]
        if pid == ancestor:
            return True
    return False
