"""A partition that no leader answers for adds no records to a batch, and holds up no other partition."""

import re

import pytest
from harness.boundary import P0, P1, World, elapsed_ms, messages
from harness.fake_driver import Crash, Driver
from harness.fake_group import OTHER, FakeGroup

from pyspark_kgroup.errors import DataLoss
from pyspark_kgroup.limits import END_OFFSETS_MAX_AGE_MS, LEADER_PATIENCE_MS
from pyspark_kgroup.options.offset_bound import by_timestamp, parse_starting_offsets
from spark_kgroup.errors import RequestTimedOut
from spark_kgroup.model import TopicPartition

EARLIEST = parse_starting_offsets("earliest")
GONE, BACK = "No answer for", "Brokers answer for"


def lose_leader(group: FakeGroup, tp: TopicPartition = P1) -> None:
    group.out_of_reach[tp] = lambda: True
    later(group)


def later(group: FakeGroup, ms: int = END_OFFSETS_MAX_AGE_MS + 1) -> None:
    group.now_ms += ms


def produce_and_read(group: FakeGroup, driver: Driver, tp: TopicPartition = P0) -> None:
    """One batch with new records of a partition."""
    group.produce(tp, 5)
    later(group)
    assert driver.trigger()
    assert driver.durable.owned[tp].position == group.log[tp][1]


# ------------------------------------------------------------------------------------------------ a running query


def test_other_partitions_are_read_while_one_has_no_leader(world: World, caplog: pytest.LogCaptureFixture) -> None:
    group, driver = world(partitions=2, records=10)
    driver.drain()
    lose_leader(group)
    group.produce(P1, 7)
    for _ in range(3):
        produce_and_read(group, driver)
    assert driver.durable.owned[P1].position == 10
    (line,) = messages(caplog, GONE)
    assert "t-1" in line
    assert "LEADER_NOT_AVAILABLE" in line
    assert "300 s (kafka.default.api.timeout.ms)" in line
    del group.out_of_reach[P1]
    driver.drain()
    assert driver.rows[P1] == [(0, 10), (10, 17)]
    (line,) = messages(caplog, BACK)
    assert re.fullmatch(r"Brokers answer for t-1 again, after \d+ s\. Reading continues\.", line)


def test_only_the_first_boundary_waits_for_a_leader(world: World) -> None:
    group, driver = world(partitions=2, records=10)
    driver.drain()
    lose_leader(group)
    group.produce(P0, 1)
    assert LEADER_PATIENCE_MS <= elapsed_ms(group, driver.trigger) < 2 * LEADER_PATIENCE_MS
    for _ in range(20):
        group.produce(P0, 1)
        later(group)
        assert elapsed_ms(group, driver.trigger) < 100


def test_each_loss_and_return_is_told_once(world: World, caplog: pytest.LogCaptureFixture) -> None:
    group, driver = world(partitions=2, records=10)
    driver.drain()
    for times in (1, 2, 3):
        lose_leader(group)
        for _ in range(3):
            produce_and_read(group, driver)
        assert len(messages(caplog, GONE)) == times
        del group.out_of_reach[P1]
        driver.drain()
        assert len(messages(caplog, BACK)) == times


def test_a_query_fails_when_a_partition_had_no_leader_for_the_bound(world: World) -> None:
    group, driver = world(partitions=2, records=10)
    driver.drain()
    lose_leader(group)
    produce_and_read(group, driver)
    later(group, 280_000)
    produce_and_read(group, driver)
    later(group, 20_000)
    with pytest.raises(RequestTimedOut, match=r"t-1 for 300 s \(kafka\.default.+LEADER_NOT_AVAILABLE.+failOnDataLoss"):
        driver.trigger()


def test_without_losses_as_errors_a_query_goes_on_for_ever(world: World, caplog: pytest.LogCaptureFixture) -> None:
    group, driver = world(partitions=2, records=10, fail_on_data_loss=False)
    driver.drain()
    lose_leader(group)
    for _ in range(20):
        produce_and_read(group, driver)
        later(group, 60_000)
    (line,) = messages(caplog, GONE)
    assert "fails" not in line
    del group.out_of_reach[P1]
    group.produce(P1, 5)
    driver.drain()
    assert driver.rows[P1] == [(0, 10), (10, 15)]


