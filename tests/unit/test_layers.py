"""Imports go down only (ARCHITECTURE.md), and the group protocol knows nothing of Spark or Arrow."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

# Each room, with the rooms it may import; a room may always import itself. Lower rooms first.
BASE = {"errors", "model", "limits"}
ROOMS = {
    "model": set(),
    "limits": set(),
    "errors": {"model"},
    "assignors": BASE,
    "member": BASE | {"assignors"},
    "wire": BASE,
    "runtime": BASE | {"assignors", "member", "wire"},
    "testing": BASE,
    "admin": BASE | {"assignors", "member", "wire", "runtime", "testing"},
}
PURE_ROOMS = {"model", "limits", "errors", "assignors", "member"}
WORLDLY = {"asyncio", "socket", "threading", "time", "random", "logging", "datetime", "os", "subprocess"}
SPARK_SIDE_PURE = {
    "offsets/checkpoint",
    "driver/checkpoint_origin",
    "offsets/plan",
    "driver/seats",
    "offsets/adoption",
    "offsets/data_loss",
    "driver/ledger",
    "options/starting_offsets",
    "options/values",
    "options/rows",
    "options/refusals",
}


def modules(package: Path) -> list[Path]:
    found = sorted(package.rglob("*.py"))
    assert found, f"no modules under {package}"
    return found


def imports(path: Path) -> set[str]:
    """Dotted names of everything that `path` imports, wherever in the file."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names.add(node.module or "")
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def room_of(path: Path) -> str:
    first = path.relative_to(ROOT / "spark_kgroup").parts[0]
    return first.removesuffix(".py")


CORE = [p for p in modules(ROOT / "spark_kgroup") if p.parent != ROOT / "spark_kgroup" or p.stem != "__init__"]


@pytest.mark.parametrize("path", CORE, ids=lambda p: str(p.relative_to(ROOT)))
def test_a_room_imports_only_rooms_below_it(path: Path) -> None:
    room = room_of(path)
    assert room in ROOMS, f"{room} has no place in the layers: add it here and to ARCHITECTURE.md"
    used = {name.split(".")[1] for name in imports(path) if name.startswith("spark_kgroup.")}
    assert used <= ROOMS[room] | {room}


@pytest.mark.parametrize("path", CORE, ids=lambda p: str(p.relative_to(ROOT)))
def test_the_group_protocol_knows_neither_spark_nor_arrow(path: Path) -> None:
    tops = {name.split(".")[0] for name in imports(path)}
    assert not tops & {"pyspark", "pyspark_kgroup", "pyarrow", "pandas"}


@pytest.mark.parametrize("path", [p for p in CORE if room_of(p) in PURE_ROOMS], ids=lambda p: str(p.relative_to(ROOT)))
def test_pure_rooms_know_no_world(path: Path) -> None:
    tops = {name.split(".")[0] for name in imports(path)}
    assert not tops & WORLDLY


@pytest.mark.parametrize("name", sorted(SPARK_SIDE_PURE))
def test_offset_arithmetic_is_pure(name: str) -> None:
    tops = {n.split(".")[0] for n in imports(ROOT / "datasource" / "pyspark_kgroup" / f"{name}.py")}
    assert not tops & (WORLDLY | {"pyspark", "confluent_kafka", "pyarrow"})


@pytest.mark.parametrize("path", modules(ROOT / "datasource"), ids=lambda p: p.name)
def test_each_module_of_the_source_says_where_it_runs(path: Path) -> None:
    doc = ast.get_docstring(ast.parse(path.read_text())) or ""
    assert "Runs on: driver" in doc or "Runs on: executor" in doc or "Runs on: both" in doc


def test_codec_is_behind_one_seam() -> None:
    users = {room_of(path) for path in CORE if "kio" in {name.split(".")[0] for name in imports(path)}}
    assert users == {"wire"}
