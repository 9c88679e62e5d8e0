"""Queries of one application find the same secret, which goes when the application's driver has gone."""

import stat
import tempfile
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import pytest
from harness.sidecars import sleeping_executor

from pyspark_kgroup.shared import application_key as application_key_module
from pyspark_kgroup.shared.application_key import application_key, key_folder
from pyspark_kgroup.shared.channel import KEY_BYTES


@pytest.fixture(autouse=True)
def _temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))


@pytest.fixture
def jvm() -> Iterator[int]:
    with sleeping_executor("driver") as executor:
        yield executor.pid


@pytest.fixture
def folder(jvm: int) -> Path:
    return folder_of(jvm)


def folder_of(jvm: int) -> Path:
    folder = key_folder(jvm)
    assert folder is not None
    return folder


def test_queries_of_one_application_share_a_key_and_those_of_another_have_theirs(folder: Path) -> None:
    key = application_key(folder)
    assert key is not None
    assert len(key) == KEY_BYTES
    assert application_key(folder) == key
    with sleeping_executor("driver") as other:
        assert application_key(folder_of(other.pid)) not in (key, None)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert [(entry.name, stat.S_IMODE(entry.stat().st_mode)) for entry in folder.iterdir()] == [("secret", 0o600)]


def test_queries_that_start_at_once_share_a_key(folder: Path) -> None:
    with ProcessPoolExecutor(8, get_context("spawn")) as queries:
        assert len(set(queries.map(application_key, [folder] * 32))) == 1
    assert [entry.name for entry in folder.iterdir()] == ["secret"]


def test_whoever_only_looks_for_a_key_makes_none(folder: Path, tmp_path: Path) -> None:
    assert application_key(folder, make=False) is None
    assert list(tmp_path.iterdir()) == []
    key = application_key(folder)
    assert application_key(folder, make=False) == key


def test_another_version_of_the_package_has_another_key(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ours = application_key(folder)
    monkeypatch.setattr(application_key_module, "__version__", "0.0.0")
    assert application_key(folder) not in (ours, None)


def test_a_folder_that_others_can_open_is_not_believed(folder: Path) -> None:
    folder.mkdir()
    folder.chmod(0o777)
    (folder / "secret").write_bytes(bytes(KEY_BYTES))
    assert application_key(folder) is None


def test_a_file_that_holds_no_key_is_not_believed(folder: Path) -> None:
    folder.mkdir(mode=0o700)
    (folder / "secret").write_bytes(b"short")
    assert application_key(folder) is None


def test_a_query_that_finds_the_disk_full_shares_no_key_and_leaves_none(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_bytes", full)
        assert application_key(folder) is None
    assert list(folder.iterdir()) == []
    assert application_key(folder) is not None


def test_the_key_of_a_driver_that_has_ended_is_removed_when_another_query_starts(tmp_path: Path, folder: Path) -> None:
    with sleeping_executor("driver") as ended:
        application_key(folder_of(ended.pid))
    application_key(folder)
    assert list(tmp_path.iterdir()) == [folder]


def test_a_process_that_is_not_there_has_no_key() -> None:
    assert key_folder(2**22 + 1) is None