def test_a_leader_that_answered_between_two_triggers_begins_anew(world: World) -> None:
    """Triggers are rare: a leader that was silent at two of them may have answered in between."""
    group, driver = world(partitions=2, records=10)
    driver.drain()
    lose_leader(group)
    produce_and_read(group, driver)
    later(group, 100_000)
    del group.out_of_reach[P1]
    driver.boundary.logs._ends._collect()  # as the runtime hears its answer
    lose_leader(group)
    later(group, 250_000)
    for _ in range(2):
        produce_and_read(group, driver)


def test_a_partition_is_not_called_overdue_without_being_asked_once_more(world: World) -> None:
    group, driver = world(partitions=2, records=10)
    driver.drain()
    lose_leader(group)
    produce_and_read(group, driver)
    later(group, 3_600_000)
    del group.out_of_reach[P1]
    produce_and_read(group, driver)


def test_a_restarted_query_waits_as_long_again(world: World) -> None:
    group, driver = world(partitions=2, records=10)
    driver.drain()
    lose_leader(group)
    produce_and_read(group, driver)
    later(group, 290_000)
    driver.restart()
    for _ in range(2):
        group.produce(P0, 5)
        driver.trigger()
        later(group, 100_000)
    assert driver.durable.owned[P0].position > 15
    del group.out_of_reach[P1]
    group.produce(P1, 5)
    driver.drain()
    assert driver.rows[P1] == [(0, 10), (10, 15)]


