"""Whole groups under the consumer protocol in a simulated world. `make simulate SEEDS=100000` runs more of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest

from spark_kgroup.member import contract
from spark_kgroup.member.config import ConsumerMemberConfig

from .seeds import seeds_of
from .simulated_consumers import ConsumerWorld

SESSION_MS = 10_000
UNREST_MS = 60_000
REST_WITHIN_MS = 200_000
QUIET_MS = 30_000

Fault = Callable[[ConsumerWorld], None]
W = ConsumerWorld
NETWORK: tuple[Fault, ...] = (W.break_network, W.move_coordinator, W.lose_messages)
PROCESSES: tuple[Fault, ...] = (W.pause, W.kill, W.close, W.duplicate, W.leave)
METADATA: tuple[Fault, ...] = (W.grow, W.create_anew, W.cut_off_a_broker)


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """A kind of world."""

    static: int = 4
    dynamic: int = 0
    boundary_ms: tuple[int, int] = (100, 6_000)
    delay_ms: tuple[int, int] = (1, 20)
    rebalance_timeout_ms: int = 60_000
    kinds: tuple[Fault, ...] = (*NETWORK, *PROCESSES, *METADATA, W.refuse_commit)

    def world(self, seed: int) -> ConsumerWorld:
        names: list[tuple[str, str | None]] = [(f"seat-{k}", f"seat-{k}") for k in range(self.static)]
        names += [(f"dynamic-{k}", None) for k in range(self.dynamic)]
        seats = {name: self._config(instance_id) for name, instance_id in names}
        return ConsumerWorld(seed, seats, boundary=self.boundary_ms, delay=self.delay_ms)

    def _config(self, instance_id: str | None) -> ConsumerMemberConfig:
        return ConsumerMemberConfig(
            group="g",
            instance_id=instance_id,
            topics=("orders",),
            session_timeout_ms=SESSION_MS,
            rebalance_timeout_ms=self.rebalance_timeout_ms,
            heartbeat_interval_ms=3_000,
        )


SCENARIOS = {
    "static": Scenario(),
    "mixed": Scenario(static=2, dynamic=3),
    "slow network": Scenario(static=3, dynamic=1, delay_ms=(20, 900)),
    "long work": Scenario(boundary_ms=(5_000, 60_000), rebalance_timeout_ms=30_000),
}
RESTARTS, TWO_PROCESSES, CLOSES, NEW_IDS = "restarts", "two processes", "closes", "new topic ids"
KINDS = (*SCENARIOS, RESTARTS, TWO_PROCESSES, CLOSES, NEW_IDS)

NAMED_WITHIN_MS = 12_000
"""From an assigned topic id to its name: brokers tell it after 4 s, and each of three is asked after 1 s at most. This
time is doubled, because the topic may be created once more meanwhile."""


def to_rest(world: ConsumerWorld) -> None:
    end_ms = world.now_ms + REST_WITHIN_MS
    while lacking := world.lacking():
        assert world.now_ms < end_ms, f"not at rest, lacking: {lacking}"
        world.run_for(500)


def run(world: ConsumerWorld, kinds: tuple[Fault, ...]) -> None:
    end_ms = world.now_ms + UNREST_MS
    while world.now_ms < end_ms:
        world.run_for(world.rng.choice((5, 60, 500, 5_000)))
        world.rng.choice(kinds)(world)
    world.make_peace()
    world.run_for(SESSION_MS)  # whose heartbeats were lost until now may have to join again
    to_rest(world)
    epoch = world.group.epoch
    world.run_for(QUIET_MS)
    assert world.group.epoch == epoch, "rebalanced again without a reason"
    assert not world.lacking()


def checked(world: ConsumerWorld, seed: int, scenario: Callable[[ConsumerWorld], None]) -> ConsumerWorld:
    try:
        scenario(world)
    except AssertionError as error:
        raise AssertionError(f"seed {seed}, at {world.now_ms} ms: {error}\n{world.story()}") from error
    return world


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_group_under_faults_has_one_owner_a_partition_and_comes_to_rest(name: str) -> None:
    scenario = SCENARIOS[name]
    for seed in seeds_of(name, KINDS):
        checked(scenario.world(seed), seed, lambda world: run(world, scenario.kinds))


def test_no_seat_resumes_as_a_process_that_was_stopped_and_took_the_seat_back() -> None:
    """Seed 5183.

    1. Process 0 is stopped, and later ones take its seat in turn. 2. The last of them owes 3-6, dies, and its session
    ends. 3. Process 0 wakes and joins anew. 4. The next process of the seat must not go on as process 0.
    """
    kinds = (*NETWORK, *PROCESSES, W.grow, W.create_anew, W.refuse_commit)
    checked(SCENARIOS["long work"].world(5183), 5183, lambda world: run(world, kinds))


def test_a_topic_that_is_created_anew_is_known_by_name_in_time_whichever_broker_is_behind() -> None:
    scenario = Scenario(dynamic=1)
    for seed in seeds_of(NEW_IDS, KINDS):
        world = scenario.world(seed)
        world.named_within_ms = NAMED_WITHIN_MS
        checked(world, seed, lambda world: run(world, (*METADATA, W.kill_briefly)))


def test_a_static_member_that_is_killed_and_restarted_has_its_partitions_within_two_seconds() -> None:
    """No other member gains, loses or gives up a partition by that."""

    def restart_one_by_one(world: ConsumerWorld) -> None:
        to_rest(world)
        for seat in world.seats:
            (old,) = (p for p in world.running() if p.seat == seat)
            others = [(p, len(p.gained), p.machine.owned) for p in world.running() if p is not old]
            old.alive = False
            world.run_for(world.rng.choice((0, 300, 4_000)))
            world.launch(seat)
            world.run_for(2_000)
            assert world.processes[-1].machine.owned == old.machine.owned
            for process, gains, owned in others:
                assert (len(process.gained), process.machine.owned, process.lost) == (gains, owned, [])
        assert not world.lacking()

    for seed in seeds_of(RESTARTS, KINDS):
        checked(Scenario(delay_ms=(1, 100)).world(seed), seed, restart_one_by_one)


def test_the_older_of_two_live_processes_is_fenced_and_never_the_newer() -> None:
    def start_a_second_one(world: ConsumerWorld) -> None:
        to_rest(world)
        older = world.rng.choice(world.running())
        owned = older.machine.owned
        if world.rng.random() < 0.5:
            older.paused = True
            world.after(world.rng.choice((5, 50, 2_000, 30_000)), lambda: world.resume(older))
        world.launch(older.seat)
        newer = world.processes[-1]
        world.run_for(60_000)
        assert [process.name for process in world.fenced] == [older.name]
        assert newer.machine.owned == owned
        assert not world.lacking()

    for seed in seeds_of(TWO_PROCESSES, KINDS):
        checked(Scenario(delay_ms=(1, 300)).world(seed), seed, start_a_second_one)


def test_a_static_member_that_closes_releases_its_seat_for_the_next_process() -> None:
    def close_and_return(world: ConsumerWorld) -> None:
        to_rest(world)
        for seat in world.seats:
            (old,) = (p for p in world.running() if p.seat == seat)
            owned = old.machine.owned
            old.post(contract.Close())
            world.run_for(500)
            assert old.machine.ended
            world.launch(seat)
            world.run_for(1_000)
            assert world.processes[-1].machine.owned == owned
        assert not world.lacking()

    for seed in seeds_of(CLOSES, KINDS):
        checked(Scenario().world(seed), seed, close_and_return)
