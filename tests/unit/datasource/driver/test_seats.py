"""Homes and tickets: the three laws of `seats`, and its order of preference, sentence by sentence."""

import pickle
from collections.abc import Iterable
from dataclasses import replace
from itertools import cycle, permutations
from random import Random

import pytest

from pyspark_kgroup.driver.registry import seat_bindings as seats_module
from pyspark_kgroup.driver.registry.seat_bindings import Binding, Scan, SeatBindings
from pyspark_kgroup.errors import SeatRefused
from pyspark_kgroup.limits import MISSED_BATCHES_MIN, PAST_RANGES_MAX, SCANS_MAX
from pyspark_kgroup.shared.tickets import Executor, Mode


def executor(name: str, *, has_sidecar: bool = True) -> Executor:
    return Executor(key=f"{name}@host", executor_id=name, host="host", pid=1, has_sidecar=has_sidecar)


A, B, C, D, E = (executor(name) for name in "ABCDE")
COLD = executor("cold", has_sidecar=False)


def names(count: int) -> list[str]:
    return [f"s-{k}" for k in range(count)]


def joined(count: int, *executors: Executor) -> SeatBindings:
    seats = SeatBindings(names(count))
    for one in executors:
        seats.on_sidecar_joined(one, 0)
    return seats


def ask(seats: SeatBindings, scan: Scan, order: Iterable[Executor], now_ms: int = 0) -> list[Binding]:
    """Bind all tickets of `scan` in turn, each asked for by the next executor of `order`, round and round."""
    return [
        seats.bind(scan.scan_id, ticket, who, now_ms)
        for ticket, who in zip(range(len(scan.tickets)), cycle(order), strict=False)
    ]


def settled(count: int, *executors: Executor) -> SeatBindings:
    """A query that binds late, its seats spread over `executors` in turn: s-0 at the first, s-1 at the second."""
    seats = joined(count, *executors)
    ask(seats, seats.plan("first", names(count)), executors)
    return seats


def homes(seats: SeatBindings) -> dict[str, str]:
    return {seat: home.executor.executor_id for seat, home in sorted(seats.homes.living().items())}


def of(seats: SeatBindings, *executors: Executor) -> dict[str, str]:
    ids = {one.executor_id for one in executors}
    return {seat: home for seat, home in homes(seats).items() if home in ids}


def counts(seats: SeatBindings) -> dict[str, int]:
    held = list(homes(seats).values())
    return {home: held.count(home) for home in held}


def read(bindings: Iterable[Binding]) -> list[str]:
    return sorted(binding.seat for binding in bindings if binding.seat is not None)


class TestMode:
    """The first scan is fixed. A later one is late once every ticket of a scan has reported, else it is fixed again."""

    def test_the_first_scan_is_fixed_with_a_ticket_for_each_seat_with_data(self) -> None:
        scan = joined(3, A).plan("1", ["s-0", "s-2"])
        assert (scan.mode, scan.tickets) == (Mode.FIXED, ("s-0", "s-2"))

    def test_a_scan_is_late_once_every_ticket_of_the_previous_batch_has_reported(self) -> None:
        seats = joined(3, A)
        ask(seats, seats.plan("1", ["s-0", "s-2"]), [A])
        scan = seats.plan("2", ["s-0", "s-1"])
        assert (scan.mode, scan.tickets) == (Mode.LATE, (None, None))

    @pytest.mark.parametrize(("busy", "tickets"), [(["s-0", "s-2", "s-1"], 2 * 3), (["s-0", "s-1"], 2 * 2)])
    def test_an_executor_can_have_a_ticket_more_than_the_busiest_home_has_seats(
        self, busy: list[str], tickets: int
    ) -> None:
        seats = settled(64, A, B)  # the even ones at A, the odd ones at B
        assert len(seats.plan("2", busy).tickets) == tickets

    def test_a_late_scan_has_no_more_tickets_than_the_query_has_seats(self) -> None:
        seats = settled(4, A, B)
        assert len(seats.plan("2", ["s-0", "s-2", "s-1"]).tickets) == 4

    def test_seats_without_a_home_have_a_ticket_each(self) -> None:
        seats = settled(6, A, B)
        for one in (A, B):
            seats.on_sidecar_gone(one.key)
        assert len(seats.plan("2", names(3)).tickets) == 3

    def test_one_seat_with_data_is_one_task(self) -> None:
        """The task with ticket 0 must read it, so further tasks could only be told to read no seat."""
        seats = settled(64, A, B)
        scan = seats.plan("2", ["s-0"])
        assert (scan.mode, scan.tickets) == (Mode.LATE, (None,))
        assert seats.bind(scan.scan_id, 0, B, 0) == Binding(seat="s-0", at_home=False)
        assert seats.plan("3", names(2)).mode is Mode.LATE

    def test_a_limit_that_stops_early_makes_the_next_batch_fixed(self) -> None:
        seats = settled(3, A)
        stopped = seats.plan("2", names(3))
        assert stopped.mode is Mode.LATE
        seats.bind(stopped.scan_id, 0, A, 0)
        fixed = seats.plan("3", names(3))
        assert fixed.mode is Mode.FIXED
        ask(seats, fixed, [A])
        assert seats.plan("4", names(3)).mode is Mode.LATE

    def test_every_scan_of_the_previous_batch_counts(self) -> None:
        seats = joined(2, A)
        ask(seats, seats.plan("1", names(2)), [A])
        seats.plan("1", names(2))
        assert seats.plan("2", names(2)).mode is Mode.FIXED

    def test_all_scans_of_a_batch_have_one_mode(self) -> None:
        seats = joined(2, A)
        ask(seats, seats.plan("1", names(2)), [A])
        assert seats.plan("1", names(2)).mode is Mode.FIXED

    def test_a_scan_is_fixed_where_a_seat_s_ranges_do_not_fit_a_message(self) -> None:
        seats = settled(2, A)
        assert seats.plan("2", names(2), late=False).tickets == ("s-0", "s-1")
        ask(seats, seats.plan("3", names(2), late=False), [A])
        assert seats.plan("4", names(2)).mode is Mode.LATE

    def test_a_batch_without_data_has_no_tickets_and_shows_no_executor_at_work(self) -> None:
        seats = joined(2, A)
        assert seats.plan("0", []).tickets == ()
        first = seats.plan("1", names(2))
        assert first.mode is Mode.FIXED
        ask(seats, first, [A])
        assert seats.plan("2", []).tickets == ()
        assert seats.plan("3", names(2)).mode is Mode.LATE

    def test_a_ticket_asked_for_twice_is_reported_once(self) -> None:
        seats = joined(2, A, B)
        scan = seats.plan("1", names(2))
        seats.bind(scan.scan_id, 0, A, 0)
        seats.bind(scan.scan_id, 0, B, 0)
        assert seats.plan("2", names(2)).mode is Mode.FIXED


