"""The wheel: pure Python for pip, with the native decoder for every platform in it, the same bytes wherever built."""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
import sys
import tarfile
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from zipfile import ZipFile

import pytest

ROOT = Path(__file__).parents[2]
NATIVE = "pyspark_kgroup/executor/native"

LINUX = {"linux-x86_64.so": 62, "linux-aarch64.so": 183}
"""File name -> e_machine of ELF."""

MACS = {"darwin-x86_64.dylib": 0x01000007, "darwin-arm64.dylib": 0x0100000C}
"""File name -> cputype of Mach-O."""

LC_ID_DYLIB, LC_LOAD_DYLIB, LC_UUID, LC_CODE_SIGNATURE = 0x0D, 0x0C, 0x1B, 0x1D

LOADS = """
import sys
from pyspark_kgroup.executor.native import library
from pyspark_kgroup.executor.native.decode import Decoder
found = library.load()
assert found.library is not None, found.reason
assert Decoder(found.library, "t", 0, include_headers=True).decode(memoryview(b""), 3, 9).next_offset == 3
print(library.__file__)
"""

PYTHON = """
import sys, pyspark_kgroup
print(pyspark_kgroup.python(), sys.executable, sep="\\n")
"""

JARS = """
import sys
sys.modules["pyspark"] = None  # it cannot be imported
from spark_kgroup.testing import kafka_jars
print(kafka_jars.__file__, flush=True)
kafka_jars.kafka_jars()
"""