def test_idle_triggers_ask_brokers_for_end_offsets_alone_without_a_leader(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    group, driver = world(partitions=2, records=10)
    driver.drain()
    lose_leader(group)
    produce_and_read(group, driver)
    for _ in range(3):
        later(group)
        assert not driver.trigger()
    asked: list[str] = []
    of_logs = [(group.logs, name) for name in ("starts", "ranges")]
    for owner, name in (*of_logs, *((group, name) for name in ("committed", "commit", "describe"))):
        monkeypatch.setattr(owner, name, lambda *_, name=name, **__: asked.append(name))
    for _ in range(10):
        later(group)
        assert not driver.trigger()
    assert asked == []
    monkeypatch.undo()
    del group.out_of_reach[P1]
    group.produce(P1, 3)
    later(group)
    assert driver.trigger(), "the rest is over"


def test_a_partition_without_a_leader_is_handed_over_like_any_other(world: World) -> None:
    group, driver = world(partitions=2, records=10)
    driver.drain()
    lose_leader(group)
    produce_and_read(group, driver)
    group.move(P1, OTHER)
    driver.drain()
    assert P1 in group.other
    assert group.committed_now[P1] == 10
    later(group, 400_000)
    produce_and_read(group, driver)


def test_where_a_leader_answers_some_questions_only_its_partition_waits(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    group, driver = world(partitions=2, records=10)
    driver.drain()
    starts = group.logs.starts

    def silent(tps: list[TopicPartition], patience_ms: int) -> object:
        group.out_of_reach[P1] = lambda: True
        try:
            return starts(tps, patience_ms)
        finally:
            del group.out_of_reach[P1]

    monkeypatch.setattr(group.logs, "starts", silent)
    group.produce(P1, 5)
    for _ in range(3):
        produce_and_read(group, driver)
    assert driver.durable.owned[P1].position == 10
    assert (len(messages(caplog, GONE)), len(messages(caplog, BACK))) == (1, 0)
    later(group, 300_000)
    group.produce(P0, 5)
    with pytest.raises(RequestTimedOut, match="t-1"):
        driver.trigger()


def test_a_log_that_was_cut_while_it_had_no_leader_is_noticed_when_it_is_back(world: World) -> None:
    group, driver = world(partitions=2, records=10)
    driver.drain()
    lose_leader(group)
    produce_and_read(group, driver)
    group.elect(P1)
    group.log[P1][1] = 6
    for _ in range(3):
        produce_and_read(group, driver)
    del group.out_of_reach[P1]
    later(group)
    with pytest.raises(DataLoss, match="t-1"):
        driver.drain()


def test_an_older_end_of_another_partition_is_no_truncation_meanwhile(world: World) -> None:
    """A leader of the epoch in which we read may list less for a moment, also while another partition is away."""
    group, driver = world(partitions=2, records=10)
    driver.drain()
    lose_leader(group)
    produce_and_read(group, driver)
    group.elect(P0)
    produce_and_read(group, driver)
    end = group.log[P0][1]
    group.log[P0][1] = end - 3
    later(group)
    driver.trigger()
    group.log[P0][1] = end
    produce_and_read(group, driver)


# ------------------------------------------------------------------------------------------------------- a start


@pytest.mark.parametrize("committed", [None, 8])
@pytest.mark.parametrize("restarts", [False, True])
def test_a_partition_without_a_leader_at_the_start_begins_where_the_option_says(
    world: World, committed: int | None, restarts: bool
) -> None:
    group, driver = world(partitions=2, records=10, starting=EARLIEST)
    group.rewinds = {P0, P1}
    if committed is not None:
        group.committed_now = {P0: committed, P1: committed}
    lose_leader(group)
    driver.drain()
    assert driver.rows == {P0: [(0, 10)]}
    if restarts:
        driver.restart()
        driver.drain()
    del group.out_of_reach[P1]
    driver.drain()
    assert driver.rows == {P0: [(0, 10)], P1: [(0, 10)]}
    assert group.committed_now == {P0: 10, P1: 10}
    assert not driver.durable.unstarted


def test_without_an_explicit_start_it_begins_where_the_group_stands(world: World) -> None:
    group, driver = world(partitions=2, records=10)
    group.committed_now = {P0: 4, P1: 4}
    lose_leader(group)
    driver.drain()
    assert not driver.durable.unstarted
    del group.out_of_reach[P1]
    driver.drain()
    assert driver.rows == {P0: [(4, 10)], P1: [(4, 10)]}


def test_the_group_hears_how_far_a_partition_was_read_also_without_its_leader(world: World) -> None:
    """1. a batch is done, 2. the driver dies before it commits, 3. when it is back, the partition has no leader."""
    group, driver = world(partitions=2, records=10)
    assert driver.trigger()
    assert group.committed_now.get(P1, 0) == 0
    lose_leader(group)
    driver.restart()
    driver.trigger()
    assert group.committed_now == {P0: 10, P1: 10}
    assert driver.durable.owned.keys() == {P0, P1}
    group.produce(P1, 5)
    del group.out_of_reach[P1]
    driver.drain()
    assert driver.rows[P1] == [(0, 10), (10, 15)]


def test_a_log_that_begins_behind_where_the_group_stands_is_noticed_when_its_leader_is_back(world: World) -> None:
    group, driver = world(partitions=2, records=10)
    group.committed_now = {P0: 4, P1: 4}
    group.log[P1][0] = 7
    lose_leader(group)
    driver.drain()
    del group.out_of_reach[P1]
    later(group)
    with pytest.raises(DataLoss, match="Offsets 4 on of t-1"):
        driver.drain()


def test_a_start_at_the_end_is_told_once_for_each_partition(world: World, caplog: pytest.LogCaptureFixture) -> None:
    group, driver = world(partitions=2, records=10, starting=parse_starting_offsets("committed"))
    lose_leader(group)
    for _ in range(4):
        driver.trigger()
        later(group)
    del group.out_of_reach[P1]
    driver.drain()
    first, second = messages(caplog, "has no committed offsets for")
    assert "for t-0:" in first
    assert "for t-1:" in second


def test_a_start_waits_for_leaders_once(world: World) -> None:
    group, driver = world(partitions=2, records=10)
    lose_leader(group)
    assert elapsed_ms(group, driver.trigger) < 2 * LEADER_PATIENCE_MS
    for _ in range(5):
        later(group)
        assert elapsed_ms(group, driver.trigger) < 200


def test_a_query_of_which_no_partition_has_a_leader_waits_for_all_and_fails_within_the_bound(world: World) -> None:
    group, driver = world(partitions=2, records=10, starting=EARLIEST)
    lose_leader(group, P0)
    lose_leader(group, P1)
    driver.drain()
    assert driver.rows == {}
    assert driver.durable.unstarted == {P0, P1}
    later(group, 300_000)
    with pytest.raises(RequestTimedOut, match=r"t-0, t-1 for 300 s"):
        driver.trigger()


@pytest.mark.parametrize("crash", ["unplanned", "unread", "uncommitted"])
def test_a_driver_that_dies_meanwhile_reads_no_record_twice_and_skips_none(world: World, crash: str) -> None:
    group, driver = world(partitions=2, records=10, starting=EARLIEST)
    group.rewinds = {P0, P1}
    group.committed_now = {P0: 7, P1: 7}
    lose_leader(group)
    with pytest.raises(Crash):
        driver.trigger(crash=crash)
    driver.restart()
    driver.drain()
    del group.out_of_reach[P1]
    driver.drain()
    assert driver.rows[P0] == [(0, 10)] if crash != "unplanned" else True
    assert driver.rows[P1] == [(0, 10)]


# ----------------------------------------------------------------------------- committed offsets that are unstable


def test_an_open_transaction_with_the_groups_offsets_holds_up_its_partitions_alone(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    group, driver = world(partitions=2, records=10)
    group.committed_now = {P1: 4}
    group.unstable = {P1}
    assert elapsed_ms(group, driver.trigger) < 2 * LEADER_PATIENCE_MS
    for _ in range(3):
        group.produce(P0, 5)
        later(group)
        assert elapsed_ms(group, driver.trigger) < 100
    assert driver.rows[P0][-1][1] == 25
    (line,) = messages(caplog, GONE)
    assert "UNSTABLE_OFFSET_COMMIT: t-1" in line
    group.unstable.clear()
    driver.drain()
    assert driver.rows[P1] == [(4, 10)]
    assert len(messages(caplog, BACK)) == 1


def test_an_open_transaction_that_does_not_end_is_an_error_that_asks_to_end_it(world: World) -> None:
    group, driver = world(partitions=2, records=10)
    group.unstable = {P1}
    driver.trigger()
    later(group, 300_000)
    with pytest.raises(RequestTimedOut, match=r"t-1 for 300 s.+UNSTABLE_OFFSET_COMMIT.+End the transaction"):
        driver.trigger()


def test_a_partition_whose_committed_offset_is_unknown_is_not_handed_over(world: World) -> None:
    """1. a batch is done, 2. the driver dies, 3. when it is back, the group asks for the partition."""
    group, driver = world(partitions=2, records=10)
    assert driver.trigger()
    group.unstable = {P1}
    driver.restart()
    group.move(P1, OTHER)
    for _ in range(3):
        driver.trigger()
        later(group)
    assert P1 not in group.other
    group.unstable.clear()
    driver.drain()
    assert P1 in group.other
    assert group.committed_now[P1] == 10


@pytest.mark.parametrize("asked_back", [False, True], ids=["kept", "asked back"])
def test_a_partition_that_could_not_be_adopted_is_claimed_by_the_next_process_too(
    world: World, asked_back: bool
) -> None:
    """Else it goes to another member, which reads again the records that we read and did not commit."""
    group, driver = world(partitions=2, records=10)
    assert driver.trigger()
    group.unstable = {P1}
    driver.restart()
    if asked_back:
        group.move(P1, OTHER)
    group.produce(P0, 1)
    assert driver.trigger()
    group.target[P1] = OTHER
    driver.restart()
    group.rebalance()
    driver.trigger()
    assert P1 not in group.other
    group.unstable.clear()
    driver.drain()
    assert group.other == {P1: 10}


# ------------------------------------------------------------------------------------------------- AvailableNow


def test_available_now_does_not_end_before_a_leader_is_back(world: World) -> None:
    group, driver = world(partitions=2, records=10, bounded=True)
    until_ms = group.now_ms + 100_000
    group.out_of_reach[P1] = lambda: group.now_ms < until_ms
    while driver.trigger():
        pass
    assert driver.rows == {P0: [(0, 10)], P1: [(0, 10)]}
    assert until_ms <= group.now_ms < until_ms + 10_000


def test_available_now_reads_the_partitions_with_a_leader_first(world: World) -> None:
    group, driver = world(partitions=2, records=10, bounded=True)
    lose_leader(group)
    began_ms = group.now_ms
    assert driver.trigger()
    assert driver.rows == {P0: [(0, 10)]}
    assert group.now_ms - began_ms < 3 * LEADER_PATIENCE_MS


def test_available_now_fails_where_a_leader_does_not_come_back(world: World) -> None:
    group, driver = world(partitions=2, records=10, bounded=True)
    lose_leader(group)
    began_ms = group.now_ms
    assert driver.trigger(), "the other one"
    with pytest.raises(RequestTimedOut, match="t-1"):
        driver.trigger()
    assert 300_000 <= group.now_ms - began_ms < 320_000


def test_available_now_ends_without_it_and_says_so_where_losses_are_no_errors(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    group, driver = world(partitions=2, records=10, bounded=True, fail_on_data_loss=False)
    lose_leader(group)
    began_ms = group.now_ms
    while driver.trigger():
        pass
    assert group.now_ms - began_ms >= 300_000
    (line,) = messages(caplog, "This run ends without")
    assert "the rest of t-1, which could not be read for 300 s (kafka.default.api.timeout.ms)" in line
    del group.out_of_reach[P1]
    driver.restart(bounded=True)
    while driver.trigger():
        pass
    assert driver.rows == {P0: [(0, 10)], P1: [(0, 10)]}


def test_available_now_does_not_wait_for_a_partition_that_is_read_to_its_end(world: World) -> None:
    group, driver = world(partitions=2, records=10, bounded=True)
    assert driver.trigger()
    lose_leader(group)
    assert elapsed_ms(group, driver.trigger) < 2 * LEADER_PATIENCE_MS
    assert driver.rows == {P0: [(0, 10)], P1: [(0, 10)]}


def test_available_now_does_not_wait_for_partitions_of_other_members_but_reads_them_if_they_come(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    group, driver = world(partitions=2, records=10, bounded=True)
    group.move(P1, OTHER)
    lose_leader(group)
    began_ms = group.now_ms
    assert driver.trigger(limit=5)
    assert group.now_ms - began_ms < 3 * LEADER_PATIENCE_MS
    assert messages(caplog, GONE) == []
    del group.out_of_reach[P1]
    group.other_gives_up()
    group.move(P1, "seat-0")
    group.other_gives_up()
    while driver.trigger():
        pass
    assert driver.rows == {P0: [(0, 5), (5, 10)], P1: [(0, 10)]}


# -------------------------------------------------------------------------------------------- a stream with an end


def test_a_stream_does_not_end_before_a_partition_without_a_leader_is_read(world: World) -> None:
    group, driver = world(partitions=2, records=10, ending=by_timestamp("endingTimestamp")("5000"))
    lose_leader(group)
    driver.drain()
    assert driver.boundary.stops.ended is False
    del group.out_of_reach[P1]
    driver.drain()
    assert driver.boundary.stops.ended
    assert driver.rows == {P0: [(0, 5)], P1: [(0, 5)]}


def test_no_record_is_read_past_a_stop_that_no_leader_tells(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    group, driver = world(partitions=2, records=10, ending=by_timestamp("endingTimestamp")("5000"))
    at = group.logs.at

    def silent(timestamps: dict[TopicPartition, int], patience_ms: int, **more: bool) -> object:
        group.out_of_reach[P1] = lambda: True
        try:
            return at(timestamps, patience_ms, **more)
        finally:
            del group.out_of_reach[P1]

    monkeypatch.setattr(group.logs, "at", silent)
    driver.trigger()
    driver.trigger()
    assert driver.rows == {P0: [(0, 5)]}
    monkeypatch.undo()
    driver.drain()
    assert driver.rows == {P0: [(0, 5)], P1: [(0, 5)]}


# ------------------------------------------------------------------------------------------------ ten thousand


def test_of_many_partitions_a_warning_names_a_few(world: World, caplog: pytest.LogCaptureFixture) -> None:
    group, driver = world(partitions=500, records=1)
    driver.drain()
    for index in range(1, 500):
        group.out_of_reach[TopicPartition("t", index)] = lambda: True
    produce_and_read(group, driver)
    (line,) = messages(caplog, GONE)
    assert re.search(r"t-1, t-2, .+ and \d+ more", line)
    assert len(line) < 600