class TestPieces:
    """A seat is named as often as its share has pieces. Pieces prefer the seat's home, and move no seat."""

    def test_fixed_tickets_read_the_pieces_in_their_order(self) -> None:
        seats = joined(2, A)
        scan = seats.plan("1", ["s-0", "s-0", "s-1"])
        assert (scan.mode, scan.tickets) == (Mode.FIXED, ("s-0", "s-0", "s-1"))
        assert [(b.seat, b.piece) for b in ask(seats, scan, [A])] == [("s-0", 0), ("s-0", 1), ("s-1", 0)]

    @pytest.mark.parametrize("asked_in", [(0, 1, 2, 3, 4), (4, 2, 0, 1, 3), (1, 0, 3, 2, 4)])
    def test_one_executor_alone_reads_pieces_in_the_order_of_its_tickets(self, asked_in: tuple[int, ...]) -> None:
        """Its tasks ask in any order, and Spark shows rows in that of the tickets (`collect`, `coalesce`)."""
        seats = settled(2, A)
        scan = seats.plan("divided", ["s-0"] * 3 + ["s-1"] * 2)
        assert scan.mode is Mode.LATE
        bound = {ticket: seats.bind(scan.scan_id, ticket, A, 0) for ticket in asked_in}
        parts = [(bound[ticket].seat, bound[ticket].piece) for ticket in range(5)]
        assert parts == [("s-0", 0), ("s-0", 1), ("s-0", 2), ("s-1", 0), ("s-1", 1)]
        assert all(binding.at_home for binding in bound.values())

    def test_where_another_executor_has_read_a_tickets_piece_it_reads_another_one(self) -> None:
        seats = settled(1, A)
        scan = seats.plan("divided", ["s-0"] * 4)
        guest = seats.bind(scan.scan_id, 3, COLD, 0)
        bound = [guest, *(seats.bind(scan.scan_id, ticket, A, 0) for ticket in range(3))]
        assert sorted(binding.piece for binding in bound) == [0, 1, 2, 3]

    def test_each_executor_reads_pieces_of_its_own_seats_first(self) -> None:
        seats = settled(2, A, B)
        bindings = ask(seats, seats.plan("2", ["s-0"] * 3 + ["s-1"] * 3), [B, A])
        assert [(b.seat, b.piece) for b in bindings] == [
            ("s-1", 0),
            ("s-0", 0),
            ("s-1", 1),
            ("s-0", 1),
            ("s-1", 2),
            ("s-0", 2),
        ]
        assert all(binding.at_home for binding in bindings)

    def test_an_executor_whose_own_seats_are_read_helps_with_other_seats_and_no_home_moves(self) -> None:
        seats = settled(2, A, B)
        before = homes(seats)
        bindings = ask(seats, seats.plan("2", ["s-0"] * 5 + ["s-1"]), [A, B])
        assert sorted((b.seat or "", b.piece) for b in bindings) == [
            *(("s-0", piece) for piece in range(5)),
            ("s-1", 0),
        ]
        assert [(b.seat, b.at_home) for b in bindings[1::2]] == [("s-1", True), ("s-0", False), ("s-0", False)]
        assert homes(seats) == before

    def test_there_is_no_spare_ticket_for_an_executor_without_a_home_among_them(self) -> None:
        seats = settled(64, A, B, C)
        scan = seats.plan("2", ["s-0", "s-0", "s-1"])
        assert scan.tickets == (None, None, None)
        assert sorted((b.seat or "", b.piece) for b in ask(seats, scan, [C])) == [("s-0", 0), ("s-0", 1), ("s-1", 0)]

    def test_ticket_0_is_left_a_piece_where_one_seat_alone_has_data(self) -> None:
        seats = settled(4, A, B)
        scan = seats.plan("2", ["s-0", "s-0"])
        assert seats.bind(scan.scan_id, 1, A, 0) == Binding(seat="s-0", piece=0, at_home=True)
        assert seats.bind(scan.scan_id, 0, B, 0) == Binding(seat="s-0", piece=1, at_home=False)

    def test_a_ticket_asked_for_again_reads_the_same_piece(self) -> None:
        seats = settled(2, A, B)
        scan = seats.plan("2", ["s-0", "s-0", "s-1"])
        first = seats.bind(scan.scan_id, 1, A, 0)
        seats.bind(scan.scan_id, 2, A, 0)
        again = seats.bind(scan.scan_id, 1, B, 0)
        assert (again.seat, again.piece) == (first.seat, first.piece)


