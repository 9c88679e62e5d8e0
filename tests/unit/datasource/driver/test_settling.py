"""How long a boundary waits until the group is at rest, for which seats, and the messages meanwhile."""

from dataclasses import replace

import pytest
from harness.boundary import P0, P1, World, elapsed_ms, messages, unsettle
from harness.fake_group import OTHER, FakeGroup

from pyspark_kgroup.limits import HANDOVER_WAIT_MS, SETTLE_TIMEOUT_MS
from spark_kgroup.errors import GroupUnsettled

# -------------------------------------------------------------------------------------------------- the first boundary


def test_the_first_batch_waits_for_all_seats(world: World, caplog: pytest.LogCaptureFixture) -> None:
    group, driver = world(partitions=2, seats=2, records=10)
    late = group.seats["seat-1"]
    late.identity, late.owned_since = replace(late.identity, generation=-1), {}
    assert not driver.trigger()
    assert "did not come to rest" in caplog.text
    assert "Another member may be holding the rebalance up" in caplog.text
    late.trouble = "is not connected: broker-1:9092: no file descriptor is left for it (ulimit -n)."
    assert not driver.trigger()
    assert "Seat seat-1 is not connected: broker-1:9092: no file descriptor is left" in caplog.messages[-1]
    late.trouble = "is not connected: broker-1:9092 speaks TLS: set `security.protocol`."
    assert not driver.trigger()
    assert "set `security.protocol`." in caplog.messages[-1], "a setting has the name that Kafka gives it"
    late.trouble = None
    group.rebalance()
    driver.trigger()
    assert set(driver.durable.owned) == {P0, P1}


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
    (warning,) = messages(caplog, "did not come to rest")
    assert "Group 'g' did not come to rest within 60 s. It still waits for: seat-1." in warning
    assert warning.endswith("Trying again at the next trigger.")


def test_a_first_boundary_goes_on_as_soon_as_all_seats_are_at_rest(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    group, driver = world(partitions=2, seats=2, records=10)
    with monkeypatch.context() as patched:
        unsettle(group, patched, "seat-1")
        group.meanwhile = lambda: patched.undo() if group.now_ms > 20_500 else None
        assert driver.trigger()
    assert group.now_ms < 20_500 + HANDOVER_WAIT_MS // 5
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


def test_a_query_with_a_checkpoint_reads_its_partitions_though_the_group_does_not_settle(
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


# -------------------------------------------------------------------------------------------------------- AvailableNow


def _unsettle(group: FakeGroup) -> None:
    """A seat that never comes to rest: the group asks for P0, and commits for it never get through."""
    group.move(P0, OTHER)
    group.commit_fate = lambda: "lost"


def test_a_group_that_does_not_settle_fails_available_now_within_the_bound(world: World) -> None:
    group, driver = world(records=10)
    driver.trigger()
    driver.restart(bounded=True)
    _unsettle(group)
    began = group.now_ms
    with pytest.raises(GroupUnsettled, match="seat-0"):
        driver.trigger()
    assert group.now_ms - began <= SETTLE_TIMEOUT_MS + 5_000


def test_available_now_fails_if_a_seat_loses_its_membership_before_the_end(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    group, driver = world(records=100, bounded=True)
    driver.trigger(limit=10)
    # The coordinator forgot the seat. The seat knows, and its JoinGroup is parked behind another member's rebalance.
    seat = group.seats["seat-0"]
    group.unassign(P0)
    seat.owned_since = {}
    seat.identity = replace(seat.identity, generation=-1)
    view_of = type(seat).view
    monkeypatch.setattr(type(seat), "view", lambda self: replace(view_of(self), settled=False))
    with pytest.raises(GroupUnsettled, match="seat-0"):
        driver.trigger(limit=10)
