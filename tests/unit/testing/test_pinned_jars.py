"""Jars with known bytes, downloaded from a small repository on this machine: no network, no Java, no PySpark."""

import gc
import hashlib
import json
import os
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness.file_server import FileServer
from harness.waiting import wait_for

from spark_kgroup.errors import EnvironmentProblem
from spark_kgroup.testing import pinned_jars
from spark_kgroup.testing.kafka_jars import fetch_jars
from spark_kgroup.testing.pinned_jars import Pin, download

FRUIT = {f"org/example/{name}/1.0/{name}-1.0.jar": name.encode() * 100_000 for name in ("apple", "fig", "pear")}
APPLE, FIG, PEAR = FRUIT
PINS = [Pin(hashlib.sha256(content).hexdigest(), len(content), place) for place, content in FRUIT.items()]
JARS = {pin.jar: FRUIT[pin.place] for pin in PINS}


@pytest.fixture(autouse=True)
def collected() -> Iterator[None]:
    """pooch leaves the connection of an answer that it refuses to the collector: it is no other test's leak."""
    gc.freeze()  # objects from before are not looked at again: a third of a second for each test
    try:
        yield
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)
            gc.collect()
    finally:
        gc.unfreeze()


@pytest.fixture
def files() -> dict[str, bytes]:
    return dict(FRUIT)


@pytest.fixture
def server(files: dict[str, bytes], monkeypatch: pytest.MonkeyPatch) -> Iterator[FileServer]:
    monkeypatch.setenv("no_proxy", "127.0.0.1")  # also behind a proxy
    server = FileServer(files)
    with server.running():
        yield server


@pytest.fixture
def into(tmp_path: Path) -> Path:
    return tmp_path / "jars"


