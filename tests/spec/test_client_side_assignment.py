"""Kafka's "Client-side Assignment Proposal": two phases, a leader that assigns, and the consumers' embedded protocol.

A test names the section that it paraphrases. One that begins with `test_deviates` says where we do otherwise, and why.
Left out: the coordinator's states and how it finds its groups again, use cases other than consumers, and "TODO".
Later KIPs that changed it have files of their own: KIP-345, KIP-429, KIP-814.
"""

from __future__ import annotations

from typing import Any

import pytest
from harness import undisturbed_groups as groups
from harness.assigning_group import T0, Coordinator, seat
from harness.classic_driver import (
    COOPERATIVE,
    EAGER,
    HEARTBEAT_MS,
    ME,
    Driver,
    claim,
    member,
    none_of,
    only,
    parts,
    request_in,
)
from harness.fake_broker import on_a_loop, until
from harness.kio_messages import HeartbeatRequest, JoinGroupRequest, SyncGroupRequest, as_ours
from harness.sessions import joined, running, session_of, synced

from spark_kgroup.assignors import NAMES, assignor
from spark_kgroup.errors import GroupRejected
from spark_kgroup.member import contract
from spark_kgroup.member.classic import State
from spark_kgroup.model import (
    NO_GENERATION,
    ErrorCode,
    GroupMember,
    MemberIdentity,
    Subscription,
    TopicDescription,
)
from spark_kgroup.runtime.translate import to_event, to_message
from spark_kgroup.wire.consumer_protocol import (
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)

WANTED = Subscription(topics=("orders",))
JOIN = contract.JoinRequest(
    identity=MemberIdentity(instance_id=None, member_id=ME),
    protocols=(("range", WANTED), ("roundrobin", WANTED)),
    reason="a test",
)

# -------------------------------------------------------------------------------------- "Phase 1: Joining the Group"


def test_a_member_joins_when_it_has_found_the_coordinator() -> None:
    driver = Driver()
    assert driver.take(contract.Join()) == [contract.Connect(reason="start")]
    assert isinstance(request_in(driver.take(contract.Connected())), contract.JoinRequest)


def test_a_join_offers_every_assignor_in_order_of_preference_each_with_metadata_of_its_own() -> None:
    driver = Driver(assignors=(EAGER, COOPERATIVE)).into(State.JOINING)
    join = driver.last_sent()
    assert isinstance(join, contract.JoinRequest)
    assert [(name, s.user_data) for name, s in join.protocols] == [("range", b"range:0@-1"), ("sticky", b"sticky:0@-1")]
    message: Any = to_message(JOIN, groups.config_of(None))
    assert [offered.name for offered in message.protocols] == ["range", "roundrobin"]


def test_a_member_without_an_assignor_that_all_other_members_have_is_rejected_and_ends() -> None:
    driver = Driver().into(State.JOINING)
    failed = only(driver.answer_join(error=ErrorCode.INCONSISTENT_GROUP_PROTOCOL), contract.Failed)
    assert isinstance(failed.error, GroupRejected)
    assert "partition.assignment.strategy" in str(failed.error)


def test_an_answer_that_names_an_assignor_that_was_not_offered_is_taken_as_such_a_rejection() -> None:
    event = to_event(JOIN, as_ours(joined(leader=ME, protocol_name="of-somebody-else")))
    assert isinstance(event, contract.JoinResponse)
    assert event.error == ErrorCode.INCONSISTENT_GROUP_PROTOCOL


def test_a_leader_runs_the_assignor_that_the_coordinator_chose_over_the_metadata_given_for_it() -> None:
    answer = joined(leader="m", protocol_name="roundrobin", members={"m": encode_subscription(WANTED)})
    event = to_event(JOIN, as_ours(answer))
    assert isinstance(event, contract.JoinResponse)
    assert (event.protocol, [m.subscription.topics for m in event.members]) == ("roundrobin", [("orders",)])
    work = only(Driver().into(State.JOINING).answer_join(leader=ME, members=(member(ME),)), contract.ComputeAssignment)
    assert work.assignor == "sticky"


