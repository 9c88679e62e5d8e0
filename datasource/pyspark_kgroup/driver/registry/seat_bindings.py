"""Which executor is home to which seat, and which seat a ticket reads: the registry's bookkeeping.

Runs on: driver. Pure: executors, tickets and `now_ms` go in, bindings come out.

The *home* of a seat is the executor whose sidecar runs the seat's server. The batch's two offsets alone decide which
records are read. This module decides only where: `SeatBindings` which ticket reads which seat, `SeatHomes` which
executor is home to which seat, and `LiveExecutors` which executors come into question. Three laws hold at every moment:

1. Each seat of a scan, or each piece of its share if that is divided, is bound to exactly one of its tickets, for good.
2. A home moves for one of two reasons. First, its executor is gone or gets no tasks any more. Second, another executor
   has fewer seats than an even spread gives it. For the second reason there are never more moves than an even spread
   needs, and the seats that moved last go first. So when a lost executor is replaced, exactly its own seats have moved
   in the end.
3. A seat that is read away from its home (a *guest read*) keeps its home.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from pyspark_kgroup.errors import SeatRefused
from pyspark_kgroup.limits import MISSED_BATCHES_MIN, MISSED_TICKETS_MAX, PAST_RANGES_MAX, SCANS_MAX
from pyspark_kgroup.shared.tickets import Executor, Mode


class Part(NamedTuple):
    """The part of a batch that one ticket reads: a seat's share, or a piece of it.

    Attributes:
        piece: its number, in the order of the share's pieces, or 0 if the share is not divided.
    """

    seat: str
    piece: int


def make_parts(tickets: Iterable[str | None]) -> list[Part]:
    """The parts that the tickets of a FIXED scan read. Each seat is in `tickets` as often as its share has pieces."""
    before = Counter[str]()
    parts = []
    for seat in tickets:
        if seat is not None:
            parts.append(Part(seat, before[seat]))
            before[seat] += 1
    return parts


@dataclass(frozen=True, slots=True, kw_only=True)
class Scan:
    """One call of `partitions()`. A self-union makes two of them for one batch.

    Attributes:
        tickets: FIXED: ticket k reads this seat, or one piece of its share (`make_parts`). LATE: None for each ticket.
    """

    scan_id: int
    mode: Mode
    tickets: tuple[str | None, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Binding:
    """The seat, and the piece of its share, that one ticket reads.

    Attributes:
        seat: None if this ticket has no seat to read.
        at_home: whether the asking executor is the seat's home.
        piece: which piece of the seat's share.
    """

    seat: str | None
    at_home: bool
    piece: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Home:
    """The home of one seat.

    Attributes:
        since_ms: when this home began, or the executor's sidecar was last replaced.
        move: how many changes of home the query had seen when this home began. A later home has a greater number.
        warm: whether the seat's server has served a read here, and could fetch since then.
    """

    executor: Executor
    since_ms: int
    move: int
    warm: bool = False


@dataclass(slots=True)
class _Progress:
    """How far a scan is bound.

    Attributes:
        size: how much memory it takes, as the number of its ranges and tickets.
        unread: LATE: seat -> the numbers of its pieces that no ticket has yet, the next one last.
        unread_pieces: LATE: how many they are in all.
        in_order: FIXED: the part of each ticket. LATE, where shares are divided: the part that it reads if it may.
        bound: ticket -> its part, or None if it has no seat to read.
    """

    scan: Scan
    batch: str
    size: int
    unread: dict[str, dict[int, None]]
    in_order: Sequence[Part] = ()
    bound: dict[int, Part | None] = field(default_factory=dict)
    unread_pieces: int = field(init=False)

    def __post_init__(self) -> None:
        self.unread_pieces = sum(map(len, self.unread.values()))

    def take_next(self, seat: str) -> Part:
        """LATE: the seat's next piece, which a ticket has from now on."""
        piece, _ = self.unread[seat].popitem()
        self._on_taken(seat)
        return Part(seat, piece)

    def take(self, part: Part) -> bool:
        """LATE: let a ticket have this piece from now on. False if another ticket has it."""
        if part.piece not in self.unread.get(part.seat, ()):
            return False
        del self.unread[part.seat][part.piece]
        self._on_taken(part.seat)
        return True

    def _on_taken(self, seat: str) -> None:
        self.unread_pieces -= 1
        if not self.unread[seat]:
            del self.unread[seat]