def build(source: Path, into: Path, environment: Mapping[str, str] = os.environ, *options: str) -> Path:
    command = [sys.executable, "-m", "build", "--no-isolation", *options, "--outdir", str(into), str(source)]
    subprocess.run(command, check=True, timeout=300, env=environment, stdout=subprocess.DEVNULL)
    (wheel,) = into.glob("*.whl")
    return wheel


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files that git would give, in another place, without earlier builds."""
    names = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    copy = tmp_path_factory.mktemp("source")
    for name in names.stdout.splitlines():
        if (ROOT / name).exists():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, copy / name)
    return copy


@pytest.fixture(scope="module")
def wheel(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(source, tmp_path_factory.mktemp("wheel"), os.environ, "--wheel")


@pytest.fixture(scope="module")
def binaries(wheel: Path) -> dict[str, bytes]:
    with ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if name.startswith(f"{NATIVE}/lib/")]
        return {name.rpartition("/")[2]: archive.read(name) for name in names}


def test_one_wheel_has_the_decoder_for_every_platform(wheel: Path, binaries: dict[str, bytes]) -> None:
    assert wheel.name.endswith("-py3-none-any.whl")
    assert set(binaries) == {*LINUX, *MACS}
    assert sum(map(len, binaries.values())) < 150_000


def test_the_decoders_are_those_whose_hashes_are_in_the_repository(binaries: dict[str, bytes]) -> None:
    """With them a user who did not build a wheel can compare it with the source.

    After a change: `make native-hashes`.
    """
    lines = (ROOT / "conf" / "native.sha256").read_text().splitlines()
    assert lines == [f"{sha256(binaries[name]).hexdigest()}  {name}" for name in sorted(binaries)]


@pytest.mark.parametrize("name", LINUX)
def test_the_decoder_for_linux_needs_no_library_so_that_it_fits_glibc_and_musl(
    binaries: dict[str, bytes], name: str
) -> None:
    elf = binaries[name]
    assert elf[:6] == b"\x7fELF\x02\x01"
    (machine,) = struct.unpack_from("<H", elf, 18)
    (sections_at,) = struct.unpack_from("<Q", elf, 32)
    entry_size, entries = struct.unpack_from("<HH", elf, 54)
    heads = [struct.unpack_from("<IIQQQQ", elf, sections_at + entry_size * number) for number in range(entries)]
    (dynamic,) = [(offset, size) for kind, _, offset, _, _, size in heads if kind == 2]
    tags = [struct.unpack_from("<q", elf, dynamic[0] + at)[0] for at in range(0, dynamic[1], 16)]
    assert machine == LINUX[name]
    assert 1 not in tags, "DT_NEEDED"


@pytest.mark.parametrize("name", MACS)
def test_the_decoder_for_macs_needs_the_system_s_library_alone_and_is_signed(
    binaries: dict[str, bytes], name: str
) -> None:
    mach = binaries[name]
    magic, cpu, _, _, commands, _ = struct.unpack_from("<6I", mach)
    assert (magic, cpu) == (0xFEEDFACF, MACS[name])
    found, at = [], 32
    for _ in range(commands):
        command, size = struct.unpack_from("<II", mach, at)
        found.append((command, mach[at : at + size]))
        at += size
    assert [body.partition(b"/")[2].rstrip(b"\0") for command, body in found if command == LC_LOAD_DYLIB] == [
        b"usr/lib/libSystem.B.dylib"
    ]
    assert LC_UUID in dict(found)
    assert LC_CODE_SIGNATURE in dict(found) or name == "darwin-x86_64.dylib"  # macOS asks for it on its own processors


def test_the_wheel_knows_the_jars_of_kafka_and_asks_neither_for_pyspark_nor_java(wheel: Path, tmp_path: Path) -> None:
    with ZipFile(wheel) as archive:
        archive.extractall(tmp_path)
    environment = {name: value for name, value in os.environ.items() if name != "JAVA_HOME"}
    environment |= {"PATH": "", "PYTHONPATH": str(tmp_path), "KGROUP_CACHE": str(tmp_path / "cache")}
    environment |= {"KGROUP_MAVEN_REPOSITORY": (tmp_path / "nowhere").as_uri()}
    done = subprocess.run([sys.executable, "-c", JARS], env=environment, cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout == str(tmp_path / "spark_kgroup" / "testing" / "kafka_jars.py") + "\n"
    assert "Fetching kafka-4.3.1 (once): 45.7 MB" in done.stderr
    assert "Could not fetch the jars of kafka-4.3.1" in done.stderr
    assert "No such file" in done.stderr


@pytest.mark.parametrize("zipped", [False, True], ids=["installed", "zipped"])
def test_the_decoder_of_the_wheel_loads_here(wheel: Path, tmp_path: Path, zipped: bool) -> None:
    """A wheel may be put on the path as it is: `addArtifacts`, `--py-files`."""
    place = wheel
    if not zipped:
        place = tmp_path
        with ZipFile(wheel) as archive:
            archive.extractall(place)
    done = subprocess.run(
        [sys.executable, "-c", LOADS], env={**os.environ, "PYTHONPATH": str(place)}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(str(place))


def test_the_wheel_has_one_script_beside_the_command_and_it_is_executable(wheel: Path) -> None:
    with ZipFile(wheel) as archive:
        (script,) = [info for info in archive.infolist() if "/scripts/" in info.filename]
        assert script.filename == f"{'-'.join(wheel.name.split('-')[:2])}.data/scripts/kgroup-python"
        assert script.external_attr >> 16 & 0o777 == 0o755
        assert archive.read(script) == (ROOT / "datasource" / "kgroup-python").read_bytes()


def test_an_environment_with_the_wheel_has_the_script_as_the_python_to_choose(wheel: Path, tmp_path: Path) -> None:
    environment = tmp_path / "an environment"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(environment)], check=True)
    python = environment / "bin" / "python"
    install(wheel, python)
    assert asked_for_a_python(python) == [str(environment / "bin" / "kgroup-python"), str(python)]
    link = tmp_path / "current"
    link.symlink_to(environment)
    assert asked_for_a_python(link / "bin" / "python")[0] == str(link / "bin" / "kgroup-python")


def test_a_user_s_installation_has_the_script_where_its_python_is_the_one_on_path(wheel: Path, tmp_path: Path) -> None:
    base = Path(getattr(sys, "_base_executable", sys.executable)).resolve()
    home = {"PYTHONUSERBASE": str(tmp_path)}
    install(wheel, base, "--user", "--break-system-packages", **home)
    at_hand = {**home, "PATH": f"{base.parent}:{os.defpath}"}
    assert asked_for_a_python(base, **at_hand)[0] == str(tmp_path / "bin" / "kgroup-python")
    missing, itself = asked_for_a_python(base, **home, PATH="/nowhere")
    assert missing == itself


def install(wheel: Path, python: Path, *options: str, **environment: str) -> None:
    """Install the wheel for a Python that needs no pip of its own."""
    pip = [sys.executable, "-m", "pip", "--python", str(python)]
    command = [*pip, "install", "--no-deps", "--no-index", *options, str(wheel)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env={**os.environ, **environment})


def asked_for_a_python(python: Path, **environment: str) -> list[str]:
    """The path that `pyspark_kgroup.python()` returns there, and that Python's own name."""
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [python, "-P", "-c", PYTHON], env=clean | environment, capture_output=True, text=True, check=True
    )
    return done.stdout.splitlines()


def test_a_wheel_from_the_sdist_on_a_machine_without_a_compiler_is_the_same_to_the_byte(
    source: Path, wheel: Path, tmp_path: Path
) -> None:
    shutil.rmtree(source / ".build")
    nowhere = tmp_path / "bin"
    nowhere.mkdir()
    bare = {**os.environ, "PATH": str(nowhere), "HOME": str(tmp_path)}
    again = build(source, tmp_path / "dist", bare)
    assert again.read_bytes() == wheel.read_bytes()
    (sdist,) = (tmp_path / "dist").glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        rooms = {name.split("/")[1] for name in archive.getnames() if name.count("/") > 1}
    assert rooms == {"datasource", "spark_kgroup"}


def test_an_editable_install_on_a_machine_without_a_compiler_has_the_decoder(source: Path, tmp_path: Path) -> None:
    nowhere = tmp_path / "bin"
    nowhere.mkdir()
    command = [sys.executable, str(source / "hatch_build.py")]
    subprocess.run(command, check=True, timeout=300, env={**os.environ, "PATH": str(nowhere)})
    (binary,) = (source / "datasource" / NATIVE / "lib").iterdir()
    assert binary.name.startswith(f"{sys.platform}-")
    done = subprocess.run(
        [sys.executable, "-c", LOADS],
        env={**os.environ, "PYTHONPATH": f"{source / 'datasource'}:{source}"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
