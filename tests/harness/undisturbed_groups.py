"""Simulated groups of the classic protocol without faults: the effect of one change on a group at rest."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from harness.simulated_world import MemberWorld, Process
from spark_kgroup.assignors import assignor
from spark_kgroup.member import contract
from spark_kgroup.member.config import MemberConfig
from spark_kgroup.model import TopicPartition

SESSION_MS = 10_000
REST_WITHIN_MS = 120_000
COOPERATIVE = "cooperative-sticky"


def config_of(instance_id: str | None, assignors: Iterable[str] = (COOPERATIVE,)) -> MemberConfig:
    return MemberConfig(
        group="g",
        instance_id=instance_id,
        topics=("orders",),
        assignors=tuple(map(assignor, assignors)),
        session_timeout_ms=SESSION_MS,
        rebalance_timeout_ms=30_000,
        heartbeat_interval_ms=1_000,
    )


def at_rest(
    *, static: int = 3, dynamic: int = 0, assignors: Iterable[str] = (COOPERATIVE,), partitions: int = 9, seed: int = 1
) -> MemberWorld:
    """A group whose members own everything: seat-0, seat-1 ... are static ones, dynamic-0, dynamic-1 ... are not."""
    names: list[tuple[str, str | None]] = [(f"seat-{k}", f"seat-{k}") for k in range(static)]
    names += [(f"dynamic-{k}", None) for k in range(dynamic)]
    seats = {name: config_of(instance_id, tuple(assignors)) for name, instance_id in names}
    world = MemberWorld(
        seed, seats, partitions=partitions, boundary_ms=(100, 2_000), delay_ms=(1, 20), claims_previously_owned=True
    )
    world.at_peace = True
    come_to_rest(world)
    return world


def come_to_rest(world: MemberWorld, within_ms: int = REST_WITHIN_MS) -> None:
    end_ms = world.now_ms + within_ms
    while lacking := world.invariants.at_rest():
        assert world.now_ms < end_ms, f"not at rest, lacking: {lacking}\n" + world.story()
        world.run_for(100)


def shares(world: MemberWorld) -> dict[str, frozenset[TopicPartition]]:
    """The partitions of each seat, none where no process runs."""
    return {name: frozenset().union(*(p.machine.owned for p in world.of_seat(name))) for name in world.seats}


def process_of(world: MemberWorld, name: str) -> Process:
    """The one process that runs on a seat."""
    (process,) = world.of_seat(name)
    return process


def leader_of(world: MemberWorld) -> str:
    (name,) = (process.seat for process in world.processes if process.running and process.machine.leader)
    return name


def restart(world: MemberWorld, name: str, away_ms: int = 3_000) -> None:
    """SIGKILL, and a new process a while later."""
    process_of(world, name).kill()
    world.run_for(away_ms)
    world.relaunch(name)


def bounce(world: MemberWorld, name: str, assignors: tuple[str, ...]) -> None:
    """A member ends, and comes back with other assignors: a static one to its seat, a dynamic one as a new member."""
    running = list(world.of_seat(name))
    world.seats[name] = replace(world.seats[name], assignors=tuple(map(assignor, assignors)))
    for process in running:
        if process.config.instance_id is None:
            process.post(contract.Leave(reason="it is restarted"))
            world.run_for(200)
        process.kill()
    world.run_for(world.rng.choice((0, 50, 1_000)))
    world.relaunch(name)
