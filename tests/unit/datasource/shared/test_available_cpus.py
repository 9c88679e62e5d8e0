"""How many CPUs there are for this process: by its affinity, and by the quotas of control groups."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pyspark_kgroup.shared import available_cpus as available_cpus_module
from pyspark_kgroup.shared.available_cpus import available_cpus


@pytest.fixture
def groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where control groups are mounted, on a host of 64 CPUs."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(64)))
    monkeypatch.setattr(available_cpus_module, "_MOUNTED", tmp_path)
    return tmp_path


def within(groups: Path, monkeypatch: pytest.MonkeyPatch, mine: str, files: dict[str, str]) -> int:
    """CPUs of a process whose /proc/self/cgroup is `mine`."""
    for name, text in {"mine": mine, **files}.items():
        (groups / name).parent.mkdir(parents=True, exist_ok=True)
        (groups / name).write_text(text)
    monkeypatch.setattr(available_cpus_module, "_MINE", groups / "mine")
    return available_cpus()


V1 = "5:memory:/pod/x\n4:cpu,cpuacct:/pod/x\n0::/pod/x\n"
QUOTA, PERIOD = "cpu.cfs_quota_us", "cpu.cfs_period_us"


@pytest.mark.parametrize(
    ("mine", "files", "cpus"),
    [
        ("0::/\n", {"cpu.max": "200000 100000\n"}, 2),  # a container, in a namespace of its own
        ("0::/\n", {"cpu.max": "250000 100000\n"}, 3),  # rounded up, as a JVM does
        ("0::/\n", {"cpu.max": "20000 100000\n"}, 1),
        ("0::/\n", {"cpu.max": "max 100000\n"}, 64),
        ("0::/a/b\n", {"a/b/cpu.max": "max 100000\n", "a/cpu.max": "400000 100000\n"}, 4),  # a slice of systemd's
        ("0::/../b\n", {"cpu.max": "300000 100000\n"}, 3),
        ("0::/\n", {"cpu.max": "lots\n"}, 64),
        (V1, {f"cpu/pod/x/{QUOTA}": "300000\n", f"cpu/pod/x/{PERIOD}": "100000\n"}, 3),
        (V1, {f"cpu/{QUOTA}": "500000\n", f"cpu/{PERIOD}": "100000\n"}, 5),  # a container: the path is the host's
        (V1, {f"cpu/{QUOTA}": "-1\n", f"cpu/{PERIOD}": "100000\n"}, 64),
        ("no groups", {}, 64),
    ],
)
def test_a_quota_of_a_control_group_bounds_the_cpus_of_its_processes(
    groups: Path, monkeypatch: pytest.MonkeyPatch, mine: str, files: dict[str, str], cpus: int
) -> None:
    assert within(groups, monkeypatch, mine, files) == cpus


def test_a_process_that_may_run_on_one_cpu_has_one() -> None:
    program = (
        "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\n"
        "from pyspark_kgroup.shared.available_cpus import available_cpus\n"
        "print(available_cpus())\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "1\n"
