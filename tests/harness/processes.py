"""Memory, open files and threads of Spark's Python processes. Linux: it reads /proc."""

import os
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from pyspark.sql.streaming import StreamingQuery

from harness.stream import wait_running
from harness.waiting import wait_for

Kind = tuple[str, ...]
"""Arguments that Spark starts the interpreter with, all of them."""

STREAM_READER: Kind = ("-m", "pyspark.sql.streaming.python_streaming_source_runner")
WORKERS: Kind = ("-m", "pyspark.daemon", "pyspark.worker")
"""They run tasks. The process that plans a query is a `pyspark.daemon` too, but of another module."""


SIDECAR: Kind = ("-P", "-m", "pyspark_kgroup.executor.sidecar.sidecar")
"""Followed by the executor's key. The seats' processes, which a sidecar forks, have the same arguments."""


@dataclass(frozen=True)
class Use:
    """One process at one moment, memory in KiB.

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
    """The use of a process, or None if it is gone."""
    folder = Path(f"/proc/{pid}")
    try:
        status = dict(line.split(":", 1) for line in (folder / "status").read_text().splitlines())
        targets = [target for entry in (folder / "fd").iterdir() if (target := _target(entry))]
    except (FileNotFoundError, ProcessLookupError):
        return None
    if "VmRSS" not in status:
        return None  # a zombie: it has ended, and its parent has not waited for it
    return Use(
        rss=int(status["VmRSS"].split()[0]),
        peak=int(status["VmHWM"].split()[0]),
        files=len(targets),
        sockets=sum(target.startswith("socket:") for target in targets),
        threads=int(status["Threads"]),
    )


def listens_on(pid: int) -> set[str]:
    """The addresses of this host on which a process takes TCP connections (proc(5), net/tcp)."""
    sockets = {_target(entry) for entry in Path(f"/proc/{pid}/fd").iterdir()}
    found = set()
    for table, family in (("tcp", socket.AF_INET), ("tcp6", socket.AF_INET6)):
        for fields in map(str.split, Path(f"/proc/net/{table}").read_text().splitlines()[1:]):
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in sockets:
                words = bytes.fromhex(fields[1].partition(":")[0])  # each of 4 bytes, the last one first
                address = b"".join(words[at : at + 4][::-1] for at in range(0, len(words), 4))
                found.add(socket.inet_ntop(family, address))
    return found


def _target(entry: Path) -> str:
    try:
        return os.readlink(entry)
    except FileNotFoundError:  # closed since it was listed, as is the one that listed them
        return ""


def connected_to(pid: int) -> set[int]:
    """Ports of other processes that a process has TCP connections to (proc(5), /proc/net/tcp)."""
    sockets = {_target(entry) for entry in Path(f"/proc/{pid}/fd").iterdir()}
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return {int(row[2].rpartition(":")[2], 16) for row in rows if f"socket:[{row[9]}]" in sockets}


def forget_peak(pid: int) -> None:
    """Let `Use.peak` begin anew (proc(5), clear_refs)."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")


def joined_reader(before: set[int], members: int) -> int:
    """Pid of the one stream reader that is not of `before`, once it has a socket for Spark and one a member."""
    (reader,) = spark_processes(STREAM_READER) - before
    wait_for(lambda: (use := use_of(reader)) is not None and use.sockets >= members + 1, "all members to join", 60)
    return reader


Kinds = Mapping[str, Callable[[], set[int]]]
"""Name of a kind of process -> pids of those that live."""


def kinds_of(reader: int) -> Kinds:
    """All Python processes of a query: its stream reader, the workers, and the sidecar with the seats' processes."""
    return {
        "reader": lambda: {reader},
        "worker": lambda: spark_processes(WORKERS),
        "sidecar": sidecar_processes,
    }


def uses_until(
    query: StreamingQuery, condition: Callable[[], bool], what: str, timeout_s: float, kinds: Kinds
) -> dict[str, Use]:
    """The use of these processes until `condition` holds, sampled as `wait_for` asks.

    The most of everything but memory, as a worker has a consumer open only while it reads. Of memory the least.
    """
    samples: dict[str, list[Use]] = {kind: [] for kind in kinds}

    def sampled() -> bool:
        for kind, pids in kinds.items():
            if uses := [use for pid in pids() if (use := use_of(pid)) is not None]:
                samples[kind].append(largest(uses))  # workers come and go: a leak shows in the oldest
        return condition()

    wait_running(query, sampled, what, timeout_s)
    return {kind: replace(largest(uses), rss=min(use.rss for use in uses)) for kind, uses in samples.items()}


def largest(uses: list[Use]) -> Use:
    """The largest of each number."""
    return Use(*(max(getattr(use, name) for use in uses) for name in Use.__dataclass_fields__))


def sidecar_processes() -> set[int]:
    """Pids of sidecars whose executors descend from us, and of their seats' processes, whichever is their parent."""
    all_of_them = _all_processes()
    parents = {pid: parent for pid, (_, parent) in all_of_them.items()}
    executors = {pid: command[-2] for pid, (command, _) in all_of_them.items() if tuple(command[1:-2]) == SIDECAR}
    return {pid for pid, key in executors.items() if _descends_from(os.getpid(), int(key.split(":")[1]), parents)}


def spark_processes(kind: Kind) -> set[int]:
    """Pids of our descendants of this kind: `STREAM_READER` or `WORKERS` (without the daemon that forks them)."""
    all_of_them = _all_processes()
    parents = {pid: parent for pid, (_, parent) in all_of_them.items()}
    named = {pid for pid, (command, _) in all_of_them.items() if tuple(command[1:-1]) == kind}  # a NUL ends each
    ours = {pid for pid in named if _descends_from(os.getpid(), pid, parents)}
    return ours if kind != WORKERS else {pid for pid in ours if parents[pid] in ours}


def _all_processes() -> dict[int, tuple[list[str], int]]:
    """Pid -> (arguments with an empty one last, the parent's pid)."""
    found: dict[int, tuple[list[str], int]] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            stat = (folder / "stat").read_text()
            command = (folder / "cmdline").read_bytes().decode(errors="replace").split("\0")
        except (FileNotFoundError, ProcessLookupError):
            continue
        found[int(folder.name)] = command, int(stat.rpartition(")")[2].split()[1])
    return found


def _descends_from(ancestor: int, pid: int, parents: dict[int, int]) -> bool:
    while pid in parents:
        pid = parents[pid]
        if pid == ancestor:
            return True
    return False
