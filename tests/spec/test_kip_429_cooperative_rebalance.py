"""KIP-429, "Kafka Consumer Incremental Rebalance Protocol": its rules for members and their leader.

Numbers like 1.c are those of "Consumer Coordinator Algorithm", in the version that was accepted. A test that begins
with `test_deviates` says where we do otherwise, and why. KIP-792, which puts a generation beside the claims, and
KIP-394, which 1.e is about, are named where they are meant. Left out: "Looking into the Future", and Kafka Streams.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import pytest
from harness import undisturbed_groups as groups
from harness.classic_driver import COOPERATIVE, EAGER, ME, Driver, claim, none_of, only, parts, request_in
from harness.simulated_world import MemberWorld

from spark_kgroup.assignors import assignor
from spark_kgroup.assignors.contract import Assignor, RebalanceProtocol
from spark_kgroup.member import contract
from spark_kgroup.member.classic import State
from spark_kgroup.model import (
    NO_GENERATION,
    UNKNOWN_MEMBER_ID,
    Assignment,
    ErrorCode,
    GroupMember,
    MemberIdentity,
    Subscription,
    TopicDescription,
    TopicPartition,
)

# -------------------------------------------------------------------------------- 1.a: the subscription has changed


def restarted_with_another_subscription() -> Driver:
    """Back in generation 4, in which its seat was assigned `dropped`, which it does not subscribe any more."""
    driver = Driver().into(State.JOINING)
    driver.answer_join(generation=4)
    request = next(r for r in reversed(driver.sent) if isinstance(r, contract.SyncRequest))
    owned_before = parts(0) | parts(0, topic="dropped")
    driver.take(contract.SyncResponse(request=request, error=ErrorCode.NONE, assignment=owned_before))
    return driver


def test_1a_partitions_no_longer_subscribed_are_revoked_and_the_join_after_that_claims_the_rest() -> None:
    driver = restarted_with_another_subscription()
    assert driver.machine.to_give_up == parts(0, topic="dropped")
    subscription = claim(request_in(driver.take(contract.GaveUp(partitions=parts(0, topic="dropped")))))
    assert (subscription.topics, subscription.owned, subscription.generation) == (("orders",), parts(0), 4)


def test_deviates_1a_partitions_no_longer_subscribed_are_claimed_until_their_batch_here_is_done() -> None:
    """The KIP revokes before each such join.

    Work that an earlier process began may still read an unsubscribed partition. It goes when that work is done, and
    joins before that claim it, so that its next owner begins where the work ends.
    """
    driver = restarted_with_another_subscription()
    subscription = claim(request_in(driver.answer_beat(ErrorCode.REBALANCE_IN_PROGRESS)))
    assert (subscription.owned, subscription.generation) == (parts(0) | parts(0, topic="dropped"), 4)
    driver.answer_join(generation=5)
    assert only(driver.answer_sync(0), contract.Assigned).revoked == parts(0, topic="dropped")
    assert claim(request_in(driver.take(contract.GaveUp(partitions=parts(0, topic="dropped"))))).owned == parts(0)


# ---------------------------------------------------------------------------------- 1.b: topic metadata has changed


def test_1b_a_leader_whose_topics_have_changed_joins_and_gives_the_reason() -> None:
    driver = Driver().into(State.ASSIGNING)
    driver.take(contract.AssignmentComputed(generation=1, assignments=((ME, parts(0)),)))
    driver.answer_sync(0)
    assert driver.machine.leader
    request = request_in(driver.take(contract.RejoinWanted(reason="partition count changed")))
    assert isinstance(request, contract.JoinRequest)
    assert (request.reason, request.identity.member_id) == ("partition count changed", ME)


def test_deviates_1b_partitions_that_are_gone_are_claimed_and_given_up_as_any_that_are_revoked() -> None:
    """The KIP has them lost when metadata says so. Brokers lag behind each other, so one of them may say so of a topic
    that is there: the next assignment decides."""
    driver = Driver().into(State.STABLE)
    request = request_in(driver.take(contract.RejoinWanted(reason="orders-1 is gone")))
    assert claim(request).owned == parts(0, 1)
    driver.answer_join(generation=2)
    effects = driver.answer_sync(0)
    assert only(effects, contract.Assigned).revoked == parts(1)
    assert none_of(effects, contract.Lost)


# ------------------------------------------------------------------------------------- 1.c: the group is rebalancing


def test_1c_a_member_told_of_a_rebalance_joins_at_once_and_claims_all_that_it_owns() -> None:
    driver = Driver().into(State.STABLE)
    driver.after(3_000)
    effects = driver.answer_beat(ErrorCode.REBALANCE_IN_PROGRESS)
    assert [type(effect) for effect in effects] == [contract.Rejoining, contract.Send]
    assert claim(request_in(effects)).owned == parts(0, 1)
    assert driver.state is State.JOINING


def test_1c_a_join_claims_the_owned_partitions_and_with_kip_792_the_generation_that_assigned_them() -> None:
    driver = Driver().into(State.STABLE)
    request = request_in(driver.take(contract.RejoinWanted(reason="because")))
    assert isinstance(request, contract.JoinRequest)
    assert request.reason == "because"
    assert request.identity == MemberIdentity(instance_id="seat-0", member_id=ME, generation=1)
    subscription = claim(request)
    assert (subscription.owned, subscription.generation) == (parts(0, 1), 1)
    assert subscription.topics == ("orders",)
    assert subscription.user_data == b"sticky:2@1", "the assignor's own bytes"


def test_1c_partitions_stay_owned_while_the_group_rebalances() -> None:
    driver = Driver().into(State.STABLE)
    driver.take(contract.RejoinWanted(reason="test"))
    assert driver.machine.owned == parts(0, 1)
    driver.answer_join(generation=2)
    assert driver.machine.owned == parts(0, 1)
    assert driver.machine.to_give_up == frozenset()


# ------------------------------------------------------------------------------------- 1.d: the membership is over

Where = Callable[[Driver, int], list[contract.Effect]]


def lost_joining(driver: Driver, error: int) -> list[contract.Effect]:
    driver.take(contract.RejoinWanted(reason="test"))
    return driver.answer_join(error=error)


def lost_syncing(driver: Driver, error: int) -> list[contract.Effect]:
    driver.rebalance_and_join()
    return driver.answer_sync(error=error)


def lost_by_heartbeat(driver: Driver, error: int) -> list[contract.Effect]:
    driver.after(3_000)
    return driver.answer_beat(error)


def lost_by_commit(driver: Driver, error: int) -> list[contract.Effect]:
    return driver.take(contract.MembershipRefused(identity=driver.machine.identity, error=error))


@pytest.mark.parametrize("where", [lost_joining, lost_syncing, lost_by_heartbeat, lost_by_commit])
def test_1d_a_member_that_the_group_does_not_know_loses_all_at_once_and_joins_without_a_claim(where: Where) -> None:
    driver = Driver().into(State.STABLE)
    effects = where(driver, ErrorCode.UNKNOWN_MEMBER_ID)
    assert [type(effect) for effect in effects] == [contract.Lost, contract.Rejoining, contract.Send]
    assert only(effects, contract.Lost).partitions == parts(0, 1)
    assert driver.machine.owned == driver.machine.to_give_up == frozenset()
    request = request_in(effects)
    assert request.identity == MemberIdentity(instance_id="seat-0", member_id=UNKNOWN_MEMBER_ID)
    assert (claim(request).owned, claim(request).generation) == (frozenset(), NO_GENERATION)


@pytest.mark.parametrize("where", [lost_joining, lost_by_heartbeat, lost_by_commit])
@pytest.mark.parametrize("assignor", [COOPERATIVE, EAGER])
def test_1d_a_member_that_fell_behind_keeps_its_id_and_loses_the_partitions_its_last_join_did_not_claim(
    where: Where, assignor: Assignor
) -> None:
    """The KIP's "correspondingly" tells two errors apart: ILLEGAL_GENERATION resets the generation alone."""
    driver = Driver(assignors=(assignor,)).into(State.STABLE)
    if where is lost_joining and assignor is EAGER:
        driver.give_up(0, 1)  # as an eager member does before it joins
    effects = where(driver, ErrorCode.ILLEGAL_GENERATION)
    assert driver.machine.owned == driver.machine.to_give_up == frozenset()
    request = request_in(effects)
    assert request.identity == MemberIdentity(instance_id="seat-0", member_id=ME)
    assert (claim(request).owned, claim(request).generation) == (frozenset(), NO_GENERATION)


