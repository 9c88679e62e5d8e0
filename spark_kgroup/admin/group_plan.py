"""`kgroup assign --group`: a live group as it would be after a change, and the moves of its next rebalance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from rich.console import Console

from spark_kgroup.admin.consumer_groups import describe_consumers, no_such_group
from spark_kgroup.admin.tables import add_row, table, write
from spark_kgroup.assignors import NAMES
from spark_kgroup.assignors import assignor as known
from spark_kgroup.assignors.contract import Assignor
from spark_kgroup.assignors.plan import Plan, plan
from spark_kgroup.errors import GroupError, OptionError
from spark_kgroup.model import (
    DescribedGroup,
    DescribedMember,
    GroupMember,
    Subscription,
    TopicDescription,
    TopicPartition,
)
from spark_kgroup.peer_words import printable

if TYPE_CHECKING:
    from spark_kgroup.wire.cluster import Cluster

_GENERATION = 1
"""All members of a group at rest are in one generation. DescribeGroups does not tell it, so this one stands for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A change of the group to plan for.

    Attributes:
        joining: how many dynamic members join, each subscribed to every topic that any member subscribes to.
        leaving: instance ids, or ids of dynamic members.
        more_partitions: topic -> how many are added.
        assignor: the assignor that replaces the group's, or None for the one it has.
    """

    joining: int = 0
    leaving: Sequence[str] = ()
    more_partitions: Mapping[str, int] = field(default_factory=dict)
    assignor: str | None = None

    def __str__(self) -> str:
        parts = []
        if self.joining:
            parts.append(f"{self.joining} more member{'s' if self.joining > 1 else ''} joined")
        if self.leaving:
            parts.append(f"{' and '.join(self.leaving)} left")
        for topic, count in self.more_partitions.items():
            parts.append(f"{topic} had {count} more partition{'s' if count > 1 else ''}")
        if self.assignor:
            parts.append(f"the group used {self.assignor}")
        return f"If {', and '.join(parts)}" if parts else "If the group rebalanced now"


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupPlan:
    """A change, and the plan of the rebalance after it.

    Attributes:
        owners: partition -> its owner before the change, members that leave included.
    """

    group: DescribedGroup
    change: Change
    owners: Mapping[TopicPartition, str]
    plan: Plan

    @property
    def partitions(self) -> dict[TopicPartition, tuple[str | None, str, int]]:
        """Each partition that gets another owner: its owner before and after, and the round in which it gets there."""
        return {
            partition: (self.owners.get(partition), member, 1 if partition in self.plan.first_round[member] else 2)
            for member, target in self.plan.target.items()
            for partition in target
            if self.owners.get(partition) != member
        }


async def look(cluster: Cluster, name: str, change: Change) -> GroupPlan:
    """Ask for the group and its topics, and plan.

    Raises:
        GroupError: the group is not one whose leader assigns, or is not at rest.
        OptionError: the change names a member or topic that the group does not have, or the assignor is unknown.
        WireError: the cluster cannot be reached, or refuses us.
    """
    group = await describe_consumers(cluster, name)
    check_plannable(group)
    wanted = {topic for member in group.members for topic in member.subscribed}
    metadata = await cluster.metadata(wanted, absent_after_ms=0)
    return plan_change(group, metadata.topics, change)


def check_plannable(group: DescribedGroup) -> None:
    """Raises GroupError: there is no such group, brokers assign its partitions, or it is not at rest."""
    if group.state == "Dead":
        raise no_such_group(group.group)
    if group.is_consumer_type:
        raise GroupError(
            f"Brokers assign the partitions of group {group.group!r} (KIP-848), not an assignor of its members: there "
            "is no plan to make. `kgroup describe` shows who owns what."
        )
    if group.state != "Stable":
        raise GroupError(
            f"Group {group.group!r} is {group.state}: only the members of a group at rest are known. "
            + ("Start a member first." if group.state == "Empty" else "Try again when it is Stable.")
        )


def plan_change(group: DescribedGroup, topics: Mapping[str, TopicDescription], change: Change) -> GroupPlan:
    """The plan of the first rebalance after `change`. Pure.

    Raises:
        OptionError: the change names a member or topic that the group does not have, or the assignor is unknown.
    """
    how = _find_assignor(group, change)
    names = {name_of(member) for member in group.members}
    for leaver in change.leaving:
        if leaver not in names:
            raise OptionError(f"--leave {leaver!r} is no member: name one of {', '.join(sorted(names))}.")
    stay = [_rejoining(member, how) for member in group.members if name_of(member) not in change.leaving]
    everything = tuple(sorted({topic for member in group.members for topic in member.subscribed}))
    joiners = [
        GroupMember(member_id=name, instance_id=None, subscription=Subscription(topics=everything))
        for name in _free_names(change.joining, names)
    ]
    return GroupPlan(
        group=group,
        change=change,
        owners={tp: name_of(member) for member in group.members for tp in member.assignment},
        plan=plan(how, [*stay, *joiners], _grown(topics, change.more_partitions)),
    )


def name_of(member: DescribedMember) -> str:
    """A member's name in options and tables: its instance id, or else its member id."""
    return member.instance_id or member.member_id


