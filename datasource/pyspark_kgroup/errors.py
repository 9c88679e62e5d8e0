"""The errors that only the data source raises.

    KgroupError
    ├── CheckpointError             the checkpoint's: not offsets of ours, or of a later version
    ├── DataLoss                    records we had still to read are gone
    ├── ChannelEnded                between driver and executor, or within an executor: it ended, or was silent too long
    │   └── NobodyListens           its other end has no process any more
    ├── KeyRefused                  the two ends of such a channel do not hold the same application's key
    ├── RegistryUnreachable         an executor cannot reach the stream reader on the driver
    └── SeatRefused                 a task asks for a ticket that the stream reader does not know

    FencedInstanceId
    └── SeatTaken                   the group's, with what takes a seat under Spark

The errors of the group, its brokers and the options are drawn in `spark_kgroup.errors`.

Runs on: both.
"""

from __future__ import annotations

from spark_kgroup.errors import FencedInstanceId, KgroupError


class SeatTaken(FencedInstanceId):
    """Another process took a seat of this query. The message names the causes under Spark."""

    def _text(self) -> str:
        return (
            f"Another process took the seat {self.instance_id!r} in group {self.group!r} (FENCED_INSTANCE_ID). "
            "Does a second reader run with the same group and instance id prefix: another query on the same load(), a "
            "second sink, a self-join? If each of the two wants every record, give each its own load() with its own "
            "`kafka.group.id`. If they are to share the records, so that each gets a part of them, give each its own "
            "`instanceIdPrefix`. Or is an old driver still alive, or only its stream reader (a process "
            "`python_streaming_source_runner` whose JVM is gone)? Stop it. The newest one keeps the seat."
        )


class CheckpointError(KgroupError):
    """The checkpoint holds an offset that this version cannot read."""


class DataLoss(KgroupError):
    """Records that were still to be read are gone (retention, deletion, recreation of the topic)."""


class ChannelEnded(KgroupError):
    """The other end of a channel hung up, was silent for too long, or does not speak like one of ours."""


class NobodyListens(ChannelEnded):
    """The other host answers, and no process has that port: the process that listened there has ended."""


class KeyRefused(KgroupError):
    """The two ends of a channel do not hold the same key: another query's, or none."""


class RegistryUnreachable(KgroupError):
    """An executor cannot reach the registry in the driver's stream-reader process."""

    def __init__(self, host: str, port: int, reason: object) -> None:
        super().__init__(
            f"This executor cannot reach the stream reader on the driver at {host}:{port} ({reason}). A query that has "
            "just been stopped, or has ended, leaves tasks behind that end with this error, which is harmless. A frame "
            "that its foreachBatch was given cannot be computed any more. If the query still runs, open that port from "
            "executors to the driver, or name with the options `registryHost` and `registryPort` the address and port "
            "under which executors reach the driver."
        )


class SeatRefused(KgroupError):
    """A task asks for a ticket of a scan that is over, or that was never planned here."""

    def __init__(self, scan_id: int, ticket: int) -> None:
        super().__init__(
            f"The stream reader on the driver does not know ticket {ticket} of scan {scan_id}: its batch has been over "
            "for long. If a job of yours fails with this, it computes a frame that foreachBatch was given then: let it "
            "write its results before foreachBatch returns. If the query fails with this, restart it: it goes on from "
            "its checkpoint. A task that Spark does not wait for any more may end with this, which is harmless."
        )
