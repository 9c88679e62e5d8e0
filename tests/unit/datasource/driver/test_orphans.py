"""Partitions without an owner, found by the runtime: the commits that come first, then the one rebalance."""

import pytest
from harness.boundary import P0, P1, World, elapsed_ms, messages
from harness.fake_group import OTHER

from pyspark_kgroup.limits import HANDOVER_WAIT_MS, LOOK_WAIT_MS

# ------------------------------------------------------------------------------------------------------------ commits


def test_an_orphan_is_committed_and_gets_an_owner(world: World) -> None:
    """1. a sync revokes P, 2. the driver dies before the boundary, 3. its seat comes back without P and without claims
    (an eager one).
    """
    group, driver = world(records=10)
    driver.trigger()
    group.move(P0, OTHER)
    group.restart({})
    driver.start()
    assert P0 not in group.seats["seat-0"].owned_since
    driver.drain()
    assert len(group.forced) == 1
    assert group.other == {P0: 10}


def test_an_orphan_gets_no_owner_before_the_group_knows_our_position(world: World) -> None:
    group, driver = world(records=10)
    driver.trigger()
    group.move(P0, OTHER)
    group.restart({})
    driver.start()
    group.commit_fate = lambda: "lost"
    driver.trigger()
    assert not group.forced
    group.commit_fate = lambda: "ok"
    group.now_ms += 2_000
    driver.trigger()
    assert group.other == {P0: 10}


def test_a_partition_that_another_member_still_claims_is_no_orphan(world: World) -> None:
    """1. we read P up to 10, and lose it before the commit, 2. a neighbour reads it again from 0, 3. a rebalance asks
    for it, and P is withheld until the neighbour's batch ends, 4. our driver restarts. P must not be touched from here.
    """
    group, driver = world(partitions=2, records=10)
    driver.trigger()
    group.expel("seat-0")
    group.move(P1, OTHER)
    group.notice("seat-0")
    driver.drain()
    group.move(P1, "seat-0")
    driver.restart()
    committed = dict(group.committed_now)
    for _ in range(5):
        group.now_ms += 2_000
        driver.trigger()
    assert not group.forced
    assert group.committed_now.get(P1) == committed.get(P1)
    group.other_gives_up()
    driver.drain()
    assert set(driver.durable.owned) == {P0, P1}


def test_a_rejoin_that_finds_orphans_forces_one_rebalance_only(world: World) -> None:
    """Even if no assignor gives the partition to a member."""
    group, driver = world(partitions=2, records=10)
    del group.target[P1]
    group.rebalance()
    for _ in range(5):
        group.now_ms += 2_000
        driver.trigger()
    assert len(group.forced) == 1


# ------------------------------------------------------------------------------------------------------ when it is due


def test_a_boundary_waits_for_the_look_that_a_rejoin_needs(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it, AvailableNow would end before it has read partitions that have no owner yet."""
    group, driver = world(records=10)
    group.target[group.add_partition("t")] = "seat-0"
    look, looked_at_ms = group._check_assignment, group.now_ms + LOOK_WAIT_MS // 2
    monkeypatch.setattr(group, "_check_assignment", lambda: look() if group.now_ms >= looked_at_ms else None)
    assert elapsed_ms(group, driver.trigger) < LOOK_WAIT_MS
    assert len(group.forced) == 1
    assert set(driver.durable.owned) == {P0, P1}


def test_a_boundary_that_waits_for_a_group_without_rest_goes_on_and_waits_again(world: World) -> None:
    group, driver = world(records=10)
    group.target[group.add_partition("t")] = "seat-0"
    group.state = "PreparingRebalance"
    assert LOOK_WAIT_MS <= elapsed_ms(group, driver.trigger) < 2 * LOOK_WAIT_MS
    assert not group.forced
    group.state = "Stable"
    driver.drain()
    assert len(group.forced) == 1
    assert set(driver.durable.owned) == {P0, P1}


def test_a_boundary_does_not_ask_for_the_group_s_description(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The runtime has looked, and its finding is in the view."""
    group, driver = world(records=10)
    driver.trigger()
    asked: list[int | None] = []
    monkeypatch.setattr(group, "describe", asked.append)
    group.look_due = True
    driver.drain()
    assert asked == []


# ------------------------------------------------------------------------------------------------------- the rebalance


def test_a_forced_rebalance_says_why_in_the_log_and_in_the_join(world: World, caplog: pytest.LogCaptureFixture) -> None:
    group, driver = world(partitions=3, records=10)
    group.target = {P0: "seat-0"}
    group.rebalance()
    driver.trigger()
    assert group.forced == ["2 partitions without an owner"]
    assert messages(caplog, "the group rebalances: 2 partitions without an owner")


def test_partitions_that_a_forced_rebalance_assigns_are_adopted_in_the_same_boundary(world: World) -> None:
    group, driver = world(partitions=2, records=10)
    driver.drain()
    added = group.add_partition("t")
    group.produce(added, 7)
    group.target[added] = "seat-0"
    driver.restart()
    driver.trigger()
    assert group.forced == ["1 partitions without an owner"]
    assert driver.rows[added] == [(0, 7)]


def test_a_boundary_waits_for_the_rebalance_that_it_forced_and_no_longer(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    group, driver = world(partitions=2, records=10)
    driver.drain()
    added = group.add_partition("t")
    group.produce(added, 7)
    group.target[added] = "seat-0"
    driver.restart()
    due_at_ms: list[int] = []
    monkeypatch.setattr(group, "force_rebalance", lambda _: due_at_ms.append(group.now_ms + HANDOVER_WAIT_MS // 2))
    group.meanwhile = lambda: due_at_ms.clear() or group.rebalance() if due_at_ms[:1] == [group.now_ms] else None
    assert elapsed_ms(group, driver.trigger) < HANDOVER_WAIT_MS
    assert driver.rows[added] == [(0, 7)]


def test_no_orphans_are_looked_for_where_no_seat_was_asked_back(world: World) -> None:
    """Its seats joined for the first time: a rebalance has shared out everything."""
    group, driver = world(partitions=2, records=10)
    del group.target[P1]
    group.rebalance()
    group.look_due = False
    driver.drain()
    assert group.forced == []
