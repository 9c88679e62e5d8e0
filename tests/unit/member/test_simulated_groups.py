"""Whole groups in a simulated world: faults at random moments, checks at every step, rest and balance at the end.

A failure prints its seed and the last events. `KGROUP_SIMULATION_SEEDS=500` runs more of them.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

import pytest

from spark_kgroup.assignors import assignor
from spark_kgroup.member.classic import MemberConfig

from . import faults
from .simulated_world import MemberWorld

SEEDS = int(os.environ.get("KGROUP_SIMULATION_SEEDS", "8"))
UNREST_MS = 120_000
REST_WITHIN_MS = 400_000
QUIET_MS = 60_000

NETWORK = (faults.break_connection, faults.black_hole, faults.flap, faults.outage)
PROCESSES = (faults.pause, faults.restart, faults.duplicate, faults.leave)
COORDINATOR = (faults.fail_over, faults.load, faults.load_for_long, faults.freeze)
WISHES = (faults.add_partitions, faults.rejoin)


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """A kind of world."""

    static: int = 4
    dynamic: int = 0
    assignors: tuple[str, ...] = ("cooperative-sticky",)
    session_ms: int = 10_000
    rebalance_ms: int = 30_000
    boundary_ms: tuple[int, int] = (100, 6_000)
    delay_ms: tuple[int, int] = (1, 20)
    claims_previously_owned: bool = True
    kinds: tuple[faults.Fault, ...] = NETWORK + PROCESSES + COORDINATOR + WISHES

    def world(self, seed: int) -> MemberWorld:
        names: list[tuple[str, str | None]] = [(f"seat-{k}", f"seat-{k}") for k in range(self.static)]
        names += [(f"dynamic-{k}", None) for k in range(self.dynamic)]
        seats = {name: self._config(instance_id) for name, instance_id in names}
        return MemberWorld(
            seed,
            seats,
            partitions=11,
            boundary_ms=self.boundary_ms,
            delay_ms=self.delay_ms,
            claims_previously_owned=self.claims_previously_owned,
        )

    def _config(self, instance_id: str | None) -> MemberConfig:
        return MemberConfig(
            group="g",
            instance_id=instance_id,
            topics=("orders",),
            assignors=tuple(map(assignor, self.assignors)),
            session_timeout_ms=self.session_ms,
            rebalance_timeout_ms=self.rebalance_ms,
            heartbeat_interval_ms=1_000,
        )


SCENARIOS = {
    "static": Scenario(),
    "mixed": Scenario(static=2, dynamic=3),
    "eager": Scenario(assignors=("range",)),
    "upgrade": Scenario(assignors=("cooperative-sticky", "range")),
    # Members can miss a generation and still be in the group.
    "long sessions": Scenario(
        session_ms=40_000,
        rebalance_ms=6_000,
        kinds=NETWORK + PROCESSES + WISHES,
        boundary_ms=(100, 12_000),
        delay_ms=(5, 500),
    ),
    "slow network": Scenario(delay_ms=(20, 900)),
    "long batches": Scenario(boundary_ms=(5_000, 60_000)),
}


def run(world: MemberWorld, kinds: Sequence[faults.Fault]) -> None:
    end_ms = world.now_ms + UNREST_MS
    while world.now_ms < end_ms:
        world.run_for(world.rng.choice((5, 20, 60, 500, 5_000)))
        if kinds:
            world.rng.choice(kinds)(world)
    faults.make_peace(world)
    end_ms = world.now_ms + REST_WITHIN_MS
    while lacking := world.invariants.at_rest():
        assert world.now_ms < end_ms, f"not at rest, lacking: {lacking}"
        world.run_for(500)
    generation = world.coordinator.generation
    world.run_for(QUIET_MS)
    assert world.coordinator.generation == generation, "rebalanced again without a reason"
    assert not world.invariants.at_rest()


def checked(world: MemberWorld, seed: int, kinds: Sequence[faults.Fault]) -> MemberWorld:
    try:
        run(world, kinds)
    except AssertionError as error:
        story = "\n".join(world.trace)
        raise AssertionError(f"seed {seed}, at {world.now_ms} ms: {error}\n{story}") from error
    return world


@pytest.mark.parametrize("seed", range(SEEDS))
@pytest.mark.parametrize("name", SCENARIOS)
def test_a_group_under_faults_has_one_owner_a_partition_and_comes_to_rest(name: str, seed: int):
    scenario = SCENARIOS[name]
    checked(scenario.world(seed), seed, scenario.kinds)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_group_without_faults_that_is_asked_to_rejoin_loses_nothing(seed: int):
    scenario = Scenario(dynamic=1, kinds=WISHES)
    world = checked(scenario.world(seed), seed, scenario.kinds)
    assert not world.invariants.lost
    assert not world.invariants.fences


@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_group_whose_connections_break_loses_nothing(seed: int):
    scenario = Scenario(dynamic=1, kinds=(faults.break_connection, *WISHES))
    world = checked(scenario.world(seed), seed, scenario.kinds)
    assert not world.invariants.lost
    assert not world.invariants.fences


@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_process_that_returns_within_its_session_keeps_the_partitions_it_was_reading(seed: int):
    scenario = Scenario(kinds=(faults.quick_restart, *WISHES), boundary_ms=(100, 20_000))
    world = scenario.world(seed)
    world.invariants.all_return_in_time = True
    checked(world, seed, scenario.kinds)