class TestFixed:
    """Ticket k reads seat k, and the registry is only told."""

    def test_the_first_executor_to_ask_is_home_and_later_ones_are_guests(self) -> None:
        seats = joined(2, A, B)
        scan = seats.plan("1", names(2))
        assert seats.bind(scan.scan_id, 1, B, 0) == Binding(seat="s-1", at_home=True)
        assert seats.bind(scan.scan_id, 1, A, 0) == Binding(seat="s-1", at_home=False)
        assert homes(seats) == {"s-1": "B"}

    def test_a_living_home_stays_wherever_spark_runs_the_ticket(self) -> None:
        seats = joined(2, A, B)
        seats.bind(seats.plan("1", names(2)).scan_id, 0, A, 0)
        scan = seats.plan("2", names(2))
        assert scan.mode is Mode.FIXED
        assert seats.bind(scan.scan_id, 0, B, 0) == Binding(seat="s-0", at_home=False)
        assert homes(seats) == {"s-0": "A"}

    def test_a_seat_whose_home_is_gone_gets_the_asking_executor(self) -> None:
        seats = joined(2, A, B)
        scan = seats.plan("1", names(2))
        seats.bind(scan.scan_id, 0, A, 0)
        seats.on_sidecar_gone(A.key)
        assert homes(seats) == {}
        assert seats.bind(scan.scan_id, 0, B, 0) == Binding(seat="s-0", at_home=True)

    def test_a_replayed_batch_may_name_seats_from_before_members_was_made_smaller(self) -> None:
        """They are read and have no home, also in a late scan, where tickets suffice for them too."""
        seats = joined(2, A)
        scan = seats.plan("1", [*names(2), "s-7"])
        assert ask(seats, scan, [A])[2] == Binding(seat="s-7", at_home=False)
        late = seats.plan("2", [*names(2), "s-7"])
        assert read(ask(seats, late, [A])) == [*names(2), "s-7"]
        assert late.mode is Mode.LATE
        assert homes(seats) == {"s-0": "A", "s-1": "A"}


class TestLate:
    """The registry prefers the seats that the asking executor is home to."""

    def test_each_executor_reads_its_own_seats_in_any_order_of_asking(self) -> None:
        seats = settled(6, A, B, C)
        before = homes(seats)
        for batch, order in enumerate(([C, A, B], [B, B, A, A, C, C], [A, C, B])):
            bindings = ask(seats, seats.plan(f"late {batch}", names(6)), order)
            assert read(bindings) == names(6)
            assert all(binding.at_home for binding in bindings)
        assert homes(seats) == before

    def test_an_executor_reads_the_seats_it_has_had_longest_first(self) -> None:
        seats = settled(3, A)
        assert [b.seat for b in ask(seats, seats.plan("2", names(3)), [A])] == names(3)

    def test_a_seat_that_never_had_a_home_is_read_before_one_whose_home_is_gone(self) -> None:
        seats = joined(3, A, B)
        ask(seats, seats.plan("1", ["s-0", "s-1"]), [A, B])
        seats.on_sidecar_gone(A.key)
        bindings = ask(seats, seats.plan("2", names(3)), [B])
        assert [b.seat for b in bindings] == ["s-1", "s-2", "s-0"]
        assert all(b.at_home for b in bindings)

    def test_a_quick_executor_reads_seats_that_slower_ones_have_not_come_to_as_a_guest(self) -> None:
        """An executor that is quick reads seats that their homes have not come to yet, as a guest: homes stay."""
        seats = settled(6, A, B)
        before = homes(seats)
        bindings = ask(seats, seats.plan("2", names(6)), [A, A, A, A, B, A])
        assert read(bindings) == names(6)
        assert [b.at_home for b in bindings] == [True, True, True, False, True, False]
        assert homes(seats) == before

    def test_a_guest_reads_for_the_executor_that_has_most_left_and_the_seat_it_would_read_last(self) -> None:
        seats = settled(7, A, B, C)  # A has three, B and C two
        scan = seats.plan("2", names(7))
        first = [seats.bind(scan.scan_id, ticket, B, 0).seat for ticket in range(3)]
        assert first == ["s-1", "s-4", "s-6"]

    def test_a_guest_leaves_seats_alone_that_are_due_to_a_newcomer(self) -> None:
        """Else a guest in each batch could keep the newcomer from it for ever."""
        seats = settled(4, A, B)
        seats.on_sidecar_joined(D, 0)
        scan = seats.plan("2", names(4))
        guests = [seats.bind(scan.scan_id, ticket, COLD, 0).seat for ticket in range(3)]
        assert guests == ["s-2", "s-1", "s-0"]
        assert seats.bind(scan.scan_id, 3, D, 0) == Binding(seat="s-3", at_home=True)

    def test_a_spare_ticket_reads_no_seat_rather_than_another_executors(self) -> None:
        """An executor whose seats have no data is told to read no seat. The last tickets take the remaining seats."""
        seats = settled(4, A, B)
        scan = seats.plan("2", ["s-0", "s-2"])  # both of A
        assert seats.bind(scan.scan_id, 0, A, 0) == Binding(seat="s-0", at_home=True)
        b_asks = [seats.bind(scan.scan_id, ticket, B, 0) for ticket in (1, 2, 3)]
        assert b_asks == [Binding(seat=None, at_home=False)] * 2 + [Binding(seat="s-2", at_home=False)]
        assert seats.bind(scan.scan_id, 1, A, 0) == Binding(seat=None, at_home=False), "nothing stays nothing"

    @pytest.mark.parametrize("order", list(permutations(range(4))))
    @pytest.mark.parametrize("busy", [["s-0", "s-1"], ["s-0", "s-2"], ["s-0", "s-1", "s-3"]])
    def test_the_first_ticket_reads_a_seat_for_any_executor_and_in_any_order(
        self, order: tuple[int, ...], busy: list[str]
    ) -> None:
        """Spark's file writer makes a file of the first partition, though it is empty, and of no other."""
        seats = settled(4, A, B)
        scan = seats.plan("2", busy)
        bindings = {
            ticket: seats.bind(scan.scan_id, ticket, (A, B)[place % 2], 0) for place, ticket in enumerate(order)
        }
        assert bindings[0].seat is not None
        assert sorted(b.seat for b in bindings.values() if b.seat is not None) == busy

    def test_fewer_seats_than_executors_keep_their_homes(self) -> None:
        seats = settled(2, A, B, C)
        bindings = ask(seats, seats.plan("2", names(2)), [C, A])
        assert read(bindings) == names(2)
        assert homes(seats) == {"s-0": "A", "s-1": "B"}