def test_a_leader_that_offers_several_syncs_the_assignment_of_the_chosen_one() -> None:
    @on_a_loop
    async def scenario() -> None:
        coordinator = Coordinator(protocol="first-takes-all")
        offered = (assignor("range"), assignor("harness.custom_assignors:FirstTakesAll"))
        leader = session_of(coordinator, group="led", topics=("t",), assignors=offered, heartbeat_interval_ms=10)
        async with coordinator.broker, running(leader):
            await until(lambda: leader.machine.owned == {T0})
            (sync,) = (r for r in coordinator.broker.requests if isinstance(r, SyncGroupRequest))
            assert sync.protocol_name == "first-takes-all"
            (join,) = (r for r in coordinator.broker.requests if isinstance(r, JoinGroupRequest))
            assert [offer.name for offer in join.protocols] == ["range", "first-takes-all"]

    scenario()


def test_a_follower_is_told_of_no_members_and_assigns_no_partitions() -> None:
    driver = Driver().into(State.JOINING)
    effects = driver.answer_join(leader="somebody")
    assert none_of(effects, contract.ComputeAssignment)
    sync = request_in(effects)
    assert isinstance(sync, contract.SyncRequest)
    assert sync.assignments == ()


# ---------------------------------------------------------------------------- "Phase 2: Synchronizing Group State"


def test_a_leader_sends_everybodys_share_of_the_generation_that_it_leads_and_of_no_other() -> None:
    driver = Driver().into(State.ASSIGNING)
    assert driver.take(contract.AssignmentComputed(generation=0, assignments=((ME, parts(9)),))) == []
    shares = ((ME, parts(0)), ("b", parts(1)))
    sync = request_in(driver.take(contract.AssignmentComputed(generation=1, assignments=shares)))
    assert isinstance(sync, contract.SyncRequest)
    assert sync.assignments == shares


@pytest.mark.parametrize("leads", [True, False])
def test_every_member_the_leader_too_finds_its_assignment_in_the_answer_to_its_sync(leads: bool) -> None:
    driver = Driver().into(State.ASSIGNING if leads else State.SYNCING)
    if leads:
        driver.take(contract.AssignmentComputed(generation=1, assignments=((ME, parts(7)),)))
    assert only(driver.answer_sync(0, 1), contract.Assigned).assigned == parts(0, 1)
    sync = contract.SyncRequest(identity=JOIN.identity, protocol="range")
    event = to_event(sync, as_ours(synced(sorted(parts(0, 1)), protocol_name="range")))
    assert isinstance(event, contract.SyncResponse)
    assert event.assignment == parts(0, 1)


# --------------------------------------------------------------------------------------- "Coordinator State Machine"


def test_a_member_whose_heartbeat_or_sync_meets_a_rebalance_joins_it() -> None:
    beating = Driver().into(State.STABLE)
    beating.after(HEARTBEAT_MS)
    assert isinstance(request_in(beating.answer_beat(ErrorCode.REBALANCE_IN_PROGRESS)), contract.JoinRequest)
    syncing = Driver().into(State.SYNCING)
    assert isinstance(request_in(syncing.answer_sync(error=ErrorCode.REBALANCE_IN_PROGRESS)), contract.JoinRequest)


@pytest.mark.parametrize("state", [State.STABLE, State.REVOKING])
def test_heartbeats_keep_a_member_active_through_its_generation(state: State) -> None:
    driver = Driver().into(state)
    driver.answer_beat()
    for _ in range(20):
        assert isinstance(request_in(driver.after(HEARTBEAT_MS)), contract.HeartbeatRequest)
        driver.answer_beat()
    assert driver.state is state


def test_the_generation_is_the_last_one_until_the_next_is_complete_so_commits_of_its_work_are_still_good() -> None:
    driver = Driver().into(State.STABLE)
    driver.take(contract.RejoinWanted(reason="test"))
    assert (driver.machine.identity.generation, driver.machine.owned) == (1, parts(0, 1))
    driver.answer_join(generation=2)
    assert driver.machine.identity.generation == 2


