"""Records that were still to be read and are gone: where reading continues, and the sentences for users.

Runs on: both. Pure. The driver meets a loss between two batches (`boundary`), an executor within one (`unread_ranges`,
`read_natively`).
"""

from __future__ import annotations

from base64 import urlsafe_b64encode
from collections.abc import Sequence
from typing import Final, NamedTuple
from uuid import UUID

from spark_kgroup.limits import NAMES_LISTED_MAX
from spark_kgroup.model import TopicPartition

WAYS_OUT: Final = (
    "To continue with the records that are left, set failOnDataLoss=false (one run is enough). To start a "
    "stream over, use a new checkpointLocation with startingOffsets."
)
"""The remedies. Every `DataLoss` of a stream ends with them."""


class LogRange(NamedTuple):
    """The offsets that a partition has: `first_offset` <= offset < `end_offset`.

    The epoch is that of the leader that said so (KIP-320), -1 if it did not say.
    """

    first_offset: int
    end_offset: int
    leader_epoch: int = -1

    def nearest(self, position: int) -> int:
        """Where reading continues: `position` itself, if the log has it or ends there.

        After retention at the first offset, after a truncation at the new end, as `format("kafka")` does.
        """
        return min(max(position, self.first_offset), self.end_offset)

    def __str__(self) -> str:
        if self.first_offset == self.end_offset:
            return f"the log is empty and ends at {self.end_offset}"
        return f"the log has {self.first_offset} to {self.end_offset - 1}"


class Loss(NamedTuple):
    """One loss.

    Attributes:
        partition: where.
        position: the first offset that was asked for.
        end_offset: one past the last that was asked for, or None if all from `position` on were.
        now: the state of the log instead, as a clause.
        why: the likely cause, as a clause.
        skipped: how many offsets are skipped, or 0 if that cannot be known.
    """

    partition: TopicPartition
    position: int
    end_offset: int | None
    now: str
    why: str
    skipped: int = 0

    def __str__(self) -> str:
        if self.end_offset is None:  # perhaps there was no such record: what is gone does not tell its end
            asked = f"Offsets {self.position} on of {self.partition} were to be read next"
        else:
            asked = f"Offsets {self.position} to {self.end_offset - 1} of {self.partition} were still to be read"
        return f"{asked}, but {self.now}: {self.why}."


def warnings_of(losses: Sequence[Loss]) -> list[str]:
    """The warnings of losses that are skipped: a topic of 10,000 partitions that was deleted has as many of them."""
    shown, rest = losses[:NAMES_LISTED_MAX], losses[NAMES_LISTED_MAX:]
    more = [f"Data loss: {len(rest)} more partitions are concerned, from {rest[0].partition} on."] if rest else []
    return [f"Data loss: {loss}" for loss in shown] + more


def out_of_log(partition: TopicPartition, position: int, end_offset: int | None, log: LogRange) -> Loss:
    """The loss of offsets that lie outside `log`."""
    if position < log.first_offset:
        why = "retention or DeleteRecords removed the records before"
    else:
        why = (
            "it was truncated (unclean leader election), the topic was recreated, or an offset beyond it was committed"
        )
    return Loss(partition, position, end_offset, str(log), why, max(0, log.first_offset - position))


def deleted(partition: TopicPartition, position: int, end_offset: int | None = None) -> Loss:
    """The loss of a partition that no longer exists."""
    why = "it was deleted, or this user may not see it"
    return Loss(partition, position, end_offset, "the partition does not exist any more", why)


def recreated(partition: TopicPartition, position: int, end_offset: int | None, old_id: str, new_id: str) -> Loss:
    """The loss of unread records of an earlier topic of the same name.

    Args:
        partition: of the topic.
        position: as of `Loss`.
        end_offset: as of `Loss`.
        old_id: a UUID's digits, with dashes or without. A text that is no UUID is shown as it is.
        new_id: likewise.
    """
    now = f"its topic is another one now (id {_shown_id(new_id)}, was {_shown_id(old_id)})"
    return Loss(partition, position, end_offset, now, "it was deleted and created again")


def _shown_id(text: str) -> str:
    """A topic's id as Kafka's tools show it: base64 (Uuid.toString)."""
    try:
        return urlsafe_b64encode(UUID(text).bytes).decode().rstrip("=")
    except ValueError:
        return text


def truncated(partition: TopicPartition, position: int, end_offset: int | None, cut_at: int) -> Loss:
    """The loss in a log that was cut below the position up to which it was read (KIP-320)."""
    now = f"from offset {cut_at} on the log is not the one that was read up to here"
    return Loss(partition, position, end_offset, now, "it was truncated (unclean leader election)")
