"""`kgroup remove-members`: take members out of a group that no process serves any more (KIP-345, "Scale Down")."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from spark_kgroup.admin.command_cluster import cluster_at
from spark_kgroup.admin.command_config import HELP as COMMAND_CONFIG_HELP
from spark_kgroup.admin.command_output import say
from spark_kgroup.admin.consumer_groups import describe_consumers, no_such_group
from spark_kgroup.errors import OptionError
from spark_kgroup.model import DescribedMember, ErrorCode, MemberIdentity
from spark_kgroup.peer_words import printable

if TYPE_CHECKING:
    from spark_kgroup.wire.cluster import Cluster

EXAMPLES = (
    "Examples:\n\n"
    "kgroup remove-members --bootstrap-server localhost:9092 --group orders --instance-id orders-3\n\n"
    "kgroup remove-members --bootstrap-server localhost:9092 --group orders --instance-id orders-2,orders-3 "
    "--reason 'scaled down'\n\n"
    "kgroup remove-members --bootstrap-server localhost:9092 --group orders --all --yes"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Removal:
    """The result of the command.

    Attributes:
        removed: instance ids, and member ids of dynamic members.
        missing: asked for by instance id, and not in the group.
        refused: still in the group -> the coordinator's error code.
        there: instance ids of the group before that.
    """

    removed: Sequence[str]
    missing: Sequence[str]
    refused: Mapping[str, int]
    there: Sequence[str]


def remove_members(
    bootstrap_server: Annotated[str, typer.Option(help="HOST:PORT[,HOST:PORT] of any brokers of the cluster.")],
    group: Annotated[str, typer.Option(help="The group that they are members of.")],
    instance_id: Annotated[
        list[str] | None,
        typer.Option(metavar="I[,I]", help="A static member that shall go: several with commas, or given again."),
    ] = None,
    everybody: Annotated[
        bool, typer.Option("--all", help="All members, dynamic ones as well. Asks first, unless there is --yes.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    reason: Annotated[str, typer.Option(help="For the log of the group's coordinator (KIP-800).")] = (
        "removed with kgroup remove-members"
    ),
    command_config: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help=COMMAND_CONFIG_HELP),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Take members out of a group: it rebalances at once, instead of when their sessions are over.

    For static members whose process does not come back. One that still runs is told that it is a member no longer, and
    joins anew: stop it first. Ends with 1 if a named member was not in the group, or one is still in it.
    """
    wanted = _names(instance_id or [])
    if bool(wanted) == everybody:
        raise OptionError("Which members? Give either --instance-id, once or several times, or --all.")
    cluster = cluster_at(bootstrap_server, command_config, client_id="kgroup-remove-members")
    if everybody and not yes:
        _confirm(group)
    removal = asyncio.run(_remove(cluster, group, wanted, reason))
    write_json(removal) if as_json else write_text(removal, group)
    if removal.missing or removal.refused:
        raise typer.Exit(1)


def _names(given: Sequence[str]) -> tuple[str, ...]:
    """Distinct, in the order given."""
    names = tuple(dict.fromkeys(name.strip() for listed in given for name in listed.split(",")))
    if "" in names:
        raise OptionError(
            "--instance-id names no member: give the instance id of a static member, as `kgroup describe` lists them."
        )
    return names


def _confirm(group: str) -> None:
    """Ask on standard error: standard output is for the result."""
    say(f"Remove all members of group {printable(repr(group))}? Those that still run join anew. [y/N]")
    if sys.stdin is None or sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise OptionError("No member was removed: --all asks first. Answer y, or give --yes as well.")


async def _remove(cluster: Cluster, group: str, wanted: Sequence[str], reason: str) -> Removal:
    """Remove the group's members that `wanted` names, or all its members if `wanted` is empty."""
    try:
        await cluster.brokers.reach()
        described = await describe_consumers(cluster, group)
        if described.state == "Dead":
            raise no_such_group(group)
        leaving = [member for member in described.members if not wanted or member.instance_id in wanted]
        identities = [MemberIdentity(instance_id=m.instance_id, member_id=m.member_id) for m in leaving]
        refused = await cluster.groups.remove_members(group, identities, reason) if identities else {}
    finally:
        await cluster.close()
    there = sorted(member.instance_id for member in described.members if member.instance_id is not None)
    return Removal(
        removed=sorted(name for name in map(_name, leaving) if name not in refused),
        missing=[name for name in wanted if name not in there],
        refused=refused,
        there=there,
    )


def _name(member: DescribedMember) -> str:
    return member.instance_id or member.member_id


# ---------------------------------------------------------------------------------------------------- showing


def write_json(removal: Removal) -> None:
    """One JSON object."""
    refused = {name: ErrorCode.name_of(code) for name, code in removal.refused.items()}
    typer.echo(json.dumps({"removed": removal.removed, "missing": removal.missing, "refused": refused}))


def write_text(removal: Removal, group: str) -> None:
    """A line for each member: removed ones on standard output, missing and refused ones on standard error."""
    name = printable(repr(group))
    for member in removal.removed:
        typer.echo(f"removed {printable(member)}")
    if not (removal.removed or removal.missing or removal.refused):
        typer.echo(f"group {name} has no members")
    if removal.missing:
        there = ", ".join(removal.there) or "none"
        missing = ", ".join(map(repr, removal.missing))
        say(
            printable(
                f"kgroup: group {group!r} has no static member {missing}: correct --instance-id (it has: {there})."
            )
        )
    for member, code in removal.refused.items():
        why = (
            "another process has taken the seat just now: stop it, and try again"
            if code == ErrorCode.FENCED_INSTANCE_ID
            else f"the coordinator answered {ErrorCode.name_of(code)}"
        )
        say(printable(f"kgroup: {member!r} is still in group {group!r}: {why}."))
