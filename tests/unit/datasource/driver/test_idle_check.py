"""Idle triggers: their requests to brokers, and how soon each change is noticed nevertheless."""

from collections.abc import Callable

import pytest
from harness.boundary import P0, P1, World
from harness.fake_driver import Driver
from harness.fake_group import OTHER, WAIT_STEP_MS, FakeGroup

from pyspark_kgroup.errors import DataLoss
from pyspark_kgroup.limits import END_OFFSETS_MAX_AGE_MS, IDLE_TOPICS_MAX_AGE_MS
from spark_kgroup.model import TopicPartition

TRIGGER_MS = 200

P2 = TopicPartition("t", 2)


def idle_triggers(group: FakeGroup, driver: Driver, count: int) -> None:
    for _ in range(count):
        group.now_ms += TRIGGER_MS
        assert not driver.trigger()


def at_rest(world: World, **what: object) -> tuple[FakeGroup, Driver]:
    group, driver = world(**what)
    driver.drain()
    return group, driver


def create_anew(group: FakeGroup, records: int) -> None:
    group.delete_topic("t")
    group.create_topic("t", 1)
    group.produce(P0, records)
    group.target[P0] = "seat-0"
    group.rewinds = {P0}


def asked_between(group: FakeGroup, monkeypatch: pytest.MonkeyPatch, run: Callable[[], None]) -> set[str]:
    """The calls that asked brokers while `run` ran. A call for topics counts if it reached a broker."""
    asked = set()
    of_logs = [(group.logs, name) for name in ("ends", "starts", "ranges")]
    for owner, name in (*of_logs, *((group, name) for name in ("committed", "commit", "describe", "topics_named"))):
        call = getattr(owner, name)

        def noted(*args: object, name: str = name, call: Callable[..., object] = call, **more: object) -> object:
            asked.add(name)
            return call(*args, **more)

        monkeypatch.setattr(owner, name, noted)
    seen_at_ms = group.topics_seen_at_ms
    run()
    return asked | ({"topics"} if group.topics_seen_at_ms != seen_at_ms else set())


@pytest.mark.parametrize("read_committed", [False, True])
def test_idle_triggers_ask_brokers_for_end_offsets_alone(
    world: World, monkeypatch: pytest.MonkeyPatch, read_committed: bool
) -> None:
    group, driver = at_rest(world, partitions=2, seats=2, records=10, read_committed=read_committed)
    asked = asked_between(group, monkeypatch, lambda: idle_triggers(group, driver, 20))
    assert asked == {"ends"}


