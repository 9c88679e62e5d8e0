"""KIP-429's two bounces from eager to cooperative assignors and back, member by member, while a group works and fails.

"Compatibility, Deprecation, and Migration Plan": in the first bounce each member is restarted with both assignors, in
the second one with the new one alone. A member with both is eager. `MemberWorld`'s invariants hold at each step, so no
partition ever has two owners.
"""

from __future__ import annotations

import pytest
from harness import simulated_faults as faults
from harness.simulated_world import MemberWorld
from harness.undisturbed_groups import SESSION_MS, at_rest, bounce, come_to_rest, leader_of, process_of

from spark_kgroup.member import contract

from .test_simulated_groups import Scenario

SEEDS = 8
PARTITIONS = 11

COOPERATIVE = "cooperative-sticky"
PATHS = {
    "up": (("range",), (COOPERATIVE, "range"), (COOPERATIVE,)),
    "up, the old one preferred": (("sticky",), ("sticky", COOPERATIVE), (COOPERATIVE,)),
    "down": ((COOPERATIVE,), (COOPERATIVE, "roundrobin"), ("roundrobin",)),
    "down, the new one preferred": ((COOPERATIVE,), ("sticky", COOPERATIVE), ("sticky",)),
}
FAULTS = (faults.break_connection, faults.rejoin, faults.add_partitions, faults.quick_restart)
"""Without a fail-over: the next coordinator knows the chosen assignor alone, and refuses a member that lacks it."""


def walk(world: MemberWorld, path: tuple[tuple[str, ...], ...]) -> None:
    for assignors in path[1:]:
        come_to_rest(world)
        for name in world.rng.sample(list(world.seats), len(world.seats)):
            bounce(world, name, assignors)
            for _ in range(world.rng.randint(1, 4)):  # the next may be restarted in the midst of a rebalance
                world.run_for(world.rng.choice((5, 300, 4_000)))
                world.rng.choice(FAULTS)(world)
        faults.make_peace(world)
    come_to_rest(world)


def world_with(assignors: tuple[str, ...], seed: int) -> MemberWorld:
    return Scenario(static=3, dynamic=2, assignors=assignors, boundary_ms=(100, 3_000)).world(seed)


@pytest.mark.parametrize("name", PATHS)
@pytest.mark.parametrize("seed", range(SEEDS))
def test_two_bounces_under_faults_change_the_rebalance_protocol_and_no_partition_has_two_owners(
    name: str, seed: int
) -> None:
    world = world_with(PATHS[name][0], seed)
    try:
        walk(world, PATHS[name])
    except AssertionError as error:
        story = world.story()
        raise AssertionError(f"seed {seed}, at {world.now_ms} ms: {error}\n{story}") from error
    assert world.coordinator.protocol == PATHS[name][-1][0]


def test_a_member_that_shares_an_assignor_with_each_other_one_but_with_none_of_all_is_refused() -> None:
    """ClassicGroup.supportsProtocols: all members must support one and the same."""
    world = at_rest(static=3, assignors=("range", "sticky", "roundrobin"))
    bounce(world, "seat-0", ("range", "sticky"))
    bounce(world, "seat-1", ("range", "roundrobin"))
    come_to_rest(world)
    bounce(world, "seat-2", ("sticky", "roundrobin"))
    with pytest.raises(AssertionError, match="INCONSISTENT_GROUP_PROTOCOL"):  # no fault that a simulation expects
        world.run_for(SESSION_MS)


def test_after_a_fail_over_the_second_bounce_is_refused_until_the_group_has_rebalanced() -> None:
    """GroupMetadataValue has each member's bytes for the chosen assignor alone, and so a restart knows no other."""
    world = at_rest(static=3, assignors=("sticky", COOPERATIVE))
    world.fail_over()
    come_to_rest(world)
    bounce(world, "seat-0", (COOPERATIVE,))
    with pytest.raises(AssertionError, match="INCONSISTENT_GROUP_PROTOCOL"):
        world.run_for(SESSION_MS)


def test_after_a_fail_over_and_a_rebalance_the_second_bounce_goes_on() -> None:
    world = at_rest(static=3, assignors=("sticky", COOPERATIVE))
    world.fail_over()
    come_to_rest(world)
    process_of(world, leader_of(world)).post(contract.RejoinWanted(reason="between two bounces"))
    world.run_for(SESSION_MS)
    come_to_rest(world)
    for name in ("seat-0", "seat-1", "seat-2"):
        bounce(world, name, (COOPERATIVE,))
        world.run_for(SESSION_MS)
    come_to_rest(world)
    assert world.coordinator.protocol == COOPERATIVE
