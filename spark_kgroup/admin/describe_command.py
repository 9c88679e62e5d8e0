"""`kgroup describe`: a group as Kafka knows it, with the executors that serve its seats. It asks only Kafka."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from spark_kgroup.admin.command_cluster import cluster_at
from spark_kgroup.admin.command_config import HELP as COMMAND_CONFIG_HELP
from spark_kgroup.admin.consumer_groups import describe_consumers, no_such_group
from spark_kgroup.admin.tables import add_row, table, write
from spark_kgroup.limits import TOPIC_PATIENCE_MS
from spark_kgroup.model import DescribedGroup, DescribedMember, TopicPartition
from spark_kgroup.peer_words import printable
from spark_kgroup.seat_note import SeatNote

if TYPE_CHECKING:
    from spark_kgroup.wire.cluster import Cluster
    from spark_kgroup.wire.responses import CommittedOffset

EXAMPLES = (
    "Examples:\n\n"
    "kgroup describe --bootstrap-server localhost:9092 --group orders\n\n"
    "kgroup describe --bootstrap-server localhost:9092 --group orders --json\n\n"
    "kgroup describe --bootstrap-server localhost:9093 --group orders --command-config client.properties"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionLine:
    """One partition: the group's committed offset, the log's end (one past the last offset), and the lag between them.

    None stands for unknown.
    """

    partition: TopicPartition
    committed: int | None
    end: int | None

    @property
    def lag(self) -> int | None:
        """How many offsets lie between the committed offset and the log's end. None if either is unknown."""
        if self.end is None or self.committed is None:
            return None
        return max(0, self.end - self.committed)


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberLines:
    """One member with its partitions.

    `note` is the newest note among the member's own commits, or None, as for clients other than kgroup.
    """

    member: DescribedMember
    note: SeatNote | None
    partitions: tuple[PartitionLine, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupLines:
    """A group. `unowned` are the partitions that have a committed offset and no owner."""

    group: DescribedGroup
    members: tuple[MemberLines, ...]
    unowned: tuple[PartitionLine, ...]


def describe(
    bootstrap_server: Annotated[str, typer.Option(help="HOST:PORT[,HOST:PORT] of any brokers of the cluster.")],
    group: Annotated[str, typer.Option(help="The group to describe.")],
    command_config: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help=COMMAND_CONFIG_HELP),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Show a group's members, the executors of Spark's seats, and each partition's position, end and lag.

    Executor, host, warm and since are as of the seat's last commit. "-" means unknown, as for members of other
    applications.
    """
    cluster = cluster_at(bootstrap_server, command_config, client_id="kgroup-describe")
    found = asyncio.run(_ask(cluster, group))
    if as_json:
        typer.echo(json.dumps(as_object(found)))
    else:
        write_tables(found)


# ---------------------------------------------------------------------------------------------------- asking


async def _ask(cluster: Cluster, group: str) -> GroupLines:
    try:
        await cluster.brokers.reach()
        return await look(cluster, group)
    finally:
        await cluster.close()


async def look(cluster: Cluster, group: str) -> GroupLines:
    """The group, its committed offsets and the ends of its logs, as the cluster has them.

    Raises:
        GroupError: there is no such group, or its members are no consumers.
        WireError: the cluster cannot be reached, or refuses us.
    """
    described = await describe_consumers(cluster, group)
    committed = await cluster.groups.all_committed(group)
    if described.state == "Dead" and not committed:
        raise no_such_group(group)
    held = {tp for member in described.members for tp in member.assignment}
    ends = await _ends(cluster, held | committed.keys())
    return join_answers(described, committed, ends)


async def _ends(cluster: Cluster, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
    """The end of each existing log that this user may see. A partition without a leader is left out, not waited for."""
    from spark_kgroup.wire import messages

    wanted = set(partitions)
    if not wanted:
        return {}
    metadata = await cluster.metadata({tp.topic for tp in wanted}, absent_after_ms=0, patience_ms=TOPIC_PATIENCE_MS)
    listed = await cluster.logs.list_offsets({tp: messages.LATEST for tp in wanted if tp in metadata.leaders})
    return {tp: found.offset for tp, found in listed.items()}


def join_answers(
    group: DescribedGroup, committed: Mapping[TopicPartition, CommittedOffset], ends: Mapping[TopicPartition, int]
) -> GroupLines:
    """Join the answers of three requests: the group, its committed offsets, and the ends of its logs."""

    def lines(partitions: Iterable[TopicPartition]) -> tuple[PartitionLine, ...]:
        return tuple(
            PartitionLine(partition=tp, committed=committed[tp].offset if tp in committed else None, end=ends.get(tp))
            for tp in sorted(partitions)
        )

    held = {tp for member in group.members for tp in member.assignment}
    return GroupLines(
        group=group,
        members=tuple(
            MemberLines(member=member, note=_find_note(member, committed), partitions=lines(member.assignment))
            for member in sorted(group.members, key=_natural_order)
        ),
        unowned=lines(committed.keys() - held),
    )


def _find_note(member: DescribedMember, committed: Mapping[TopicPartition, CommittedOffset]) -> SeatNote | None:
    """The newest note that the member itself committed: notes of earlier owners and processes of the seat are stale."""
    notes = (SeatNote.decode(committed[tp].metadata) for tp in member.assignment if tp in committed)
    own = [note for note in notes if note is not None and note.member == member.member_id]
    return max(own, key=lambda note: note.at_ms, default=None)


def _natural_order(member: DescribedMember) -> tuple[str, int, str, str]:
    """Seat 10 comes after seat 9."""
    name = member.instance_id or ""
    number = re.search(r"-([0-9]+)\Z", name)
    if number is None:
        return (name, -1, "", member.member_id)
    digits = number[1].lstrip("0")  # compared as text, by length first: Python reads no number of 4,301 digits
    return (name[: number.start()], len(digits), digits, "")


# --------------------------------------------------------------------------------------------------- showing


def as_object(found: GroupLines) -> dict[str, Any]:
    """As JSON, with null for unknown."""
    return {
        "group": found.group.group,
        "type": found.group.group_type,
        "state": found.group.state,
        "assignor": found.group.protocol or None,
        "lag": _sum([*found.unowned, *(line for member in found.members for line in member.partitions)]),
        "members": [
            {
                "instance_id": each.member.instance_id,
                "member_id": each.member.member_id,
                "protocol": each.member.protocol,
                "epoch": each.member.epoch,
                "client_id": each.member.client_id,
                "client_host": each.member.client_host,
                "executor": each.note.executor if each.note else None,
                "host": each.note.host if each.note else None,
                "warm": each.note.warm if each.note else None,
                "since": _instant(each.note.since_ms) if each.note else None,
                "as_of": _instant(each.note.at_ms) if each.note else None,
                "lag": _sum(each.partitions),
                "partitions": [_line_object(line) for line in each.partitions],
            }
            for each in found.members
        ],
        "unowned": [_line_object(line) for line in found.unowned],
    }


def _line_object(line: PartitionLine) -> dict[str, Any]:
    topic, partition = line.partition
    return {"topic": topic, "partition": partition, "position": line.committed, "end": line.end, "lag": line.lag}


def _sum(lines: Iterable[PartitionLine]) -> int | None:
    """The sum, or None if one lag is unknown: without a committed offset it may be of any size."""
    lags = [line.lag for line in lines]
    known = [lag for lag in lags if lag is not None]
    return sum(known) if len(known) == len(lags) else None


def _instant(wall_ms: int | None) -> str | None:
    """An instant as ISO 8601, or None for None, for 0, and for a number that is no instant."""
    try:
        return datetime.fromtimestamp(wall_ms / 1000, UTC).isoformat(timespec="seconds") if wall_ms else None
    except (OverflowError, ValueError, OSError):
        return None


def write_tables(found: GroupLines) -> None:
    """For people: the members, then their partitions."""
    group = found.group
    say = Console(soft_wrap=True, highlight=False, markup=False, emoji=False).print
    assignor = f", assignor {group.protocol}" if group.protocol else ""
    of_type = ", type consumer" if group.is_consumer_type else ""
    size = "1 member" if len(group.members) == 1 else f"{len(group.members)} members"
    say(printable(f"Group {group.group} is {group.state}: {size}{assignor}{of_type}"))
    epochs = ("protocol", "epoch") if group.is_consumer_type else ()
    served = ("executor", "host", "warm", "since", "as of", "lag")
    members = table("instance id", "member id", "client id", *epochs, *served)
    partitions = table("topic", "partition", "instance id", "position", "end", "lag")
    for each in found.members:
        epoch = (each.member.protocol, each.member.epoch) if epochs else ()
        _add_member(members, each, epoch)
        name = each.member.instance_id or each.member.member_id
        for line in each.partitions:
            add_row(partitions, *line.partition, name, line.committed, line.end, line.lag)
    for line in found.unowned:
        add_row(partitions, *line.partition, None, line.committed, line.end, line.lag)
    for each_table in (members, partitions):
        if each_table.row_count:
            say()
            write(each_table)


def _add_member(to: Table, each: MemberLines, epoch: Sequence[object]) -> None:
    member, note = each.member, each.note
    client = f"{member.client_id}@{member.client_host.lstrip('/')}"
    if note is None:
        served: tuple[object, ...] = (None, None, None, None, None)
    else:
        warm = {True: "yes", False: "no", None: None}[note.warm]
        served = (note.executor, note.host, warm, _instant(note.since_ms), _instant(note.at_ms))
    add_row(to, member.instance_id, member.member_id, client, *epoch, *served, _sum(each.partitions))