def test_an_open_transaction_that_holds_the_end_back_does_not_make_idle_triggers_ask_for_more(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    group, driver = world(records=10, read_committed=True)
    driver.drain()
    group.stable = {P0: 6}  # as after a change to read_committed: our position is beyond it
    idle_triggers(group, driver, 1)
    assert asked_between(group, monkeypatch, lambda: idle_triggers(group, driver, 20)) == {"ends"}


def test_topics_are_looked_at_between_the_listing_that_shows_a_move_and_the_plan(world: World) -> None:
    group, driver = at_rest(world, records=10)
    idle_triggers(group, driver, 20)
    assert group.now_ms - group.topics_seen_at_ms > END_OFFSETS_MAX_AGE_MS
    group.produce(P0, 5)
    group.now_ms += TRIGGER_MS
    driver.ask()
    assert group.topics_seen_at_ms == group.now_ms


def test_the_bound_on_the_age_of_topics_holds_while_the_query_is_idle(world: World) -> None:
    group, driver = at_rest(world, records=10)
    for _ in range(100):
        idle_triggers(group, driver, 1)
        assert group.now_ms - group.topics_seen_at_ms <= IDLE_TOPICS_MAX_AGE_MS


def test_a_topic_created_anew_with_just_as_many_records_is_noticed_within_the_bound(world: World) -> None:
    group, driver = at_rest(world, records=10)
    idle_triggers(group, driver, 2)
    create_anew(group, records=10)
    made_at_ms, commits = group.now_ms, len(group.commits)
    with pytest.raises(DataLoss, match="its topic is another one now"):
        idle_triggers(group, driver, 100)
    assert group.now_ms - made_at_ms <= IDLE_TOPICS_MAX_AGE_MS + TRIGGER_MS
    assert len(group.commits) == commits


@pytest.mark.parametrize("records", [0, 3, 25], ids=["none", "fewer", "more"])
def test_a_topic_created_anew_is_noticed_by_the_next_trigger_before_its_first_commit(
    world: World, records: int
) -> None:
    group, driver = at_rest(world, records=10)
    idle_triggers(group, driver, 2)
    create_anew(group, records)
    commits = len(group.commits)
    with pytest.raises(DataLoss, match="its topic is another one now"):
        idle_triggers(group, driver, 1)
    assert len(group.commits) == commits


@pytest.mark.parametrize("records", [0, 3, 10, 25], ids=["none", "fewer", "as many", "more"])
def test_a_topic_created_anew_while_idle_is_read_from_its_beginning(world: World, records: int) -> None:
    group, driver = at_rest(world, records=10, fail_on_data_loss=False)
    idle_triggers(group, driver, 2)
    create_anew(group, records)
    group.now_ms += IDLE_TOPICS_MAX_AGE_MS
    driver.drain()
    assert driver.rows[P0] == [(0, 10), (0, records)][: 2 if records else 1]


def test_ends_that_were_listed_of_a_topic_that_is_gone_do_not_count_for_its_successor(world: World) -> None:
    """1. Ends are listed, 2. the topic is created anew, shorter, 3. the bound makes the next trigger look at topics."""
    group, driver = at_rest(world, records=10, fail_on_data_loss=False)
    group.now_ms = group.topics_seen_at_ms + IDLE_TOPICS_MAX_AGE_MS - WAIT_STEP_MS
    assert not driver.trigger()
    create_anew(group, records=3)
    assert driver.trigger()
    driver.drain()
    assert driver.rows[P0] == [(0, 10), (0, 3)]


def test_a_topic_deleted_while_idle_is_noticed_by_the_next_trigger(world: World) -> None:
    group, driver = at_rest(world, records=10)
    idle_triggers(group, driver, 2)
    group.delete_topic("t")
    with pytest.raises(DataLoss, match="does not exist any more"):
        idle_triggers(group, driver, 1)


def test_a_topic_deleted_while_idle_costs_other_topics_no_record(world: World) -> None:
    group, driver = world(records=10, fail_on_data_loss=False)
    group.create_topic("u", 1)
    group.subscribed = ("t", "u")
    driver.start()
    group.move(TopicPartition("u", 0), "seat-0")
    driver.drain()
    idle_triggers(group, driver, 2)
    group.delete_topic("t")
    group.produce(TopicPartition("u", 0), 7)
    driver.drain()
    assert driver.rows[TopicPartition("u", 0)] == [(0, 7)]


def test_a_log_that_was_cut_while_idle_is_noticed_by_the_next_trigger(world: World) -> None:
    group, driver = at_rest(world, records=10)
    idle_triggers(group, driver, 2)
    group.elect(P0)
    group.log[P0] = [0, 6]
    with pytest.raises(DataLoss, match="it was truncated"):
        idle_triggers(group, driver, 1)


def test_a_partition_that_is_asked_back_while_idle_is_given_up_at_the_next_trigger(world: World) -> None:
    group, driver = at_rest(world, partitions=2, records=10)
    idle_triggers(group, driver, 2)
    group.move(P1, OTHER)
    driver.drain()
    assert driver.durable.owned.keys() == {P0}
    assert group.assigned[P1] == OTHER


def test_a_new_partition_is_read_when_the_leader_has_assigned_it(world: World) -> None:
    group, driver = at_rest(world, partitions=2, records=10)
    idle_triggers(group, driver, 2)
    added = group.add_partition("t")
    group.produce(added, 3)
    group.move(added, "seat-0")
    group.now_ms += TRIGGER_MS
    driver.drain()
    assert added == P2
    assert driver.rows[P2] == [(0, 3)]
