"""The requests of a boundary to the group and the brokers: its one seam to the group's runtime.

Runs on: driver.

Met by `spark_kgroup.runtime.thread.GroupRuntime`, whose docstrings name the errors of each call, and by the tests'
model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

from spark_kgroup.model import DescribedGroup, DescribedMember, TopicDescription, TopicPartition
from spark_kgroup.runtime.views import GroupView, SeatCommit
from spark_kgroup.wire.listing import Answers
from spark_kgroup.wire.responses import CommittedOffset
from spark_kgroup.wire.witnesses import NamedLeader


class EndListing(Protocol):
    """Where logs end, as far as leaders have answered. Each is asked until it answers, for `api_timeout_ms` at most."""

    def answers(self, patience_ms: int) -> Answers[int]:
        """The answers so far: as soon as all leaders have answered, at the latest after `patience_ms`."""

    @property
    def ended(self) -> bool:
        """No leader is asked any more: all have answered, or the time is up."""


class LogPort(Protocol):
    """Where logs begin and end. Each leader answers for its own partitions, or does not in time: `Answers` says why."""

    def begin_ends(self, partitions: Iterable[TopicPartition], *, read_committed: bool) -> EndListing:
        """Begin to ask where logs end, while other calls go on."""

    def ends(self, partitions: Iterable[TopicPartition], patience_ms: int, *, read_committed: bool) -> Answers[int]:
        """One past the last readable offset of each partition."""

    def starts(self, partitions: Iterable[TopicPartition], patience_ms: int) -> Answers[int]:
        """The first offset that each partition still has."""

    def at(self, timestamps: Mapping[TopicPartition, int], patience_ms: int, *, read_committed: bool) -> Answers[int]:
        """The first offset of each partition whose record is not older than its timestamp (ms).

        A partition that has none is in neither part of the answer.
        """

    def ranges(
        self, partitions: Iterable[TopicPartition], patience_ms: int, *, read_committed: bool
    ) -> Answers[tuple[int, int, int]]:
        """The first offset of each partition, one past the last readable one, and the epoch of the leader, or -1."""

    def ask_another_broker(
        self, partitions: Iterable[TopicPartition], patience_ms: int
    ) -> Mapping[TopicPartition, Sequence[NamedLeader]]:
        """Look leaders up at another broker than the one that named them: as they were named before, and are named now.

        Later questions go to a newer leader, if that broker names one. Each broker is a node id that is known.
        """


class GroupPort(Protocol):
    """One group with our seats in it. Every call has a bound."""

    @property
    def logs(self) -> LogPort:
        """Where logs begin and end."""

    # ----------------------------------------------------------------------------------------------- membership

    def view(self) -> GroupView:
        """The seats as they are now. Raises the error of which a seat failed."""

    def wait_until(self, condition: Callable[[GroupView], bool], timeout_ms: int) -> GroupView:
        """The first view for which `condition` holds, or the view after `timeout_ms`."""

    def give_up(self, instance_id: str, partitions: frozenset[TopicPartition]) -> None:
        """Tell a seat that no batch reads `partitions` any more, AFTER their positions were committed."""

    def force_rebalance(self, reason: str) -> None:
        """Make the whole group join anew, once."""

    def describe(self, timeout_ms: int | None = None) -> DescribedGroup:
        """The whole group, members of other applications included."""

    def remove_members(self, members: Iterable[DescribedMember], reason: str) -> dict[str, int]:
        """Take out static members that no process serves. Returns instance id -> error code of those still there."""

    def remove_seats(self, instance_ids: Iterable[str], reason: str) -> None:
        """Let some of our seats leave for good, AFTER their positions were committed."""

    # -------------------------------------------------------------------------------------------------- offsets

    def commit(self, commits: Sequence[SeatCommit]) -> frozenset[TopicPartition]:
        """Commit for several seats at once, and return the partitions whose commit was acknowledged."""

    def commit_refusal(self) -> str:
        """Why the last commit of each seat was not acknowledged, empty if all were."""

    def committed(
        self, partitions: Iterable[TopicPartition], timeout_ms: int | None = None
    ) -> dict[TopicPartition, CommittedOffset | None]:
        """The committed offset of each partition, with its metadata, or None where there is none."""

    def committed_answers(
        self, partitions: Iterable[TopicPartition], patience_ms: int
    ) -> Answers[CommittedOffset | None]:
        """As `committed`, without partitions that the coordinator refuses for `patience_ms`, unlike the rest."""

    # -------------------------------------------------------------------------------------------------- topics

    def topics(self, max_age_ms: int) -> Mapping[str, TopicDescription]:
        """The subscribed topics that exist, no older than `max_age_ms`."""

    def topics_named(self, names: Iterable[str]) -> Mapping[str, TopicDescription]:
        """Those of `names` that exist, subscribed or not."""

    def topics_gone(self, names: Iterable[str]) -> frozenset[str]:
        """Those of `names` that brokers do not know."""
