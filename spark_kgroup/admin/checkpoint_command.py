"""`kgroup checkpoint`: what a query's checkpoint says of its Kafka sources, and its way back to `format("kafka")`."""

from __future__ import annotations

import json
from typing import Annotated, Any, Final, Protocol

import typer

from spark_kgroup.admin.source_deeds import find_deed, setting_from
from spark_kgroup.admin.tables import add_row, table, write

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    help="The checkpoint of a query: show it, or give it back to format('kafka').",
)

EXAMPLES_OF_SHOW = (
    "Examples:\n\nkgroup checkpoint show /checkpoints/flights\n\nkgroup checkpoint show /checkpoints/flights --json"
)

EXAMPLES_OF_EXPORT = (
    "Examples:\n\n"
    "kgroup checkpoint export --checkpoint /checkpoints/flights --dry-run\n\n"
    "kgroup checkpoint export --checkpoint s3a://bucket/flights --source 1 "
    "--conf spark.jars.packages=org.apache.hadoop:hadoop-aws:3.4.2"
)

_FOLDER_HELP: Final = "The query's checkpointLocation: a path on this disk, or a URI (hdfs:, s3a:, ...)."
_CONF_HELP: Final = "As spark-submit's, for a URI that is not on this disk; may be given several times."
_COLUMNS: Final = ("source", "format", "topic", "partition", "position", "planned", "seat")


class Show(Protocol):
    """`pyspark_kgroup.checkpoint_files.command.show`."""

    def __call__(self, *, folder: str, settings: dict[str, str]) -> dict[str, Any]:
        """The last batches of a checkpoint, and the positions of its sources."""


class Export(Protocol):
    """`pyspark_kgroup.checkpoint_files.command.export`."""

    def __call__(self, *, folder: str, settings: dict[str, str], source: int | None, dry_run: bool) -> dict[str, Any]:
        """Put an offset of format("kafka") in place of the last one, and say what was done."""


@app.command(epilog=EXAMPLES_OF_SHOW)
def show(
    checkpoint: Annotated[str, typer.Argument(metavar="DIR", help=_FOLDER_HELP)],
    conf: Annotated[list[str] | None, typer.Option(metavar="NAME=VALUE", help=_CONF_HELP)] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Show how far a checkpoint is: the position of each partition of its Kafka sources, of either format.

    POSITION is where the last finished batch ends, and PLANNED where the unfinished one ends, if there is one. SEAT is
    the member of the group that reads the partition, if this query owns it.
    """
    deed: Show = find_deed("checkpoint-show")
    found = deed(folder=checkpoint, settings=dict(map(setting_from, conf or ())))
    if as_json:
        typer.echo(json.dumps(found))
        return
    typer.echo(f"Last finished batch: {_number(found['batch'])}. Unfinished: {_number(found['unfinished'])}.\n")
    shown = table(*_COLUMNS)
    for line in found["partitions"]:
        add_row(shown, *(line.get(key) for key in _COLUMNS))
    write(shown)


def _number(batch: int | None) -> str:
    return "none" if batch is None else str(batch)


@app.command(epilog=EXAMPLES_OF_EXPORT)
def export(
    checkpoint: Annotated[str, typer.Option(metavar="DIR", help=_FOLDER_HELP)],
    source: Annotated[
        int | None,
        typer.Option(min=0, help="The number of the source, if several are kgroup's: in the order of the program."),
    ] = None,
    conf: Annotated[list[str] | None, typer.Option(metavar="NAME=VALUE", help=_CONF_HELP)] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the offset, and change nothing.")] = False,
) -> None:
    """Let format('kafka') go on from a checkpoint of kgroup: its last offset becomes one of that source.

    Stop the query first. The command refuses while a batch is unfinished: run the query once with availableNow, and it
    is finished. The former file is kept in the checkpoint's folder kgroup-backup.
    """
    deed: Export = find_deed("checkpoint-export")
    settings = dict(map(setting_from, conf or ()))
    done = deed(folder=checkpoint, settings=settings, source=source, dry_run=dry_run)
    typer.echo(json.dumps(done["offset"]))
    what = f"the offset of source {done['source']} in batch {done['batch']}"
    if dry_run:
        typer.echo(f"That would be {what}. Nothing is changed.", err=True)
    else:
        typer.echo(f"That is {what} now. The former file is kept: {done['backup']}", err=True)