@pytest.mark.parametrize("where", [lost_joining, lost_syncing, lost_by_heartbeat, lost_by_commit])
def test_deviates_1d_a_member_that_fell_behind_keeps_the_partitions_its_last_join_claimed(where: Where) -> None:
    """The KIP loses all.

    1. In generation 2 we claim 0 and 1, and get 2, too. 2. A broker makes a group of type consumer a classic one, in a
    generation that we have not joined. 3. The leader of the next one gives the partitions that we claim to no other
    member, but it does not know of 2.
    """
    driver = Driver().into(State.STABLE)
    driver.rebalance_to(0, 1, 2)
    effects = where(driver, ErrorCode.ILLEGAL_GENERATION)
    claimed_since = where is lost_syncing
    lost = [effect.partitions for effect in effects if isinstance(effect, contract.Lost)]
    assert lost == ([] if claimed_since else [parts(2)])
    kept = parts(0, 1, 2) if claimed_since else parts(0, 1)
    assert driver.machine.owned == kept
    request = request_in(effects)
    assert request.identity == MemberIdentity(instance_id="seat-0", member_id=ME)
    assert (claim(request).owned, claim(request).generation) == (kept, 2)
    driver.answer_join(generation=5)
    assert only(driver.answer_sync(0, 1, 2), contract.Assigned).added == parts(0, 1, 2) - kept


