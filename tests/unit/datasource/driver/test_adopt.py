"""Where adopted partitions start, and which offsets are committed before a batch relies on them."""

import pytest
from harness.boundary import P0, P1, World, elapsed_ms, messages
from harness.fake_driver import Crash
from harness.fake_group import OTHER

from pyspark_kgroup.limits import END_OFFSETS_MAX_AGE_MS
from pyspark_kgroup.options.offset_bound import parse_starting_offsets
from spark_kgroup.limits import METADATA_MAX_AGE_MS
from spark_kgroup.seat_note import Author


@pytest.mark.parametrize("crash", ["unplanned", "unread", "uncommitted"])
def test_an_explicit_start_survives_a_crash_in_the_first_batch(world: World, crash: str) -> None:
    """1. the group stands at 80, 2. a fresh checkpoint says earliest, 3. the first batch dies. No record is skipped."""
    group, driver = world(records=100, starting=parse_starting_offsets("earliest"))
    group.committed_now = {P0: 80}
    group.rewinds = {P0}
    with pytest.raises(Crash):
        driver.trigger(limit=30, crash=crash)
    driver.restart()
    driver.drain()
    spans = driver.rows[P0]
    assert (spans[0][0], spans[-1][1], sum(b - a for a, b in spans)) == (0, 100, 100)
    assert group.committed_now == {P0: 100}


def test_an_explicit_start_that_is_not_acknowledged_makes_no_batch_yet(world: World) -> None:
    group, driver = world(partitions=2, seats=2, records=100, starting=parse_starting_offsets("earliest"))
    group.committed_now = {P0: 80, P1: 80}
    group.rewinds = {P0, P1}
    fates = iter(["ok", "lost"])
    group.commit_fate = lambda: next(fates)
    assert not driver.trigger()
    group.commit_fate = lambda: "ok"
    driver.drain()
    assert {tp: spans[0][0] for tp, spans in driver.rows.items()} == {P0: 0, P1: 0}


