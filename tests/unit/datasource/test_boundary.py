"""The boundary against a model of the group: the sequences that matter, each by name (design section 7)."""

from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import replace
from itertools import pairwise

import pytest
from harness.fake_driver import Crash, Driver, StartingOffsets, dumps
from harness.fake_group import OTHER, FakeGroup

from pyspark_kgroup import ledger as ledger_module
from pyspark_kgroup.boundary import Boundary
from pyspark_kgroup.ledger import Ledger
from pyspark_kgroup.logs import Logs
from spark_kgroup.errors import BrokerError, Disconnected, GroupUnsettled, RequestTimedOut
from spark_kgroup.limits import COMMIT_TIMEOUT_MS, END_OFFSETS_MAX_AGE_MS, METADATA_MAX_AGE_MS, SETTLE_TIMEOUT_MS
from spark_kgroup.model import ErrorCode, TopicPartition
from spark_kgroup.wire.commit_metadata import Author

P0, P1 = (TopicPartition("t", index) for index in range(2))
LATEST = -1

World = Callable[..., tuple[FakeGroup, Driver]]


# ------------------------------------------------------------------------------------------------ the order


def test_commits_only_what_is_durable_and_reaches_lag_zero(world: World) -> None:
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


def test_nothing_new_is_the_same_bytes_and_commits_nothing(world: World) -> None:
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


def test_end_offsets_serve_idle_triggers_for_a_short_time_only(world: World) -> None:
    group, driver = world(records=10)
    driver.drain()
    group.produce(P0, 5)
    assert not driver.trigger()
    group.now_ms += END_OFFSETS_MAX_AGE_MS + 1
    assert driver.trigger()


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


def test_read_committed_stops_before_an_open_transaction(world: World) -> None:
    group, driver = world(records=10, read_committed=True)
    group.stable = {P0: 6}
    driver.drain()
    assert driver.rows == {P0: [(0, 6)]}
    del group.stable[P0]
    driver.drain()
    assert driver.rows == {P0: [(0, 6), (6, 10)]}