class TestAskedAgain:
    """Bound once per (batch, scan, ticket), never rebound."""

    def test_a_retry_on_the_same_executor_reads_the_same_seat_at_home(self) -> None:
        seats = settled(4, A, B)
        scan = seats.plan("2", names(4))
        first = seats.bind(scan.scan_id, 2, B, 0)
        assert seats.bind(scan.scan_id, 2, B, 0) == first == Binding(seat="s-1", at_home=True)
        assert read(ask(seats, scan, [A, B])) == names(4)

    def test_speculation_on_another_executor_is_a_guest(self) -> None:
        seats = settled(4, A, B)
        scan = seats.plan("2", names(4))
        bindings = ask(seats, scan, [A, B])
        assert seats.bind(scan.scan_id, 0, B, 0) == Binding(seat=bindings[0].seat, at_home=False)
        assert homes(seats) == {"s-0": "A", "s-1": "B", "s-2": "A", "s-3": "B"}

    def test_two_jobs_over_one_batch_read_the_same_seats(self) -> None:
        """`foreachBatch` with two actions asks for each ticket again: the same seats, at home where Spark allows it."""
        seats = settled(4, A, B)
        scan = seats.plan("2", names(4))
        first = ask(seats, scan, [A, B])
        second = ask(seats, scan, [B, A])
        assert [b.seat for b in second] == [b.seat for b in first]
        assert not any(b.at_home for b in second)
        assert ask(seats, scan, [A, B]) == first

    def test_two_scans_of_one_batch_each_read_every_seat(self) -> None:
        """A self-union reads each seat once in each scan, at home both times."""
        seats = settled(4, A, B)
        one, two = seats.plan("2", names(4)), seats.plan("2", names(4))
        assert one.scan_id != two.scan_id
        for scan, order in ((one, [A, B]), (two, [B, A])):
            bindings = ask(seats, scan, order)
            assert read(bindings) == names(4)
            assert all(b.at_home for b in bindings)

    def test_a_retry_after_the_home_is_lost_makes_the_new_executor_the_home(self) -> None:
        seats = settled(4, A, B)
        scan = seats.plan("2", names(4))
        seat = seats.bind(scan.scan_id, 0, A, 0).seat
        seats.on_sidecar_gone(A.key)
        assert seats.bind(scan.scan_id, 0, B, 0) == Binding(seat=seat, at_home=True)


