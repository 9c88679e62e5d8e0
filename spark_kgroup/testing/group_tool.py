"""A group as Kafka's own command-line tool shows it (ConsumerGroupCommand, "kafka-consumer-groups").

The tool prints tables. A value may hold spaces, so a row is cut where the heading's words begin. That holds for all
columns but those after #PARTITIONS, which are not made as wide as their widest value. There only the last value holds a
space. The tool prints "-" for a value that it does not have.

Before Kafka 4.0 no column has an epoch, and an assignment is "topic(0,1), other(2)" under ASSIGNMENT. Since then
it is "topic:0,1;other:2" under CURRENT-ASSIGNMENT (KIP-1099). The tool of 3.8 and 3.9 prints "(0,1), (2)": a member's
partitions are then taken from the table of offsets.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Final

from spark_kgroup.errors import EnvironmentProblem
from spark_kgroup.model import TopicPartition

_NARROW_FROM: Final = "#PARTITIONS"
_HEADING = re.compile(r"[#A-Z][A-Z-]*(?: \(ID\))?")
_PARTITIONS = re.compile(r"([\w.-]+)[:(]([\d,]+)")
"""A topic and its partitions. A topic's name has letters, digits and "._-" alone (Kafka's Topic.validate)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionRow:
    """One partition that the group has an offset for, or that a member of it owns.

    Attributes:
        current_offset: committed by the group, None if it has committed none.
        log_end_offset: None while the partition has no leader.
        lag: log end minus committed, None without a committed offset.
        member_id: of its owner, None while it has none, as the next three.
        instance_id: None also for a dynamic member.
    """

    topic: str
    partition: int
    current_offset: int | None
    log_end_offset: int | None
    lag: int | None
    member_id: str | None
    instance_id: str | None
    host: str | None
    client_id: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberRow:
    """One member.

    Attributes:
        member_epoch: None under the classic protocol.
        assignment: the partitions that it owns now.
    """

    member_id: str
    instance_id: str | None
    host: str
    client_id: str
    member_epoch: int | None
    assignment: frozenset[TopicPartition]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupStateRow:
    """The group as a whole.

    Attributes:
        coordinator: HOST:PORT.
        assignor: the selected one, "" while there is none.
        state: Kafka's word, such as Stable, PreparingRebalance, CompletingRebalance, Empty.
        group_epoch: None under the classic protocol: the tool does not show a generation.
    """

    coordinator: str
    assignor: str
    state: str
    member_count: int
    group_epoch: int | None


def parse_offsets(output: str, members: str) -> list[PartitionRow]:
    """Rows of `--describe --offsets`, sorted by topic and partition, without members that have no partition.

    Args:
        output: the table of offsets.
        members: that of `--describe --members`, which has the instance ids.
    """
    instance_ids = {row["CONSUMER-ID"]: _text(row.get("GROUP-INSTANCE-ID", "")) for row in _table(members)}
    rows = [
        PartitionRow(
            topic=row["TOPIC"],
            partition=int(row["PARTITION"]),
            current_offset=_number(row["CURRENT-OFFSET"]),
            log_end_offset=_number(row["LOG-END-OFFSET"]),
            lag=_number(row["LAG"]),
            member_id=_text(row["CONSUMER-ID"]),
            instance_id=instance_ids.get(row["CONSUMER-ID"]),
            host=_text(row["HOST"]),
            client_id=_text(row["CLIENT-ID"]),
        )
        for row in _table(output)
        if row["PARTITION"] != "-"
    ]
    return sorted(rows, key=lambda row: (row.topic, row.partition))


def parse_members(output: str) -> list[MemberRow]:
    """Rows of `--describe --members --verbose`, sorted by instance id, then by member id."""
    rows = [
        MemberRow(
            member_id=row["CONSUMER-ID"],
            instance_id=_text(row.get("GROUP-INSTANCE-ID", "")),
            host=row["HOST"],
            client_id=row["CLIENT-ID"],
            member_epoch=_number(row.get("CURRENT-EPOCH", "")),
            assignment=_partitions(row.get("CURRENT-ASSIGNMENT") or row["ASSIGNMENT"]),
        )
        for row in _table(output)
    ]
    return sorted(rows, key=lambda row: (row.instance_id or "", row.member_id))


def with_owned(members: list[MemberRow], offsets: str) -> list[MemberRow]:
    """`members` with the partitions that they own by the rows of `--describe --offsets`."""
    owned: dict[str | None, set[TopicPartition]] = {}
    for row in parse_offsets(offsets, ""):
        owned.setdefault(row.member_id, set()).add(TopicPartition(row.topic, row.partition))
    return [replace(member, assignment=frozenset(owned.get(member.member_id, ()))) for member in members]


def parse_state(output: str) -> GroupStateRow:
    """The row of `--describe --state --verbose`.

    Raises:
        EnvironmentProblem: there is no such group.
    """
    rows = _table(output)
    if not rows:
        raise EnvironmentProblem(f"Kafka's group tool shows no such group: {output.strip()}")
    row = rows[0]
    return GroupStateRow(
        coordinator=row["COORDINATOR (ID)"].split()[0],
        assignor=_text(row["ASSIGNMENT-STRATEGY"]) or "",
        state=row["STATE"],
        member_count=int(row["#MEMBERS"]),
        group_epoch=_number(row.get("GROUP-EPOCH", "")),
    )


def _table(output: str) -> list[dict[str, str]]:
    """The printed table as heading -> value per row. Empty if there is none."""
    lines = [line for line in output.splitlines() if line.strip()]
    start = next((index for index, line in enumerate(lines) if line.startswith("GROUP ")), None)
    if start is None:
        return []
    headings = [(heading[0], heading.start()) for heading in _HEADING.finditer(lines[start])]
    return [_row(headings, line) for line in lines[start + 1 :]]


def _row(headings: list[tuple[str, int]], line: str) -> dict[str, str]:
    row: dict[str, str] = {}
    for (name, begin), end in zip(headings, [*(begin for _, begin in headings[1:]), None], strict=True):
        if name == _NARROW_FROM:
            narrow = [heading for heading, at in headings if at >= begin]
            return row | dict(zip(narrow, line[begin:].split(maxsplit=len(narrow) - 1), strict=True))
        row[name] = line[begin:end].strip()
    return row


def _text(value: str) -> str | None:
    return None if value in ("", "-") else value


def _number(value: str) -> int | None:
    return None if value in ("", "-") else int(value)


def _partitions(value: str) -> frozenset[TopicPartition]:
    found = _PARTITIONS.findall(value)
    return frozenset(TopicPartition(topic, int(index)) for topic, indexes in found for index in indexes.split(","))
