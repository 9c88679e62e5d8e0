"""Imports go down only (ARCHITECTURE.md), and the group protocol does not know Spark or Arrow."""

import ast
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ENGINE = ROOT / "spark_kgroup"
SOURCE = ROOT / "datasource" / "pyspark_kgroup"

# Each room, with the rooms it may import. A room may always import itself. Lower rooms first.
BASE = {"errors", "model", "limits", "peer_words"}
ROOMS = {
    "model": set(),
    "limits": set(),
    "clock": set(),
    "tasks": set(),
    "uncollected": set(),
    "threads": set(),
    "seat_note": set(),
    "peer_words": {"limits"},
    "errors": {"model"},
    "rights": {"model", "limits"},
    "topic_pattern": BASE,
    "assignors": BASE | {"uncollected", "threads"},
    "member": BASE | {"assignors", "rights"},
    "wire": BASE | {"threads", "rights"},
    "coordinator": BASE | {"wire"},
    "runtime": BASE
    | {"clock", "tasks", "rights", "uncollected", "threads", "assignors", "member", "wire", "topic_pattern"},
    "membership": BASE | {"clock", "seat_note", "assignors", "member", "wire", "runtime"},
    "broker": BASE | {"wire", "coordinator"},
    "testing": BASE | {"threads", "broker", "coordinator"},
    "admin": BASE | {"uncollected", "assignors", "member", "wire", "runtime", "testing", "seat_note", "topic_pattern"},
}
PURE_ROOMS = {
    *("model", "limits", "peer_words", "errors", "rights", "seat_note", "topic_pattern", "assignors", "member"),
    "coordinator",
}
WORLDLY = {"asyncio", "socket", "threading", "time", "random", "logging", "datetime", "os", "subprocess"}
OF_SPARK_AND_KAFKA = {"pyspark", "confluent_kafka", "pyarrow", "kio"}
# The rooms of the data source, and of its front the modules. The rule is the same.
SOURCE_BASE = {"errors", "limits"}
SOURCE_ROOMS: dict[str, set[str]] = {
    "limits": set(),
    "errors": set(),
    "shared": SOURCE_BASE,
    "offsets": SOURCE_BASE,
    "options": SOURCE_BASE | {"shared", "offsets"},
    "driver": SOURCE_BASE | {"query_log", "shared", "offsets", "options"},
    "executor": SOURCE_BASE | {"shared", "offsets"},
    "admission": SOURCE_BASE,
    "query_log": SOURCE_BASE,
    "brief_errors": SOURCE_BASE,
    "durable_ends": SOURCE_BASE | {"offsets", "shared"},
    "ended_queries": SOURCE_BASE,
    "progress_as_text": set(),
    "listener": SOURCE_BASE | {"offsets", "durable_ends", "ended_queries", "progress_as_text"},
    "stream": SOURCE_BASE | {"shared", "offsets", "options", "driver", "executor", "admission", "brief_errors"},
    "batch": SOURCE_BASE | {"shared", "offsets", "options", "driver", "executor", "brief_errors", "stream"},
    "source": SOURCE_BASE | {"shared", "options", "driver", "brief_errors", "stream", "batch"},
    "checkpoint_files": SOURCE_BASE | {"offsets"},
    "diagnosis": SOURCE_BASE | {"shared", "options", "executor"},
    "__init__": {"shared", "driver", "source", "diagnosis"},
}
# The rooms within the two halves; the rule is the same.
INNER_ROOMS: dict[str, set[str]] = {
    "driver/startup": set(),
    "driver/registry": set(),
    "driver/batch": set(),
    "driver/boundary": {"batch"},
    "driver/ticket_plan": {"batch", "registry", "boundary"},
    "driver/query": {"startup", "registry", "boundary", "ticket_plan"},
    "driver/__init__": set(),
    "executor/sidecar_dir": set(),
    "executor/batch_stream": set(),
    "executor/native": set(),
    "executor/read": {"native"},
    "executor/sidecar": {"sidecar_dir", "batch_stream", "native", "read"},
    "executor/worker": {"sidecar_dir", "batch_stream", "read"},
    "executor/__init__": set(),
}
PURE_BY_THEMSELVES = {
    "driver/startup/checkpoint_origin",
    "driver/boundary/ledger",
    "driver/registry/seat_bindings",
    "options/refusals",
    "options/rows",
    "options/offset_bound",
    "options/values",
    "shared/redacted",
    "shared/tickets",
}