def test_a_group_whose_leader_goes_before_it_has_assigned_gets_a_new_one_and_each_member_a_share() -> None:
    """ "Leader Failures" as well: its session ends, all join again, and another one is elected."""
    world = groups.at_rest(static=3)
    leader = groups.leader_of(world)
    groups.process_of(world, leader).post(contract.RejoinWanted(reason="a test"))
    generation = world.coordinator.generation
    while world.coordinator.generation == generation:
        world.run_for(1)
    groups.process_of(world, leader).kill()
    del world.seats[leader]
    groups.come_to_rest(world)
    assert groups.leader_of(world) != leader


# --------------------------------------------------------------------------------------- "Consumer Embedded Protocol"


def test_the_type_of_the_group_is_consumer_and_the_names_of_its_protocols_are_those_of_assignors() -> None:
    join: Any = to_message(JOIN, groups.config_of(None))
    sync: Any = to_message(contract.SyncRequest(identity=JOIN.identity, protocol="range"), groups.config_of(None))
    assert (join.protocol_type, sync.protocol_type, sync.protocol_name) == ("consumer", "consumer", "range")


def test_metadata_is_a_version_then_topics_then_bytes_of_the_assignor_s_own() -> None:
    raw = encode_subscription(Subscription(topics=("a", "bc"), user_data=b"own"))
    version, topics, user_data = raw[:2], raw[2:13], raw[13:20]
    assert int.from_bytes(version) >= 0
    assert topics == b"\0\0\0\2" + b"\0\1a" + b"\0\2bc"
    assert user_data == b"\0\0\0\3own"


def test_an_assignment_is_a_version_then_topics_with_partitions_then_bytes_of_the_assignor_s_own() -> None:
    raw = encode_assignment(sorted(parts(1, 3, topic="a")))
    version, rest = raw[:2], raw[2:]
    assert int.from_bytes(version) >= 0
    assert rest == b"\0\0\0\1" + b"\0\1a" + b"\0\0\0\2" + b"\0\0\0\1\0\0\0\3" + b"\xff\xff\xff\xff"


def test_metadata_of_the_proposal_s_own_version_is_read() -> None:
    assert decode_subscription(b"\0\0" + b"\0\0\0\1\0\1a" + b"\xff\xff\xff\xff") == Subscription(topics=("a",))


def test_deviates_a_leader_whose_topics_have_changed_has_all_members_join_instead_of_sending_a_sync_alone() -> None:
    """Case 4.a, and "Topic Metadata Change", let it compute and sync within the generation.

    Brokers answer such a sync with the present assignment: Kafka's client joins, and so do we.
    """
    driver = Driver().into(State.ASSIGNING)
    driver.take(contract.AssignmentComputed(generation=1, assignments=((ME, parts(0)),)))
    driver.answer_sync(0)
    effects = driver.take(contract.RejoinWanted(reason="partition count changed"))
    assert isinstance(request_in(effects), contract.JoinRequest)
    assert none_of(effects, contract.ComputeAssignment)


@pytest.mark.parametrize("name", NAMES)
def test_members_are_assigned_only_subscribed_topics_however_their_subscriptions_differ(name: str) -> None:
    """ "Rolling Upgrades", 1: so a new version may subscribe to other topics than the old one."""
    wanted = {"old": ("a",), "new": ("a", "b"), "odd": ("b", "gone")}
    members = [
        GroupMember(member_id=who, instance_id=None, subscription=Subscription(topics=topics, generation=NO_GENERATION))
        for who, topics in wanted.items()
    ]
    there = {t: TopicDescription(name=t, topic_id=None, partition_count=4) for t in ("a", "b")}
    shares = assignor(name).assign(members, there)
    assert sorted(tp for share in shares.values() for tp in share) == sorted(
        tp for topic in there.values() for tp in topic.partitions
    )
    assert all(tp.topic in wanted[who] for who, share in shares.items() for tp in share)


