"""Giving up what another application reads already: without a commit, which would set it back."""

from collections.abc import Collection

import pytest
from harness.boundary import P0, World
from harness.fake_driver import Driver
from harness.fake_group import OTHER, FakeGroup

from spark_kgroup.errors import BrokerError, RequestTimedOut
from spark_kgroup.limits import COMMIT_TIMEOUT_MS
from spark_kgroup.model import ErrorCode, TopicPartition


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
    assert P0 not in group.seats["seat-0"].owned_since
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
    group.unassign(P0)  # a group of type consumer does not tell what it has asked back
    driver.trigger()
    assert group.committed_now == {P0: 25}
    assert P0 not in group.seats["seat-0"].owned_since


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
        assert P0 in group.seats["seat-0"].owned_since
        assert driver.rows == {P0: [(0, 10)]}, "it does not go on"
    driver.trigger()
    assert set(group.bounds_ms) == {COMMIT_TIMEOUT_MS}, "no boundary waits for longer than for a commit"
    assert group.committed_now == {P0: 25}
    assert P0 not in group.seats["seat-0"].owned_since


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
    assert P0 in group.seats["seat-0"].owned_since
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
    assert P0 not in group.seats["seat-0"].owned_since


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
