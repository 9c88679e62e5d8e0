"""The registry: which executor reads which seat, where its sidecar is, and what the tickets of each scan read.

Runs on: driver, in the stream-reader process. `seat_bindings` decides, `requests` answers executors, `server` has the
sockets.

Spark's thread plans scans, the server's thread binds tickets: both hold the lock while `seat_bindings` decides, and act
after that.
"""

from __future__ import annotations

import logging
import random
import secrets
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Final

from pyspark_kgroup.driver.registry.record_sizes import RecordSizes
from pyspark_kgroup.driver.registry.reporting import Counts
from pyspark_kgroup.driver.registry.seat_bindings import Home, Scan, SeatBindings
from pyspark_kgroup.errors import SeatRefused
from pyspark_kgroup.limits import CHANNEL_BYTES_MAX, SIDECARS_IN_TICKET
from pyspark_kgroup.shared.messages import Bind, Bound, NothingLeft, Refused, Served
from pyspark_kgroup.shared.tickets import Executor, OffsetRange, Position, SidecarAddress
from spark_kgroup.clock import monotonic_ms

log = logging.getLogger(__name__)

_NUMBERS_BYTES: Final = 64
"""Most bytes that the numbers of a range or position take in JSON, with quotes and commas: 10, 19 and 19 digits."""

_LEADER_BYTES: Final = 72
"""Most bytes that a leader takes beside its host: three numbers of 10, 5 and 10 digits, and the topic's id of 32."""

