"""Waiting for the group to acknowledge commits: which reads wait, for how long, and the messages meanwhile."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
from harness.boundary import P0, P1, World, elapsed_ms, messages
from harness.fake_driver import Driver, assert_read_once
from harness.fake_group import FakeGroup

from pyspark_kgroup.limits import HANDOVER_WAIT_MS, SETTLE_TIMEOUT_MS
from pyspark_kgroup.options.offset_bound import parse_starting_offsets
from spark_kgroup.errors import GroupUnsettled
from spark_kgroup.model import TopicPartition
from spark_kgroup.runtime.views import SeatCommit

# ---------------------------------------------------------------------- reads: at most one batch that is not committed


def test_a_partition_whose_commit_is_unacknowledged_is_not_read_on(world: World) -> None:
    """Were it lost after a second batch, its next owner would read both again. The promise is at most one."""
    group, driver = world(partitions=2, records=100)
    driver.trigger(limit=20)
    group.commit_fate = lambda: "lost"
    for _ in range(3):
        assert not driver.trigger(limit=20)
    group.commit_fate = lambda: "ok"
    assert driver.trigger(limit=20)
    assert group.committed_now == {P0: 10, P1: 10}
    assert driver.rows == {P0: [(0, 10), (10, 20)], P1: [(0, 10), (10, 20)]}


def test_a_commit_that_is_not_acknowledged_makes_one_warning_until_one_is(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    group, driver = world(records=100)
    driver.trigger(limit=20)
    for times in (1, 2):
        group.commit_fate = lambda: "lost"
        for _ in range(3):
            assert not driver.trigger(limit=20)
        warnings = messages(caplog, "did not acknowledge the offsets read of t-0")
        assert len(warnings) == times
        assert warnings[-1].endswith("These partitions wait for that. Trying again at each trigger.")
        group.commit_fate = lambda: "ok"
        assert driver.trigger(limit=20)


def test_a_group_that_never_acknowledges_ends_the_query_within_the_bound(world: World) -> None:
    group, driver = world(records=100)
    driver.trigger(limit=20)
    group.commit_fate = lambda: "lost"
    assert not driver.trigger(limit=20)
    group.now_ms += 290_000
    assert not driver.trigger(limit=20)
    group.now_ms += 20_000
    with pytest.raises(
        GroupUnsettled, match=r"read of t-0 \(COORDINATOR_NOT_AVAILABLE\)\..*kafka\.default\.api\.timeout\.ms"
    ):
        driver.trigger(limit=20)


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


def test_each_partition_has_the_bound_on_acknowledgements_for_itself(world: World) -> None:
    """On a slow coordinator some commit is always on its way: that is no reason to end the query."""
    group, driver = world(partitions=2, seats=2, records=1_000)
    driver.trigger(limit=20)
    commit = group.commit
    for refused in (P0, P1) * 3:

        def others(commits: Sequence[SeatCommit], refused: TopicPartition = refused) -> frozenset[TopicPartition]:
            return commit(commits) - {refused}

        group.commit = others  # type: ignore[method-assign]
        assert driver.trigger(limit=20), "the other partition is read on"
        group.now_ms += driver.options.api_timeout_ms // 2 + 1_000
    group.commit = commit  # type: ignore[method-assign]
    assert driver.trigger(limit=20)


def test_a_stream_does_not_wait_for_an_acknowledgement_but_asks_again_at_each_trigger(world: World) -> None:
    group, driver = world(records=100)
    driver.trigger(limit=20)
    group.commit_fate = lambda: "lost"
    assert elapsed_ms(group, lambda: driver.trigger(limit=20)) < HANDOVER_WAIT_MS


# ------------------------------------------------------------------------------------------------------ where to start


def test_a_group_that_never_acknowledges_a_start_ends_the_query_within_the_bound(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    group, driver = world(records=10)
    group.commit_fate = lambda: "lost"
    for _ in range(3):
        assert not driver.trigger()
    assert caplog.text.count("did not acknowledge") == 1
    group.now_ms += 290_000
    assert not driver.trigger()
    group.now_ms += 20_000
    with pytest.raises(
        GroupUnsettled, match=r"start with t-0 \(COORDINATOR_NOT_AVAILABLE\)\..*kafka\.default\.api\.timeout\.ms"
    ):
        driver.trigger()


class Lagging:
    """A coordinator that does not know P1 yet, and refuses its commits until `known`."""

    def __init__(self, group: FakeGroup) -> None:
        self.known = False
        self.on_refused: Callable[[], None] | None = None
        self._commit = group.commit
        group.commit = self.commit  # type: ignore[method-assign]

    def commit(self, commits: Sequence[SeatCommit]) -> frozenset[TopicPartition]:
        if self.on_refused is not None and any(P1 in one.positions for one in commits):
            self.on_refused()
        positions = [{tp: at for tp, at in one.positions.items() if self.known or tp != P1} for one in commits]
        return self._commit([replace(one, positions=at) for one, at in zip(commits, positions, strict=True)])


def with_a_partition_more(group: FakeGroup, driver: Driver) -> Lagging:
    """The query reads P0 of a topic that gets P1 now. The coordinator has not heard of P1 yet."""
    driver.drain()
    coordinator = Lagging(group)
    assert group.add_partition("t") == P1
    group.move(P1, "seat-0")
    group.produce(P0, 5)
    group.produce(P1, 5)
    return coordinator


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("starting", ["committed", "earliest", "latest"])
def test_a_later_partition_whose_start_is_not_acknowledged_holds_up_no_other_one(
    world: World, caplog: pytest.LogCaptureFixture, starting: str, restarts: bool
) -> None:
    group, driver = world(records=10, starting=parse_starting_offsets(starting))
    coordinator = with_a_partition_more(group, driver)
    driver.drain()
    assert driver.rows[P0][-1][1] == 15
    assert P1 not in driver.durable.owned
    assert len(messages(caplog, "did not acknowledge where to start with t-1")) == 1
    if restarts:
        driver.restart()
        driver.drain()
    coordinator.known = True
    driver.drain()
    assert driver.rows[P1] == [(0, 5)]
    assert group.committed_now == {P0: 15, P1: 5}


def test_a_later_partition_whose_start_is_never_acknowledged_ends_the_query_within_the_bound(world: World) -> None:
    group, driver = world(records=10)
    with_a_partition_more(group, driver)
    driver.drain()
    group.now_ms += driver.options.api_timeout_ms
    group.produce(P0, 10)
    with pytest.raises(GroupUnsettled, match=r"where to start with t-1 .* They are not read before that"):
        driver.drain()


def test_a_seat_that_lost_its_partitions_to_the_refused_commit_reads_none_of_them(world: World) -> None:
    group, driver = world(records=10)
    coordinator = with_a_partition_more(group, driver)

    def expel() -> None:
        group.expel("seat-0")
        group.notice("seat-0")

    coordinator.on_refused = expel
    group.now_ms += 1_000
    assert not driver.trigger()
    coordinator.on_refused, coordinator.known = None, True
    driver.drain()
    assert_read_once(driver, 15, [P0])
    assert_read_once(driver, 5, [P1])


def test_a_first_batch_waits_for_all_starts(world: World) -> None:
    """The option counts once for all partitions, and `latest` moves on."""
    group, driver = world(partitions=2, records=10, starting=parse_starting_offsets("latest"))
    coordinator = Lagging(group)
    assert not driver.trigger()
    group.produce(P0, 5)
    assert not driver.trigger()
    coordinator.known = True
    driver.drain()
    assert driver.durable.owned.keys() == {P0, P1}


# -------------------------------------------------------------------------------------------------------- AvailableNow


def test_available_now_waits_until_its_start_is_acknowledged(world: World) -> None:
    group, driver = world(records=10, bounded=True)
    until = group.now_ms + 20_000
    group.commit_fate = lambda: "ok" if group.now_ms > until else "lost"
    assert driver.trigger()
    assert driver.rows == {P0: [(0, 10)]}


def test_available_now_fails_if_its_start_is_never_acknowledged(world: World) -> None:
    group, driver = world(records=10, bounded=True)
    group.commit_fate = lambda: "lost"
    began = group.now_ms
    with pytest.raises(GroupUnsettled, match="did not acknowledge where to start with t-0"):
        driver.trigger()
    assert group.now_ms - began <= SETTLE_TIMEOUT_MS + 10_000


def test_available_now_waits_until_commits_are_acknowledged_and_reads_all(world: World) -> None:
    group, driver = world(records=100, bounded=True)
    driver.trigger(limit=60)
    until = group.now_ms + 20_000
    group.commit_fate = lambda: "ok" if group.now_ms > until else "lost"
    assert driver.trigger(limit=60)
    assert driver.rows == {P0: [(0, 60), (60, 100)]}


def test_available_now_fails_if_its_commits_are_never_acknowledged(world: World) -> None:
    group, driver = world(records=100, bounded=True)
    driver.trigger(limit=60)
    group.commit_fate = lambda: "lost"
    began = group.now_ms
    with pytest.raises(GroupUnsettled, match=r"the offsets read of t-0 \(COORDINATOR_NOT_AVAILABLE\)\."):
        driver.trigger(limit=60)
    assert group.now_ms - began <= SETTLE_TIMEOUT_MS + 10_000


@pytest.mark.parametrize("reads", [False, True], ids=["a start", "what was read"])
def test_available_now_waits_for_the_acknowledgement_within_its_bound(world: World, reads: bool) -> None:
    group, driver = world(records=100, bounded=True)
    if reads:
        driver.trigger(limit=60)
    until_ms = group.now_ms + SETTLE_TIMEOUT_MS - 2 * HANDOVER_WAIT_MS
    group.commit_fate = lambda: "ok" if group.now_ms > until_ms else "lost"
    assert driver.trigger(limit=60)
    assert group.now_ms < until_ms + 3 * HANDOVER_WAIT_MS


@pytest.mark.parametrize("reads", [False, True], ids=["a start", "what was read"])
def test_available_now_waits_no_longer_than_it_may(world: World, reads: bool) -> None:
    group, driver = world(records=100, bounded=True)
    if reads:
        driver.trigger(limit=60)
    group.commit_fate = lambda: "lost"
    before_ms = group.now_ms
    with pytest.raises(GroupUnsettled):
        driver.trigger(limit=60)
    assert SETTLE_TIMEOUT_MS <= group.now_ms - before_ms <= SETTLE_TIMEOUT_MS + 3 * HANDOVER_WAIT_MS


@pytest.mark.parametrize("reads", [False, True], ids=["a start", "what was read"])
def test_available_now_commits_again_as_soon_as_the_group_is_another(world: World, reads: bool) -> None:
    group, driver = world(records=100, bounded=True)
    if reads:
        driver.trigger(limit=60)
    generation, begins_at_ms = group.generation, group.now_ms + 200
    group.commit_fate = lambda: "lost" if group.generation == generation else "ok"
    group.meanwhile = lambda: (
        group.rebalance() if group.generation == generation and group.now_ms >= begins_at_ms else None
    )
    assert elapsed_ms(group, lambda: driver.trigger(limit=60)) < HANDOVER_WAIT_MS // 2
    assert driver.durable.owned[P0].position >= 60


def test_a_warning_of_a_missing_acknowledgement_has_no_reason_if_no_answer_gave_one(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    group, driver = world(records=100)
    driver.trigger(limit=20)
    group.commit_fate = lambda: "lost"
    monkeypatch.setattr(group, "commit_refusal", lambda: "")
    driver.trigger(limit=20)
    (line,) = messages(caplog, "did not acknowledge")
    assert "the offsets read of t-0. These partitions wait" in line
