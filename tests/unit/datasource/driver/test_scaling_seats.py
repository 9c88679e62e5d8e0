"""More and fewer seats over restarts (KIP-345's scale up and scale down), against a model of the group."""

from collections.abc import Callable, Iterable
from dataclasses import replace

import pytest
from harness.fake_driver import Crash, Driver, assert_read_once, seats_of
from harness.fake_group import OTHER, FakeGroup

from pyspark_kgroup.driver.boundary.boundary import Boundary
from pyspark_kgroup.driver.boundary.context import BoundaryContext
from pyspark_kgroup.limits import HANDOVER_WAIT_MS, SETTLE_TIMEOUT_MS
from pyspark_kgroup.offsets.earlier_runs import earlier_runs
from spark_kgroup.errors import GroupUnsettled
from spark_kgroup.model import DescribedGroup, DescribedMember, ErrorCode, TopicPartition

World = Callable[..., tuple[FakeGroup, Driver]]

PARTITIONS = [TopicPartition("t", index) for index in range(6)]


@pytest.mark.parametrize("crash", ["unplanned", "unread", "uncommitted"])
def test_fewer_seats_then_more_read_each_record_once(world: World, crash: str) -> None:
    group, driver = world(partitions=6, seats=6, records=30)
    driver.trigger(limit=60)
    with pytest.raises(Crash):
        driver.trigger(limit=60, crash=crash)
    driver.restart(3)
    assert group.old == {"seat-3", "seat-4", "seat-5"}
    driver.drain()
    assert not group.old
    assert seats_of(driver) == {"seat-0", "seat-1", "seat-2"}
    for tp in PARTITIONS:
        group.produce(tp, 10)
    driver.drain()
    driver.restart(5)
    group.spread(list(group.instance_ids))
    driver.drain()
    assert seats_of(driver) == set(group.instance_ids)
    assert_read_once(driver, 40, PARTITIONS)
    assert group.committed_now == dict.fromkeys(PARTITIONS, 40)


def test_former_seats_leave_after_their_durable_positions_are_committed(world: World) -> None:
    group, driver = world(partitions=6, seats=6, records=30)
    driver.trigger()
    assert group.committed_now == dict.fromkeys(PARTITIONS, 0)
    before: list[dict[TopicPartition, int]] = []
    remove = group.remove_members

    def removed(members: Iterable[DescribedMember], reason: str) -> dict[str, int]:
        before.append(dict(group.committed_now))
        group.target |= dict.fromkeys(PARTITIONS[3:], OTHER)  # another application is given their partitions
        return remove(members, reason)

    group.remove_members = removed  # type: ignore[method-assign]
    driver.restart(3)
    driver.drain()
    assert {tp: before[0][tp] for tp in PARTITIONS[3:]} == dict.fromkeys(PARTITIONS[3:], 30)
    assert [group.other[tp] for tp in PARTITIONS[3:]] == [30] * 3


def test_a_rebalance_right_after_the_start_keeps_the_positions_of_former_seats(world: World) -> None:
    """1. A batch is done and not committed, 2. the driver is back with fewer seats, into a stable group, 3. another
    application makes it rebalance before the first boundary, and is given the old seats' partitions."""
    group, driver = world(partitions=6, seats=6, records=30)
    driver.trigger()
    driver.restart(3)
    group.target |= dict.fromkeys(PARTITIONS[3:], OTHER)
    group.rebalance()
    assert (group.describe().state, group.committed_now) == ("PreparingRebalance", dict.fromkeys(PARTITIONS, 0))
    driver.drain()
    assert [group.other[tp] for tp in PARTITIONS[3:]] == [30] * 3


def test_partitions_revoked_from_former_seats_are_committed_though_a_consumer_group_does_not_show_them(
    world: World,
) -> None:
    """1. A batch is done and not committed, 2. the coordinator gives partitions of some seats to another application,
    which waits until they are given up, 3. the driver is back without these seats: no other process can commit them."""
    group, driver = world(partitions=6, seats=6, records=30)
    driver.trigger()
    group.state, group.group_type = "Reconciling", "consumer"
    group.target |= dict.fromkeys(PARTITIONS[3:], OTHER)
    assert not any(tp in member.assignment for member in group.describe().members for tp in PARTITIONS[3:])
    driver.restart(3)
    driver.drain()
    assert [group.other[tp] for tp in PARTITIONS[3:]] == [30] * 3


