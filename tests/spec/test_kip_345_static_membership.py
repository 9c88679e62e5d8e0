"""KIP-345, "Introduce static membership protocol to reduce consumer rebalances": its rules for members.

A test names the section that it paraphrases. One that begins with `test_deviates` says where we do otherwise, and why.
Left out: rules for brokers alone ("Server Side Changes" but for the cap, how a coordinator keeps its map and finds it
again), rules for Kafka Streams, "Scale Up" and "Future Works", which make no promise, and "Rejected Alternatives".
`kgroup remove-members` is tried on a real Kafka.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from harness import kio_messages
from harness import undisturbed_groups as groups
from harness.classic_driver import HEARTBEAT_MS, ME, SESSION_MS, Driver, claim, none_of, only, parts, request_in
from harness.fake_broker import NO_THROTTLE, RANGES, until
from harness.fake_cluster import BrokerWorld, in_a_world
from harness.model_conversion import Response
from kio.schema.errors import ErrorCode as KioErrorCode
from kio.schema.join_group.v9.response import JoinGroupResponseMember
from kio.static.primitive import i32

from spark_kgroup.assignors import NAMES, assignor
from spark_kgroup.errors import FencedInstanceId, UnsupportedApi
from spark_kgroup.limits import SESSION_TIMEOUT_MS
from spark_kgroup.member import contract
from spark_kgroup.member.classic import ClassicMember, State
from spark_kgroup.model import (
    NO_GENERATION,
    UNKNOWN_MEMBER_ID,
    ErrorCode,
    GroupMember,
    MemberIdentity,
    Subscription,
    TopicDescription,
    TopicPartition,
)
from spark_kgroup.runtime.group import Group
from spark_kgroup.runtime.settings import GroupSettings
from spark_kgroup.runtime.translate import to_event, to_message
from spark_kgroup.wire import messages
from spark_kgroup.wire.consumer_protocol import encode_subscription

# ------------------------------------------------------------------------------- "Background of Consumer Rebalance"


def test_a_static_group_whose_members_are_restarted_one_by_one_the_leader_too_never_rebalances() -> None:
    """ "Motivation", "Background", and "Non Goal" with its update of 2/12: a restart alone moves no partition."""
    world = groups.at_rest(static=3)
    before, generation = groups.shares(world), world.coordinator.generation
    for name in ("seat-0", "seat-1", "seat-2"):
        groups.restart(world, name)
        groups.come_to_rest(world)
        assert groups.shares(world) == before
    assert world.coordinator.generation == generation


def test_a_leader_that_joins_under_its_member_id_makes_the_group_rebalance() -> None:
    """ "Background", and "Non Goal": a leader's join with an id that is known has another purpose than a restart."""
    world = groups.at_rest(static=3)
    generation = world.coordinator.generation
    groups.process_of(world, groups.leader_of(world)).post(contract.RejoinWanted(reason="a test"))
    groups.come_to_rest(world)
    assert world.coordinator.generation == generation + 1


def test_a_new_static_member_makes_the_group_rebalance_and_gets_its_share() -> None:
    """ "Background": the first of the four reasons for a rebalance."""
    world = groups.at_rest(static=3)
    generation = world.coordinator.generation
    world.seats["seat-3"] = groups.config_of("seat-3")
    world.launch("seat-3")
    groups.come_to_rest(world)
    assert world.coordinator.generation > generation
    assert len(groups.shares(world)["seat-3"]) in (2, 3)


def test_a_static_member_that_is_away_for_its_session_is_replaced_by_other_members_and_not_before() -> None:
    """ "Background": the third reason. "Rolling Bounce": no member is removed but for its session."""
    world = groups.at_rest(static=3)
    before, generation = groups.shares(world), world.coordinator.generation
    groups.process_of(world, "seat-1").kill()
    world.run_for(groups.SESSION_MS - 1_500)  # its last heartbeat may be an interval old
    assert world.coordinator.generation == generation
    assert groups.shares(world) == {**before, "seat-1": frozenset()}
    del world.seats["seat-1"]
    groups.come_to_rest(world)
    assert world.coordinator.generation > generation
    assert all(before[name] <= share for name, share in groups.shares(world).items())


