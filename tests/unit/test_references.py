"""References in the code and its documents lead to files and sections of this repository. Documents are wrapped."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from harness.reference_pages import PAGES

ROOT = Path(__file__).parents[2]
FOLDERS = ("spark_kgroup", "datasource", "examples", "tests", "conf", "docs")
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
GENERATED = {ROOT / "docs" / name for name in PAGES}
SUFFIXES = {".py", ".toml", ".java", ".c"}
SOURCES = sorted(
    p for folder in FOLDERS for p in (ROOT / folder).rglob("*") if p.suffix in SUFFIXES and p != Path(__file__)
)
TEXTS = [
    *DOCUMENTS,
    *SOURCES,
    *(ROOT / name for name in ("Makefile", "mkdocs.yml", "hatch_build.py", "pyproject.toml", ".ci/run")),
]
PATHS = {
    str(path.relative_to(ROOT))
    for path in (*TEXTS, *(ROOT / folder for folder in FOLDERS), *(p for f in FOLDERS for p in (ROOT / f).rglob("*")))
}
DECISIONS = {int(page.name[:4]): page for page in (ROOT / "docs" / "develop" / "decisions").glob("0*.md")}

OF_LIBRDKAFKA = {"CONFIGURATION.md"}
A_DECISION = re.compile(r"(?:[Dd]ecisions?|Amended by|[Aa]mends) (\d+)((?:(?:, | and |, and )\d+)*)")
A_DECISION_AMONG_DECISIONS = re.compile(r"\((\d{1,3})((?:, \d{1,3})*)\)")
"""The bare number with which a page of the decisions names another one."""

BACK = {
    "Amends": "Amended by",
    "Changes": "Changed by",
    "Adds to": "Extended by",
    "Restores": "Restored by",
    "Supersedes": "Superseded by",
}
BACK |= {back: forth for forth, back in BACK.items()}
"""How a decision's status names another decision -> how that one's status names it in turn."""

A_RELATION = re.compile(rf"({'|'.join(BACK)}) (\d+(?:(?:, | and )\d+)*)(?:: \D*)?")
A_SECTION = re.compile(r"\bsections? \d")
AN_OUTSIDE_SOURCE = re.compile(r"(?:RFC \d+|KIP-\d+)\W+(?:\w+ ){0,3}$")
A_DOCUMENT = re.compile(r"(?<![\w.])[\w/-]+\.md\b(?!\.)")
A_MESSAGE = re.compile(r"(?<!\*)\*([^*]+)\*(?!\*)")
AN_ERROR_OF_KAFKA = re.compile(r"\b[A-Z]+(?:_[A-Z]+)+\b")
OF_SPARK = {"Python worker failed to connect back"}
OF_TWO_TEXTS = {"Group ... rejected ...: no permission: grant READ on the group"}
"""Messages of a text that another text fills in: their parts are each found for themselves."""

A_PATH = re.compile(r"`([\w./-]+\.py|(?:spark_kgroup|datasource|pyspark_kgroup|tests|examples|conf)/[\w./-]*)`")


def where(path: Path, text: str, at: int) -> str:
    return f"{path.relative_to(ROOT)}:{text.count(chr(10), 0, at) + 1}"


def exists(name: str) -> bool:
    """Whether a file or folder of the repository has this path, or one that ends with it."""
    return any(path == name.rstrip("/") or path.endswith(f"/{name.rstrip('/')}") for path in PATHS)


def dangling(path: Path, text: str) -> Iterator[str]:
    """References in `text` that lead nowhere."""
    for found in A_SECTION.finditer(text):
        if not AN_OUTSIDE_SOURCE.search(" ".join(text[max(0, found.start() - 60) : found.start()].split()) + " "):
            yield f"{where(path, text, found.start())}: a section of what? {found[0]!r}"
    bare = A_DECISION_AMONG_DECISIONS.finditer(text) if path in DECISIONS.values() else ()
    for found in (*A_DECISION.finditer(text), *bare):
        for number in re.findall(r"\d+", found[1] + found[2]):
            if int(number) not in DECISIONS:
                yield f"{where(path, text, found.start())}: there is no decision {number}"
    for found in A_DOCUMENT.finditer(text):
        if found[0] not in OF_LIBRDKAFKA and not exists(found[0]):
            yield f"{where(path, text, found.start())}: there is no document {found[0]}"


@pytest.mark.parametrize("path", TEXTS, ids=lambda p: str(p.relative_to(ROOT)))
def test_a_reference_leads_to_a_document_section_or_decision_that_exists(path: Path) -> None:
    assert list(dangling(path, path.read_text())) == []


def status_of(number: int) -> str:
    """The second paragraph of a decision's page."""
    return " ".join(DECISIONS[number].read_text().split("\n\n")[1].split())


