"""`kgroup assign`: the plan of a rebalance that does not take place."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from spark_kgroup.admin import group_plan
from spark_kgroup.admin.command_cluster import cluster_at
from spark_kgroup.admin.command_config import HELP as COMMAND_CONFIG_HELP
from spark_kgroup.admin.group_plan import Change, GroupPlan
from spark_kgroup.admin.plan_lines import answer, as_object
from spark_kgroup.errors import OptionError
from spark_kgroup.limits import PLANNED_PARTITIONS_MAX

if TYPE_CHECKING:
    from spark_kgroup.wire.cluster import Cluster

EXAMPLES = (
    "Examples:\n\n"
    'echo \'{"assignor": "range", "topics": {"t": {"partitions": 6}}, "members": {"a": {"topics": ["t"]}, '
    '"b": {"topics": ["t"]}}}\' | kgroup assign\n\n'
    "kgroup assign <groups.jsonl >plans.jsonl\n\n"
    "kgroup assign --bootstrap-server localhost:9092 --group orders --join 2\n\n"
    "kgroup assign --bootstrap-server localhost:9092 --group orders --leave orders-1 --json\n\n"
    "kgroup assign --bootstrap-server localhost:9092 --group orders --add-partitions orders=6"
)

_PIPE_CLOSED: Final = 128 + signal.SIGPIPE
"""The exit code of a command whose reader has enough, as shells give it: `kgroup assign | head -1`."""

_JOINING_MAX: Final = 10_000
"""Five times the largest group that is measured (`make bench-assign`)."""


def assign(
    bootstrap_server: Annotated[
        str | None, typer.Option(help="HOST:PORT[,HOST:PORT] of any brokers of the cluster, with --group.")
    ] = None,
    group: Annotated[str | None, typer.Option(help="A live group to plan for, instead of lines.")] = None,
    join: Annotated[int, typer.Option(metavar="N", min=0, max=_JOINING_MAX, help="If N more members joined.")] = 0,
    leave: Annotated[
        list[str] | None,
        typer.Option(metavar="MEMBER", help="If this member left: its instance id, else its member id. Repeatable."),
    ] = None,
    add_partitions: Annotated[
        list[str] | None, typer.Option(metavar="TOPIC=N", help="If N partitions were added to TOPIC. Repeatable.")
    ] = None,
    assignor: Annotated[str | None, typer.Option(help="If the group used this assignor.")] = None,
    command_config: Annotated[Path | None, typer.Option(metavar="FILE", help=COMMAND_CONFIG_HELP)] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the plan as one JSON object.")] = False,
) -> None:
    """Plan rebalances without changing a group.

    Without --group each line on standard input is a group as a JSON object, and each line on standard output its plan.
    A plan has `assignment` (each member's partitions in the end), `first_round` (the assignment that the leader sends
    now) and `moved` (the partitions that change hands: topic, partition, from, to). A bad line gets {"error": "..."},
    and the next one is answered.

    With --group: the moves of a live group's next rebalance if all changes that the options name happened at once.
    """
    change = Change(
        joining=join, leaving=tuple(leave or ()), more_partitions=_counts(add_partitions or ()), assignor=assignor
    )
    if group is None:
        if change != Change() or bootstrap_server or command_config or as_json:
            raise OptionError(
                "--group is missing: without it groups come as lines on standard input, and the other options have no "
                "effect."
            )
        _answer_lines()
        return
    if bootstrap_server is None:
        raise OptionError("--bootstrap-server is missing: name a broker of the cluster that has the group.")
    cluster = cluster_at(bootstrap_server, command_config, client_id="kgroup-assign")
    found = asyncio.run(_ask(cluster, group, change))
    if as_json:
        typer.echo(json.dumps(as_object(found.plan)))
    else:
        group_plan.write_tables(found)


def _answer_lines() -> None:
    if sys.stdin is None:
        raise OptionError("Standard input is closed, and groups come on it: open it, or give --group.")
    try:
        for line in sys.stdin.buffer:
            sys.stdout.write(json.dumps(answer(line)) + "\n")
            sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python flushes it once more at its exit
        raise typer.Exit(_PIPE_CLOSED) from None


def _counts(listed: Sequence[str]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for each in listed:
        topic, _, count = each.rpartition("=")
        if not topic or not (count.isascii() and count.isdigit()) or not 0 < len(count) < 10:
            raise OptionError(f"--add-partitions {each!r} is not TOPIC=N, as orders=6.")
        counts[topic] = counts.get(topic, 0) + int(count)
    if sum(counts.values()) > PLANNED_PARTITIONS_MAX:
        raise OptionError(f"--add-partitions adds more than {PLANNED_PARTITIONS_MAX:,} partitions.")
    return counts


async def _ask(cluster: Cluster, group: str, change: Change) -> GroupPlan:
    try:
        await cluster.brokers.reach()
        return await group_plan.look(cluster, group, change)
    finally:
        await cluster.close()
