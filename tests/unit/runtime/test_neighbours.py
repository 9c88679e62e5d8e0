"""Which seats of a process rest, and when all of them ask at once."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, cast

from harness.fake_broker import on_a_loop, until

from spark_kgroup.member import contract
from spark_kgroup.member.machine import Machine
from spark_kgroup.model import NO_GENERATION, MemberIdentity
from spark_kgroup.runtime.neighbours import Neighbours

INTERVAL_MS = 200


def _in(generation: int) -> MemberIdentity:
    return MemberIdentity(instance_id="seat", member_id="m", generation=generation)


@dataclass
class Member:
    """A machine, as far as its neighbours look at it."""

    leader_id: str = "the leader"
    identity: MemberIdentity = field(default_factory=lambda: _in(7))
    in_generation: bool = True
    awaits_join: bool = False
    answered: bool = True

    def in_touch(self, _now_ms: int) -> bool:
        return self.in_generation and self.answered


class Seat:
    """A session without a coordinator."""

    def __init__(self, **member: Any) -> None:
        self.member = Member(**member)
        self.machine = cast(Machine, self.member)
        self.asked = 0

    def post(self, event: contract.Event) -> None:
        assert event == contract.NeighbourJoins()
        self.asked += 1


def of(*seats: Seat, interval_ms: int = INTERVAL_MS) -> Neighbours:
    return Neighbours({f"seat-{index}": seat for index, seat in enumerate(seats)}, interval_ms)


def resting(*seats: Seat) -> list[bool]:
    neighbours = of(*seats)
    return [neighbours.hear_for(seat) for seat in seats]


def test_two_seats_beat_and_the_others_rest() -> None:
    assert resting(*(Seat() for _ in range(5))) == [False, False, True, True, True]


def test_no_seat_rests_beside_fewer_than_two() -> None:
    assert resting(Seat()) == [False]
    assert resting(Seat(), Seat()) == [False, False]
    assert resting(Seat(answered=False), Seat(in_generation=False), Seat()) == [False] * 3


def test_a_seat_out_of_touch_beats_for_no_other() -> None:
    assert resting(Seat(), Seat(answered=False), Seat(), Seat()) == [False, True, False, True]


def test_seats_of_an_earlier_generation_hear_for_themselves() -> None:
    before = _in(6)
    assert resting(Seat(), Seat(identity=before), Seat(), Seat(), Seat(identity=before)) == [
        False,
        False,
        False,
        True,
        False,
    ]


def test_no_seat_rests_in_a_group_of_type_consumer_which_has_no_leader() -> None:
    assert resting(*(Seat(leader_id="") for _ in range(4))) == [False] * 4


def running(scenario: Callable[[Neighbours, list[Seat]], Awaitable[None]], *seats: Seat) -> None:
    @on_a_loop
    async def on_loop() -> None:
        neighbours = of(*seats)
        run = asyncio.create_task(neighbours.run())
        try:
            await scenario(neighbours, list(seats))
        finally:
            run.cancel()

    on_loop()


def test_all_seats_of_a_generation_ask_when_one_joins() -> None:
    async def scenario(neighbours: Neighbours, seats: list[Seat]) -> None:
        neighbours.on_join_sent()
        await until(lambda: all(seat.asked for seat in seats[1:]))
        assert seats[0].asked == 0

    running(scenario, Seat(in_generation=False, awaits_join=True), Seat(), Seat())


def test_seats_ask_an_interval_after_a_join_even_if_one_seat_cannot_join() -> None:
    async def scenario(neighbours: Neighbours, seats: list[Seat]) -> None:
        neighbours.on_join_sent()
        await until(lambda: seats[2].asked > 0)

    running(scenario, Seat(in_generation=False, awaits_join=True), Seat(in_generation=False), Seat())


def test_all_seats_ask_when_one_loses_its_connection() -> None:
    async def scenario(neighbours: Neighbours, seats: list[Seat]) -> None:
        neighbours.on_connection_lost()
        await until(lambda: all(seat.asked for seat in seats))

    running(scenario, Seat(), Seat(), Seat())


def test_all_seats_ask_when_a_heartbeat_of_the_two_is_not_answered_in_time() -> None:
    async def scenario(_: Neighbours, seats: list[Seat]) -> None:
        await until(lambda: all(seat.asked for seat in seats))

    running(scenario, Seat(answered=False), Seat(answered=False), Seat(answered=False), Seat())


def test_seats_at_rest_are_left_alone() -> None:
    looks = 0

    async def scenario(neighbours: Neighbours, seats: list[Seat]) -> None:
        watch = neighbours._watch_sentinels

        def counted() -> None:
            nonlocal looks
            looks += 1
            watch()

        neighbours._watch_sentinels = counted  # type: ignore[method-assign]
        await until(lambda: looks >= 3)
        assert [seat.asked for seat in seats] == [0, 0, 0, 0]

    running(scenario, Seat(), Seat(), Seat(), Seat(identity=_in(NO_GENERATION)))
