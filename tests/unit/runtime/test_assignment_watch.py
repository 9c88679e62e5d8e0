"""When a process looks at its group's assignment, and how it mends a drift."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest
from harness import kio_messages
from harness.fake_broker import NO_THROTTLE, until
from harness.fake_cluster import A0, A1, B0, BrokerWorld, in_a_world
from harness.kio_messages import DescribeGroupsRequest
from harness.sessions import in_a_group, joined, synced
from kio.schema.errors import ErrorCode as KioErrorCode

from spark_kgroup.model import Subscription, TopicPartition
from spark_kgroup.runtime.assignment_drift import AssignmentDrift
from spark_kgroup.runtime.group import Group
from spark_kgroup.runtime.settings import ClientSettings, GroupSettings, OngoingWork, ProtocolSettings
from spark_kgroup.wire.consumer_protocol import encode_subscription

pytestmark = pytest.mark.filterwarnings("error::ResourceWarning")

OF_A = encode_subscription(Subscription(topics=("a",)))
A2 = TopicPartition("a", 2)
Scenario = Callable[["Coordinator", Group], Awaitable[None]]
OFTEN = ClientSettings(metadata_max_age_ms=20)
SELDOM = ClientSettings(metadata_max_age_ms=60_000)
HOLDING = OngoingWork(holds_rebalances=True)


class Coordinator:
    """A group at rest, in which our seat has A0. It follows, and was asked back.

    A join that has a member id begins the next generation.

    Attributes:
        reasons: of each JoinGroup.
        mends: whether a rebalance gives our seat all partitions there are.
    """

    def __init__(self, world: BrokerWorld, chosen: str = "cooperative-sticky") -> None:
        self.world = world
        self.chosen = chosen
        self.reasons: list[str] = []
        self.mends = True
        self.share = [A0]
        self.describes(A0)
        world.leaders = {A0: 0}
        world.protocol = chosen
        answers: Any = world  # which has no answers of its own to these
        answers.on_JoinGroup = self.on_join
        answers.on_SyncGroup = lambda *_: synced(self.share, protocol_name=chosen)
        answers.on_Heartbeat = lambda _, __, error: kio_messages.HeartbeatResponse(
            throttle_time=NO_THROTTLE, error_code=error
        )

    def describes(self, *assigned: TopicPartition, leader: str = "leader", static: bool = True) -> None:
        """Set our seat's partitions, beside a leader that has none."""
        self.world.described = {"m": ("seat-0", OF_A, assigned), leader: ("leader" if static else None, OF_A, [])}

    def on_join(self, _: int, request: Any, __: KioErrorCode) -> Any:
        self.reasons.append(request.reason)
        if request.member_id and self.mends:
            self.share = sorted(self.world.leaders)
        if request.member_id:
            self.describes(*self.share)
        return joined(leader="leader", generation=3 + len(self.reasons), protocol_name=self.chosen)

    @property
    def looks(self) -> int:
        return self.world.asked(DescribeGroupsRequest)

    async def looked(self, times: int) -> None:
        """Until it was looked so many times more, from the first question to the effects."""
        seen = self.looks
        await until(lambda: self.looks > seen + times)


def followed(
    client: ClientSettings = OFTEN,
    *,
    assignors: tuple[str, ...] = ("cooperative-sticky",),
    work: OngoingWork = OngoingWork(),  # noqa: B008 - frozen
) -> Callable[[Scenario], Callable[[], None]]:
    """Run a scenario with a seat that was asked back, has been looked after, and has joined no further generation."""

    return in_a_group(
        lambda world: Coordinator(world, assignors[0]),
        lambda view: view.settled and not view.look_due,
        client=client,
        protocol=ProtocolSettings(assignors=assignors, heartbeat_interval_ms=20),
        work=work,
    )


