"""Giving up partitions that the group asks for: after their commit, once, and at once if they were never adopted."""

from functools import partial

import pytest
from harness.boundary import P0, P1, World, elapsed_ms, unsettle
from harness.fake_driver import Crash, Driver
from harness.fake_group import OTHER, FakeGroup

from pyspark_kgroup.limits import END_OFFSETS_MAX_AGE_MS, HANDOVER_WAIT_MS, SETTLE_TIMEOUT_MS
from spark_kgroup.model import TopicPartition

# ----------------------------------------------------------------------------------------------------------- giving up


def test_a_partition_moves_between_our_seats_within_one_boundary(world: World) -> None:
    group, driver = world(partitions=2, seats=2, records=10)
    driver.drain()
    group.move(P0, "seat-1")
    group.produce(P0, 5)
    group.now_ms += END_OFFSETS_MAX_AGE_MS + 1
    driver.trigger()
    assert driver.durable.owned[P0].period.seat == "seat-1"
    assert driver.rows[P0] == [(0, 10), (10, 15)]


def test_not_acknowledged_means_not_given_up(world: World) -> None:
    group, driver = world(records=10)
    driver.trigger()
    group.move(P0, OTHER)
    for fate in ("lost", "unheard", "refused"):
        group.commit_fate = partial(str, fate)
        driver.trigger()
        assert P0 in group.seats["seat-0"].owned_since
        assert P0 not in group.other
    group.commit_fate = lambda: "ok"
    driver.trigger()
    assert group.other == {P0: 10}


def test_a_partition_that_was_never_adopted_is_given_up_at_once(world: World) -> None:
    group, driver = world(partitions=2, seats=1, records=10)
    group.move(P1, OTHER)
    driver.drain()
    assert group.other == {P1: 0}
    assert driver.rows == {P0: [(0, 10)]}


def test_a_seat_that_has_not_heard_yet_is_not_asked_twice_to_give_up(world: World) -> None:
    """1. giving up is a message, 2. the next look may come before it is taken and shows the old state."""
    group, driver = world(partitions=3, seats=2, records=10)
    driver.drain()
    group.spread([OTHER, "seat-1", "seat-0"])
    driver.drain()  # the model raises Violation if told twice
    assert set(group.other) == {P0}


def test_durable_positions_are_committed_before_giving_up_partitions_that_this_process_never_adopted(
    world: World,
) -> None:
    """1. the driver dies before the boundary that commits 10, 2. it comes back and its seat still holds P,
    3. P is revoked before the first boundary. The next owner must start at 10, not where the group was told last.
    """
    group, driver = world(records=10)
    driver.trigger()
    driver.restart()
    group.move(P0, OTHER)
    driver.drain()
    assert group.other == {P0: 10}


def test_durable_positions_of_a_recreated_topic_are_not_committed_before_giving_up(world: World) -> None:
    group, driver = world(records=10, fail_on_data_loss=False)
    driver.trigger()
    group.create_topic("t", 1)
    driver.restart()
    group.rebalance()
    group.move(P0, OTHER)
    driver.drain()
    assert group.other == {P0: 0}


def test_a_commit_that_fails_before_giving_up_keeps_partitions_that_were_never_adopted(world: World) -> None:
    group, driver = world(records=10)
    driver.trigger()
    driver.restart()
    group.move(P0, OTHER)
    group.commit_fate = lambda: "lost"
    before = group.now_ms
    driver.trigger()
    assert not group.other
    assert group.now_ms - before <= SETTLE_TIMEOUT_MS + 5_000
    assert group.committed_now == {P0: 0}
    assert driver.durable.owned[P0].position == 10, "the next process claims it as well"
    group.commit_fate = lambda: "ok"
    driver.drain()
    assert group.other == {P0: 10}


