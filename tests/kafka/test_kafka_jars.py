"""Fetching jars with the real Ivy, from a small Maven repository on disk: no network, no Kafka."""

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from spark_kgroup.errors import EnvironmentProblem
from spark_kgroup.testing import ivy, kafka_jars
from spark_kgroup.testing.ivy import Coordinate
from spark_kgroup.testing.kafka_jars import fetch_jars
from spark_kgroup.testing.kafka_release import KAFKA_VERSION
from spark_kgroup.testing.pinned_jars import Pin, read_pins, write_pins

APPLE = Coordinate("org.example", "apple", "1.0")
ONLY_APPLE = Coordinate("org.example", "apple", "1.0", transitive=False)


def publish(repository: Path, module: str, needs: str | None = None) -> None:
    """Put a module of version 1.0 into a Maven repository. Its jar holds its name."""
    directory = repository / "org" / "example" / module / "1.0"
    directory.mkdir(parents=True)
    dependency = (
        f"<dependencies><dependency><groupId>org.example</groupId><artifactId>{needs}</artifactId>"
        "<version>1.0</version></dependency></dependencies>"
        if needs
        else ""
    )
    (directory / f"{module}-1.0.pom").write_text(
        '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>'
        f"<groupId>org.example</groupId><artifactId>{module}</artifactId><version>1.0</version>{dependency}</project>"
    )
    (directory / f"{module}-1.0.jar").write_text(module)


def publish_both(repository: Path) -> str:
    """URL of a new repository in which apple needs pear."""
    publish(repository, "apple", needs="pear")
    publish(repository, "pear")
    return repository.as_uri()


