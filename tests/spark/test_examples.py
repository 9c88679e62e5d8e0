"""The examples, run as a user runs them, and the notebook's cells, as far as they need no Databricks."""

import os
import re
import signal
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka.admin import AdminClient
from harness.example import EXAMPLES, TIMEOUT_S, Example
from harness.kafka import produce
from harness.secured import ALICE, PASSWORDS
from harness.waiting import wait_for
from pyspark.sql import SparkSession

from pyspark_kgroup.options.parser import parse
from spark_kgroup.testing import ApacheKafka

if TYPE_CHECKING:
    from harness.secured import SecuredKafka

NewTopic = Callable[[int], str]


@pytest.fixture
def example(tmp_path: Path) -> Iterator[Example]:
    started = Example(tmp_path / "tmp")
    yield started
    started.assert_nothing_is_left()


@pytest.fixture
def flights(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    import flights

    return flights


def test_quickstart_prints_each_record_once_over_two_runs(
    example: Example, apache_kafka: ApacheKafka, new_topic: NewTopic, tmp_path: Path
) -> None:
    topic = new_topic(2)
    produced = [f"{number:020d}" for number in range(8)]
    for first in (0, 4):
        produce(apache_kafka.bootstrap_servers, topic, 4, partitions=2, first=first)
        code, output = example.run("quickstart.py", apache_kafka.bootstrap_servers, topic, str(tmp_path / "checkpoint"))
        assert code == 0, output
        assert sorted(re.findall(r"\| *\d\| +\d\|(\d{20})\|", output)) == produced[first : first + 4], output
    assert {row.instance_id for row in apache_kafka.describe_group(topic)} <= {f"{topic}-0", f"{topic}-1"}
    assert len((EXAMPLES / "quickstart.py").read_text().splitlines()) <= 25


@pytest.mark.full
def test_flights_counts_as_pandas_counts(example: Example, apache_kafka: ApacheKafka, group: str) -> None:
    arguments = ["--bootstrap-server", apache_kafka.bootstrap_servers, "--topic", group, "--group", group]
    code, output = example.run("flights.py", *arguments, "--rows", "3000", "--rows-per-batch", "1500")
    assert code == 0, output
    assert "3,000 of 3,000 rows, lag 0\n" in output
    assert "equal to the last digit, over 3,000 rows" in output
    assert re.search(r"UA .* (\S+) +\1 +=", output), output
    assert "WARN" not in output
    rows = apache_kafka.describe_group(group)
    assert [(row.partition, row.lag) for row in rows] == [(index, 0) for index in range(8)]
    assert {row.instance_id for row in rows} == {f"{group}-{seat}" for seat in range(4)}

    code, output = example.run("flights.py", *arguments, "--rows", "2000")
    assert code == 1
    assert f"Topic {group} holds 3,000 records, not 2,000: choose another --topic." in output


@pytest.mark.full
def test_flights_fails_if_the_numbers_differ(
    example: Example, apache_kafka: ApacheKafka, new_topic: NewTopic, group: str
) -> None:
    topic = new_topic(8)
    produce(apache_kafka.bootstrap_servers, topic, 50, partitions=8)  # as many records, and no flights
    arguments = ["--bootstrap-server", apache_kafka.bootstrap_servers, "--topic", topic, "--group", group]
    code, output = example.run("flights.py", *arguments, "--rows", "50")
    assert code == 1
    assert f"Topic {topic} already holds all 50 records" in output
    assert "flights.py: Spark's aggregate is not the one that pandas computes" in output
    assert "≠" in output


def test_flights_without_a_kafka_fails_in_one_sentence(example: Example) -> None:
    code, output = example.run("flights.py", "--bootstrap-server", "127.0.0.1:1", "--rows", "10")
    assert code == 1
    assert "flights.py: No Kafka answers at 127.0.0.1:1" in output
    assert "Traceback" not in output


def test_flights_help_has_an_example(example: Example) -> None:
    code, output = example.run("flights.py", "--help")
    assert code == 0
    assert "python examples/flights.py --bootstrap-server 127.0.0.1:9092" in output


def test_demo_shows_the_group_as_kafka_describes_it(example: Example) -> None:
    code, output = example.run("demo.py", "--rows", "4000")
    assert code == 0, output
    assert "equal to the last digit, over 4,000 rows" in output
    assert "Group flights is Stable: 4 members, assignor cooperative-sticky" in output
    members = re.findall(r"(flights-\d) +(flights-\d)-[0-9a-f-]{36} +(\d), (\d)", output)
    assert [(member, prefix) for member, prefix, *_ in members] == [(f"flights-{k}",) * 2 for k in range(4)]
    assert sorted(partition for *_, a, b in members for partition in (a, b)) == list("01234567")
    offsets = re.findall(r"flights +(\d) +([\d,]+) +([\d,]+) +0 +flights-\d", output)
    assert [partition for partition, *_ in offsets] == list("01234567")
    assert all(committed == end for _, committed, end in offsets)
    assert sum(int(end.replace(",", "")) for *_, end in offsets) == 4000
    assert "WARN" not in output


@pytest.mark.parametrize(
    ("seen", "what_runs"),
    [
        pytest.param("one consumer group", " -cp ", marks=pytest.mark.full),
        pytest.param("2,000 rows in", "org.apache.spark", marks=pytest.mark.full),
        ("rows, lag", "org.apache.spark"),
    ],
    ids=["while Kafka starts", "while Spark starts", "while the query runs"],
)
def test_demo_ends_cleanly_on_ctrl_c(example: Example, seen: str, what_runs: str) -> None:
    process = example.start("demo.py", "--rows", "2000")
    wait_for(lambda: seen in example.printed() and what_runs in "".join(example.processes()), seen, TIMEOUT_S)
    os.killpg(process.pid, signal.SIGINT)
    os.killpg(process.pid, signal.SIGINT)  # an impatient one
    assert process.wait(60) == 130, example.printed()
    assert example.printed().endswith("Stopped.\n")
    assert "Traceback" not in example.printed()


# ------------------------------------------------------------------------------------------ the notebook

NOTEBOOK = (EXAMPLES / "databricks.py").read_text()
CELLS = [cell.strip() for cell in NOTEBOOK.removeprefix("# Databricks notebook source\n").split("# COMMAND ----------")]


def test_the_notebook_streams_and_compares(
    spark: SparkSession,
    apache_kafka: ApacheKafka,
    flights: ModuleType,
    group: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    database = group.replace("-", "_")
    spark.sql(f"CREATE DATABASE {database} LOCATION '{tmp_path / 'tables'}'")
    flown = flights.read_flights(3000)
    monkeypatch.setattr(flights, "read_flights", lambda: flown)
    displayed: list[Any] = []
    given = {
        "BOOTSTRAP": apache_kafka.bootstrap_servers,
        "TOPIC": group,
        "GROUP": group,
        "SEATS": "4",
        "CHECKPOINT": str(tmp_path / "checkpoint"),
        "TABLE": f"{database}.flight_delays",
        "SECURITY": {},
        "spark": spark,
        "display": lambda frame: displayed.append(flights.delays_in(frame)),
    }
    ran = [cell for cell in CELLS if "dbutils" not in cell and "# MAGIC" not in cell]
    for cell in ran:
        exec(compile(cell, "databricks.py", "exec"), given)
    assert len(ran) == 8
    assert displayed == [flights.delays_by_pandas(flown)]
    output = capsys.readouterr().out
    assert "equal to the last digit, over 3,000 rows" in output
    assert re.findall(rf"^{group}-(\d) {group}-\d-\S+ \[", output, re.MULTILINE) == list("0123")
    assert not spark.streams.active
    spark.sql(f"DROP DATABASE {database} CASCADE")


def test_every_cell_of_the_notebook_compiles() -> None:
    for cell in CELLS:
        compile(cell, "databricks.py", "exec")
    assert NOTEBOOK.startswith("# Databricks notebook source\n")


def test_the_notebook_installs_this_version() -> None:
    assert f"spark_kgroup-{version('spark-kgroup')}-py3-none-any.whl" in NOTEBOOK


@pytest.mark.full
def test_the_notebook_logs_in_with_the_credentials_of_the_secret_scope(
    secured_kafka: "SecuredKafka", flights: ModuleType
) -> None:
    widgets = {"security": "SASL_SSL", "ca": secured_kafka.ca_location}
    scopes = {"kafka": {"username": ALICE, "password": PASSWORDS[ALICE]}}
    dbutils = SimpleNamespace(
        widgets=SimpleNamespace(get=widgets.__getitem__),
        secrets=SimpleNamespace(get=lambda scope, key: scopes[scope][key]),
    )
    given: dict[str, Any] = {"dbutils": dbutils}
    (cell,) = (cell for cell in CELLS if "SECURITY: dict" in cell)
    exec(compile(cell, "databricks.py", "exec"), given)
    login = given["SECURITY"]
    asked = {"kafka.bootstrap.servers": "h:1", "kafka.group.id": "g", "subscribe": "t"}
    assert parse({**asked, **login}).security == {name.removeprefix("kafka."): text for name, text in login.items()}
    client = flights.client_config(secured_kafka.bootstrap("SASL_SSL"))
    client |= {name.removeprefix("kafka."): text for name, text in login.items()}
    assert AdminClient(client).list_topics(timeout=60).brokers