def test_members_that_are_removed_by_instance_id_leave_their_partitions_to_other_members_within_seconds() -> None:
    """ "Background": the fourth reason. "Scale Down" and RemoveMemberFromGroup: sooner than by their sessions."""
    world = groups.at_rest(static=4)
    answers: list[Response] = []
    for name in ("seat-1", "seat-3"):
        groups.process_of(world, name).kill()
        del world.seats[name]
        removed = contract.LeaveRequest(identity=MemberIdentity(instance_id=name), reason="a test")
        world.coordinator.receive(removed, groups.config_of(None), answers.append, world.now_ms)
    assert [answer.error for answer in answers] == [ErrorCode.NONE] * 2
    groups.come_to_rest(world, within_ms=groups.SESSION_MS - 1_000)
    assert sorted(groups.shares(world)) == ["seat-0", "seat-2"]


# ------------------------------------------------------------------------------------------- "Client Side Changes"

STATIC = MemberIdentity(instance_id="seat-0", member_id=ME, generation=7)
REQUESTS: dict[str, Callable[[MemberIdentity], Any]] = {
    "JoinGroup": lambda who: to_message(
        contract.JoinRequest(identity=who, protocols=(("range", Subscription(topics=("orders",))),), reason=""),
        groups.config_of(who.instance_id),
    ),
    "SyncGroup": lambda who: to_message(
        contract.SyncRequest(identity=who, protocol="range"), groups.config_of(who.instance_id)
    ),
    "Heartbeat": lambda who: to_message(contract.HeartbeatRequest(identity=who), groups.config_of(who.instance_id)),
    "LeaveGroup": lambda who: messages.leave_group("g", [who], "a test").members[0],
    "OffsetCommit": lambda who: messages.offset_commit("g", who, {TopicPartition("orders", 0): 1}),
}


@pytest.mark.parametrize("request_name", REQUESTS)
@pytest.mark.parametrize("instance_id", ["seat-0", None])
def test_every_request_of_a_member_says_its_instance_id_and_null_makes_it_dynamic(
    request_name: str, instance_id: str | None
) -> None:
    """ "New Configurations", "Client Side Changes": the field is in the requests of all five."""
    sent = REQUESTS[request_name](replace(STATIC, instance_id=instance_id))
    assert (sent.group_instance_id, sent.member_id) == (instance_id, ME)


def test_several_members_leave_with_one_request_as_pairs_of_member_id_and_instance_id() -> None:
    """ "Client Side Changes", "Scale Down": LeaveGroup has a list, so that members can be removed together."""
    leaving = [STATIC, MemberIdentity(instance_id="seat-1"), MemberIdentity(instance_id=None, member_id="dynamic-7")]
    pairs = [(m.group_instance_id, m.member_id) for m in messages.leave_group("g", leaving, "").members]
    assert pairs == [("seat-0", ME), ("seat-1", ""), (None, "dynamic-7")]


def test_a_leader_is_told_the_instance_id_of_each_member_and_so_is_its_assignor() -> None:
    """ "Client Side Changes" (JoinGroupResponse, Subscription), "Client Behavior Changes": this id stays."""
    wanted = encode_subscription(Subscription(topics=("orders",)))
    named = {"1": "A", "2": "B", "3": None}
    request = contract.JoinRequest(
        identity=STATIC, protocols=(("range", Subscription(topics=("orders",))),), reason="a test"
    )
    answer = kio_messages.JoinGroupResponse(
        throttle_time=NO_THROTTLE,
        error_code=KioErrorCode.none,
        generation_id=i32(5),
        protocol_type="consumer",
        protocol_name="range",
        leader=ME,
        skip_assignment=False,
        member_id=ME,
        members=tuple(
            JoinGroupResponseMember(member_id=member_id, group_instance_id=instance_id, metadata=wanted)
            for member_id, instance_id in named.items()
        ),
    )
    driver = Driver().into(State.JOINING)
    event = to_event(request, kio_messages.as_ours(answer))
    assert isinstance(event, contract.JoinResponse)
    effects = driver.answer_join(leader=ME, members=event.members)
    members = only(effects, contract.ComputeAssignment).members
    assert {member.member_id: member.instance_id for member in members} == named