class TestLostExecutor:
    """Losing an executor may move that executor's seats, and no other seats."""

    def test_a_lost_executor_moves_its_own_seats_only(self) -> None:
        seats = settled(12, A, B, C)
        survivors = of(seats, A, C)
        seats.on_sidecar_gone(B.key)
        bindings = ask(seats, seats.plan("2", names(12)), [A, C])
        assert all(b.at_home for b in bindings)
        assert survivors.items() <= homes(seats).items()
        assert counts(seats) == {"A": 6, "C": 6}

    def test_a_newcomer_gets_the_seats_that_moved_last(self) -> None:
        """So the spread is even again with the fewest moves: in the end exactly the lost seats have moved."""
        seats = settled(12, A, B, C)
        survivors, lost = of(seats, A, C), of(seats, B)
        seats.on_sidecar_gone(B.key)
        ask(seats, seats.plan("2", names(12)), [A, C])
        seats.on_sidecar_joined(D, 0)
        bindings = ask(seats, seats.plan("3", names(12)), [D, A, C])
        assert all(b.at_home for b in bindings)
        assert of(seats, A, C) == survivors
        assert of(seats, D) == dict.fromkeys(lost, "D")

    def test_a_newcomer_takes_no_other_seat_instead_of_one_that_is_being_read(self) -> None:
        """It reads as a guest and takes its due seats in a later batch: a substitute would be one move too many."""
        seats = settled(6, A, B, C)
        survivors = of(seats, A, C)
        seats.on_sidecar_gone(B.key)
        ask(seats, seats.plan("2", names(6)), [A, C])
        seats.on_sidecar_joined(D, 0)
        scan = seats.plan("3", names(6))
        assert read(ask(seats, scan, [A, A, A, D, D, D])) == names(6)
        assert survivors.items() <= homes(seats).items()
        assert counts(seats) == {"A": 3, "C": 2, "D": 1}, "what A took over is read already"
        ask(seats, seats.plan("4", names(6)), [D, A, C])
        assert of(seats, A, C) == survivors
        assert counts(seats)["D"] == 2

    def test_an_executor_lost_in_a_half_read_batch_moves_its_own_seats_only(self) -> None:
        seats = settled(6, A, B, C)
        survivors = of(seats, A, C)
        scan = seats.plan("2", names(6))
        done = [seats.bind(scan.scan_id, ticket, who, 0) for ticket, who in enumerate([A, B, C])]
        seats.on_sidecar_gone(B.key)
        retried = seats.bind(scan.scan_id, 1, C, 0)
        rest = [seats.bind(scan.scan_id, ticket, who, 0) for ticket, who in [(3, A), (4, C), (5, A)]]
        assert retried == Binding(seat=done[1].seat, at_home=True)
        assert read([*done, *rest]) == names(6)
        assert of(seats, A, C) == homes(seats) == {**survivors, "s-1": "C", "s-4": "A"}

    def test_seats_of_a_lost_executor_without_data_wait_for_the_newcomer(self) -> None:
        """Free seats complete its share: no other executor's seats need to move for it."""
        seats = settled(6, A, B, C)
        survivors = of(seats, A, C)
        seats.on_sidecar_gone(B.key)
        seats.on_sidecar_joined(D, 0)
        with_data = sorted(survivors)
        ask(seats, seats.plan("2", with_data), [D, D, A, A, C, C])
        assert homes(seats) == survivors
        ask(seats, seats.plan("3", names(6)), [D, A, C])
        assert homes(seats) == {**survivors, "s-1": "D", "s-4": "D"}

    def test_two_newcomers_take_the_seats_of_the_lost_executors_only(self) -> None:
        seats = settled(12, A, B, C)
        survivor = of(seats, A)
        for lost in (B, C):
            seats.on_sidecar_gone(lost.key)
        ask(seats, seats.plan("2", names(12)), [A])
        for newcomer in (D, E):
            seats.on_sidecar_joined(newcomer, 0)
        for batch in range(3):
            ask(seats, seats.plan(f"late {batch}", names(12)), [D, E, A])
        assert of(seats, A) == survivor
        assert counts(seats) == {"A": 4, "D": 4, "E": 4}

    def test_fewer_executors_than_before_share_all_seats_evenly(self) -> None:
        """No executor replaces it: the survivors share its seats, and then no seat moves any more."""
        seats = settled(12, A, B, C)
        survivors = of(seats, A, C)
        seats.on_sidecar_gone(B.key)
        ask(seats, seats.plan("2", names(12)), [C])  # A is busy, and asks for no ticket
        for batch in range(3):
            ask(seats, seats.plan(f"late {batch}", names(12)), [A, C])
            assert survivors.items() <= homes(seats).items()
            assert counts(seats) == {"A": 6, "C": 6}

    def test_a_vanished_host_that_speaks_again_gets_back_the_seats_that_no_other_host_took(self) -> None:
        seats = settled(6, A, B, C)
        before = homes(seats)
        seats.on_sidecar_gone(B.key)
        assert homes(seats) == of(seats, A, C)
        ask(seats, seats.plan("2", ["s-0", "s-1", "s-2"]), [A, C])
        assert homes(seats)["s-1"] == "A"
        seats.on_sidecar_joined(B, 0)
        assert homes(seats) == {**before, "s-1": "A"}
        ask(seats, seats.plan("3", names(6)), [B, C, A])
        assert homes(seats) == before

    def test_a_sidecar_may_be_replaced_before_the_end_of_the_old_one_is_noticed(self) -> None:
        seats = settled(4, A, B)
        before = homes(seats)
        seats.on_sidecar_joined(A, 0)
        seats.on_sidecar_gone(A.key)
        assert homes(seats) == before
        seats.on_sidecar_gone(A.key)
        assert homes(seats) == of(seats, B)


class TestSpread:
    """No executor has two seats more than another, by the fewest moves. An even spread stays."""

    def test_scaling_out_moves_a_newcomers_even_share(self) -> None:
        seats = settled(12, A, B, C)
        before = homes(seats)
        seats.on_sidecar_joined(D, 0)
        ask(seats, seats.plan("2", names(12)), [D, A, B, C])
        assert set(counts(seats).values()) == {3}
        assert sum(home != before[seat] for seat, home in homes(seats).items()) == 3

    def test_newcomers_take_of_executors_with_equally_many_seats_those_that_moved_last(self) -> None:
        seats = settled(6, A, B)
        for newcomer in (C, D, E):
            seats.on_sidecar_joined(newcomer, 0)
        ask(seats, seats.plan("2", names(6)), [C, D, E, A, B, A])
        assert of(seats, A, B) == {"s-0": "A", "s-1": "B", "s-2": "A"}

    def test_an_executor_whose_only_seat_moved_away_reads_on_as_a_guest(self) -> None:
        seats = joined(2, A)
        ask(seats, seats.plan("1", names(2)), [A])
        seats.on_sidecar_gone(A.key)
        seats.on_sidecar_joined(B, 0)
        ask(seats, seats.plan("2", names(2)), [B])
        seats.on_sidecar_joined(A, 0)
        ask(seats, seats.plan("3", names(2)), [A, B])
        assert counts(seats) == {"A": 1, "B": 1}
        seats.on_sidecar_gone(B.key)
        ask(seats, seats.plan("4", names(2)), [A])
        assert counts(seats) == {"A": 2}

    def test_a_spread_within_one_is_even(self) -> None:
        seats = settled(7, A, B, C)
        before = homes(seats)
        for order in ([B, C, A], [C, C, C, B], [B]):
            ask(seats, seats.plan(str(order), names(7)), order)
        assert homes(seats) == before

    def test_where_seats_do_not_divide_evenly_an_executor_with_the_share_may_take_one_more(self) -> None:
        """5 executors, 12 seats: 4, 2, 2, 2, 2 becomes 3, 3, 2, 2, 2, whichever of them asks first."""
        seats = joined(12, A, B, C, D, E)
        ask(seats, seats.plan("1", names(12)), [A, A, A, A, B, B, C, C, D, D, E, E])
        scan = seats.plan("2", names(12))
        bindings = [seats.bind(scan.scan_id, ticket, C, 0) for ticket in range(4)]
        assert [b.at_home for b in bindings] == [True, True, True, False]
        assert counts(seats) == {"A": 3, "B": 2, "C": 3, "D": 2, "E": 2}

    def test_an_executor_with_its_share_leaves_the_seats_that_another_one_lacks(self) -> None:
        """5, 3, 1: both moves are for the last executor. A seat for the middle one would make it three moves."""
        seats = joined(9, A, B, C)
        ask(seats, seats.plan("1", names(9)), [A, A, A, A, A, B, B, B, C])
        scan = seats.plan("2", names(9))
        asked = [seats.bind(scan.scan_id, ticket, B, 0) for ticket in range(4)]
        assert asked[3].at_home is False
        for ticket in range(4, 9):
            seats.bind(scan.scan_id, ticket, C, 0)
        ask(seats, seats.plan("3", names(9)), [C, A, B])
        assert counts(seats) == {"A": 3, "B": 3, "C": 3}
        assert max(home.move for home in seats.homes.living().values()) == 9 + 2

    def test_a_newcomer_that_is_gone_again_leaves_no_move_due(self) -> None:
        """1. A seat is due to it, 2. that is being read, so it reads another one as a guest, 3. it dies."""
        seats = settled(4, A, B)
        before = homes(seats)
        seats.on_sidecar_joined(D, 0)
        scan = seats.plan("2", names(4))
        assert not any(b.at_home for b in ask(seats, scan, [B, B, D, D])[2:])
        seats.on_sidecar_gone(D.key)
        assert read(ask(seats, seats.plan("3", names(4)), [A])) == names(4)
        assert homes(seats) == before


