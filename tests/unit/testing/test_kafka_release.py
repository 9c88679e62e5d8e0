"""Differences between the releases of Apache Kafka that are run, and the default release."""

import re
from pathlib import Path

import pytest

from spark_kgroup.errors import EnvironmentProblem, OptionError
from spark_kgroup.testing import ApacheKafka
from spark_kgroup.testing.kafka_jars import PINNED, _pins_path
from spark_kgroup.testing.kafka_release import KAFKA_VERSION, KafkaRelease
from spark_kgroup.testing.node_properties import node_properties
from spark_kgroup.testing.pinned_jars import read_pins

MAKEFILE = (Path(__file__).parents[3] / "Makefile").read_text()


def test_the_environment_names_the_release_where_the_caller_names_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KGROUP_KAFKA_VERSION", raising=False)
    assert ApacheKafka().release.version == KAFKA_VERSION
    monkeypatch.setenv("KGROUP_KAFKA_VERSION", "3.7.2")
    assert ApacheKafka().release.version == "3.7.2"
    assert ApacheKafka(version="4.0.2").release.version == "4.0.2"


@pytest.mark.parametrize("version", ["3.1.2", "2.8.2", "4", "newest", "4.x.1"])
def test_a_version_that_cannot_be_run_is_refused_by_name(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(OptionError, match=rf"^version is {re.escape(version)}: Apache Kafka 3\.2\.0 or later"):
        ApacheKafka(version=version)
    monkeypatch.setenv("KGROUP_KAFKA_VERSION", version)
    with pytest.raises(EnvironmentProblem, match=rf"^KGROUP_KAFKA_VERSION is {re.escape(version)}: Apache Kafka 3"):
        ApacheKafka()


@pytest.mark.parametrize(
    ("version", "group_tool", "binding", "scram"),
    [
        ("3.2.0", "kafka.admin.ConsumerGroupCommand", "slf4j-reload4j", False),
        ("3.4.1", "kafka.admin.ConsumerGroupCommand", "slf4j-reload4j", False),
        ("3.5.0", "kafka.admin.ConsumerGroupCommand", "slf4j-reload4j", True),
        ("3.7.2", "kafka.admin.ConsumerGroupCommand", "slf4j-reload4j", True),
        ("3.10.0", "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand", "slf4j-reload4j", True),
        ("4.0.0", "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand", "log4j-slf4j-impl", True),
    ],
)
def test_a_release_has_the_features_that_came_with_it_or_before(
    version: str, group_tool: str, binding: str, scram: bool
) -> None:
    release = KafkaRelease(version)
    assert (release.group_tool, release.has_scram_users) == (group_tool, scram)
    assert release.logging.binding.module == binding


@pytest.mark.parametrize("version", PINNED)
def test_a_pinned_release_has_its_broker_its_tools_and_its_logging(version: str) -> None:
    jars = {pin.jar for pin in read_pins(_pins_path(version))}
    _, module, revision, _ = KafkaRelease(version).logging.binding
    log4j = "log4j-core-" if version.startswith("4") else "reload4j-"
    assert {f"kafka_2.13-{version}.jar", f"kafka-tools-{version}.jar", f"{module}-{revision}.jar"} <= jars
    assert any(jar.startswith(log4j) for jar in jars)


def test_the_releases_that_are_tested_are_those_that_are_pinned() -> None:
    (tested,) = re.findall(r"(?m)^KAFKA_VERSIONS +:= (.+)$", MAKEFILE)
    assert set(tested.split()) == set(PINNED)


@pytest.mark.parametrize(
    ("version", "advertises"), [("3.7.2", False), ("3.8.1", False), ("3.9.0", True), ("4.3.1", True)]
)
def test_a_controller_is_advertised_where_the_release_takes_its_address_from_there(
    version: str, advertises: bool
) -> None:
    """KIP-853: until 3.8 a controller may not be advertised. Since then a leader tells its followers where it is."""
    release = KafkaRelease(version)
    properties = node_properties(
        2,
        "127.0.0.1",
        9092,
        [1, 2, 3],
        {},
        advertised=lambda _, __, port: port + 1000,
        advertises_controllers=release.advertises_controllers,
    )
    assert ("CONTROLLER://127.0.0.1:1002" in properties["advertised.listeners"].split(",")) is advertises
    assert properties["controller.quorum.voters"] == "1@127.0.0.1:1001,2@127.0.0.1:1002,3@127.0.0.1:1003"