def relations_of(status: str) -> Iterator[tuple[str, int]]:
    """Each decision that a status names, with the words before it.

    Raises:
        AssertionError: a number stands there without such words, so that a reader cannot tell its meaning.
    """
    for sentence in status.rstrip(".").split(". "):
        if re.search(r"\d", sentence):
            found = A_RELATION.fullmatch(sentence)
            assert found, f"{sentence!r} does not begin with one of {sorted(BACK)}, or has a number elsewhere"
            yield from ((found[1], int(number)) for number in re.findall(r"\d+", found[2]))


@pytest.mark.parametrize("number", DECISIONS)
def test_a_decision_says_its_status_and_stands_in_the_index(number: int) -> None:
    page = DECISIONS[number]
    title = page.read_text().splitlines()[0]
    assert title.startswith(f"# {number}. ")
    assert status_of(number).startswith("*Status*: ")
    listed = f"| {number} | [{title.removeprefix(f'# {number}. ')}]({page.name}) |"
    assert listed in (page.parent / "index.md").read_text()


@pytest.mark.parametrize("number", DECISIONS)
def test_a_decision_and_one_that_changed_it_name_each_other(number: int) -> None:
    for words, other in relations_of(status_of(number)):
        assert (BACK[words], number) in relations_of(status_of(other)), f"{other} does not say {BACK[words]} {number}"


@pytest.mark.parametrize(
    "status", ["*Status*: Accepted. 86 lets it hold for TLS as well.", "Accepted. Changes decision 81.", "Since 4.3."]
)
def test_a_number_in_a_status_that_does_not_say_its_relation_is_found(status: str) -> None:
    with pytest.raises(AssertionError, match="does not begin with"):
        list(relations_of(status))


@cache
def said_by_the_product() -> str:
    """All texts in the code, with a line for each and `...` for the places that are filled in."""
    texts: list[str] = []
    for path in (p for folder in ("spark_kgroup", "datasource") for p in (ROOT / folder).rglob("*.py")):
        nodes = list(ast.walk(ast.parse(path.read_text())))
        docstrings = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
        for node in nodes:
            if id(node) in docstrings:
                continue
            if isinstance(node, ast.JoinedStr):
                texts.append(
                    "".join(str(part.value) if isinstance(part, ast.Constant) else "..." for part in node.values)
                )
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                texts.append(re.sub(r"%[\d.]*[a-z]", "...", node.value))
    return "\n".join(" ".join(text.split()) for text in texts)


def quoted_in(page: str) -> list[str]:
    """The messages that a page quotes, in all columns of its tables and between them."""
    return [message for line in page.splitlines() for message in A_MESSAGE.findall(line)]


def parts_of(message: str) -> list[str]:
    """The parts of a quoted message between the places that are filled in. Kafka's name of an error fills one."""
    return [part.strip(" .,:()") for part in AN_ERROR_OF_KAFKA.sub("...", message).split("...")]


def is_said(*parts: str) -> bool:
    """Whether one text of the product has these parts in this order."""
    return re.search(".*".join(map(re.escape, parts)), said_by_the_product()) is not None