# ---------------------------------------------------------------------------------------- 1.e: MEMBER_ID_REQUIRED


def test_1e_a_dynamic_member_joins_again_with_the_id_it_is_given_and_owns_no_partition_by_then() -> None:
    """KIP-394."""
    driver = Driver(instance_id=None).into(State.JOINING)
    assert driver.last_sent().identity == MemberIdentity(instance_id=None)
    effects = driver.answer_join(error=ErrorCode.MEMBER_ID_REQUIRED, member_id="dynamic-7")
    request = request_in(effects)
    assert request.identity == MemberIdentity(instance_id=None, member_id="dynamic-7")
    assert claim(request).owned == frozenset()
    assert driver.state is State.JOINING


def test_1e_a_dynamic_member_keeps_its_id_over_a_lost_connection() -> None:
    driver = Driver(instance_id=None).into(State.JOINING)
    driver.answer_join(error=ErrorCode.MEMBER_ID_REQUIRED, member_id="dynamic-7")
    driver.lose_connection()
    assert request_in(driver.take(contract.Connected())).identity.member_id == "dynamic-7"


# --------------------------------------------------------------------------------------------------- 2: the leader

STICKY = assignor(groups.COOPERATIVE)


def claiming(member_id: str, *owned: int, topics: tuple[str, ...] = ("orders",)) -> GroupMember:
    return GroupMember(
        member_id=member_id,
        instance_id=None,
        subscription=Subscription(topics=topics, owned=parts(*owned), generation=1 if owned else NO_GENERATION),
    )


def orders(count: int) -> dict[str, TopicDescription]:
    return {"orders": TopicDescription(name="orders", topic_id=None, partition_count=count)}


def test_2d_a_partition_whose_owner_changes_is_given_to_no_member_until_the_old_owner_has_revoked_it() -> None:
    first = STICKY.assign([claiming("old", 0, 1, 2, 3), claiming("new")], orders(4))
    assert len(first["old"]) == 2
    assert first["new"] == frozenset()
    revoked = parts(0, 1, 2, 3) - first["old"]
    kept = [tp.partition for tp in first["old"]]
    assert STICKY.assign([claiming("old", *kept), claiming("new")], orders(4)) == {"old": first["old"], "new": revoked}


def test_2e_a_partition_without_an_owner_is_given_to_its_new_owner_at_once() -> None:
    """It is new, or was revoked in the generation before, or its owner was eager and revoked it before it joined."""
    shares = STICKY.assign([claiming("a", 0, 1), claiming("b")], orders(4))
    assert shares == {"a": parts(0, 1), "b": parts(2, 3)}


def test_deviates_2f_a_claimed_partition_that_does_not_exist_is_given_back_to_no_member() -> None:
    """The KIP lets its claimant keep it until a later rebalance. Kafka's own assignor drops it as well
    (AbstractStickyAssignorTest.testAssignmentUpdatedForDeletedTopic): it has no log to read."""
    assert STICKY.assign([claiming("a", 0, 9)], orders(1)) == {"a": parts(0)}
    assert STICKY.assign([claiming("a", 0)], {}) == {"a": frozenset()}


