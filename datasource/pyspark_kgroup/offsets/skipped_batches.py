"""The warning of a batch that is done, and of which no record was read.

Runs on: driver; also in the user's own process (`listener`). Pure.

A sink that remembers batch numbers skips those that it has seen: a file sink, Delta with `txnVersion`. After the
checkpoint was deleted and the output was kept, Spark counts from 0 again, calls the skipped batches durable, and their
ends are committed to the group: the rows are in no table, and the lag is 0.
"""

from __future__ import annotations


def skipped_warning(offsets: int, *, reached: bool) -> str:
    """The warning.

    Args:
        offsets: how many the batch had.
        reached: whether executors can report their reads.
    """
    unreachable = "" if reached else " Or no executor can reach this stream reader, as its log says then."
    return (
        f"A batch of {offsets} offsets is done, and no task has read a record of it. Does the sink know the batch's "
        "number already, since the checkpoint is new and the output is not? Then it skips these records, which are in "
        "no table though the group's offsets say that they are read: start again with a new checkpointLocation and a "
        "new output directory (Delta, or a foreachBatch that remembers numbers: a new application id, txnAppId). If "
        f"the query made no use of the batch (an empty foreachBatch), all is well.{unreachable}"
    )