# ------------------------------------------------------------------------------------------- "Server Side Changes"


def test_the_session_that_we_ask_for_is_within_the_cap_that_brokers_have() -> None:
    """The cap became half an hour. "Client Behavior Changes" advises a long session, so ours is longer than Kafka's."""
    kafkas_default_ms, cap_ms = 45_000, 1_800_000
    assert kafkas_default_ms < SESSION_TIMEOUT_MS <= cap_ms


# --------------------------------------------------------------------------------------- "Client Behavior Changes"


def test_a_static_member_first_joins_with_its_instance_id_and_no_member_id() -> None:
    """The instance id is in the first JoinGroup, which makes the member static from its beginning."""
    driver = Driver()
    assert driver.take(contract.Join()) == [contract.Connect(reason="start")]
    request = request_in(driver.take(contract.Connected()))
    assert isinstance(request, contract.JoinRequest)
    assert request.reason == "start"
    assert request.identity == MemberIdentity(instance_id="seat-0", member_id=UNKNOWN_MEMBER_ID)
    assert claim(request).owned == frozenset()
    assert claim(request).generation == NO_GENERATION


@pytest.mark.parametrize("state", [State.JOINING, State.ASSIGNING, State.SYNCING, State.STABLE, State.REVOKING])
def test_a_static_member_that_goes_offline_sends_no_leave_request_and_leaves_its_seat_to_the_session(
    state: State,
) -> None:
    driver = Driver().into(state)
    assert driver.take(contract.Close()) == []


def member(member_id: str, instance_id: str | None, owned: frozenset[TopicPartition] = frozenset()) -> GroupMember:
    return GroupMember(
        member_id=member_id,
        instance_id=instance_id,
        subscription=Subscription(topics=("orders",), owned=owned, generation=5 if owned else NO_GENERATION),
    )


NINE = {"orders": TopicDescription(name="orders", topic_id=None, partition_count=9)}


def test_range_assigns_the_same_before_and_after_the_restart_of_the_example() -> None:
    """The KIP's own example: A, B and C have the ids 1, 2 and 3. A restarts, and is 4 from then on."""
    before = assignor("range").assign([member("1", "A"), member("2", "B"), member("3", "C")], NINE)
    after = assignor("range").assign([member("2", "B"), member("3", "C"), member("4", "A")], NINE)
    assert before == {"1": parts(0, 1, 2), "2": parts(3, 4, 5), "3": parts(6, 7, 8)}
    assert after == {"4": parts(0, 1, 2), "2": parts(3, 4, 5), "3": parts(6, 7, 8)}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("partitions", [7, 10])
def test_a_static_member_that_has_a_new_member_id_is_assigned_its_former_partitions(name: str, partitions: int) -> None:
    """Its instance id is the first key by which members are sorted, so a sticky one need not even make a claim."""
    topics = {"orders": TopicDescription(name="orders", topic_id=None, partition_count=partitions)}
    before = assignor(name).assign([member(f"m{k}", f"seat-{k}") for k in range(4)], topics)
    again = [member("zzz", "seat-0"), *(member(f"m{k}", f"seat-{k}") for k in (1, 2, 3))]
    assert assignor(name).assign(again, topics) == {"zzz" if who == "m0" else who: s for who, s in before.items()}


def test_the_newest_of_two_processes_with_one_instance_id_has_the_seat_and_the_older_one_is_fenced() -> None:
    """To give each its own is the user's part, but duplicates are found."""
    world = groups.at_rest(static=3)
    before = groups.shares(world)
    older = groups.process_of(world, "seat-1")
    world.launch("seat-1")
    newer = world.processes[-1]
    groups.come_to_rest(world)
    assert isinstance(older.failure, FencedInstanceId)
    assert newer.running
    assert groups.shares(world) == before


