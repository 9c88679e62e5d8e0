"""Which executor a worker belongs to, as the process table says."""

import platform
import subprocess
import sys
from pathlib import Path

import pytest

from pyspark_kgroup.executor.worker.this_executor import settings_for_rack, this_executor
from pyspark_kgroup.shared.process_folder import start_ticks
from pyspark_kgroup.shared.tickets import ReadSettings

AS_JVM = "import subprocess, sys; print(subprocess.run(sys.argv[1:3], capture_output=True, text=True).stdout)"
AS_WORKER = """
import os, subprocess, sys
if sys.argv[1:] == ["worker"]:
    from pyspark_kgroup.executor.worker.this_executor import this_executor
    found = this_executor(int(os.environ.get("TASK_CPUS", "1")))
    print(found.key, found.executor_id, found.host, found.pid, found.has_sidecar, found.cores)
else:  # pyspark.daemon stands between the two
    print(subprocess.run([sys.executable, __file__, "worker"], capture_output=True, text=True).stdout)
"""


def found_by_a_worker_of(tmp_path: Path, *arguments: str) -> list[str]:
    """Key, Spark's id, host, JVM pid, whether it may have a sidecar, and cores. A Python named `java` is the JVM."""
    java, worker = tmp_path / "java", tmp_path / "worker.py"
    java.symlink_to(Path(sys.executable).resolve())
    worker.write_text(AS_WORKER)
    command = [str(java), "-c", AS_JVM, sys.executable, str(worker), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()


def test_a_worker_finds_its_jvm_behind_the_daemon(tmp_path: Path) -> None:
    arguments = ("--executor-id", "7", "--hostname", "node-3", "--cores", "16")
    key, executor_id, host, pid, has_sidecar, cores = found_by_a_worker_of(tmp_path, *arguments)
    assert (executor_id, host, has_sidecar, cores) == ("7", "node-3", "True", "16")
    name, jvm, began = key.split(":")
    assert (name, jvm) == (platform.node(), pid)
    assert int(began) >= start_ticks(1)


@pytest.mark.parametrize(("task_cpus", "tasks"), [("4", "4"), ("3", "5"), ("32", "1")])
def test_an_executor_runs_as_many_tasks_at_once_as_its_cores_have_room_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, task_cpus: str, tasks: str
) -> None:
    monkeypatch.setenv("TASK_CPUS", task_cpus)  # spark.task.cpus
    *_, cores = found_by_a_worker_of(tmp_path, "--executor-id", "7", "--hostname", "node-3", "--cores", "16")
    assert cores == tasks


def test_a_jvm_that_is_no_executor_is_the_driver_of_local_mode(tmp_path: Path) -> None:
    _, executor_id, host, _, has_sidecar, cores = found_by_a_worker_of(tmp_path)
    assert (executor_id, host, has_sidecar, cores) == ("driver", platform.node(), "True", "0")


def test_without_a_jvm_among_its_ancestors_a_worker_has_no_sidecar() -> None:
    assert not this_executor().has_sidecar


@pytest.mark.parametrize("own", [None, "here"])
def test_an_executor_reads_in_the_rack_of_its_environment_and_else_in_that_of_the_query(
    monkeypatch: pytest.MonkeyPatch, own: str | None
) -> None:
    if own is not None:
        monkeypatch.setenv("KGROUP_CLIENT_RACK", own)
    executor = this_executor()
    assert executor.rack == (own or "")
    config = {"client.id": "c", "client.rack": "of the query"}
    found = settings_for_rack(executor, ReadSettings(consumer_config=config)).consumer_config
    assert found == {"client.id": "c", "client.rack": own or "of the query"}


def test_a_process_that_is_gone_has_not_start_ticks() -> None:
    with pytest.raises(OSError, match="No such file"):
        start_ticks(2**22 + 1)


def test_from_its_second_read_on_a_worker_does_not_walk_all_modules_after_each_task() -> None:
    program = """
import gc
from pyspark_kgroup.executor.worker.ticket_reader import read_ticket
from pyspark_kgroup.shared.tickets import Mode, ReadSettings, SeatRanges, TicketPayload
nothing = SeatRanges(seat="s", ranges=())
ticket = TicketPayload(
    scan_id=0, ticket=0, mode=Mode.FIXED, reads=nothing, settings=ReadSettings(consumer_config={}), registry=None,
)
for _ in range(3):
    list(read_ticket(ticket))
    print(gc.get_freeze_count())
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    first, second, third = map(int, done.stdout.split())
    assert first == 0
    assert second == third > 10_000
