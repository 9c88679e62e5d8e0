"""The `kgroup` command: its parts, and how an error reaches a person."""

from __future__ import annotations

import sys

import typer

from spark_kgroup.admin import describe_command, kafka_command, member_command
from spark_kgroup.errors import KgroupError

app = typer.Typer(
    name="kgroup",
    help="A Spark source that is a real Kafka consumer group: its tools.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.add_typer(kafka_command.app, name="kafka")
app.command(epilog=describe_command.EXAMPLES)(describe_command.describe)
app.command(epilog=member_command.EXAMPLES)(member_command.member)


def main() -> None:
    """Run the command line; an error of ours is told in its own words, without a traceback."""
    try:
        app()
    except KgroupError as problem:
        sys.stderr.write(f"kgroup: {problem}\n")
        raise SystemExit(1) from None
