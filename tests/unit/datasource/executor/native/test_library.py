"""Which binary is loaded, and the message if none is."""

import subprocess
import sys
from ctypes import CDLL, create_string_buffer
from pathlib import Path

import crc32c
import pytest
from harness.record_batches import Batch, Record

from pyspark_kgroup.executor.native import library as library_module
from pyspark_kgroup.executor.native.interface import VERSION
from pyspark_kgroup.executor.native.library import binary_name, load


def reload() -> library_module.Loaded:
    """As a new process loads it."""
    return load.__wrapped__()


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package in which a test puts the binary that is found."""
    (tmp_path / "lib").mkdir()
    monkeypatch.setattr(library_module, "files", lambda _: tmp_path)
    return tmp_path / "lib"


def test_the_library_is_loaded_once_in_a_process(library: CDLL) -> None:
    assert load().library is load().library is library
    assert load().reason == ""


@pytest.mark.parametrize(
    ("system", "machine", "name"),
    [
        ("linux", "x86_64", "linux-x86_64.so"),
        ("linux", "aarch64", "linux-aarch64.so"),
        ("darwin", "arm64", "darwin-arm64.dylib"),
        ("win32", "AMD64", "win32-amd64"),
    ],
)
def test_a_binary_is_named_after_its_platform(
    monkeypatch: pytest.MonkeyPatch, system: str, machine: str, name: str
) -> None:
    monkeypatch.setattr(sys, "platform", system)
    monkeypatch.setattr("platform.machine", lambda: machine)
    assert binary_name() == name


def test_a_platform_without_a_binary_gives_no_library_and_a_reason(package: Path) -> None:
    assert list(package.iterdir()) == []
    assert reload() == (None, f"this installation has no decoder for {binary_name().split('.')[0]}")


def test_a_binary_that_does_not_load_gives_no_library_and_a_reason(package: Path) -> None:
    (package / binary_name()).write_bytes(b"\x7fELF of another machine")
    found = reload()
    assert found.library is None
    assert found.reason.startswith("the decoder does not load: ")


def test_a_binary_that_is_another_library_gives_no_library_and_a_reason(package: Path, tmp_path: Path) -> None:
    import _ctypes

    (package / binary_name()).write_bytes(Path(_ctypes.__file__).read_bytes())
    found = reload()
    assert found.library is None
    assert "kgroup_version" in found.reason


def test_a_binary_of_another_version_is_not_used(library: CDLL, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library_module, "VERSION", 99)
    found = reload()
    assert found.library is None
    assert found.reason == f"the decoder is of version {VERSION}, and not of 99: install the package anew"


@pytest.mark.parametrize("hardware", [0, 1], ids=["by table", "by the processor"])
def test_checksums_are_those_of_castagnoli(library: CDLL, hardware: int) -> None:
    data = bytes((7 * n + n // 11) % 256 for n in range(4_000))
    for size in [*range(70), 255, 256, 1000, 3000]:
        for first in range(9):
            held = create_string_buffer(data[first : first + size], size + 1)
            assert library.kgroup_crc32c(held, size, hardware) == crc32c.crc32c(data[first : first + size])


def test_decoding_imports_neither_pandas_nor_confluent_kafka(library: CDLL) -> None:
    records = [Record(n, b"k", b"v", ((b"h", b"1"),), timestamp_ms=5) for n in range(3)]
    answer = Batch(records).encoded() + Batch([Record(3), Record(4)], "lz4").encoded()
    program = f"""
import sys
from pyspark_kgroup.executor.native.decode import Decoder
from pyspark_kgroup.executor.native.library import load
decoder = Decoder(load().library, "t", 0, include_headers=True)
assert sum(batch.num_rows for batch in decoder.decode(memoryview({answer!r}), 0, 9).batches) == 5
print(*sorted({{"pandas", "confluent_kafka", "kio", "asyncio"}} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
