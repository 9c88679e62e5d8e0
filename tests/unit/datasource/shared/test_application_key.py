"""Queries of one application find the same secret, which goes with the last of them, or with the driver."""

import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness.key_holders import HOLDS_EACH, held, keys_held, keys_missed
from harness.sidecars import sleeping_executor

from pyspark_kgroup.shared import application_key
from pyspark_kgroup.shared.application_key import find_key, hold_key, key_folder
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
    key = held(folder).value
    assert len(key) == KEY_BYTES
    assert held(folder).value == key
    with sleeping_executor("driver") as other:
        assert held(folder_of(other.pid)).value != key
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert [(entry.name, stat.S_IMODE(entry.stat().st_mode)) for entry in folder.iterdir()] == [("secret", 0o600)]


def test_queries_that_start_at_once_share_a_key(folder: Path) -> None:
    keys = keys_held(folder, processes=8)
    assert len(keys) == 8 * HOLDS_EACH
    assert len(set(keys)) == 1
    assert [entry.name for entry in folder.iterdir()] == ["secret"]


def test_a_key_goes_when_the_last_query_releases_it_and_not_before(tmp_path: Path, folder: Path) -> None:
    first, second = held(folder), held(folder)
    first.release()
    first.release()
    third = held(folder)
    assert first.value == second.value == third.value == find_key(folder)
    second.release()
    assert find_key(folder) == first.value
    third.release()
    assert find_key(folder) is None
    assert list(tmp_path.iterdir()) == []
    assert held(folder).value != first.value


def test_queries_that_end_and_start_at_once_leave_a_key_to_those_that_hold_it(tmp_path: Path, folder: Path) -> None:
    assert keys_missed(folder, processes=4) == ["0"] * 4
    assert list(tmp_path.iterdir()) == []


def test_a_key_that_was_replaced_stays_when_who_held_the_old_one_releases_it(folder: Path) -> None:
    old = held(folder)
    (folder / "secret").unlink()
    new = held(folder)
    old.release()
    assert find_key(folder) == new.value


def test_a_look_for_a_key_makes_none(folder: Path, tmp_path: Path) -> None:
    assert find_key(folder) is None
    assert list(tmp_path.iterdir()) == []


def test_another_version_of_the_package_has_another_key(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ours = held(folder).value
    monkeypatch.setattr(application_key, "__version__", "0.0.0")
    assert held(folder).value != ours
    assert find_key(folder) != ours


def test_a_folder_that_other_users_can_open_is_not_believed(folder: Path) -> None:
    folder.mkdir()
    folder.chmod(0o777)
    (folder / "secret").write_bytes(bytes(KEY_BYTES))
    assert hold_key(folder) is None
    assert find_key(folder) is None


def test_a_file_that_holds_no_key_is_not_believed(folder: Path) -> None:
    folder.mkdir(mode=0o700)
    (folder / "secret").write_bytes(b"short")
    descriptors = len(os.listdir("/proc/self/fd"))
    assert hold_key(folder) is None
    assert find_key(folder) is None
    assert len(os.listdir("/proc/self/fd")) == descriptors


def test_a_query_that_finds_the_disk_full_shares_no_key_and_leaves_none(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_bytes", full)
        assert hold_key(folder) is None
    assert list(folder.iterdir()) == []
    assert held(folder).value


def test_the_key_of_a_driver_that_has_ended_is_removed_when_another_query_starts(tmp_path: Path, folder: Path) -> None:
    with sleeping_executor("driver") as ended:
        held(folder_of(ended.pid))
    held(folder)
    assert list(tmp_path.iterdir()) == [folder]


def test_a_process_that_is_not_there_has_no_key() -> None:
    assert key_folder(2**22 + 1) is None
