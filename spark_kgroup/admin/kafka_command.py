"""`kgroup kafka run`: a real Apache Kafka in a terminal."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from spark_kgroup.admin.stop_signals import stop_signals_raise
from spark_kgroup.errors import EnvironmentProblem, OptionError

if TYPE_CHECKING:
    from spark_kgroup.testing.apache_kafka import ApacheKafka

app = typer.Typer(help="A real Apache Kafka on this machine.", no_args_is_help=True)

_INTERRUPTED: Final = 130
"""Exit code of a run that was interrupted before it was ready, as shells have it for Ctrl-C."""

_CHECK_S: Final = 0.2
"""How soon a node that died is noticed."""


class _StopRequested(BaseException):
    """Ctrl-C, SIGTERM, or the terminal is gone. It is no error, and only this module may catch it."""


@app.callback()
def kafka() -> None:
    """A real Apache Kafka on this machine."""


@app.command(
    epilog="Examples:\n\nkgroup kafka run\n\nkgroup kafka run --nodes 3 --port 9092\n\n"
    "kgroup kafka run --data-dir ./kafka-data"
)
def run(
    nodes: Annotated[int, typer.Option(metavar="N", help="1 or 3 nodes, each broker and controller.")] = 1,
    data_dir: Annotated[
        Path | None,
        typer.Option(metavar="D", help="Keep the data here for the next run. Without it, it is deleted."),
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(metavar="P", help="Of the first node. Further nodes get the next ones. Without it, free ports."),
    ] = None,
) -> None:
    """Run Apache Kafka until Ctrl-C.

    Fetches Kafka once (46 MB), and needs Java 17. KGROUP_KAFKA_VERSION names another release than 4.3.1. Prints
    `bootstrap.servers=HOST:PORT[,...]` on standard output when it is ready. All other lines go to standard error.
    """
    from spark_kgroup.testing.apache_kafka import ApacheKafka
    from spark_kgroup.testing.class_archive import prepare_kafka
    from spark_kgroup.testing.progress import announced

    try:
        cluster = ApacheKafka(nodes, data_dir=data_dir, port=port)
    except OptionError as problem:  # it begins with the argument, which is called as our option
        raise OptionError(f"--{problem}") from None
    ready = False
    with stop_signals_raise(_StopRequested):
        try:
            prepare_kafka()
            with announced(f"Starting Apache Kafka ({nodes} node{'s' if nodes > 1 else ''})"):
                cluster.start()
            ready = True
            _say("Ctrl-C stops it.")
            typer.echo(f"bootstrap.servers={cluster.bootstrap_servers}")
            _watch(cluster)
        except _StopRequested:
            _say("Stopping")
        finally:
            # Within `stop_signals_raise`, so that a second Ctrl-C does not break off the end of the nodes.
            cluster.stop()
    if not ready:
        raise typer.Exit(_INTERRUPTED)


def _watch(cluster: ApacheKafka) -> None:
    """Return never: a stop request or a node's death ends it."""
    while True:
        for node in cluster.nodes:
            if not node.running:
                raise EnvironmentProblem(f"Kafka node {node.node_id} (port {node.port}) died. {node.last_words()}")
        time.sleep(_CHECK_S)


def _say(words: str) -> None:
    sys.stderr.write(f"{words}\n")
    sys.stderr.flush()