def _find_assignor(group: DescribedGroup, change: Change) -> Assignor:
    if change.assignor is None and group.protocol not in NAMES:
        raise OptionError(
            f"The members' assignor {group.protocol!r} is not known here: name one that is like it with --assignor, "
            f"of {', '.join(NAMES)}."
        )
    return known(change.assignor or group.protocol)


def _rejoining(member: DescribedMember, how: Assignor) -> GroupMember:
    """The member as it would join: claiming the partitions that it is assigned now."""
    # The bytes of a subscription may not be readable: its member then gets no partitions.
    last = member.subscription or Subscription(topics=())
    owned = member.assignment
    return GroupMember(
        member_id=name_of(member),
        instance_id=member.instance_id,
        subscription=replace(last, owned=owned, generation=_GENERATION, user_data=how.user_data(owned, _GENERATION)),
    )


def _free_names(count: int, taken: set[str]) -> list[str]:
    # Enough names: at most `len(taken)` of them are taken.
    names = (f"new-{number}" for number in range(1, count + len(taken) + 1))
    return [name for name in names if name not in taken][:count]


def _grown(topics: Mapping[str, TopicDescription], more: Mapping[str, int]) -> dict[str, TopicDescription]:
    grown = dict(topics)
    for name, count in more.items():
        if name not in topics:
            raise OptionError(f"--add-partitions: no member subscribes to an existing topic {name!r}.")
        grown[name] = replace(topics[name], partition_count=topics[name].partition_count + count)
    return grown


def write_tables(found: GroupPlan) -> None:
    """For people: the members' loads, then each partition that changes hands."""
    say = Console(soft_wrap=True, highlight=False, markup=False, emoji=False).print
    moving = found.partitions
    moved = len(found.plan.moved)
    rounds = max((number for _, _, number in moving.values()), default=1)
    say(printable(f"Group {found.group.group} is {found.group.state}, assignor {found.group.protocol}"))
    say(
        printable(
            f"{found.change}: {moved} of {sum(map(len, found.plan.target.values()))} partitions would move between "
            f"members that stay, {len(moving) - moved} would come to them from members that left or from no member, in "
            f"{rounds} round{'s' if rounds > 1 else ''}"
        )
    )
    members = table("member", "now", "then", "keeps", "gives up", "gets")
    before: dict[str, set[TopicPartition]] = {name_of(member): set(member.assignment) for member in found.group.members}
    for name in sorted({**before, **found.plan.target}):
        now, then = before.get(name), found.plan.target.get(name)
        own, target = now or set(), set(then or ())
        sizes = (len(own) if now is not None else None, len(target) if then is not None else None)
        add_row(members, name, *sizes, len(own & target), len(own - target), len(target - own))
    partitions = table("topic", "partition", "from", "to", "round")
    for partition, (giver, taker, number) in sorted(moving.items()):
        add_row(partitions, *partition, giver, taker, number)
    for each in (members, partitions):
        if each.row_count:
            say()
            write(each)
