"""Which groups the commands speak of: those whose members are consumers and own partitions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from spark_kgroup.errors import GroupError
from spark_kgroup.model import DescribedGroup

if TYPE_CHECKING:
    from spark_kgroup.wire.cluster import Cluster

_TOOLS: Final[Mapping[str, str]] = {
    "share": "; kafka-share-groups.sh shows it",
    "streams": "; kafka-streams-groups.sh shows it",
}
"""Type of group -> Kafka's own tool for it, as the error names it."""


async def describe_consumers(cluster: Cluster, group: str) -> DescribedGroup:
    """`group` as its coordinator shows it, in state Dead if there is none.

    Raises:
        GroupError: its members are no consumers: a share group, a group of Kafka Streams or of Kafka Connect.
        WireError: the cluster cannot be reached, or refuses us.
    """
    described = await cluster.groups.describe(group)
    # `describe` knows classic groups and those of type consumer: a share group is Dead to it, as a missing one is.
    group_type = await cluster.groups.fetch_type(group) if described.state == "Dead" else described.group_type
    if group_type not in (None, "classic", "consumer"):
        raise GroupError(
            f"{group!r} is a {group_type} group: its members are not consumers that own partitions"
            f"{_TOOLS.get(group_type, '')}. An application of Kafka consumers needs another group id."
        )
    return described


def no_such_group(group: str) -> GroupError:
    """The error of a command whose group is not there."""
    return GroupError(f"There is no group {group!r} on this cluster: check --group and --bootstrap-server.")