@pytest.fixture
def repository(tmp_path: Path) -> str:
    return publish_both(tmp_path / "repository")


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture(scope="session")
def fetched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache that has the set fruit, apple and pear. Ivy takes 0.9 s of CPU time to fetch it: tests change a copy."""
    folder = tmp_path_factory.mktemp("fetched")
    fetch_jars([APPLE], "fruit", repository=publish_both(folder / "repository"), cache=folder / "cache")
    return folder / "cache"


@pytest.fixture(scope="session")
def pins(tmp_path_factory: pytest.TempPathFactory) -> list[Pin]:
    """What `make lock` finds and writes down of apple and what it needs."""
    folder = tmp_path_factory.mktemp("pinned")
    repository = publish_both(folder / "repository")
    ivy.fetch_with_ivy([APPLE], folder / "found", "fruit", repository, ivy.AS_IN_MAVEN)
    write_pins(folder / "fruit.pins", folder / "found" / "jars")
    return read_pins(folder / "fruit.pins")


def contents(jars: list[Path]) -> dict[str, str]:
    return {jar.name: jar.read_text() for jar in jars}


BOTH = {"apple-1.0.jar": "apple", "pear-1.0.jar": "pear"}


def test_a_set_is_fetched_once_with_its_dependencies(
    repository: str, cache: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert contents(fetch_jars([APPLE], "fruit", repository=repository, cache=cache)) == BOTH
    assert "Fetching fruit" in capfd.readouterr().err
    assert [path.name for path in (cache / "jars").iterdir() if path.is_dir()] == ["fruit"]

    again = fetch_jars([APPLE], "fruit", repository="file:///nowhere", cache=cache)
    assert contents(again) == BOTH
    assert capfd.readouterr() == ("", "")


def spoil_by_truncation(directory: Path) -> None:
    (directory / "pear-1.0.jar").write_text("pe")


def spoil_by_other_bytes_of_the_same_length(directory: Path) -> None:
    (directory / "pear-1.0.jar").write_text("peas")


def spoil_by_a_missing_jar(directory: Path) -> None:
    (directory / "pear-1.0.jar").unlink()


def spoil_by_a_jar_too_many(directory: Path) -> None:
    (directory / "worm-1.0.jar").write_text("worm")


def spoil_by_a_missing_manifest(directory: Path) -> None:
    (directory / "manifest.json").unlink()


def spoil_by_half_a_manifest(directory: Path) -> None:
    text = (directory / "manifest.json").read_text()
    (directory / "manifest.json").write_text(text[: len(text) // 2])


@pytest.mark.parametrize(
    "spoil",
    [
        spoil_by_truncation,
        spoil_by_other_bytes_of_the_same_length,
        spoil_by_a_missing_jar,
        spoil_by_a_jar_too_many,
        spoil_by_a_missing_manifest,
        spoil_by_half_a_manifest,
    ],
)
def test_a_spoiled_set_is_repaired(repository: str, fetched: Path, cache: Path, spoil: object) -> None:
    shutil.copytree(fetched, cache)
    assert contents(fetch_jars([APPLE], "fruit", repository="file:///nowhere", cache=cache)) == BOTH
    assert callable(spoil)
    spoil(cache / "jars" / "fruit")
    assert contents(fetch_jars([APPLE], "fruit", repository=repository, cache=cache)) == BOTH


def test_pins_are_the_artifacts_that_ivy_finds_with_their_place_in_the_repository(
    repository: str, pins: list[Pin], tmp_path: Path
) -> None:
    """`make lock`, and then a fetch of the jars that it pinned: without Ivy, and of the same jars."""
    assert pins == [
        Pin(hashlib.sha256(b"apple").hexdigest(), 5, "org/example/apple/1.0/apple-1.0.jar"),
        Pin(hashlib.sha256(b"pear").hexdigest(), 4, "org/example/pear/1.0/pear-1.0.jar"),
    ]
    for source in (repository, "file:///nowhere"):
        jars = fetch_jars([APPLE], "fruit", repository=source, cache=tmp_path / "cache", pins=pins)
        assert contents(jars) == BOTH


def test_every_jar_of_the_kafka_that_is_run_is_pinned() -> None:
    pins = {pin.jar: pin for pin in read_pins(kafka_jars._pins_path(KAFKA_VERSION))}
    assert {jar.name: jar.stat().st_size for jar in kafka_jars.kafka_jars()} == {
        jar: pin.size_bytes for jar, pin in pins.items()
    }
    place = f"org/apache/kafka/kafka-clients/{KAFKA_VERSION}/kafka-clients-{KAFKA_VERSION}.jar"
    assert pins[f"kafka-clients-{KAFKA_VERSION}.jar"].place == place
    assert all(re.fullmatch("[0-9a-f]{64}", pin.sha256) for pin in pins.values())


def test_files_left_by_an_interrupted_fetch_are_replaced(repository: str, cache: Path) -> None:
    left = cache / "jars" / ".fruit.partial"
    (left / "jars").mkdir(parents=True)
    (left / "jars" / "apple-1.0.jar").write_text("app")
    (left / "jars" / "worm-1.0.jar").write_text("worm")
    (left / "ivy").write_text("not even a directory")
    assert contents(fetch_jars([APPLE], "fruit", repository=repository, cache=cache)) == BOTH
    assert not left.exists()


def test_a_set_that_has_its_pinned_artifacts_is_kept_whichever_resolver_found_it(
    repository: str, pins: list[Pin], tmp_path: Path
) -> None:
    fetch_jars([APPLE], "fruit", repository=repository, cache=tmp_path / "cache", pins=pins)
    same = [APPLE, Coordinate("org.example", "pear", "1.0")]
    jars = fetch_jars(same, "fruit", repository="file:///nowhere", cache=tmp_path / "cache", pins=pins)
    assert contents(jars) == BOTH


def test_a_changed_list_under_the_same_name_is_fetched_anew_and_an_artifact_alone_without_its_dependencies(
    repository: str, fetched: Path, cache: Path
) -> None:
    shutil.copytree(fetched, cache)
    jars = fetch_jars([ONLY_APPLE], "fruit", repository=repository, cache=cache)
    assert contents(jars) == {"apple-1.0.jar": "apple"}


FETCH = """
import json
from spark_kgroup.testing.ivy import Coordinate
from spark_kgroup.testing.kafka_jars import fetch_jars
print(json.dumps([jar.read_text() for jar in fetch_jars([Coordinate("org.example", "apple", "1.0")], "fruit")]))
"""


def test_of_two_processes_at_once_one_fetches_and_both_have_the_whole_set(repository: str, cache: Path) -> None:
    environment = {**os.environ, "KGROUP_CACHE": str(cache), "KGROUP_MAVEN_REPOSITORY": repository}
    started = [
        subprocess.Popen(
            [sys.executable, "-c", FETCH],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    outputs = [process.communicate(timeout=60) for process in started]
    assert [json.loads(output) for output, _ in outputs] == [["apple", "pear"]] * 2
    assert sorted("Fetching fruit" in errors for _, errors in outputs) == [False, True]


def test_jars_that_cannot_be_fetched_are_an_error_with_ivys_last_lines_and_leave_no_set(
    repository: str, cache: Path, tmp_path: Path
) -> None:
    shutil.rmtree(tmp_path / "repository" / "org" / "example" / "pear")
    with pytest.raises(EnvironmentProblem, match=r"(?s)Could not fetch the jars of fruit.*org\.example#pear"):
        fetch_jars([APPLE], "fruit", repository=repository, cache=cache)
    assert not (cache / "jars" / "fruit").exists()

    publish(tmp_path / "repository", "pear")
    assert contents(fetch_jars([APPLE], "fruit", repository=repository, cache=cache)) == BOTH


def test_without_pyspark_a_version_that_is_not_pinned_says_how_to_get_it(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KGROUP_CACHE", str(cache))
    monkeypatch.setattr(ivy, "find_spec", lambda _: None)
    with pytest.raises(
        EnvironmentProblem,
        match=r"^kafka-4\.0\.0 is not pinned: .*Ivy.*PySpark is not installed here: "
        rf"pip install 'spark-kgroup\[spark\]', or run one whose jars are known: Kafka 3\.2\.3, .*"
        rf"{re.escape(KAFKA_VERSION)}\.$",
    ):
        kafka_jars.kafka_jars("4.0.0")


def test_a_cache_that_cannot_be_written_is_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(EnvironmentProblem, match=r"Cannot keep jars in .*KGROUP_CACHE"):
        fetch_jars([APPLE], "fruit", cache=tmp_path / "file")
