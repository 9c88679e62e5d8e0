"""Partitions for which no leader answers: since when, the warnings of it, and when it is an error.

Runs on: driver. No I/O but the log.

A partition is out of reach if it has no leader, its leader is silent or denies that it leads, or the coordinator does
not tell its committed offset since a transaction holds it. It adds no records to a batch, and holds up no other
partition. One warning says that it is out of reach, and another one that this is over.
After `kafka.default.api.timeout.ms` it is an error, since an administrator has to act, but never with
`failOnDataLoss=false`. Absences are in memory alone: a driver that comes back waits as long once more.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from pyspark_kgroup.driver.boundary.context import BoundaryContext
from pyspark_kgroup.options.values import join
from spark_kgroup.errors import BrokerError, RequestTimedOut, WireError
from spark_kgroup.model import ErrorCode, TopicPartition

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Absence:
    """One partition out of reach.

    Attributes:
        since_ms: the first question in a row that its leader has not answered.
        told_since_ms: since when a warning says so.
        given_up: a warning says that the run ends without it.
    """

    since_ms: int
    told_since_ms: int
    given_up: bool = False


class OutOfReach:
    """The partitions of our seats that are out of reach."""

    def __init__(self, context: BoundaryContext) -> None:
        self._options = context.options
        self._clock = context.clock
        self._absences: dict[TopicPartition, _Absence] = {}

    @property
    def partitions(self) -> frozenset[TopicPartition]:
        """Those that are out of reach now."""
        return frozenset(self._absences)

    def keep(self, ours: Iterable[TopicPartition]) -> None:
        """Forget partitions that are not in `ours`: our seats do not hold them any more."""
        held = set(ours)
        self._absences = {tp: absence for tp, absence in self._absences.items() if tp in held}

    def miss(self, why: Mapping[TopicPartition, WireError]) -> None:
        """No leader has answered for these partitions, for these reasons.

        Raises:
            RequestTimedOut: one has been out of reach for `api_timeout_ms`, and that is an error.
        """
        now_ms, new = self._clock(), sorted(why.keys() - self._absences.keys())
        self._absences |= {tp: _Absence(now_ms, now_ms) for tp in new}
        if new:
            bound = f"; the query fails if that lasts for {self._bound}" if self._options.fail_on_data_loss else ""
            log.warning(
                "No answer for %s (%s): nothing is read there until there is one. All other partitions are read on%s.",
                join(new),
                why[new[0]],
                bound,
            )
        overdue = sorted(tp for tp in why if self._is_overdue(tp, now_ms))
        if overdue and self._options.fail_on_data_loss:
            raise RequestTimedOut(
                f"No answer for {join(overdue)} for {self._bound}: {why[overdue[0]]}. {_remedy(why[overdue[0]])}, or "
                "set failOnDataLoss=false to read the other partitions without waiting for it."
            )

    def answered(self, partitions: Iterable[TopicPartition]) -> None:
        """Note that leaders have answered for these meanwhile: if they fall silent now, their time begins anew."""
        now_ms = self._clock()
        for tp in partitions:
            if tp in self._absences:
                # The absence itself ends only when a boundary has all its answers (`hear`).
                self._absences[tp].since_ms = now_ms

    def hear(self, partitions: Iterable[TopicPartition]) -> None:
        """Note that these partitions' leaders have answered every question, and warn that they are back."""
        if not self._absences:
            return
        back = {tp: self._absences.pop(tp) for tp in partitions if tp in self._absences}
        if back:
            for_s = (self._clock() - min(absence.told_since_ms for absence in back.values())) / 1000
            log.warning("Brokers answer for %s again, after %.0f s. Reading continues.", join(sorted(back)), for_s)

    def wait_no_longer(self, partitions: Iterable[TopicPartition]) -> bool:
        """Whether a run that ends by itself has waited long enough for `partitions`, of which it warns once."""
        now_ms = self._clock()
        absences = {tp: self._absences[tp] for tp in partitions if tp in self._absences}
        if any(not self._is_overdue(tp, now_ms) for tp in absences):
            return False
        left = sorted(tp for tp, absence in absences.items() if not absence.given_up)
        for tp in left:
            absences[tp].given_up = True
        if left:
            log.warning(
                "This run ends without the rest of %s, which could not be read for %s. The next run reads it.",
                join(left),
                self._bound,
            )
        return True

    def _is_overdue(self, tp: TopicPartition, now_ms: int) -> bool:
        return now_ms - self._absences[tp].since_ms >= self._options.api_timeout_ms

    @property
    def _bound(self) -> str:
        return f"{self._options.api_timeout_ms / 1000:g} s (kafka.default.api.timeout.ms)"


def _remedy(why: WireError) -> str:
    """The remedy of an absence, as the beginning of a sentence."""
    if isinstance(why, BrokerError) and why.code == ErrorCode.UNSTABLE_OFFSET_COMMIT:
        return "End the transaction that holds the group's offsets (kafka-transactions.sh find-hanging)"
    return "Bring its broker back (kafka-topics.sh --describe --unavailable-partitions shows which)"
