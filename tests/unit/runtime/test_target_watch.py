"""Whether seats have heard their share of the group's target: the group's description against their epochs."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any, cast

from harness.fake_broker import on_a_loop, until

from spark_kgroup.errors import RequestTimedOut
from spark_kgroup.member.consumer_contract import NewsExpected
from spark_kgroup.model import CLASSIC, CONSUMER, DescribedGroup, DescribedMember, MemberIdentity, TopicPartition
from spark_kgroup.runtime.session import Session
from spark_kgroup.runtime.settings import GroupSettings, ProtocolSettings
from spark_kgroup.runtime.target_watch import TargetWatch
from spark_kgroup.wire.groups import Groups

P0 = frozenset({TopicPartition("orders", 0)})
SETTINGS = GroupSettings(
    bootstrap=(),
    group="g",
    topics=("orders",),
    instance_ids=("a", "b"),
    protocol=ProtocolSettings(name=CONSUMER),
)


class Seat:
    """A session whose member is settled, unless the test says otherwise. It learns when it is told to ask."""

    def __init__(self, name: str, epoch: int, on_news: Callable[[], None] = lambda: None) -> None:
        self.machine = SimpleNamespace(
            settled=True, identity=MemberIdentity(instance_id=name, member_id=name, generation=epoch)
        )
        self.asked = 0
        self._on_news = on_news

    def post(self, event: object) -> None:
        assert isinstance(event, NewsExpected)
        self.asked += 1
        self._on_news()

    def reach(self, epoch: int) -> None:
        self.machine.identity = replace(self.machine.identity, generation=epoch)


def member(name: str, epoch: int, target: frozenset[TopicPartition] = frozenset()) -> DescribedMember:
    return DescribedMember(
        member_id=name, instance_id=name, client_id="", client_host="", target=target, epoch=epoch, protocol="consumer"
    )


@dataclass
class World:
    """A group as it is described, and the seats `a` and `b`."""

    group: DescribedGroup
    a: Seat
    b: Seat
    known: list[bool] = field(default_factory=list)
    failures: int = 0

    def __post_init__(self) -> None:
        seats = cast("dict[str | None, Session]", {"a": self.a, "b": self.b})
        self.shares = TargetWatch(SETTINGS, cast("Groups", self), seats, lambda: self.known.append(self.shares.known))

    async def describe(self, _group: str, **_: Any) -> DescribedGroup:
        if self.failures:
            self.failures -= 1
            raise RequestTimedOut("a test")
        return self.group

    async def run(self, condition: Callable[[], bool]) -> None:
        task = asyncio.create_task(self.shares.run())
        try:
            await until(condition)
        finally:
            task.cancel()


def described(*members: DescribedMember, state: str = "Stable", epoch: int = 2) -> DescribedGroup:
    return DescribedGroup(
        group="g", state=state, protocol="uniform", members=members, group_type="consumer", target_epoch=epoch
    )


@on_a_loop
async def test_shares_are_known_when_each_seat_has_its_target_in_the_target_s_epoch() -> None:
    world = World(described(member("a", 2), member("b", 2)), Seat("a", 2), Seat("b", 2))
    assert not world.shares.known
    await world.run(lambda: world.shares.known)
    assert world.known == [True]
    assert (world.a.asked, world.b.asked) == (0, 0)
    world.a.reach(3)
    assert not world.shares.known, "another epoch may have another target"


@on_a_loop
async def test_a_seat_for_which_the_group_has_news_is_told_to_ask_and_other_seats_are_not() -> None:
    world = World(described(member("a", 2), member("b", 1)), Seat("a", 2), Seat("b", 1, lambda: arrive()))

    def arrive() -> None:
        world.b.reach(2)
        world.group = described(member("a", 2), member("b", 2))

    await world.run(lambda: world.shares.known)
    assert (world.a.asked, world.b.asked) == (0, 1)


@on_a_loop
async def test_a_seat_that_has_not_reached_its_target_is_told_until_it_has() -> None:
    waiting = described(member("a", 2), member("b", 2, target=P0))
    world = World(waiting, Seat("a", 2), Seat("b", 2))
    await world.run(lambda: world.b.asked >= 2)
    assert not world.shares.known
    world.group = described(member("a", 2), member("b", 2))
    await world.run(lambda: world.shares.known)


@on_a_loop
async def test_targets_are_unknown_while_the_group_computes_new_ones_or_no_answer_comes() -> None:
    world = World(described(member("a", 2), member("b", 2), state="Assigning"), Seat("a", 2), Seat("b", 2))
    world.failures = 1
    await world.run(lambda: world.failures == 0)
    assert not world.shares.known
    world.group = described(member("a", 2), member("b", 2))
    await world.run(lambda: world.shares.known)


@on_a_loop
async def test_one_seat_is_told_to_ask_while_targets_are_due_and_then_each_that_has_a_new_one() -> None:
    """A coordinator computes them when a member's heartbeat comes, and those are 5 s apart."""
    due = described(member("a", 2), member("b", 2), state="Assigning")
    world = World(due, Seat("a", 2, lambda: compute()), Seat("b", 2, lambda: arrive()))

    def compute() -> None:
        world.a.reach(3)
        world.group = described(member("a", 3), member("b", 2), epoch=3)

    def arrive() -> None:
        world.b.reach(3)
        world.group = described(member("a", 3), member("b", 3), epoch=3)

    await world.run(lambda: world.shares.known)
    assert (world.a.asked, world.b.asked) == (1, 1)


@on_a_loop
async def test_a_change_of_our_own_doing_is_asked_about_anew() -> None:
    world = World(described(member("a", 2), member("b", 2)), Seat("a", 2), Seat("b", 2))
    await world.run(lambda: world.shares.known)
    world.shares.forget()
    assert not world.shares.known
    await world.run(lambda: world.shares.known)


def test_a_classic_group_tells_its_members_all_there_is() -> None:
    sessions = cast("dict[str | None, Session]", {"a": Seat("a", 2)})
    shares = TargetWatch(
        replace(SETTINGS, protocol=ProtocolSettings(name=CLASSIC)), cast("Groups", None), sessions, lambda: None
    )
    assert shares.known