@pytest.mark.parametrize("group_type", ["classic", "consumer"])
def test_partitions_of_former_seats_are_committed_before_these_leave(world: World, group_type: str) -> None:
    group, driver = world(partitions=6, seats=6, records=30)
    group.group_type = group_type
    driver.trigger()
    driver.restart(3)
    fates = iter(["lost", "lost"])
    group.commit_fate = lambda: next(fates, "ok")
    committed: list[dict[TopicPartition, int]] = []
    remove = group.remove_members

    def removed(members: Iterable[DescribedMember], reason: str) -> dict[str, int]:
        committed.append(dict(group.committed_now))
        return remove(members, reason)

    group.remove_members = removed  # type: ignore[method-assign]
    driver.trigger()
    assert len(committed) == 1
    assert {tp: committed[0][tp] for tp in PARTITIONS[3:]} == dict.fromkeys(PARTITIONS[3:], 30)
    assert group.forced == ["the query was started again with fewer members"]
    assert not group.old


def test_seats_that_come_back_into_a_rebalance_commit_no_offset_before_its_end(world: World) -> None:
    group, driver = world(partitions=6, seats=6, records=30)
    driver.trigger()
    group.die()
    group.rebalance()
    driver.restart(3)
    assert group.describe().state == "PreparingRebalance"
    driver.drain()
    assert seats_of(driver) == {"seat-0", "seat-1", "seat-2"}
    assert group.committed_now == dict.fromkeys(PARTITIONS, 30)


def test_seats_that_are_back_before_they_were_made_to_leave_stay(world: World) -> None:
    group, driver = world(partitions=6, seats=6, records=30)
    driver.drain()
    generation = group.generation
    driver.restart(3)
    driver.restart(6)
    driver.drain()
    assert (group.generation, group.forced) == (generation, [])


def test_a_rebalance_does_not_wait_for_former_seats(world: World) -> None:
    group, driver = world(partitions=6, seats=6, records=30)
    driver.drain()
    driver.restart(3)
    group.rebalance()
    assert group.describe().state == "PreparingRebalance"
    before = group.now_ms
    driver.drain()
    assert group.now_ms - before < SETTLE_TIMEOUT_MS
    assert seats_of(driver) == {"seat-0", "seat-1", "seat-2"}


def test_available_now_does_not_end_before_former_seats_are_replaced(world: World) -> None:
    group, driver = world(partitions=6, seats=6, records=30)
    driver.drain()
    for tp in PARTITIONS:
        group.produce(tp, 10)
    driver.restart(3, bounded=True)
    driver.trigger()
    assert_read_once(driver, 40, PARTITIONS)