def test_a_message_that_a_page_explains_is_one_of_the_product() -> None:
    page = (ROOT / "docs" / "operate" / "troubleshooting.md").read_text()
    quoted = set(quoted_in(page)) - OF_SPARK
    assert len(quoted) > 50
    assert quoted >= OF_TWO_TEXTS, "one of these is no longer on the page"
    wrong = {message for message in quoted - OF_TWO_TEXTS if not is_said(*parts_of(message))}
    assert wrong | {part for message in OF_TWO_TEXTS for part in parts_of(message) if not is_said(part)} == set()


@pytest.mark.parametrize(
    "line",
    [
        "| *No brokers could be reached.* | cause | fix |",
        "| `X` | cause | nothing. *Brokers answer to ... again* ends it |",
        "Between tables: *Data gain: ...*",
        "| *... to Kafka: ... seats have offsets behind the checkpoint of this query* (warning) | its parts | apart |",
    ],
)
def test_a_quoted_message_that_is_not_the_products_is_found(line: str) -> None:
    (message,) = quoted_in(line)
    assert not is_said(*parts_of(message))


@pytest.mark.parametrize("name", ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "SECURITY.md"])
def test_a_path_that_a_document_names_exists(name: str) -> None:
    assert [path for path in A_PATH.findall((ROOT / name).read_text()) if not exists(path)] == []


def test_a_step_of_the_boundary_has_the_same_number_in_the_code_and_in_architecture() -> None:
    order = (ROOT / "ARCHITECTURE.md").read_text().split("## The order of a boundary")[1].split("\n## ")[0]
    code = (
        (ROOT / "datasource" / "pyspark_kgroup" / "driver" / "boundary" / "boundary.py")
        .read_text()
        .split("def _see_topics")[0]
    )
    described, done = re.split(r"^\d\. ", order, flags=re.MULTILINE), re.split(r"^ +# \d\. ", code, flags=re.MULTILINE)
    assert len(described) == len(done) == 1 + 8
    for words, calls in zip(described[1:], done[1:], strict=True):
        carried_out_by = set(re.findall(r"(?:self\._|\bsteps\.)(\w+)\.", calls)) - {"group", "ledger"}
        assert [step for step in carried_out_by if step not in words] == []
    assert "batch_end" in carried_out_by, "the steps are called as this test expects"


@pytest.mark.parametrize("path", [p for p in DOCUMENTS if p not in GENERATED], ids=lambda p: str(p.relative_to(ROOT)))
def test_a_documents_prose_is_wrapped_at_120_columns(path: Path) -> None:
    """Tables, blocks of code, and lines without a blank to break at, may be wider."""
    prose = re.sub(r"^```.*?^```$", "", path.read_text(), flags=re.MULTILINE | re.DOTALL)
    assert [line for line in prose.splitlines() if len(line) > 120 and " " in line.strip() and line[0] != "|"] == []


@pytest.mark.parametrize(
    "text",
    [
        "the rules of design section 7",
        "what sections 6 and 7 say",
        "as decision 999 says",
        "*Accepted; amends 4 and 999.*",
        "see design.md",
    ],
)
def test_a_reference_that_leads_nowhere_is_found(text: str) -> None:
    assert len(list(dangling(ROOT / "README.md", text))) == 1


def test_a_bare_number_is_a_reference_among_decisions_alone() -> None:
    assert len(list(dangling(DECISIONS[1], "as before (74), and (8, 999)"))) == 2
    assert list(dangling(ROOT / "README.md", "in Spark's answer (74)")) == []


@pytest.mark.parametrize(
    "text", ["RFC 8305, section 8", "(RFC 9110,\n    section 9.3.6)", "decisions 4 and 5", "in README.md"]
)
def test_a_reference_to_an_existing_target_is_allowed(text: str) -> None:
    assert list(dangling(ROOT / "README.md", text)) == []
