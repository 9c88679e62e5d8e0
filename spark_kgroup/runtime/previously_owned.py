"""Claims of restarted seats on partitions that an earlier process owned. No I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from spark_kgroup.member.classic import PreviouslyOwned
from spark_kgroup.model import DescribedGroup


def claimable(
    previously_owned: Mapping[str, PreviouslyOwned], group: DescribedGroup, seats: Sequence[str | None]
) -> dict[str | None, PreviouslyOwned]:
    """What each of `seats` claims of what it owned before: only what the group still keeps for it.

    A seat that was away for longer than its session has lost all. To claim it all the same could take it from its new
    owner at once: not every client says in which generation it was assigned what it claims, and in a group that was
    deleted and made again generations begin anew.

    What belongs to seats that are not in `seats` any more is shared out among `seats` if a classic group rebalances: it
    waits for all its members, so nobody can commit for those that are made to leave meanwhile, and what nobody claims
    would go to its next owner at once.
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
