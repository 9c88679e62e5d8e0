"""Where logs end, asked of each partition's leader. No partition waits for the leader of another one.

Runs on: driver. Between two batches only (`boundary`).

A leader has `LEADER_PATIENCE_MS` to answer. One that has not answered is asked on beside the boundaries, none of which
waits for it. Its late answer serves the next boundary, which asks that leader anew.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from pyspark_kgroup.driver.boundary.context import BoundaryContext
from pyspark_kgroup.driver.boundary.group_port import EndListing
from pyspark_kgroup.limits import BEGUN_END_OFFSETS_MAX_AGE_MS, END_OFFSETS_MAX_AGE_MS, LEADER_PATIENCE_MS
from spark_kgroup.errors import WireError
from spark_kgroup.model import TopicPartition


@dataclass(frozen=True, slots=True)
class _Listed:
    """Where logs ended, and when they were listed."""

    ends: Mapping[TopicPartition, int]
    at_ms: int


@dataclass(frozen=True, slots=True)
class _Begun:
    """A listing that is under way, and when it began."""

    partitions: frozenset[TopicPartition]
    listing: EndListing
    at_ms: int


@dataclass(frozen=True, slots=True)
class _Beside:
    """A listing that goes on beside the boundaries, and the partitions for which it does."""

    listing: EndListing
    left: set[TopicPartition]


class LogEnds:
    """End offsets for one boundary after the other.

    Args:
        on_answered: is told of partitions whose leaders have answered beside the boundaries.

    Attributes:
        last: the end of each log as last listed.
        unanswered: the partitions that are asked for beside the boundaries, and why there is no answer yet.
    """

    def __init__(self, context: BoundaryContext, on_answered: Callable[[Collection[TopicPartition]], None]) -> None:
        self._group = context.group
        self._clock = context.clock
        self._on_answered = on_answered
        self._read_committed = context.options.read_committed
        self.forget()

    def forget(self) -> None:
        """Drop listed ends, and listings under way, since they may be of topics that are gone."""
        self.last: dict[TopicPartition, int] = {}
        self.unanswered: dict[TopicPartition, WireError] = {}
        self._listed = _Listed({}, 0)
        self._begun: _Begun | None = None
        self._beside: list[_Beside] = []
        self._late: dict[TopicPartition, int] = {}

    def drop(self, partitions: Collection[TopicPartition]) -> None:
        """Drop the listed ends of `partitions`, and any listing that was begun before its answers are needed."""
        self._listed = _Listed(
            {tp: end for tp, end in self._listed.ends.items() if tp not in partitions}, self._listed.at_ms
        )
        self._begun = None

    def begin(self, partitions: Collection[TopicPartition]) -> None:
        """Begin to list `partitions`, while brokers are asked other questions before `of` needs the ends."""
        if lacking := self._lacking(partitions, self._recent()):
            # First, so that a leader that has answered late is asked with the rest again.
            self._collect()
            self._begun = self._begin(lacking - self.unanswered.keys())

    def of(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """One past the last readable offset of each partition whose leader has answered."""
        recent = self._recent()
        if lacking := self._lacking(partitions, recent):
            self._collect()
            self._list(lacking, recent or _Listed({}, self._clock()))
        ends = self._listed.ends
        return {tp: ends[tp] for tp in partitions if tp in ends}

    def _recent(self) -> _Listed | None:
        """The ends that were listed a moment ago. To be asked for once in a call: the clock goes on meanwhile."""
        return self._listed if self._clock() - self._listed.at_ms <= END_OFFSETS_MAX_AGE_MS else None

    def _lacking(self, partitions: Collection[TopicPartition], recent: _Listed | None) -> set[TopicPartition]:
        """Which of `partitions` are to be listed."""
        if recent is None:
            return set(partitions)
        return set(partitions) - recent.ends.keys() - self.unanswered.keys()

    def _list(self, lacking: set[TopicPartition], before: _Listed) -> None:
        begun, self._begun = self._begun, None
        fresh = begun is not None and self._clock() - begun.at_ms <= BEGUN_END_OFFSETS_MAX_AGE_MS
        wanted = lacking - self.unanswered.keys()
        if begun is None or not fresh or not begun.partitions >= wanted - self._late.keys():
            begun = self._begin(wanted)
        answers = begun.listing.answers(LEADER_PATIENCE_MS)
        if answers.unanswered:
            self.unanswered |= answers.unanswered
            self._beside.append(_Beside(begun.listing, set(answers.unanswered)))
        late, self._late = self._late, {}
        # Newer answers replace older ones, and the age of all is that of the older listing.
        self._listed = _Listed({**before.ends, **late, **answers.found}, min(before.at_ms, begun.at_ms))
        self.last.update(self._listed.ends)

    def _begin(self, partitions: Collection[TopicPartition]) -> _Begun:
        listing = self._group.logs.begin_ends(partitions, read_committed=self._read_committed)
        return _Begun(frozenset(partitions), listing, self._clock())

    def _collect(self) -> None:
        """Take the late answers of leaders. A partition whose listing has ended without an answer is asked for anew."""
        beside, self._beside = self._beside, []
        late: dict[TopicPartition, int] = {}
        for each in beside:
            answers = each.listing.answers(0)
            late |= {tp: end for tp, end in answers.found.items() if tp in each.left}
            each.left.difference_update(answers.found)
            self.unanswered |= {tp: why for tp, why in answers.unanswered.items() if tp in each.left}
            if each.listing.ended:
                self.unanswered = {tp: why for tp, why in self.unanswered.items() if tp not in each.left}
            elif each.left:
                self._beside.append(each)
        self.unanswered = {tp: why for tp, why in self.unanswered.items() if tp not in late}
        self._late |= late
        self._on_answered(late)