class LiveExecutors:
    """The executors of one query that are here, and which of them get tasks. Not thread-safe: under `Registry`'s lock.

    Memory: one entry for each live executor.
    """

    def __init__(self) -> None:
        # Executor -> how many tasks it runs at once.
        self._cores: dict[str, int] = {}
        # Sidecars of an executor: two for a moment, when one is replaced before the end of the first is noticed.
        self._sidecars: Counter[str] = Counter()
        # Executor -> the tickets that it would have had on average since a batch in which it asked for one.
        self._missed: dict[str, float] = {}
        # Executors that have asked for a ticket since the batch began.
        self._asked: set[str] = set()
        # Executors that get no tasks, since Spark has excluded them or is about to remove them.
        self._away: set[str] = set()

    def __contains__(self, key: str) -> bool:
        """Whether this executor is here, with tasks or without."""
        return key in self._sidecars

    def __bool__(self) -> bool:
        """Whether any executor is here, with tasks or without."""
        return bool(self._sidecars)

    def with_tasks(self) -> list[str]:
        """Executors that are here and get tasks."""
        return [key for key in self._sidecars if key not in self._away]

    def slots(self) -> int:
        """How many tasks all executors together run at once, as far as they are known and get tasks."""
        return sum(self._cores[key] for key in self.with_tasks())

    def on_joined(self, executor: Executor) -> None:
        """A sidecar of this executor says hello."""
        self._sidecars[executor.key] += 1
        self._cores[executor.key] = executor.cores

    def on_gone(self, key: str) -> bool:
        """A sidecar ended or fell silent. Returns whether it was the last one of its executor, which is lost then."""
        self._sidecars[key] -= 1
        if self._sidecars[key] > 0:
            return False
        del self._sidecars[key]
        for by_executor in (self._missed, self._cores):
            by_executor.pop(key, None)
        self._away.discard(key)
        return True

    def on_asked(self, key: str) -> bool:
        """An executor asks for a ticket. Returns whether it was away until now."""
        self._asked.add(key)
        was_away = key in self._away
        self._away.discard(key)
        return was_away

    def on_batch(self, reported: int) -> list[str]:
        """Begin a batch, and find executors that get no tasks any more.

        Args:
            reported: how many tickets of the last batch executors have asked for.

        Returns:
            Executors that are away from now on. By an even spread each has missed `MISSED_TICKETS_MAX` tickets since it
            last asked for one, over `MISSED_BATCHES_MIN` batches or more. The only executor with tasks is never away.
        """
        live, asked, self._asked = self.with_tasks(), self._asked, set()
        away = []
        for key in live:
            # Capped, since in a single batch an executor may be busy with other tasks, however large the batch is.
            missed = min(reported / len(live), MISSED_TICKETS_MAX / MISSED_BATCHES_MIN)
            self._missed[key] = self._missed.get(key, 0.0) + missed if key not in asked else 0.0
            # The only executor with tasks keeps its seats, since no other one could take them.
            if self._missed[key] >= MISSED_TICKETS_MAX and len(live) > 1:
                away.append(key)
        self._away.update(away)
        return away


