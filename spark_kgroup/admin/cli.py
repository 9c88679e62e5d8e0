"""The `kgroup` command: its parts, and how an error reaches a person."""

from __future__ import annotations

import errno
import io
import os
import sys
from typing import Annotated

import typer

import spark_kgroup
from spark_kgroup.admin import (
    assign_command,
    checkpoint_command,
    describe_command,
    doctor_command,
    kafka_command,
    member_command,
    remove_members_command,
)
from spark_kgroup.admin.command_output import complain
from spark_kgroup.errors import EnvironmentProblem, KgroupError

app = typer.Typer(
    name="kgroup",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _show_version(asked: bool) -> None:
    if asked:
        typer.echo(f"kgroup {spark_kgroup.__version__}")
        raise typer.Exit


@app.callback()
def kgroup(
    _version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """A Spark source that is a real Kafka consumer group: its tools.

    Groups are listed, deleted and set to other offsets with Kafka's own kafka-consumer-groups.
    """


app.add_typer(checkpoint_command.app, name="checkpoint")
app.add_typer(kafka_command.app, name="kafka")
app.command(epilog=assign_command.EXAMPLES)(assign_command.assign)
app.command(epilog=describe_command.EXAMPLES)(describe_command.describe)
app.command(epilog=doctor_command.EXAMPLES)(doctor_command.doctor)
app.command(epilog=member_command.EXAMPLES)(member_command.member)
app.command("remove-members", epilog=remove_members_command.EXAMPLES)(remove_members_command.remove_members)


def main() -> None:
    """Run the command line. A `KgroupError` is shown without a traceback, with exit code 1."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a topic's name may have letters that a terminal has not
    try:
        app()
    except KgroupError as problem:
        complain(problem)
        raise SystemExit(1) from None
    except OSError as problem:
        if problem.errno != errno.ENOSPC:
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python flushes it once more
        complain(EnvironmentProblem("Standard output takes no more: no space is left where it goes. Make room there."))
        raise SystemExit(1) from None