class Curious:
    """A custom assignor that leaves each member its partitions, and keeps the claims that it was shown."""

    name = "curious"
    protocol = RebalanceProtocol.COOPERATIVE

    def __init__(self) -> None:
        self.shown: dict[str, frozenset[TopicPartition]] = {}

    def user_data(self, owned: frozenset[TopicPartition], generation: int) -> bytes | None:
        return f"{len(owned)}@{generation}".encode()

    def assign(self, members: Sequence[GroupMember], topics: Mapping[str, TopicDescription]) -> Assignment:
        there = {tp for topic in topics.values() for tp in topic.partitions}
        self.shown = {m.member_id: m.subscription.owned & there for m in members}
        return self.shown


def test_2a_and_2b_the_assignor_of_the_selected_protocol_is_given_the_claims_of_all_members() -> None:
    """Also "assign()": one that users have written may look at the claims, to be a bit sticky."""
    curious = Curious()
    driver = Driver(assignors=(curious,)).into(State.JOINING)
    members = (claiming(ME, 0, 1), claiming("b", 2))
    work = only(driver.answer_join(leader=ME, members=members), contract.ComputeAssignment)
    assert work.assignor == "curious"
    curious.assign(work.members, orders(3))
    assert curious.shown == {ME: parts(0, 1), "b": parts(2)}


# ----------------------------------------------------------------------------- 3: every member, after the SyncGroup


def test_3a_to_3d_an_assignment_adds_partitions_that_were_not_owned_and_revokes_those_it_does_not_have() -> None:
    driver = Driver().into(State.STABLE)
    assigned = only(driver.rebalance_to(1, 2, 3), contract.Assigned)
    assert (assigned.assigned, assigned.added, assigned.revoked) == (parts(1, 2, 3), parts(2, 3), parts(0))


def test_3a_a_partition_that_is_assigned_again_is_neither_added_nor_revoked() -> None:
    driver = Driver().into(State.STABLE)
    effects = driver.rebalance_to(0, 1)
    assert only(effects, contract.Assigned) == contract.Assigned(
        identity=driver.machine.identity, assigned=parts(0, 1), added=frozenset(), revoked=frozenset()
    )
    assert none_of(effects, contract.Lost, contract.Rejoining)
    assert driver.machine.settled


def test_3e_a_member_that_has_revoked_joins_again_at_once_and_claims_the_rest() -> None:
    driver = Driver().into(State.STABLE)
    driver.rebalance_to(1)
    effects = driver.give_up(0)
    assert [type(effect) for effect in effects] == [contract.Rejoining, contract.Send]
    assert claim(request_in(effects)).owned == parts(1)


def test_deviates_3d_a_revoked_partition_is_owned_until_it_is_given_up_between_two_pieces_of_work() -> None:
    """The KIP revokes when the assignment arrives.

    Work on the partition may be under way then. Its next owner waits for our join, so no record is read twice.
    """
    driver = Driver().into(State.STABLE)
    effects = driver.rebalance_to(1)
    assert driver.state is State.REVOKING
    assert none_of(effects, contract.Rejoining)
    assert driver.machine.owned == parts(0, 1)
    assert driver.machine.to_give_up == parts(0)


def test_3d_a_member_that_gave_up_a_part_of_the_revoked_partitions_does_not_join_yet() -> None:
    driver = Driver().into(State.STABLE)
    driver.rebalance_to(7)
    assert driver.give_up(0) == []
    assert driver.state is State.REVOKING
    assert driver.machine.to_give_up == parts(1)
    assert claim(request_in(driver.give_up(1))).owned == parts(7)


def test_deviates_3d_a_revoking_member_joins_a_new_rebalance_at_once_and_claims_the_partitions_it_still_owns() -> None:
    """Joins never wait for work to end. The claim keeps the partition from its next owner."""
    driver = Driver().into(State.REVOKING)
    effects = driver.answer_beat(ErrorCode.REBALANCE_IN_PROGRESS)
    assert claim(request_in(effects)).owned == parts(0, 1)
    assert driver.state is State.JOINING
    assert driver.machine.to_give_up == parts(1), "still to be given up"


# ------------------------------------------------------------------ "Compatibility, Deprecation, and Migration Plan"


def eager_holding() -> Driver:
    return Driver(assignors=(EAGER,)).into(State.STABLE)