class SeatHomes:
    """Which executor is home to which seat, and which seats have to move. Not thread-safe: under `Registry`'s lock.

    Memory: one entry for each seat and each live executor.

    Args:
        all_seats: the seats that this query holds.
        live: the executors that may be homes.

    Attributes:
        all_seats: the seats that this query holds.
        free: seats without a living home: those that never had one, then those of lost executors.
    """

    def __init__(self, all_seats: Sequence[str], live: LiveExecutors) -> None:
        self.all_seats = tuple(all_seats)
        self.free = dict.fromkeys(self.all_seats)
        self._live = live
        self._moves = 0
        self._homes: dict[str, Home] = {}
        # Executor -> the seats it is home to, longest held first. A lost executor's stay until they have a new home.
        self._held: dict[str, dict[str, None]] = {}
        # The moves that an even spread needs. None: not known since the last change.
        self._due: dict[str, None] | None = None

    def living(self) -> Mapping[str, Home]:
        """Seat -> its home, for seats that have a living one."""
        return {seat: home for seat, home in self._homes.items() if seat not in self.free}

    def of(self, seat: str) -> Home | None:
        """The seat's living home."""
        return self._homes.get(seat) if seat not in self.free else None

    def last_home(self, seat: str) -> Home | None:
        """The home that the seat has or had last, living or not."""
        return self._homes.get(seat)

    def held(self, key: str) -> dict[str, None]:
        """The seats that this live executor is home to, longest held first."""
        return self._held[key]

    def resize(self, all_seats: Sequence[str]) -> None:
        """The query holds these seats from now on. Seats that it held before have no home any more."""
        self.free |= {seat: None for seat in all_seats if seat not in self.all_seats}
        for seat in set(self.all_seats) - set(all_seats):
            self.free.pop(seat, None)
            if (home := self._homes.pop(seat, None)) is not None:
                self._leave_home(seat, home.executor.key)
        self.all_seats = tuple(all_seats)
        self._due = None

    def on_executor_joined(self, executor: Executor, now_ms: int) -> None:
        """An executor is here: it is home again to the seats it had, except those another one took since."""
        for seat in self._held.setdefault(executor.key, {}):
            self.free.pop(seat, None)
            self._homes[seat] = replace(self._homes[seat], executor=executor, since_ms=now_ms, warm=False)
        self._due = None

    def on_executor_back(self, key: str) -> None:
        """An executor gets tasks again: it is home again to its seats, except those another took since."""
        for seat in self._held[key]:
            self.free.pop(seat, None)
        self._due = None

    def on_executor_away(self, key: str) -> None:
        """An executor gets no tasks: its seats are free."""
        self.free |= self._held[key]
        self._due = None

    def on_executor_lost(self, key: str) -> None:
        """An executor has no sidecar any more: its seats are free."""
        if held := self._held.get(key):
            self.free |= held
        else:
            self._held.pop(key, None)
        self._due = None

    def set_warm(self, seat: str, key: str, *, warm: bool) -> None:
        """The seat's server on this executor has served a read, or cannot fetch now. Nothing if its home is another."""
        home = self._homes.get(seat)
        if home is not None and home.executor.key == key:
            self._homes[seat] = replace(home, warm=warm)

    def move(self, seat: str, executor: Executor, now_ms: int) -> None:
        """Make `executor` the home of `seat`."""
        if seat in self._homes:
            self._leave_home(seat, self._homes[seat].executor.key)
        self.free.pop(seat, None)
        self._held[executor.key][seat] = None
        self._moves += 1
        self._homes[seat] = Home(executor=executor, since_ms=now_ms, move=self._moves)
        if self._due is not None and seat in self._due:
            del self._due[seat]  # one move less, and the rest is due as before
        else:
            self._due = None

    def _leave_home(self, seat: str, executor: str) -> None:
        del self._held[executor][seat]
        if not self._held[executor] and executor not in self._live:
            del self._held[executor]

    def due_to(self, executor: Executor) -> Iterable[str]:
        """The seats that may move to `executor`: none unless it has fewer than an even spread gives it.

        An executor with exactly that many gets seats only where they do not divide evenly: another executor has two
        more than it, and executors below that number cannot take them all.
        """
        due = self.moves_due()
        more = len(self._held[executor.key]) - self._even_seats()
        return due if more < 0 or (more == 0 and len(due) > self._lacking()) else ()

    def moves_due(self) -> dict[str, None]:
        """The fewest seats that must move until the spread is even (no executor has two more than another).

        Each is taken from the executor that then has the most, the seat that moved last first: seats that came from a
        lost executor go before those that were here all the time. The executors that ask for tickets take them.
        """
        if self._due is not None:
            return self._due
        even = self._even_seats()
        held = [list(self._held[key]) for key in self._live.with_tasks()]
        too_many = sum(max(0, len(seats) - even - 1) for seats in held)
        donors = [(-len(seats), -self._homes[seats[-1]].move, seats) for seats in held if seats]
        heapq.heapify(donors)
        due: dict[str, None] = {}
        for _ in range(max(too_many, self._lacking())):
            _, _, seats = heapq.heappop(donors)
            due[seats.pop()] = None
            if seats:
                heapq.heappush(donors, (-len(seats), -self._homes[seats[-1]].move, seats))
        self._due = due
        return due

    def _even_seats(self) -> int:
        """Seats that each live executor has if they are spread evenly. Some have one more."""
        return len(self.all_seats) // len(self._live.with_tasks())

    def _lacking(self) -> int:
        """How many seats, beside free ones, must move so that no executor has fewer than an even spread gives it."""
        even = self._even_seats()
        return max(0, sum(max(0, even - len(self._held[key])) for key in self._live.with_tasks()) - len(self.free))