def test_commits_before_anything_that_can_fail(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    group, driver = world(records=10)
    driver.trigger()

    def unreachable(_: int) -> None:
        raise Disconnected("metadata")

    monkeypatch.setattr(group, "topics", unreachable)
    with pytest.raises(Disconnected):
        driver.trigger()
    assert group.committed_now == {P0: 10}


def test_a_restart_commits_what_the_last_run_left_at_its_first_boundary(world: World) -> None:
    """An AvailableNow run that finds nothing new ends after one boundary."""
    group, driver = world(records=10)
    driver.trigger()
    driver.restart()
    assert not driver.trigger()
    assert group.committed_now == {P0: 10}


def test_the_first_batch_waits_for_all_seats(world: World, caplog: pytest.LogCaptureFixture) -> None:
    group, driver = world(partitions=2, seats=2, records=10)
    late = group.seats["seat-1"]
    late.identity, late.tenures = replace(late.identity, generation=-1), {}
    assert not driver.trigger()
    assert "did not come to rest" in caplog.text
    assert "Another member may be holding the rebalance up" in caplog.text
    late.trouble = "broker-1:9092: no file descriptor is left for it (ulimit -n)."
    assert not driver.trigger()
    assert "Seat seat-1 is not connected: broker-1:9092: no file descriptor is left" in caplog.messages[-1]
    late.trouble = None
    group.rebalance()
    driver.trigger()
    assert set(driver.durable.owned) == {P0, P1}


# ------------------------------------------------------------------------------------------- giving up


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
        group.commit_fate = lambda fate=fate: fate
        driver.trigger()
        assert P0 in group.seats["seat-0"].tenures
        assert P0 not in group.other
    group.commit_fate = lambda: "ok"
    driver.trigger()
    assert group.other == {P0: 10}


def test_what_was_never_adopted_is_given_up_at_once(world: World) -> None:
    group, driver = world(partitions=2, seats=1, records=10)
    group.move(P1, OTHER)
    driver.drain()
    assert group.other == {P1: 0}
    assert driver.rows == {P0: [(0, 10)]}


def test_a_seat_is_told_once_to_give_up(world: World) -> None:
    """1. giving up is a message; 2. the next look may come before it is taken and shows the old state."""
    group, driver = world(partitions=3, seats=2, records=10)
    driver.drain()
    group.spread([OTHER, "seat-1", "seat-0"])
    driver.drain()  # the model raises Violation if told twice
    assert set(group.other) == {P0}


def test_durable_positions_are_committed_before_giving_up_what_this_process_never_adopted(world: World) -> None:
    """1. the driver dies before the boundary that commits 10; 2. it comes back and its seat still holds P;
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


def test_a_commit_that_fails_before_giving_up_keeps_what_was_never_adopted(world: World) -> None:
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
    assert driver.durable.released == {P0: 10}
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


# ------------------------------------------------------- giving up what another application reads already


@pytest.fixture
def taken(world: World) -> tuple[FakeGroup, Driver]:
    """1. ours has read P to 10, which is not committed; 2. a generation asks it back, for a classic neighbour; 3. a
    consumer-protocol neighbour joins, brokers convert the group, and P is its own at once, from 0."""
    group, driver = world(records=10)
    driver.trigger()
    group.move(P0, OTHER)
    group.convert(P0)
    group.produce(P0, 20)
    return group, driver


@pytest.mark.parametrize("read", [0, 4, 25], ids=["has just begun", "is behind us", "is ahead of us"])
def test_a_partition_that_another_application_reads_already_is_given_up_without_a_commit(
    taken: tuple[FakeGroup, Driver], read: int, caplog: pytest.LogCaptureFixture
) -> None:
    group, driver = taken
    group.other_reads(P0, read)
    driver.trigger()
    assert group.committed_now == {P0: read}
    assert P0 not in group.seats["seat-0"].tenures
    assert "t-0 to another application" in caplog.text
    assert "may be delivered twice" in caplog.text
    assert driver.durable.released == {P0: 10}
    # Back with us, nothing is read twice by us, and nothing is skipped.
    group.move(P0, "seat-0")
    group.other_gives_up()
    driver.drain()
    assert driver.rows == {P0: [(0, 10), (max(read, 10), 30)]}
    assert group.committed_now == {P0: 30}


def test_a_partition_whose_new_owner_was_asked_for_it_in_turn_is_given_up_without_a_commit(
    taken: tuple[FakeGroup, Driver],
) -> None:
    group, driver = taken
    group.other_reads(P0, 25)
    del group.assigned[P0]  # a group of type consumer does not tell what it has asked back
    driver.trigger()
    assert group.committed_now == {P0: 25}
    assert P0 not in group.seats["seat-0"].tenures


@pytest.mark.parametrize("silent", ["describe", "committed"])
def test_a_partition_stays_uncommitted_and_ours_while_nobody_says_who_reads_it(
    taken: tuple[FakeGroup, Driver], silent: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    group, driver = taken
    group.other_reads(P0, 25)
    group.bounds_ms.clear()

    def unanswered(asked: Collection[TopicPartition] | int, *_: object) -> dict[TopicPartition, None]:
        if asked:
            raise RequestTimedOut("The cluster did not answer.")
        return {}  # who asks for nothing needs no answer

    with monkeypatch.context() as broken:
        broken.setattr(group, silent, unanswered)
        driver.trigger()
        assert group.committed_now == {P0: 25}
        assert P0 in group.seats["seat-0"].tenures
        assert driver.rows == {P0: [(0, 10)]}, "it does not go on"
    driver.trigger()
    assert set(group.bounds_ms) == {COMMIT_TIMEOUT_MS}, "no boundary waits for longer than for a commit"
    assert group.committed_now == {P0: 25}
    assert P0 not in group.seats["seat-0"].tenures


@pytest.mark.parametrize("texts", [True, False], ids=["with its text", "without a text beside it"])
def test_a_commit_of_ours_that_was_not_heard_of_is_taken_for_nobody_elses(
    world: World, texts: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """A broker may allow no text beside an offset (offset.metadata.max.bytes)."""
    group, driver = world(records=10)
    driver.trigger()
    group.move(P0, OTHER)
    group.commit_fate = lambda: "unheard"
    driver.trigger()
    assert group.committed_now == {P0: 10}
    assert P0 in group.seats["seat-0"].tenures
    if not texts:
        group._notes.clear()
    group.commit_fate = lambda: "ok"
    driver.trigger()
    assert group.other == {P0: 10}
    assert driver.durable.given_up == {P0: 10}
    assert "another application" not in caplog.text


def test_committed_offsets_decide_in_a_group_that_this_user_may_not_see(
    taken: tuple[FakeGroup, Driver], monkeypatch: pytest.MonkeyPatch
) -> None:
    group, driver = taken
    group.other_reads(P0, 25)

    def hidden(*_: object) -> None:
        raise BrokerError("ConsumerGroupDescribe", ErrorCode.TOPIC_AUTHORIZATION_FAILED)

    monkeypatch.setattr(group, "describe", hidden)
    driver.trigger()
    assert group.committed_now == {P0: 25}
    assert P0 not in group.seats["seat-0"].tenures


def test_nobody_is_asked_who_reads_what_while_nothing_is_to_be_given_up(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    group, driver = world(records=10)
    driver.drain()
    asked: list[str] = []
    for call in ("describe", "committed"):
        monkeypatch.setattr(group, call, lambda *_, call=call: asked.append(call))
    group.produce(P0, 5)
    driver.drain()
    assert group.committed_now == {P0: 15}
    assert asked == []


# ------------------------------------------------------------------------------------------------ losing


def test_what_was_lost_and_comes_back_is_not_read_twice(world: World) -> None:
    group, driver = world(records=10)
    driver.trigger()
    group.target = {}
    group.expel("seat-0")
    group.notice("seat-0")
    driver.trigger()
    assert driver.durable.released == {P0: 10}
    assert not driver.durable.owned
    group.produce(P0, 5)
    group.move(P0, "seat-0")
    driver.drain()
    assert driver.rows == {P0: [(0, 10), (10, 15)]}
    assert group.committed_now == {P0: 15}


def lost_before_its_commit(group: FakeGroup, driver: Driver) -> None:
    """0..10 is done, the group does not know, and the seat is back in a later generation; 10..15 is there to read."""
    driver.trigger()
    group.target = {}
    group.expel("seat-0")
    group.notice("seat-0")
    driver.trigger()
    group.produce(P0, 5)
    group.now_ms += END_OFFSETS_MAX_AGE_MS + 1
    group.move(P0, "seat-0")


def test_what_an_earlier_period_read_is_told_when_it_is_adopted_and_goes_on_at_once(world: World) -> None:
    group, driver = world(records=10)
    lost_before_its_commit(group, driver)
    driver.trigger()
    assert group.commits[1:] == [("seat-0", {P0: 10})]
    assert driver.rows == {P0: [(0, 10), (10, 15)]}


def test_what_an_earlier_period_read_does_not_go_on_before_the_group_knows_it(world: World) -> None:
    group, driver = world(records=10)
    lost_before_its_commit(group, driver)
    group.commit_fate = lambda: "lost"
    driver.trigger()
    assert not driver.trigger()
    assert driver.rows == {P0: [(0, 10)]}
    group.commit_fate = lambda: "ok"
    driver.drain()
    assert driver.rows == {P0: [(0, 10), (10, 15)]}


def test_what_others_read_meanwhile_is_not_read_again(world: World) -> None:
    group, driver = world(records=10)
    driver.trigger()
    driver.trigger()
    group.expel("seat-0")
    group.move(P0, OTHER)
    group.notice("seat-0")
    group.produce(P0, 10)
    driver.trigger()
    group.other_reads(P0, 7)
    group.move(P0, "seat-0")
    group.other_gives_up()
    driver.drain()
    assert driver.rows == {P0: [(0, 10), (17, 20)]}


@pytest.mark.parametrize(("old", "new"), [("seat-0", "seat-1"), ("seat-1", "seat-0")])
def test_a_seat_that_does_not_know_it_was_expelled_gives_way_to_the_real_owner(
    world: World, old: str, new: str
) -> None:
    group, driver = world(seats=2, records=10)
    group.move(P0, old)
    driver.drain()
    group.expel(old)
    group.move(P0, new)
    group.produce(P0, 5)
    group.now_ms += END_OFFSETS_MAX_AGE_MS + 1
    driver.trigger()
    assert driver.durable.owned[P0].period.seat == new
    driver.drain()
    assert group.committed_now == {P0: 15}
    assert driver.rows == {P0: [(0, 10), (10, 15)]}


def test_an_orphan_is_committed_and_gets_an_owner(world: World) -> None:
    """1. a sync revokes P; 2. the driver dies before the boundary; 3. its seat comes back without P, claiming nothing
    (an eager one).
    """
    group, driver = world(records=10)
    driver.trigger()
    group.move(P0, OTHER)
    group.restart({})
    driver.start()
    assert P0 not in group.seats["seat-0"].tenures
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


def test_what_a_neighbour_still_reads_is_no_orphan(world: World) -> None:
    """1. we read P up to 10, and lose it before the commit; 2. a neighbour reads it again from 0; 3. a rebalance asks
    for it, and P is withheld until the neighbour's batch ends; 4. our driver restarts. P must not be touched from here.
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


def test_a_rejoin_forces_one_rebalance_only(world: World) -> None:
    """Even if no assignor gives the partition to anybody."""
    group, driver = world(partitions=2, records=10)
    del group.target[P1]
    group.rebalance()
    for _ in range(5):
        group.now_ms += 2_000
        driver.trigger()
    assert len(group.forced) == 1


def test_the_look_for_orphans_waits_until_the_group_is_stable(world: World) -> None:
    group, driver = world(records=10)
    group.target[group.add_partition("t")] = "seat-0"
    group.state = "PreparingRebalance"
    driver.trigger()
    assert not group.forced
    group.state = "Stable"
    group.now_ms += 2_000
    driver.drain()
    assert len(group.forced) == 1
    assert set(driver.durable.owned) == {P0, P1}


def test_nobody_looks_for_orphans_in_a_group_of_type_consumer(world: World) -> None:
    """Its coordinator itself sees to new partitions, and a member that leads is none of its notions."""
    group, driver = world(records=10)
    group.target[group.add_partition("t")] = "seat-0"
    group.state, group.group_type = "Reconciling", "consumer"
    driver.trigger()
    group.state = "Stable"
    group.now_ms += 2_000
    driver.drain()
    assert not group.forced


# ------------------------------------------------------------------------------ where adoption starts


@pytest.mark.parametrize("crash", ["unplanned", "unread", "uncommitted"])
def test_an_explicit_start_survives_a_crash_in_the_first_batch(world: World, crash: str) -> None:
    """1. the group stands at 80; 2. a fresh checkpoint says earliest; 3. the first batch dies. Nothing is skipped."""
    group, driver = world(records=100, starting=StartingOffsets(committed=False))
    group.committed_now = {P0: 80}
    group.rewinds = {P0}
    with pytest.raises(Crash):
        driver.trigger(limit=30, crash=crash)
    driver.restart()
    driver.drain()
    spans = driver.rows[P0]
    assert (spans[0][0], spans[-1][1], sum(b - a for a, b in spans)) == (0, 100, 100)
    assert group.committed_now == {P0: 100}


def test_an_explicit_start_waits_until_the_group_knows_it(world: World) -> None:
    group, driver = world(partitions=2, seats=2, records=100, starting=StartingOffsets(committed=False))
    group.committed_now = {P0: 80, P1: 80}
    group.rewinds = {P0, P1}
    fates = iter(["ok", "lost"])
    group.commit_fate = lambda: next(fates)
    assert not driver.trigger()
    group.commit_fate = lambda: "ok"
    driver.drain()
    assert {tp: spans[0][0] for tp, spans in driver.rows.items()} == {P0: 0, P1: 0}


def test_committed_offsets_win_over_an_explicit_start_if_others_work_in_the_group(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    group, driver = world(partitions=2, records=100, starting=StartingOffsets(committed=False))
    group.committed_now = {P0: 80}
    group.move(P1, OTHER)
    driver.drain()
    assert driver.rows == {P0: [(80, 100)]}
    assert "startingOffsets" in caplog.text
    assert OTHER in caplog.text


@pytest.mark.parametrize("explicit", [False, True])
def test_a_start_at_the_end_is_committed_before_a_batch_relies_on_it(world: World, explicit: bool) -> None:
    """Else its owner may die before it commits, and another application that starts at the end goes on behind."""
    group, driver = world(records=100, starting=StartingOffsets(committed=not explicit, place=LATEST))
    group.commit_fate = lambda: "lost"
    assert not driver.trigger()
    group.commit_fate = lambda: "ok"
    assert driver.trigger()
    assert group.committed_now == {P0: 100}
    group.produce(P0, 5)
    driver.drain()
    assert driver.rows == {P0: [(100, 105)]}


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


def test_available_now_waits_for_the_group_to_know_where_it_starts(world: World) -> None:
    group, driver = world(records=10)
    driver.boundary.freeze()
    until = group.now_ms + 20_000
    group.commit_fate = lambda: "ok" if group.now_ms > until else "lost"
    assert driver.trigger()
    assert driver.rows == {P0: [(0, 10)]}


def test_available_now_fails_rather_than_start_without_the_groups_word(world: World) -> None:
    group, driver = world(records=10)
    driver.boundary.freeze()
    group.commit_fate = lambda: "lost"
    began = group.now_ms
    with pytest.raises(GroupUnsettled, match="did not acknowledge where to start with t-0"):
        driver.trigger()
    assert group.now_ms - began <= SETTLE_TIMEOUT_MS + 10_000


def set_back(group: FakeGroup, driver: Driver, batches: int) -> None:
    """The query is down; checkpoint and sink are restored to an earlier batch."""
    group.die()
    group.checkpoint_set_back = True
    driver.set_back(batches)


@pytest.mark.parametrize("batches", [1, 2, 3])
def test_a_checkpoint_that_was_set_back_goes_on_from_where_it_stands(
    world: World, batches: int, caplog: pytest.LogCaptureFixture
) -> None:
    group, driver = world(partitions=2, records=150)
    for _ in range(3):
        driver.trigger(limit=100)
    driver.drain()
    set_back(group, driver, batches)
    driver.restart()
    group.commit_fate = lambda: "lost"
    driver.ask()
    group.commit_fate = lambda: "ok"
    driver.ask()
    assert group.committed_now == dict.fromkeys((P0, P1), batches * 50)
    driver.drain()
    assert {tp: (spans[0][0], spans[-1][1], len(spans)) for tp, spans in driver.rows.items()} == dict.fromkeys(
        (P0, P1), (0, 150, min(batches + 1, 3))
    )
    assert group.committed_now == {P0: 150, P1: 150}
    told = f"t-0: group 150, checkpoint {batches * 50}"
    assert [told in record.message for record in caplog.records if "was set back" in record.message] == (
        [True] if batches < 3 else []
    )


def test_what_another_application_went_on_with_is_not_read_again_by_a_checkpoint_that_was_set_back(
    world: World,
) -> None:
    group, driver = world(records=100)
    driver.trigger(limit=40)
    driver.trigger(limit=40)
    driver.trigger(limit=0)
    set_back(group, driver, 1)
    group.committed_now[P0] = 90
    driver.restart()
    driver.drain()
    assert driver.rows == {P0: [(0, 40), (90, 100)]}


def test_what_a_checkpoint_that_was_set_back_does_not_know_goes_to_the_next_owner(world: World) -> None:
    """Its seat is asked for the partition before it is adopted again."""
    group, driver = world(records=100)
    driver.trigger(limit=40)
    driver.drain()
    set_back(group, driver, 1)
    driver.restart()
    group.move(P0, OTHER)
    driver.drain()
    assert group.other == {P0: 40}


def test_what_was_given_up_before_a_checkpoint_was_set_back_is_read_again_from_there(world: World) -> None:
    group, driver = world(partitions=2, records=10)
    driver.trigger()
    group.move(P1, OTHER)
    driver.drain()
    assert driver.durable.given_up == {P1: 10}
    before = driver.batches_done
    group.move(P1, "seat-0")
    group.other_gives_up()
    group.produce(P1, 5)
    driver.drain()
    assert driver.durable.given_up == {}
    set_back(group, driver, before)
    driver.restart()
    driver.drain()
    assert driver.rows == {P0: [(0, 10)], P1: [(0, 10), (10, 15)]}


def test_a_leftover_of_an_earlier_run_overrules_nothing(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """1. a run is held up in its first boundary; 2. the query is started again, and reads on; 3. the first run goes on,
    takes the seat, and would start where it was told: at the end."""
    group, driver = world(records=100)
    group.author = Author(app="seat", run_ms=2)
    driver.drain()
    group.produce(P0, 1_000)
    leftover = Driver(group, StartingOffsets(committed=False, place=LATEST))
    leftover.boundary = Boundary(group, leftover.options, run_ms=1)
    assert leftover.ask().owned[P0].period.start == 100
    assert group.committed_now == {P0: 100}
    assert "was started again meanwhile" in caplog.text
    driver.restart()
    driver.drain()
    assert driver.rows == {P0: [(0, 100), (100, 1_100)]}


def test_a_second_checkpoint_of_the_same_application_makes_the_first_one_skip_nothing(world: World) -> None:
    group, driver = world(records=30)
    driver.drain()
    group.produce(P0, 80)
    second = Driver(group, StartingOffsets(committed=False, place=LATEST))
    second.drain()
    assert group.committed_now == {P0: 110}
    group.checkpoint_set_back = True
    driver.restart()
    driver.drain()
    assert driver.rows == {P0: [(0, 30), (30, 110)]}


def test_a_committed_offset_that_was_moved_back_is_ignored_with_a_warning(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    group, driver = world(records=10)
    driver.drain()
    group.committed_now[P0] = 0
    driver.restart()
    driver.drain()
    assert driver.rows == {P0: [(0, 10)]}
    assert group.committed_now == {P0: 10}
    told = [record.message for record in caplog.records if "behind the checkpoint" in record.message]
    assert len(told) == 1
    assert "t-0: group 0, checkpoint 10" in told[0]
    assert "startingOffsets=committed" in told[0]


def test_an_added_partition_is_read_from_earliest_and_moves_nothing(world: World) -> None:
    group, driver = world(records=10, starting=StartingOffsets(committed=False, place=LATEST))
    driver.drain()
    added = group.add_partition("t")
    group.produce(added, 7)
    group.move(added, "seat-0")
    driver.drain()
    assert driver.rows == {added: [(0, 7)]}


def test_a_recreated_topic_is_read_from_its_beginning(world: World) -> None:
    """The old positions are ahead of, within, or equal to what the new topic has: none of them applies."""
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


def test_a_limit_below_the_number_of_partitions_starves_nobody(world: World) -> None:
    group, driver = world(partitions=6, records=1)
    group.produce(P0, 1_000)
    group.produce(P1, 1_000)
    for _ in range(3):
        group.now_ms += END_OFFSETS_MAX_AGE_MS + 1
        assert driver.trigger(limit=2)
    assert len(driver.rows) == 6


def test_an_idle_boundary_looks_at_each_partition_a_few_times_only(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Linear, and with small factors: 10,000 partitions are looked at between two batches of 100 ms."""
    group, driver = world(partitions=500, seats=5, records=1)
    driver.drain()
    asked = Counter[str]()
    for owner, name in ((Ledger, "position"), (Logs, "_ends"), (ledger_module, "topic_key")):
        monkeypatch.setattr(owner, name, counted(getattr(owner, name), name, asked))
    listed: list[int] = []
    end_offsets, start_offsets = group.end_offsets, group.start_offsets
    monkeypatch.setattr(group, "end_offsets", lambda tps, **more: listed.append(len(tps)) or end_offsets(tps, **more))
    monkeypatch.setattr(group, "start_offsets", lambda tps: listed.append(len(tps)) or start_offsets(tps))
    group.now_ms += END_OFFSETS_MAX_AGE_MS + 1
    assert driver.ask() == driver.durable
    assert listed == [500, 0], "ends, and where logs begin that have more to read"
    assert asked == {"position": 2 * 500, "_ends": 2, "topic_key": 4}


def counted(function: Callable[..., object], name: str, calls: Counter[str]) -> Callable[..., object]:
    def call(*args: object) -> object:
        calls[name] += 1
        return function(*args)

    return call


# ---------------------------------------------------------------------------------------- AvailableNow


def test_frozen_end_offsets_bound_the_run_and_cover_what_arrives_later(world: World) -> None:
    group, driver = world(partitions=2, records=10)
    group.move(P1, OTHER)
    driver.boundary.freeze()
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
    driver.boundary.freeze()
    driver.drain()
    assert {tp: spans[-1][1] for tp, spans in driver.rows.items()} == {P0: 60, P1: 60, added: 5}
    assert group.committed_now == {P0: 60, P1: 60, added: 5}


def _unsettle(group: FakeGroup) -> None:
    """A seat that never comes to rest: the group asks for P0, and commits for it never get through."""
    group.move(P0, OTHER)
    group.commit_fate = lambda: "lost"


def test_a_group_that_does_not_settle_fails_available_now_within_the_bound(world: World) -> None:
    group, driver = world(records=10)
    driver.trigger()
    driver.restart()
    _unsettle(group)
    driver.boundary.freeze()
    began = group.now_ms
    with pytest.raises(GroupUnsettled, match="seat-0"):
        driver.trigger()
    assert group.now_ms - began <= SETTLE_TIMEOUT_MS + 5_000


# ------------------------------------------------------------------------- what a loss must not be taken for


def test_available_now_fails_rather_than_take_a_loss_for_the_end(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    group, driver = world(records=100)
    driver.boundary.freeze()
    driver.trigger(limit=10)
    # The coordinator forgot the seat; it knows, and its JoinGroup is parked behind somebody else's rebalance.
    seat = group.seats["seat-0"]
    group.assigned, seat.tenures = {}, {}
    seat.identity = replace(seat.identity, generation=-1)
    view_of = type(seat).view
    monkeypatch.setattr(type(seat), "view", lambda self: replace(view_of(self), settled=False))
    with pytest.raises(GroupUnsettled, match="seat-0"):
        driver.trigger(limit=10)


def test_a_refused_commit_plans_no_further_batch_of_what_is_lost(world: World) -> None:
    group, driver = world(records=100)
    driver.trigger(limit=10)
    group.expel("seat-0")
    group.move(P0, OTHER)
    driver.trigger(limit=10)  # the commit of 0..10 is refused in this very boundary
    assert driver.rows == {P0: [(0, 10)]}


# ------------------------------------------------------------- at most one batch that the group knows nothing of


def test_what_the_group_has_not_acknowledged_does_not_go_on(world: World) -> None:
    """Were it lost after a second batch, its next owner would read both again; the promise is at most one."""
    group, driver = world(partitions=2, records=100)
    driver.trigger(limit=20)
    group.commit_fate = lambda: "lost"
    for _ in range(3):
        assert not driver.trigger(limit=20)
    group.commit_fate = lambda: "ok"
    assert driver.trigger(limit=20)
    assert group.committed_now == {P0: 10, P1: 10}
    assert driver.rows == {P0: [(0, 10), (10, 20)], P1: [(0, 10), (10, 20)]}


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


def test_available_now_waits_for_the_groups_word_and_reads_all(world: World) -> None:
    group, driver = world(records=100)
    driver.boundary.freeze()
    driver.trigger(limit=60)
    until = group.now_ms + 20_000
    group.commit_fate = lambda: "ok" if group.now_ms > until else "lost"
    assert driver.trigger(limit=60)
    assert driver.rows == {P0: [(0, 60), (60, 100)]}


def test_available_now_fails_rather_than_end_without_the_groups_word(world: World) -> None:
    group, driver = world(records=100)
    driver.boundary.freeze()
    driver.trigger(limit=60)
    group.commit_fate = lambda: "lost"
    began = group.now_ms
    with pytest.raises(GroupUnsettled, match=r"what was read of t-0 \(COORDINATOR_NOT_AVAILABLE\)\."):
        driver.trigger(limit=60)
    assert group.now_ms - began <= SETTLE_TIMEOUT_MS + 10_000


# ------------------------------------------------------------------------------------------- what is inherited


def dies_in_a_batch(group: FakeGroup, driver: Driver) -> None:
    with pytest.raises(Crash):
        driver.trigger(crash="unread")
    group.die()


def test_what_an_unfinished_batch_reads_goes_to_nobody_before_it_is_done(world: World) -> None:
    """1. the driver dies in a batch; 2. the group rebalances; 3. the driver comes back, and reads the batch again."""
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


def test_what_is_inherited_and_assigned_anew_is_read_on(world: World) -> None:
    group, driver = world(records=10)
    dies_in_a_batch(group, driver)
    group.rebalance()
    driver.restart()
    group.produce(P0, 5)
    driver.drain()
    assert driver.rows == {P0: [(0, 10), (10, 15)]}


def test_what_is_inherited_and_has_another_owner_by_now_gets_no_word_from_us(world: World) -> None:
    """1. a boundary hands P over; 2. the driver dies before that boundary's batch is planned."""
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


def test_what_is_inherited_waits_until_the_group_knows_its_owners(world: World) -> None:
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


def test_what_is_inherited_is_given_up_while_a_group_of_type_consumer_waits_for_just_that(world: World) -> None:
    group, driver = world(records=10)
    driver.trigger()
    group.die()
    group.move(P0, OTHER)
    driver.restart()
    group.state, group.group_type = "Reconciling", "consumer"
    driver.drain()
    assert group.other == {P0: 10}


def test_a_seat_gives_up_what_it_inherits_though_another_seat_has_it(world: World) -> None:
    group, driver = world(partitions=2, seats=2, records=10)
    driver.trigger()
    group.move(P0, "seat-1")
    driver.ask()
    assert P0 in group.seats["seat-1"].tenures
    driver.restart()
    group.state = "PreparingRebalance"
    driver.trigger()  # not at rest, and P0 is adopted through its new owner
    assert driver.durable.owned[P0].period.seat == "seat-1"
    group.state = "Stable"
    driver.drain()
    assert not any(seat.to_give_up for seat in group.seats.values())


def test_a_word_under_way_does_not_give_up_what_was_assigned_meanwhile(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1. P, inherited, is given up; 2. before the seat hears of it, P is assigned to it, and asked for again."""
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
    assert P0 in group.seats["seat-0"].tenures
