"""Seats that join and leave while the query runs, against a model of the group: each record is read once."""

from collections.abc import Callable, Iterable
from random import Random

import pytest
from harness.fake_driver import Crash, Driver, assert_read_once, seats_of
from harness.fake_group import FakeGroup

from spark_kgroup.model import TopicPartition

World = Callable[..., tuple[FakeGroup, Driver]]

PARTITIONS = [TopicPartition("t", index) for index in range(6)]


def test_seats_that_are_too_many_leave_after_their_durable_positions_are_committed(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    group, driver = world(partitions=6, seats=6, records=30)
    driver.trigger()
    known: list[dict[TopicPartition, int]] = []
    remove = group.remove_seats

    def watched(instance_ids: Iterable[str], reason: str) -> None:
        known.append(dict(group.committed_now))
        remove(instance_ids, reason)

    monkeypatch.setattr(group, "remove_seats", watched)
    driver.boundary.let_leave(["seat-3", "seat-4", "seat-5"])
    driver.drain()
    assert known == [dict.fromkeys(PARTITIONS, 30)]
    assert seats_of(driver) == {"seat-0", "seat-1", "seat-2"}
    for tp in PARTITIONS:
        group.produce(tp, 10)
    driver.drain()
    assert_read_once(driver, 40, PARTITIONS)


def test_seats_stay_while_their_commits_are_not_acknowledged(world: World) -> None:
    group, driver = world(partitions=6, seats=6, records=30)
    driver.trigger()
    group.commit_fate = lambda: "lost"
    driver.boundary.let_leave(["seat-5"])
    driver.trigger()
    assert "seat-5" in group.seats
    group.commit_fate = lambda: "ok"
    driver.drain()
    assert "seat-5" not in group.seats
    assert_read_once(driver, 30, PARTITIONS)


@pytest.mark.parametrize("seed", range(40))
def test_seats_that_come_and_go_between_batches_lose_no_record_and_repeat_none(world: World, seed: int) -> None:
    random = Random(seed)
    group, driver = world(partitions=6, seats=2, records=10)
    produced = 10
    for _ in range(30):
        for tp in PARTITIONS:
            group.produce(tp, 5)
        produced += 5
        names = list(group.seats)
        match random.choice(["more", "fewer", "restart", "crash", "nothing"]):
            case "more" if len(names) < 6:
                group.add_seats(random.randint(1, 6 - len(names)))
            case "fewer" if len(names) > 1:
                driver.boundary.let_leave(names[random.randint(1, len(names) - 1) :])
            case "restart":
                driver.restart(len(group.seats))
            case "crash":
                with pytest.raises(Crash):
                    driver.trigger(limit=20, crash=random.choice(["unread", "uncommitted"]))
                driver.restart(len(group.seats))
            case _:
                driver.trigger(limit=20)
    driver.drain()
    assert_read_once(driver, produced, PARTITIONS)