def test_the_first_batch_waits_for_the_generation_without_former_seats(world: World) -> None:
    """1. LeaveGroup is answered, 2. our seats still show the generation before, and are at rest in it."""
    group, driver = world(partitions=6, seats=6, records=30)
    driver.drain()
    for tp in PARTITIONS:
        group.produce(tp, 10)
    left: list[tuple[int, set[str]]] = []

    def leave(members: Iterable[DescribedMember], reason: str) -> dict[str, int]:
        names = {str(member.instance_id) for member in members}
        group.old -= names
        left.append((group.now_ms + 3 * HANDOVER_WAIT_MS // 2, names))
        return {}

    def rebalance_later() -> None:
        if left and group.now_ms >= left[0][0]:
            group.expire(left.pop()[1])

    group.remove_members, group.meanwhile = leave, rebalance_later  # type: ignore[method-assign]
    driver.restart(3)
    driver.trigger()
    assert seats_of(driver) == {"seat-0", "seat-1", "seat-2"}
    assert_read_once(driver, 40, PARTITIONS)


def test_former_seats_are_known_by_all_of_a_prefix_that_has_hyphens(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    group, driver = world(partitions=2, seats=2, records=10)
    driver.options = replace(driver.options, instance_id_prefix="daily-job")
    driver.boundary = Boundary(BoundaryContext.of(group, driver.options, clock=lambda: group.now_ms), bounded=False)
    former = DescribedMember(member_id="m", instance_id="daily-job-2", client_id="spark-kgroup", client_host="")
    left: list[DescribedMember] = []
    describe = group.describe

    def described() -> DescribedGroup:
        found = describe()
        return found if left else replace(found, members=(*found.members, former))

    monkeypatch.setattr(group, "describe", described)
    monkeypatch.setattr(group, "remove_members", lambda members, _: left.extend(members) or group.rebalance() or {})
    driver.drain()
    assert left == [former]


def test_former_seats_that_leave_are_named_in_the_log(world: World, caplog: pytest.LogCaptureFixture) -> None:
    _, driver = world(partitions=6, seats=6, records=30)
    driver.drain()
    driver.restart(4)
    with caplog.at_level("INFO"):
        driver.drain()
    assert [message for message in caplog.messages if message.endswith("leave: seat-4, seat-5")]


def test_members_that_only_look_like_former_seats_are_left_alone(world: World) -> None:
    group, driver = world(partitions=6, seats=2, records=30)
    driver.drain()
    described = group.describe()
    (member,) = (m for m in described.members if m.instance_id == "seat-1")
    looks = [
        DescribedMember(member_id="m", instance_id=name, client_id=client, client_host="")
        for name, client in (("seat-9", "kgroup-member"), ("seat-9-x", "spark-kgroup"), ("job-9", "spark-kgroup"))
    ]
    former_seats = driver.boundary._steps.settling._former_seats
    assert [former_seats._is_one(m) for m in (member, *looks)] == [True, False, False, False]


@pytest.mark.parametrize("group_type", ["classic", "consumer"])
def test_former_seats_under_another_client_id_are_known_by_the_texts_beside_their_offsets(
    world: World, group_type: str
) -> None:
    """A pod's name may be the client id, and it is another one at each start."""
    group, driver = world(partitions=6, seats=6, records=30)
    group.group_type = group_type
    driver.trigger()
    driver.restart(3)
    options = replace(driver.options, client_id="pod-b")
    earlier = earlier_runs(driver.durable, [], group="g", app="seat")
    driver.boundary = Boundary(
        BoundaryContext.of(group, options, clock=lambda: group.now_ms), earlier_seats=earlier.seats, bounded=False
    )
    driver.drain()
    assert not group.old
    assert group.committed_now == dict.fromkeys(PARTITIONS, 30)


def test_members_that_may_be_former_seats_and_are_left_alone_are_named_once(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    group, driver = world(partitions=6, seats=6, records=30)
    driver.drain()
    driver.restart(5)
    options = replace(driver.options, client_id="pod-b")
    driver.boundary = Boundary(BoundaryContext.of(group, options, clock=lambda: group.now_ms), bounded=False)
    driver.drain()
    assert group.old == {"seat-5"}
    (warning,) = [message for message in caplog.messages if "named like seats of this query" in message]
    assert "(seat-5), but bear another client id (spark-kgroup)" in warning
    assert "kgroup remove-members" in warning


def test_former_seats_that_may_not_leave_make_a_warning_and_are_tried_again(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    group, driver = world(partitions=6, seats=6, records=30)
    driver.drain()
    refused = {"seat-5": int(ErrorCode.UNKNOWN_SERVER_ERROR)}
    group.remove_members = lambda *_: refused  # type: ignore[method-assign]  # a broker of another kind
    driver.restart(5, bounded=True)
    with pytest.raises(GroupUnsettled, match="seat-5: UNKNOWN_SERVER_ERROR"):
        driver.trigger()
    driver.restart()
    before = group.now_ms
    driver.drain()
    assert "seat-5: UNKNOWN_SERVER_ERROR" in caplog.text
    assert group.now_ms - before < 10 * HANDOVER_WAIT_MS


@pytest.mark.parametrize(
    ("group_type", "setting"),
    [("classic", "(kafka.session.timeout.ms)"), ("consumer", "(consumer.session.timeout.ms of the group, else ")],
)
def test_former_seats_that_may_not_leave_name_the_session_timeout_of_their_protocol(
    world: World, group_type: str, setting: str
) -> None:
    group, driver = world(partitions=6, seats=6, records=30)
    driver.drain()
    group.group_type = group_type
    group.remove_members = lambda *_: {"seat-5": int(ErrorCode.UNKNOWN_SERVER_ERROR)}  # type: ignore[method-assign]
    driver.restart(5, bounded=True)
    with pytest.raises(GroupUnsettled) as raised:
        driver.trigger()
    assert setting in str(raised.value)


def test_former_seats_that_may_not_leave_are_tried_once_each_though_they_are_refused_one_after_the_other(
    world: World,
) -> None:
    group, driver = world(partitions=4, seats=4, records=30)
    driver.drain()
    tried: list[set[str]] = []

    def refuse_the_first(members: Iterable[DescribedMember], reason: str) -> dict[str, int]:
        names = sorted(str(member.instance_id) for member in members)
        tried.append(set(names))
        return {names[0]: int(ErrorCode.UNKNOWN_SERVER_ERROR)}

    group.remove_members = refuse_the_first  # type: ignore[method-assign]
    driver.restart(2)
    driver.drain()
    assert tried == [{"seat-2", "seat-3"}, {"seat-3"}]
