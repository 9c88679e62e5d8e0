"""Claims of restarted seats on partitions that an earlier process owned. No I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from spark_kgroup.member.classic import PreviouslyOwned
from spark_kgroup.model import DescribedGroup


def claimable(
    previously_owned: Mapping[str, PreviouslyOwned], group: DescribedGroup, seats: Sequence[str | None]
) -> dict[str | None, PreviouslyOwned]:
    """The partitions that each of `seats` claims, of those it owned before: only if the group still keeps the seat.

    A seat that was away for longer than its session has lost all its partitions. To claim them all the same could take
    them from their new owners at once: not every client names the generation of its claims, and in a group that was
    deleted and made again generations begin anew.

    While a classic group rebalances, the partitions of seats that are not in `seats` any more are shared out among
    `seats`: the rebalance waits for all members, so no process can commit for the seats that are made to leave
    meanwhile, and unclaimed partitions would go to their next owners at once.
    """
    members = {member.instance_id for member in group.members}
    found: dict[str | None, PreviouslyOwned] = {
        name: kept for name, kept in previously_owned.items() if name in members
    }
    mine = {name: found.pop(name) for name in seats if name in found}
    if group.tells_owners:
        return mine
    for index, (_, left) in enumerate(sorted(found.items(), key=lambda item: str(item[0]))):
        heir = seats[index % len(seats)]
        own = mine.get(heir, left)
        mine[heir] = PreviouslyOwned(
            partitions=own.partitions | left.partitions, generation=max(own.generation, left.generation)
        )
    return mine