_READS: Final = {
    "server": Counts(warm_reads=1),
    "network": Counts(network_reads=1),
    "worker": Counts(direct_reads=1),
}
"""How a read is counted, by `Served.by`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Planned:
    """The ranges that the seats read in one scan, each in one piece or several.

    Attributes:
        owned: where the batch after it begins. None once that is past: no server goes back for a task that computes an
            old batch again.
    """

    reads: Mapping[str, Sequence[Sequence[OffsetRange]]]
    owned: Mapping[str, Sequence[Position]] | None


class Registry:
    """Which executor reads which seat of one query, and which ranges each ticket reads.

    Three threads call its methods, and the lock guards all but `sizes` and the counts. Spark's thread plans scans,
    changes the seats, and reads homes and slots. The group's thread reads homes when a seat joins or commits. The
    server's thread binds tickets and records sidecars and finished reads: it alone changes the counts, and `sizes` once
    executors read.

    Args:
        all_seats: instance ids.
        homes_serve_others: whether the sidecar at a seat's home also serves workers of other executors.
        clock: in milliseconds, and it goes on while the process is stopped.

    Attributes:
        homes_serve_others: as given.
        query: the id of this run of the query, which its tickets carry.
        sizes: how large the records are that executors have read.
    """

    def __init__(
        self,
        all_seats: Sequence[str],
        *,
        homes_serve_others: bool = False,
        clock: Callable[[], int] = monotonic_ms,
    ) -> None:
        self.homes_serve_others = homes_serve_others
        self.query = secrets.token_hex(8)
        self.sizes = RecordSizes()
        self._clock = clock
        self._lock = threading.Lock()
        self._seats = SeatBindings(all_seats)
        # Executor -> where workers of other executors reach its sidecar, or None if they do not.
        self._sidecars: dict[str, SidecarAddress | None] = {}
        self._planned: dict[int, _Planned] = {}
        self._asks_nobody = False  # the last batch does not fit into messages
        self._counts = Counts()

    # ------------------------------------------------------------------------- Spark's thread, and the group's thread

    def plan(
        self, batch: str, reads: Mapping[str, Sequence[Sequence[OffsetRange]]], owned: Mapping[str, Sequence[Position]]
    ) -> Scan:
        """A new scan of a batch.

        Args:
            batch: a digest of the batch's two offsets.
            reads: the pieces that each seat with data reads, in their order, mostly one.
            owned: the partitions of each seat at the end of the batch, and where the next batch will begin in them.
        """
        too_large = next((seat for seat in reads if not _fits(reads[seat], owned.get(seat, ()))), None)
        if too_large is not None:
            log.warning(
                "The %d partitions of seat %s do not fit into one message to its executor: the executors read this "
                "batch directly, which is slower. More `members` make the shares smaller.",
                len(owned.get(too_large, ())),
                too_large,
            )
        with self._lock:
            seats = [seat for seat in sorted(reads) for _ in reads[seat]]
            ranges = sum(len(piece) for pieces in reads.values() for piece in pieces)
            scan = self._seats.plan(batch, seats, late=too_large is None, ranges=ranges)
            self._asks_nobody = too_large is not None
            if too_large is None:
                self._planned[scan.scan_id] = _Planned(reads=reads, owned=owned)
            for number, planned in list(self._planned.items()):
                recent = self._seats.is_recent(number)
                if recent is None:
                    del self._planned[number]
                elif not recent and planned.owned is not None:
                    self._planned[number] = replace(planned, owned=None)
        return scan

    def is_untouched(self) -> bool:
        """As `SeatBindings.is_untouched`, but False for a batch whose tickets need not ask."""
        with self._lock:
            return not self._asks_nobody and self._seats.is_untouched()

    def sidecars(self) -> tuple[SidecarAddress, ...]:
        """A few sidecars, at random: a worker that cannot reach us asks one of them."""
        with self._lock:
            known = [address for address in self._sidecars.values() if address is not None]
        return tuple(random.sample(known, min(len(known), SIDECARS_IN_TICKET)))

    def slots(self) -> int:
        """As `LiveExecutors.slots`."""
        with self._lock:
            return self._seats.live.slots()

    def resize(self, all_seats: Sequence[str]) -> None:
        """As `SeatHomes.resize`."""
        with self._lock:
            self._seats.homes.resize(all_seats)

    def homes(self) -> Mapping[str, Home]:
        """Which executor each seat has as its home."""
        with self._lock:
            return self._seats.homes.living()

    def home(self, seat: str) -> Home | None:
        """Which executor one seat has as its home, or None if it has none."""
        with self._lock:
            return self._seats.homes.of(seat)

    def counts(self) -> Counts:
        """The bindings and reads so far."""
        return self._counts

    # ------------------------------------------------------------------------------------------ the server's thread

    def on_sidecar_joined(self, executor: Executor, address: SidecarAddress | None) -> None:
        """An executor has a sidecar from now on.

        Args:
            executor: the sidecar's.
            address: where workers of other executors reach the sidecar, or None if they do not.
        """
        with self._lock:
            self._seats.on_sidecar_joined(executor, self._clock())
            self._sidecars[executor.key] = address

    def on_sidecar_gone(self, executor: str) -> None:
        """The sidecar of the executor with this key has ended or fallen silent."""
        with self._lock:
            self._seats.on_sidecar_gone(executor)
            del self._sidecars[executor]

    def bind(self, asked: Bind) -> Bound | NothingLeft | Refused:
        """Say which seat a ticket reads, and what of it. A scan or ticket that is not known is refused."""
        try:
            with self._lock:
                planned = self._planned.get(asked.scan)
                if planned is None:  # BEFORE it counts as a report, which only an answered request does
                    raise SeatRefused(asked.scan, asked.ticket)
                binding = self._seats.bind(
                    asked.scan, asked.ticket, asked.executor, self._clock(), for_guest=asked.for_guest
                )
                home = self._seats.homes.of(binding.seat) if binding.seat is not None else None
                address = self._sidecars.get(home.executor.key) if home is not None else None
        except SeatRefused as refused:
            return Refused(reason=str(refused))
        if binding.seat is None:
            return NothingLeft()
        guest = home is not None and home.executor.key != asked.executor.key
        self._counts += Counts(guest_bindings=int(guest))
        # Of several pieces the seat's server has the beginning of the first one ahead. It cannot serve two at a time,
        # and for a later one would fetch records that other tasks are reading. So later pieces are read directly.
        served = binding.piece == 0 and planned.owned is not None
        return Bound(
            seat=binding.seat,
            at_home=binding.at_home and served,
            ranges=tuple(planned.reads[binding.seat][binding.piece]),
            owned=tuple(planned.owned.get(binding.seat, ())) if served and planned.owned is not None else (),
            home=address if guest and served and self.homes_serve_others else None,
        )

    def on_served(self, read: Served, executor: Executor | None) -> None:
        """A read is done.

        Args:
            read: what was read, and by which process.
            executor: the executor whose sidecar tells of it, or None if a worker does.
        """
        self._counts += replace(_READS[read.by], rows=read.rows, rows_ready=read.ready)
        self.sizes.add(read.sizes)
        # A direct read tells nothing about the seat's server.
        if read.by != "worker" and executor is not None:
            with self._lock:
                self._seats.homes.set_warm(read.seat, executor.key, warm=True)

    def on_resting(self, seat: str, executor: Executor) -> None:
        """The seat has no server on this executor for a while."""
        with self._lock:
            self._seats.homes.set_warm(seat, executor.key, warm=False)


def _fits(pieces: Sequence[Sequence[OffsetRange]], owned: Sequence[Position]) -> bool:
    """Whether each piece of a seat's share fits into a message. An estimate: measuring costs as much as sending."""
    reads = max(pieces, key=len)
    names = sum(len(one.topic) for one in reads) + sum(len(one.topic) + len(one.tag) for one in owned)
    leaders = chain((one.leader for one in reads), (one.leader for one in owned))
    hosts = [len(leader.host) for leader in leaders if leader is not None]
    numbers = (len(reads) + len(owned) + 1) * _NUMBERS_BYTES + len(hosts) * _LEADER_BYTES
    return names + sum(hosts) + numbers <= CHANNEL_BYTES_MAX
