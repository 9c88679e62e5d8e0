"""The pages of the documentation that come from the product: its options, its command line, its state machines.

    cd tests && python -m harness.reference_pages      (make docs does it)

The pages are kept in the repository, so that they can be read there, and a test holds them to the product.
"""

import ast
import inspect
from collections.abc import Callable, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Final

import typer
from typer.cli import get_docs_for_click

from pyspark_kgroup.options.rows import OPTIONS
from pyspark_kgroup.options.values import Option
from spark_kgroup.admin.cli import app
from spark_kgroup.member import consumer_state, state

FOLDER: Final = Path(__file__).parents[2] / "docs"

_CHAPTERS: Final = {
    "kafka.bootstrap.servers": "What is read, by which group",
    "startingOffsets": "Where reading starts and ends",
    "minPartitions": "Batches and tasks",
    "columns": "Rows",
    "reader": "Executors",
    "kafka.auto.offset.reset": "Kafka's side of reading and of the group",
    "kafka.client.id": "Names and security",
}
"""The first option of each chapter -> its title. The chapters follow each other as the rows do."""

_OPTIONS_HEAD: Final = """# Options

Options have the names that Spark or Kafka gave them; Kafka's have the prefix `kafka.`. Names are not case-sensitive. An
option that is unknown, malformed or contradicts another is an error that names the fix.

Other `kafka.*` options go to librdkafka under its own names; a name it does not know is refused with the nearest one it
knows. The native reader has its own bounds: `fetch.max.bytes` and `max.partition.fetch.bytes` count up to 4 and 1 MiB,
and how long brokers wait for how much (`fetch.wait.max.ms`, `fetch.min.bytes`, `queued.*`) follows from the read. An
option that only librdkafka understands makes it read everything, which an executor's log says once.
"""


def options_page() -> str:
    """Each option with a heading of its own, so that a link can name it."""
    parts = [_OPTIONS_HEAD]
    for option in OPTIONS:
        if option.name in _CHAPTERS:
            parts.append(f"## {_CHAPTERS[option.name]}\n")
        parts.append(_section(option))
    return "\n".join(parts)


def _section(option: Option[object]) -> str:
    facts = {
        "type": option.type,
        "default": option.shown or "none: it is required",
        "values": option.range,
        "acts on": {"both": "driver and executors"}.get(option.acts, option.acts),
        "comes from": option.origin,
    }
    listed = "\n".join(f"- *{name}*: {_plain(text)}" for name, text in facts.items())
    return f"### `{option.name}`\n\n{_plain(option.effect)}\n\n{listed}\n"


def _plain(text: str) -> str:
    """A cell of a row as Markdown takes it literally."""
    return text.replace("*", "\\*").replace("<", "&lt;").replace("](", "]&#40;")


_COMMAND_LINE_HEAD: Final = """# Command line

The extra `[cli]` brings the command `kgroup`: [Quickstart](../quickstart.md#install). `--command-config
client.properties` names a file with the settings of a secured cluster: the file of Kafka's own tools, in Java's names
and format (a backslash is written `\\\\`), or one with librdkafka's names.

"""


def command_line_page() -> str:
    """The text of `kgroup --help` for each command."""
    command = typer.main.get_command(app)
    context = typer.Context(command, info_name="kgroup")
    text = get_docs_for_click(obj=command, ctx=context, name="kgroup")
    body = "\n".join(line.rstrip() for line in text.splitlines()[1:])
    body = body.replace("```console\n$ ", "```bash\n")  # a command that is copied has no prompt
    return _COMMAND_LINE_HEAD + body.strip() + "\n"


_MACHINES_HEAD: Final = """# The member's state machines

Each seat is a state machine without I/O. Events and the time go in, effects come out. The diagrams are drawn from the
tables that the code goes by (`LEAVES_TO`); a step that a table does not have is an `IllegalTransition`.
"""


def member_machines_page() -> str:
    """The two machines as diagrams, with the meanings of their states."""
    parts = [_MACHINES_HEAD]
    for title, states in (("The classic protocol", state), ("The consumer protocol", consumer_state)):
        meanings = _meanings(inspect.getsource(states))
        arrows = [
            f"    {source.name} --> {target.name}"
            for source, targets in states.LEAVES_TO.items()
            for target in sorted(targets, key=lambda each: each.name)
        ]
        rows = [f"| `{each.name}` | {meanings[each.name]} |" for each in states.LEAVES_TO]
        diagram = "\n".join(["```mermaid", "stateDiagram-v2", "    [*] --> IDLE", *arrows, "    CLOSED --> [*]", "```"])
        table = "\n".join(["| state | meaning |", "|---|---|", *rows])
        parts.append(f"## {title}\n\n{diagram}\n\n{table}\n")
    return "\n".join(parts)


def _meanings(source: str) -> dict[str, str]:
    """State -> the docstring below it in its class."""
    (states,) = (n for n in ast.parse(source).body if isinstance(n, ast.ClassDef) and n.name == "State")
    found = {}
    for named, text in pairwise(states.body):
        if isinstance(named, ast.Assign) and isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant):
            found[ast.unparse(named.targets[0])] = " ".join(str(text.value.value).split())
    return found


PAGES: Final[Mapping[str, Callable[[], str]]] = {
    "reference/options.md": options_page,
    "reference/command-line.md": command_line_page,
    "explain/member-machines.md": member_machines_page,
}

if __name__ == "__main__":
    for name, page in PAGES.items():
        (FOLDER / name).write_text(page())