def found_in(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_each_jar_is_downloaded_once_and_only_standard_error_tells_how_far_that_is(
    server: FileServer, into: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    download(PINS, into, "fruit", server.url)
    assert found_in(into) == JARS
    assert sorted(server.asked) == [APPLE, FIG, PEAR]
    output, errors = capfd.readouterr()
    assert output == ""
    lines = errors.splitlines()
    assert lines[0] == "Fetching fruit (once): 1.2 MB"
    assert lines[-1].startswith("Fetching fruit (once): 1.2 MB in ")
    assert all(line.startswith("Fetching fruit (once): ") for line in lines), "pooch says nothing of its own"


def test_a_terminal_has_a_bar(
    server: FileServer, into: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")  # to rich, this is a terminal
    download(PINS, into, "fruit", server.url)
    output, errors = capfd.readouterr()
    assert output == ""
    assert "━" in errors
    assert "1.2/1.2 MB" in errors


def test_a_repository_may_be_a_folder(tmp_path: Path, into: Path) -> None:
    for place, content in FRUIT.items():
        (tmp_path / "my repository" / place).parent.mkdir(parents=True)
        (tmp_path / "my repository" / place).write_bytes(content)
    download(PINS, into, "fruit", (tmp_path / "my repository").as_uri())
    assert found_in(into) == JARS

    (tmp_path / "my repository" / PEAR).unlink()
    (into / "pear-1.0.jar").unlink()
    with pytest.raises(EnvironmentProblem, match=rf"(?s)Could not fetch the jars of fruit.*No such file.*{PEAR}"):
        download(PINS, into, "fruit", (tmp_path / "my repository").as_uri())


def test_other_bytes_are_refused_and_not_kept(server: FileServer, files: dict[str, bytes], into: Path) -> None:
    files[PEAR] = b"worm" * 100_000
    with pytest.raises(
        EnvironmentProblem,
        match=rf"(?s)^{server.url} gives other jars of fruit than .*KGROUP_MAVEN_REPOSITORY.*pear-1\.0\.jar.*"
        rf"expected {hashlib.sha256(FRUIT[PEAR]).hexdigest()} but got {hashlib.sha256(files[PEAR]).hexdigest()}$",
    ):
        download(PINS, into, "fruit", server.url)
    assert "pear-1.0.jar" not in found_in(into)
    assert found_in(into).items() <= JARS.items()


def test_a_download_that_broke_off_goes_on_with_the_missing_file(server: FileServer, into: Path) -> None:
    server.breaks = {APPLE}
    with pytest.raises(EnvironmentProblem, match=r"(?s)Could not fetch .*Complete jars are kept.*IncompleteRead"):
        download(PINS, into, "fruit", server.url)
    assert found_in(into) == {jar: content for jar, content in JARS.items() if jar != "apple-1.0.jar"}

    server.breaks.clear()
    server.asked.clear()
    download(PINS, into, "fruit", server.url)
    assert found_in(into) == JARS
    assert server.asked == [APPLE]


def test_a_connection_that_breaks_once_is_an_attempt(server: FileServer, into: Path) -> None:
    server.breaks_once = {APPLE}
    download(PINS, into, "fruit", server.url)
    assert found_in(into) == JARS
    assert server.asked.count(APPLE) == 2


@pytest.mark.parametrize(
    ("path", "words"),
    [
        pytest.param("", "refused", id="nobody listens"),
        pytest.param("/elsewhere", "404 Client Error", id="a jar is not there"),
    ],
)
def test_a_repository_that_cannot_be_used_is_one_error_that_names_the_options_and_soon(
    server: FileServer, into: Path, path: str, words: str
) -> None:
    url = f"{server.url}{path}" if path else "http://somebody:secret@127.0.0.1:9"
    began = time.monotonic()
    with pytest.raises(
        EnvironmentProblem,
        match=rf"(?s)Could not fetch .*HTTPS_PROXY.*REQUESTS_CA_BUNDLE.*mirror in KGROUP_MAVEN_REPOSITORY.*{words}",
    ) as error:
        download(PINS, into, "fruit", url)
    assert time.monotonic() - began < 15
    assert "secret" not in str(error.value)
    assert found_in(into) == {}


@pytest.mark.parametrize(
    ("bound", "words"),
    [
        ("_READ_TIMEOUT_S", "Read timed out"),
        ("_SILENCE_MAX_S", "no byte came for"),
        ("_FETCH_TIMEOUT_S", "it takes longer than"),
    ],
)
def test_a_repository_that_falls_silent_is_given_up(
    server: FileServer, into: Path, monkeypatch: pytest.MonkeyPatch, bound: str, words: str
) -> None:
    """Each bound alone ends the wait. The defaults of the other bounds are longer than this test may take."""
    server.held = {APPLE}
    monkeypatch.setattr(pinned_jars, bound, 0.5)
    began = time.monotonic()
    with pytest.raises(EnvironmentProblem, match=rf"(?s)Could not fetch the jars of fruit.*{words}"):
        download(PINS, into, "fruit", server.url)
    assert time.monotonic() - began < 15


FETCH = f"""
import json, os, sys
from pathlib import Path
sys.modules["pyspark"] = None  # it cannot be imported
from spark_kgroup.testing.kafka_jars import fetch_jars
from spark_kgroup.testing.pinned_jars import Pin
pins = [Pin(*pin) for pin in json.loads({json.dumps(json.dumps(PINS))})]
print(json.dumps(sorted(jar.name for jar in fetch_jars([], "fruit", pins=pins))))
"""


class Fetching:
    """A process that fetches the fruit, in an environment without Java and PySpark."""

    def __init__(self, cache: Path, server: FileServer, errors: Path) -> None:
        self._errors = errors
        environment = {name: value for name, value in os.environ.items() if name != "JAVA_HOME"}
        environment |= {"PATH": "", "KGROUP_CACHE": str(cache), "KGROUP_MAVEN_REPOSITORY": server.url}
        with errors.open("w") as stderr:
            self.process = subprocess.Popen(
                [sys.executable, "-c", FETCH], env=environment, stdout=subprocess.PIPE, stderr=stderr, text=True
            )

    @property
    def errors(self) -> str:
        return self._errors.read_text()

    def jars(self) -> list[str]:
        output, _ = self.process.communicate(timeout=60)
        assert self.process.returncode == 0, self.errors
        names: list[str] = json.loads(output)
        return names


def test_of_two_processes_at_once_one_downloads_and_both_have_the_jars_without_java_and_pyspark(
    server: FileServer, tmp_path: Path
) -> None:
    server.held = {APPLE}
    first = Fetching(tmp_path / "cache", server, tmp_path / "first")
    wait_for(lambda: APPLE in server.asked, "the first to ask")
    second = Fetching(tmp_path / "cache", server, tmp_path / "second")
    wait_for(lambda: "Waiting for another process that fetches fruit" in second.errors, "the second to wait")
    server.release()
    assert first.jars() == second.jars() == sorted(JARS)
    assert sorted(server.asked) == [APPLE, FIG, PEAR]
    assert "Fetching" not in second.errors


def test_a_killed_process_leaves_whole_jars_to_the_next_one_and_no_half_a_jar(
    server: FileServer, tmp_path: Path
) -> None:
    server.held = {APPLE}
    partial = tmp_path / "cache" / "jars" / ".fruit.partial" / "jars"
    killed = Fetching(tmp_path / "cache", server, tmp_path / "killed")
    wait_for(lambda: {"fig-1.0.jar", "pear-1.0.jar"} <= {path.name for path in partial.glob("*")}, "two of three jars")
    wait_for(lambda: len(found_in(partial)) == 3, "the beginning of the third")
    killed.process.kill()
    killed.process.communicate()
    server.asked.clear()
    server.release()

    jars = fetch_jars([], "fruit", repository=server.url, cache=tmp_path / "cache", pins=PINS)
    assert found_in(tmp_path / "cache" / "jars" / "fruit").keys() == {*JARS, "manifest.json"}
    assert {jar.name: jar.read_bytes() for jar in jars} == JARS
    assert server.asked == [APPLE]


def test_an_interrupt_ends_a_download_at_once_however_silent_the_repository(server: FileServer, tmp_path: Path) -> None:
    server.held = {APPLE, FIG, PEAR}
    fetching = Fetching(tmp_path / "cache", server, tmp_path / "errors")
    wait_for(lambda: len(server.asked) == 3, "the process to ask")
    fetching.process.send_signal(signal.SIGINT)
    assert fetching.process.wait(10) == -signal.SIGINT
    assert "KeyboardInterrupt" in fetching.errors


def test_a_cached_set_that_is_not_the_pinned_one_is_downloaded_anew(
    server: FileServer, files: dict[str, bytes], tmp_path: Path
) -> None:
    """1. A mirror once gave another pear, and its manifest says so. 2. The pins are of the true one."""
    worm = b"worm" * 100_000
    others = [*PINS[:2], Pin(hashlib.sha256(worm).hexdigest(), len(worm), PEAR)]
    files[PEAR] = worm
    fetch_jars([], "fruit", repository=server.url, cache=tmp_path, pins=others)
    files[PEAR] = FRUIT[PEAR]
    jars = fetch_jars([], "fruit", repository=server.url, cache=tmp_path, pins=PINS)
    assert {jar.name: jar.read_bytes() for jar in jars} == JARS
