"""`kgroup doctor`: the executors of a Spark session, looked at from within.

The Spark source brings the examination (`source_deeds`).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Protocol

import typer

from spark_kgroup.admin.command_config import HELP as COMMAND_CONFIG_HELP
from spark_kgroup.admin.command_config import properties_from
from spark_kgroup.admin.source_deeds import find_deed, setting_from
from spark_kgroup.errors import OptionError
from spark_kgroup.peer_words import printable
from spark_kgroup.testing.progress import announced

EXAMPLES = (
    "Examples:\n\n"
    "kgroup doctor\n\n"
    "kgroup doctor --master yarn --conf spark.executor.instances=4 --bootstrap-server broker-1:9092\n\n"
    "kgroup doctor --remote sc://spark.example.org --json"
)


class Examine(Protocol):
    """`pyspark_kgroup.diagnosis.command.examine`."""

    def __call__(
        self,
        *,
        remote: str | None,
        settings: dict[str, str],
        bootstrap_server: str | None,
        security: dict[str, str],
        tasks: int | None,
    ) -> tuple[str, list[dict[str, str]]]:
        """Start a session, and return the findings: as a table, and each as a JSON object."""


def doctor(
    master: Annotated[str | None, typer.Option(help="As spark-submit's: where executors run.")] = None,
    remote: Annotated[str | None, typer.Option(help="A Spark Connect server, such as sc://HOST:15002.")] = None,
    conf: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="As spark-submit's; may be given several times.")
    ] = None,
    bootstrap_server: Annotated[
        str | None,
        typer.Option(help="HOST:PORT[,HOST:PORT] of any brokers. Each executor tries each broker of their cluster."),
    ] = None,
    command_config: Annotated[Path | None, typer.Option(metavar="FILE", help=COMMAND_CONFIG_HELP)] = None,
    tasks: Annotated[
        int | None, typer.Option(min=1, help="How many tasks run at once; as many as there are slots by default.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON array.")] = False,
) -> None:
    """Look at each executor of a Spark session: what costs time there, what fails, and the fix.

    It starts a session of its own with your settings (spark-defaults.conf, PYSPARK_PYTHON, --conf), runs one short job,
    joins no group and reads no record. The exit code is 1 if something fails.
    """
    if command_config and not bootstrap_server:
        raise OptionError("--command-config is for --bootstrap-server: give both, or neither.")
    if master and remote:
        raise OptionError("--master starts a session here, --remote uses a server's: give one of both.")
    settings = dict(map(setting_from, conf or ()))
    if master:
        settings["spark.master"] = master
    examine: Examine = find_deed("doctor")
    security = properties_from(command_config) if command_config else {}
    with announced("Looking at the executors"):
        table, found = examine(
            remote=remote, settings=settings, bootstrap_server=bootstrap_server, security=security, tasks=tasks
        )
    typer.echo(json.dumps(found) if as_json else "\n".join(map(printable, table.splitlines())))
    if any(finding["verdict"] == "fails" for finding in found):
        raise typer.Exit(1)