# ------------------------------------------------------------------------------------------ "Join Group Logic Change"


def test_a_static_member_that_comes_back_gets_the_same_generation_and_assignment() -> None:
    """In a group at rest a known instance id gets a new member id at once, and its earlier assignment."""
    driver = Driver().into(State.JOINING)
    effects = driver.answer_join(generation=41, leader="somebody")
    joined = only(effects, contract.Joined)
    assert joined.rejoined
    assert joined.identity == MemberIdentity(instance_id="seat-0", member_id=ME, generation=41)
    assert none_of(effects, contract.ComputeAssignment)
    assigned = only(driver.answer_sync(3, 5), contract.Assigned)
    assert assigned == contract.Assigned(
        identity=joined.identity, assigned=parts(3, 5), added=parts(3, 5), revoked=frozenset()
    )
    assert driver.state is State.STABLE


def test_only_a_static_join_without_a_member_id_counts_as_given_back() -> None:
    assert only(Driver().into(State.STABLE).rebalance_and_join(), contract.Joined).rejoined is False
    dynamic = Driver(instance_id=None).into(State.JOINING)
    assert only(dynamic.answer_join(), contract.Joined).rejoined is False


def fenced_joining() -> list[contract.Effect]:
    driver = Driver().into(State.STABLE)
    driver.take(contract.RejoinWanted(reason="test"))
    return driver.answer_join(error=ErrorCode.FENCED_INSTANCE_ID)


def fenced_syncing() -> list[contract.Effect]:
    driver = Driver().into(State.STABLE)
    driver.rebalance_and_join()
    return driver.answer_sync(error=ErrorCode.FENCED_INSTANCE_ID)


def fenced_by_heartbeat() -> list[contract.Effect]:
    driver = Driver().into(State.STABLE)
    driver.after(3_000)
    return driver.answer_beat(ErrorCode.FENCED_INSTANCE_ID)


def fenced_by_commit() -> list[contract.Effect]:
    driver = Driver().into(State.STABLE)
    return driver.take(contract.MembershipRefused(identity=driver.machine.identity, error=ErrorCode.FENCED_INSTANCE_ID))


@pytest.mark.parametrize("fenced", [fenced_joining, fenced_syncing, fenced_by_heartbeat, fenced_by_commit])
def test_a_member_that_is_fenced_by_any_of_four_requests_ends_at_once_and_names_its_seat(
    fenced: Callable[[], list[contract.Effect]],
) -> None:
    """Another process has its place, which is for the user to mend. To join again would fence the newer one."""
    effects = fenced()
    assert only(effects, contract.Lost).partitions == parts(0, 1)
    error = only(effects, contract.Failed).error
    assert isinstance(error, FencedInstanceId)
    assert "seat-0" in str(error)
    assert none_of(effects, contract.Send, contract.Connect)


def test_a_zombie_that_wakes_up_is_fenced_and_does_not_fence_its_successor() -> None:
    """1. A pause longer than the session. 2. Another process takes the seat. 3. The first one wakes up, and joins with
    its outdated member id, as a member that knows one must."""
    driver = Driver().into(State.STABLE)
    effects = driver.after(SESSION_MS)
    assert only(effects, contract.Lost).partitions == parts(0, 1)
    assert request_in(effects).identity == MemberIdentity(instance_id="seat-0", member_id=ME)
    assert isinstance(
        only(driver.answer_join(error=ErrorCode.FENCED_INSTANCE_ID), contract.Failed).error, FencedInstanceId
    )


def test_a_seat_that_was_given_away_is_taken_anew_only_when_the_coordinator_says_so() -> None:
    driver = Driver().into(State.STABLE)
    driver.after(SESSION_MS)
    effects = driver.answer_join(error=ErrorCode.UNKNOWN_MEMBER_ID)
    assert request_in(effects).identity == MemberIdentity(instance_id="seat-0", member_id=UNKNOWN_MEMBER_ID)
    assert none_of(effects, contract.Lost), "lost already"


