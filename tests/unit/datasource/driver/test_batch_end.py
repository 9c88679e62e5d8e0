"""Where a batch ends: end offsets and the age up to which they count, the limit and the partitions' turns under it."""

import pytest
from harness.boundary import P0, P1, World
from harness.fake_driver import Crash
from harness.fake_group import OTHER

from pyspark_kgroup.driver.boundary.boundary import Boundary
from pyspark_kgroup.driver.boundary.context import BoundaryContext
from pyspark_kgroup.limits import END_OFFSETS_MAX_AGE_MS, RECORD_BYTES_UNKNOWN
from pyspark_kgroup.offsets.plan import Limit
from spark_kgroup.model import TopicPartition


def test_end_offsets_serve_idle_triggers_for_a_short_time_only(world: World) -> None:
    group, driver = world(records=10)
    driver.drain()
    group.produce(P0, 5)
    assert not driver.trigger()
    group.now_ms += END_OFFSETS_MAX_AGE_MS + 1
    assert driver.trigger()


def test_read_committed_stops_before_an_open_transaction(world: World) -> None:
    group, driver = world(records=10, read_committed=True)
    group.stable = {P0: 6}
    driver.drain()
    assert driver.rows == {P0: [(0, 6)]}
    del group.stable[P0]
    driver.drain()
    assert driver.rows == {P0: [(0, 6), (6, 10)]}


def test_frozen_end_offsets_bound_the_run_also_for_partitions_adopted_later(world: World) -> None:
    group, driver = world(partitions=2, records=10, bounded=True)
    group.move(P1, OTHER)
    driver.trigger(limit=4)
    group.produce(P0, 50)
    group.produce(P1, 50)
    added = group.add_partition("t")
    group.produce(added, 5)
    group.target |= {P1: "seat-0", added: "seat-0"}
    group.other_gives_up()
    group.rebalance()
    group.other_gives_up()
    driver.drain()
    assert {tp: spans[-1][1] for tp, spans in driver.rows.items()} == {P0: 10, P1: 10}
    driver.restart(bounded=True)
    driver.drain()
    assert {tp: spans[-1][1] for tp, spans in driver.rows.items()} == {P0: 60, P1: 60, added: 5}
    assert group.committed_now == {P0: 60, P1: 60, added: 5}


@pytest.mark.parametrize("crash", ["unread", "uncommitted"])
def test_an_unfinished_batch_of_available_now_is_read_again_though_there_are_more_partitions_by_then(
    world: World, crash: str
) -> None:
    group, driver = world(records=10, bounded=True)
    with pytest.raises(Crash):
        driver.trigger(crash=crash)
    added = group.add_partition("t")
    group.produce(added, 5)
    driver.restart(bounded=True)
    assert driver.rows == {P0: [(0, 10)]}
    driver.drain()
    assert driver.rows[P0] == [(0, 10)]


def test_a_limit_below_the_number_of_partitions_starves_no_partition(world: World) -> None:
    group, driver = world(partitions=6, records=1)
    group.produce(P0, 1_000)
    group.produce(P1, 1_000)
    for _ in range(3):
        group.now_ms += END_OFFSETS_MAX_AGE_MS + 1
        assert driver.trigger(limit=2)
    assert len(driver.rows) == 6


def test_partitions_take_turns_under_a_limit_below_their_number(world: World) -> None:
    group, driver = world(partitions=6, records=100)
    for _ in range(3):
        group.now_ms += END_OFFSETS_MAX_AGE_MS + 1
        assert driver.trigger(limit=4)
    assert {tp: sum(last - first for first, last in spans) for tp, spans in driver.rows.items()} == {
        TopicPartition("t", index): 2 for index in range(6)
    }


def test_end_offsets_are_asked_for_before_commits_are_acknowledged(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A trigger waits for one round trip less. The batch is still bounded by the commits that were acknowledged."""
    group, driver = world(partitions=2, seats=1, records=10)
    driver.trigger()
    asked: list[str] = []
    for owner, name in ((group.logs, "begin_ends"), (group.logs, "ends"), (group, "commit")):
        call = getattr(owner, name)
        monkeypatch.setattr(
            owner, name, lambda *given, name=name, call=call, **more: asked.append(name) or call(*given, **more)
        )
    group.commit_fate = lambda: "lost"
    group.now_ms += 1_000
    for tp in group.log:
        group.produce(tp, 5)
    durable = driver.durable
    driver.ask()
    assert asked[:3] == ["begin_ends", "ends", "commit"], "the model carries the first out as the second"
    assert {tp: held.position for tp, held in driver.ask().owned.items()} == {
        tp: held.position for tp, held in durable.owned.items()
    }


def test_end_offsets_that_were_listed_before_a_long_wait_are_listed_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    group, driver = world(partitions=2, seats=1, records=10)
    driver.trigger()
    commit = group.commit

    def slow(*given: object) -> frozenset[TopicPartition]:
        group.now_ms += 2_000
        for tp in group.log:
            group.produce(tp, 5)
        return commit(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(group, "commit", slow)
    group.now_ms += 1_000
    assert {held.position for held in driver.ask().owned.values()} == {15}


def test_a_limit_in_bytes_goes_by_the_size_of_records_as_it_is_known_at_each_boundary(world: World) -> None:
    group, driver = world(records=1_000)
    known: dict[str, float] = {}
    driver.boundary = Boundary(
        BoundaryContext.of(group, driver.options, clock=lambda: group.now_ms), record_bytes=known.get, bounded=False
    )
    limit = Limit(size_bytes=3 * RECORD_BYTES_UNKNOWN)
    end = driver.boundary.advance(driver.durable, limit)
    assert end.position(P0) == 3
    known["t"] = RECORD_BYTES_UNKNOWN / 8
    group.now_ms += END_OFFSETS_MAX_AGE_MS + 1
    assert driver.boundary.advance(end, limit).position(P0) == 27


def test_of_two_limits_the_lower_one_counts(world: World) -> None:
    _, driver = world(records=1_000)
    for limit, taken in ((Limit(7, 3 * RECORD_BYTES_UNKNOWN), 3), (Limit(7, 30 * RECORD_BYTES_UNKNOWN), 7)):
        assert driver.boundary.advance(driver.durable, limit).position(P0) == taken
