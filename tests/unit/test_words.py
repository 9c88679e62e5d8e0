"""Names are the field's, or in ARCHITECTURE.md's "Words"; and the group's side knows no Spark, and no word of it."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "spark_kgroup"
SOURCE = ROOT / "datasource" / "pyspark_kgroup"
PYTHON_FILES = sorted(
    path for folder in (PACKAGE, SOURCE, ROOT / "examples", ROOT / "tests") for path in folder.rglob("*.py")
)

OF_SPARK = re.compile(
    r"(?<![\w-])(?:py)?spark(?![-_]kgroup)"  # the package's own name is not about Spark
    r"|(?<!record )\bbatch(?:es)?\b|(?<![\w.])quer(?:y|ies)\b|\bboundar(?:y|ies)\b"  # a record batch is Kafka's
    r"|\bexecutors?\b|\bdrivers?\b|\btrigger|micro-batch|\bload\(\)|\bsidecars?\b"
    r"|registryHost|registryPort|instanceIdPrefix|tokenCallback|startingOffsets|maxOffsetsPerTrigger|failOnDataLoss"
    r"|(?<![\w.])kafka\.(?:bootstrap|client|group|session|heartbeat|metadata|partition|request|default|security|sasl|ssl|https)\.",
    re.IGNORECASE,
)
"""Options are Spark's spelling of Kafka's settings: `kafka.` stands before them there."""

ALLOWED = {
    "admin/cli.py": {"spark"},
    "admin/describe_command.py": {"spark", "executor", "executors"},
    "seat_note.py": {"spark", "executor", "driver"},
    "wire/security/oauth.py": {"query"},
}
"""What `kgroup describe` shows beside the offsets of Spark's seats, and the query of a URL."""


@pytest.mark.parametrize(
    "path",
    [path for path in sorted(PACKAGE.rglob("*.py")) if "testing" not in path.parts],
    ids=lambda path: str(path.relative_to(PACKAGE)),
)
def test_the_group_s_side_has_no_word_of_spark_s(path: Path) -> None:
    name = path.relative_to(PACKAGE).as_posix()
    found = {word[0].lower() for word in OF_SPARK.finditer(path.read_text())}
    assert found <= ALLOWED.get(name, set())


@pytest.mark.parametrize(
    "text", ["Spark", "a query", "a batch", "the boundary", "kafka.session.timeout.ms", "by an executor", "two load()s"]
)
def test_a_word_of_spark_s_is_found(text: str) -> None:
    assert OF_SPARK.search(text)


@pytest.mark.parametrize("text", ["one record batch", "a RecordBatch of Kafka", "url.query", "spark_kgroup"])
def test_a_word_of_the_field_s_is_none_of_spark_s(text: str) -> None:
    assert not OF_SPARK.search(text)


# ----------------------------------------------------------------------------------------------------------- names

PRIVATE_NAMES = {"told", "said"}
"""Each stood for a message, a reason, an answer, an output, a warning: a name says which."""

PRIVATE_WORDS = {"stranger", "strangers", "tenure", "tenures", "unheard", "inheritance"}
"""Words that "Words" in ARCHITECTURE.md has replaced, wherever in a name they stand."""

PARTICIPLES = {
    *("asked", "bounded", "divided", "escaped", "forked", "given", "kept", "limited", "listed", "locked", "named"),
    *("opened", "passed", "pinned", "pooled", "quoted", "reached", "received", "repeated", "retried", "secured"),
    *("shortened", "shown", "sized", "spelled", "started", "told", "unseen", "written"),
}
"""What acts is a verb, what is notified is `on_...`: a function of one of these names left open which it is."""

ASKED_FOR = {"runtime/topics.py": {"named"}}
"""A noun after its object: `topics.named(names)`."""

RIDDLE = re.compile(r"test_what_|\w+_(?:is|are|was|were)_told(?:_so)?$|\w+_the_(?:last|group_?s)_word$")
"""A test's name says subject, circumstance and outcome: not "what", and not that somebody is told, but what."""


def names_in(tree: ast.AST) -> Iterator[str]:
    """Whatever is named: variables, arguments, attributes, functions, classes, what an import is called."""
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()) | ast.arg(arg=name):
                yield name
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield name
            case ast.alias(asname=str(name)):
                yield name


def functions_in(tree: ast.AST) -> Iterator[str]:
    """Those that are called; a property is asked."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not is_property(node):
            yield node.name


def is_property(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return any(isinstance(each, ast.Name) and each.id == "property" for each in function.decorator_list)


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def is_private(name: str) -> bool:
    bare = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower().strip("_")
    return bare in PRIVATE_NAMES or not PRIVATE_WORDS.isdisjoint(bare.split("_"))


def test_no_name_is_a_private_word() -> None:
    found = [(path.name, name) for path in PYTHON_FILES for name in names_in(parsed(path)) if is_private(name)]
    assert found == []


def test_a_function_is_named_by_a_verb_or_a_noun_and_not_by_a_participle() -> None:
    for package in (PACKAGE, SOURCE):
        for path in sorted(package.rglob("*.py")):
            name = path.relative_to(package).as_posix()
            found = PARTICIPLES.intersection(each.strip("_") for each in functions_in(parsed(path)))
            assert found == ASKED_FOR.get(name, set()), name


def test_a_test_s_name_is_no_riddle() -> None:
    names = [name for path in PYTHON_FILES for name in functions_in(parsed(path)) if name.startswith("test_")]
    assert len(names) > 1_000
    assert [name for name in names if RIDDLE.match(name)] == []


@pytest.mark.parametrize("name", ["told", "_said", "as_stranger", "_Tenure", "open_tenures", "UNHEARD"])
def test_a_private_word_is_found(name: str) -> None:
    assert is_private(name)


@pytest.mark.parametrize(
    "text",
    ["def sized(a): ...", "def told(a): ...", "async def _opened(a): ...", "class A:\n    def _shown(self): ..."],
)
def test_a_participle_is_found(text: str) -> None:
    assert PARTICIPLES.intersection(name.strip("_") for name in functions_in(ast.parse(text)))


@pytest.mark.parametrize(
    "name",
    [
        "test_what_is_held",
        "test_a_group_that_is_not_there_is_told",
        "test_a_late_ticket_is_told_so",
        "test_it_waits_for_the_groups_word",
    ],
)
def test_a_riddle_is_found(name: str) -> None:
    assert RIDDLE.match(name)


def logged_texts(tree: ast.Module) -> tuple[str, ...]:
    """What log lines are given as text, though it may be an error's: `str(error)`, and f-strings."""
    calls = [
        each for each in ast.walk(tree) if isinstance(each, ast.Call) and ast.unparse(each.func).startswith("log.")
    ]
    given = [argument for call in calls for argument in call.args]
    return tuple(ast.unparse(a) for a in given if isinstance(a, ast.JoinedStr) or ast.unparse(a).startswith("str("))


def test_a_log_line_of_the_group_s_side_carries_an_error_and_not_its_text() -> None:
    """Whoever shows it words the settings in an error; of a text nobody knows what it is."""
    assert [text for path in sorted(PACKAGE.rglob("*.py")) for text in logged_texts(parsed(path))] == []


@pytest.mark.parametrize("line", ["log.warning('away: %s', str(error))", "log.info(f'away: {error}')"])
def test_a_logged_text_is_found(line: str) -> None:
    assert logged_texts(ast.parse(line))