def test_waiting_for_a_seat_that_cannot_give_up_does_not_spin(world: World) -> None:
    group, driver = world(records=10)
    driver.trigger()
    driver.restart()
    group.move(P0, OTHER)
    asked: list[int] = []
    group.commit_fate = lambda: asked.append(group.now_ms) or "lost"
    driver.trigger()
    assert 1 < len(asked) <= 2 * SETTLE_TIMEOUT_MS // 1000


def test_a_boundary_that_gave_up_waits_a_moment_for_the_next_assignment_and_goes_on(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    group, driver = world(partitions=2, seats=2, records=10)
    driver.drain()
    group.move(P0, OTHER)
    unsettle(group, monkeypatch, "seat-1")
    group.produce(P1, 5)
    assert HANDOVER_WAIT_MS <= elapsed_ms(group, driver.trigger) <= HANDOVER_WAIT_MS + 100
    assert P0 in group.other
    assert driver.rows[P1] == [(0, 10), (10, 15)]


def test_a_boundary_that_gave_up_goes_on_as_soon_as_the_group_is_at_rest(world: World) -> None:
    group, driver = world(partitions=2, seats=2, records=10)
    driver.drain()
    group.move(P0, "seat-1")
    assert elapsed_ms(group, driver.ask) < HANDOVER_WAIT_MS // 2


@pytest.mark.parametrize("restarts", [False, True], ids=["adopted", "never adopted by this process"])
def test_a_position_that_the_group_knows_is_not_committed_again_before_giving_up(world: World, restarts: bool) -> None:
    group, driver = world(records=10)
    driver.drain()
    commits = list(group.commits)
    if restarts:
        driver.restart()
    group.move(P0, OTHER)
    driver.drain()
    assert group.other == {P0: 10}
    assert group.commits == commits


def test_a_commit_that_failed_is_tried_again_at_once_before_giving_up(world: World) -> None:
    group, driver = world(records=10)
    driver.trigger()
    group.move(P0, OTHER)
    fates = iter(["lost", "ok"])
    group.commit_fate = lambda: next(fates)
    driver.trigger()
    assert group.other == {P0: 10}


@pytest.mark.parametrize("late", ["seat-0", "seat-1"])
def test_a_boundary_waits_for_each_seat_that_gives_up_and_asks_none_twice(
    world: World, late: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    group, driver = world(partitions=2, seats=2, records=10)
    driver.drain()
    group.target = {P0: OTHER, P1: OTHER}
    group.rebalance()
    asked: list[tuple[str, frozenset[TopicPartition], int]] = []
    post = group.give_up

    def give_up(name: str, partitions: frozenset[TopicPartition]) -> None:
        asked.append((name, partitions, group.now_ms))
        if name != late:
            post(name, partitions)

    def arrives_late() -> None:
        for name, partitions, at_ms in asked:
            if name == late and group.now_ms == at_ms + 300:
                post(name, partitions)

    monkeypatch.setattr(group, "give_up", give_up)
    group.meanwhile = arrives_late
    assert 300 <= elapsed_ms(group, driver.trigger) < HANDOVER_WAIT_MS
    assert [(name, partitions) for name, partitions, _ in asked] == [
        ("seat-0", frozenset({P0})),
        ("seat-1", frozenset({P1})),
    ]
    assert group.other == {P0: 10, P1: 10}


def test_a_partition_that_comes_back_with_the_generation_after_it_was_given_up_is_not_waited_for(world: World) -> None:
    """1. P is asked for and given up, 2. meanwhile the assignor has changed its mind: P is the same seat's again."""
    group, driver = world(records=10)
    driver.drain()
    group.move(P0, OTHER)
    group.target[P0] = "seat-0"
    assert elapsed_ms(group, driver.trigger) < HANDOVER_WAIT_MS // 2
    assert driver.durable.owned[P0].period.generation == group.generation


# ----------------------------------------------------------------------------------------- previously owned partitions


def dies_in_a_batch(group: FakeGroup, driver: Driver) -> None:
    with pytest.raises(Crash):
        driver.trigger(crash="unread")
    group.die()


def test_partitions_of_an_unfinished_batch_go_to_no_member_before_it_is_done(world: World) -> None:
    """1. the driver dies in a batch, 2. the group rebalances, 3. the driver comes back, and reads the batch again."""
    group, driver = world(records=10)
    dies_in_a_batch(group, driver)
    group.move(P0, OTHER)
    driver.restart()
    group.rebalance()  # another one in the midst of the batch
    assert driver.rows == {P0: [(0, 10)]}
    assert not group.other
    driver.drain()
    assert group.other == {P0: 10}
    assert not group.forced


def test_a_return_to_a_group_at_rest_costs_no_generation(world: World) -> None:
    group, driver = world(records=10)
    dies_in_a_batch(group, driver)
    before = group.generation
    driver.restart()
    driver.drain()
    assert group.generation == before
    assert group.committed_now == {P0: 10}


def test_a_previously_owned_partition_that_is_assigned_again_is_read_on(world: World) -> None:
    group, driver = world(records=10)
    dies_in_a_batch(group, driver)
    group.rebalance()
    driver.restart()
    group.produce(P0, 5)
    driver.drain()
    assert driver.rows == {P0: [(0, 10), (10, 15)]}


def test_a_previously_owned_partition_with_another_owner_is_given_up_without_a_commit(world: World) -> None:
    """1. a boundary hands P over, 2. the driver dies before that boundary's batch is planned."""
    group, driver = world(records=10)
    driver.trigger()
    group.move(P0, OTHER)
    driver.ask()
    assert group.other == {P0: 10}
    group.committed_now[P0] = 3  # an operator's will
    driver.restart()
    assert group.seats["seat-0"].to_give_up == {P0}
    driver.drain()  # the model raises Violation if it commits
    assert (group.committed_now, group.other) == ({P0: 3}, {P0: 10})


def test_a_previously_owned_partition_waits_until_the_group_tells_owners(world: World) -> None:
    group, driver = world(records=10)
    driver.trigger()
    group.die()
    group.move(P0, OTHER)
    driver.restart()
    group.state = "PreparingRebalance"
    driver.trigger()
    assert not group.other
    assert group.committed_now == {P0: 0}
    group.state = "Stable"
    driver.drain()
    assert group.other == {P0: 10}


def test_a_previously_owned_partition_is_given_up_when_a_group_of_type_consumer_waits_for_it(world: World) -> None:
    group, driver = world(records=10)
    driver.trigger()
    group.die()
    group.move(P0, OTHER)
    driver.restart()
    group.state, group.group_type = "Reconciling", "consumer"
    driver.drain()
    assert group.other == {P0: 10}


def test_a_seat_gives_up_a_previously_owned_partition_though_another_seat_has_it(world: World) -> None:
    group, driver = world(partitions=2, seats=2, records=10)
    driver.trigger()
    group.move(P0, "seat-1")
    driver.ask()
    assert P0 in group.seats["seat-1"].owned_since
    driver.restart()
    group.state = "PreparingRebalance"
    driver.trigger()  # not at rest, and P0 is adopted through its new owner
    assert driver.durable.owned[P0].period.seat == "seat-1"
    group.state = "Stable"
    driver.drain()
    assert not any(seat.to_give_up for seat in group.seats.values())


def test_a_release_under_way_does_not_give_up_a_partition_assigned_meanwhile(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1. P, previously owned, is given up, 2. before the seat hears of it, P is assigned to it, and asked for again."""
    group, driver = world(records=10)
    driver.trigger()
    group.die()
    group.move(P0, OTHER)
    driver.restart()
    post = group.give_up

    def assigned_before_it_arrives(instance_id: str, partitions: frozenset[TopicPartition]) -> None:
        post(instance_id, partitions)
        group.move(P0, instance_id)

    monkeypatch.setattr(group, "give_up", assigned_before_it_arrives)
    group.produce(P0, 5)
    driver.ask()
    group.move(P0, OTHER)
    group.step()
    assert P0 in group.seats["seat-0"].owned_since
