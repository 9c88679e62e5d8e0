"""How long a boundary waits for the group, for whom, and what a user is told meanwhile."""

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import pytest
from harness.fake_driver import Driver
from harness.fake_group import OTHER, FakeGroup

from pyspark_kgroup.limits import HANDOVER_WAIT_MS, ORPHAN_CHECK_INTERVAL_MS, SETTLE_TIMEOUT_MS
from spark_kgroup.errors import GroupUnsettled
from spark_kgroup.model import TopicPartition

P0, P1 = (TopicPartition("t", index) for index in range(2))

World = Callable[..., tuple[FakeGroup, Driver]]


def elapsed_ms(group: FakeGroup, call: Callable[[], object]) -> int:
    before = group.now_ms
    call()
    return group.now_ms - before


def messages(caplog: pytest.LogCaptureFixture, part: str) -> list[str]:
    return [message for message in caplog.messages if part in message]


def unsettle(group: FakeGroup, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """This seat is in the midst of a rebalance that does not end."""
    seat = group.seats[name]
    view_of = type(seat).view
    monkeypatch.setattr(
        type(seat), "view", lambda self: replace(view_of(self), settled=self is not seat and view_of(self).settled)
    )


# ------------------------------------------------------------------------------------- the first boundary


def test_the_first_boundary_waits_for_all_seats_for_as_long_as_it_may_and_no_longer(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    group, driver = world(partitions=2, seats=2, records=10)
    unsettle(group, monkeypatch, "seat-1")
    assert SETTLE_TIMEOUT_MS <= elapsed_ms(group, driver.trigger) <= SETTLE_TIMEOUT_MS + HANDOVER_WAIT_MS


def test_the_first_boundary_names_the_seats_that_are_not_at_rest_and_says_when_it_tries_again(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    group, driver = world(partitions=3, seats=3, records=10)
    unsettle(group, monkeypatch, "seat-1")
    driver.trigger()
    (told,) = messages(caplog, "did not come to rest")
    assert "Group 'g' did not come to rest within 60 s; still waiting for: seat-1." in told
    assert told.endswith("Trying again at the next trigger.")


def test_a_first_boundary_goes_on_as_soon_as_all_seats_are_at_rest(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    group, driver = world(partitions=2, seats=2, records=10)
    with monkeypatch.context() as patched:
        unsettle(group, patched, "seat-1")
        group.meanwhile = lambda: patched.undo() if group.now_ms > 20_000 else None
        assert driver.trigger()
    assert group.now_ms < 20_000 + 2 * HANDOVER_WAIT_MS
    assert set(driver.durable.owned) == {P0, P1}


def test_a_query_that_has_settled_once_does_not_wait_for_a_rebalance_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    group, driver = world(partitions=2, seats=2, records=10)
    driver.drain()
    unsettle(group, monkeypatch, "seat-1")
    group.produce(P0, 5)
    group.now_ms += 1_000
    assert elapsed_ms(group, driver.trigger) < HANDOVER_WAIT_MS
    assert driver.rows[P0] == [(0, 10), (10, 15)]


def test_a_query_with_a_checkpoint_reads_what_it_has_though_the_group_does_not_settle(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only a new query, which would begin with a part of its topics, has no batch at all."""
    group, driver = world(partitions=2, seats=2, records=10)
    driver.drain()
    driver.restart()
    unsettle(group, monkeypatch, "seat-1")
    group.produce(P0, 5)
    assert driver.trigger()
    assert driver.rows[P0] == [(0, 10), (10, 15)]


# -------------------------------------------------------------------------------------- acknowledgements


def test_a_commit_that_is_not_acknowledged_makes_one_warning_until_one_is(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    group, driver = world(records=100)
    driver.trigger(limit=20)
    for times in (1, 2):
        group.commit_fate = lambda: "lost"
        for _ in range(3):
            assert not driver.trigger(limit=20)
        told = messages(caplog, "did not acknowledge what was read of t-0")
        assert len(told) == times
        assert told[-1].endswith("These partitions wait for it. Trying again at each trigger.")
        group.commit_fate = lambda: "ok"
        assert driver.trigger(limit=20)


def test_the_bound_on_acknowledgements_counts_from_the_first_that_is_missing(world: World) -> None:
    group, driver = world(records=100)
    driver.trigger(limit=20)
    for _ in range(3):
        group.commit_fate = lambda: "lost"
        assert not driver.trigger(limit=20)
        group.now_ms += driver.options.api_timeout_ms - 1_000
        assert not driver.trigger(limit=20)
        group.commit_fate = lambda: "ok"
        assert driver.trigger(limit=20)
    group.commit_fate = lambda: "lost"
    assert not driver.trigger(limit=20)
    group.now_ms += driver.options.api_timeout_ms + 1_000
    with pytest.raises(GroupUnsettled, match="Tried for 300 s"):
        driver.trigger(limit=20)


@pytest.mark.parametrize("reads", [False, True], ids=["a start", "what was read"])
def test_available_now_waits_for_the_groups_word_for_as_long_as_it_may(world: World, reads: bool) -> None:
    group, driver = world(records=100)
    driver.boundary.logs.freeze()
    if reads:
        driver.trigger(limit=60)
    until_ms = group.now_ms + SETTLE_TIMEOUT_MS - 2 * HANDOVER_WAIT_MS
    group.commit_fate = lambda: "ok" if group.now_ms > until_ms else "lost"
    assert driver.trigger(limit=60)
    assert group.now_ms < until_ms + 3 * HANDOVER_WAIT_MS


@pytest.mark.parametrize("reads", [False, True], ids=["a start", "what was read"])
def test_available_now_waits_no_longer_than_it_may(world: World, reads: bool) -> None:
    group, driver = world(records=100)
    driver.boundary.logs.freeze()
    if reads:
        driver.trigger(limit=60)
    group.commit_fate = lambda: "lost"
    before_ms = group.now_ms
    with pytest.raises(GroupUnsettled):
        driver.trigger(limit=60)
    assert SETTLE_TIMEOUT_MS <= group.now_ms - before_ms <= SETTLE_TIMEOUT_MS + 3 * HANDOVER_WAIT_MS


def test_a_stream_does_not_wait_for_the_groups_word_but_looks_again_at_each_trigger(world: World) -> None:
    group, driver = world(records=100)
    driver.trigger(limit=20)
    group.commit_fate = lambda: "lost"
    assert elapsed_ms(group, lambda: driver.trigger(limit=20)) < HANDOVER_WAIT_MS


# ---------------------------------------------------------------------------------------------- hand-over


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


# ------------------------------------------------------------------------------------------------ orphans


def looks(group: FakeGroup, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """When the group was described, from now on."""
    asked_at_ms: list[int] = []
    describe = group.describe
    monkeypatch.setattr(group, "describe", lambda: asked_at_ms.append(group.now_ms) or describe())
    return asked_at_ms


def test_a_group_that_is_not_stable_is_looked_at_once_in_an_interval(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    group, driver = world(records=10)
    driver.trigger()
    group.state = "PreparingRebalance"
    group.rejoins += 1
    group.now_ms += ORPHAN_CHECK_INTERVAL_MS
    asked_at_ms = looks(group, monkeypatch)
    for _ in range(30):
        driver.ask()
        group.now_ms += 90
    gaps = [b - a for a, b in pairwise(asked_at_ms)]
    assert gaps
    assert all(ORPHAN_CHECK_INTERVAL_MS <= gap <= ORPHAN_CHECK_INTERVAL_MS + 200 for gap in gaps)


def test_a_group_that_is_stable_is_looked_at_once_after_a_rejoin(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    group, driver = world(records=10)
    driver.trigger()
    driver.drain()
    asked_at_ms = looks(group, monkeypatch)
    for _ in range(5):
        group.now_ms += 2 * ORPHAN_CHECK_INTERVAL_MS
        driver.ask()
    assert asked_at_ms == []
    group.rejoins += 1
    for _ in range(5):
        group.now_ms += 2 * ORPHAN_CHECK_INTERVAL_MS
        driver.ask()
    assert len(asked_at_ms) == 1


def test_a_forced_rebalance_says_why_in_the_log_and_in_the_join(world: World, caplog: pytest.LogCaptureFixture) -> None:
    group, driver = world(partitions=3, records=10)
    group.target = {P0: "seat-0"}
    group.rebalance()
    driver.trigger()
    assert group.forced == ["2 partitions without an owner"]
    assert messages(caplog, "the group rebalances after a rejoin: 2 partitions without an owner")


def test_what_a_forced_rebalance_assigns_is_adopted_in_the_same_boundary(world: World) -> None:
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


def test_a_group_of_type_consumer_is_looked_at_once_after_a_rejoin(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    group, driver = world(records=10)
    group.group_type = "consumer"
    driver.drain()
    asked_at_ms = looks(group, monkeypatch)
    for _ in range(5):
        group.now_ms += 2 * ORPHAN_CHECK_INTERVAL_MS
        driver.ask()
    assert asked_at_ms == []


# ------------------------------------------------------------------------------------------------ members


def test_a_boundary_says_which_member_each_seat_is(world: World) -> None:
    group, driver = world(partitions=2, seats=2, records=10)
    assert driver.boundary.members == {}
    driver.trigger()
    assert driver.boundary.members == {name: seat.identity.member_id for name, seat in group.seats.items()}
