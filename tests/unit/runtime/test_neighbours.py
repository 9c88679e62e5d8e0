"""Which seats of a process rest, and when all of them ask at once."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, cast

from harness.fake_broker import on_a_loop, until

from spark_kgroup.member import contract
from spark_kgroup.member.machine import Machine
from spark_kgroup.model import MemberIdentity
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
    assert not any(map(neighbours.hear_for, seats)), "no seat rests before two were chosen that beat"
    neighbours._choose_sentinels()
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
    seats = Seat(), Seat(identity=_in(6)), Seat(), Seat(), Seat(identity=_in(6))
    assert resting(*seats) == [False, False, False, True, False]


def test_no_seat_rests_and_none_is_asked_in_a_group_of_type_consumer_which_has_no_leader() -> None:
    seats = [Seat(leader_id="") for _ in range(4)]
    assert resting(*seats) == [False] * 4
    neighbours = of(*seats)
    neighbours._choose_sentinels()
    seats[0].member.answered = False
    neighbours._choose_sentinels()
    assert [seat.asked for seat in seats] == [0] * 4


def test_all_seats_ask_when_others_take_the_place_of_the_two() -> None:
    """They rested until then, and would ask only later. The same when the two are back."""
    seats = [Seat() for _ in range(6)]
    neighbours = of(*seats)
    neighbours._choose_sentinels()
    neighbours._choose_sentinels()
    assert [seat.asked for seat in seats] == [0] * 6
    seats[0].member.answered = seats[1].member.answered = False
    neighbours._choose_sentinels()
    assert [neighbours.hear_for(seat) for seat in seats] == [True, True, False, False, True, True]
    assert [seat.asked for seat in seats] == [1] * 6
    seats[0].member.answered = seats[1].member.answered = True
    neighbours._choose_sentinels()
    assert [neighbours.hear_for(seat) for seat in seats] == [False, False, True, True, True, True]
    assert [seat.asked for seat in seats] == [2] * 6


def test_no_seat_is_asked_because_of_a_new_generation_in_which_none_rests_yet() -> None:
    seats = [Seat() for _ in range(4)]
    neighbours = of(*seats)
    neighbours._choose_sentinels()
    for seat in seats:
        seat.member.identity = _in(8)
    assert not any(map(neighbours.hear_for, seats))
    neighbours._choose_sentinels()
    assert [neighbours.hear_for(seat) for seat in seats] == [False, False, True, True]
    assert [seat.asked for seat in seats] == [0] * 4


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


def test_the_two_are_looked_at_each_interval() -> None:
    async def scenario(neighbours: Neighbours, seats: list[Seat]) -> None:
        await until(lambda: neighbours.hear_for(seats[3]))
        seats[1].member.answered = False
        await until(lambda: all(seat.asked for seat in seats))
        assert [neighbours.hear_for(seat) for seat in seats] == [False, True, False, True]

    running(scenario, Seat(), Seat(), Seat(), Seat())