def test_an_eager_member_in_a_rebalance_gives_all_partitions_up_before_it_joins_and_claims_none() -> None:
    driver = eager_holding()
    driver.after(3_000)
    effects = driver.answer_beat(ErrorCode.REBALANCE_IN_PROGRESS)
    assert effects == [contract.GiveUpAll(partitions=parts(0, 1), reason="the group rebalances")]
    assert driver.state is State.REVOKING
    assert driver.machine.to_give_up == parts(0, 1)
    assert driver.give_up(0) == []
    request = request_in(driver.give_up(1))
    assert claim(request).owned == frozenset()


def test_an_eager_member_asked_twice_to_rejoin_gives_everything_up_once() -> None:
    driver = eager_holding()
    driver.take(contract.RejoinWanted(reason="first"))
    assert driver.take(contract.RejoinWanted(reason="second")) == []
    driver.give_up(0, 1)
    assert driver.state is State.JOINING


def test_an_eager_member_without_partitions_joins_a_rebalance_at_once() -> None:
    driver = Driver(assignors=(EAGER,)).into(State.SYNCING)
    driver.answer_sync()
    assert isinstance(request_in(driver.take(contract.RejoinWanted(reason="test"))), contract.JoinRequest)


def test_one_eager_assignor_makes_the_member_eager_and_both_are_offered_in_order_of_preference() -> None:
    """The first bounce: a member with both still revokes all, for other members may know the old one alone."""
    driver = Driver(assignors=(COOPERATIVE, EAGER)).into(State.STABLE)
    driver.take(contract.RejoinWanted(reason="test"))
    assert driver.state is State.REVOKING
    request = request_in(driver.give_up(0, 1))
    assert isinstance(request, contract.JoinRequest)
    assert [name for name, _ in request.protocols] == ["sticky", "range"]
    assert [s.owned for _, s in request.protocols] == [frozenset(), frozenset()]


PATHS = {
    "up": (("range",), (groups.COOPERATIVE, "range"), (groups.COOPERATIVE,)),
    "up, the old one preferred": (("sticky",), ("sticky", groups.COOPERATIVE), (groups.COOPERATIVE,)),
    "down": ((groups.COOPERATIVE,), (groups.COOPERATIVE, "roundrobin"), ("roundrobin",)),
    "down, the new one preferred": ((groups.COOPERATIVE,), ("sticky", groups.COOPERATIVE), ("sticky",)),
}


def bounced(world: MemberWorld, assignors: tuple[str, ...]) -> None:
    """A rolling bounce: each member in turn, and the next one comes before the group is at rest."""
    for name in list(world.seats):
        groups.bounce(world, name, assignors)
        world.run_for(1_500)
    groups.come_to_rest(world)


@pytest.mark.parametrize("path", PATHS.values(), ids=PATHS)
def test_two_rolling_bounces_change_the_rebalance_protocol_and_no_partition_has_two_owners(
    path: tuple[tuple[str, ...], ...],
) -> None:
    """The world's invariants are checked after each step, one owner for a partition among them. With faults beside it:
    `test_changes_of_assignors`."""
    world = groups.at_rest(static=3, dynamic=2, assignors=path[0], partitions=11)
    bounced(world, path[1])
    assert not any(process.config.cooperative for process in world.processes if process.running)
    assert world.coordinator.protocol == path[1][0], "what most of the members prefer"
    bounced(world, path[2])
    assert world.coordinator.protocol == path[2][0]


def test_in_the_first_bounce_the_old_assignor_is_chosen_as_long_as_one_member_has_no_other() -> None:
    world = groups.at_rest(static=3, assignors=("range",))
    for name in ("seat-0", "seat-1"):
        groups.bounce(world, name, (groups.COOPERATIVE, "range"))
        groups.come_to_rest(world)
    assert world.coordinator.protocol == "range"


def test_in_the_second_bounce_no_partition_of_a_cooperative_member_moves() -> None:
    """Eager members beside it have revoked all, so theirs may move at once. The leader knows the eager members."""
    world = groups.at_rest(static=3, dynamic=2, assignors=(groups.COOPERATIVE, "range"), partitions=11)
    groups.bounce(world, "seat-0", (groups.COOPERATIVE,))
    groups.come_to_rest(world)
    process = groups.process_of(world, "seat-0")
    owned = process.machine.owned
    assert owned
    groups.process_of(world, "seat-1").post(contract.RejoinWanted(reason="in which eager members give all up"))
    generation = world.coordinator.generation
    while world.coordinator.generation == generation or world.invariants.at_rest():
        world.run_for(100)
        assert process.machine.owned == owned
