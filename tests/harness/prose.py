"""How much of a text stands for a noun without naming it: per 1,000 words, of documents, docstrings, comments, of the
strings that users see, and of names of tests.

Measured with it: h11 2.8 vague nouns, httpcore 0.2, structlog 1.1, franz-go 3.1. None of them
has persons without a name.
"""

import ast
import io
import re
import tokenize
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Final, NamedTuple

VAGUE: Final = re.compile(
    r"\b(what|whatever|whoever|whom|somebody|nobody|anybody|everybody|others|something|nothing|anything)\b", re.I
)
PERSONS: Final = re.compile(r"\b(nobody|somebody|anybody|everybody|whoever)\b", re.I)
SEMICOLON: Final = re.compile(";")

_WORD: Final = re.compile(r"[A-Za-z']+")
_SENTENCE_END: Final = re.compile(r"(?<=[.:;?!])\s+")
_WORST: Final = 10
_WORDS_OF_A_TEXT: Final = 3
"""A shorter string is a name or a key rather than a text for users."""


@dataclass(frozen=True)
class Prose:
    """The texts of one room, of one page, or of one folder of tests."""

    texts: tuple[str, ...]

    @cached_property
    def words(self) -> int:
        return sum(len(_WORD.findall(text)) for text in self.texts)

    def per_thousand(self, found: re.Pattern[str]) -> float:
        """Occurrences in 1,000 words."""
        return 1000 * sum(len(found.findall(text)) for text in self.texts) / max(1, self.words)

    def worst(self, found: re.Pattern[str] = VAGUE) -> list[str]:
        """The sentences with most occurrences for their length."""
        sentences = (" ".join(s.split()) for text in self.texts for s in _SENTENCE_END.split(text))
        having = [sentence for sentence in sentences if found.search(sentence)]
        return sorted(having, key=lambda s: -len(found.findall(s)) / len(s.split()) ** 0.5)[:_WORST]


def prose_of(paths: Iterable[Path]) -> Prose:
    """The prose of Python files and of Markdown files, without tables and blocks of code."""
    return Prose(tuple(text for path in paths for text in (_page if path.suffix == ".md" else _prose)(path)))


def shown_by(paths: Iterable[Path]) -> Prose:
    """The strings of modules that are raised, logged or printed. A value within an f-string stands there as "…"."""
    return Prose(tuple(text for path in paths for text in _module(path).shown))


def names_of_tests(paths: Iterable[Path]) -> Prose:
    """Each name as the sentence that it is."""
    return Prose(tuple(name for path in paths for name in _module(path).tests))


def _page(path: Path) -> Iterator[str]:
    text = re.sub(r"```.*?```", "", path.read_text(), flags=re.DOTALL)
    yield "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("|"))


def _prose(path: Path) -> Iterator[str]:
    yield from _module(path).docstrings
    for token in tokenize.generate_tokens(io.StringIO(path.read_text()).readline):
        if token.type == tokenize.COMMENT:
            yield token.string.lstrip("# ")


class _Module(NamedTuple):
    docstrings: tuple[str, ...]
    shown: tuple[str, ...]
    tests: tuple[str, ...]


@cache
def _module(path: Path) -> _Module:
    """Without its tree: some hundred trees in memory make each garbage collection slow."""
    docstrings, shown, tests = [], [], []
    nodes: list[ast.AST] = [ast.parse(path.read_text())]
    for node in nodes:
        children = ast.iter_child_nodes(node)
        match node:
            case ast.Expr(value=ast.Constant(value=str(text))):
                docstrings.append(text)
                continue
            case ast.Constant(value=str(text)):
                shown.append(text)
            case ast.JoinedStr(values=parts):
                shown.append("".join(str(part.value) if isinstance(part, ast.Constant) else "…" for part in parts))
                children = (part.value for part in parts if isinstance(part, ast.FormattedValue))
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) if name.startswith("test_"):
                tests.append(name.removeprefix("test_").replace("_", " "))
        nodes += children
    texts = (text for text in shown if len(text.split()) >= _WORDS_OF_A_TEXT)
    return _Module(tuple(docstrings), tuple(texts), tuple(tests))
