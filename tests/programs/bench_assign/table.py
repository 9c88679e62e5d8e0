"""The measurements as Markdown."""

import os
import platform
from collections.abc import Callable, Mapping

from bench_assign.cases import Case, Measured
from spark_kgroup.testing.java import find_java
from spark_kgroup.testing.kafka_release import KAFKA_VERSION

HEADINGS = ("partitions x members", "", "ours s", "again", "Java s", "again", "ours / Java", "loads", "moved", "MiB")


def machine() -> str:
    """The machine and the versions, on which the figures depend, in one line."""
    return (
        f"{os.cpu_count()} cores, {platform.system()} {platform.release()}, load average {os.getloadavg()[0]:.1f} at "
        f"the start; Python {platform.python_version()}, Java {find_java().version}, kafka-clients {KAFKA_VERSION}"
    )


def table(measured: Mapping[Case, tuple[Measured, Measured | None]], timeout_s: float) -> str:
    """Two lines for each case: a new group, and when some have left.

    Args:
        measured: ours, and Java's, or None if Java took longer than `timeout_s`.
    """
    rows = [HEADINGS, [":--" if heading in HEADINGS[:2] else "--:" for heading in HEADINGS]]
    for case, (ours, java) in measured.items():
        late = f"> {timeout_s:g}"
        for what, column in (("new", 0), (f"{case.leavers} left", 1)):
            mine = [run.seconds[column] for run in ours.runs]
            theirs = [run.seconds[column] for run in java.runs] if java else []
            rows.append(
                [
                    str(case) if column == 0 else "",
                    what,
                    *_cold_and_warm(mine),
                    *(_cold_and_warm(theirs) if theirs else [late, "-"]),
                    " / ".join(_ratios(mine, theirs)) if theirs else "-",
                    _both(ours, java, lambda of: "-".join(map(str, of.runs[0].spread))) if column else "",
                    _both(ours, java, lambda of: str(of.runs[0].moved)) if column else "",
                    _both(ours, java, lambda of: str(of.peak_mib)) if column else "",
                ]
            )
    title = (
        "cooperative-sticky beside Java's, CPU seconds of the thread that assigns: the first run of a process, then "
        "the least of the others; loads, moved and memory as ours / Java's"
    )
    return "\n".join([f"{title}:", "", *(f"| {' | '.join(row)} |" for row in rows)])


def _cold_and_warm(seconds: list[float]) -> list[str]:
    return [f"{seconds[0]:.2f}", f"{min(seconds[1:]):.2f}" if seconds[1:] else "-"]


def _ratios(mine: list[float], theirs: list[float]) -> list[str]:
    """Ratios of the first runs, and of the best later ones."""
    found = [f"{mine[0] / theirs[0]:.1f}"]
    if mine[1:] and theirs[1:]:
        found.append(f"{min(mine[1:]) / min(theirs[1:]):.1f}")
    return found


def _both(ours: Measured, java: Measured | None, show: Callable[[Measured], str]) -> str:
    return f"{show(ours)} / {show(java) if java else '-'}"
