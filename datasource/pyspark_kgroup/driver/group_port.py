"""What a boundary asks of the group and of the brokers: its one seam to the group's runtime.

Runs on: driver.

Met by `spark_kgroup.runtime.thread.GroupRuntime`, whose docstrings say what each call raises, and by the tests' model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

from spark_kgroup.model import DescribedGroup, DescribedMember, TopicDescription, TopicPartition
from spark_kgroup.runtime.views import GroupView, SeatCommit
from spark_kgroup.wire.listing import Answers
from spark_kgroup.wire.responses import CommittedOffset


class EndListing(Protocol):
    """Where logs end, as far as leaders have answered: they are asked on and on until they do, for `api_timeout_ms`."""

    def answers(self, patience_ms: int) -> Answers[int]:
        """What has been answered when all have, at the latest after `patience_ms`."""

    @property
    def ended(self) -> bool:
        """Nobody is asked any more: all have answered, or the time is up."""


class GroupPort(Protocol):
    """One group with our seats in it. Every call has a bound."""

    # ----------------------------------------------------------------------------------------------- membership

    def view(self) -> GroupView:
        """The seats as they are now; raises what a seat failed of."""

    def wait_until(self, condition: Callable[[GroupView], bool], timeout_ms: int) -> GroupView:
        """The first view for which `condition` holds, or the view after `timeout_ms`."""

    def give_up(self, instance_id: str, partitions: frozenset[TopicPartition]) -> None:
        """Tell a seat that nobody reads `partitions` any more; AFTER their positions were committed."""

    def force_rebalance(self, reason: str) -> None:
        """Make the whole group join anew, once."""

    def describe(self, timeout_ms: int | None = None) -> DescribedGroup:
        """The whole group, members of other applications included."""

    def remove_members(self, members: Iterable[DescribedMember], reason: str) -> dict[str, int]:
        """Take static members out that no process serves any more; returns who is still there, and why."""

    def remove_seats(self, instance_ids: Iterable[str], reason: str) -> None:
        """Give some of our seats back for good; AFTER their positions were committed."""

    # -------------------------------------------------------------------------------------------------- offsets

    def commit(self, commits: Sequence[SeatCommit]) -> frozenset[TopicPartition]:
        """Commit for several seats at once; returns the partitions whose commit was acknowledged."""

    def commit_refusal(self) -> str:
        """Why the last commit of each seat was not acknowledged; empty if all were."""

    def committed(
        self, partitions: Iterable[TopicPartition], timeout_ms: int | None = None
    ) -> dict[TopicPartition, CommittedOffset | None]:
        """The committed offset of each partition, with its metadata; None where nothing is."""

    def committed_answers(
        self, partitions: Iterable[TopicPartition], patience_ms: int
    ) -> Answers[CommittedOffset | None]:
        """As `committed`, without the partitions that the coordinator refuses for `patience_ms`, unlike others."""

    # ---------------------------------------------------------------------------------------------- topics, logs

    def topics(self, max_age_ms: int) -> Mapping[str, TopicDescription]:
        """The subscribed topics that exist, no older than `max_age_ms`."""

    def topics_named(self, names: Iterable[str]) -> Mapping[str, TopicDescription]:
        """Those of `names` that exist, subscribed or not."""

    def topics_gone(self, names: Iterable[str]) -> frozenset[str]:
        """Those of `names` that brokers do not know."""

    # Each leader answers for its own partitions, or does not in time: then `Answers` says why.

    def begin_end_offsets(self, partitions: Iterable[TopicPartition], *, read_committed: bool) -> EndListing:
        """Begin to ask where logs end; other calls go on beside it."""

    def end_offsets(
        self, partitions: Iterable[TopicPartition], patience_ms: int, *, read_committed: bool
    ) -> Answers[int]:
        """One past the last readable offset of each partition."""

    def start_offsets(self, partitions: Iterable[TopicPartition], patience_ms: int) -> Answers[int]:
        """The first offset that each partition still has."""

    def offsets_at(
        self, timestamps: Mapping[TopicPartition, int], patience_ms: int, *, read_committed: bool
    ) -> Answers[int]:
        """The first offset of each partition whose record is not older than its timestamp (ms).

        A partition that has none is in neither part of the answer.
        """

    def log_ranges(
        self, partitions: Iterable[TopicPartition], patience_ms: int, *, read_committed: bool
    ) -> Answers[tuple[int, int, int]]:
        """The first offset of each partition, one past the last readable one, and the epoch of the leader, or -1."""
