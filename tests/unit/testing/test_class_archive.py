"""The archive of Kafka's classes: made once, announced, and done without if it cannot be made."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from spark_kgroup.errors import EnvironmentProblem
from spark_kgroup.testing import class_archive
from spark_kgroup.testing.class_archive import with_class_archive
from spark_kgroup.testing.java import Java
from spark_kgroup.testing.kafka_node import Jvm
from spark_kgroup.testing.kafka_release import KafkaRelease
from spark_kgroup.testing.watchdog import ProcessGuard

ANNOUNCED = "Preparing Kafka's classes for faster starts (once)"


@pytest.fixture
def jvm(tmp_path: Path) -> Iterator[Jvm]:
    jars = tmp_path / "jars" / "kafka-4.3.1"
    jars.mkdir(parents=True)
    (jars / "manifest.json").write_text("{}")
    guard = ProcessGuard()
    yield Jvm(Java(Path("java"), 17, "17.0.1"), KafkaRelease("4.3.1"), jars, guard)
    guard.close()


def test_it_is_announced_and_made_once(
    jvm: Jvm, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(class_archive, "_record", lambda archive, _: archive.write_bytes(b"classes"))
    first = with_class_archive(jvm)
    printed = capsys.readouterr()
    assert [line.partition(" after")[0] for line in printed.err.splitlines()] == [ANNOUNCED, f"{ANNOUNCED}: done"]
    assert printed.out == ""
    archive = Path(first.options[0].removeprefix("-XX:SharedArchiveFile="))
    assert archive.read_bytes() == b"classes"
    assert with_class_archive(jvm) == first
    assert capsys.readouterr().err == ""
    assert sorted(path.suffix for path in archive.parent.iterdir()) == [".jsa", ".lock"]


def test_kafka_starts_without_one_that_cannot_be_made(jvm: Jvm, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: Path, __: Jvm) -> None:
        raise EnvironmentProblem("the node did not start")

    monkeypatch.setattr(class_archive, "_record", fail)
    assert with_class_archive(jvm) is jvm
    assert [path.suffix for path in (jvm.jars.parent.parent / "classes").iterdir()] == [".lock"]