class TestWithoutSidecar:
    """Its workers read by themselves, with the same rows, and it is never a home."""

    def test_a_worker_without_sidecar_reads_homeless_seats_first_then_those_of_the_busiest_executor(self) -> None:
        seats = settled(4, A, B)
        seats.on_sidecar_gone(B.key)
        scan = seats.plan("2", names(4))
        asked = [seats.bind(scan.scan_id, ticket, COLD, 0) for ticket in range(4)]
        assert [b.seat for b in asked] == ["s-1", "s-3", "s-2", "s-0"]
        assert not any(b.at_home for b in asked)
        assert homes(seats) == of(seats, A)

    def test_an_executor_without_sidecar_takes_no_home(self) -> None:
        seats = settled(4, A, B)
        before = homes(seats)
        assert read(ask(seats, seats.plan("2", names(4)), [COLD, A, B, B])) == names(4)
        assert homes(seats) == before

    def test_a_worker_that_cannot_reach_its_executors_sidecar_is_a_guest(self) -> None:
        seats = settled(2, A, B)
        scan = seats.plan("2", names(2))
        alone = executor("A", has_sidecar=False)
        assert seats.bind(scan.scan_id, 0, alone, 0).at_home is False
        assert homes(seats) == {"s-0": "A", "s-1": "B"}

    def test_an_executor_is_home_to_no_seat_before_its_sidecar_has_said_hello(self) -> None:
        seats = joined(2, A)
        scan = seats.plan("1", names(2))
        assert seats.bind(scan.scan_id, 0, B, 0) == Binding(seat="s-0", at_home=False)
        seats.on_sidecar_joined(B, 0)
        assert seats.bind(scan.scan_id, 0, B, 0) == Binding(seat="s-0", at_home=True)

    def test_seats_have_no_homes_if_no_executor_has_a_sidecar(self) -> None:
        seats = joined(3)
        for batch in range(3):
            bindings = ask(seats, seats.plan(f"{batch}", names(3)), [COLD])
            assert read(bindings) == names(3)
        assert homes(seats) == {}


class TestHome:
    """A home says which executor serves a seat, since when, and whether its server is warm."""

    def test_a_home_says_since_when_it_is_one(self) -> None:
        seats = joined(1, A, B)
        scan = seats.plan("1", names(1))
        seats.bind(scan.scan_id, 0, A, 1_000)
        seats.bind(scan.scan_id, 0, A, 2_000)
        assert seats.homes.living()["s-0"].since_ms == 1_000
        seats.on_sidecar_gone(A.key)
        seats.bind(scan.scan_id, 0, B, 3_000)
        assert (seats.homes.living()["s-0"].executor, seats.homes.living()["s-0"].since_ms) == (B, 3_000)

    def test_a_home_that_a_due_seat_moved_to_says_since_when(self) -> None:
        seats = settled(2, A)
        seats.on_sidecar_joined(B, 500)
        seats.bind(seats.plan("2", names(2)).scan_id, 0, B, 1_000)
        assert [home.since_ms for home in seats.homes.living().values() if home.executor == B] == [1_000]

    def test_the_lease_of_one_seat_is_that_of_its_living_home(self) -> None:
        seats = settled(2, A, B)
        assert seats.homes.of("s-0") == seats.homes.living()["s-0"]
        assert seats.homes.of("s-0") is not None
        seats.on_sidecar_gone(A.key)
        assert seats.homes.of("s-0") is None
        assert seats.homes.of("s-1") == seats.homes.living()["s-1"]

    def test_a_home_shows_its_executor_as_it_presented_itself_last(self) -> None:
        """Its first worker may not know Spark's id of it, but the sidecar that replaces the first one does."""
        seats = settled(1, replace(A, executor_id=""))
        seats.on_sidecar_joined(A, 1_000)
        assert seats.homes.living()["s-0"].executor == A

    def test_a_home_is_warm_once_its_server_has_served_a_read(self) -> None:
        seats = settled(2, A, B)
        assert not seats.homes.living()["s-0"].warm
        seats.homes.set_warm("s-0", A.key, warm=True)
        seats.homes.set_warm("s-1", A.key, warm=True)  # a straggler of an executor that is not the home
        seats.homes.set_warm("s-9", A.key, warm=True)
        assert {seat: home.warm for seat, home in seats.homes.living().items()} == {"s-0": True, "s-1": False}

    def test_a_replaced_sidecar_makes_its_homes_cold(self) -> None:
        seats = settled(1, A)
        seats.homes.set_warm("s-0", A.key, warm=True)
        seats.on_sidecar_joined(A, 5_000)
        assert (seats.homes.living()["s-0"].warm, seats.homes.living()["s-0"].since_ms) == (False, 5_000)