@in_a_world()
async def test_a_seat_that_was_asked_back_without_partitions_has_its_share_after_one_rebalance(
    world: BrokerWorld,
) -> None:
    """1. A new seat joins. 2. Brokers convert the group to rename another seat (`runtime.own_ids`), and end the
    rebalance. 3. The seat is asked back, and no partition lacks an owner."""
    coordinator = Coordinator(world)
    world.leaders, coordinator.share = {A0: 0, A1: 0}, []
    world.described = {"m": ("seat-0", OF_A, []), "leader": ("leader", OF_A, [A0, A1])}
    group = Group(
        GroupSettings(bootstrap=(world.brokers[0].address,), group="g", topics=("a",), instance_ids=("seat-0",))
    )
    await group.start()
    try:
        await until(lambda: len(coordinator.reasons) == 2)
        assert coordinator.reasons == ["start", "subscribed without a share: a"]
    finally:
        await group.close()


@in_a_world()
async def test_a_look_that_met_a_rebalance_is_not_due_in_the_next_generation(world: BrokerWorld) -> None:
    """A static member's first join counts as asked back. Taken then, the look would force a rebalance for the partition
    that was added, though the static leader may be away by then."""
    coordinator = Coordinator(world)
    world.state = "PreparingRebalance"
    settings = GroupSettings(
        bootstrap=(world.brokers[0].address,),
        group="g",
        topics=("a",),
        instance_ids=("seat-0",),
        client=SELDOM,
        protocol=ProtocolSettings(heartbeat_interval_ms=20),
    )
    group = Group(settings)
    await group.start()
    try:
        view = await group.wait_until(lambda view: view.settled, 10_000)
        await until(lambda: coordinator.looks == 1)
        assert view.look_due
        world.first["Heartbeat"] = [KioErrorCode.rebalance_in_progress]
        await until(lambda: len(coordinator.reasons) == 2)
        world.state = "Stable"
        world.leaders[A1] = 0
        view = await group.wait_until(lambda view: view.settled, 10_000)
        assert not view.look_due
    finally:
        await group.close()


@followed(SELDOM)
async def test_a_seat_that_was_asked_back_looks_once_and_not_a_refresh_later(
    coordinator: Coordinator, group: Group
) -> None:
    assert coordinator.looks == 1
    assert coordinator.reasons == ["start"]


@followed()
async def test_all_that_fits_is_left_alone_at_each_refresh(coordinator: Coordinator, group: Group) -> None:
    await coordinator.looked(3)
    assert coordinator.reasons == ["start"]


@followed(SELDOM)
async def test_a_cooperative_follower_leaves_it_to_a_static_leader_until_a_second_refresh_finds_the_same(
    coordinator: Coordinator, group: Group
) -> None:
    """A leader that may be away would be waited for, and one of another client may not look for minutes."""
    coordinator.world.leaders[A1] = 0
    await group._watch.look()
    await group.wait_until(lambda view: view.settled, 10_000)
    assert coordinator.reasons == ["start"]
    await group._watch.look()
    view = await group.wait_until(lambda view: len(view.seats[0].owned_since) == 2, 10_000)
    assert set(view.seats[0].owned_since) == {A0, A1}
    assert coordinator.reasons == ["start", "1 partitions without an owner"]


@followed(replace(OFTEN, client_id="client"))
async def test_a_follower_leaves_it_to_a_static_leader_of_the_same_application(
    coordinator: Coordinator, group: Group
) -> None:
    """The leader looks itself, as we do. If it is away, a rebalance would take away its partitions when it is back."""
    coordinator.world.leaders[A1] = 0
    await coordinator.looked(3)
    assert coordinator.reasons == ["start"]


@followed(SELDOM)
async def test_partitions_added_after_a_static_leader_assigned_earlier_ones_wait_for_two_refreshes_of_their_own(
    coordinator: Coordinator, group: Group
) -> None:
    coordinator.world.leaders[A1] = 0
    await group._watch.look()
    coordinator.world.described = {**coordinator.world.described, "leader": ("leader", OF_A, [A1])}
    await group._watch.look()
    coordinator.world.leaders[A2] = 0
    await group._watch.look()
    assert coordinator.reasons == ["start"]


