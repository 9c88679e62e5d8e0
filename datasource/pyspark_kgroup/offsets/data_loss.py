"""Records that were still to be read and are gone: where reading continues, and what users are told.

Runs on: both. Pure. The driver meets a loss between two batches (`boundary`), an executor within one (`range_reader`,
`read_ranges`).
"""

from __future__ import annotations

from typing import Final, NamedTuple

from spark_kgroup.model import TopicPartition

WAYS_OUT: Final = (
    "To continue with the records that are left, set failOnDataLoss=false (one run is enough). To start a "
    "stream over, use a new checkpointLocation with startingOffsets."
)
"""What a user can do about it; the end of every `DataLoss`."""


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
        end_offset: one past the last that was asked for, None if everything from `position` on was.
        now: what the log has instead, as a clause.
        why: what may have caused it, as a clause.
        skipped: how many offsets are skipped, 0 if nobody can know.
    """

    partition: TopicPartition
    position: int
    end_offset: int | None
    now: str
    why: str
    skipped: int = 0

    def __str__(self) -> str:
        asked = f"{self.position} {'on' if self.end_offset is None else f'to {self.end_offset - 1}'}"
        return f"Offsets {asked} of {self.partition} were still to be read, but {self.now}: {self.why}."


def out_of_log(partition: TopicPartition, position: int, end_offset: int | None, log: LogRange) -> Loss:
    """The loss of what lies outside `log`."""
    if position < log.first_offset:
        why = "retention or DeleteRecords removed what came before"
    else:
        why = "it was truncated (unclean leader election), or the topic was recreated"
    return Loss(partition, position, end_offset, str(log), why, max(0, log.first_offset - position))


def deleted(partition: TopicPartition, position: int, end_offset: int | None = None) -> Loss:
    """The loss of a partition that no longer exists."""
    why = "it was deleted, or this user may not see it"
    return Loss(partition, position, end_offset, "the partition does not exist any more", why)


def recreated(partition: TopicPartition, position: int, end_offset: int | None, old_id: str, new_id: str) -> Loss:
    """The loss of what an earlier topic of the same name had left."""
    now = f"its topic is another one now (id {new_id}, was {old_id})"
    return Loss(partition, position, end_offset, now, "it was deleted and created again")


def unknown_id(partition: TopicPartition, position: int, end_offset: int | None, topic_id: str) -> Loss:
    """The loss of what a topic had left whose id no broker knows any more."""
    now = f"its topic (id {topic_id}) does not exist any more"
    return Loss(partition, position, end_offset, now, "it was deleted, or deleted and created again")


def truncated(partition: TopicPartition, position: int, end_offset: int | None, cut_at: int) -> Loss:
    """The loss of a log that was cut below what was read of it (KIP-320)."""
    now = f"from offset {cut_at} on the log is not the one that was read up to here"
    return Loss(partition, position, end_offset, now, "it was truncated (unclean leader election)")