class TestRefused:
    """A ticket that was never planned, or whose batch is over."""

    @pytest.mark.parametrize("ticket", [-1, 2])
    def test_an_unknown_ticket_is_refused(self, ticket: int) -> None:
        seats = joined(2, A)
        scan = seats.plan("1", names(2))
        with pytest.raises(SeatRefused, match=f"ticket {ticket} of scan {scan.scan_id}"):
            seats.bind(scan.scan_id, ticket, A, 0)

    def test_a_scan_is_kept_as_long_as_those_of_past_batches_have_few_ranges(self) -> None:
        """And until its batch is committed, which is when the next one is planned, and for a batch more."""
        seats = joined(1, A)
        scans = [seats.plan(str(batch), names(1), ranges=PAST_RANGES_MAX // 2 - 1) for batch in range(6)]
        for scan in scans[2:]:  # two past batches and the last two
            assert seats.bind(scan.scan_id, 0, A, 0).seat == "s-0"
        for scan in scans[:2]:
            with pytest.raises(SeatRefused):
                seats.bind(scan.scan_id, 0, A, 0)
        assert [seats.is_recent(scan.scan_id) for scan in scans] == [None, None, False, False, True, True]

    def test_the_tickets_of_a_past_batch_read_the_seats_that_they_read_then(self) -> None:
        """A frame of it is computed again: its persisted rows were lost with an executor, for example."""
        seats = settled(6, A, B)
        scan = seats.plan("kept", names(6))
        then = {ticket: seats.bind(scan.scan_id, ticket, (A, B)[ticket // 3], 0).seat for ticket in range(5)}
        for batch in range(100):
            ask(seats, seats.plan(str(batch), names(6)), [A, B])
        again = {ticket: seats.bind(scan.scan_id, ticket, B, 0).seat for ticket in reversed(range(6))}
        assert again.items() >= then.items()
        assert sorted(filter(None, again.values())) == names(6)

    def test_a_batch_planned_without_end_forgets_its_oldest_scans(self) -> None:
        seats = joined(1, A)
        scans = [seats.plan("1", names(1)) for _ in range(SCANS_MAX + 1)]
        with pytest.raises(SeatRefused):
            seats.bind(scans[0].scan_id, 0, A, 0)
        assert seats.bind(scans[1].scan_id, 0, A, 0).seat == "s-0"


def test_executors_that_come_and_go_without_a_seat_leave_no_trace() -> None:
    seats = settled(2, A, B)
    size = len(pickle.dumps(seats))
    for number in range(100):
        guest = executor(f"{number}")
        seats.on_sidecar_joined(guest, 0)
        seats.on_sidecar_gone(guest.key)
    seats.on_sidecar_gone("nobody@nowhere")
    assert homes(seats) == {"s-0": "A", "s-1": "B"}
    assert len(pickle.dumps(seats)) == size


def test_a_lost_executor_whose_seats_have_all_moved_leaves_no_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seats_module, "PAST_RANGES_MAX", 0)  # the bound of ranges that past batches leave
    seats = settled(2, A, B)
    sizes = []
    for number in range(100, 110):
        newcomer = executor(f"{number}")
        seats.on_sidecar_joined(newcomer, 0)
        seats.on_sidecar_gone(f"{number - 1}@host" if number > 100 else A.key)
        ask(seats, seats.plan(f"{number}", names(2)), [newcomer, B])
        sizes.append(len(pickle.dumps(seats)))
    assert homes(seats) == {"s-0": "109", "s-1": "B"}
    assert len(set(sizes[1:])) == 1


def test_a_batch_is_untouched_if_no_executor_has_asked_for_a_ticket_of_it() -> None:
    seats = settled(2, A, B)
    assert not seats.is_untouched()
    for batch in ("skipped", "read"):
        scans = [seats.plan(batch, names(2)) for _ in range(2)]  # a union of the stream with itself
        assert seats.is_untouched()
    seats.bind(scans[0].scan_id, 0, A, 0)
    assert not seats.is_untouched()
    seats.plan("nothing to read", [])
    assert not seats.is_untouched()


class TestAway:
    """An executor that Spark gives no tasks, since it is excluded or about to be removed, gives its seats up."""

    def test_the_seats_of_an_executor_that_misses_its_tickets_move_within_some_batches(self) -> None:
        seats = settled(6, A, B, C)
        for batch in range(MISSED_BATCHES_MIN + 20):
            if not of(seats, C):
                break
            ask(seats, seats.plan(str(batch), names(6)), [A, B])
        assert MISSED_BATCHES_MIN <= batch <= 11, "6 tickets for 3 executors: 20 are missed after 10 batches"
        ask(seats, seats.plan("then", names(6)), [A, B])
        assert counts(seats) == {"A": 3, "B": 3}

    def test_reads_of_guests_do_not_keep_seats_at_an_executor_that_gets_no_tasks(self) -> None:
        """Its seats alone lead to such reads: each worker elsewhere has the home's sidecar ask for it."""
        seats = settled(6, A, B, C)
        for batch in range(30):
            scan = seats.plan(str(batch), names(6))
            for ticket, binding in enumerate(ask(seats, scan, [A, B])):
                if binding.seat is not None and binding.seat in of(seats, C):
                    seats.bind(scan.scan_id, ticket, C, 0, for_guest=True)
        assert counts(seats) == {"A": 3, "B": 3}

    def test_a_read_of_a_guest_brings_no_seat_back_to_an_executor_that_gets_no_tasks(self) -> None:
        seats = settled(6, A, B, C)
        for batch in range(30):  # batches without the seats of C: no executor takes them
            ask(seats, seats.plan(str(batch), ["s-0", "s-1", "s-3", "s-4"]), [A, B])
        scan = seats.plan("guest", ["s-2"])
        assert seats.bind(scan.scan_id, 0, COLD, 0).seat == "s-2"
        seats.bind(scan.scan_id, 0, C, 0, for_guest=True)
        assert of(seats, C) == {}

    def test_one_batch_alone_never_makes_seats_move_however_large_it_is(self) -> None:
        seats = settled(300, A, B, C)
        before = homes(seats)
        for batch in range(MISSED_BATCHES_MIN - 1):
            ask(seats, seats.plan(str(batch), names(300)), [A, B])
        ask(seats, seats.plan("last", names(300)), [A, B, C])
        assert homes(seats) == before

    def test_an_executor_that_gets_tasks_again_keeps_the_seats_that_no_other_one_has_taken(self) -> None:
        seats = settled(6, A, B, C)
        held = of(seats, C)
        for batch in range(30):  # batches without the seats of C: no executor takes them
            ask(seats, seats.plan(str(batch), ["s-0", "s-1", "s-3", "s-4"]), [A, B])
        assert of(seats, C) == {}
        ask(seats, seats.plan("back", names(6)), [C, A, B])
        assert of(seats, C) == held

    def test_an_executor_that_comes_back_gets_its_even_share_again(self) -> None:
        seats = settled(6, A, B, C)
        for batch in range(30):
            ask(seats, seats.plan(str(batch), names(6)), [A, B])
        assert counts(seats) == {"A": 3, "B": 3}
        for batch in range(30, 34):
            ask(seats, seats.plan(str(batch), names(6)), [A, B, C])
        assert counts(seats) == {"A": 2, "B": 2, "C": 2}

    def test_batches_that_no_task_reads_make_no_seat_move(self) -> None:
        seats = settled(6, A, B)
        before = homes(seats)
        for batch in range(100):
            seats.plan(str(batch), names(6))
        assert homes(seats) == before

    def test_the_only_executor_is_never_away(self) -> None:
        seats = settled(3, A)
        for batch in range(30):
            ask(seats, seats.plan(str(batch), names(3)), [COLD])
        assert counts(seats) == {"A": 3}

    @pytest.mark.parametrize("seed", range(20))
    def test_random_placement_makes_no_seat_move(self, seed: int) -> None:
        """More executors than seats, so that in most batches most executors get no seat."""
        rng = Random(seed)
        executors = [executor(f"e{number}") for number in range(50)]
        seats = joined(20, *executors)
        ask(seats, seats.plan("first", names(20)), rng.sample(executors, 20))
        before = homes(seats)
        for batch in range(200):
            ask(seats, seats.plan(str(batch), names(20)), rng.sample(executors, 50))
        assert homes(seats) == before


class TestSize:
    """Seats that join and leave while the query runs, and the task slots that executors tell of."""

    def test_seats_that_join_get_homes_and_keep_those_of_other_seats(self) -> None:
        seats = settled(4, A, B)
        before = homes(seats)
        seats.homes.resize(names(8))
        ask(seats, seats.plan("then", names(8)), [A, B])
        assert of(seats, A, B).items() >= before.items()
        assert counts(seats) == {"A": 4, "B": 4}

    def test_seats_that_leave_have_no_home_and_other_seats_keep_theirs(self) -> None:
        seats = settled(8, A, B)
        before = homes(seats)
        seats.homes.resize(names(4))
        assert homes(seats) == {seat: home for seat, home in before.items() if seat in names(4)}
        assert read(ask(seats, seats.plan("then", names(4)), [A, B])) == names(4)

    def test_a_batch_that_names_a_seat_which_has_left_is_read_all_the_same(self) -> None:
        seats = settled(4, A, B)
        seats.homes.resize(names(2))
        assert read(ask(seats, seats.plan("replayed", names(4)), [A, B])) == names(4)

    def test_a_seat_that_leaves_the_last_home_of_a_lost_executor_leaves_no_trace(self) -> None:
        seats = settled(2, A, B)
        seats.on_sidecar_gone(B.key)
        seats.homes.resize(names(1))
        assert homes(seats) == {"s-0": "A"}
        seats.on_sidecar_joined(B, 0)
        assert of(seats, B) == {}

    def test_the_slots_are_those_of_executors_that_are_here_and_get_tasks(self) -> None:
        four, two = replace(A, cores=4), replace(B, cores=2)
        seats = joined(6, four, two)
        assert seats.live.slots() == 6
        seats.on_sidecar_gone(two.key)
        assert seats.live.slots() == 4
        seats.on_sidecar_joined(two, 0)
        for batch in range(30):
            ask(seats, seats.plan(str(batch), names(6)), [four])
        assert seats.live.slots() == 4, "the other one is away"
