"""What Spark's Python processes take: memory, open files, threads. Linux: it reads /proc."""

import os
from dataclasses import dataclass
from pathlib import Path

STREAM_READER = "python_streaming_source_runner"
WORKERS = "pyspark.daemon"


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


def spark_processes(kind: str) -> set[int]:
    """Pids of our descendants of this kind: `STREAM_READER` or `WORKERS` (without the daemon that forks them)."""
    parents: dict[int, int] = {}
    named: set[int] = set()
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            pid, stat = int(folder.name), (folder / "stat").read_text()
            command = (folder / "cmdline").read_bytes().decode(errors="replace")
        except (FileNotFoundError, ProcessLookupError):
            continue
        parents[pid] = int(stat.rpartition(")")[2].split()[1])
        if kind in command:
            named.add(pid)
    ours = {pid for pid in named if _descends_from(os.getpid(), pid, parents)}
    return ours if kind != WORKERS else {pid for pid in ours if parents[pid] in ours}


def _descends_from(ancestor: int, pid: int, parents: dict[int, int]) -> bool:
    while pid in parents:
        pid = parents[pid]
        if pid == ancestor:
            return True
    return False
