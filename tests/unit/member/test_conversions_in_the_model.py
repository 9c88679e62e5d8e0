"""The model of a coordinator, when members come or go while a seat changes its member id (decision 72)."""

from __future__ import annotations

from harness.classic_driver import parts
from harness.model_conversion import Response
from harness.one_group import OneGroup

from spark_kgroup.assignors import assignor
from spark_kgroup.member import contract
from spark_kgroup.member.config import MemberConfig
from spark_kgroup.model import ErrorCode, MemberIdentity, Subscription, TopicPartition

Who = MemberIdentity


class Group:
    """A model of a coordinator, and its answers."""

    def __init__(self) -> None:
        self.model = OneGroup(initial_delay_ms=0)
        self.now_ms = 0
        self.answers: list[Response] = []

    def ask(self, request: contract.Request) -> Response:
        """The answer, or the one that was given last if this one is parked."""
        config = MemberConfig(
            group="g",
            instance_id=request.identity.instance_id,
            topics=("t",),
            assignors=(assignor("cooperative-sticky"),),
        )
        self.model.receive(request, config, self.answers.append, self.now_ms)
        self.model.tick(self.now_ms)
        return self.answers[-1]

    def join(self, who: Who, *claims: int) -> contract.JoinResponse:
        subscription = Subscription(topics=("orders",), owned=parts(*claims), generation=who.generation)
        request = contract.JoinRequest(identity=who, protocols=(("cooperative-sticky", subscription),), reason="a test")
        answer = self.ask(request)
        assert isinstance(answer, contract.JoinResponse)
        return answer

    def sync(self, who: Who, **shares: frozenset[TopicPartition]) -> contract.SyncResponse:
        request = contract.SyncRequest(identity=who, protocol="cooperative-sticky", assignments=tuple(shares.items()))
        self.ask(request)
        return next(a for a in self.answers if isinstance(a, contract.SyncResponse) and a.request is request)

    def beat(self, who: Who) -> int:
        answer = self.ask(contract.HeartbeatRequest(identity=who))
        assert isinstance(answer, contract.HeartbeatResponse)
        return answer.error


def who(answer: contract.JoinResponse, instance_id: str | None = None) -> Who:
    return Who(instance_id=instance_id, member_id=answer.member_id, generation=answer.generation)


def two_at_rest() -> tuple[Group, Who, Who]:
    """A seat that has partitions 0 and 1, and a dynamic member that has 2 and 3. The seat leads."""
    group = Group()
    group.join(Who(instance_id="seat"))
    pending = group.join(Who(instance_id=None))
    seat_id = group.model.member_id_of("seat")
    group.join(Who(instance_id=None, member_id=pending.member_id))
    group.join(Who(instance_id="seat", member_id=seat_id))
    generation = group.model.generation
    seat = Who(instance_id="seat", member_id=seat_id, generation=generation)
    other = Who(instance_id=None, member_id=pending.member_id, generation=generation)
    group.ask(contract.SyncRequest(identity=other, protocol="cooperative-sticky"))
    group.sync(seat, **{seat_id: parts(0, 1), pending.member_id: parts(2, 3)})
    assert group.model.members[seat_id].assignment == parts(0, 1)
    return group, seat, other


def renamed(group: Group, seat: Who) -> Who:
    own = Who(instance_id=seat.instance_id, member_id="own", generation=0)
    answer = group.ask(contract.RenameRequest(identity=own))
    assert isinstance(answer, contract.RenameResponse)
    assert answer.error == ErrorCode.NONE
    return Who(instance_id=seat.instance_id, member_id="own", generation=seat.generation)


def test_a_seat_changes_its_member_id_without_a_rebalance_if_no_member_comes_or_goes() -> None:
    group, seat, other = two_at_rest()
    own = renamed(group, seat)
    assert group.beat(other) == ErrorCode.NONE
    answer = group.join(own, 0, 1)
    assert answer.generation == seat.generation
    assert group.sync(own).assignment == parts(0, 1)
    assert group.beat(other) == ErrorCode.NONE


def test_a_newcomer_between_the_two_requests_puts_a_bystander_into_a_generation_that_is_over() -> None:
    """The loss that was seen at a real broker: "Heartbeat: ILLEGAL_GENERATION" of a member that no one had touched."""
    group, seat, other = two_at_rest()
    own = renamed(group, seat)
    pending = group.join(Who(instance_id=None))
    newcomer = group.join(Who(instance_id=None, member_id=pending.member_id))
    assert newcomer.generation == seat.generation + 1
    assert not newcomer.leader
    assert group.sync(who(newcomer)).assignment == frozenset(), "others have all of its target still"
    assert group.beat(other) == ErrorCode.REBALANCE_IN_PROGRESS
    group.join(own, 0, 1)
    assert group.beat(other) == ErrorCode.ILLEGAL_GENERATION
    given = [member.assignment for member in group.model.members.values()]
    assert frozenset().union(*given) == parts(0, 1, 2, 3)
    assert sum(map(len, given)) == 4


def test_a_member_that_leaves_between_the_two_requests_frees_its_share_for_the_broker_s_assignor() -> None:
    group, seat, other = two_at_rest()
    own = renamed(group, seat)
    answer = group.ask(contract.LeaveRequest(identity=other, reason="a test"))
    assert isinstance(answer, contract.LeaveResponse)
    back = group.join(own, 0, 1)
    assert back.generation == seat.generation + 1
    assert group.sync(who(back, "seat")).assignment == parts(0, 1, 2, 3)