def modules(package: Path) -> list[Path]:
    found = sorted(package.rglob("*.py"))
    assert found, f"no modules under {package}"
    return found


@cache  # each test of `reached_from` comes to nearly all modules
def imports(path: Path) -> frozenset[str]:
    """Dotted names of everything that `path` imports, wherever in the file."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names.add(node.module or "")
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return frozenset(names)


def room_of(path: Path) -> str:
    package = SOURCE if path.is_relative_to(SOURCE) else ENGINE
    first = path.relative_to(package).parts[0]
    return first.removesuffix(".py")


def file_of(name: str) -> Path | None:
    """The file of a module of ours, or None for a name in one, and for modules of other packages."""
    top, *rest = name.split(".")
    package = {"spark_kgroup": ENGINE, "pyspark_kgroup": SOURCE}.get(top)
    if package is None:
        return None
    at = package.joinpath(*rest)
    return next((p for p in (at.with_suffix(".py"), at / "__init__.py") if p.exists()), None)


@cache
def modules_in(names: frozenset[str]) -> frozenset[Path]:
    """The files of ours among the names in `from x import y` and `import x`."""
    every = names | {name.rpartition(".")[0] for name in names}
    return frozenset(p for name in every if (p := file_of(name)) is not None)


def reached_from(path: Path) -> set[Path]:
    """The modules of ours that `path` imports, and those that they import. Packages count only where they are named."""
    reached: set[Path] = set()
    found = {path}
    while found:
        found = {p for module in found for p in modules_in(imports(module)) if p.name != "__init__.py"} - reached
        reached |= found
    return reached


CORE = [p for p in modules(ENGINE) if p.parent != ENGINE or p.stem != "__init__"]
OF_THE_SOURCE = modules(SOURCE)


@pytest.mark.parametrize("path", CORE, ids=lambda p: str(p.relative_to(ROOT)))
def test_a_room_imports_only_rooms_below_it(path: Path) -> None:
    room = room_of(path)
    assert room in ROOMS, f"{room} has no place in the layers: add it here and to ARCHITECTURE.md"
    used = {name.split(".")[1] for name in imports(path) if name.startswith("spark_kgroup.")}
    assert used <= ROOMS[room] | {room}


@pytest.mark.parametrize("path", CORE, ids=lambda p: str(p.relative_to(ROOT)))
def test_the_group_protocol_knows_neither_spark_nor_arrow(path: Path) -> None:
    """The embedded broker decompresses a batch by PyArrow, which it imports for the first one alone."""
    tops = {name.split(".")[0] for name in imports(path)}
    allowed = {"pyarrow"} if path == ENGINE / "broker" / "record_times.py" else set()
    assert not (tops - allowed) & {"pyspark", "pyspark_kgroup", "pyarrow", "pandas"}


PURE_IN_THE_BROKER = [
    p for p in modules(ENGINE / "broker") if p.stem not in {"server", "waiting", "groups", "broker_clock"}
]


@pytest.mark.parametrize("path", PURE_IN_THE_BROKER, ids=lambda p: str(p.relative_to(ENGINE)))
def test_the_state_of_the_embedded_broker_knows_no_world(path: Path) -> None:
    assert not {name.split(".")[0] for name in imports(path)} & WORLDLY


@pytest.mark.parametrize("path", [p for p in CORE if room_of(p) in PURE_ROOMS], ids=lambda p: str(p.relative_to(ROOT)))
def test_pure_rooms_know_no_world(path: Path) -> None:
    tops = {name.split(".")[0] for name in imports(path)}
    assert not tops & WORLDLY


@pytest.mark.parametrize("path", OF_THE_SOURCE, ids=lambda p: str(p.relative_to(ROOT)))
def test_a_room_of_the_source_imports_only_rooms_below_it(path: Path) -> None:
    """Among other things: the driver's half and the executors' never import each other."""
    room = room_of(path)
    assert room in SOURCE_ROOMS, f"{room} has no place in the layers: add it here and to ARCHITECTURE.md"
    used = {name.split(".")[1] for name in imports(path) if name.startswith("pyspark_kgroup.")}
    assert used <= SOURCE_ROOMS[room] | {room}


@pytest.mark.parametrize(
    "path",
    [p for p in OF_THE_SOURCE if room_of(p) in ("driver", "executor")],
    ids=lambda p: str(p.relative_to(ROOT)),
)
def test_a_room_of_the_driver_or_of_executors_imports_only_rooms_below_it(path: Path) -> None:
    half, inner, *_ = path.relative_to(SOURCE).parts
    room = f"{half}/{inner.removesuffix('.py')}"
    assert room in INNER_ROOMS, f"{room} has no place in the layers: add it here and to ARCHITECTURE.md"
    within = [name.split(".")[2] for name in imports(path) if name.startswith(f"pyspark_kgroup.{half}.")]
    assert set(within) <= INNER_ROOMS[room] | {room.partition("/")[2]}


@pytest.mark.parametrize("path", OF_THE_SOURCE, ids=lambda p: str(p.relative_to(SOURCE)))
def test_the_source_uses_no_module_of_the_commands(path: Path) -> None:
    assert not {name for name in imports(path) if name.startswith("spark_kgroup.admin")}


@pytest.mark.parametrize("name", sorted(PURE_BY_THEMSELVES))
def test_a_pure_module_outside_the_pure_rooms_knows_no_world(name: str) -> None:
    tops = {n.split(".")[0] for n in imports(SOURCE / f"{name}.py")}
    assert not tops & (WORLDLY | OF_SPARK_AND_KAFKA)


@pytest.mark.parametrize("path", modules(SOURCE / "offsets"), ids=lambda p: p.stem)
def test_the_arithmetic_of_offsets_is_pure_with_all_that_it_imports(path: Path) -> None:
    tops = {name.split(".")[0] for module in {path, *reached_from(path)} for name in imports(module)}
    assert not tops & (WORLDLY | OF_SPARK_AND_KAFKA)


@pytest.mark.parametrize("path", OF_THE_SOURCE, ids=lambda p: p.name)
def test_each_module_of_the_source_says_where_it_runs(path: Path) -> None:
    doc = ast.get_docstring(ast.parse(path.read_text())) or ""
    assert "Runs on: driver" in doc or "Runs on: executor" in doc or "Runs on: both" in doc


@pytest.mark.parametrize("path", [*CORE, *OF_THE_SOURCE], ids=lambda p: str(p.relative_to(ROOT)))
def test_no_module_is_imported_by_one_that_it_imports_not_even_for_its_types(path: Path) -> None:
    assert path not in reached_from(path)


def test_kio_judges_the_codec_in_tests_and_is_in_no_module() -> None:
    assert [path for path in (*CORE, *OF_THE_SOURCE) if "kio" in {name.split(".")[0] for name in imports(path)}] == []


def test_the_boundary_and_its_steps_take_one_context_and_their_own_state() -> None:
    folder = SOURCE / "driver" / "boundary"
    context = ast.walk(ast.parse((folder / "context.py").read_text()))
    shared = {f.target.id for f in context if isinstance(f, ast.AnnAssign) and isinstance(f.target, ast.Name)}
    assert shared == {"group", "options", "ledger", "us", "clock"}
    taken = {
        f"{path.name}:{made.lineno}": [a.arg for a in (*made.args.args, *made.args.kwonlyargs) if a.arg != "self"]
        for path in modules(folder)
        for made in ast.walk(ast.parse(path.read_text()))
        if isinstance(made, ast.FunctionDef) and made.name == "__init__"
    }
    assert {at: names for at, names in taken.items() if len(names) > 5 or shared & set(names)} == {}
