"""The number of seats of a query without the option `members` (`sizing`)."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from pyspark_kgroup.driver.startup import sizing
from pyspark_kgroup.driver.startup.sizing import (
    MEMBERS_DEFAULT,
    as_many_as_before,
    fill_in_members,
    grows_with_executors,
    is_local,
    seats_warning,
    task_slots,
)
from pyspark_kgroup.offsets.checkpoint import EMPTY, Checkpoint, Owned, Period
from pyspark_kgroup.options.parser import parse
from pyspark_kgroup.options.rows import MEMBERS_MAX
from spark_kgroup.model import TopicPartition

TOPIC_ID = "0a" * 16
REQUIRED = {"kafka.bootstrap.servers": "a:9092", "kafka.group.id": "g", "subscribe": "t"}
JAVA = ["/usr/bin/java", "-cp", "/spark/jars/*", "-Xmx1g", "org.apache.spark.deploy.SparkSubmit"]


def slots(*arguments: str, **properties: str) -> int | None:
    conf = {f"spark.{name.replace('_', '.')}": value for name, value in properties.items()}
    return task_slots([*JAVA, *arguments, "pyspark-shell"], conf, cpus=lambda: 16)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--conf", "spark.master=local[3]"], 3),
        (["--master", "local"], 1),
        (["--master", "local[*]"], 16),
        (["--master=local[2, 4]"], 2),
        (["--conf", "spark.master=local-cluster[3, 2, 1024]"], 6),
        (["--master", "spark://host:7077", "--total-executor-cores", "12"], 12),
        (["--master", "spark://host:7077", "-c", "spark.cores.max=9"], 9),
        (["--master", "yarn", "--num-executors", "5", "--executor-cores", "4"], 20),
        (["--master", "k8s://https://host", "--conf", "spark.executor.instances=5"], 5),
        (["--master", "yarn", "--conf", "spark.executor.cores=4"], None),
        (["--master", "yarn", "--num-executors", "many"], None),
        (["--master", "yarn", "--num-executors", "0"], None),
        (["--master", "local[none]"], None),
        (["--master", "local[8]", "--conf", "spark.task.cpus=4"], 2),
        (["--master", "local[*]", "--conf", "spark.task.cpus=3"], 5),
        (["--master", "local[2]", "--conf", "spark.task.cpus=4"], 1),
        (["--master", "local-cluster[3, 4, 1024]", "--conf", "spark.task.cpus=2"], 6),
        (["--master", "spark://host:7077", "-c", "spark.cores.max=9", "-c", "spark.task.cpus=2"], 4),
        (["--master", "yarn", "--num-executors=5", "--executor-cores=4", "--conf", "spark.task.cpus=2"], 10),
        (["--conf"], None),
        ([], None),
    ],
)
def test_the_number_of_seats_follows_from_how_spark_was_started(arguments: list[str], expected: int | None) -> None:
    assert slots(*arguments) == expected


def test_an_argument_overrules_the_properties_file() -> None:
    assert slots("--master", "yarn", executor_instances="3", executor_cores="2") == 6
    assert slots("--master", "local[2]", master="local[8]") == 2


def test_a_given_number_of_seats_is_used() -> None:
    assert fill_in_members(parse({**REQUIRED, "members": "7"})).instance_ids == tuple(f"g-{k}" for k in range(7))


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--master", "local"], True),
        (["--master", "local[*]"], True),
        (["--master=local[2, 4]"], True),
        (["--conf", "spark.master=local[8]"], True),
        (["--master", "local-cluster[2, 1, 1024]"], False),
        (["--master", "spark://localhost:7077"], False),
        (["--master", "spark://host:7077", "--conf", "spark.driver.host=127.0.0.1"], True),
        (["--master", "spark://host:7077", "--conf", "spark.driver.host=localhost"], True),
        (["--master", "yarn", "--conf", "spark.driver.bindAddress=127.0.1.1"], True),
        (["--master", "yarn", "--conf", "spark.driver.bindAddress=[::1]"], True),
        (["--master", "yarn", "--conf", "spark.driver.bindAddress=0.0.0.0"], False),
        # Executors go to d.example, from where connections are forwarded to this host.
        (["--master", "yarn", "-c", "spark.driver.bindAddress=127.0.0.1", "-c", "spark.driver.host=d.example"], False),
        (["--master", "yarn", "--conf", "spark.driver.host=127.example.org"], False),
        (["--master", "k8s://https://host"], False),
        ([], False),
    ],
)
def test_a_query_stays_on_this_host_if_spark_was_started_so(arguments: list[str], expected: bool) -> None:
    assert is_local([*JAVA, *arguments, "pyspark-shell"], {}) is expected


def test_a_query_stays_on_this_host_if_the_properties_file_says_so() -> None:
    assert is_local(JAVA, {"spark.master": "local[2]"})
    assert not is_local([*JAVA, "--master", "yarn"], {"spark.master": "local[2]"})


def started_by(tmp_path: Path, *arguments: str, conf: str = "") -> int:
    """The seats that a stream reader sees whose parent has these arguments."""
    (tmp_path / "spark-defaults.conf").write_text(conf)
    child = (
        "from pyspark_kgroup.options.parser import parse\n"
        "from pyspark_kgroup.driver.startup.sizing import fill_in_members\n"
        f"print(fill_in_members(parse({REQUIRED})).members)\n"
    )
    # The arguments are the parent's, as Spark's are its JVM's. The interpreter does not look at them.
    parent = "import subprocess, sys; subprocess.run([sys.executable, '-c', sys.argv[1]], check=True)"
    environment = {"SPARK_CONF_DIR": str(tmp_path), "PATH": "/usr/bin:/bin"}
    command = [sys.executable, "-c", parent, child, *arguments]
    return int(subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout)


def test_the_number_of_seats_follows_from_the_stream_readers_parent(tmp_path: Path) -> None:
    assert started_by(tmp_path, "--conf", "spark.master=local[3]") == 3
    assert started_by(tmp_path) == MEMBERS_DEFAULT
    assert started_by(tmp_path, "--conf", "spark.cores.max=100000") == MEMBERS_MAX


def test_properties_come_from_the_file_that_spark_reads(tmp_path: Path) -> None:
    defaults = "# ours\nspark.executor.instances  6\nspark.executor.cores=2\nnot one\n"
    assert started_by(tmp_path, "--master", "yarn", conf=defaults) == 12
    named = tmp_path / "spark.properties"
    named.write_text("spark.executor.instances=5\n")
    assert started_by(tmp_path, "--properties-file", str(named), conf=defaults) == 5


def test_a_machine_without_proc_is_asked_by_ps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ps = tmp_path / "ps"
    ps.write_text("#!/bin/sh\necho /usr/bin/java org.apache.spark.deploy.SparkSubmit --conf spark.master=local[5] x\n")
    ps.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr(sizing, "_CMDLINE", str(tmp_path / "absent-{pid}"))
    assert fill_in_members(parse(REQUIRED)).members == 5
    ps.write_text("#!/bin/sh\nexit 1\n")
    assert fill_in_members(parse(REQUIRED)).members == MEMBERS_DEFAULT


@pytest.mark.parametrize(
    ("slots", "members", "seats", "partitions", "expected"),
    [
        (None, None, 4, 64, "Using 4 seats for 64 partitions: Spark's start does not say"),
        (None, None, 4, 4, None),
        (8, None, 8, 64, None),
        (None, "4", 4, 64, None),
        (None, "100", 100, 4, "100 seats for 4 partitions: 96 seats stay without a partition"),
        (None, "4", 4, 4, None),
    ],
)
def test_a_number_of_seats_that_is_a_guess_or_leaves_some_idle_makes_a_warning(
    monkeypatch: pytest.MonkeyPatch,
    slots: int | None,
    members: str | None,
    seats: int,
    partitions: int,
    expected: str | None,
) -> None:
    command = [*JAVA, "--master", f"local[{slots}]" if slots else "yarn"]
    monkeypatch.setattr(sizing, "_read_command", lambda _: command)
    options = parse({**REQUIRED, **({"members": members} if members else {})})
    warning = seats_warning(options, seats, partitions)
    assert (warning is None) == (expected is None)
    assert warning is None or (warning.startswith(str(expected)) and "`members`" in warning)


@pytest.mark.parametrize(
    ("master", "options", "expected"),
    [
        ("yarn", {}, True),
        ("yarn", {"members": "4"}, False),
        ("yarn", {"memberIds": "client"}, False),
        ("local[2]", {}, False),
    ],
)
def test_seats_follow_executors_only_where_members_is_not_given(
    monkeypatch: pytest.MonkeyPatch, master: str, options: dict[str, str], expected: bool
) -> None:
    monkeypatch.setattr(sizing, "_read_command", lambda _: [*JAVA, "--master", master])
    assert grows_with_executors(parse({**REQUIRED, **options})) == expected


def planned(*seats: str) -> Checkpoint:
    """The checkpoint of a query whose seats own a partition each."""
    period = Period(topic_id=TOPIC_ID, start=0, seat="", generation=1)
    owned = {
        TopicPartition("t", index): Owned(period=replace(period, seat=seat), position=0)
        for index, seat in enumerate(seats)
    }
    return replace(EMPTY, owned=owned)


@pytest.mark.parametrize(
    ("seats", "expected"),
    [
        ([], 4),
        (["g-0", "g-1"], 4),
        (["g-0", "g-23", "g-7"], 24),
        (["other-90", "g-x", "g--1", "g-", "g"], 4),
        (["g-99999"], MEMBERS_MAX),
    ],
)
def test_a_restart_has_as_many_seats_as_the_checkpoint_has_owners(seats: list[str], expected: int) -> None:
    options = parse({**REQUIRED, "members": "4"})
    assert as_many_as_before(options, planned(*seats)).members == expected
