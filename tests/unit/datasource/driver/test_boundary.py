"""The boundary against a model of the group: the order of its steps, and crashes between them."""

from collections import Counter
from collections.abc import Callable
from itertools import pairwise

import pytest
from harness.boundary import P0, P1, World
from harness.fake_driver import Crash, dumps

from pyspark_kgroup.driver.boundary import ledger as ledger_module
from pyspark_kgroup.driver.boundary.ledger import Ledger
from pyspark_kgroup.driver.boundary.topic_logs import TopicLogs
from pyspark_kgroup.limits import END_OFFSETS_MAX_AGE_MS
from spark_kgroup.errors import Disconnected


def test_a_boundary_commits_only_durable_positions_and_lag_reaches_zero(world: World) -> None:
    group, driver = world(records=100)
    driver.ask(limit=60)  # Spark never uses this one
    begun = ("seat-0", {P0: 0})
    assert group.commits == [begun]
    driver.trigger(limit=60)
    assert group.commits == [begun]
    driver.trigger(limit=60)
    assert group.commits == [begun, ("seat-0", {P0: 60})]
    driver.drain()
    assert group.committed_now == {P0: 100}
    assert driver.rows == {P0: [(0, 60), (60, 100)]}


def test_a_boundary_without_news_returns_the_same_bytes_and_commits_no_offset(world: World) -> None:
    group, driver = world(partitions=3, seats=2, records=10)
    driver.drain()
    before, commits = dumps(driver.durable), len(group.commits)
    for _ in range(5):
        group.now_ms += 10
        assert dumps(driver.ask()) == before
    assert len(group.commits) == commits


def test_an_adoption_is_committed_and_made_durable_by_an_empty_batch(world: World) -> None:
    group, driver = world()
    assert driver.trigger()
    assert group.committed_now == {P0: 0}
    assert driver.rows == {}
    assert driver.durable.owned[P0].position == 0
    assert not driver.trigger()


@pytest.mark.parametrize("crash", ["unplanned", "unread", "uncommitted"])
def test_a_crash_anywhere_reads_each_record_once(world: World, crash: str) -> None:
    group, driver = world(partitions=2, seats=2, records=100)
    driver.trigger(limit=50)
    with pytest.raises(Crash):
        driver.trigger(limit=50, crash=crash)
    generation = group.generation
    driver.restart()
    driver.drain()
    assert group.generation == generation
    assert {tp: (spans[0][0], spans[-1][1]) for tp, spans in driver.rows.items()} == {P0: (0, 100), P1: (0, 100)}
    assert all(a[1] == b[0] for spans in driver.rows.values() for a, b in pairwise(spans))
    assert group.committed_now == {P0: 100, P1: 100}


def test_a_boundary_commits_before_any_step_that_can_fail(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    group, driver = world(records=10)
    driver.trigger()

    def unreachable(_: int) -> None:
        raise Disconnected("metadata")

    monkeypatch.setattr(group, "topics", unreachable)
    with pytest.raises(Disconnected):
        driver.trigger()
    assert group.committed_now == {P0: 10}


def test_a_restart_commits_the_last_run_s_positions_at_its_first_boundary(world: World) -> None:
    """An AvailableNow run that finds no new record ends after one boundary."""
    group, driver = world(records=10)
    driver.trigger()
    driver.restart()
    assert not driver.trigger()
    assert group.committed_now == {P0: 10}


@pytest.mark.parametrize(
    ("news", "listed", "looks"),
    [
        (0, [500], {"heard": 1}),
        (1, [500, 1], {"position": 2 * 500, "heard": 3, "topic_key": 4}),
    ],
    ids=["idle", "with news"],
)
def test_a_boundary_looks_at_each_partition_a_few_times_only(
    world: World, monkeypatch: pytest.MonkeyPatch, news: int, listed: list[int], looks: dict[str, int]
) -> None:
    """Linear, and with small factors: 10,000 partitions are looked at between two batches of 100 ms."""
    group, driver = world(partitions=500, seats=5, records=1)
    driver.drain()
    asked = Counter[str]()
    for owner, name in ((Ledger, "position"), (TopicLogs, "heard"), (ledger_module, "topic_key")):
        monkeypatch.setattr(owner, name, counted(getattr(owner, name), name, asked))
    seen: list[int] = []
    ends, starts = group.logs.ends, group.logs.starts
    monkeypatch.setattr(
        group.logs, "ends", lambda tps, *given, **more: seen.append(len(tps)) or ends(tps, *given, **more)
    )
    monkeypatch.setattr(group.logs, "starts", lambda tps, *given: seen.append(len(tps)) or starts(tps, *given))
    group.produce(P0, news)
    group.now_ms += END_OFFSETS_MAX_AGE_MS + 1
    assert (driver.ask() == driver.durable) is not bool(news)
    assert seen == listed, "ends, and where logs begin that have more to read"
    assert asked == looks


def counted(function: Callable[..., object], name: str, calls: Counter[str]) -> Callable[..., object]:
    def call(*args: object) -> object:
        calls[name] += 1
        return function(*args)

    return call


def test_a_boundary_says_which_member_each_seat_is(world: World) -> None:
    group, driver = world(partitions=2, seats=2, records=10)
    assert driver.boundary.members == {}
    driver.trigger()
    assert driver.boundary.members == {name: seat.identity.member_id for name, seat in group.seats.items()}