def test_a_group_changes_its_assignor_when_the_last_member_has_been_upgraded_and_not_before() -> None:
    """ "Rolling Upgrades", 2: new versions offer both assignors, the preferred one first."""
    world = groups.at_rest(static=3, assignors=("range",))
    chosen = []
    for name in ("seat-0", "seat-1", "seat-2"):
        groups.bounce(world, name, ("roundrobin", "range"))
        groups.come_to_rest(world)
        groups.process_of(world, name).post(contract.RejoinWanted(reason="so that the coordinator chooses anew"))
        world.run_for(10)
        groups.come_to_rest(world)
        chosen.append(world.coordinator.protocol)
    assert chosen == ["range", "range", "roundrobin"]


# ------------------------------------------------------------------------------------ "Handling Coordinator Failures"


def test_1_a_join_that_the_failed_coordinator_did_not_answer_is_sent_to_the_next_one() -> None:
    driver = Driver().into(State.JOINING)
    before = driver.last_sent()
    driver.lose_connection()
    assert request_in(driver.take(contract.Connected())) == before


def test_2_a_sync_that_is_aborted_since_other_members_still_join_becomes_a_join() -> None:
    driver = Driver().into(State.STABLE)
    driver.rebalance_and_join()
    request = request_in(driver.answer_sync(error=ErrorCode.REBALANCE_IN_PROGRESS))
    assert isinstance(request, contract.JoinRequest)
    assert claim(request).owned == parts(0, 1)


def test_deviates_3_and_4_a_sync_that_was_not_answered_becomes_a_join_that_asks_for_the_same_generation() -> None:
    """The proposal sends the sync again. A join with unchanged metadata is answered from the current generation,
    without another rebalance, and tells whether it still is the current one."""
    driver = Driver().into(State.STABLE)
    driver.rebalance_and_join()
    before = next(r for r in reversed(driver.sent) if isinstance(r, contract.JoinRequest))
    driver.lose_connection()
    again = request_in(driver.take(contract.Connected()))
    assert isinstance(again, contract.JoinRequest)
    assert again.protocols == before.protocols
    driver.answer_join(generation=2)
    driver.answer_sync(0, 1)
    assert driver.machine.settled


@pytest.mark.parametrize("error", [ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.NOT_COORDINATOR])
def test_a_coordinator_that_is_not_ready_is_asked_again_and_no_partition_is_lost(error: ErrorCode) -> None:
    """ "Coordinator State Machine", Initialize."""
    driver = Driver().into(State.STABLE)
    driver.after(HEARTBEAT_MS)
    effects = driver.answer_beat(error)
    if error == ErrorCode.NOT_COORDINATOR:
        assert only(effects, contract.Connect)
        request = request_in(driver.take(contract.Connected()))
    else:
        request = request_in(driver.after(HEARTBEAT_MS))
    assert isinstance(request, contract.HeartbeatRequest)
    assert driver.machine.owned == parts(0, 1)


# ---------------------------------------------------------------------------------------- "Other Interesting Cases"


@pytest.mark.parametrize("name", ["Raising", "Missing"])
def test_deviates_a_leader_whose_assignor_fails_leaves_all_members_their_claims_and_ends_alone(name: str) -> None:
    """ "Assignment Failure" sends an error to all.

    SyncGroup came without a field for it: the leader's user is told, and the other members go on with their partitions
    (decision 103).
    """

    @on_a_loop
    async def scenario() -> None:
        coordinator = Coordinator(protocol="first-takes-all", claimed=frozenset({T0}))
        broken = assignor(f"harness.custom_assignors:{name}")
        leader, quiet = seat("led", coordinator, broken), seat("quiet", coordinator, broken)
        async with coordinator.broker, running(leader, quiet):
            await until(lambda: leader.failure is not None)
            assert f"harness.custom_assignors:{name}" in str(leader.failure)
            before = coordinator.count(HeartbeatRequest, "quiet")
            await until(lambda: coordinator.count(HeartbeatRequest, "quiet") > before)
            assert quiet.failure is None
            (sync,) = [
                r for r in coordinator.broker.requests if isinstance(r, SyncGroupRequest) and r.group_id == "led"
            ]
            assert [decode_assignment(each.assignment) for each in sync.assignments] == [{T0}]

    scenario()