def test_an_eager_follower_leaves_it_to_a_static_leader_and_says_once_who_that_is(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """An eager follower would stand still while the rebalance waits for a leader that may be away."""

    @followed(assignors=("sticky",))
    async def scenario(coordinator: Coordinator, group: Group) -> None:
        coordinator.world.leaders[A1] = 0
        await coordinator.looked(4)
        assert coordinator.reasons == ["start"]
        (warning,) = [record.getMessage() for record in caplog.records if "have no owner" in record.getMessage()]
        assert "group 'g': 1 partitions have no owner, for the group's leader has not assigned them" in warning

    scenario()


@followed(SELDOM)
async def test_a_follower_acts_at_once_where_a_dynamic_member_leads(coordinator: Coordinator, group: Group) -> None:
    """No seat is kept for it to come back, and librdkafka's looks for new partitions every five minutes."""
    coordinator.world.leaders[A1] = 0
    coordinator.describes(A0, static=False)
    await group._watch.look()
    view = await group.wait_until(lambda view: len(view.seats[0].owned_since) == 2, 10_000)
    assert set(view.seats[0].owned_since) == {A0, A1}
    assert coordinator.reasons == ["start", "1 partitions without an owner"]


def test_partitions_that_another_client_s_leader_does_not_assign_in_a_rebalance_are_told_of_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A Java leader assigns from the metadata that it has (ConsumerCoordinator.onLeaderElected)."""

    @followed()
    async def scenario(coordinator: Coordinator, group: Group) -> None:
        coordinator.mends = False
        on_join = coordinator.on_join

        def still_leads(*asked: Any) -> Any:
            answer = on_join(*asked)
            coordinator.describes(*coordinator.share, static=False)
            return answer

        answers: Any = coordinator.world
        answers.on_JoinGroup = still_leads
        coordinator.world.leaders[A1] = 0
        coordinator.describes(A0, static=False)
        await until(lambda: len(coordinator.reasons) == 2)
        await coordinator.looked(4)
        assert len(coordinator.reasons) == 2
        (warning,) = [record.getMessage() for record in caplog.records if "have no owner" in record.getMessage()]
        assert "metadata.max.age.ms" in warning

    scenario()


@followed()
async def test_a_follower_acts_once_the_leader_was_asked_back(coordinator: Coordinator, group: Group) -> None:
    """A new member id shows the return.

    A leader of another client does not know partitions that were added meanwhile.
    """
    coordinator.world.leaders[A1] = 0
    coordinator.describes(A0, leader="leader-anew")
    view = await group.wait_until(lambda view: len(view.seats[0].owned_since) == 2, 10_000)
    assert set(view.seats[0].owned_since) == {A0, A1}
    await coordinator.looked(3)
    assert coordinator.reasons == ["start", "1 partitions without an owner"]


@followed(SELDOM)
async def test_a_leader_that_was_asked_back_has_a_look_s_time_to_fetch_its_assignment(
    coordinator: Coordinator, group: Group
) -> None:
    """In a rebalance before that it claims no partition, and other members get those that it had."""
    coordinator.world.leaders[A1] = 0
    coordinator.describes(A0, leader="leader-anew")
    await group._watch.look()
    assert coordinator.reasons == ["start"]
    coordinator.describes(A0, leader="leader-once-more")
    await group._watch.look()
    assert coordinator.reasons == ["start"]
    await group._watch.look()
    await group.wait_until(lambda view: len(view.seats[0].owned_since) == 2, 10_000)


@followed()
async def test_a_drift_that_a_rebalance_has_not_mended_is_not_forced_again_and_a_larger_one_is(
    coordinator: Coordinator, group: Group
) -> None:
    coordinator.mends = False
    coordinator.world.leaders[A1] = 0
    coordinator.describes(A0, leader="leader-anew")
    await until(lambda: len(coordinator.reasons) == 2)
    coordinator.describes(A0, leader="leader-anew")
    await coordinator.looked(3)
    assert coordinator.reasons == ["start", "1 partitions without an owner"]
    coordinator.world.leaders[A2] = 0
    await until(lambda: len(coordinator.reasons) == 3)
    assert coordinator.reasons[2] == "2 partitions without an owner"


@followed()
async def test_a_partition_is_gone_when_two_looks_in_a_row_say_so(coordinator: Coordinator, group: Group) -> None:
    """A broker that lags behind may not know yet a partition that the leader has assigned."""
    coordinator.describes(A0, A1, leader="leader-anew")
    await until(lambda: len(coordinator.reasons) == 2)
    assert coordinator.looks > 2
    assert coordinator.reasons[1] == "1 partitions that are gone"


@in_a_world(nodes=2)
async def test_partitions_that_only_the_first_broker_does_not_know_are_not_gone(world: BrokerWorld) -> None:
    """It is cut off since before they were added. Our process starts after that, so it knows no more than this one."""
    coordinator = Coordinator(world)
    world.coordinator = 1
    world.cut_off_from_now_on(0)
    world.leaders = {A0: 1, A1: 1}
    coordinator.share = [A1]
    world.described = {"m": ("seat-0", OF_A, [A1]), "leader": ("leader", OF_A, [A0])}
    group = Group(
        GroupSettings(
            bootstrap=(world.brokers[0].address,), group="g", topics=("a",), instance_ids=("seat-0",), client=OFTEN
        )
    )
    await group.start()
    try:
        await group.wait_until(lambda view: view.settled and not view.look_due, 10_000)
        await coordinator.looked(3)
        assert coordinator.reasons == ["start"]
    finally:
        await group.close()


@followed()
async def test_a_topic_that_this_user_may_not_see_is_not_gone(coordinator: Coordinator, group: Group) -> None:
    topic = coordinator.world.topic
    hidden = KioErrorCode.topic_authorization_failed
    coordinator.world.topic = lambda name, error: topic(name, hidden if name == "b" else error)  # type: ignore[method-assign]
    coordinator.describes(A0, B0, leader="leader-anew")
    await coordinator.looked(3)
    assert coordinator.reasons == ["start"]


@followed()
async def test_a_group_of_type_consumer_is_left_to_its_coordinator(coordinator: Coordinator, group: Group) -> None:
    coordinator.world.group_type = "consumer"
    coordinator.world.leaders[A1] = 0
    await coordinator.looked(3)
    assert coordinator.reasons == ["start"]


@followed(work=HOLDING)
async def test_a_rebalance_for_a_partition_that_may_be_remembered_waits_for_the_owner_s_word(
    coordinator: Coordinator, group: Group
) -> None:
    coordinator.share = []
    coordinator.describes(leader="leader-anew")
    view = await group.wait_until(lambda view: view.held is not None, 10_000)
    assert view.held == AssignmentDrift(without_owner=frozenset({A0}))
    await coordinator.looked(3)
    assert coordinator.reasons == ["start"]
    group.force_rebalance(view.held.reason)
    view = await group.wait_until(lambda view: view.held is None and view.settled, 10_000)
    assert coordinator.reasons == ["start", "1 partitions without an owner"]


@followed(work=HOLDING)
async def test_partitions_that_are_new_wait_for_no_member(coordinator: Coordinator, group: Group) -> None:
    coordinator.world.leaders[A1] = 0
    coordinator.describes(A0, leader="leader-anew")
    await until(lambda: len(coordinator.reasons) == 2)


@followed(replace(OFTEN, request_timeout_ms=200))
async def test_a_broker_that_does_not_answer_ends_a_look_within_a_bound_and_the_next_one_asks_anew(
    coordinator: Coordinator, group: Group
) -> None:
    coordinator.world.first["DescribeGroups"] = [None]
    await coordinator.looked(2)
    assert not coordinator.world.first["DescribeGroups"]
    coordinator.world.leaders[A1] = 0
    coordinator.describes(A0, leader="leader-anew")
    await group.wait_until(lambda view: len(view.seats[0].owned_since) == 2, 10_000)
    assert coordinator.reasons == ["start", "1 partitions without an owner"]


@in_a_world()
async def test_a_process_asks_once_for_all_its_seats(world: BrokerWorld) -> None:
    coordinator = Coordinator(world)
    names = tuple(f"seat-{k}" for k in range(20))
    settings = GroupSettings(
        bootstrap=(world.brokers[0].address,),
        group="g",
        topics=("a",),
        instance_ids=names,
        client=SELDOM,
    )
    group = Group(settings)
    answers: Any = world
    answers.on_JoinGroup = lambda *_: joined(leader="leader", generation=4)
    await group.start()
    try:
        await group.wait_until(lambda view: view.settled and not view.look_due, 10_000)
        assert coordinator.looks == 1
    finally:
        await group.close()
        await asyncio.sleep(0)


@followed()
async def test_a_group_whose_rebalances_leave_out_other_partitions_each_time_is_forced_ever_more_rarely(
    coordinator: Coordinator, group: Group
) -> None:
    coordinator.mends = False
    on_join = coordinator.on_join

    def left_out_in_turn(*asked: Any) -> Any:
        coordinator.share = [A0, A1] if A2 in coordinator.share else [A0, A2]
        answer = on_join(*asked)
        coordinator.describes(*coordinator.share, leader="leader-anew")
        return answer

    answers: Any = coordinator.world
    answers.on_JoinGroup = left_out_in_turn
    coordinator.share = [A0, A1]
    coordinator.world.leaders |= {A1: 0, A2: 0}
    coordinator.describes(A0, A1, leader="leader-anew")
    await coordinator.looked(60)
    assert 2 < len(coordinator.reasons) < 20


@followed()
async def test_a_drift_that_was_mended_beside_one_that_was_not_is_forced_when_it_comes_again(
    coordinator: Coordinator, group: Group
) -> None:
    coordinator.mends = False
    coordinator.share = [A0, A1]
    coordinator.world.leaders |= {A1: 0, A2: 0}
    coordinator.describes(A0, leader="leader-anew")
    await until(lambda: len(coordinator.reasons) == 2)
    coordinator.describes(A0, A1, leader="leader-anew")
    await coordinator.looked(2)
    coordinator.describes(A0, leader="leader-anew")
    await until(lambda: len(coordinator.reasons) == 3)


@followed(assignors=("cooperative-sticky", "harness.custom_assignors:Sparing"))
async def test_partitions_that_a_custom_assignor_leaves_out_are_left_alone(
    coordinator: Coordinator, group: Group
) -> None:
    coordinator.world.protocol = "sparing"
    coordinator.world.leaders |= {A1: 0}
    coordinator.describes(A0, leader="leader-anew")
    await coordinator.looked(3)
    assert coordinator.reasons == ["start"]


@followed(SELDOM)
async def test_a_seat_that_the_group_assigns_more_than_it_has_heard_of_joins_to_hear_of_it(
    coordinator: Coordinator, group: Group
) -> None:
    """1. A group of type consumer becomes a classic one (ClassicGroup.fromConsumerGroup). 2. The seat is not told."""
    coordinator.world.leaders[A1] = 0
    coordinator.mends = False
    coordinator.share = [A0, A1]
    coordinator.describes(A0, A1)
    await group._watch.look()
    view = await group.wait_until(lambda view: len(view.seats[0].owned_since) == 2, 10_000)
    assert set(view.seats[0].owned_since) == {A0, A1}
    assert coordinator.reasons == ["start", "assigned partitions that no sync has told of"]