def test_deviates_a_member_that_is_fenced_before_its_id_was_confirmed_asks_who_has_its_seat_before_it_ends() -> None:
    """The KIP ends every fenced member.

    1. We replace X while the group rebalances. 2. The coordinator dies before it has written that down. 3. The next one
    knows X alone and fences us, though no other process has the seat.
    """
    before = "seat-0-of-the-process-before"
    driver = Driver()
    driver.machine = ClassicMember(replace(driver.machine.config, replaces=before), jitter=lambda: 0.5)
    driver.take(contract.Join())
    driver.take(contract.Connected())
    driver.answer_join()
    assert driver.answer_sync(error=ErrorCode.FENCED_INSTANCE_ID) == [contract.LookAtSeat()]
    join = request_in(driver.take(contract.SeatSeen(member_id=before)))
    assert join.identity == MemberIdentity(instance_id="seat-0")


def test_deviates_a_broker_without_static_members_is_refused_and_not_spoken_to_in_an_older_version() -> None:
    """The KIP goes down to JoinGroup v3 and dynamic members. Seats would lose their promises without a word."""
    ranges = {**RANGES, int(kio_messages.JoinGroupRequest.__api_key__): (0, 4)}

    @in_a_world(ranges=ranges)
    async def scenario(world: BrokerWorld) -> None:
        settings = GroupSettings(
            bootstrap=(world.brokers[0].address,), group="g", topics=("a",), instance_ids=("seat-0",)
        )
        group = Group(settings)
        try:
            await group.start()
            await until(lambda: group._seats.sessions["seat-0"].failure is not None)
            with pytest.raises(UnsupportedApi, match=rf"JoinGroup v9 is needed.*{messages.OLDEST_KAFKA} or newer"):
                group.view()
        finally:
            await group.close()

    scenario()


# ---------------------------------------------------------------------------------------- "Leave Group Logic Change"


def test_a_static_member_that_leaves_names_its_member_id_so_that_only_it_is_removed() -> None:
    """Rule 1: the instance id is a must. A member id beside it guards the process that has the seat by now."""
    driver = Driver().into(State.STABLE)
    request = request_in(driver.take(contract.Leave(reason="done")))
    assert request == contract.LeaveRequest(
        identity=MemberIdentity(instance_id="seat-0", member_id=ME, generation=1), reason="done"
    )
    assert driver.take(contract.LeaveResponse(request=request, error=0)) == [contract.Left(error=0)]
    assert driver.state is State.CLOSED


def test_a_static_member_that_has_no_id_yet_leaves_by_its_instance_id_alone_if_it_has_asked_for_the_seat() -> None:
    """Rule 1: without a member id the instance id is enough.

    Before we asked for the seat, leaving would remove another process's member.
    """
    driver = Driver()
    driver.take(contract.Join())
    assert driver.take(contract.Leave(reason="done")) == [contract.Left(error=ErrorCode.NETWORK_EXCEPTION)]
    asked = Driver().into(State.JOINING)
    request = request_in(asked.take(contract.Leave(reason="done")))
    assert request == contract.LeaveRequest(identity=MemberIdentity(instance_id="seat-0"), reason="done")


def test_a_dynamic_member_leaves_by_its_member_id_and_no_instance_id() -> None:
    """Rule 2."""
    driver = Driver(instance_id=None).into(State.STABLE)
    request = request_in(driver.take(contract.Leave(reason="done")))
    assert (request.identity.member_id, request.identity.instance_id) == (ME, None)


# --------------------------------------------------------------------------------------------------- "Rolling Bounce"


def into_joining_with_unclaimed() -> Driver:
    """Holds 0 and 1, which no answered join has claimed, and is cut off while it joins."""
    driver = Driver().into(State.STABLE)
    driver.take(contract.RejoinWanted(reason="test"))
    driver.lose_connection()
    driver.take(contract.Connected())
    return driver