class SeatBindings:
    """Scans and tickets of one query, and which seat each ticket reads. Not thread-safe: under `Registry`'s lock.

    Memory: the scans of the last two batches, and as many scans before them as are within `PAST_RANGES_MAX`. There are
    at most `SCANS_MAX` scans in all.

    Args:
        all_seats: the seats that this query holds. A replayed batch may name others, from before `members` was made
            smaller: they are read, but have no home.

    Attributes:
        live: the executors that are here.
        homes: which of them is home to which seat.
    """

    def __init__(self, all_seats: Sequence[str]) -> None:
        self.live = LiveExecutors()
        self.homes = SeatHomes(all_seats, self.live)
        self._batch = self._batch_before = ""
        self._mode = Mode.FIXED
        self._scans: dict[int, _Progress] = {}
        self._last_scan = 0

    # ------------------------------------------------------------------------------------------------------ scans

    def plan(self, batch: str, seats: Sequence[str], *, late: bool = True, ranges: int = 0) -> Scan:
        """Begin a scan.

        It is LATE if `late` allows that, there is a sidecar (else no seat has a home), and every ticket of the previous
        batch has reported here: then all executors reach us, if only by way of another one's sidecar.

        A LATE scan has spare tickets (`_late_tickets`), so that an executor whose seats have no data can be given no
        seat, instead of taking another executor's.

        Args:
            batch: names the batch by its two offsets. Two scans in succession with the same name are of one batch.
            seats: the seats with data, each as often as its share has pieces.
            late: whether the ranges of each seat fit into a message to an executor.
            ranges: how many the seats read in all.
        """
        if batch != self._batch:
            self._begin(batch)
        mode = self._mode if late and self.live else Mode.FIXED
        self._last_scan += 1
        scan = Scan(
            scan_id=self._last_scan,
            mode=mode,
            tickets=(None,) * self._late_tickets(seats) if mode is Mode.LATE else tuple(seats),
        )
        late_parts = {seat: dict.fromkeys(reversed(range(count))) for seat, count in Counter(seats).items()}
        divided = len(set(seats)) < len(seats)
        in_order = make_parts(seats) if mode is Mode.FIXED or divided else ()
        size = ranges + len(scan.tickets)
        self._scans[scan.scan_id] = _Progress(scan, batch, size, late_parts, in_order)
        self._forget()
        return scan

    def _forget(self) -> None:
        """Forget scans, the oldest first."""
        past = {number: scan.size for number, scan in self._scans.items() if not self._is_recent(scan)}
        size = sum(past.values())
        for number in list(self._scans):
            if len(self._scans) <= SCANS_MAX and size <= PAST_RANGES_MAX:
                break
            size -= past.get(number, 0)
            del self._scans[number]

    def _is_recent(self, progress: _Progress) -> bool:
        return progress.batch in (self._batch, self._batch_before)

    def is_recent(self, scan_id: int) -> bool | None:
        """Whether a scan is one of the last two batches, or None if it is not known any more."""
        progress = self._scans.get(scan_id)
        return self._is_recent(progress) if progress is not None else None

    def is_untouched(self) -> bool:
        """Whether the last batch has tickets, and no executor has asked for any of them."""
        last = [progress for progress in self._scans.values() if progress.batch == self._batch]
        return any(progress.scan.tickets for progress in last) and not any(progress.bound for progress in last)

    def _late_tickets(self, seats: Sequence[str]) -> int:
        """How many tickets a LATE scan of `seats` has: as many as let nearly all be read at home.

        Spark deals tasks to executors in turn, so the home with most of these seats comes to read all of them if every
        executor can have as many tickets, and one more since some ask sooner. If one seat alone has data, ticket 0
        reads it (`_choose`), on any executor. Where shares are divided there are no more tickets than pieces: an
        executor that is home to none of these seats is to help, not to be given no seat.
        """
        if len(seats) < 2 or len(set(seats)) < len(seats):
            return len(seats)
        homes = self.homes.living()
        busiest = max(Counter(homes[seat].executor.key for seat in seats if seat in homes).values(), default=0)
        return max(len(seats), min(len(self.homes.all_seats), (busiest + 1) * len(self.live.with_tasks())))

    def _begin(self, batch: str) -> None:
        last = [progress for progress in self._scans.values() if progress.batch == self._batch]
        asked = sum(len(progress.scan.tickets) for progress in last)
        reported = sum(len(progress.bound) for progress in last)
        if asked > 0:  # a batch without data has no tickets, and is no proof either way
            self._mode = Mode.LATE if reported == asked else Mode.FIXED
        for key in self.live.on_batch(reported):
            self.homes.on_executor_away(key)
        self._batch_before, self._batch = self._batch, batch

    def bind(self, scan_id: int, ticket: int, executor: Executor, now_ms: int, *, for_guest: bool = False) -> Binding:
        """Say what `ticket` reads. Asked again by any executor, the answer names the same seat and piece.

        Args:
            scan_id: the scan that the ticket is of.
            ticket: its number.
            executor: the executor whose worker or sidecar asks.
            now_ms: the time.
            for_guest: its sidecar asks for a worker of another executor: `executor` has got no task.

        Raises:
            SeatRefused: there is no such scan (any more), or no such ticket in it.
        """
        progress = self._scans.get(scan_id)
        if progress is None or not 0 <= ticket < len(progress.scan.tickets):
            raise SeatRefused(scan_id, ticket)
        if not for_guest:
            self._on_asked(executor.key)
        if ticket not in progress.bound:
            progress.bound[ticket] = self._choose_part(progress, ticket, executor, now_ms)
        part = progress.bound[ticket]
        if part is None:
            return Binding(seat=None, at_home=False)
        may_be_home = self._may_be_home(executor)
        # Where the seat is read now, its server can fetch ahead for the next batch. A guest's task runs elsewhere.
        if part.seat in self.homes.free and may_be_home and not for_guest:
            self.homes.move(part.seat, executor, now_ms)
        at_home = may_be_home and part.seat in self.homes.held(executor.key)
        return Binding(seat=part.seat, piece=part.piece, at_home=at_home)

    def _choose_part(self, progress: _Progress, ticket: int, executor: Executor, now_ms: int) -> Part | None:
        """The part for a ticket that is not bound yet.

        One executor alone reads pieces in the order of its tickets, in which Spark shows rows (`collect`, `coalesce`).
        """
        if progress.scan.mode is Mode.FIXED:
            return progress.in_order[ticket]
        if progress.in_order and self.live.with_tasks() == [executor.key] and progress.take(progress.in_order[ticket]):
            return progress.in_order[ticket]
        seat = self._choose(progress, ticket, executor, now_ms)
        return progress.take_next(seat) if seat is not None else None

    # -------------------------------------------------------------------------------------------------- executors

    def on_sidecar_joined(self, executor: Executor, now_ms: int) -> None:
        """A sidecar says hello. Its executor is home again to the seats it had, except those another one took since."""
        self.live.on_joined(executor)
        self.homes.on_executor_joined(executor, now_ms)

    def on_sidecar_gone(self, key: str) -> None:
        """A sidecar ended or fell silent. With its last one, the executor is lost and its seats are free."""
        if self.live.on_gone(key):
            self.homes.on_executor_lost(key)

    def _on_asked(self, key: str) -> None:
        """An executor gets tasks. If it was away, it is home again to its seats, except those another took since."""
        if self.live.on_asked(key):
            self.homes.on_executor_back(key)

    def _may_be_home(self, executor: Executor) -> bool:
        return executor.has_sidecar and executor.key in self.live

    # ------------------------------------------------------------------------------------------- late binding

    def _choose(self, progress: _Progress, ticket: int, executor: Executor, now_ms: int) -> str | None:
        """The seat for an unbound ticket of a LATE scan: the first unread one by these rules, or None.

        0. None, if one piece alone is unread and ticket 0 is not bound yet: it is kept for ticket 0, since Spark's file
           writer makes a file of the first partition even if that is empty (FileFormatWriter.executeTask).

        1. A seat whose home is this executor, longest held first: those held last may have to move.
        2. A seat without a home, or whose home is gone.
        3. If this executor has fewer seats than an even spread gives it: a seat that is due to move, which moves here.
        4. None, while more tickets are unbound than pieces are unread, unless this is ticket 0.
        5. As a guest: of the executor that has most left to read, the seat that it would read last.
        """
        unread, unread_pieces = progress.unread, progress.unread_pieces
        if ticket != 0 and 0 not in progress.bound and unread_pieces == 1:
            return None
        may_be_home = self._may_be_home(executor)
        seat = _first(self.homes.held(executor.key), unread) if may_be_home else None
        seat = seat or _first(self.homes.free, unread)
        if seat is None and may_be_home:
            seat = _first(self.homes.due_to(executor), unread)
            if seat is not None:
                self.homes.move(seat, executor, now_ms)
        if seat is None and (ticket == 0 or len(progress.scan.tickets) - len(progress.bound) <= unread_pieces):
            seat = self._furthest_from_read(unread)
        return seat

    def _furthest_from_read(self, unread: Mapping[str, Collection[int]]) -> str:
        """The seat that its home would read last, of the executor that has most left to read.

        Prefers seats that are not due to move: their new home could not take them in this scan.
        """
        any_seat = next(iter(unread))
        live = self.live.with_tasks()
        if not live:
            return any_seat  # the seat of an earlier query, since one of this query would be free
        left = Counter[str]()  # executor -> pieces, counted by seats, which may be few where executors are many
        for seat, pieces in unread.items():
            if (home := self.homes.last_home(seat)) is not None:
                left[home.executor.key] += len(pieces)
        busiest = max(live, key=left.__getitem__)
        last_first = [seat for seat in reversed(self.homes.held(busiest)) if seat in unread]
        return min(last_first, key=self.homes.moves_due().__contains__, default=any_seat)


def _first(seats: Iterable[str], unread: Mapping[str, Collection[int]]) -> str | None:
    return next((seat for seat in seats if seat in unread), None)
