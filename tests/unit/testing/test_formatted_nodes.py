"""Kafka's storage tool formats the first node of a process, and later nodes get copies with ids of their own."""

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from spark_kgroup.testing import kafka_node
from spark_kgroup.testing.kafka_node import KafkaNode

RECORDS = b"features"


@pytest.fixture(autouse=True)
def nothing_formatted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka_node, "_formatted", {})


def storage_tool(folder: Path, jars: str = "kafka-4.3.1") -> tuple[Any, list[Sequence[str]]]:
    """A `Jvm` whose storage tool writes as Kafka's does, and the command lines that it is given."""
    calls: list[Sequence[str]] = []

    def tool(_main_class: str, arguments: Sequence[str], _timeout_s: float) -> str:
        calls.append(arguments)
        data = Path(arguments[arguments.index("--config") + 1]).parent / "data"
        data.mkdir(parents=True)
        (data / "bootstrap.checkpoint").write_bytes(RECORDS)
        (data / "meta.properties").write_text("node.id=1\ndirectory.id=theirs\nversion=1\ncluster.id=first\n")
        return ""

    return SimpleNamespace(jars=folder / jars, tool=tool), calls


def meta(node: KafkaNode) -> dict[str, str]:
    lines = (node.directory / "data" / "meta.properties").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines)


def test_a_later_node_has_the_same_records_and_ids_of_its_own(tmp_path: Path) -> None:
    jvm, calls = storage_tool(tmp_path)
    nodes = [KafkaNode(number, tmp_path / f"node-{number}", 1) for number in (1, 2, 3)]
    for node in nodes:
        node.format(jvm, "second")
    assert len(calls) == 1
    assert {(node.directory / "data" / "bootstrap.checkpoint").read_bytes() for node in nodes} == {RECORDS}
    assert [meta(node)["node.id"] for node in nodes] == ["1", "2", "3"]
    assert [meta(node)["cluster.id"] for node in nodes[1:]] == ["second", "second"]
    assert len({meta(node)["directory.id"] for node in nodes}) == 3
    assert all(set(meta(node)) == {"version", "node.id", "cluster.id", "directory.id"} for node in nodes)


@pytest.mark.parametrize("other", [{"jars": "kafka-3.7.2"}, {"more": ["--add-scram", "SCRAM-SHA-256=[name=a]"]}])
def test_another_release_and_other_users_are_formatted_by_the_tool(tmp_path: Path, other: dict[str, Any]) -> None:
    jvm, calls = storage_tool(tmp_path)
    KafkaNode(1, tmp_path / "a", 1).format(jvm, "c")
    jvm.jars = tmp_path / other.get("jars", "kafka-4.3.1")
    KafkaNode(1, tmp_path / "b", 1).format(jvm, "c", other.get("more", []))
    assert len(calls) == 2


def test_nodes_whose_data_is_elsewhere_are_formatted_by_the_tool(tmp_path: Path) -> None:
    """`log.dirs` among a caller's server properties: the tool alone knows where to write."""
    jvm, calls = storage_tool(tmp_path)
    KafkaNode(1, tmp_path / "a", 1).format(jvm, "c")
    elsewhere = KafkaNode(1, tmp_path / "b", 1)
    elsewhere.configure({"log.dirs": str(tmp_path / "elsewhere")})
    elsewhere.format(jvm, "c")
    assert len(calls) == 2


def test_a_directory_that_holds_data_stays_as_it_is(tmp_path: Path) -> None:
    jvm, calls = storage_tool(tmp_path)
    node = KafkaNode(1, tmp_path, 1)
    node.format(jvm, "c")
    before = meta(node)
    node.format(jvm, "another")
    assert len(calls) == 1
    assert meta(node) == before