def test_a_lagging_static_member_joins_after_a_generation_without_it_and_loses_its_unclaimed_partitions() -> None:
    """The rebalance timeout removes no static member.

    1. It is assigned 0 and 1. 2. It cannot rejoin in time and stays, with an empty claim. 3. The leader may give 0 and
    1 away. 4. Its own join, into the next generation, succeeds. The KIP leaves open who reads them.
    """
    driver = into_joining_with_unclaimed()
    effects = driver.answer_join(generation=3)
    assert [type(effect) for effect in effects] == [contract.Lost, contract.Joined, contract.Send]
    assert only(effects, contract.Lost).partitions == parts(0, 1)
    assert only(driver.answer_sync(1), contract.Assigned).added == parts(1), "what comes back is adopted anew"


def test_a_lagging_static_member_keeps_the_partitions_that_its_last_join_claimed() -> None:
    driver = Driver().into(State.STABLE)
    driver.rebalance_to(0, 1, 2)  # the join claimed 0 and 1
    driver.take(contract.RejoinWanted(reason="test"))
    effects = driver.answer_join(generation=4)
    assert only(effects, contract.Lost).partitions == parts(2)
    assert driver.machine.owned == parts(0, 1)


def test_a_static_member_that_missed_no_generation_loses_no_partition() -> None:
    driver = into_joining_with_unclaimed()
    assert none_of(driver.answer_join(generation=2), contract.Lost)
    assert driver.machine.owned == parts(0, 1)


def test_deviates_a_member_without_an_answer_for_a_session_loses_all_partitions_without_being_told() -> None:
    """A session that is over is the one reason for which members are removed.

    The KIP, and Kafka's client, leave it to the coordinator to say so. There may be no coordinator to say it, and other
    members read our partitions by then.
    """
    driver = Driver().into(State.STABLE)
    driver.after(HEARTBEAT_MS)  # never answered: the session runs from the last answer
    assert none_of(driver.after(SESSION_MS - HEARTBEAT_MS - 1), contract.Lost)
    effects = driver.after(1)
    assert only(effects, contract.Lost).partitions == parts(0, 1)
    assert driver.state is State.JOINING
    assert only(effects, contract.Connect), "nothing more is asked where a question went unanswered"
    assert claim(request_in(driver.take(contract.Connected()))).owned == frozenset()


# ---------------------------------------------------------------------------- "Fault-tolerance of Static Membership"


def test_a_coordinator_that_takes_over_knows_the_static_members_and_no_partition_moves() -> None:
    world = groups.at_rest(static=3)
    before, generation = groups.shares(world), world.coordinator.generation
    world.fail_over()
    groups.restart(world, "seat-2")
    groups.come_to_rest(world)
    assert (groups.shares(world), world.coordinator.generation) == (before, generation)


# ----------------------------------------------------------------------- "Upgrade Process" and "Downgrade Process"


def test_static_and_dynamic_members_are_in_one_group_and_only_the_dynamic_ones_rebalance_it_when_they_restart() -> None:
    world = groups.at_rest(static=2, dynamic=2)
    generation = world.coordinator.generation
    groups.restart(world, "seat-1")
    groups.come_to_rest(world)
    assert world.coordinator.generation == generation
    groups.bounce(world, "dynamic-0", (groups.COOPERATIVE,))
    groups.come_to_rest(world)
    assert world.coordinator.generation > generation


def test_a_static_member_that_comes_back_as_a_dynamic_one_is_new_and_its_seat_goes_with_its_session() -> None:
    """ "Downgrade Process": its old identity is unrelated to the new one, and is forgotten in the end."""
    world = groups.at_rest(static=3)
    groups.process_of(world, "seat-2").kill()
    world.seats["seat-2"] = groups.config_of(None)
    world.launch("seat-2")
    world.run_for(2_000)
    assert world.coordinator.static("seat-2") is not None, "until its session is over"
    groups.come_to_rest(world)
    assert world.coordinator.static("seat-2") is None
    assert len(groups.shares(world)["seat-2"]) == 3