def test_committed_offsets_win_over_an_explicit_start_if_other_members_work_in_the_group(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    group, driver = world(partitions=2, records=100, starting=parse_starting_offsets("earliest"))
    group.committed_now = {P0: 80}
    group.move(P1, OTHER)
    driver.drain()
    assert driver.rows == {P0: [(80, 100)]}
    assert "startingOffsets" in caplog.text
    assert OTHER in caplog.text


@pytest.mark.parametrize("explicit", [False, True])
def test_a_start_at_the_end_is_committed_before_a_batch_relies_on_it(world: World, explicit: bool) -> None:
    """Else its owner may die before it commits, and another application starts at a later end, past unread records."""
    group, driver = world(records=100, starting=parse_starting_offsets("latest" if explicit else "committed"))
    group.commit_fate = lambda: "lost"
    assert not driver.trigger()
    group.commit_fate = lambda: "ok"
    assert driver.trigger()
    assert group.committed_now == {P0: 100}
    group.produce(P0, 5)
    driver.drain()
    assert driver.rows == {P0: [(100, 105)]}


def test_an_added_partition_is_read_from_earliest_and_moves_no_other_partition(world: World) -> None:
    group, driver = world(records=10, starting=parse_starting_offsets("latest"))
    driver.drain()
    added = group.add_partition("t")
    group.produce(added, 7)
    group.move(added, "seat-0")
    driver.drain()
    assert driver.rows == {added: [(0, 7)]}


def test_a_recreated_topic_is_read_from_its_beginning(world: World) -> None:
    """The old positions are ahead of, within, or equal to the new topic's offsets: none of them applies."""
    group, driver = world(partitions=2, records=100, fail_on_data_loss=False)
    driver.drain()
    group.create_topic("t", 2)
    group.produce(P0, 10)
    group.produce(P1, 100)
    group.now_ms += METADATA_MAX_AGE_MS + 1
    driver.drain()
    assert driver.rows == {P0: [(0, 100), (0, 10)], P1: [(0, 100), (0, 100)]}
    assert group.committed_now == {P0: 10, P1: 100}


def test_a_topic_recreated_while_we_did_not_look_is_read_from_its_beginning(world: World) -> None:
    """Our commit for the old topic lands on the new one before metadata shows that it is another."""
    group, driver = world(records=100, fail_on_data_loss=False)
    driver.trigger()
    group.create_topic("t", 1)
    group.produce(P0, 10)
    group.rewinds = {P0}
    driver.trigger()
    group.now_ms += METADATA_MAX_AGE_MS + 1
    driver.drain()
    assert driver.rows == {P0: [(0, 100), (0, 10)]}
    assert group.committed_now == {P0: 10}


def test_a_recreated_topic_is_read_from_where_another_application_has_left_it(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The checkpoint has the old topic's id, the committed metadata the new one's: its rows are not read twice."""
    group, driver = world(records=100, fail_on_data_loss=False)
    driver.drain()
    group.create_topic("t", 1)
    group.produce(P0, 50)
    text = Author(app="another", run=1).encode(str(group.topics_now["t"].topic_id))
    group.committed_now = {P0: 30}
    monkeypatch.setattr(group, "note_beside", lambda _: text)
    group.now_ms += METADATA_MAX_AGE_MS + 1
    driver.drain()
    assert driver.rows == {P0: [(0, 100), (30, 50)]}
    assert group.committed_now == {P0: 50}


def test_an_adoption_at_the_committed_offset_commits_no_offset(world: World) -> None:
    group, driver = world(partitions=2, records=100)
    group.committed_now = {P0: 80, P1: 0}
    driver.trigger()
    assert group.commits == []
    driver.drain()
    assert driver.rows == {P0: [(80, 100)], P1: [(0, 100)]}


def test_an_offset_that_the_group_has_forgotten_is_committed_again(world: World) -> None:
    """Offsets expire (offsets.retention.minutes), and administrators delete them."""
    group, driver = world(records=10)
    driver.drain()
    driver.restart()
    group.committed_now.clear()
    driver.drain()
    assert group.committed_now == {P0: 10}
    assert driver.rows == {P0: [(0, 10)]}


def test_the_log_says_where_each_adopted_partition_starts(world: World, caplog: pytest.LogCaptureFixture) -> None:
    group, driver = world(partitions=2, records=100)
    group.committed_now = {P1: 80}
    with caplog.at_level("INFO"):
        driver.trigger()
    assert messages(caplog, "adopted") == ["adopted t-0 from 0, t-1 from 80"]


def test_a_start_at_the_end_is_before_the_records_that_an_open_transaction_holds_back(world: World) -> None:
    group, driver = world(records=10, starting=parse_starting_offsets("latest"), read_committed=True)
    group.stable = {P0: 6}
    driver.trigger()
    assert group.committed_now == {P0: 6}
    del group.stable[P0]
    driver.drain()
    assert driver.rows == {P0: [(6, 10)]}


def test_where_a_log_begins_is_looked_up_once_for_a_start_at_the_earliest_offset(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    group, driver = world(partitions=2, records=10)
    listed: list[object] = []
    ranges = group.logs.ranges
    monkeypatch.setattr(
        group.logs, "ranges", lambda tps, *given, **more: listed.append(tps) or ranges(tps, *given, **more)
    )
    driver.ask()
    driver.ask()
    assert driver.boundary.logs.listed_ends == {P0: 10, P1: 10}
    assert listed == []


def test_a_new_partition_that_the_leader_saw_before_us_is_adopted_in_the_boundary_in_which_it_arrives(
    world: World,
) -> None:
    group, driver = world(records=10)
    driver.drain()
    driver.ask()
    added = group.add_partition("t")
    group.target[added] = "seat-0"
    group.rebalance()
    assert elapsed_ms(group, driver.trigger) < END_OFFSETS_MAX_AGE_MS, "topics were seen a moment ago"
    assert set(driver.durable.owned) == {P0, added}
